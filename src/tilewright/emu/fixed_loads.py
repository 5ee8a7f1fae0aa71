"""Loads that take what they read to stay as it is for the whole kernel: ld.global.nc, which __ldg() and
`const T *__restrict__` become, and those of surfaces. They may be moved before a store, and may find the bytes in a
cache that no store updates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .global_words import READ, Role

if TYPE_CHECKING:
    from .global_port import GlobalPattern
    from .global_races import GlobalRaces
    from .global_rows import Rows
    from .global_tracks import Track


class FixedLoads:
    """Judges the fixed loads of one launch against its own writes."""

    def __init__(self, races: GlobalRaces) -> None:
        self.races = races

    @staticmethod
    def needed(roles: list[Role]) -> bool:
        """Return whether a kernel has such loads, and writes."""
        return any(role.fixed for role in roles) and any(role.kinds != (READ,) for role in roles)

    def note(self, role: Role, index: int, pattern: GlobalPattern | Rows, start: int, track: Track) -> None:
        """Instruction `index` accesses the pattern's places in a buffer."""
        races = self.races
        if role.fixed and track.changed is not None:
            cells, lanes = races.cells(pattern, start, track)
            bad = (track.changed[cells] != 0).any(axis=1)
            if bad.any():
                self._report(index, track, cells[bad], lanes[bad])
        elif not role.fixed and role.changes:
            if track.changed is None:
                track.changed = np.zeros(track.granules(races.granule), np.int32)
            track.changed[races.cells(pattern, start, track)[0]] = index + 1

    def _report(self, index: int, track: Track, cells: np.ndarray, lanes: np.ndarray) -> None:
        machine, changed = self.races.machine, track.changed
        assert changed is not None
        cell = int(cells[0][changed[cells[0]] != 0][0])
        at = track.buffer.start + cell * self.races.granule
        writer = machine.program.instructions[int(changed[cell]) - 1]
        instruction = machine.program.instructions[index]
        head = instruction.opcode.split(".")[0]
        machine.report(
            "fixed_read",
            f"read at {at:#x}, {machine.memory.describe(at)}, by a load of what no one writes during the kernel "
            f"({'a surface' if head == 'suld' else 'ld.global.nc'}); this kernel has written it",
            instruction, lanes, at,
            {"other_access": machine.reporter.sources.where(writer)}, writer,
        )  # fmt: skip
