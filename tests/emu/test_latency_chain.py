"""The chain whose steps are timed on a GPU leads on the emulator where it should: no step is folded away."""

from __future__ import annotations

import pytest

from tilewright.emu.session import Emulator
from tilewright.lab.latency import PLACES, ROUNDS, chain_of, follow


@pytest.mark.parametrize("place", PLACES)
def test_a_chain_is_followed_step_by_step_through_each_memory(place):
    arrived, expected, cycles = follow(Emulator("H200"), place, 64, 50)
    assert arrived == expected
    assert cycles >= 50  # instructions there: at least one a step


def test_a_chain_is_one_cycle_through_all_its_elements():
    chain, at, met = chain_of(40, 32).tolist(), 0, set()
    for _ in range(40):
        met.add(at)
        at = chain[at]
    assert (at, len(met), {place % 32 for place in met}) == (0, 40, {0})
    assert ROUNDS * 16384 < 8388608  # the suite's longest chain is never met again
