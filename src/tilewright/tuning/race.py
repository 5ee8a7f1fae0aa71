"""Candidates timed side by side on one GPU, and the memory that their operands take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from ..errors import DeviceError
from ..jit.device import bound_to, check, driver
from ..jit.gpu_executor import executor_for
from ..jit.timing import SHORT_MS, Start, Stopwatch
from .verify import Pattern

LEAST_REPLAYS = 20
MOST_SETS = 256


def sets_for(nbytes: int, l2: int) -> int:
    """Return how many sets of operands of `nbytes` each are rotated: together more than three times the L2."""
    return min(max(1, 3 * l2 // nbytes + 1), MOST_SETS)


def rounded_up(value: int, unit: int = 512) -> int:
    return -(-value // unit) * unit


class Memory:
    """Device memory that is released when `stack` closes."""

    def __init__(self, ordinal: int, stack: ExitStack) -> None:
        self.ordinal, self.executor, self._stack = ordinal, executor_for(ordinal), stack

    def allocate(self, nbytes: int) -> int:
        address = self.executor.allocate(nbytes)
        self._stack.callback(self.executor.release, address)
        return address

    def filled(self, nbytes: int, pattern: Pattern) -> int:
        """Memory that repeats the pattern: copied once, then doubled on the device."""
        address, raw = self.allocate(nbytes), pattern.stored.view(np.uint8)
        done = min(nbytes, raw.nbytes)
        self.executor.write(address, raw[:done])
        with bound_to(self.ordinal):
            while done < nbytes:
                more = min(done, nbytes - done)
                check(driver().cuMemcpyDtoD(address + done, address, more), "copying operands")
                done += more
        return address

    def fill(self, address: int, value: int, nbytes: int) -> None:
        with bound_to(self.ordinal):
            check(driver().cuMemsetD8(address, value, nbytes), "filling an output")


class Race:
    """A race: who runs in it, by identity, and how each is started on every set of operands."""

    def __init__(self, ordinal: int, stack: ExitStack) -> None:
        self.ordinal, self._stack = ordinal, stack
        self.watch = Stopwatch(ordinal)
        stack.callback(self.watch.close)
        self._starts: dict[int, list[Start]] = {}
        self._each: dict[int, int] = {}

    def enter(self, candidate: object, starts: Callable[[], list[Start]]) -> None:
        """Make ready to be timed: a graph over all sets where one run is short. `starts`: one for each set."""
        with bound_to(self.ordinal):
            ready, each = starts(), 1
            self.watch.measure(ready[:1])
            if min(self.watch.measure([ready[0], ready[-1]])) < SHORT_MS:
                rounds = -(-LEAST_REPLAYS // len(ready))
                each = rounds * len(ready)
                ready = [self._stack.enter_context(self.watch.graph_of(ready * rounds))]
        self._starts[id(candidate)], self._each[id(candidate)] = ready, each

    def one_pass(self, candidates: Sequence[Any], number: int) -> list[float]:
        """Milliseconds of each, side by side; who comes first changes from pass to pass."""
        order = [(number + i) % len(candidates) for i in range(len(candidates))]
        if number % 2:
            order.reverse()
        wanted = []
        for i in order:
            starts = self._starts[id(candidates[i])]
            wanted.append(starts[number % len(starts)])
        with bound_to(self.ordinal):
            times = dict(zip(order, self.watch.measure(wanted), strict=True))
        return [times[i] / self._each[id(candidates[i])] for i in range(len(candidates))]


def context_is_lost(ordinal: int) -> bool:
    """Return whether a fault has made the GPU's context unusable for this process."""
    try:
        executor_for(ordinal).synchronize()
        return False
    except DeviceError:
        return True
