"""Bulk copies and global memory, within a block (or cluster): bytes in flight, and the proxy that reads them.

A bulk store writes until its thread has waited for the whole of it (cp.async.bulk.wait_group, not .read), a bulk load
reads until the phase of its mbarrier is complete, and to those alone who have seen that. Before and after, a copy is an
access of its thread as unit_races.py judges them. What ordinary stores wrote a bulk load sees after a
fence.proxy.async.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .global_words import READ, STRONG, WRITE
from .ptx import Instruction

if TYPE_CHECKING:
    from .global_races import GlobalRaces
    from .global_rows import Rows
    from .global_tracks import Track
    from .mbarriers import Mbarrier

KEPT = 1024
"""Loads that are kept of each buffer."""


@dataclass(eq=False)
class Flight:
    """A bulk copy that may still touch rows of a buffer."""

    track: Track
    instruction: Instruction
    rows: Rows
    barrier: Mbarrier | None
    """A load's."""
    phase: int | None = None
    """Phases of it that one must know to be complete; None while the copy is under way."""

    def meets(self, starts: np.ndarray, nbytes: int) -> np.ndarray:
        """Return which accesses of so many bytes touch its rows."""
        rows = self.rows
        hit = np.zeros(len(starts), bool)
        near = (starts < int(rows.starts.max()) + rows.nbytes) & (starts + nbytes > int(rows.starts.min()))
        if near.any():
            some = starts[near][:, None]
            hit[near] = ((some < rows.starts + rows.nbytes) & (some + nbytes > rows.starts)).any(axis=1)
        return hit


class BulkGlobal:
    """The answers to what UnitRaces asks about bulk copies, which are kept by buffers."""

    def __init__(self, races: GlobalRaces) -> None:
        self.races, self.machine = races, races.machine
        self.stores: dict[Track, list[Flight]] = {}
        self.loads: dict[Track, deque[Flight]] = {}

    def reset(self) -> None:
        """A new batch of blocks starts."""
        self.stores.clear()
        self.loads.clear()

    def begin(self, track: Track, instruction: Instruction, rows: Rows, barrier: Mbarrier | None) -> Flight:
        """A bulk copy starts."""
        flight = Flight(track, instruction, rows, barrier)
        if barrier is None:
            self.stores.setdefault(track, []).append(flight)
        else:
            self.loads.setdefault(track, deque(maxlen=KEPT)).append(flight)
        return flight

    def ended(self, flight: Flight) -> None:
        """A bulk store has written; a bulk load's bytes have come with the phase of its mbarrier that is open."""
        if flight.barrier is not None:
            flight.phase = flight.barrier.completed + 1
            return
        flights = self.stores.get(flight.track, [])
        if flight in flights:
            flights.remove(flight)

    def check(
        self, track: Track, kinds: tuple[int, ...], index: int, starts: np.ndarray, nbytes: int, lanes: np.ndarray
    ) -> None:
        """Other accesses to a buffer, of any kinds."""
        strong = not {READ, WRITE} & set(kinds)
        for flight in self.stores.get(track, ()):
            if strong and flight.instruction.opcode.startswith("cp.reduce"):
                continue
            if (bad := self._meets(flight, starts, nbytes, lanes)).any():
                self._report(
                    "bulk_not_waited", index, starts, lanes, bad, flight,
                    "which a bulk store still writes: its thread has not run cp.async.bulk.wait_group, without .read",
                )  # fmt: skip
                break
        for flight in self.loads.get(track, ()) if {WRITE, STRONG} & set(kinds) else ():
            bad = self._meets(flight, starts, nbytes, lanes)
            if bad.any() and (bad := bad & self._unseen(flight, lanes)).any():
                self._report(
                    "async_copy_not_waited", index, starts, lanes, bad, flight,
                    "which a bulk copy still reads: this warp has not seen its mbarrier's phase complete",
                )  # fmt: skip
                break

    def _meets(self, flight: Flight, starts: np.ndarray, nbytes: int, lanes: np.ndarray) -> np.ndarray:
        width = self.races.width
        mine = lanes // width == int(flight.rows.lanes[0]) // width
        return mine & flight.meets(starts, nbytes) if mine.any() else mine

    def _unseen(self, flight: Flight, lanes: np.ndarray) -> np.ndarray:
        if flight.phase is None or flight.barrier is None:
            return np.ones(len(lanes), bool)
        return self.machine.shadow.unseen(flight.barrier, flight.phase, lanes)

    def _report(
        self, kind: str, index: int, starts: np.ndarray, lanes: np.ndarray, bad: np.ndarray, flight: Flight, why: str
    ) -> None:
        machine = self.machine
        instruction, at = machine.program.instructions[index], int(starts[bad][0])
        role = self.races.roles[index]
        assert role is not None
        what = f"{role.verb(role.kinds[0])} at {at:#x}, {machine.memory.describe(at)}, {why}"
        details = {"the_copy": machine.reporter.sources.where(flight.instruction)}
        machine.report(kind, what, instruction, np.unique(lanes[bad]), at, details)

    def check_proxy(self, track: Track, instruction: Instruction, rows: Rows) -> None:
        """A bulk load starts: what ordinary stores of the batch wrote there has to be fenced."""
        tables, machine = track.inner.tables, self.machine
        if not tables or not tables[WRITE].used:
            return
        cells, lanes = self.races.cells(rows, 0, track)
        last = tables[WRITE].lane[0][cells]
        bad = (last > self.races.first_lane) & (last <= self.races.first_lane + machine.lanes)
        writers, times = last[bad] - 1 - self.races.first_lane, tables[WRITE].time[0][cells[bad]]
        by = tables[WRITE].by[0][cells[bad]]
        late = machine.shadow.not_proxied(writers, times, int(lanes[0]))
        late &= ~np.array([machine.program.instructions[one].opcode.startswith("cp.") for one in by.tolist()], bool)
        if not late.any():
            return
        first = int(np.flatnonzero(late)[0])
        at = track.buffer.start + int(cells[bad][first]) * self.races.granule
        writer = int(writers[first])
        thread, block = int(machine.thread_of_lane[writer]), int(machine.cta_of_lane[writer])
        whose = f"thread {thread}"
        if block != int(machine.cta_of_lane[lanes[0]]):
            whose += f" of block {machine.block_at(machine.first_cta + block)}"
        machine.report(
            "proxy_fence_missing",
            f"a bulk copy reads {at:#x}, {machine.memory.describe(at)}, through the async proxy, and {whose}, "
            "which wrote it, has run no fence.proxy.async since",
            instruction, lanes[:1], at,
            {"the_write": machine.reporter.sources.where(machine.program.instructions[int(by[first])])},
        )  # fmt: skip
