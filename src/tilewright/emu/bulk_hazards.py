"""Bulk copies and shared memory, beside vector clocks: bytes that come with a phase of an mbarrier, bytes being read.

A write by the asynchronous proxy belongs to no warp. Its bytes are known to whoever knows that the phase is complete in
which they were credited to their mbarrier; until then, and to all others, any access to them is a fault. What a bulk
store reads may not be written until its thread has waited for it; from then on that counts as a read by its warp.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .compiled import address
from .ptx import Instruction
from .shadow import WORDS
from .shared_memory import SharedPattern

if TYPE_CHECKING:
    from .clocks import ClockShadow
    from .mbarriers import Mbarrier

FLYING = np.iinfo(np.int32).max
"""In place of a phase: the bytes have not come."""


class BulkClocks:
    """The part of ClockShadow that knows bulk copies."""

    def __init__(self, shadow: ClockShadow) -> None:
        self.shadow = shadow
        self.machine = shadow.machine
        granules = len(self.machine.shared.initialised)
        self.column = np.zeros(granules, np.int32)
        """The mbarrier that a granule came with, as its column of knowledge."""
        self.phase = np.zeros(granules, np.int32)
        """Phases of it that one must know to be complete; 0: nothing."""
        self.reading = np.zeros(granules, np.int16)
        """Bulk stores in flight that read the granule."""
        self.by = np.zeros(granules, np.int32)
        """The last bulk copy there."""
        self.merging = np.zeros(granules, bool)
        """Whether what comes is a reduction: others may come to the same bytes meanwhile."""
        self.objects = np.zeros(granules, bool)
        """Bytes of mbarriers."""
        self.spoiled = False
        """Whether anything but mbarrier's instructions has touched one."""
        self.lent: tuple[np.ndarray, np.ndarray] | None = None
        """The same as `column` and `phase`, of bytes that a copy to another block reads: for who writes them."""
        self.used = False

    def reset(self) -> None:
        """A new batch of blocks starts."""
        self.lent = None
        if self.used:
            for table in (self.column, self.phase, self.reading, self.merging):
                table[:] = 0
        self.objects[:] = False
        self.used = False

    # Accesses

    def check(self, pattern: SharedPattern, lanes: np.ndarray, *, writing: bool) -> None:
        """An access of any kind, before it is noted."""
        granules = pattern.granules
        if self.objects[pattern.where].any():
            self.spoiled = True
            self._on_object(pattern, lanes, self.objects[granules])
        if not self.used:
            return
        self.unknown(pattern, lanes)
        if writing:
            if self.reading[pattern.where].any():
                self._being_read(pattern, lanes, self.reading[granules] > 0)
            if self.lent is not None:
                cluster, warps = self.shadow.place(lanes)
                column, phase = (table[granules] for table in self.lent)
                lent = phase > self.shadow.known[cluster[:, None], warps[:, None], column]
                if lent.any():
                    self._being_read(pattern, lanes, lent)
            if not pattern.kind.startswith("bulk_"):
                self.phase[granules] = 0

    def unknown(self, pattern: SharedPattern, lanes: np.ndarray) -> bool:
        """Report lanes at bytes of a copy whose phase they have not seen complete; whether there were any."""
        shadow, granules = self.shadow, pattern.granules
        if self._all_seen(pattern, lanes):
            return False
        needed = self.phase[granules]
        if pattern.kind == "bulk_merge":
            needed = np.where(self.merging[granules], 0, needed)
        if not needed.any():
            return False
        columns = self.column[granules]
        cluster, warps = shadow.place(lanes)
        four = np.arange(4 if pattern.kind == "tensor" else 1)
        late = np.zeros(granules.shape, bool)
        for warp in four:
            late |= needed > shadow.known[cluster[:, None], warps[:, None] + warp, columns]
        late &= needed > 0
        if not late.any():
            return False
        row, k = (int(v) for v in np.argwhere(late)[0])
        granule = int(granules[row, k])
        machine = self.machine
        copy = machine.program.instructions[int(self.by[granule])]
        some = late.any(axis=1)
        shared = machine.shared
        at = granule * shared.granule % shared.stride
        verb = WORDS.get(pattern.kind, pattern.kind)
        flying = self.phase[granule] == FLYING
        details = {"the_copy": machine.reporter.sources.where(copy)}
        place = self._barrier_at(int(cluster[row]), int(columns[row, k]))
        if place is not None:
            details["its_mbarrier"] = machine.mbarriers.describe(place)
        machine.report(
            "async_copy_not_waited",
            f"{verb} at shared address {at:#x}, which an asynchronous copy "
            + ("is still writing" if flying else "has written")
            + ", and this warp has not seen its mbarrier's phase complete",
            pattern.instruction, lanes[some], at, details,
        )  # fmt: skip
        return True

    def _all_seen(self, pattern: SharedPattern, lanes: np.ndarray) -> bool:
        """Return whether the compiled loops find that the lanes' warps have seen all phases. False where there are
        none."""
        compiled, shadow = self.machine.compiled, self.shadow
        if compiled is None or pattern.kind == "bulk_merge":
            return False
        granules = np.ascontiguousarray(pattern.granules, np.int64)
        cluster, warps = shadow.place(lanes)
        place = np.ascontiguousarray(cluster * shadow.warps + warps, np.int64)
        four = 4 if pattern.kind == "tensor" else 1
        return not compiled.unseen(
            address(self.phase), address(self.column), address(granules), *granules.shape, address(shadow.known),
            shadow.known.shape[2], address(place), four,
        )  # fmt: skip

    def _barrier_at(self, cluster: int, column: int) -> Mbarrier | None:
        for barrier in self.machine.mbarriers.alive():
            if barrier.column == column and barrier.cta // self.machine.cluster_size == cluster:
                return barrier
        return None

    def _being_read(self, pattern: SharedPattern, lanes: np.ndarray, busy: np.ndarray) -> None:
        machine = self.machine
        row, k = (int(v) for v in np.argwhere(busy)[0])
        granule = int(pattern.granules[row, k])
        store = machine.program.instructions[int(self.by[granule])]
        some = busy.any(axis=1)
        at = granule * machine.shared.granule % machine.shared.stride
        verb = WORDS.get(pattern.kind, pattern.kind)
        copy, why = "store", "its thread has not waited for it"
        if ".mbarrier" in store.opcode:
            copy, why = "copy", "nothing has told this warp that the phase of the mbarrier that it completes at is over"
        machine.report(
            "bulk_not_waited",
            f"{verb} to shared address {at:#x}, which a bulk {copy} still reads: {why}",
            pattern.instruction, lanes[some], at, {f"the_{copy}": machine.reporter.sources.where(store)},
        )  # fmt: skip

    def _on_object(self, pattern: SharedPattern, lanes: np.ndarray, live: np.ndarray) -> None:
        machine = self.machine
        some = live.any(axis=1)
        at = int(pattern.granules[live][0]) * machine.shared.granule % machine.shared.stride
        machine.report(
            "mbarrier_misuse",
            f"{pattern.kind} of bytes of an mbarrier by another instruction than mbarrier's, at shared address {at:#x} "
            "(mbarrier.inval makes them ordinary ones)",
            pattern.instruction, lanes[some], at,
        )  # fmt: skip

    # Bulk copies

    def issued(self, pattern: SharedPattern) -> None:
        """A bulk copy starts, and has passed the checks."""
        self.used = True
        granules = pattern.where
        self.by[granules] = pattern.instruction.index
        if pattern.kind == "bulk_read":
            self.reading[granules] += 1
            return
        shadow = self.shadow
        self.phase[granules] = FLYING
        self.merging[granules] = pattern.kind == "bulk_merge"
        self.column[granules] = 0
        shadow.forget(granules)
        if shadow.products and shadow.products.waited[granules].any():  # to write zeros is to use the memory
            shadow.products.waited[granules] = 0

    def lend(self, pattern: SharedPattern, barrier: Mbarrier | None) -> None:
        """A copy to another block reads bytes until the current phase of its mbarrier ends; None: it has not come."""
        if self.lent is None:
            self.lent = np.zeros_like(self.column), np.zeros_like(self.phase)
        column, phase = self.lent
        self.by[pattern.where] = pattern.instruction.index
        column[pattern.where] = 0 if barrier is None else barrier.column
        phase[pattern.where] = FLYING if barrier is None else barrier.completed + 1

    def comes_with(self, granules: np.ndarray | slice, barrier: Mbarrier, instruction: Instruction) -> None:
        """Bytes come with the current phase of an mbarrier."""
        self.used = True
        self.column[granules] = barrier.column
        self.phase[granules] = barrier.completed + 1
        self.by[granules] = instruction.index
        self.shadow.forget(granules)

    def read_done(self, pattern: SharedPattern) -> None:
        """The thread of a bulk store has waited: from now on it is a read by its warp."""
        shadow, granules = self.shadow, pattern.granules
        assert pattern.lanes is not None
        self.reading[granules] -= 1
        (cluster,), (warp,) = shadow.place(pattern.lanes)
        shadow.noted[granules] = True
        shadow.read[granules, warp] = shadow.order[cluster, warp, warp]
        shadow.by["read"][granules] = pattern.instruction.index
        shadow.lanes.note_read(pattern, granules, pattern.lanes, self.machine.meetings)
