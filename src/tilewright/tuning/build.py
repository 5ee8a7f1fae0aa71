"""Compiling many kernels at once, each in a process of its own.

A fresh process per kernel costs a fifth of a compilation, and whatever happens in it is one failed candidate: a crash
of the compiler, a kill for want of memory, a compilation without end. A thread could not be ended while it compiles.
multiprocessing's pools do not serve here: they import the caller's script anew, which a script without a `__main__`
guard does not survive, and one death in them fails every job under way.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..errors import CompileError
from ..jit import CompiledKernel
from ..jit.compile import is_cached
from ..jit.source import Constant
from .worker import answer

Built = CompiledKernel | tuple[str, str]
"""A kernel, or (kind, reason) of why there is none: kind is "compile" or "crash"."""

NOTHING: Mapping[str, str] = MappingProxyType({})
SECONDS = 600.0
"""The longest that one kernel may compile. The slowest rung takes a few seconds."""
_COMMAND = (sys.executable, "-m", "tilewright.tuning.worker")


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


def default_jobs() -> int:
    """One core is left for measuring."""
    return max(1, cores() - 1)


class Builder:
    """Compiles in up to `jobs` processes at once, each for at most `seconds`. The same kernel is compiled once; one
    that the cache has is taken from there.

    A context manager: leaving it ends the processes.
    """

    def __init__(self, jobs: int, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._pool = ThreadPoolExecutor(jobs, thread_name_prefix="tilewright-build")
        self._guard = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._closed = False
        self._asked: dict[Any, Future[Built]] = {}

    def __enter__(self) -> Builder:
        return self

    def __exit__(self, *_: object) -> None:
        with self._guard:
            self._closed = True
            for process in self._running:
                process.kill()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def submit(
        self, include: str | tuple[str, ...], constants: Mapping[str, Constant], entry: str, arch: str,
        generated: Mapping[str, str] = NOTHING,
    ) -> Future[Built]:  # fmt: skip
        """Compile a rung's file with what is generated for it (see jit.compile.compile_rung) in the order of asking."""
        key = (include, tuple(constants.items()), entry, arch, tuple(generated.items()))
        if key not in self._asked:
            job = (include, dict(constants), entry, arch, (), dict(generated))
            self._asked[key] = self._pool.submit(self._run, job)
        return self._asked[key]

    def _run(self, job: Any) -> Built:
        include, constants, entry, arch, _, generated = job
        with contextlib.suppress(CompileError):  # the process says what is wrong
            if is_cached(include, constants, entry, arch, generated):
                return answer(job)
        given = pickle.dumps(job)
        try:
            process = self._start()
        except OSError as error:
            return "crash", f"no compiling process could be started ({error})"
        try:
            told, _ = process.communicate(given, self._seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return "compile", f"compiling took longer than {self._seconds:g} s"
        finally:
            with self._guard:
                self._running.discard(process)
        if process.returncode:
            return "crash", f"the compiling process ended with status {process.returncode}"
        return pickle.loads(told)

    def _start(self) -> subprocess.Popen[bytes]:
        """A process that finds this package where we found it, and that Ctrl-C does not reach."""
        root = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        with self._guard:
            if self._closed:
                raise OSError("the builder is closed")
            process = subprocess.Popen(
                _COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,
            )  # fmt: skip
            self._running.add(process)
            return process
