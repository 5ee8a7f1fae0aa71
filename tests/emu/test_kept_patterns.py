"""A program that runs again takes its address patterns of shared memory over, and nothing else with them."""

import numpy as np
import pytest

import tilewright as tw
from tilewright.emu import compiled, kept_patterns
from tilewright.emu.shared_memory import SharedMemory

SOURCE = """
extern "C" __global__ void turn(const int *where, int *y, int writes, int waits) {
    __shared__ int s[64];
    int t = threadIdx.x;
    if (writes) s[where[t]] = t;
    if (waits) __syncthreads();
    y[t] = s[63 - t];
}
"""
HERE = np.arange(64, dtype=np.int32)


@pytest.fixture(params=[True, False], ids=["compiled", "numpy"], autouse=True)
def loops(request, monkeypatch):
    if not request.param:
        monkeypatch.setenv(compiled.VARIABLE, "0")


def run(where=HERE, writes=1, waits=1, grid=1):
    args = [where, np.zeros(64, np.int32), writes, waits]
    result = tw.emulate(SOURCE, "turn", grid, 64, args, hazards="collect")
    return result.arrays[1], [str(hazard) for hazard in result.hazards], result.counters


def afresh(**how):
    kept_patterns.forget()
    return run(**how)


def same(a, b):
    np.testing.assert_array_equal(a[0], b[0])
    assert a[1:] == b[1:]


@pytest.fixture
def learned(monkeypatch):
    """The kinds of accesses whose patterns are worked out."""
    kinds = []
    learn = SharedMemory._learn

    def noted(self, site, kind, *rest):
        kinds.append(kind)
        return learn(self, site, kind, *rest)

    monkeypatch.setattr(SharedMemory, "_learn", noted)
    return kinds


def test_a_program_that_runs_again_works_out_nothing(learned):
    first = afresh()
    assert learned
    learned.clear()
    same(run(), first)
    assert not learned


@pytest.mark.parametrize("how", [{"writes": 0}, {"waits": 0}])
def test_what_is_wrong_is_found_each_time(how):
    wrong = afresh(**how)
    assert wrong[1]
    right = afresh()
    assert not right[1]
    same(run(**how), wrong)
    same(run(), right)
    same(run(**how), wrong)


def test_other_addresses_are_seen(learned):
    far = HERE * 2 % 64 + HERE // 32  # two lanes a bank
    other = afresh(where=far)
    here = afresh()
    same(run(where=far), other)
    learned.clear()
    same(run(where=far), other)
    same(run(), here)
    assert not learned


def test_a_launch_of_another_shape_takes_nothing(learned):
    afresh(grid=2)
    learned.clear()
    run(grid=1)
    assert learned


def test_patterns_are_one_launchs_at_a_time(learned, monkeypatch):
    afresh()
    monkeypatch.setattr("tilewright.emu.machine.leave", lambda machine: None)  # as while it runs
    learned.clear()
    run()
    assert not learned
    run()
    assert learned


def test_too_many_patterns_are_not_kept(monkeypatch):
    monkeypatch.setattr(kept_patterns, "MOST_BYTES", 100)
    afresh()
    assert kept_patterns._shelf.held is None
