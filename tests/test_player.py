"""The player: what it sends, what it frees, and (in Chromium) that a step repaints without Python."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import time
import weakref

import numpy as np
import pytest

widgets = pytest.importorskip("ipywidgets")
pytest.importorskip("anywidget")

from labserver import CHROMIUM_ARGS, chromium  # noqa: E402
from texlab.explore._base import Explorer, Later  # noqa: E402
from texlab.player import COLOURS, GREEN, ORANGE, OUTSIDE, SKY, Player, _runs  # noqa: E402

PANELS = [
    {"name": "y", "rows": 2, "cols": 2, "title": "Output", "x": "q", "y": "p"},
    {
        "name": "x",
        "rows": 2,
        "cols": 3,
        "tips": [f"x[{i}]" for i in range(6)],
        "outline": [ORANGE],
        "tag_name": "tap",
        "notes": [f"note {t}" for t in range(4)],
    },
]


def content(steps: int = 4) -> dict:
    frames = np.zeros((steps, 10), np.uint8)
    tags = np.full((steps, 10), -1)
    for t in range(steps):
        frames[t, t % 4] = GREEN
        frames[t, 4 + t % 6] = ORANGE
        tags[t, 4 + t % 6] = t
    return {
        "panels": PANELS,
        "frames": frames,
        "tags": tags,
        "captions": [f"pixel {t}" for t in range(steps)],
        "legend": {GREEN: "pixel", ORANGE: ("window", "corner"), OUTSIDE: "outside"},
        "points": np.arange(4),
        "links": [-1] * 4 + [0, 1, 2, 0, 1, 2],
        "page": 2,
    }


def sent(player: Player, name: str) -> list:
    """Values of a trait that reach the browser, as they change."""
    seen: list = []
    player.observe(lambda change: seen.append(change["new"]), name)
    return seen


# what is sent --------------------------------------------------------------------------------------------------------
def test_load_sends_one_message_and_nothing_when_nothing_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    player = Player()
    messages: list = []
    monkeypatch.setattr(type(player), "send_state", lambda self, key=None: messages.append(set(key or ())))
    player.load(**content())
    assert len(messages) == 1
    assert {"panels", "frame_bytes", "tag_bytes", "captions", "legend"} <= set(messages[0])
    player.load(**content())
    assert not any(messages[1:])


def test_bytes_equal_the_arrays() -> None:
    player = Player(**content())
    assert len(player.frame_bytes) == 4 * 10
    assert len(player.tag_bytes) == 2 * 4 * 10
    assert np.array_equal(np.frombuffer(player.tag_bytes, np.int16).reshape(4, 10), content()["tags"])


def test_two_changes_of_three_assignments_and_an_edit_in_place() -> None:
    player = Player(**content())
    seen = sent(player, "frame_bytes")
    for values in (np.zeros((4, 10)), np.zeros((4, 10)), np.full((4, 10), SKY)):
        player.load(**{**content(), "frames": values})
    assert len(seen) == 2
    player.frames[0, 0] = ORANGE
    assert len(seen) == 2
    player.refresh()
    assert len(seen) == 3
    assert seen[-1][0] == ORANGE
    player.refresh()
    assert len(seen) == 3


def test_a_smaller_load_keeps_the_step_in_range() -> None:
    player = Player(**content(), step=3)
    controls = player.controls()
    player.load(**{**content(2), "panels": [PANELS[0], {**PANELS[1], "notes": None}]})
    assert (player.step, player.steps, controls.children[1].max) == (1, 2, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"frames": np.zeros((4, 9))}, r"frames \(4, 9\): expected \(steps, 10\)"),
        ({"frames": np.full((4, 10), len(COLOURS))}, "hold colour 10"),
        ({"tags": np.zeros((4, 9))}, "must have the shape of frames"),
        ({"captions": ["one"]}, "1 captions for 4 frames"),
        ({"points": [0, 1]}, "points has 2 entries for 4 cells"),
        ({"links": [0]}, "links has 1 entries for 10 cells"),
        ({"panels": [{"name": "x", "rows": 2, "colums": 5}]}, r"missing \['cols'\], unknown \['colums'\]"),
        ({"panels": [PANELS[0], {**PANELS[1], "tips": ["a"]}]}, "1 tips, expected 6"),
        ({"legend": {1: ("text", "stripe")}}, "marks"),
    ],
)
def test_what_does_not_fit_is_named(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Player(**{**content(), **change})


# files and figures ---------------------------------------------------------------------------------------------------
def test_figure_shows_the_frame_and_saves(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    player = Player(**content())
    figure = player.figure(2)
    texts = [t.get_text() for axes in figure.axes for t in axes.texts]
    assert texts == ["2"]
    assert figure.texts[0].get_text() == "pixel 2"
    assert "note 2" in figure.axes[1].get_title(loc="left")
    assert figure._repr_png_().startswith(b"\x89PNG")
    player.save(tmp_path / "step.svg", 1)
    assert b"<svg" in (tmp_path / "step.svg").read_bytes()
    with pytest.raises(ValueError, match=r"step=4: there are steps 0 to 3"):
        player.figure(4)


def test_runs_stop_at_breaks() -> None:
    row = np.array([[True, True, True, False, True]])
    assert _runs(row) == [(0, 0, 3), (0, 4, 1)]
    assert _runs(row, [1]) == [(0, 0, 1), (0, 1, 2), (0, 4, 1)]


# explorers' machinery ------------------------------------------------------------------------------------------------
class Slow(Explorer):
    """Sleeps; 13 is no good."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.slider = widgets.IntSlider(0, 0, 100)
        super().__init__({"value": self.slider}, Player(**content()))
        self.seconds, self.computed, self.shown = seconds, [], []
        self.children = [self.slider, self.player.controls(), self.player, self.status, self.error]

    def compute(self, value: int) -> int:
        if value == 13:
            raise ValueError("13 is <no> good")
        time.sleep(self.seconds)
        self.computed.append(value)
        return value

    def show(self, result: int) -> None:
        self.shown.append(result)


