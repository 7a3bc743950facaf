"""A learner's way through every notebook: a real JupyterLab in a real Chromium.

Each notebook is opened from the file browser, run with Run All, and its explorer used: stepped by key and slider, a
parameter changed, the theme switched. Screenshots, light and dark, are kept in ``build/screenshots``.
"""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
pytest.importorskip("jupyterlab", reason="needs JupyterLab")
nbformat = pytest.importorskip("nbformat", reason="needs Jupyter")

import numpy as np
from labserver import CHROMIUM_ARGS, chromium, jupyterlab
from PIL import Image

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SCREENSHOTS = ROOT / "build" / "screenshots"
MINUTE = 60_000  # milliseconds

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

CONNECTED = """() => {
  const panel = window.jupyterapp && jupyterapp.shell.currentWidget;
  const session = panel && panel.sessionContext && panel.sessionContext.session;
  return Boolean(session && session.kernel && session.kernel.connectionStatus === 'connected');
}"""
ERRORS = "[data-mime-type='application/vnd.jupyter.error'], [data-mime-type='application/vnd.jupyter.stderr']"
ALL_RAN_OR_ONE_FAILED = """(errors) => {
  const prompts = document.querySelectorAll('.jp-NotebookPanel:not(.lm-mod-hidden) .jp-CodeCell .jp-InputPrompt');
  const ran = prompts.length > 0 && [...prompts].every(e => /^\\[\\d+\\]:$/.test(e.textContent.trim()));
  return ran || document.querySelector(errors) !== null;
}"""

PLAYER_CELLS = (
    "import numpy as np\nimport ipywidgets as widgets\nfrom texlab.player import EMPTY, ORANGE, Player",
    """def frames(shift):
    frames = np.full((8, 8), EMPTY, np.uint8)
    frames[np.arange(8), (np.arange(8) + shift) % 8] = ORANGE
    return frames

def show(shift):
    player.load(panels, frames(shift), captions=[f"step {i}, shift {shift}" for i in range(8)], legend={ORANGE: "here"})

panels = [dict(name="tile", title="Tile", rows=1, cols=8)]
player = Player(panels, frames(0), captions=[f"step {i}, shift 0" for i in range(8)], legend={ORANGE: "here"})
shift = widgets.IntSlider(description="shift", min=0, max=3)
shift.observe(lambda change: show(change.new), "value")
step = widgets.IntSlider(description="step", max=7)
widgets.jslink((step, "value"), (player, "step"))
widgets.VBox([shift, step, player])""",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[playwright.Browser]:
    path = chromium()
    if path is None:
        why = "needs Chromium: sudo apt-get install chromium"
        pytest.fail(why) if os.environ.get("CI") else pytest.skip(why)
    with playwright.sync_playwright() as tool:
        browser = tool.chromium.launch(executable_path=path, args=list(CHROMIUM_ARGS))
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def url(browser, tmp_path_factory) -> Iterator[str]:
    """JupyterLab over a copy of the notebooks: what the browser saves does not touch the checkout."""
    folder = tmp_path_factory.mktemp("lab")
    for path in NOTEBOOKS:
        shutil.copy(path, folder)
    cells = [nbformat.v4.new_code_cell(source) for source in PLAYER_CELLS]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), folder / "player.ipynb")
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    with jupyterlab(folder) as server:
        yield server.url


