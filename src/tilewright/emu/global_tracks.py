"""The records that the checker of races between blocks keeps of each buffer (global_races.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .memory import Buffer
from .ptx import Instruction
from .unit_races import Inner

if TYPE_CHECKING:
    from .global_races import GlobalRaces


class Table:
    """A table by granule: the lanes (of the grid, plus 1) that did one kind of access last, of so many different
    units."""

    def __init__(self, granules: int, slots: int) -> None:
        self.lane = np.zeros((slots, granules), np.int32)
        self.by = np.zeros((slots, granules), np.int32)
        """The instruction."""
        self.clock = np.zeros((slots, granules), np.int32)
        self.used = False

    def put(self, cells: np.ndarray, ids: np.ndarray, low: np.ndarray, width: int, index: int, clock: Any) -> None:
        """Lanes `ids` of units that begin at the lanes `low`; all [accesses, 1], cells [accesses, granules]."""
        if len(self.lane) > 1 and self.used:
            self._shift(cells, low, width)
        self.used = True
        self.lane[0][cells], self.by[0][cells], self.clock[0][cells] = ids, index, clock
        if len(self.lane) > 1:  # a unit that met another one here, in this very step
            rest = ~within(self.lane[0][cells], low, width)
            if rest.any():
                some = cells[rest]
                self.lane[1][some], self.by[1][some] = np.broadcast_to(ids, cells.shape)[rest], index
                self.clock[1][some] = np.broadcast_to(clock, cells.shape)[rest]

    def _shift(self, cells: np.ndarray, low: np.ndarray, width: int) -> None:
        last = self.lane[0][cells]
        other = (last != 0) & ~within(last, low, width)
        if other.any():
            some = cells[other]
            for part in (self.lane, self.by, self.clock):
                part[1][some] = part[0][some]


def within(lanes: np.ndarray, low: np.ndarray, width: int) -> np.ndarray:
    """Return which lanes are of the unit that begins at `low`."""
    return (lanes - low).view(np.uint32) < width


class Track:
    """A record of what was done to one buffer in this launch."""

    def __init__(self, launch: GlobalRaces, buffer: Buffer) -> None:
        self.launch, self.buffer = launch, buffer
        self.kinds: set[int] = set()
        self.active = False
        self.seen: dict[tuple[int, Any], set[int]] = {}
        """(instruction, pattern) -> first addresses, in this batch and since blocks last told each other anything."""
        self.age = -1
        self.noted: list[tuple[int, Any, int, int, np.ndarray | None]] = []
        """(instruction, pattern, address, first lane of the batch, clocks) while it is not active."""
        self.patterns: set[int] = set()
        self.owner: np.ndarray | None = None
        """Of each granule a lane of the only unit that has touched it, plus 1; until two units meet at one."""
        self.tables: list[Table] = []
        self.cached = np.zeros((2, 0), np.int32)
        """Of each granule who read it before another unit wrote it: lane plus 1, and clock."""
        self.owners = np.zeros(2, np.int64)
        """Where `owner` and the inner one lie, as native/access.c has it; 0: they are not kept."""
        self.inner = Inner()
        self.changed: np.ndarray | None = None
        """Of each granule the instruction that wrote it, plus 1, in kernels with fixed loads."""
        self.changes: np.ndarray | None = None
        """Of each granule how often it was changed, and by which lane and instruction last, in kernels with updates."""

    def granules(self, size: int) -> int:
        """Return how many of them the buffer has, and a few more for what begins inside of it."""
        return -(-self.buffer.bytes // size) + 16


@dataclass
class Clash:
    """Accesses of instruction `index` in one step that race with an earlier one, or with each other (`at_once`)."""

    index: int
    lanes: np.ndarray
    address: int
    other_lane: int
    other: Instruction
    other_kind: int
    told: bool
    """A fence would have ordered them."""
    rows: np.ndarray
    """Of the step's accesses."""
    at_once: bool = False
    inside: bool = False
    """Both are of one unit."""
    name: str = ""
    """What it is, where that does not follow from the kinds of access."""
    apart: bool = False
    """Another warp of the unit has been told."""
