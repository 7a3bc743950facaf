"""A throw-away JupyterLab on 127.0.0.1 with a token, its own port and its own settings, for tests and pictures.

with jupyterlab(folder) as server:
    page.goto(server.url)
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: Chromium without a sandbox (containers run as root), a GPU or any traffic of its own.
CHROMIUM_ARGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)

SETTINGS = {
    # The news pop-up would cover the page, and asks the network.
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    # All cells stay in the page, also those scrolled out of sight.
    "notebook-extension/tracker": {"windowingMode": "none"},
}


@dataclass(frozen=True)
class Server:
    """A running JupyterLab: ``url`` (with its token) and the file it logs to."""

    url: str
    log: Path


def chromium() -> str | None:
    """The system's Chromium or Chrome, or None."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((path for name in names if (path := shutil.which(name))), None)


@contextlib.contextmanager
def jupyterlab(folder: Path, timeout: float = 90) -> Iterator[Server]:
    """Serve ``folder``; the server and all its kernels end with the block.

    Raises RuntimeError with the end of the server's log when it does not answer within ``timeout`` seconds.
    """
    home = Path(tempfile.mkdtemp(prefix="texlab-jupyter-"))
    for name, settings in SETTINGS.items():
        path = home / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(settings))
    places = {
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        "IPYTHONDIR": "ipython",
    }
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token = secrets.token_hex(16)
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", f"--port={port}"]
    command += [f"--ServerApp.root_dir={folder}", f"--IdentityProvider.token={token}", "--expose-app-in-browser"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")
    log = home / "log"
    env = {**os.environ, **{name: str(home / sub) for name, sub in places.items()}}
    with log.open("w") as out:
        process = subprocess.Popen(command, env=env, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        _wait_until_ready(f"http://127.0.0.1:{port}/api/status?token={token}", process, log, timeout)
        yield Server(url=f"http://127.0.0.1:{port}/lab?token={token}", log=log)
    finally:
        _stop(process)
        shutil.rmtree(home, ignore_errors=True)


def _wait_until_ready(url: str, process: subprocess.Popen, log: Path, timeout: float) -> None:
    end = time.monotonic() + timeout
    while True:
        if process.poll() is not None:
            raise RuntimeError(f"JupyterLab ended with code {process.returncode}:\n{log.read_text()[-3000:]}")
        try:
            urllib.request.urlopen(url, timeout=2).read()
            return
        except OSError:
            if time.monotonic() > end:
                message = f"JupyterLab did not answer within {timeout} s:\n{log.read_text()[-3000:]}"
                raise RuntimeError(message) from None
            time.sleep(0.1)


def _stop(process: subprocess.Popen) -> None:
    """End the server and its kernels (its process group); an ended one is left alone."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        try:
            process.wait(15)
            return
        except subprocess.TimeoutExpired:
            continue
