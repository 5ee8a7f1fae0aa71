"""--jobs: what several processes leave is what one leaves, or one runs the launch and says why."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.emu import jobs
from tilewright.errors import EmulatorFault, InvalidOperand
from tilewright.jit import workers

N = 5 * 8192
"""Threads: five batches."""
STEPS = """#include <stdio.h>
__device__ int touched[4];
__global__ void steps(const unsigned *x, unsigned *y, unsigned *some, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    __shared__ unsigned s[256];
    s[threadIdx.x] = x[i];
    __syncthreads();
    unsigned v = s[threadIdx.x ^ 1], steps = 0;
    while (v != 1) { if (v & 1) v = 3 * v + 1; else v >>= 1; ++steps; }
    y[i] += steps;
    if (i % 7 == 0) some[i / 7] = v + blockIdx.x;
    if (i % 8192 == 5) printf("%d: %d\\n", blockIdx.x, steps);
    if (i == n - 1) touched[1] = 3;
}"""


def steps(count: int) -> tw.EmulateResult:
    x = np.random.default_rng(0).integers(1, 1000, N, np.uint32)
    return tw.emulate(STEPS, "steps", N // 256, 256, [x, x, np.zeros(N // 7 + 1, np.uint32), N], jobs=count)


@pytest.fixture(scope="module")
def one():
    return steps(1)


@pytest.mark.parametrize("count", [2, 3, 9])
def test_any_number_of_processes_leaves_the_same(count, one):
    several = steps(count)
    assert (one.alone, several.alone) == ("", "")
    assert several.counters == one.counters
    assert several.printed == one.printed != ""
    for ours, expected in zip(several.arrays, one.arrays, strict=True):
        np.testing.assert_array_equal(ours, expected)


TALKING = {
    "an atomic": ("atomicAdd(a, 1);", "its blocks may talk"),
    "a flag": ("if (i) while (*(volatile int *)a == 3); else *(volatile int *)a = 1;", "its blocks may talk"),
    "the heap": ("if (i % 8192 == 0) { int *p = (int *)malloc(8); *p = i; b[i] = *p; free(p); }", "uses the heap"),
    "one place": ("if (i == 5) a[9] = 1; if (i == 40000) b[0] = a[9];", "two processes touch the same bytes of"),
    "one value": ("if (i % 40000 == 0) a[0] = 7;", "two processes touch the same bytes of"),
}


@pytest.mark.parametrize("name", TALKING)
def test_blocks_that_may_talk_are_left_to_one_process_with_the_reason(name):
    body, why = TALKING[name]
    source = f"__global__ void k(int *a, int *b) {{ int i = blockIdx.x * blockDim.x + threadIdx.x; {body} }}"
    given = [np.zeros(N, np.int32), np.zeros(N, np.int32)]
    one, two = (
        tw.emulate(source, "k", N // 256, 256, given, jobs=count, hazards="collect", limit=10**6) for count in (1, 2)
    )
    assert one.alone == ""
    assert why in two.alone
    assert [str(hazard) for hazard in one.hazards] == [str(hazard) for hazard in two.hazards]
    assert one.counters == two.counters
    for ours, expected in zip(two.arrays, one.arrays, strict=True):
        np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("a[i - (i > 40000 && i % 256 == 0)] = i;", "global_race"),
        ("a[i == 40900 ? 1 << 20 : i] = i;", "out_of_bounds"),
        ("b[i] = a[(i + 32768) % 40960]; a[i] = i;", "global_race"),
        (
            "int v = i | 1; for (int k = 0; k < 100 + (i == 40900) * 9000; ++k) v = v & 1 ? 3 * v + 1 : v >> 1;"
            "a[i] = v;",
            "endless_loop",
        ),
    ],
)
def test_what_is_found_is_what_one_process_finds(body, kind):
    source = f"__global__ void k(int *a, int *b) {{ int i = blockIdx.x * blockDim.x + threadIdx.x; {body} }}"
    found = []
    for count in (1, 3):
        with pytest.raises(EmulatorFault) as caught:
            tw.emulate(source, "k", N // 256, 256, [np.zeros(N, np.int32)] * 2, jobs=count, limit=50_000)
        found.append(str(caught.value))
    assert found[0] == found[1]
    assert caught.value.hazard.kind == kind


def test_a_process_that_ends_early_is_done_without(monkeypatch, one):
    monkeypatch.setattr(jobs, "_SERVER", "no_such_module")
    monkeypatch.setattr(workers, "_idle", {})
    two = steps(2)
    assert "a process that ran some of its blocks ended" in two.alone
    assert two.counters == one.counters


def test_operations_share_their_blocks_too():
    a, b = np.random.default_rng(0).standard_normal((2, 300, 300), np.float32)
    results = []
    for count in (1, 2):
        with tw.emulator(jobs=count) as executor:
            results.append((tw.matmul(a, b), executor.last.counters))
    np.testing.assert_array_equal(results[0][0], results[1][0])
    assert results[0][1] == results[1][1]


@pytest.mark.parametrize("wrong", [{"jobs": 0}, {"jobs": 2.5}, {"order": -1}, {"seed": "x"}])
def test_an_emulator_of_no_process_or_of_no_order_is_refused(wrong):
    with pytest.raises(InvalidOperand, match="pass a whole number of at least"):
        tw.emulator(**wrong)


def test_an_interrupt_of_the_caller_is_not_for_the_processes_that_help():
    worker = workers.Worker("tilewright.emu.job_worker", {})
    try:
        assert os.getsid(worker.process.pid) != os.getsid(0)
    finally:
        worker.end()


LONG_RUN = """
import signal
import numpy as np
import tilewright as tw
from tilewright.emu.task import Task
from tilewright.jit.workers import Worker

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run under nohup
tell = Worker.tell
def tell_and_say(worker, what):
    tell(worker, what)
    if isinstance(what[0], Task):  # what is to be run, not compiled
        print(worker.process.pid, flush=True)
Worker.tell = tell_and_say
kernel = "__global__ void k(unsigned *y) { unsigned v = threadIdx.x;"
kernel += " for (unsigned i = 0; i < 1u << 30; ++i) v = (v ^ i) * 2654435761u >> 3;"
kernel += " y[blockIdx.x * 256 + threadIdx.x] = v; }"
tw.emulate(kernel, "k", 64, 256, [np.zeros(64 * 256, np.uint32)], jobs=2)
"""


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and that nobody has asked about does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="asks Linux which processes run")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_processes_end_with_the_one_that_started_them(name):
    main = subprocess.Popen(
        [sys.executable, "-c", LONG_RUN], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )
    assert main.stdout is not None
    workers: list[int] = []
    try:
        workers += [int(main.stdout.readline()) for _ in range(2)]
        assert all(map(alive, workers))
        main.send_signal(getattr(signal, name))
        assert main.wait(60) != 0
        deadline = time.monotonic() + 60
        while any(map(alive, workers)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert [pid for pid in workers if alive(pid)] == []
    finally:
        main.kill()
        for pid in filter(alive, workers):
            os.kill(pid, signal.SIGKILL)
