"""A forked child works, whatever the threads of its parent were doing."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import DeviceError
from tilewright.gpus import GPUS
from tilewright.jit import cache, device, limits, nvrtc, workers
from tilewright.plan import tables

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
A, B = (np.random.default_rng(seed).standard_normal((32, 32)).astype(np.float32) for seed in range(2))


def in_a_child(work) -> bool:
    """Whether a forked child comes to the end of `work`."""
    child = os.fork()
    if not child:
        signal.alarm(20)  # it ends a child that waits for ever
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def multiply():
    with tw.emulator():
        assert np.allclose(tw.matmul(A, B), A @ B, atol=1e-4)


def test_locks_that_other_threads_held_are_open_in_a_child():
    multiply()
    held = [workers._idle_lock, tables._opening]
    recent = limits.Recent(lambda: 4)
    for lock in (*held, recent._guard):
        lock.acquire()
    try:
        assert in_a_child(lambda: (workers._end_all(), tables.store_of(GPUS["H200"]), recent.get(1), multiply()))
    finally:
        for lock in (*held, recent._guard):
            lock.release()


def test_a_child_of_a_process_that_used_cuda_is_told_so(monkeypatch):
    pytest.importorskip("cuda.bindings.driver")
    monkeypatch.setattr("cuda.bindings.driver.cuInit", lambda flags: (0,))
    device.driver.cache_clear()
    monkeypatch.setattr(device, "_failed", (float("-inf"), ""))
    device.driver()

    def call():
        with pytest.raises(DeviceError, match="forked from one that used it"):
            tw.matmul(A, B)
        multiply()

    try:
        assert in_a_child(call)
    finally:
        device.driver.cache_clear()


def test_a_child_compiles_what_a_thread_of_its_parent_was_compiling(tmp_path, monkeypatch):
    monkeypatch.setenv(cache.ENVIRONMENT_VARIABLE, str(tmp_path))
    begun, go_on = threading.Event(), threading.Event()
    build, parent = nvrtc.build, os.getpid()

    def slow(*given):
        if os.getpid() == parent:
            begun.set()
            go_on.wait(60)
        return build(*given)

    monkeypatch.setattr(nvrtc, "build", slow)
    thread = threading.Thread(target=multiply)
    thread.start()
    try:
        assert begun.wait(60)
        assert in_a_child(multiply)
    finally:
        go_on.set()
        thread.join()
