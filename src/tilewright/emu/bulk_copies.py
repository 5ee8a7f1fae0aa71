"""Bulk copies in flight: cp.async.bulk and its tensor form, cp.reduce.async.bulk.

A copy into shared memory is a delivery of its mbarrier (mbarriers.py): the data is read at the issue, written when the
phase is waited for. A copy from shared memory belongs to a group of the thread that issued it; the bytes are read when
the thread waits for that, or its block ends, and written when it waits for the whole, or its block ends: as late as can
be, so that what comes too early is seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from .mbarriers import Mbarrier
from .ptx import Instruction
from .shared_memory import SharedPattern

if TYPE_CHECKING:
    from .bulk_global import Flight
    from .global_rows import Rows
    from .machine import Machine

UNIT = 16
"""Bytes that are moved as one."""
Put = Callable[[np.ndarray], None]
Merge = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""merge(old, new): what a reduction leaves, uint8 [units, 16]."""


class Units:
    """Pieces of a block's shared memory, of 16 bytes or as few as one write has, in the order of what is copied."""

    __slots__ = ("first", "numbers", "row")

    def __init__(self, numbers: np.ndarray) -> None:
        self.numbers = numbers
        self.first, last = int(numbers.min()), int(numbers.max())
        self.row = len(numbers) if last - self.first + 1 == len(numbers) else 0
        """How many there are from the first on, where all are different and none between them is left out."""


@dataclass(eq=False)
class Store:
    """A copy out of shared memory. `put` takes the bytes, uint8 [units, 16]."""

    pattern: SharedPattern
    units: Units
    rows: Rows
    put: Put
    flight: Flight | None
    """What the checker of races keeps of it."""
    data: np.ndarray | None = None
    """The bytes, once they have been read."""


@dataclass(eq=False)
class Groups:
    """The stores of one thread."""

    open: list[Store] = field(default_factory=list)
    committed: list[list[Store]] = field(default_factory=list)


class BulkPattern(SharedPattern):
    """The units of `each` granules that a bulk copy touches. Of most copies nobody asks for more than their piece."""

    __slots__ = ("_granules", "each", "start", "units")

    def __init__(
        self, kind: str, instruction: Instruction, nbytes: int, units: Units, start: int, each: int
    ) -> None:  # fmt: skip
        """start: the unit with which the block's memory begins."""
        super().__init__(kind, instruction, nbytes)
        self.units, self.start, self.each = units, start, each
        self._granules: np.ndarray | None = None

    @property
    def granules(self) -> np.ndarray:  # type: ignore[override]
        """Granule indices in the batch's shared memory, [1, granules]."""
        if self._granules is None:
            first = (self.start + self.units.numbers) * self.each
            self._granules = (first[:, None] + np.arange(self.each)).reshape(1, -1)
        return self._granules


