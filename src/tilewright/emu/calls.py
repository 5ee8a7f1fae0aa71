"""Calls of functions: arguments, the registers a caller keeps, the way back, and where local variables lie.

A lane has one area that holds the arguments and results of every function, and a stack of frames. A frame keeps what
lives across its call; registers of different functions may share rows, as callers and callees never run at once in
one lane.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from .link import Routine, stack_bytes

if TYPE_CHECKING:
    from .machine import Machine
    from .ptx import Instruction

DEEPEST = 512
"""Calls within calls; a kernel that gets deeper has no end to its recursion, or needs another stack."""


@dataclass
class Site:
    """One call in the program."""

    instruction: Instruction
    caller: Routine
    resume: int
    """Block after the call."""
    kept: dict[int, list[int]]
    """Width -> rows of the registers that live across the call."""
    arguments: list[tuple[int, int]]
    results: list[tuple[int, int]]
    frames: dict[int, dict[int, np.ndarray]] = field(default_factory=dict)
    """Depth -> width (-1: the caller's own area) -> what is kept, one column a lane."""


class CallStack:
    """The calls that the lanes of one batch are in."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.sites: list[Site] = []
        self.depth = np.zeros(machine.lanes, np.int64)
        self.places: list[np.ndarray] = []
        """Depth -> number of the site that each lane called from ..."""
        self.bases: list[np.ndarray] = []
        """... and where the local variables of its function begin."""
        self.area = np.zeros((machine.lanes, max(machine.program.area_bytes, 16)), np.uint8)
        self.bottom = machine.program.routines[-1].local_bytes
        self.top = np.full(machine.lanes, self.bottom, np.int64)
        """Where those of the running function end."""
        self.base = np.zeros(machine.lanes, np.uint64)
        """Where in its local memory the local variables of a lane's function begin."""
        self.room = machine.program.local_bytes - stack_bytes(machine.program.routines)
        """Local memory for functions that do not call themselves."""
        self.left = np.zeros(machine.lanes, np.uint64)
        """Where those of the last function ended that has returned: the next function's lie after them, where there is
        room, so that a pointer to what is gone does not find something else there."""
        self.addresses: dict[tuple[str, int], np.ndarray] = {}
        """(local variable of a function, offset) -> its address for each lane inside that function."""

    def reset(self) -> None:
        """A new batch."""
        self.depth[:] = 0
        self.base[:] = self.left[:] = 0
        self.top[:] = self.bottom

    def address(self, name: str, offset: int) -> np.ndarray:
        """The row of addresses of a function's local variable."""
        return self.addresses.setdefault((name, offset), np.zeros(self.machine.lanes, np.uint64))

    def _settle(self, routine: Routine, lanes: np.ndarray) -> None:
        for (name, offset), row in self.addresses.items():
            if name in routine.local:
                row[lanes] = self.base[lanes] + np.uint64(routine.local[name] + offset)

    def enter(self, site: Site, number: int, lanes: np.ndarray, routine: Routine) -> np.ndarray:
        """The lanes go into a function; those for which there is room, as the rest are reported and stay."""
        machine = self.machine
        top = self.base[lanes] + np.uint64(site.caller.local_bytes + routine.local_bytes)
        full = (self.depth[lanes] >= DEEPEST) | (top > machine.local.bytes)
        if full.any():
            machine.report(
                "stack_overflow",
                f"{int(self.depth[lanes][full][0])} calls within calls, and {int(top[full][0])} bytes of local memory "
                f"where a thread has {machine.local.bytes}",
                site.instruction, lanes[full], None,
            )  # fmt: skip
            lanes = lanes[~full]
        for depth in np.unique(self.depth[lanes]).tolist():
            group = lanes[self.depth[lanes] == depth]
            while len(self.places) <= depth:
                self.places.append(np.zeros(machine.lanes, np.int64))
                self.bases.append(np.zeros(machine.lanes, np.uint64))
            self.places[depth][group], self.bases[depth][group] = number, self.base[group]
            if depth not in site.frames:
                site.frames[depth] = {
                    width: np.empty((len(rows), machine.lanes), machine.banks[width].dtype)
                    for width, rows in site.kept.items()
                }
                low, high = site.caller.area if site.caller.recursive else (0, 0)
                site.frames[depth][-1] = np.empty((high - low, machine.lanes), np.uint8)
            frame = site.frames[depth]
            for width, rows in site.kept.items():
                frame[width][:, group] = machine.banks[width][np.ix_(rows, group)]
            if site.caller.recursive:
                low, high = site.caller.area
                frame[-1][:, group] = self.area[group, low:high].T
        given = [self.area[lanes, start : start + size] for start, size in site.arguments]
        for values, (start, size) in zip(given, routine.parameters, strict=True):
            self.area[lanes, start : start + size] = values[:, :size]
        low, size = self.base[lanes] + np.uint64(site.caller.local_bytes), np.uint64(routine.local_bytes)
        after = np.maximum(low, self.left[lanes])
        self.base[lanes] = low = np.where(after + np.uint64(routine.deepest) <= self.room, after, low)
        self.top[lanes] = low + size
        if size:
            machine.local.forget(lanes, low, routine.local_bytes)
        self.depth[lanes] += 1
        self._settle(routine, lanes)
        return lanes

    def leave(self, routine: Routine, lanes: np.ndarray) -> np.ndarray:
        """The lanes come back from `routine`; the block that each goes on at."""
        machine = self.machine
        targets = np.zeros(len(lanes), np.int32)
        if routine.local_bytes:
            machine.local.lose(lanes, self.base[lanes], routine.local_bytes)
            self.left[lanes] = self.top[lanes]
        self.depth[lanes] -= 1
        depths = self.depth[lanes]
        for depth in np.unique(depths).tolist():
            numbers = self.places[depth][lanes]
            for number in np.unique(numbers[depths == depth]).tolist():
                chosen = (depths == depth) & (numbers == number)
                group, site = lanes[chosen], self.sites[number]
                frame = site.frames[depth]
                results = [self.area[group, start : start + size] for start, size in routine.returns]
                if site.caller.recursive:
                    low, high = site.caller.area
                    self.area[group, low:high] = frame[-1][:, group].T
                for values, (start, size) in zip(results, site.results, strict=False):
                    self.area[group, start : start + size] = values[:, :size]
                for width, rows in site.kept.items():
                    machine.banks[width][np.ix_(rows, group)] = frame[width][:, group]
                self.base[group] = self.bases[depth][group]
                self.top[group] = self.base[group] + np.uint64(site.caller.local_bytes)
                self._settle(site.caller, group)
                targets[chosen] = site.resume
        return targets
