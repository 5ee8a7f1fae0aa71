"""Compiling many kernels at once, in processes of their own."""

from __future__ import annotations

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

from ..jit import CompiledKernel
from ..jit.source import Constant

Built = CompiledKernel | tuple[str, str]
"""A kernel, or (kind, reason) of why there is none: kind is "compile" or "crash"."""

NOTHING: Mapping[str, str] = MappingProxyType({})


def default_jobs() -> int:
    """One core is left for measuring."""
    return max(1, len(os.sched_getaffinity(0)) - 1)


class _Worker:
    """One compiling process, started when first needed."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None

    def run(self, job: Any) -> Built:
        try:
            if self.process is None:
                self.process = _start()
            assert self.process.stdin is not None
            assert self.process.stdout is not None
            pickle.dump(job, self.process.stdin)
            self.process.stdin.flush()
            return pickle.load(self.process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError):
            status = self.stop()
            return "crash", f"the compiling process ended with status {status}"

    def kill(self) -> None:
        if (process := self.process) is not None:
            process.kill()

    def stop(self) -> int | None:
        """End the process; its exit status."""
        self.kill()
        if self.process is None:
            return None
        process, self.process = self.process, None
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        return process.wait()


def _start() -> subprocess.Popen[bytes]:
    """A worker that finds this package where we found it, and that Ctrl-C does not reach."""
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    return subprocess.Popen(
        [sys.executable, "-m", "tilewright.tuning.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path}, start_new_session=True,
    )  # fmt: skip


class Builder:
    """Compiles in `jobs` processes. A context manager: they end with it. The same kernel is compiled once."""

    def __init__(self, jobs: int) -> None:
        self._pool = ThreadPoolExecutor(jobs, thread_name_prefix="tilewright-build")
        self._local = threading.local()
        self._workers: list[_Worker] = []
        self._asked: dict[Any, Future[Built]] = {}

    def __enter__(self) -> Builder:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            worker.kill()  # its thread then sees the end of its answers
        self._pool.shutdown(wait=True)
        for worker in self._workers:
            worker.stop()

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
        worker: _Worker | None = getattr(self._local, "worker", None)
        if worker is None:
            worker = self._local.worker = _Worker()
            self._workers.append(worker)
        return worker.run(job)
