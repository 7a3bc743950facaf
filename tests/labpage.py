"""A person at JupyterLab, played by Playwright: opens notebooks, runs them, moves sliders, looks at pictures."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image
from playwright.sync_api import Locator, Page

MINUTE = 60_000  # milliseconds
CONNECTED = """() => {
  const panel = window.jupyterapp && jupyterapp.shell.currentWidget;
  const session = panel && panel.sessionContext && panel.sessionContext.session;
  return Boolean(session && session.kernel && session.kernel.connectionStatus === 'connected');
}"""
ERRORS = "[data-mime-type='application/vnd.jupyter.error'], [data-mime-type='application/vnd.jupyter.stderr']"
# Asked of the notebook's model: a cell with hidden input shows no number.
ALL_RAN_OR_ONE_FAILED = """(errors) => {
  const cells = jupyterapp.shell.currentWidget.content.widgets.filter(cell => cell.model.type === 'code');
  return cells.every(cell => cell.model.executionCount) || document.querySelector(errors) !== null;
}"""


class Lab:
    """One browser page with JupyterLab in it, and what a learner does there."""

    def __init__(self, page: Page) -> None:
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

    def player(self, index: int = 0) -> Locator:
        """The index-th picture of the notebook, scrolled into sight."""
        player = self.page.locator(".tlp").nth(index)
        player.wait_for(timeout=MINUTE)
        player.scroll_into_view_if_needed()
        return player

    def pixels(self, player: Locator) -> np.ndarray:
        """What the picture's panels look like now, (height, width, 3)."""
        shot = player.locator(".tlp-panels").screenshot()
        return np.asarray(Image.open(io.BytesIO(shot)).convert("RGB")).astype(int)

    def slider(self, label: str) -> Locator:
        """The handle of the slider with that label."""
        return self.page.locator(".widget-slider", has_text=label).locator(".noUi-handle").first

    def drag_to_end(self, label: str, player: Locator) -> list[str]:
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
        """Switch to the theme "Light" or "Dark"."""
        self.page.evaluate(f"jupyterapp.commands.execute('apputils:change-theme', {{theme: 'JupyterLab {name}'}})")
        wanted = "true" if name == "Light" else "false"
        self.page.wait_for_function(f"document.body.dataset.jpThemeLight === '{wanted}'")
        self.page.wait_for_timeout(600)  # the style sheet follows the attribute


def changed(before: np.ndarray, after: np.ndarray) -> float:
    """Share of the pixels that differ visibly; 1 if the picture's size differs."""
    if before.shape != after.shape:
        return 1.0
    return float((np.abs(after - before).max(-1) > 40).mean())
