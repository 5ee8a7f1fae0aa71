"""Processes of this Python that answer one question after another. They may die without harm to this one."""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any, BinaryIO


class Worker:
    """A process that runs the function `serve` of a module. Raises OSError where none can be started."""

    def __init__(self, module: str, environment: dict[str, str]) -> None:
        if not sys.executable or getattr(sys, "frozen", False):
            raise OSError("this process cannot start another of its Python")
        code = f"import sys; sys.path[:] = {sys.path!r}; from {module} import serve; serve()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **environment},
            start_new_session=True,  # a Ctrl-C is for the process that waits: it ends this one
        )

    def tell(self, what: Any) -> None:
        assert self.process.stdin is not None
        say(self.process.stdin, what)

    def hear(self) -> Any:
        """What it says next. Raises EOFError where it has ended instead."""
        assert self.process.stdout is not None
        return pickle.load(self.process.stdout)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


_idle: dict[str, list[Worker]] = {}
"""By module."""
_idle_lock = threading.Lock()


@contextlib.contextmanager
def borrow(module: str, count: int, environment: dict[str, str] | None = None) -> Iterator[list[Worker]]:
    """So many workers, which wait for the next question afterwards; after an error they are ended."""
    with _idle_lock:
        idle = _idle.setdefault(module, [])
        workers = [idle.pop() for _ in range(min(count, len(idle)))]
    try:
        workers += [Worker(module, environment or {}) for _ in range(count - len(workers))]
        yield workers
    except BaseException:
        for worker in workers:
            worker.end()
        raise
    with _idle_lock:
        idle.extend(workers)


@atexit.register
def _end_all() -> None:
    with _idle_lock:
        for idle in _idle.values():
            while idle:
                idle.pop().end()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)  # the pipes of those belong to the process that started them


# --- in the worker ----------------------------------------------------------------------------------------------------


def questions() -> tuple[BinaryIO, BinaryIO]:
    """Where a worker reads what it is told, and where it answers."""
    back = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what anything here prints must not get between the answers
    return sys.stdin.buffer, back


def say(pipe: Any, what: Any) -> None:
    pickle.dump(what, pipe, pickle.HIGHEST_PROTOCOL)
    pipe.flush()
