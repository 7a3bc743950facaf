"""Imports point one way, `import texlab` is quick, and every docstring example is true."""

import ast
import doctest
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "texlab"

#: A module may import from texlab only what stands behind it. A package (sim, explore) stands here as one.
#: Devices are found by name (program.DEVICES), so that a Program never knows them.
ORDER = (
    *("explore", "magics", "player", "schedules_draw", "draw"),
    *(
        "bench",
        "cpu_bench",
        "tvm_bench",
        "ablation",
        "timeline",
        "gantt",
        "latency",
        "texture_bench",
        "texture_cases",
        "counters",
        "doctor",
    ),
    *(
        "studies",
        "results",
        "measure",
        "machine",
        "textures",
        "conv",
        "schedules",
        "gpu",
        "sim",
        "isolated",
        "gputextures",
        "launches",
    ),
    *("referee", "peers", "timing", "occupancy", "compiler", "nvrtc", "texture_probes", "catalog", "bank_patterns"),
    *("trace", "program", "layouts", "reference", "cache", "views", "precision", "shapes", "paths"),
)
HEAVY = ("cupy", "tvm", "matplotlib", "ipywidgets", "anywidget", "pandas", "cuda", "torch", "IPython", "scipy")
MODULES = sorted(
    p.relative_to(PACKAGE.parent).with_suffix("") for p in PACKAGE.rglob("*.py") if p.name != "__init__.py"
)


def imports(path: Path) -> set[str]:
    """The texlab modules (first name after ``texlab.``) a file imports anywhere, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level:
            raise AssertionError(f"{path.name}:{node.lineno}: write 'from texlab.…', not a relative import")
        elif isinstance(node, ast.ImportFrom) and node.module == "texlab":
            found |= {f"texlab.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module)
    return {name.split(".")[1] for name in found if name.startswith("texlab.")}


def test_every_module_has_its_place_in_the_order():
    assert {p.parts[1] for p in MODULES} <= set(ORDER)


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_imports_point_one_way(module):
    name = module.parts[1]
    allowed = set(ORDER[ORDER.index(name) + 1 :])
    if len(module.parts) > 2:
        allowed.add(name)  # inside a package
    wrong = imports(PACKAGE.parent / module.with_suffix(".py")) - allowed
    assert not wrong, f"{module}.py imports {sorted(wrong)}, which stand before it (or are no modules): see ORDER"


def fresh(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_import_is_quick_and_loads_nothing_heavy():
    code = (
        "import sys, time; start = time.perf_counter(); import texlab; took = time.perf_counter() - start;"
        f"print(took, [m for m in {HEAVY!r} if m in sys.modules])"
    )
    took, heavy = zip(*(fresh(code).split(maxsplit=1) for _ in range(3)), strict=True)
    assert heavy[0].strip() == "[]"
    assert min(map(float, took)) < 0.5


def test_public_names_exist():
    import texlab

    for name in texlab.__all__:
        try:
            assert getattr(texlab, name) is not None
        except ModuleNotFoundError as error:  # a machine without Jupyter
            if error.name.partition(".")[0] == "texlab":
                raise


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_examples_in_docstrings(module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    try:
        loaded = importlib.import_module(".".join(module.parts))
    except ImportError as error:
        missing = error.name or str(error.__cause__)
        if missing.startswith("texlab"):
            raise
        pytest.skip(f"{module} needs {missing}")
    result = doctest.testmod(loaded, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0