class BulkCopies:
    """The bulk copies of one batch."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.of_lane: dict[int, Groups] = {}
        self.loads: list[tuple[int, Instruction, int]] = []
        """(block written to, instruction, lane) of copies into shared memory that have not come."""

    def reset(self) -> None:
        """A new batch of blocks starts."""
        self.of_lane.clear()
        self.loads.clear()

    def pattern(
        self, kind: str, instruction: Instruction, lane: int, cta: int, units: Units, unit: int = UNIT
    ) -> SharedPattern:
        """Units of so many bytes of a block's shared memory, as the hazard checker is told of them."""
        machine, shared = self.machine, self.machine.shared
        each = unit // shared.granule
        made = BulkPattern(kind, instruction, unit, units, cta * shared.stride // unit, each)
        made.lanes = np.array([lane])
        made.addresses = units.numbers[:1] * unit
        if units.row:
            first = (made.start + units.first) * each
            made.piece = slice(first, first + units.row * each)
        made.warps = machine.warp_of_lane[made.lanes] + np.uint8(1)
        return made

    def _host(self, cta: int, units: Units, unit: int = UNIT) -> tuple[np.ndarray, np.ndarray]:
        """(shared memory of the batch as [.., unit] bytes, rows of it)."""
        shared = self.machine.shared
        return shared.data.reshape(-1, unit), cta * shared.stride // unit + units.numbers

    def load(
        self, instruction: Instruction, lane: int, cta: int, units: Units, data: np.ndarray, barrier: Mbarrier,
        credited: int, merge: Merge | None = None, rows: Rows | None = None, lent: SharedPattern | None = None,
    ) -> None:  # fmt: skip
        """A copy of `data` [units, bytes of one] into a block starts; it will credit so many bytes to the mbarrier.

        rows: where it reads global memory; lent: where it reads shared memory.
        """
        machine, unit = self.machine, data.shape[1]
        machine.mbarriers.events += 1
        kind = "bulk_write" if merge is None else "bulk_merge"
        pattern = self.pattern(kind, instruction, lane, cta, units, unit)
        machine.shadow.record(pattern)
        machine.shadow.aimed(pattern, barrier, lane)
        flight = machine.races.bulk_begins(instruction, rows, barrier) if machine.races and rows else None
        if lent is not None:
            machine.shadow.bulk_lent(lent, None)
        mark = (cta, instruction, lane)
        self.loads.append(mark)

        def deliver(barrier: Mbarrier) -> None:
            memory, places = self._host(cta, units, unit)
            if merge is not None:
                memory[places] = merge(memory[places], data)
            else:
                whole = machine.shared.views[unit]
                whole[places] = data.reshape(-1).view(whole.dtype)
            machine.shared.initialised[pattern.where] = True
            self.loads.remove(mark)
            machine.shadow.bulk_landed(pattern, barrier)
            if lent is not None:
                machine.shadow.bulk_lent(lent, barrier)
            if machine.races:
                machine.races.bulk_ends(flight)
            machine.mbarriers.complete(instruction, barrier, lane, credited)

        barrier.deliveries.append(deliver)

    def store(self, instruction: Instruction, lane: int, units: Units, rows: Rows, put: Put) -> None:
        """A copy out of the lane's block to rows of global memory starts."""
        machine = self.machine
        cta = int(machine.cta_of_lane[lane])
        machine.mbarriers.events += 1
        pattern = self.pattern("bulk_read", instruction, lane, cta, units)
        unwritten = ~machine.shared.initialised[pattern.granules]
        if unwritten.any() and not machine.shadow.reads_pending(pattern):
            at = int(pattern.granules[unwritten][0]) * machine.shared.granule % machine.shared.stride
            machine.report(
                "uninitialised_shared_read",
                f"a bulk store reads shared address {at:#x}, which no thread of the block has written",
                instruction, np.array([lane]), at,
            )  # fmt: skip
        machine.shadow.record(pattern)
        flight = machine.races.bulk_begins(instruction, rows, None) if machine.races else None
        self.of_lane.setdefault(lane, Groups()).open.append(Store(pattern, units, rows, put, flight))

    def commit(self, lanes: np.ndarray) -> None:
        """Threads close their group."""
        for lane in lanes.tolist():
            groups = self.of_lane.setdefault(lane, Groups())
            groups.committed.append(groups.open)
            groups.open = []

    def wait(self, lanes: np.ndarray, newest: int, reads_only: bool) -> None:
        """Threads wait for all their groups but the `newest` last ones: to have read, or to be done."""
        for lane in lanes.tolist():
            groups = self.of_lane.get(lane)
            if groups is None:
                continue
            due = groups.committed[: max(len(groups.committed) - newest, 0)]
            for group in due:
                for store in group:
                    self._read(store, waited=True)
                    if not reads_only:
                        self._write(store)
            if not reads_only:
                del groups.committed[: len(due)]
        if len(lanes) > 1:  # a warp's lanes that run the wait together go on together
            members = np.zeros(self.machine.lanes, np.uint32)
            masks = np.bincount(lanes // 32, np.exp2(lanes % 32), self.machine.lanes // 32).astype(np.uint32)
            members[lanes] = masks[lanes // 32]
            self.machine.meet(members)

    def _write(self, store: Store) -> None:
        data, races = store.data, self.machine.races
        assert data is not None
        if races is None:
            store.put(data)
            return
        races.store_rows(store.pattern.instruction, store.rows, lambda: store.put(data))
        races.bulk_ends(store.flight)

    def _read(self, store: Store, *, waited: bool) -> None:
        if store.data is None:
            assert store.pattern.lanes is not None
            memory, rows = self._host(int(self.machine.cta_of_lane[store.pattern.lanes[0]]), store.units)
            store.data = memory[rows]
            if waited:
                self.machine.shadow.bulk_read_done(store.pattern)

    def leave(self, leaving: np.ndarray, ended: np.ndarray) -> None:
        """Lanes (a mask) end; so do blocks (a mask)."""
        machine = self.machine
        for lane in [lane for lane in self.of_lane if leaving[lane]]:
            groups = self.of_lane[lane]
            unread = [store for group in (*groups.committed, groups.open) for store in group if store.data is None]
            if unread:
                machine.report(
                    "bulk_exit",
                    "the thread ends and has not waited for its bulk store to have read shared memory",
                    unread[0].pattern.instruction, np.array([lane]), None,
                )  # fmt: skip
        if not ended.any():
            return
        for lane in [lane for lane in self.of_lane if ended[machine.cta_of_lane[lane]]]:
            groups = self.of_lane.pop(lane)
            for store in (store for group in (*groups.committed, groups.open) for store in group):
                self._read(store, waited=False)
                self._write(store)
        for cta, instruction, lane in self.loads:
            if ended[cta]:
                machine.report(
                    "bulk_not_waited",
                    f"block {machine.coordinates(cta)} ends while a bulk copy into its shared memory is in flight",
                    instruction, np.array([lane]), None,
                )  # fmt: skip
        self.loads = [load for load in self.loads if not ended[load[0]]]
