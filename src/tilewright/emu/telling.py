"""The knowledge that blocks have of one another: by flags, tickets and locks in global memory, and by the fences before
them.

Vector clocks of units (blocks or clusters). A strong write or atomic hands on what its unit knew at its last
__threadfence() (or, if it is a release, knows now); a strong read or atomic of the place takes that over. What the
reader's own fences cover of it is kept apart. Beside what is known stands what would be, had every strong write been a
release: a race that this alone orders lacks a fence.

What a warp tells of its own unit is what it comes after, by the clocks of shared memory (clocks.py): where no barrier
lies between, it says nothing of the other warps. What a warp hears the others know after a barrier. In large grids,
and where warps have no such clocks, a unit is taken as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .compiled import address
from .global_words import Role

if TYPE_CHECKING:
    from .machine import Machine

MOST_UNITS = 8192
MOST_WARPS = 4096
"""Of a grid whose warps are told apart."""
MOST_FLAGS = 1 << 24
"""Flags times columns: 64 MB for each of two tables."""
FLAGS = 16
"""Room for so many at first."""
EVERYTHING = np.iinfo(np.int32).max
MOST_NEWS = 64
"""Of a unit; of more, the oldest are taken to be known to all of its warps."""


@dataclass(frozen=True, slots=True)
class News:
    """What one warp of a unit has heard, and others may not know yet."""

    warp: int
    clock: int
    """The warp's own clock then: who knows of that knows the news."""
    rows: np.ndarray
    """What is known with it and what would be: [2, columns]."""