class Lab:
    """One browser page with JupyterLab in it, and what a learner does there."""

    def __init__(self, page: playwright.Page) -> None:
        self.page = page
        self.page_errors: list[str] = []
        page.on("pageerror", lambda error: self.page_errors.append(str(error)))

    def open_and_run(self, name: str) -> None:
        """Double-click the notebook in the file browser, wait for its kernel, Run All, wait until every cell ran."""
        self.page.get_by_role("listitem").filter(has_text=name).first.dblclick(timeout=MINUTE)
        self.page.wait_for_function(CONNECTED, timeout=MINUTE)
        self.page.get_by_role("menubar").get_by_text("Run", exact=True).click()
        self.page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
        self.page.wait_for_function(ALL_RAN_OR_ONE_FAILED, arg=ERRORS, timeout=2 * MINUTE)
        self.page.wait_for_timeout(500)  # outputs of the last cell are drawn after its number appears
        assert self.page.locator(ERRORS).all_inner_texts() == []

    def player(self, index: int = 0) -> playwright.Locator:
        """The index-th picture of the notebook, scrolled into sight."""
        player = self.page.locator(".tlp").nth(index)
        player.wait_for(timeout=MINUTE)
        player.scroll_into_view_if_needed()
        return player

    def pixels(self, player: playwright.Locator) -> np.ndarray:
        """What the picture's panels look like now, (height, width, 3)."""
        shot = player.locator(".tlp-panels").screenshot()
        return np.asarray(Image.open(io.BytesIO(shot)).convert("RGB")).astype(int)

    def slider(self, label: str) -> playwright.Locator:
        """The handle of the slider with that label."""
        return self.page.locator(".widget-slider", has_text=label).locator(".noUi-handle").first

    def drag_to_end(self, label: str, player: playwright.Locator) -> list[str]:
        """Drag a slider from its place to its end in ten moves; the steps the picture showed on the way."""
        handle = self.slider(label)
        handle.scroll_into_view_if_needed()
        track = self.page.locator(".widget-slider", has_text=label).locator(".noUi-target").first.bounding_box()
        at = handle.bounding_box()
        y = at["y"] + at["height"] / 2
        self.page.mouse.move(at["x"] + at["width"] / 2, y)
        self.page.mouse.down()
        seen = []
        for tenth in range(1, 11):
            self.page.mouse.move(track["x"] + track["width"] * tenth / 10, y)
            self.page.wait_for_timeout(40)
            seen.append(player.get_attribute("data-step"))
        self.page.mouse.up()
        return seen

    def theme(self, name: str) -> None:
        self.page.evaluate(f"jupyterapp.commands.execute('apputils:change-theme', {{theme: 'JupyterLab {name}'}})")
        wanted = "true" if name == "Light" else "false"
        self.page.wait_for_function(f"document.body.dataset.jpThemeLight === '{wanted}'")
        self.page.wait_for_timeout(600)  # the style sheet follows the attribute

    def screenshot(self, name: str) -> None:
        self.page.screenshot(path=str(SCREENSHOTS / f"{name}.png"))


@pytest.fixture
def lab(browser, url, request) -> Iterator[Lab]:
    context = browser.new_context(viewport={"width": 1500, "height": 1200})
    page = context.new_page()
    page.set_default_timeout(20_000)
    page.goto(url)
    lab = Lab(page)
    yield lab
    if request.node.rep_call.failed:
        lab.screenshot(f"failed_{request.node.name}")
    context.close()


def changed(before: np.ndarray, after: np.ndarray) -> float:
    """Share of the pixels that differ visibly; 1 if the picture's size differs."""
    if before.shape != after.shape:
        return 1.0
    return float((np.abs(after - before).max(-1) > 40).mean())


def check_player(lab: Lab, player: playwright.Locator, name: str) -> None:
    """Any picture: keys step it, the picture follows, both themes are drawn."""
    player.focus()
    lab.page.keyboard.press("Home")
    playwright.expect(player).to_have_attribute("data-step", "0")
    first = lab.pixels(player)
    lab.page.keyboard.press("ArrowRight")
    playwright.expect(player).to_have_attribute("data-step", "1")
    lab.page.keyboard.press("End")
    playwright.expect(player).not_to_have_attribute("data-step", "1")
    assert changed(first, lab.pixels(player)) > 0.001
    lab.page.keyboard.press("Home")
    lab.screenshot(f"{name}_light")
    light = lab.pixels(player)
    lab.theme("Dark")
    dark = lab.pixels(player)
    lab.screenshot(f"{name}_dark")
    lab.theme("Light")
    assert dark.mean() < light.mean() - 50, "the picture did not follow the dark theme"


def test_player(lab):
    """The player alone: dragging steps it in the browser, a parameter goes through Python and comes back."""
    lab.open_and_run("player.ipynb")
    player = lab.player()
    before = lab.pixels(player)
    seen = lab.drag_to_end("step", player)
    assert len(set(seen)) >= 6, seen
    assert seen[-1] == "7"
    assert changed(before, lab.pixels(player)) > 0.01
    playwright.expect(player.locator(".tlp-caption")).to_contain_text("step 7, shift 0")
    lab.slider("shift").press("ArrowRight")
    playwright.expect(player.locator(".tlp-caption")).to_contain_text("step 7, shift 1")
    check_player(lab, player, "player")
    assert lab.page_errors == []


#: notebook -> what a learner does with its explorer, beyond what ``check_player`` does with every picture
STORIES = {}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook(lab, path):
    lab.open_and_run(path.name)
    if lab.page.locator(".tlp").count():
        check_player(lab, lab.player(), path.stem)
    else:
        lab.screenshot(f"{path.stem}_light")
    if path.stem in STORIES:
        STORIES[path.stem](lab)
    assert lab.page_errors == []
