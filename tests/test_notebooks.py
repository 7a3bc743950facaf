"""Every notebook: stored clean, and run from top to bottom in under a minute."""

import time
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="needs Jupyter")
nbclient = pytest.importorskip("nbclient", reason="needs Jupyter")

LIMIT = 60  # seconds, a whole notebook
LONGER = {"06_tvm_schedules": 90}  # TVM is imported in several processes, and searches
NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))


def ids(path: Path) -> str:
    return path.stem


def test_there_are_notebooks():
    assert [p.stem[:2] for p in NOTEBOOKS][:1] == ["00"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=ids)
def test_is_stored_clean(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = notebook.cells
    assert all("id" in cell for cell in cells), "cells must keep their ids"
    assert len({cell.id for cell in cells}) == len(cells), "cell ids must differ"
    code = [cell for cell in cells if cell.cell_type == "code"]
    dirty = [cell.id for cell in code if cell.outputs or cell.execution_count is not None]
    assert not dirty, f"cells {dirty} hold outputs: Kernel > Restart, Edit > Clear Outputs of All Cells, save"
    assert not any(cell.metadata.get("execution") for cell in code)
    assert notebook.metadata.kernelspec.name == "python3"
    assert "widgets" not in notebook.metadata


@pytest.mark.parametrize("path", NOTEBOOKS, ids=ids)
def test_runs_from_top_to_bottom(path, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    limit = LONGER.get(path.stem, LIMIT)
    start = time.monotonic()
    place = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=limit, kernel_name="python3", resources=place).execute()
    took = time.monotonic() - start
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            assert output.output_type != "error", f"cell {cell.id}: {output.get('evalue')}"
            stderr = output.output_type == "stream" and output.name == "stderr"
            assert not stderr, f"cell {cell.id} warns: {output.get('text')}"
    assert took < limit, f"{path.name} took {took:.0f} s"
