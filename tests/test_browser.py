"""A learner's way through every notebook: a real JupyterLab in a real Chromium.

Each notebook is opened from the file browser, run with Run All, and its explorer used: stepped by key and slider, a
parameter changed, the theme switched. Screenshots, light and dark, are kept in ``build/screenshots``.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
pytest.importorskip("jupyterlab", reason="needs JupyterLab")
nbformat = pytest.importorskip("nbformat", reason="needs Jupyter")

from labpage import Lab, changed
from labserver import CHROMIUM_ARGS, chromium, jupyterlab

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SCREENSHOTS = ROOT / "build" / "screenshots"
playwright.expect.set_options(timeout=30_000)  # a parameter change runs a kernel in the simulator

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

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


def screenshot(name: str) -> Path:
    return SCREENSHOTS / f"{name}.png"


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


@pytest.fixture
def lab(browser, url, request) -> Iterator[Lab]:
    context = browser.new_context(viewport={"width": 1500, "height": 1200})
    page = context.new_page()
    page.set_default_timeout(30_000)
    page.goto(f"{url}&reset")  # no tabs of the test before
    lab = Lab(page)
    yield lab
    if request.node.rep_call.failed:
        lab.page.screenshot(path=screenshot(f"failed_{request.node.name}"))
    context.close()


def check_player(lab: Lab, player: playwright.Locator, name: str) -> None:
    """Any picture: keys step it, the picture follows, both themes are drawn."""
    player.scroll_into_view_if_needed()
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
    lab.page.screenshot(path=screenshot(f"{name}_light"))
    light = lab.pixels(player)
    lab.theme("Dark")
    dark = lab.pixels(player)
    lab.page.screenshot(path=screenshot(f"{name}_dark"))
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


def layout_story(lab: Lab) -> None:
    """The layout explorer: drag through the pixels, change the stride, ask for the impossible and come back."""
    player = lab.player()
    seen = lab.drag_to_end("step", player)
    assert len(set(seen)) >= 6, seen
    before = player.get_attribute("data-bytes")
    lab.slider("stride").press("ArrowRight")
    playwright.expect(player).not_to_have_attribute("data-bytes", before)
    lab.slider("H height").press("Home")  # an image of one row: too small for the filter
    alert = lab.page.get_by_role("alert").first
    playwright.expect(alert).to_contain_text("ShapeError")
    playwright.expect(player).to_have_class(re.compile("tlp-stale"))
    for _ in range(7):
        lab.slider("H height").press("ArrowRight")
    playwright.expect(alert).to_have_count(0)
    playwright.expect(player).not_to_have_class(re.compile("tlp-stale"))


def bank_story(lab: Lab) -> None:
    """The bank explorer: another scenario redraws the picture; a mapping of one's own is run and judged."""
    naive = lab.page.get_by_role("button", name="naive", exact=True)
    player = lab.page.locator(".jp-OutputArea-output").filter(has=naive).locator(".tlp")
    check_player(lab, player, "02_zigzag_scenarios")
    zigzag = lab.pixels(player)
    naive.click()
    playwright.expect(player).to_have_attribute("aria-label", re.compile("naive"))
    assert changed(zigzag, lab.pixels(player)) > 0.01
    lab.page.get_by_role("button", name="your own", exact=True).first.click()
    playwright.expect(player).to_have_attribute("aria-label", re.compile("your own"))
    lane_k = lab.page.locator(".widget-text", has_text="LANE_K").locator("input").first
    lane_k.fill("0")
    lane_k.press("Enter")  # all lanes of a warp in one row: the others are computed by nobody
    playwright.expect(lab.page.get_by_text("Wrong result").first).to_be_visible()


def texture_story(lab: Lab) -> None:
    """The texture explorer: another order and layout redraw both pictures; a small cache loses lines; a texel is found."""
    row = lab.page.get_by_role("button", name="row", exact=True)
    output = lab.page.locator(".jp-OutputArea-output").filter(has=row)
    player = output.locator(".tlp")
    check_player(lab, player, "03_texture_cache_explorer")
    column = lab.pixels(player)
    row.click()
    playwright.expect(player).to_have_attribute("aria-label", re.compile("in row order"))
    assert changed(column, lab.pixels(player)) > 0.01
    output.get_by_role("button", name="row-major", exact=True).click()
    playwright.expect(player).to_have_attribute("aria-label", re.compile("row-major in memory"))
    playwright.expect(output.get_by_text("the hardware's counters").first).to_be_visible()
    output.get_by_role("button", name="column", exact=True).click()
    playwright.expect(player).to_have_attribute("aria-label", re.compile("in column order"))
    output.locator(".widget-dropdown", has_text="L1 cache").locator("select").select_option("1 KB")
    playwright.expect(player).to_contain_text("had to go")
    playwright.expect(lab.page.get_by_text("hit rates within 5 percentage points").first).to_be_attached()