def test_dragging_does_not_queue_work() -> None:
    async def drag() -> Slow:
        explorer = Slow(0.5)
        loop = asyncio.get_running_loop()
        start = loop.time()
        for k in range(30):
            loop.call_at(start + k / 30, setattr, explorer.slider, "value", k + 20)
        await asyncio.sleep(1)
        while explorer.shown[-1:] != [49] and loop.time() < start + 2.5:
            await asyncio.sleep(0.01)
        assert loop.time() < start + 2.5
        await asyncio.sleep(0.2)
        return explorer

    explorer = asyncio.run(drag())
    assert explorer.shown[-1] == 49
    assert len(explorer.computed) <= 4


def test_an_error_is_shown_and_the_next_good_value_recovers() -> None:
    explorer = Slow()
    explorer.slider.value = 13
    assert "ValueError" in explorer.error.value
    assert "13 is &lt;no&gt; good" in explorer.error.value
    assert explorer.player.stale
    explorer.slider.value = 14
    assert (explorer.error.value, explorer.player.stale, explorer.shown) == ("", False, [14])


def test_wait_computes_what_is_asked_for() -> None:
    async def ask() -> list:
        done: list = []
        later = Later(lambda: done.append("work"), lambda: done.append("busy"))
        later()
        later()
        assert done == []
        later.wait()
        later.wait()
        await asyncio.sleep(0.1)
        return done

    assert asyncio.run(ask()) == ["busy", "work"]


def test_closed_explorers_are_freed() -> None:
    from ipywidgets.widgets.widget import _instances

    gc.collect()
    before, alive = len(_instances), []
    for _ in range(50):
        explorer = Slow()
        explorer._repr_mimebundle_()
        explorer.slider.value = 5
        explorer.close()
        alive += [weakref.ref(explorer), weakref.ref(explorer.player)]
        del explorer
    gc.collect()
    assert sum(ref() is not None for ref in alive) <= 1
    assert len(_instances) <= before


# the front end in a browser, without Jupyter -------------------------------------------------------------------------
PAGE = """<body style="margin:8px"><style>%s</style><div id=here></div><script type=module>
const raw = %s, bytes = (s) => new DataView(Uint8Array.from(atob(s), (c) => c.charCodeAt(0)).buffer);
const state = Object.fromEntries(Object.entries(raw).map(([k, v]) => [k, k.endsWith("_bytes") ? bytes(v) : v]));
const listeners = {};
window.saved = [];
const set = (k, v) => { if (state[k] !== v) { state[k] = v; (listeners["change:" + k] || []).forEach((f) => f()); } };
const model = { get: (k) => state[k], set,
  save_changes: () => window.saved.push(state.step), on: (e, f) => (listeners[e] = listeners[e] || []).push(f),
  off: (e, f) => (listeners[e] = (listeners[e] || []).filter((g) => g !== f)) };
window.model = model; window.bytes = bytes; window.listeners = listeners;
const url = URL.createObjectURL(new Blob([%s], { type: "text/javascript" }));
const module = await import(url);
window.end = module.default.render({ model, el: document.getElementById("here") });
window.ready = true;
</script>"""


def traits(player: Player) -> dict:
    import base64

    names = ["panels", "captions", "legend", "label", "page", "step", "playing", "stale"]
    binary = ["frame_bytes", "tag_bytes", "link_bytes", "point_bytes"]
    state = {name: getattr(player, name) for name in names}
    return state | {name: base64.b64encode(getattr(player, name)).decode() for name in binary}


