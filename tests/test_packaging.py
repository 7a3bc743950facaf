"""One list of requirements, said everywhere alike; a wheel that brings its kernels; clean files."""

import importlib.util
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

tomllib = pytest.importorskip("tomllib")
requirements = pytest.importorskip("packaging.requirements", reason="needs packaging")
utils = pytest.importorskip("packaging.utils")

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
#: conda-forge's name for what pip calls otherwise
CONDA_NAMES = {"cupy": "cupy-cuda13x"}


def parse(lines: list[str]) -> dict[str, str]:
    """Package name -> version specifier."""
    parsed = [requirements.Requirement(line) for line in lines]
    return {utils.canonicalize_name(r.name): str(r.specifier) for r in parsed}


def locked() -> dict[str, list]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    out: dict[str, list] = {}
    for line in lines:
        if line and not line.startswith("#"):
            requirement = requirements.Requirement(line)
            out.setdefault(utils.canonicalize_name(requirement.name), []).append(requirement)
    return out


def test_environment_yml_says_what_pyproject_says():
    yaml = pytest.importorskip("yaml", reason="needs PyYAML (comes with JupyterLab)")
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    *conda, pip = environment["dependencies"]
    conda = parse(conda)
    from_pip = parse([line for line in pip["pip"] if not line.startswith("-e")])
    python, cuda = conda.pop("python"), conda.pop("cuda-version")
    assert "pip" in conda
    del conda["pip"]
    assert PROJECT["requires-python"] in python.split(",")
    assert set(cuda.split(",")) == {">=13", "<14"}
    assert not set(conda) & set(from_pip)
    here = {CONDA_NAMES.get(name, name): set(spec.split(",")) for name, spec in (conda | from_pip).items()}
    wanted = parse([*PROJECT["dependencies"], *EXTRAS["cuda13"], *EXTRAS["tvm"]])
    assert here == {name: set(spec.split(",")) for name, spec in wanted.items()}


def test_readme_pip_lines_name_the_extras():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = re.findall(r"pip install .*", readme)
    assert lines
    named = {name for line in lines for group in re.findall(r"\.\[([\w,]+)\]", line) for name in group.split(",")}
    assert named == set(EXTRAS)


def test_version_is_said_once():
    import texlab

    assert texlab.__version__ == PROJECT["version"]
    assert f"## {PROJECT['version']}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_constraints_pin_every_requirement_within_its_range():
    pins = locked()
    for line in [*PROJECT["dependencies"], *(line for extra in EXTRAS.values() for line in extra)]:
        wanted = requirements.Requirement(line)
        found = pins.get(utils.canonicalize_name(wanted.name))
        assert found, f"constraints.txt does not pin {wanted.name}: run make lock"
        for pin in found:
            (specifier,) = pin.specifier
            assert specifier.operator == "==", pin
            assert wanted.specifier.contains(specifier.version, prereleases=True), f"{pin} is outside {wanted}"


def test_constraints_are_plain_pins():
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert not re.search(r"://|file:|--|\[|\\| @ |/", text), "only name==version ; marker"
    assert "cuda-toolkit" not in text  # 12 and 13 differ in it: see the Makefile
    for system in ("linux", "darwin", "win32"):  # one file for all three
        assert f"sys_platform == '{system}'" in text or f"sys_platform != '{system}'" in text


@pytest.mark.parametrize(
    ("version", "extra"),
    [
        (None, ""),
        (11080, ""),
        (12000, "cuda12"),
        (12090, "cuda12"),
        (13000, "cuda13"),
        (13010, "cuda13"),
        (14000, "cuda13"),
    ],
)
def test_the_driver_decides_the_extra(version, extra):
    spec = importlib.util.spec_from_file_location("gpu_extra", ROOT / "tools" / "gpu_extra.py")
    gpu_extra = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(gpu_extra)
    name, message = gpu_extra.extra(version)
    assert name == extra
    assert name in ("", *EXTRAS)
    assert message


def test_wheel_brings_kernels_results_and_player(tmp_path):
    """Built, unpacked elsewhere and asked for its kernels: the installed copy is found and complete."""
    pytest.importorskip("hatchling", reason="needs hatchling, from the extra 'test'")
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    subprocess.run([*build, "--wheel-dir", str(tmp_path), str(ROOT)], check=True, timeout=120)
    (wheel,) = tmp_path.glob("texlab-*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    installed = {p.name for p in (tmp_path / "site" / "texlab" / "_kernels").iterdir()}
    assert installed == {p.name for p in (ROOT / "kernels").iterdir()}
    shipped = {p.relative_to(ROOT) for p in (ROOT / "texlab" / "data").rglob("*") if p.is_file()}
    assert all((tmp_path / "site" / p).is_file() for p in shipped | {Path("texlab/player.js")})
    code = "import texlab; print(texlab.__file__); print(texlab.kernels['im2win'].text[:2])"
    out = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); {code}"],
        capture_output=True, text=True, check=True, cwd=tmp_path,
    ).stdout  # fmt: skip
    assert str(tmp_path) in out
    assert out.splitlines()[1] == "//"


def tracked() -> list[Path]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listing.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listing.stdout.split("\0") if name]


def test_no_unfinished_or_local_words():
    words = re.compile(r"\b(TODO|FIXME|XXX)\b|/(work|home|root|tmp)/\w")
    for path in tracked():
        if path == Path(__file__):
            continue
        if path.suffix in (".py", ".cu", ".cuh", ".js", ".md", ".ipynb", ".yml", ".toml", ".txt") and path.exists():
            match = words.search(path.read_text(encoding="utf-8"))
            assert not match, f"{path.relative_to(ROOT)}: {match[0]}"


def test_files_are_small():
    for path in [*(ROOT / "texlab").rglob("*.*"), *(ROOT / "kernels").iterdir()]:
        if path.suffix in (".py", ".cu", ".cuh", ".js"):
            lines = len(path.read_text(encoding="utf-8").splitlines())
            assert lines <= 500, f"{path.relative_to(ROOT)} has {lines} lines: split it"