def pipeline_story(lab: Lab) -> None:
    """The pipeline explorer: more stages redraw the picture; without its wait the kernel is stopped, and the race named."""
    wait = lab.page.get_by_role("button", name="the wait", exact=True)
    output = lab.page.locator(".jp-OutputArea-output").filter(has=wait)
    player = output.locator(".tlp")
    check_player(lab, player, "04_double_buffering_explorer")
    ring = lab.pixels(player)
    output.get_by_role("button", name=re.compile("^05")).click()
    playwright.expect(player).to_have_attribute("aria-label", re.compile("im2win_zigzag"))
    assert changed(ring, lab.pixels(player)) > 0.01
    output.get_by_role("button", name=re.compile("^09")).click()
    playwright.expect(player).to_have_attribute("aria-label", re.compile("im2win_pipeline"))
    wait.click()
    playwright.expect(output.get_by_text("is still being filled by cp.async").first).to_be_visible()
    playwright.expect(player).to_have_class(re.compile("tlp-stale"))
    output.get_by_role("button", name="nothing", exact=True).click()
    playwright.expect(output.get_by_text("equals the float64 oracle").first).to_be_visible()
    playwright.expect(output.get_by_text("Stamping changed the time").first).to_be_attached()


def tensor_story(lab: Lab) -> None:
    """The fragment explorer follows its menu; the precision explorer a number typed and another kind of inputs."""
    player = lab.player()
    before = player.get_attribute("data-bytes")
    lab.page.locator("select", has_text="int8: m16n8k32").first.select_option(label="int8: m16n8k32")
    playwright.expect(player).not_to_have_attribute("data-bytes", before)
    playwright.expect(player.locator(".tlp-caption")).to_contain_text("holds 16 of A")
    number = lab.page.locator(".widget-text", has_text="a number").locator("input").first
    number.fill("3.25")
    number.press("Enter")
    captions = lab.page.locator(".tlp-caption")
    playwright.expect(captions.filter(has_text="3.25 in the formats")).to_have_count(1)
    lab.page.locator("select", has_text="cancellation").first.select_option(label="cancellation")
    playwright.expect(lab.page.get_by_text("terms nearly cancel").first).to_be_visible()


def schedule_story(lab: Lab) -> None:
    """The schedule explorer: a knob turned changes the loop nest, the difference and the times; then the GPU's schedule."""
    output = lab.page.locator(".jp-OutputArea-output").filter(has=lab.page.get_by_role("button", name="this processor"))
    output.scroll_into_view_if_needed()
    nest = output.get_by_text("vectorized: all turns in one instruction")
    playwright.expect(nest).to_have_count(1)
    lab.page.screenshot(path=screenshot("06_tvm_schedules_explorer_light"))
    knob = output.locator(".widget-dropdown", has_text="VECTORIZE").locator("select")
    knob.select_option(label="False")
    playwright.expect(nest).to_have_count(0)
    playwright.expect(output.get_by_text("equals the float64 oracle").first).to_be_visible()
    output.get_by_role("tab", name="What changed").click()
    playwright.expect(output.get_by_text("the setting before").last).to_be_visible()
    lab.page.screenshot(path=screenshot("06_tvm_schedules_difference"))
    output.get_by_role("tab", name="Times").click()
    playwright.expect(output.get_by_text("★ best")).to_be_visible()
    output.get_by_role("tab", name="Loop nest").click()
    output.get_by_role("button", name="NVIDIA GPU").click()
    playwright.expect(output.get_by_text("blockIdx: a thread block for each turn")).to_be_visible()
    lab.theme("Dark")
    lab.page.screenshot(path=screenshot("06_tvm_schedules_explorer_dark"))
    lab.theme("Light")
    output.get_by_role("tab", name="Generated code").click()
    playwright.expect(output.get_by_text("registers a thread").first).to_be_visible()
    lab.page.screenshot(path=screenshot("06_tvm_schedules_code"))
    search = lab.page.locator("button.jupyter-button", has_text="Search")
    search.scroll_into_view_if_needed()
    lab.page.screenshot(path=screenshot("06_tvm_schedules_tuning"))


#: notebook -> what a learner does with its explorer, beyond what ``check_player`` does with every picture
STORIES = {
    "01_im2win_layout": layout_story,
    "02_zigzag": bank_story,
    "03_texture_cache": texture_story,
    "04_double_buffering": pipeline_story,
    "05_tensor_cores": tensor_story,
    "06_tvm_schedules": schedule_story,
}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook(lab, path):
    lab.open_and_run(path.name)
    if lab.page.locator(".tlp").count():
        check_player(lab, lab.player(), path.stem)
    else:
        lab.page.screenshot(path=screenshot(f"{path.stem}_light"))
    if path.stem in STORIES:
        STORIES[path.stem](lab)
    assert lab.page_errors == []
