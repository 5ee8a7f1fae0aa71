"""Updates that are lost although all stores are ordered: a place is read, another warp changes it, and what was read
is changed and stored. A lock that is taken between the load and the store comes too late for the load.

Only strong loads and stores are followed: plain ones race (global_races.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .global_words import Role, own_load

if TYPE_CHECKING:
    from .global_port import GlobalPattern
    from .global_races import GlobalRaces
    from .global_rows import Rows
    from .global_tracks import Track


class LostUpdates:
    """Judges the updates of one launch by the changes since their loads."""

    def __init__(self, races: GlobalRaces) -> None:
        self.races, machine = races, races.machine
        program = machine.program
        self.load_of = {
            index: load.index
            for index, role in enumerate(races.roles)
            if role is not None and role.updates and (load := own_load(program, program.instructions[index]))
        }
        """Store -> the load whose value it changes."""
        loads = set(self.load_of.values())
        self.seen = {load: np.zeros((2, machine.lanes), np.int64) for load in loads}
        """Load -> by lane of the batch the address that it read last, and the changes of it until then."""

    @staticmethod
    def needed(roles: list[Role]) -> bool:
        """Return whether a kernel has such updates."""
        return any(role.updates for role in roles)

    def start(self) -> None:
        """A new batch of blocks."""
        for table in self.seen.values():
            table[:] = 0

    def note(self, role: Role, index: int, pattern: GlobalPattern | Rows, start: int, track: Track) -> None:
        """Instruction `index` accesses the pattern's places in a buffer."""
        if not role.changes and index not in self.seen:
            return
        cells, lanes = self.races.cells(pattern, start, track)
        if track.changes is None:
            track.changes = np.zeros((3, track.granules(self.races.granule)), np.int64)
        count, by_lane, by = track.changes
        first = cells[:, 0]
        places = track.buffer.start + first * self.races.granule
        if index in self.seen:
            self.seen[index][:, lanes] = places, count[first]
        if not role.changes:
            return
        ids = lanes + self.races.first_lane
        if index in self.load_of:
            place, until = self.seen[self.load_of[index]][:, lanes]
            bad = (place == places) & (until != count[first]) & (by_lane[first] // 32 != ids // 32)
            if bad.any():
                row = int(np.flatnonzero(bad)[0])
                self._report(index, lanes[bad], int(places[row]), int(by_lane[first[row]]), int(by[first[row]]))
        count[cells] += 1
        by_lane[cells], by[cells] = ids[:, None], index

    def _report(self, index: int, lanes: np.ndarray, at: int, other_lane: int, other: int) -> None:
        machine = self.races.machine
        writer = machine.program.instructions[other]
        cta, thread = divmod(other_lane, machine.warps_per_cta * 32)
        block = machine.block_at(cta)
        machine.report(
            "lost_update",
            f"stores at {at:#x}, {machine.memory.describe(at)}, what it read there and changed, and block {block} has "
            "stored there between the two",
            machine.program.instructions[index], lanes, at,
            {
                "other_access": machine.reporter.sources.where(writer),
                "other_thread": f"block {block}, warp {thread // 32}, lane {thread % 32}",
                "missing": "the load belongs into the lock too: after it is taken, and before the store",
            },
            writer,
        )  # fmt: skip
