"""Around either checker of shared memory: writes by ordinary instructions that the asynchronous proxy reads, or writes
over.

wgmma, and bulk copies from shared memory, see such a write only if a fence.proxy.async lies between: run by the thread
that wrote; for a bulk copy the warp that starts it may also do so. Without one a bulk copy's bytes and those of the
write before it come in any order, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .compiled import address
from .shadow import Shadow
from .shared_memory import SharedPattern

if TYPE_CHECKING:
    from .machine import Machine
    from .mbarriers import Mbarrier

_CALLS = {name for name, what in vars(Shadow).items() if callable(what) and not name.startswith("_")}


class ProxyFences(Shadow):
    """Around either checker: which writes of shared memory no fence.proxy.async of their thread has followed."""

    def __init__(self, machine: Machine, inner: Shadow) -> None:
        super().__init__(machine)
        self.inner = inner
        for name in _CALLS - vars(ProxyFences).keys():  # what it has no answer to is the inner one's
            setattr(self, name, getattr(inner, name))
        self.messages = inner.messages
        granules = len(machine.shared.initialised)
        self.writer = np.full(granules, -1, np.int32)
        """Lane of the batch that wrote the granule last."""
        self.stamp = np.zeros(granules, np.int32)
        """How many fences that lane had run."""
        self.by = np.zeros(granules, np.int32)
        self.fences = np.zeros(machine.lanes, np.int32)
        self.every = np.arange(machine.lanes)
        self.time = 0
        self.when = np.zeros(granules, np.int64)
        """Time of the last write."""
        self.clock = np.zeros(granules, np.int32)
        """How far the writer's warp had come at the last write."""
        instructions, copies = machine.program.instructions, np.flatnonzero(machine.program.opcodes_begin("cp."))
        self.bulk = any("bulk" in instructions[index].opcode for index in copies.tolist())
        """Whether there are bulk copies."""
        self.wrote = False
        """Whether an ordinary instruction has written anything in this batch."""
        self.copies = machine.program.opcodes_begin("cp.async.c")
        """Which instructions are cp.async: CUTLASS and Triton multiply what it brought without a fence."""
        self.seen: dict[int, np.ndarray] = {}
        """Warp of the batch -> up to which clock it knew of each warp of its cluster at its last fence.proxy.async."""
        self.fenced_at = np.zeros(machine.lanes, np.int64)
        """Time of a lane's last fence.proxy.async."""
        self.init_fenced_at = np.zeros(machine.lanes, np.int64)
        self.fenced_meeting = np.full(machine.lanes, -1, np.int64)
        """Meetings of lanes at a lane's last fence.proxy.async of global memory."""
        self.fenced: set[SharedPattern] = set()
        """Products' reads that were right since the last write."""
        tables = self.writer, self.stamp, self.by, self.clock, self.when, self.fences
        self.told = np.array([address(table) for table in tables], np.int64)
        if not self.bulk:  # nobody asks then when it was, and how far the warp had come
            self.told[3:5] = 0

    def reset(self) -> None:
        """A new batch of blocks starts."""
        self.writer[:] = -1
        self.wrote = False
        self.fences[:] = 0
        self.time = 0
        self.fenced_at[:] = self.init_fenced_at[:] = 0
        self.fenced_meeting[:] = -1
        self.fenced.clear()
        self.seen.clear()
        self.inner.reset()

    def fence(self, *, shared: bool = True, everywhere: bool = True) -> None:
        """The active lanes run fence.proxy.async, of shared memory, of global memory or of both."""
        lanes = self.machine.lane_list()
        every = slice(None) if lanes is None else lanes
        if everywhere:
            self.fenced_meeting[every] = self.machine.meetings.time
        if not shared:
            return
        self.time += 1
        self.fences[every] += 1
        self.fenced_at[every] = self.time
        if self.bulk:
            warps = range(self.machine.lanes // 32) if lanes is None else dict.fromkeys((lanes // 32).tolist())
            self.seen.update((warp, self.inner.view(warp)) for warp in warps)

    def fence_init(self) -> None:
        """The active lanes run fence.mbarrier_init."""
        lanes = self.machine.lane_list()
        self.time += 1
        self.init_fenced_at[slice(None) if lanes is None else lanes] = self.time
        self.inner.fence_init()

    def now(self) -> int:
        """The time; it has passed after this."""
        self.time += 1
        return self.time

    def record(self, pattern: SharedPattern) -> None:
        """An access happened."""
        if pattern.kind in ("tensor", "bulk_read"):
            self._check(pattern)
        elif pattern.kind in ("bulk_write", "bulk_merge"):
            if self.wrote and (self.writer[pattern.where] >= 0).any():
                if pattern.instruction.opcode.startswith("cp."):  # st.async and red.async are of the generic proxy
                    self._check(pattern)
                self.writer[pattern.where] = -1
        elif pattern.kind in ("write", "atomic"):
            self._note(pattern, None)
        self.inner.record(pattern)

    def landed(self, pattern: SharedPattern, rows: np.ndarray | None, barrier: Mbarrier | None = None) -> None:
        """A copy landed: a write of its thread; or a product ended."""
        if pattern.kind == "copy":
            self._note(pattern, rows)
        self.inner.landed(pattern, rows, barrier)

    def _note(self, pattern: SharedPattern, rows: np.ndarray | None) -> None:
        lanes, granules = pattern.lanes, pattern.granules
        if rows is not None:
            lanes, granules = rows if lanes is None else lanes[rows], granules[rows]
        elif lanes is None:
            lanes = self.every
        assert lanes is not None
        self.time += 1
        self.wrote = True
        self.fenced.clear()
        compiled, stamps = self.machine.compiled, self.inner.stamps()
        if compiled is not None:
            places, own = np.ascontiguousarray(granules, np.int64), np.ascontiguousarray(lanes, np.int64)
            clocks = np.ascontiguousarray(stamps, np.int32)
            where = address(places), *places.shape, address(own)
            compiled.written(address(self.told), *where, address(clocks), self.time, pattern.instruction.index)
            return
        self.writer[granules] = lanes[:, None]
        self.stamp[granules] = self.fences[lanes][:, None]
        self.when[granules] = self.time
        self.clock[granules] = stamps[lanes // 32][:, None]
        self.by[granules] = pattern.instruction.index

    def _check(self, pattern: SharedPattern) -> None:
        if pattern in self.fenced:
            return
        machine, granules = self.machine, pattern.granules
        if pattern.kind == "tensor" and machine.compiled is not None:
            places = np.ascontiguousarray(granules, np.int64)
            if not machine.compiled.unfenced(address(self.told), address(places), places.size):
                self.fenced.add(pattern)
                return
        writer = self.writer[granules]
        bad = (self.stamp[granules] == self.fences[writer]) & (writer >= 0)
        assert pattern.lanes is not None
        if pattern.kind != "tensor":  # the fence may also be that of the warp that copies
            warp = int(pattern.lanes[0]) // 32
            seen = self.seen.get(warp)
            if seen is not None:
                later = self.when[granules] > self.fenced_at[warp * 32 : warp * 32 + 32].max()
                bad &= np.where(writer // 32 == warp, later, self.clock[granules] > seen[writer // 32 % len(seen)])
        if not bad.any():
            if pattern.kind == "tensor":
                self.fenced.add(pattern)
            return
        copied = self.copies[self.by[granules]] if pattern.kind == "tensor" else np.zeros_like(bad)
        row, k = (int(v) for v in np.argwhere(bad & ~copied if (bad & ~copied).any() else bad)[0])
        granule = int(granules[row, k])
        at = granule * machine.shared.granule % machine.shared.stride
        thread = int(machine.thread_of_lane[writer[row, k]])
        other = machine.program.instructions[int(self.by[granule])]
        over = pattern.kind.startswith("bulk_") and pattern.kind != "bulk_read"
        what = "wgmma reads" if pattern.kind == "tensor" else f"a bulk {'copy writes' if over else 'store reads'}"
        kind = "copy_fence_missing" if copied[row, k] else "proxy_fence_missing"
        machine.report(
            "overwrite_fence_missing" if over else kind,
            f"{what} shared address {at:#x} through the async proxy, and thread {thread}, which wrote it, has run no "
            "fence.proxy.async since",
            pattern.instruction,
            pattern.lanes[row] + np.arange(32) if pattern.kind == "tensor" else pattern.lanes, at,
            {"the_write": machine.reporter.sources.where(other)},
        )  # fmt: skip

    def aimed(self, pattern: SharedPattern, barrier: Mbarrier, lane: int) -> None:
        """A bulk copy will complete at an mbarrier, whose initialisation the asynchronous proxy has to see."""
        own, since = slice(lane // 32 * 32, lane // 32 * 32 + 32), barrier.since
        if not (
            self.init_fenced_at[barrier.lane] >= since or self.fenced_at[barrier.lane] >= since
            or self.init_fenced_at[own].max() >= since or self.fenced_at[own].max() >= since
        ):  # fmt: skip
            self.machine.report(
                "mbarrier_fence_missing",
                f"a bulk copy completes at the mbarrier at shared address {barrier.address:#x}, and no "
                "fence.mbarrier_init or fence.proxy.async follows its initialisation",
                barrier.instruction, np.array([barrier.lane]), barrier.address,
                {"the_copy": self.machine.reporter.sources.where(pattern.instruction)},
            )  # fmt: skip
        self.inner.aimed(pattern, barrier, lane)

    def not_proxied(self, writers: np.ndarray, meetings: np.ndarray, lane: int) -> np.ndarray:
        """Return which lanes, writers of global memory at so many meetings, have run no fence.proxy.async since.

        A fence by the warp of `lane`, which reads, will do.
        """
        own = self.fenced_meeting[lane // 32 * 32 : lane // 32 * 32 + 32].max()
        return np.maximum(self.fenced_meeting[writers], own) < meetings
