"""What every test shares: a private kernel cache, a GPU check for ``@pytest.mark.gpu``, repeatable hypothesis."""

from __future__ import annotations

import collections
import os
import shutil
import tempfile

import pytest

try:
    import hypothesis
except ImportError:  # a GPU machine may have only what the GPU tests need
    hypothesis = None

# One kernel cache for the whole session, also under pytest-xdist, whose workers inherit the variable: nothing depends
# on what an earlier session compiled, and nothing is compiled twice.
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["TEXLAB_CACHE_DIR"] = tempfile.mkdtemp(prefix="texlab-cache-")

if hypothesis is not None:
    # No deadline: the first example of a kernel compiles it. No database: a run must not depend on the one before.
    common = {"deadline": None, "database": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
    hypothesis.settings.register_profile("repeatable", derandomize=True, print_blob=True, **common)
    hypothesis.settings.register_profile("explore", max_examples=300, **common)
    hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: runs on an NVIDIA GPU through CuPy; skipped where there is none")
    config.addinivalue_line("markers", "browser: drives JupyterLab in Chromium; skipped where there is none")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked:
        from texlab.gpu import why_no_gpu

        if reason := why_no_gpu():
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=f"for want of an NVIDIA GPU: {reason}"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line a reason for what was skipped, in place of one a test."""
    reasons = collections.Counter(
        report.longrepr[2].removeprefix("Skipped: ") for report in terminalreporter.stats.get("skipped", [])
    )
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"skipped {count}: {reason}")


def pytest_unconfigure() -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:
        shutil.rmtree(os.environ["TEXLAB_CACHE_DIR"], ignore_errors=True)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    """A test's fixtures find out whether it failed: ``request.node.rep_call`` (the browser keeps a screenshot)."""
    outcome = yield
    report = outcome.get_result()
    setattr(item, f"rep_{report.when}", report)
