"""Loops without end: a batch that comes back to the very state it was in, or that runs longer than allowed.

Nothing outside a batch changes while it runs. So if, at the same place, registers and every memory are as they were,
and each group of lanes has run in between, the same will happen again for ever.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

FAIR_EVERY = 256
"""Of so many picks among diverged lanes one goes to the next block in turn instead of the lowest."""

if TYPE_CHECKING:
    from .schedule import Scheduler

FIRST = 1 << 14
"""Basic blocks a batch runs before it is looked at: right kernels of ordinary size never are."""
SPACING = 4096
OFTEN_MET = 16
"""In an order drawn at random the state has to come back so often: what happens next is drawn anew each time."""


class Watch:
    """A record of what was seen of one batch. `at` is the number of blocks run at which `look` wants to be called
    next."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.reset()

    def reset(self) -> None:
        """A new batch."""
        self.at = FIRST
        self._until = 0
        self._place = -1
        self._near: bytes = b""
        self._far: bytes = b""
        self._spacing = 1
        self._met = 0

    def look(self, here: int, ran: int) -> bool:
        """Return whether the state before block `here`, the `ran`th, is one that was seen before."""
        if ran >= self._until:
            self._place, self._until, self._spacing = here, 2 * ran, 1
            self._near, self._far, self._met = self._registers(), self._memory(), 0
            self.at = ran + self._turns()
            return False
        if here != self._place:
            self.at = ran + 1
            return False
        if self._registers() == self._near and self._memory() == self._far:
            self._met += 1
            if self.scheduler.machine.order is None or self._met >= OFTEN_MET:
                return True
            self.at = ran + self._turns()
            return False
        self.at = ran + self._spacing
        self._spacing = min(2 * self._spacing, SPACING)
        return False

    def _turns(self) -> int:
        """Blocks after which each group of lanes has surely run."""
        scheduler = self.scheduler
        if scheduler.machine.order is not None:
            return scheduler.machine.order.fair_after
        return 1 if scheduler.uniform else FAIR_EVERY * (len(np.unique(scheduler.key)) + 1)

    def _registers(self) -> bytes:
        scheduler = self.scheduler
        machine = scheduler.machine
        arrays: list[Any] = [scheduler.live, scheduler.barriers.at, machine.carry, machine.calls.depth]
        arrays += [] if scheduler.uniform else [scheduler.key]
        return _digest([*arrays, *machine.banks.values()])

    def _memory(self) -> bytes:
        machine = self.scheduler.machine
        return _digest([machine.shared.data, machine.local.data, machine.calls.area, machine.memory.views[1],
                        machine.mbarriers.digest()])  # fmt: skip


def _digest(arrays: list[np.ndarray]) -> bytes:
    state = hashlib.blake2b(digest_size=16)
    for array in arrays:
        state.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8))  # type: ignore[arg-type]
    return state.digest()
