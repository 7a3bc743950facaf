"""Where the project's files lie, in a checkout and when installed."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
DATA = PACKAGE / "data"


def kernel_dir() -> Path:
    """The folder of the ``.cu`` files: the checkout's ``kernels/``, else the copy inside the installed package."""
    checkout = PACKAGE.parent / "kernels"
    return checkout if (checkout / "common.cuh").is_file() else PACKAGE / "_kernels"
