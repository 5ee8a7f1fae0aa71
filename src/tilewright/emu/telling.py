"""The knowledge that blocks have of one another: by flags, tickets and locks in global memory, and by the fences before
them.

Vector clocks of units (blocks or clusters). A strong write or atomic hands on what its unit knew at its last
__threadfence() (or, if it is a release, knows now); a strong read or atomic of the place takes that over. Of the
reader no fence is asked: an order that only its absence breaks is not seen. Beside what is known stands what would be,
had every strong write been a release: a race that this alone orders lacks a fence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from .compiled import address
from .global_words import Role

if TYPE_CHECKING:
    from .machine import Machine

MOST_UNITS = 8192
MOST_FLAGS = 1 << 24
"""Flags times units: 64 MB for each of two tables."""
FLAGS = 16
"""Room for so many at first."""
EVERYTHING = np.iinfo(np.int32).max


class Telling:
    """The knowledge of the units of one launch."""

    def __init__(self, machine: Machine, units: int, width: int) -> None:
        self.machine, self.units, self.width = machine, units, width
        self.flags: dict[int, int] = {}
        """Place by which blocks tell each other something -> its row of the tables below."""
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
        self.flag_known = np.zeros((FLAGS, units), np.int32)
        """Of each flag what one knows who reads it ..."""
        self.flag_heard = np.zeros((FLAGS, units), np.int32)
        """... and would know."""
        self.version = np.zeros(FLAGS, np.int64)
        self.read = np.full((FLAGS, count), -1, np.int64)
        """The version that each unit of the batch has seen; -1: none."""
        self.overflowed = False
        self.quiet = True
        """Nobody has run a fence: `known`, `fenced` and `flag_known` are all zeros."""

    def _make_room(self) -> None:
        """Room for twice as many flags."""
        self.flag_known, self.flag_heard = (
            np.concatenate([table, np.zeros_like(table)]) for table in (self.flag_known, self.flag_heard)
        )
        self.version = np.concatenate([self.version, np.zeros_like(self.version)])
        self.read = np.concatenate([self.read, np.full_like(self.read, -1)])

    @staticmethod
    def needed(roles: Sequence[Role | None]) -> bool:
        """Return whether any instruction can learn of what another block did."""
        return any(role is not None and role.listens for role in roles)

    def start(self, first: int) -> None:
        """A new batch, whose units know nothing of others."""
        self.first = first
        for table in (self.known, self.heard, self.fenced):
            table[:] = 0
        self.clock = np.ones_like(self.clock)
        self.read[:] = -1
        self.age += 1

    def _tick(self, units: np.ndarray) -> None:
        self.clock = self.clock.copy()  # the old one may be on record
        self.clock[units] += 1
        self.age += 1

    def fence(self, lanes: np.ndarray) -> None:
        """Lanes run a fence that reaches other blocks."""
        self.quiet = False
        units = np.unique(lanes // self.width)
        self.fenced[units] = self.known[units]
        self.fenced[units, units + self.first] = self.clock[units]
        self._tick(units)

    def unknown(self, words: np.ndarray) -> list[int]:
        """The places among these by which nobody has told anything yet."""
        return [word for word in np.unique(words).tolist() if word not in self.flags]

    def flag(self, word: int) -> int:
        """The row of the flag at a place."""
        row = self.flags.get(word)
        if row is None:
            if len(self.flags) == len(self.version):
                self._make_room()
            row = self.flags[word] = len(self.flags)
            self.overflowed |= len(self.flags) * self.units > MOST_FLAGS
        return row

    def told(self, word: int, unit: int) -> None:
        """A plain store of a unit has told something by a place: what its last fence covers."""
        self.quiet = False
        flag, here = self.flag(word), unit - self.first
        self.version[flag] += 1
        if 0 <= here < len(self.known):
            self.flag_known[flag], self.flag_heard[flag] = self.fenced[here], self.heard[here]
            self.flag_heard[flag, unit] = self.clock[here]
        else:
            self.flag_known[flag, unit] = self.flag_heard[flag, unit] = EVERYTHING

    def act(self, role: Role, lanes: np.ndarray, words: np.ndarray, tells: bool = True) -> None:
        """Lanes listen at places, and tell (unless not `tells`), one after another."""
        units = lanes // self.width
        self.quiet &= not role.releases
        first, _ = self._firsts(words * len(self.known) + units)
        words, units = words[first], units[first]
        places, which = self._firsts(words)
        flags = np.array([self.flag(word) for word in words[places].tolist()], np.int64)[which]
        if self._act(role, units.astype(np.int64), flags, tells):
            self.age += not tells
        if tells:
            self._tick(np.unique(units))

    def _firsts(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return where each different key is first, in that order, and which of them each key is."""
        if self.machine.compiled is not None:
            return self.machine.compiled.firsts(np.ascontiguousarray(keys, np.int64))
        _, first, which = np.unique(keys, return_index=True, return_inverse=True)
        order = np.argsort(first)
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        return first[order], rank[which]

    def _act(self, role: Role, units: np.ndarray, flags: np.ndarray, tells: bool) -> bool:
        """Each unit at its flag, one after another; whether somebody learned something."""
        atomic, compiled = role.head in ("atom", "red", "cp.reduce"), self.machine.compiled
        if compiled is not None:
            tables = (self.known, self.heard, self.fenced, self.clock, self.flag_known, self.flag_heard, self.version)
            places = [address(table) for table in (*tables, self.read)]
            told = [*places, self.first, role.listens, tells, atomic, role.releases, not self.quiet]
            act = np.array([self.units, len(self.known), *told], np.int64)
            return bool(compiled.act(address(act), address(units), address(flags), len(units)))
        changed = False
        for unit, flag in zip(units.tolist(), flags.tolist(), strict=True):
            if role.listens and self.read[flag, unit] != self.version[flag]:
                if not self.quiet:
                    np.maximum(self.known[unit], self.flag_known[flag], out=self.known[unit])
                np.maximum(self.heard[unit], self.flag_heard[flag], out=self.heard[unit])
                self.read[flag, unit] = self.version[flag]
                changed = True
            if tells:
                self._tell(flag, unit, role, atomic)
        return changed

    def _tell(self, flag: int, unit: int, role: Role, atomic: bool) -> None:
        """A unit of the batch writes a flag: over what was told there, or, by an atomic, beside it."""
        known, heard, me = self.flag_known[flag], self.flag_heard[flag], unit + self.first
        if not atomic:
            known[:] = heard[:] = 0
        if not self.quiet:
            np.maximum(known, self.known[unit] if role.releases else self.fenced[unit], out=known)
        np.maximum(heard, self.heard[unit], out=heard)
        heard[me] = self.clock[unit]
        if role.releases:
            known[me] = self.clock[unit]
        self.version[flag] += 1

    def has_listened(self, word: int, unit: int) -> bool:
        """Return whether a unit of the batch has read a place by an atomic or a strong load."""
        here = unit - self.first
        return word in self.flags and 0 <= here < len(self.known) and bool(self.read[self.flags[word], here] >= 0)