@pytest.fixture(scope="module")
def page():
    sync_api = pytest.importorskip("playwright.sync_api")
    if chromium() is None:
        pytest.skip("no Chromium here")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=list(CHROMIUM_ARGS))
        yield browser.new_page(viewport={"width": 900, "height": 600})
        browser.close()


@pytest.fixture
def view(page):
    """The page with a fresh player; page errors fail the test."""
    errors: list = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto("about:blank")
    page.set_content(PAGE % (Player._css, json.dumps(traits(Player(**content()))), json.dumps(Player._esm)))
    page.wait_for_function("window.ready")
    yield page
    assert errors == []


def pixels(page, panel: int) -> np.ndarray:
    image = pytest.importorskip("PIL.Image")
    shot = page.locator("canvas[role=img]").nth(panel).screenshot()
    return np.asarray(image.open(io.BytesIO(shot)).convert("RGB")).astype(int)


def test_keys_step_and_the_picture_changes(view) -> None:
    root = view.locator(".tlp")
    root.focus()
    before = pixels(view, 1)
    for key, step in (("ArrowRight", "1"), ("ArrowDown", "3"), ("ArrowRight", "3"), ("PageUp", "1"), ("Home", "0")):
        view.keyboard.press(key)
        assert root.get_attribute("data-step") == step, key
    assert np.array_equal(pixels(view, 1), before)
    view.keyboard.press("End")
    assert view.locator(".tlp-caption").inner_text() == "pixel 3"
    assert view.locator(".tlp-note").nth(1).inner_text() == "note 3"
    assert "note 3" in view.locator("canvas[role=img]").nth(1).get_attribute("aria-label")
    assert (np.abs(pixels(view, 1) - before).max(-1) > 60).mean() > 0.02
    view.keyboard.press(" ")
    assert view.evaluate("model.get('playing')")
    assert view.evaluate("document.querySelectorAll('.tlp-legend .tlp-item').length") == 3


def test_clicking_a_point_goes_there_and_hovering_names_the_cell(view) -> None:
    first, second = (view.locator("canvas[role=img]").nth(i).bounding_box() for i in (0, 1))
    view.mouse.click(first["x"] + first["width"] - 10, first["y"] + first["height"] - 10)
    assert view.locator(".tlp").get_attribute("data-step") == "3"
    view.mouse.move(second["x"] + second["width"] - 10, second["y"] + 10)
    assert view.locator(".tlp-tip").inner_text() == "x[2]"
    view.keyboard.press("ArrowLeft")
    view.mouse.move(second["x"] + second["width"] - 12, second["y"] + 12)
    assert view.locator(".tlp-tip").inner_text().split("\n") == ["x[2]", "tap 2", "window"]


def test_a_load_of_another_shape_is_taken_over_in_one_piece(view) -> None:
    tall = Player([{"name": "z", "rows": 5, "cols": 40}], np.full((2, 200), SKY), captions=["a", "b"])
    view.evaluate(
        """state => { for (const [k, v] of Object.entries(state)) model.set(k, k.endsWith("_bytes") ? bytes(v) : v); }""",
        traits(tall),
    )
    view.wait_for_function("document.querySelectorAll('canvas[role=img]').length === 1")
    root = view.locator(".tlp")
    assert root.get_attribute("data-bytes") == "400"
    assert view.locator(".tlp-caption").inner_text() == "a"
    scroll = view.evaluate("[document.body.scrollWidth, innerWidth]")
    assert scroll[0] <= scroll[1]


def test_a_step_is_fast_and_moves_nothing(view) -> None:
    frames = np.where(np.random.default_rng(0).random((8, 2048)) < 0.1, ORANGE, OUTSIDE)
    tags = np.tile(np.arange(2048) % 100, (8, 1))
    texts = ["short"] * 7 + ["long " * 60]
    big = Player([{"name": "m", "rows": 32, "cols": 64, "outline": [ORANGE]}], frames, tags, captions=texts)
    view.evaluate(
        """state => { for (const [k, v] of Object.entries(state)) model.set(k, k.endsWith("_bytes") ? bytes(v) : v); }""",
        traits(big),
    )
    view.wait_for_function("document.querySelector('.tlp').dataset.bytes === '16384'")
    times, tops = [], set()
    for step in range(1, 8):
        view.evaluate("step => model.set('step', step)", step)
        times.append(float(view.locator(".tlp").get_attribute("data-draw-ms")))
        tops.add(view.locator("canvas[role=img]").bounding_box()["y"])
    assert min(times) < 50, times  # the least: machines that run tests are busy
    assert len(tops) == 1


def test_a_removed_view_listens_no_more(view) -> None:
    view.evaluate("end()")
    assert view.evaluate("Object.values(listeners).flat().length") == 0
