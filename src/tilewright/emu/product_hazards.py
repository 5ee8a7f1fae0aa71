"""Shared memory that wgmma reads: written too early, too late, or through the other proxy without a fence.

A product reads its bytes, for all four warps of its warpgroup, from its issue to the wait that covers it. Whatever
writes to them in that time is `wgmma_not_waited`; a write that no barrier orders against it is a race as any other. A
warpgroup's own writes need no barrier after its own wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from .compiled import address
from .ptx import Instruction
from .shadow import Landing, Shadow
from .shared_memory import SharedPattern

if TYPE_CHECKING:
    from .clocks import ClockShadow
    from .epochs import EpochShadow
    from .machine import Machine


def report_in_flight(
    machine: Machine, pattern: SharedPattern, lanes: np.ndarray, addresses: np.ndarray, product: Instruction
) -> None:
    """A write to bytes that a product is reading."""
    verb = {"copy": "asynchronous copy"}.get(pattern.kind, pattern.kind)
    machine.report(
        "wgmma_not_waited",
        f"{verb} of {pattern.nbytes} bytes to shared address {int(addresses[0]):#x}, which a wgmma reads that has been "
        "issued and not been waited for",
        pattern.instruction, lanes, int(addresses[0]), {"the_wgmma": machine.reporter.sources.where(product)},
    )  # fmt: skip


def report_unordered(
    shadow: Shadow, pattern: SharedPattern, lane: int, granule: int, other: Instruction, kind: str, warp: int
) -> None:
    """A product that starts after a write which no barrier orders before it."""
    shared = shadow.machine.shared
    shadow.report_race(
        pattern, lane + np.arange(32), granule * shared.granule % shared.stride, "wgmma's read", other, kind, warp
    )  # fmt: skip


class ProductJudge:
    """The products of an epoch, walked through in order."""

    def __init__(self, shadow: EpochShadow) -> None:
        self.shadow = shadow
        granules = len(shadow.machine.shared.initialised)
        self.reading = np.zeros(granules, np.uint8)
        """Products in flight that read the granule."""
        self.has_read = np.zeros(granules, np.uint8)
        """Warpgroups, a bit for each of the block, that had one at some time of the epoch."""
        self.wrote = np.zeros(granules, np.uint8)
        """1 + the warp that wrote it last in the epoch."""
        self.ctas: np.ndarray | None = None
        self.flights: list[tuple[SharedPattern, np.ndarray]] = []
        """(what is read, which of its rows) of each product in flight."""
        self.products: list[SharedPattern] = []
        self.writes: list[SharedPattern] = []

    def judge(self, ctas: np.ndarray | None, events: list[Any], pending: tuple[Any, ...]) -> bool:
        """Return whether nothing was wrong; as EpochShadow's, for what concerns products."""
        self.ctas, self.flights, self.products, self.writes = ctas, [], [], []
        touched, clean = [], True
        try:
            for event in pending:
                pattern, granules, warps = self.shadow.rows(event, ctas)
                touched.append(granules)
                if pattern.kind == "tensor":
                    self._start(event)
                else:
                    self.writes.append(pattern)
                    self.wrote[granules] = warps[:, None]
            for event in events:
                pattern, granules, warps = self.shadow.rows(event, ctas)
                if isinstance(event, Landing):
                    if pattern.kind == "tensor":
                        self._end(event)
                elif pattern.kind == "tensor":
                    touched.append(granules)
                    clean &= self._read(event, granules)
                    self._start(event)
                elif pattern.kind != "read":
                    touched.append(granules)
                    clean &= self._written(event, granules, warps)
                    self.writes.append(pattern)
                    self.wrote[granules] = warps[:, None]
        finally:
            for granules in touched:
                self.reading[granules] = self.has_read[granules] = self.wrote[granules] = 0
        return clean

    def _start(self, event: Any) -> None:
        pattern, rows = _which(event)
        self.flights.append((pattern, rows))
        self.products.append(pattern)
        for granules, bit in self._by_group(event):
            self.reading[granules] += 1
            self.has_read[granules] |= bit

    def _end(self, event: Landing) -> None:
        pattern, rows = _which(event)
        kept = []
        for flight, still in self.flights:
            if flight is pattern and len(rows) == len(still) == len(pattern.granules):
                rows, still = rows[:0], still[:0]
            elif flight is pattern and len(rows):
                ended = np.isin(still, rows)
                rows, still = rows[~np.isin(rows, still)], still[~ended]
            if len(still):
                kept.append((flight, still))
        self.flights = kept
        for granules, _ in self._by_group(event):
            self.reading[granules] -= 1

    def _by_group(self, event: Any) -> Iterator[tuple[np.ndarray, np.uint8]]:
        """(granules, bit) of each warpgroup of a block: no granule is in them twice, as its rows are of many blocks."""
        _, granules, warps = self.shadow.rows(event, self.ctas)
        if self.shadow.machine.warps_per_cta == 4:
            yield granules, np.uint8(1)
            return
        bits = _bit(warps)
        several = np.unique(bits)
        for bit in several:
            yield (granules[bits == bit] if len(several) > 1 else granules), bit

    def _read(self, pattern: SharedPattern, granules: np.ndarray) -> bool:
        before = self.wrote[granules]
        if not before.any():
            return True
        row, k = (int(v) for v in np.argwhere(before)[0])
        granule, warp = int(granules[row, k]), int(before[row, k])
        lanes, _ = self.shadow._chosen(pattern, np.arange(len(granules)) == row, self.ctas)
        other = self._last(self.writes, granule)
        report_unordered(self.shadow, pattern, int(lanes[0]), granule, other.instruction, other.kind, warp - 1)
        return False

    def _written(self, pattern: SharedPattern, granules: np.ndarray, warps: np.ndarray) -> bool:
        bad = self.reading[granules] != 0
        if bad.any():
            lanes, addresses = self.shadow._chosen(pattern, bad.any(axis=1), self.ctas)
            product = self._last([flight for flight, _ in self.flights], int(granules[bad][0]))
            report_in_flight(self.shadow.machine, pattern, lanes, addresses, product.instruction)
            return False
        bad = (self.has_read[granules] & ~_bit(warps)[:, None]) != 0
        if bad.any():
            lanes, addresses = self.shadow._chosen(pattern, bad.any(axis=1), self.ctas)
            row, k = (int(v) for v in np.argwhere(bad)[0])
            others = int(self.has_read[granules[row, k]] & ~_bit(warps)[row])
            product = self._last(self.products, int(granules[row, k]))
            self.shadow.report_race(
                pattern, lanes, int(addresses[0]), pattern.kind, product.instruction, "tensor",
                4 * (others.bit_length() - 1),
            )  # fmt: skip
            return False
        return True

    @staticmethod
    def _last(patterns: list[SharedPattern], granule: int) -> SharedPattern:
        return next(pattern for pattern in reversed(patterns) if (pattern.granules == granule).any())