class Telling:
    """The knowledge of the units of one launch."""

    def __init__(self, machine: Machine, units: int, width: int) -> None:
        self.machine, self.width = machine, width
        apart = machine.shadow.messages is not None and units * width <= 32 * MOST_WARPS
        self.grain = 32 if apart else width
        """Lanes whose accesses one column stands for: those of a warp, or of a unit."""
        self.parts = width // self.grain
        """Columns of a unit."""
        self.columns = units * self.parts
        self.flags: dict[int, int] = {}
        """Place by which blocks tell each other something -> its row of the tables below."""
        self.age = 0
        """Changes whenever somebody learns or tells something, or steps on."""
        self.stamps: np.ndarray | None = None
        self.first = 0
        """The first unit of the batch."""
        count = machine.lanes // width
        self.known = np.zeros((count, self.columns), np.int32)
        """What each unit of the batch knows of every column: up to which clock its accesses come before."""
        self.heard = np.zeros_like(self.known)
        """The same, if no fence were missing."""
        self.fenced = np.zeros_like(self.known)
        """What each knew at its last fence, itself included."""
        self.taken = np.zeros_like(self.known)
        """What each knew at its last fence or acquire: older lines of its first-level cache are gone."""
        self.fence_clock = np.zeros(count * self.parts, np.int32)
        """The clock of each column of the batch at its unit's last fence or acquire."""
        self.listened = np.full(machine.lanes // 32, -1, np.int32)
        """The clock of each warp of the batch when it listened last, where warps are told apart."""
        self.compares = False
        """Whether anybody asks for `compared`."""
        self.compared = np.zeros_like(self.known)
        """What would be known by flags whose value was compared with something, if no fence were missing."""
        self.loosely = np.zeros_like(self.known)
        """What each unit knows by flags that it read by what says that it is relaxed."""
        self.clock = np.ones(count, np.int32)
        """Of each unit, where it is one column."""
        self.flag_known = np.zeros((FLAGS, self.columns), np.int32)
        """Of each flag what one knows who reads it ..."""
        self.flag_heard = np.zeros((FLAGS, self.columns), np.int32)
        """... and would know."""
        self.version = np.zeros(FLAGS, np.int64)
        self.read = np.full((FLAGS, count * self.parts), -1, np.int64)
        """The version that each column of the batch has seen; -1: none."""
        self.news: dict[int, list[News]] = {}
        """Of units of the batch; `before` has what all their warps know without them."""
        self.before: dict[int, np.ndarray] = {}
        self.stored_at = np.full(machine.lanes, -1, np.int64)
        """When each lane of the batch last ran a plain store, by the meetings ..."""
        self.stored_clock = np.zeros(machine.lanes, np.int32)
        """... and by its warp's clock, where warps are told apart."""
        self.stored = np.zeros(machine.lanes // 32, bool)
        """Which warps have since their lanes came together last."""
        self.alone: dict[tuple[int, int], tuple[np.ndarray, int]] = {}
        """(column, clock) -> lanes whose stores then another lane has told of without having met them, and up to which
        clock it has told."""
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
        for table in (self.known, self.heard, self.fenced, self.taken, self.fence_clock, self.compared, self.loosely):
            table[:] = 0
        self.clock = np.ones_like(self.clock)
        self.news.clear()
        self.before.clear()
        self.read[:] = self.listened[:] = self.stored_at[:] = -1
        self.stored[:] = False
        self.age += 1

    @property
    def clocks(self) -> np.ndarray:
        """The clock of each column of the batch now; this array does not change any more."""
        return self.clock if self.parts == 1 else self.machine.shadow.stamps()

    def moment(self) -> int:
        """The age, now."""
        if self.parts > 1 and self.stamps is not (stamps := self.machine.shadow.stamps()):
            self.stamps = stamps
            self.age += 1
        return self.age

    def _own(self, grain: int) -> np.ndarray:
        """Up to which clock the accesses of each column of its unit come before what a grain of the batch does next."""
        return self.clock[grain : grain + 1] if self.parts == 1 else self.machine.shadow.view(grain)

    def _columns(self, unit: int) -> slice:
        """The columns of a unit of the batch."""
        first = (self.first + unit) * self.parts
        return slice(first, first + self.parts)

    def _tick(self, units: np.ndarray) -> None:
        """What units do from now on is not what they have told. (Warps step on by themselves: messages.py.)"""
        self.clock = self.clock.copy()  # the old one may be on record
        self.clock[units] += 1
        self.age += 1

    def fence(self, lanes: np.ndarray) -> None:
        """Lanes run a fence that reaches other blocks."""
        self.quiet = False
        grains = np.unique(lanes // self.grain)
        units = np.unique(grains // self.parts)
        every = (units + self.first)[:, None] * self.parts + np.arange(self.parts)
        self._take(units)
        before = self.fenced[units[:, None], every]
        self.fenced[units] = self.known[units]
        self.fenced[units[:, None], every] = before if self.parts > 1 else self.clock[units][:, None]
        for grain in grains.tolist() if self.parts > 1 else ():
            covered = self.fenced[grain // self.parts, self._columns(grain // self.parts)]
            np.maximum(covered, self._own(grain), out=covered)
        self._tick(units)

    def take(self, lanes: np.ndarray) -> None:
        """Lanes run a fence for what they read from now on, alone."""
        self._take(np.unique(lanes // self.width))
        self.age += 1

    def _take(self, units: np.ndarray) -> None:
        """Units make sure that what they read from now on is as new as what they know."""
        self.taken[units] = self.known[units]
        columns = (units[:, None] * self.parts + np.arange(self.parts)).reshape(-1)
        self.fence_clock[columns] = self.clocks[columns]

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
            self.overflowed |= len(self.flags) * self.columns > MOST_FLAGS
        return row

    def told(self, word: int, column: int, clock: int) -> None:
        """A plain store of a column at a clock has told something by a place: what fences before it covered."""
        self.quiet = False
        flag, here = self.flag(word), column // self.parts - self.first
        self.version[flag] += 1
        if 0 <= here < len(self.known):
            self.flag_known[flag], self.flag_heard[flag] = self.fenced[here], self.heard[here]
            self.flag_heard[flag, self._columns(here)] = self._own(column - self.first * self.parts)
            # Its last fence may have come after the store: then it does not cover it.
            self.flag_known[flag, column] = min(self.flag_known[flag, column], clock - 1)
        else:
            mine = slice(column - column % self.parts, column - column % self.parts + self.parts)
            self.flag_known[flag, mine] = self.flag_heard[flag, mine] = EVERYTHING

    def store(self, lanes: np.ndarray) -> None:
        """Lanes run a plain store."""
        if self.machine.shadow.messages is not None and self.grain == 32:
            warps = lanes // 32
            self.stored_at[lanes], self.stored_clock[lanes] = self.machine.meetings.time, self.clocks[warps]
            self.stored[warps] = True

    def meet(self, mask: np.ndarray | None) -> None:
        """The active lanes of each warp came together: what is stored from now on is told apart from what was."""
        warps = self.stored.copy() if mask is None else self.stored & mask.reshape(-1, 32).any(axis=1)
        if warps.any():
            self.stored[warps] = False
            if self.parts == 1:
                self._tick(np.flatnonzero(warps))
            elif (messages := self.machine.shadow.messages) is not None:
                messages.step_on(np.flatnonzero(warps))

    def _speak(self, role: Role, lanes: np.ndarray) -> None:
        """Note for which lanes of their warps these cannot speak: for those that have stored since they last met."""
        met, messages = self.machine.meetings, self.machine.shadow.messages
        for warp in np.unique(lanes // 32).tolist():
            own, since, column = lanes[lanes // 32 == warp], int(met.last[warp]), self.first * self.parts + warp
            now = int(self._own(warp)[warp % self.parts])
            until = now if role.releases else min(now, int(self.fenced[warp // self.parts, column]))
            every = slice(32 * warp, 32 * warp + 32)
            absent = self.stored_at[every] >= since  # those that have ended, too
            absent[own % 32] = False
            clocks = self.stored_clock[every]
            absent &= clocks <= until
            if not absent.any() or messages is None or messages.spoken(warp, own, since):
                for key in [key for key, (_, end) in self.alone.items() if key[0] == column and end == until]:
                    del self.alone[key]
            elif not any(time > since and members[every].any() for time, members in met.parts):
                for clock in np.unique(clocks[absent]).tolist():
                    self.alone[column, clock] = absent & (clocks == clock), until

    def told_alone(
        self, lanes: np.ndarray, columns: np.ndarray, clocks: np.ndarray, writers: np.ndarray
    ) -> np.ndarray:  # fmt: skip
        """Return which lanes of the batch know what lanes `writers` of the grid stored by another lane alone."""
        found, units = np.zeros(len(columns), bool), lanes // self.width
        for (column, clock), (absent, until) in self.alone.items():
            here = (columns == column) & (clocks == clock)
            if here.any():
                found |= here & absent[writers % 32] & (self.known[units, columns] == until)
        return found

    def pairs(self, lanes: np.ndarray, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return each different pair of a grain and a flag among lanes at places, in the order of the lanes."""
        places, which = self._firsts(words)
        flags = np.array([self.flag(word) for word in words[places].tolist()], np.int64)[which]
        grains = lanes // self.grain
        first, _ = self._firsts(flags * (len(self.known) * self.parts) + grains)
        return grains[first].astype(np.int64), flags[first]

    def act(self, role: Role, lanes: np.ndarray, pairs: tuple[np.ndarray, np.ndarray], tells: bool = True) -> None:
        """Lanes listen at places, and tell (unless not `tells`), one after another. `pairs`: those of their own."""
        grains, flags = pairs
        if tells and (self.alone or self.stored.any()):
            self._speak(role, lanes)
        self.quiet &= not role.releases
        if self._act(role, grains, flags, tells):
            self.age += not tells
        if self.compares and role.listens and not role.trusted:
            np.maximum.at(self.compared, grains // self.parts, self.flag_heard[flags])
        if role.loose:
            np.maximum.at(self.loosely, grains // self.parts, self.flag_known[flags])
        if role.acquires:
            self._take(np.unique(grains // self.parts))
        if tells:
            self._tick(np.unique(grains // self.parts))

    def _firsts(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return where each different key is first, in that order, and which of them each key is."""
        if self.machine.compiled is not None:
            return self.machine.compiled.firsts(np.ascontiguousarray(keys, np.int64))
        _, first, which = np.unique(keys, return_index=True, return_inverse=True)
        order = np.argsort(first)
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        return first[order], rank[which]

    def _act(self, role: Role, grains: np.ndarray, flags: np.ndarray, tells: bool) -> bool:
        """Each grain at its flag, one after another; whether somebody learned something."""
        atomic, compiled = role.head in ("atom", "red", "cp.reduce"), self.machine.compiled
        if compiled is not None and self.parts == 1:
            tables = (self.known, self.heard, self.fenced, self.clock, self.flag_known, self.flag_heard, self.version)
            places = [address(table) for table in (*tables, self.read)]
            told = [*places, self.first, role.listens, tells, atomic, role.releases, not self.quiet]
            act = np.array([self.columns, len(self.known), *told], np.int64)
            return bool(compiled.act(address(act), address(grains), address(flags), len(grains)))
        changed = False
        for grain, flag in zip(grains.tolist(), flags.tolist(), strict=True):
            unit = grain // self.parts
            if role.listens and self.read[flag, grain] != self.version[flag]:
                if self.parts > 1:
                    self._hear(unit, grain, flag)
                if not self.quiet:
                    np.maximum(self.known[unit], self.flag_known[flag], out=self.known[unit])
                np.maximum(self.heard[unit], self.flag_heard[flag], out=self.heard[unit])
                self.read[flag, grain] = self.version[flag]
                changed = True
            if tells:
                self._tell(flag, grain, role, atomic)
        return changed

    def _tell(self, flag: int, grain: int, role: Role, atomic: bool) -> None:
        """A grain of the batch writes a flag: over what was told there, or, by an atomic, beside it."""
        unit, own = grain // self.parts, self._own(grain)
        known, heard, mine = self.flag_known[flag], self.flag_heard[flag], self._columns(unit)
        if not atomic:
            known[:] = heard[:] = 0
        if not self.quiet:
            covered = (self.known if role.releases else self.fenced)[unit].copy()
            covered[mine] = own if role.releases else np.minimum(covered[mine], own)
            np.maximum(known, covered, out=known)
        np.maximum(heard, self.heard[unit], out=heard)
        heard[mine] = np.maximum(heard[mine], own)
        self.version[flag] += 1

    def _hear(self, unit: int, grain: int, flag: int) -> None:
        """A warp hears what a flag tells; the others of its unit do not know it yet."""
        news, warp = self.news.setdefault(unit, []), grain % self.parts
        base = self.before[unit] if news else np.stack([self.known[unit], self.heard[unit]])
        everywhere = self._views(unit).min(axis=0)
        news.append(News(warp, int(self._own(grain)[warp]), np.stack([self.flag_known[flag], self.flag_heard[flag]])))
        late = len(news) - MOST_NEWS
        for number, one in enumerate(news):
            if number < late or everywhere[one.warp] >= one.clock:
                np.maximum(base, one.rows, out=base)
        self.news[unit] = [one for one in news[max(late, 0) :] if everywhere[one.warp] < one.clock]
        self.before[unit] = base

    def _views(self, unit: int) -> np.ndarray:
        """What each warp of a unit of the batch knows of each."""
        return np.stack([self._own(unit * self.parts + warp) for warp in range(self.parts)])

    def knows(self, lanes: np.ndarray, columns: np.ndarray, clocks: np.ndarray) -> tuple[np.ndarray, ...]:
        """Whether what columns did at clocks comes before what lanes of the batch do now; whether it would, were no
        fence missing; and whether it would, had a barrier told the lane's warp what another of its unit has heard."""
        grains = lanes // self.grain
        units = grains // self.parts
        known, heard = self.known[units, columns] >= clocks, self.heard[units, columns] >= clocks
        apart = np.zeros(known.shape, bool)
        messages = self.machine.shadow.messages
        if self.news and messages is not None and not messages.overflowed:
            for grain in np.unique(grains[heard]).tolist():
                news, mine = self.news.get(grain // self.parts), grains == grain
                if news:
                    view, rows = self._own(grain), self.before[grain // self.parts].copy()
                    for one in news:
                        if view[one.warp] >= one.clock:
                            np.maximum(rows, one.rows, out=rows)
                    now = rows[:, columns[mine]] >= clocks[mine]
                    apart[mine] = heard[mine] & ~now[1]
                    known[mine], heard[mine] = now
        return known, heard, apart

    def has_just_heard(self, lanes: np.ndarray) -> None:
        """Lanes have listened, and told what they had to tell with it."""
        if self.grain == 32 and self.machine.shadow.messages is not None:
            warps = lanes // 32
            self.listened[warps] = self.machine.shadow.stamps()[warps]

    def just_heard(self, lanes: np.ndarray) -> np.ndarray:
        """Return which lanes' warps have listened with no barrier, fence or message of theirs since."""
        if self.grain != 32 or self.machine.shadow.messages is None:
            return np.zeros(len(lanes), bool)
        return np.asarray(self.listened[lanes // 32] == self.machine.shadow.stamps()[lanes // 32])

    def has_newest(self, word: int, unit: int) -> bool:
        """Return whether a unit, counted from the batch's first, has read what a place holds now."""
        flag = self.flags.get(word)
        return flag is not None and bool((self._read_by(unit)[flag] == self.version[flag]).any())

    def has_listened(self, word: int, unit: int) -> bool:
        """Return whether a unit of the batch has read a place by an atomic or a strong load."""
        here = unit - self.first
        if word not in self.flags or not 0 <= here < len(self.known):
            return False
        return bool((self._read_by(here)[self.flags[word]] >= 0).any())

    def _read_by(self, unit: int) -> np.ndarray:
        """The versions of each flag that the columns of a unit of the batch have seen."""
        return self.read[:, unit * self.parts : (unit + 1) * self.parts]
