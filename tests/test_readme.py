"""What the README shows is true: its example runs, its ladder table is the catalog's, its links lead somewhere."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def test_the_example_for_your_own_notebook_runs(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    examples = re.findall(r"^```python\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
    assert examples
    names: dict = {}
    for example in examples:
        exec(compile(example, "README.md", "exec"), names)


def tool(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_ladder_table_is_current():
    assert tool("ladder_table").replaced(README) == README, "run: python tools/ladder_table.py"


def test_the_simulators_tables_are_current():
    text = (ROOT / "docs" / "simulator.md").read_text(encoding="utf-8")
    assert tool("simulator_doc").replaced(text) == text, "run: python tools/simulator_doc.py"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_links_lead_somewhere(path):
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text) + re.findall(r'\bsrc(?:set)?="([^"]+)"', text)
    for target in targets:
        if "://" not in target:
            assert (path.parent / target).exists(), f"{path.name} links to {target}, which does not exist"