def _bit(warps: np.ndarray) -> np.ndarray:
    """1 + the warp -> the bit of its warpgroup, uint8."""
    return np.left_shift(np.uint8(1), (warps - np.uint8(1)) // np.uint8(4)).astype(np.uint8)


def _which(event: Any) -> tuple[SharedPattern, np.ndarray]:
    """The pattern of an event and its rows."""
    pattern = event.pattern if isinstance(event, Landing) else event
    some = isinstance(event, Landing) and event.rows is not None
    return pattern, event.rows if some else np.arange(len(pattern.granules))


class ProductClocks:
    """The same beside vector clocks (clocks.py), checked at each access."""

    def __init__(self, shadow: ClockShadow) -> None:
        self.shadow = shadow
        self.machine = shadow.machine
        granules = len(self.machine.shared.initialised)
        self.groups = self.machine.warps_per_cta // 4
        self.reading = np.zeros(granules, np.int16)
        """Products in flight that read the granule."""
        self.waits = np.zeros((self.groups, granules, 4), np.int32)
        """Clock of each warp's wait for its warpgroup's last product that read it; 0: it has not waited."""
        self.waited = self.waits.swapaxes(0, 1)
        """The same by granule."""
        self.by = np.zeros(granules, np.int32)
        """1 + the instruction of the last product that read the granule; 0: none did."""
        tables = self.reading, self.waits, self.by
        self.told = np.array([*(address(table) for table in tables), self.groups, granules], np.int64)

    def reset(self) -> None:
        """A new batch of blocks starts."""
        touched = np.flatnonzero(self.by)
        self.reading[touched] = self.waited[touched] = self.by[touched] = 0

    def issue(self, pattern: SharedPattern) -> None:
        """A product reads: all four warps have to know of what was written."""
        shadow, granules = self.shadow, pattern.granules
        assert pattern.lanes is not None
        cluster, first = shadow.place(pattern.lanes)
        group = (pattern.warps.astype(np.int64) - 1) // 4
        four = shadow.order[cluster[:, None], first[:, None] + np.arange(4)].min(axis=1)
        for table, name in ((shadow.written, "write"), (shadow.updated, "atomic")):
            if not shadow.noted[granules].any() or shadow.all_known(table, granules, four, None):
                continue
            newer = table[granules] > four[:, None, :]
            if newer.any():
                row, k, warp = (int(v) for v in np.argwhere(newer)[0])
                granule = int(granules[row, k])
                other = self.machine.program.instructions[int(shadow.by[name][granule])]
                kind = "copy" if other.opcode.startswith("cp.async") else name
                report_unordered(shadow, pattern, int(pattern.lanes[row]), granule, other, kind, warp)
        compiled = self.machine.compiled
        if compiled is not None:
            places = np.ascontiguousarray(granules, np.int64)
            where = address(places), *places.shape, address(group)
            compiled.reads_begin(address(self.told), *where, 1 + pattern.instruction.index)
            return
        for row in granules:  # none is in a row twice
            self.reading[row] += 1
        self.waited[granules, group[:, None]] = 0
        self.by[granules] = 1 + pattern.instruction.index

    def finish(self, pattern: SharedPattern, due: np.ndarray) -> None:
        """Warps (`due` [warpgroups, 4]) waited for a product."""
        assert pattern.lanes is not None
        cluster, first = self.shadow.place(pattern.lanes)
        group = (pattern.warps.astype(np.int64) - 1) // 4
        own = first[:, None] + np.arange(4)
        clocks = np.ascontiguousarray(self.shadow.order[cluster[:, None], own, own], np.int32)
        compiled = self.machine.compiled
        if compiled is not None:
            places, some = np.ascontiguousarray(pattern.granules, np.int64), np.ascontiguousarray(due, np.uint8)
            where = address(places), *places.shape, address(group)
            compiled.reads_wait(address(self.told), *where, address(some), address(clocks))
            return
        for row, warp in np.argwhere(due).tolist():
            self.waited[pattern.granules[row], group[row], warp] = clocks[row, warp]

    def landed(self, pattern: SharedPattern, rows: np.ndarray | None) -> None:
        """The first warp of warpgroups (`rows`; None: all) waited."""
        granules, compiled = pattern.granules if rows is None else pattern.granules[rows], self.machine.compiled
        if compiled is not None:
            places = np.ascontiguousarray(granules, np.int64)
            compiled.reads_end(address(self.told), address(places), places.size)
            return
        for row in granules:
            self.reading[row] -= 1

    def written(self, pattern: SharedPattern, lanes: np.ndarray, addresses: np.ndarray, known: np.ndarray) -> None:
        """A write: nothing may read the bytes now, and it has to know of a wait of each warpgroup that has read."""
        granules = pattern.granules
        if self.reading[pattern.where].any():
            bad = self.reading[granules] > 0
            product = self.machine.program.instructions[int(self.by[granules[bad][0]]) - 1]
            some = bad.any(axis=1)
            report_in_flight(self.machine, pattern, lanes[some], addresses[some], product)
            return
        if not self.groups:
            return  # blocks of fewer than four warps cannot run wgmma
        reads = 4 * self.groups
        if self.machine.cluster_size == 1:
            knows = known[:, :reads].reshape(-1, 1, self.groups, 4)
        else:  # those who read are the warps of the block whose memory it is
            cta = granules[:, 0] * self.machine.shared.granule // self.machine.shared.stride
            own = cta % self.machine.cluster_size * self.machine.warps_per_cta
            knows = np.take_along_axis(known, own[:, None] + np.arange(reads), 1).reshape(-1, 1, self.groups, 4)
        compiled = self.machine.compiled
        if compiled is not None:
            places, mine = np.ascontiguousarray(granules, np.int64), np.ascontiguousarray(knows, np.int32)
            if not compiled.unwaited(address(self.told), address(places), *places.shape, address(mine)):
                return
        seen = self.waited[granules]
        unknown = (seen > 0).any(axis=3) & ~((seen > 0) & (seen <= knows)).any(axis=3)
        if unknown.any():
            row, k, group = (int(v) for v in np.argwhere(unknown)[0])
            other = self.machine.program.instructions[int(self.by[granules[row, k]]) - 1]
            some = unknown.any(axis=(1, 2))
            self.shadow.report_race(
                pattern, lanes[some], int(addresses[row]), pattern.kind, other, "tensor", 4 * group
            )  # fmt: skip
