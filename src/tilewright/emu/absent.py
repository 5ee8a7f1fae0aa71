"""Lanes that a member mask names, and that end on another path without having run the instruction.

All lanes named that have not ended must run a vote, a match, a reduction or a __syncwarp(). GPUs of today let the
others go on when a lane ends, so an early return is right, and a branch around the instruction works.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from .hazards import lane_ranges
from .program import Code

if TYPE_CHECKING:
    from .schedule import Scheduler

_WAITS = re.compile(r"vote|match|redux|bar\.warp\.sync")
NOT = -1


@lru_cache(maxsize=64)
def _ways_out(program: Code) -> np.ndarray:
    """Return which basic blocks of a program do nothing but end the thread; last False, for lanes that wait."""
    out = np.zeros(len(program.blocks) + 1, bool)
    for block in program.blocks:
        last = program.instructions[block.end - 1]
        if block.end - block.start == 1 and last.guard is None and last.opcode.split(".")[0] in ("ret", "exit"):
            out[block.index] = last.opcode.startswith("exit") or program.routine_at(last.index) is program.routines[-1]
    return out


class Absent:
    """The lanes of one batch that others wait for."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.wanted = np.full(scheduler.machine.lanes, NOT, np.int32)
        """Basic block at whose start others wait for a lane that is on its way elsewhere; NOT: none."""
        self.any = False

    def reset(self) -> None:
        """A new batch of blocks starts."""
        self.wanted[:] = NOT
        self.any = False

    def wait(self, here: int, missing: np.ndarray, came: np.ndarray) -> None:
        """At a basic block lanes wait for those marked `missing`; those marked `came` go on from it."""
        program, key = self.scheduler.machine.program, self.scheduler.key
        if self.any:
            self.wanted[came] = NOT
        if missing.any() and _WAITS.match(program.instructions[program.blocks[here].start].opcode):
            ways_out = _ways_out(program)
            self.wanted[missing & ~ways_out[np.minimum(key, len(ways_out) - 1)]] = here
            self.any = True

    def leave(self, leaving: np.ndarray) -> None:
        """Lanes end: report those that others still wait for."""
        machine, joining = self.scheduler.machine, self.scheduler.joining
        lanes = np.flatnonzero(leaving & (self.wanted != NOT))
        for lane in lanes.tolist():
            here, warp = int(self.wanted[lane]), lane // 32
            waiting = 32 * warp + np.flatnonzero(joining[32 * warp : 32 * warp + 32] == here)
            if not len(waiting):
                continue
            those = tuple((lanes[(lanes // 32 == warp) & (self.wanted[lanes] == here)] % 32).tolist())
            machine.report(
                "member_absent",
                f"the member mask names {lane_ranges(those)}, on another path, which end without running it",
                machine.program.instructions[machine.program.blocks[here].start], waiting, None,
            )  # fmt: skip
        self.wanted[lanes] = NOT
