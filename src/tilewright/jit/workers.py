"""Processes of this Python that answer one question after another. They may die without harm to this one."""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from .locks import lock

AWAKE = 0.5
"""Seconds after which whoever waits looks for a Ctrl-C: one that comes just before the wait does not end it."""


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
            start_new_session=True,  # a Ctrl-C is for the process that waits: this one ends with the pipe
        )
        self._said: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        try:
            while True:
                self._said.put((pickle.load(self.process.stdout), None))
        except Exception as error:
            self._said.put((None, error))

    def tell(self, what: Any) -> None:
        assert self.process.stdin is not None
        say(self.process.stdin, what)

    def hear(self) -> Any:
        """Return what it says next. Raises EOFError where it has ended instead."""
        while True:
            with contextlib.suppress(queue.Empty):
                said, error = self._said.get(timeout=AWAKE)
                if error is not None:
                    raise error
                return said

    def end(self) -> None:
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self.process.wait()


_idle: dict[str, list[Worker]] = {}
"""By module."""
_idle_lock = lock()


@contextlib.contextmanager
def borrow(module: str, count: int, environment: dict[str, str] | None = None) -> Iterator[list[Worker]]:
    """So many workers, which wait for the next question afterwards; after an error they are ended."""
    with _idle_lock:
        idle = _idle.setdefault(module, [])
        workers = [idle.pop() for _ in range(min(count, len(idle)))]
    try:
        while len(workers) < count:
            workers.append(Worker(module, environment or {}))
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
    # Their pipes belong to the process that started them.
    os.register_at_fork(after_in_child=lambda: _idle.clear())


# --- in the worker ----------------------------------------------------------------------------------------------------


def questions() -> tuple[Callable[[], Any], BinaryIO]:
    """Return what waits for the next question, and where a worker answers. The process ends with the one that started
    it, in the middle of an answer too."""
    back = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what anything here prints must not get between the answers
    told: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def listen() -> None:
        try:
            while True:
                told.put(pickle.load(sys.stdin.buffer))
        finally:  # the pipe is closed
            os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    return told.get, back


def say(pipe: Any, what: Any) -> None:
    pickle.dump(what, pipe, pickle.HIGHEST_PROTOCOL)
    pipe.flush()
