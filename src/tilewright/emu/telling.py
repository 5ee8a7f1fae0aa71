"""What blocks know of one another: by flags, tickets and locks in global memory, and by the fences before them.

Vector clocks of units (blocks or clusters). A strong write or atomic hands on what its unit knew at its last
__threadfence() (or, if it is a release, knows now); a strong read or atomic of the place takes that over. Of the
reader no fence is asked: an order that only its absence breaks is not seen. Beside what is known stands what would be,
had every strong write been a release: a race that this alone orders lacks a fence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from .global_words import Role

if TYPE_CHECKING:
    from .machine import Machine

MOST_UNITS = 8192
MOST_FLAGS = 1 << 24
"""Flags times units: 64 MB for each of two tables."""
EVERYTHING = np.iinfo(np.int32).max


@dataclass(eq=False)
class Flag:
    """One place by which blocks tell each other something: what one knows who reads it, and would know."""

    known: np.ndarray
    heard: np.ndarray
    version: int = 0
    read: dict[int, int] = field(default_factory=dict)
    """Unit of the batch -> the version it has seen."""


class Telling:
    """The knowledge of the units of one launch."""

    def __init__(self, machine: Machine, units: int, width: int) -> None:
        self.machine, self.units, self.width = machine, units, width
        self.flags: dict[int, Flag] = {}
        self.age = 0
        """Changes whenever somebody learns or tells something."""
        self.first = 0
        """The first unit of the batch."""
        count = machine.lanes // width
        self.known = np.zeros((count, units), np.int32)
        """What each unit of the batch knows of every unit: up to which clock its accesses come before."""
        self.heard = np.zeros_like(self.known)
        """The same, if no fence were missing."""
        self.fenced = np.zeros_like(self.known)
        """What each knew at its last fence, itself included."""
        self.clock = np.ones(count, np.int32)
        self.overflowed = False

    @staticmethod
    def needed(roles: Sequence[Role | None]) -> bool:
        """Whether any instruction can learn of what another block did."""
        return any(role is not None and role.listens for role in roles)

    def start(self, first: int) -> None:
        """A new batch, whose units know nothing of others."""
        self.first = first
        for table in (self.known, self.heard, self.fenced):
            table[:] = 0
        self.clock = np.ones_like(self.clock)
        for flag in self.flags.values():
            flag.read.clear()
        self.age += 1

    def _tick(self, units: np.ndarray) -> None:
        self.clock = self.clock.copy()  # the old one may be on record
        self.clock[units] += 1
        self.age += 1

    def fence(self, lanes: np.ndarray) -> None:
        """Lanes run a fence that reaches other blocks."""
        units = np.unique(lanes // self.width)
        self.fenced[units] = self.known[units]
        self.fenced[units, units + self.first] = self.clock[units]
        self._tick(units)

    def unknown(self, words: np.ndarray) -> list[int]:
        """The places among these by which nobody has told anything yet."""
        return [word for word in np.unique(words).tolist() if word not in self.flags]

    def flag(self, word: int) -> Flag:
        """The flag at a place."""
        flag = self.flags.get(word)
        if flag is None:
            flag = self.flags[word] = Flag(np.zeros(self.units, np.int32), np.zeros(self.units, np.int32))
            self.overflowed |= len(self.flags) * self.units > MOST_FLAGS
        return flag

    def told(self, word: int, unit: int) -> None:
        """A plain store of a unit has told something by a place: what its last fence covers."""
        flag, here = self.flag(word), unit - self.first
        flag.version += 1
        if 0 <= here < len(self.known):
            flag.known, flag.heard = self.fenced[here].copy(), self.heard[here].copy()
            flag.heard[unit] = self.clock[here]
        else:
            flag.known[unit] = flag.heard[unit] = EVERYTHING

    def act(self, role: Role, lanes: np.ndarray, words: np.ndarray, tells: bool = True) -> None:
        """Lanes listen at places, and tell (unless not `tells`), one after another."""
        units = lanes // self.width
        _, first = np.unique(words.astype(np.int64) * len(self.known) + units, return_index=True)
        first.sort()
        changed = False
        for unit, word in zip(units[first].tolist(), words[first].tolist(), strict=True):
            flag = self.flag(word)
            if role.listens and flag.read.get(unit) != flag.version:
                np.maximum(self.known[unit], flag.known, out=self.known[unit])
                np.maximum(self.heard[unit], flag.heard, out=self.heard[unit])
                flag.read[unit] = flag.version
                changed = True
            if tells:
                self._tell(flag, unit, role)
        if tells:
            self._tick(np.unique(units))
        elif changed:
            self.age += 1

    def _tell(self, flag: Flag, unit: int, role: Role) -> None:
        """A unit of the batch writes a flag: over what was told there, or, by an atomic, beside it."""
        if role.head not in ("atom", "red", "cp.reduce"):
            flag.known[:] = flag.heard[:] = 0
        np.maximum(flag.known, self.known[unit] if role.releases else self.fenced[unit], out=flag.known)
        np.maximum(flag.heard, self.heard[unit], out=flag.heard)
        me = unit + self.first
        flag.heard[me] = self.clock[unit]
        if role.releases:
            flag.known[me] = self.clock[unit]
        flag.version += 1

    def has_listened(self, word: int, unit: int) -> bool:
        """Whether a unit of the batch has read a place by an atomic or a strong load."""
        return word in self.flags and unit - self.first in self.flags[word].read
