"""Renew docs/images: the explorers in a real JupyterLab, light and dark. Needs the extra "test" and Chromium.

python tools/make_pictures.py
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import nbformat
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from labpage import Lab  # noqa: E402 (needs the line above)
from labserver import CHROMIUM_ARGS, chromium, jupyterlab  # noqa: E402

IMAGES = ROOT / "docs" / "images"
#: picture -> (cell, step shown)
EXPLORERS = {
    "layout": ("import texlab as tl\n\ntl.explore.layout()", 7),
    "banks": ("import texlab as tl\n\ntl.explore.banks()", 2),
}


def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as tool:
        for name, (source, _) in EXPLORERS.items():
            cell = nbformat.v4.new_code_cell(source)
            kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
            nbformat.write(nbformat.v4.new_notebook(cells=[cell], metadata=kernel), Path(folder) / f"{name}.ipynb")
        browser = tool.chromium.launch(executable_path=chromium(), args=list(CHROMIUM_ARGS))
        with jupyterlab(Path(folder)) as server:
            for name, (_, step) in EXPLORERS.items():
                page = browser.new_page(viewport={"width": 1400, "height": 1750})
                page.goto(f"{server.url}&reset")
                lab = Lab(page)
                lab.open_and_run(f"{name}.ipynb")
                page.evaluate("jupyterapp.commands.execute('application:toggle-left-area')")
                player = lab.player()
                player.focus()
                page.keyboard.press("Home")
                for _ in range(step):
                    page.keyboard.press("ArrowRight")
                page.evaluate("document.activeElement.blur()")
                for unfilled in page.get_by_role(
                    "cell", name="…", exact=True
                ).all():  # tables fill up after the picture
                    unfilled.wait_for(state="detached")
                for theme in ("Light", "Dark"):
                    lab.theme(theme)
                    output = page.locator(".jp-OutputArea-output").filter(has=player)
                    output.screenshot(path=IMAGES / f"{name}_{theme.lower()}.png")
                page.close()
        browser.close()


if __name__ == "__main__":
    main()
