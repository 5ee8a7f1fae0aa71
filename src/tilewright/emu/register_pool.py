"""setmaxnreg: what the warpgroups of a block hold of its registers, and who waits for more.

A block starts with as many registers per thread as it was compiled for. What a warpgroup gives back (dec) goes to a
pool of the block, from which another takes (inc). Compilers fix that number where setmaxnreg is used: it is the
directive .maxnreg, or what the register file holds for the threads and blocks of __launch_bounds__. Without either,
ptxas ignores setmaxnreg, and so does this.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from .ptx import Instruction

if TYPE_CHECKING:
    from .machine import Machine

FILE = 65536
"""Registers of an SM."""
MOST = 255
WARPGROUP = 128


def at_launch(directives: dict[str, str]) -> int | None:
    """Registers a thread that a kernel starts with, or None where its directives do not say."""
    if "maxnreg" in directives:
        return int(directives["maxnreg"]) // 8 * 8
    bounds = directives.get("reqntid") or directives.get("maxntid")
    if bounds is None:
        return None
    threads = int(np.prod([int(n) for n in bounds.split(",")]))
    warps = -(-threads // 32) * int(directives.get("minnctapersm", 1))
    return min(FILE // (32 * warps), MOST + 1) // 8 * 8


class RegisterPool:
    """The registers of the blocks of one batch."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        used = machine.program.opcodes_begin("setmaxnreg").any()
        self.start = at_launch(machine.program.entry.directives) if used else None
        groups = machine.lanes // 32
        self.held = np.zeros(groups, np.int64)
        """Registers a thread of the warpgroup that starts at a warp of the batch."""
        self.wanted = np.zeros(groups, np.int64)
        """What it waits for; 0: nothing."""
        self.by = np.zeros(groups, np.int32)
        """The instruction by which it asked last."""
        self.free = np.zeros(machine.ctas, np.int64)
        """Registers of a block that nobody holds."""
        self.left = np.zeros(machine.ctas, np.int64)
        """Those of them that warpgroups have left by their end."""

    def reset(self) -> None:
        """A new batch of blocks starts."""
        self.held[:] = self.start or 0
        self.wanted[:] = 0
        self.free[:] = self.left[:] = 0

    def change(self, instruction: Instruction, first_warps: np.ndarray, count: int, more: bool) -> np.ndarray:
        """Warpgroups (their first warps) ask for `count` registers per thread; those of them that have to wait."""
        if self.start is None:
            return first_warps[:0]
        late = []
        for warp in first_warps.tolist():
            held = int(self.held[warp])
            if (count < held) if more else (count > held):
                self.machine.report(
                    "register_count",
                    f"{'.'.join(instruction.opcode.split('.')[:2])} to {count}, and the warpgroup has {held} a thread",
                    instruction, warp * 32 + np.arange(WARPGROUP), None,
                )  # fmt: skip
            self.wanted[warp], self.by[warp] = count, instruction.index
            if not self._take(warp):
                late.append(warp)
        self._hand_on([warp for warp in np.flatnonzero(self.wanted).tolist() if warp not in late])
        return np.array(late, np.int64)

    def _take(self, warp: int) -> bool:
        cta = warp // self.machine.warps_per_cta
        need = WARPGROUP * int(self.wanted[warp] - self.held[warp])
        if need > self.free[cta]:
            return False
        self.free[cta] -= need
        self.held[warp], self.wanted[warp] = self.wanted[warp], 0
        if need > 0 and self.free[cta] < self.left[cta]:
            self._by_an_end(warp, int(self.left[cta] - self.free[cta]))
            self.left[cta] = self.free[cta]
        return True

    def _by_an_end(self, warp: int, missing: int) -> None:
        """Tell of registers that are there only because a warpgroup has ended."""
        self.machine.report(
            "register_pool",
            f"setmaxnreg.inc to {int(self.held[warp])} goes on with {missing} registers of a warpgroup that has ended: "
            "those that run have not given back enough",
            self.machine.program.instructions[int(self.by[warp])], warp * 32 + np.arange(WARPGROUP), None,
        )  # fmt: skip

    def _hand_on(self, waiting: Iterable[int]) -> None:
        for warp in waiting:
            if self._take(warp):
                self.machine.scheduler.wake(warp * 32 + np.arange(WARPGROUP))

    def leave(self) -> None:
        """Lanes ended: registers of a warpgroup that has ended are free (its block may still need them)."""
        if self.start is None:
            return
        live: np.ndarray = np.any(self.machine.scheduler.live.reshape(-1, 32), axis=1)
        for warp in np.flatnonzero(self.held).tolist():
            group = warp % self.machine.warps_per_cta % 4 == 0
            if group and not live[warp : warp + 4].any():
                for count in (self.free, self.left):
                    count[warp // self.machine.warps_per_cta] += WARPGROUP * self.held[warp]
                self.held[warp] = 0
        self._hand_on(np.flatnonzero(self.wanted).tolist())

    def waited_for(self, ctas: Iterable[int]) -> list[str]:
        """A line for each warpgroup of the blocks that waits, in words."""
        per = self.machine.warps_per_cta
        return [
            f"setmaxnreg: warps {warp % per} to {warp % per + 3} of block {self.machine.coordinates(warp // per)} want "
            f"{int(self.wanted[warp])} registers per thread and have {int(self.held[warp])}; "
            f"{int(self.free[warp // per])} are free, {WARPGROUP * int(self.wanted[warp] - self.held[warp])} are needed"
            for warp in np.flatnonzero(self.wanted).tolist()
            if warp // per in ctas
        ]
