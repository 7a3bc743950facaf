"""Call functions in a child process that this one outlives: kernels may crash it, hang it or destroy its CUDA context.

One child serves call after call (starting one costs a second or two on a GPU machine) until it dies or is closed.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib
import os
import pickle
import select
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

_lock = threading.Lock()
_child: _Child | None = None


class Died(RuntimeError):
    """The child did not answer; the message ends the sentence "the program ..."."""


def call(module: str, function: str, *arguments: Any, limit: float | None = None) -> Any:
    """``module.function(*arguments)`` in the child: the result, or the exception it raised.

    What the child prints (device ``printf``, for one) is printed here. ``limit`` in seconds ends it, as does
    interrupting this process; Died says so. Arguments, results and exceptions travel through pickle.
    """
    global _child
    with _lock:
        if _child is None or _child.process.poll() is not None:
            close()
            _child = _Child()
        child = _child
        try:
            kind, answer = child.ask((module, function, arguments), limit)
            print(child.printed(), end="")
        except BaseException:  # dead, or its answer would be taken for the next call's
            close()
            raise
    if kind == "raised":
        raise answer
    return answer


def close() -> None:
    """End the child, if there is one; the next call starts another."""
    global _child
    if _child is not None:
        _child.process.kill()
        _child.process.wait()
        with contextlib.suppress(OSError):
            os.unlink(_child.path)
    _child = None


atexit.register(close)


class _Child:
    def __init__(self) -> None:
        handle, self.path = tempfile.mkstemp(prefix="texlab-", suffix=".txt")
        os.close(handle)
        self.seen = 0
        here = str(Path(__file__).resolve().parent.parent)
        path = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from texlab.isolated import serve; serve()", self.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
        )

    def ask(self, request: Any, limit: float | None) -> tuple[str, Any]:
        late = threading.Event()

        def end() -> None:
            late.set()
            self.process.kill()

        timer = threading.Timer(limit, end) if limit is not None else None
        try:
            if timer:
                timer.start()
            pickle.dump(request, self.process.stdin, protocol=5)
            self.process.stdin.flush()
            self._wait()
            return pickle.load(self.process.stdout)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):
            if late.is_set():
                raise Died(f"was ended after {limit:g} s: does every loop in it end? (limit=None waits)") from None
            raise Died(f"ended its process (exit {self.process.wait()}): {self.printed()[-2000:].strip()}") from None
        finally:
            if timer:
                timer.cancel()

    def _wait(self) -> None:
        """Until the child answers or ends; awake often enough to notice an interrupt that did not break the wait."""
        while os.name == "posix" and not select.select([self.process.stdout], [], [], 0.2)[0]:
            pass

    def printed(self) -> str:
        """What the child printed since this was last asked."""
        with open(self.path, "rb") as file:
            file.seek(self.seen)
            data = file.read()
        self.seen += len(data)
        return data.decode(errors="replace")


def serve() -> None:
    """The child: calls come in through stdin, answers leave through stdout; what is printed goes to the file."""
    answers = os.fdopen(os.dup(1), "wb")
    printed = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    while True:
        try:
            module, function, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return  # the parent ended
        try:
            answer = "returned", getattr(importlib.import_module(module), function)(*arguments)
        except Exception as error:
            error.__cause__ = error.__context__ = None  # those of CUDA libraries do not travel
            answer = "raised", error.with_traceback(None)
        sys.stdout.flush()
        if os.name == "posix":
            ctypes.CDLL(None).fflush(None)  # device printf waits in C's buffer
        pickle.dump(answer, answers, protocol=5)
        answers.flush()
