"""Races on global memory: between blocks here, within a block in unit_races.py.

Nothing orders two blocks of a grid but what they tell each other through global memory (telling.py). A *unit* is a
block, or a cluster, whose blocks have a barrier of their own; what happens within one is unit_races.py's.
An access is *strong* if other blocks may race with it: atomics, volatile, relaxed, acquire and release of a scope that
reaches them, and what bypasses the first-level cache. Strong accesses do not race with each other.

Most buffers are only read, and of most others each unit has a part of its own. So accesses are noted, equal ones once.
When a buffer meets kinds of access that may race, its granules get owners. When a unit touches a granule of another's,
the notes are gone through, and from then on each granule keeps its last write, and the last reads and strong accesses
of two units.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .compiled import address
from .fixed_loads import FixedLoads
from .global_reports import RaceReports
from .global_rows import Rows
from .global_tracks import Clash, Table, Track, within
from .global_words import AGAINST, POLL, READ, STRONG, WRITE, Role, roles_of
from .lost_updates import LostUpdates
from .memory import ARENA_BASE, Buffer
from .ptx import Instruction
from .telling import MOST_UNITS, Telling
from .unit_races import UnitRaces

if TYPE_CHECKING:
    from .bulk_global import Flight
    from .global_port import GlobalPattern
    from .machine import Machine
    from .mbarriers import Mbarrier

STORES = ("st", "sust", "wmma", "cp.async.bulk")
"""What tells the values that it stores: two blocks may store one value."""
NOTED = 1 << 17
"""Accesses of one buffer that are only noted."""
PATTERNS = 512
"""Different patterns among them."""


class GlobalRaces:
    """The checker of one launch."""

    def __init__(self, machine: Machine, blocks: int) -> None:
        self.machine = machine
        self.roles = roles_of(machine.program)
        self.width = machine.cluster_size * machine.warps_per_cta * 32
        """Lanes of a unit."""
        units = -(-blocks // machine.cluster_size)
        roles = [role for role in self.roles if role is not None]
        listens = Telling.needed(self.roles)
        judged = units * self.width < 2**31 and any(role.kinds != (READ,) for role in roles)
        self.between = judged and units > 1 and (not listens or units <= MOST_UNITS)
        """Whether units are judged against one another."""
        heard = listens or any(role.narrow and role.head != "st" for role in roles)
        lanes = not heard or machine.shadow.messages is not None
        self.within = UnitRaces(self, lanes=lanes) if judged and self.width > 1 else None
        self.fixed = FixedLoads(self) if judged and FixedLoads.needed(roles) else None
        self.lost = LostUpdates(self) if judged and LostUpdates.needed(roles) else None
        self.telling = Telling(machine, units, self.width) if listens and self.between else None
        self.trusted = self.telling is not None and any(role.trusted for role in roles)
        if self.telling is not None:
            self.telling.compares = self.trusted
        self.updates = np.array([role is not None and (role.updates or role.looks) for role in self.roles])
        """Strong stores that race with each other."""
        self.uncached = np.array([role is not None and role.uncached for role in self.roles])
        self.stores = np.array([role is not None and role.head == "st" for role in self.roles])
        self.elements = np.array([0 if role is None else role.element for role in self.roles])
        """Strong accesses that move different numbers of bytes as one race with each other."""
        self.mixed = len({*self.elements.tolist()} - {0}) > 1
        self.updated = self.mixed or bool(self.updates.any())
        self.granule = min((role.nbytes for role in roles), default=4)
        self.batch = -1
        self.first_lane = 0
        self._every = np.arange(machine.lanes)
        self.lane = np.zeros(0, np.int32)
        self.low = np.zeros(0, np.int32)
        self.tracks: list[Track] = []
        self.missed = False
        """Whether some access was not noted."""
        self.reports = RaceReports(self)
        self.waiting: list[tuple[int, Clash]] = []
        """Stores that race with other stores, and their kind of access, until their values are known."""

    def start(self, first_cta: int) -> None:
        """A new batch of blocks."""
        machine = self.machine
        self.batch += 1
        self.first_lane = first_cta * machine.warps_per_cta * 32
        self.lane = np.arange(machine.lanes, dtype=np.int32)[:, None] + np.int32(self.first_lane + 1)
        self.low = (self.lane - 1) // np.int32(self.width) * np.int32(self.width) + 1
        if self.within is not None:
            self.within.bulk.reset()
        if self.lost is not None:
            self.lost.start()
        if self.telling is not None:
            self.telling.start(self.first_lane // self.width)

    def track(self, buffer: Buffer) -> Track:
        """Return what is known of a buffer in this launch."""
        if buffer.track is None or buffer.track.launch is not self:
            buffer.track = Track(self, buffer)
            self.tracks.append(buffer.track)
        return buffer.track

    def plain(self, index: int) -> bool:
        """Return whether an instruction is a load or a store to its own block as to others."""
        role = self.roles[index]
        return role is not None and role.kinds in ((READ,), (WRITE,)) and role.inside == role.kinds

    def note(
        self, index: int, pattern: GlobalPattern | Rows, start: int, buffer: Buffer, *, claimed: bool = False
    ) -> None:
        """Instruction `index` accesses a buffer at the pattern's places from `start` on. `claimed`: its granules are
        its lanes' already."""
        role = self.roles[index]
        if role is None or buffer.read_only:
            return
        track = self.track(buffer)
        if self.fixed is not None:
            self.fixed.note(role, index, pattern, start, track)
        if self.lost is not None:
            self.lost.note(role, index, pattern, start, track)
        if self.between:
            self._note_between(role, index, pattern, start, track, claimed)
        if self.within is not None and not isinstance(pattern, Rows):
            self.within.note(role, index, pattern, start, track, claimed)
        if role.relaxed and not role.trusted and self.telling is not None:
            self.telling.has_just_heard(self._every if pattern.lanes is None else pattern.lanes)

    def _note_between(
        self, role: Role, index: int, pattern: GlobalPattern | Rows, start: int, track: Track, claimed: bool
    ) -> None:
        age = self.batch if self.telling is None else self.telling.moment()
        if track.age != age:
            track.seen.clear()
            track.age = age
        if self.telling is not None and (role.tells or role.listens):
            self._tell(role, index, pattern, start, track, self.telling)
            return
        if self.telling is not None and role.kinds == (WRITE,):
            self.telling.store(self.cells(pattern, start, track)[1])
        starts = track.seen.setdefault((index, pattern), set())
        if start not in starts:
            starts.add(start)
            self._look(role, index, pattern, start, track, claimed)
        if self.telling is not None and self.telling.flags and role.kinds == (WRITE,):
            self._tell_plainly(role, pattern, start, track, self.telling)

    @property
    def on(self) -> bool:
        """Return whether anything is judged."""
        return self.between or self.within is not None or self.fixed is not None

    def only_reads(self, index: int, buffer: Buffer, count: int) -> bool:
        """Return whether `count` accesses of instruction `index` can be noted at once: plain loads of what is only
        read."""
        role = self.roles[index]
        if role is None or buffer.read_only or not self.on:
            return True
        track = self.track(buffer)
        if track.changed is not None or (self.within is not None and not self.within.only_reads(role, track)):
            return False
        if role.kinds != (READ,) or role.listens or track.active or track.kinds - {READ}:
            return False
        return len(track.noted) + count <= NOTED and len(track.patterns) < PATTERNS

    def note_loads(self, index: int, pattern: GlobalPattern, starts: list[int], buffer: Buffer) -> None:
        """Note accesses of which `only_reads` holds."""
        role = self.roles[index]
        if role is None or buffer.read_only or not self.on:
            return
        track = self.track(buffer)
        if self.within is not None:
            self.within.note_loads(role, index, pattern, dict.fromkeys(starts), track)
        if not self.between:
            return
        age = self.batch if self.telling is None else self.telling.moment()
        if track.age != age:
            track.seen.clear()
            track.age = age
        seen = track.seen.setdefault((index, pattern), set())
        new = dict.fromkeys(start for start in starts if start not in seen)
        seen.update(new)
        track.kinds.add(READ)
        track.patterns.add(id(pattern))
        clocks = None if self.telling is None else self.telling.clocks
        track.noted += [(index, pattern, start, self.first_lane, clocks) for start in new]

    def kinds(self) -> dict[int, set[int]]:
        """Address of each buffer that was accessed -> kinds of access."""
        return {track.buffer.start: track.kinds for track in self.tracks}

    def touched(self, buffer: Buffer) -> tuple[np.ndarray, np.ndarray] | None:
        """Return which granules of a buffer were read, and which written, atomically or not: bool; None if none was."""
        if buffer.track is None or buffer.track.launch is not self:
            return None
        track = buffer.track
        read, wrote = np.zeros((2, track.granules(self.granule)), bool)
        for kind, table in enumerate(track.tables):
            into = read if kind in (READ, POLL) else wrote
            into |= (table.lane != 0).any(axis=0)
        for index, pattern, start, _, _ in track.noted:
            role = self.roles[index]
            assert role is not None
            cells, _ = self.cells(pattern, start, track)
            for kind in role.kinds:
                (read if kind in (READ, POLL) else wrote)[cells] = True
        return read, wrote

    def bulk_begins(self, instruction: Instruction, rows: Rows, barrier: Mbarrier | None) -> Flight | None:
        """A bulk copy of one thread starts: a store, or a load that completes at an mbarrier."""
        role, buffer = self.roles[instruction.index], self.machine.memory.find(int(rows.starts[0]))
        if role is None or buffer is None or buffer.read_only or self.within is None:
            return None
        return self.within.begin(role, instruction, rows, self.track(buffer), barrier)

    def bulk_ends(self, flight: Flight | None) -> None:
        """A bulk copy is done."""
        role = None if flight is None else self.roles[flight.instruction.index]
        if flight is not None and role is not None and self.within is not None:
            self.within.end(role, flight)

    def note_rows(self, instruction: Instruction, rows: Rows) -> None:
        """A bulk copy accesses global memory, all of it in one buffer."""
        role, buffer = self.roles[instruction.index], self.machine.memory.find(int(rows.starts[0]))
        if role is None or buffer is None or buffer.read_only:
            return
        if self.fixed is not None:
            self.fixed.note(role, instruction.index, rows, 0, self.track(buffer))
        if self.between:
            self._look(role, instruction.index, rows, 0, self.track(buffer))

    def store_rows(self, instruction: Instruction, rows: Rows, put: Callable[[], None]) -> None:
        """A bulk copy writes rows of global memory."""
        self.note_rows(instruction, rows)
        part = self.machine.memory.views[1][
            int(rows.starts[0]) - ARENA_BASE : int(rows.starts[-1]) + rows.nbytes - ARENA_BASE
        ]
        before = part.copy() if self.waiting else part
        put()
        if self.waiting:
            waiting, self.waiting = self.waiting, []
            same = np.array_equal(before, part)
            for kind, clash in waiting:
                self.reports.report(kind, clash, same)

    def _look(
        self, role: Role, index: int, pattern: Any, start: int, track: Track, claimed: bool = False
    ) -> None:  # fmt: skip
        track.kinds.update(role.kinds)
        if track.active:
            self._judge(role, index, pattern, start, track)
            return
        clocks = None if self.telling is None else self.telling.clocks
        track.noted.append((index, pattern, start, self.first_lane, clocks))
        if not isinstance(pattern, Rows):
            track.patterns.add(id(pattern))
        alone = True
        if WRITE in track.kinds or {READ, STRONG} <= track.kinds or self.updated or self.trusted:
            new = track.noted[-1:]
            if track.owner is None:
                track.owner, new = np.zeros(track.granules(self.granule), np.int32), track.noted
                track.owners[0] = address(track.owner)
            alone = claimed or all(self._claim(track.owner, note, track) for note in new)
        if not alone or len(track.noted) > NOTED or len(track.patterns) > PATTERNS:
            track.noted.pop()
            self._activate(track)
            self._judge(role, index, pattern, start, track)

    def _claim(self, owner: np.ndarray, note: tuple[Any, ...], track: Track) -> bool:
        """Return whether no other unit than a noted access's own has touched its granules, which become that unit's."""
        _, pattern, start, first, _ = note
        claimed = self.claim(owner, pattern, start, first, track, self.width)
        if claimed is not None:
            return claimed
        cells, lanes = self.cells(pattern, start, track)
        ids, low = self.ids(lanes, first)
        before = owner[cells]
        if before.any():
            if (before == ids).all():
                return True
            if ((before != 0) & ~within(before, low, self.width)).any():
                return False
        owner[cells] = ids
        return pattern.unique or bool(within(owner[cells], low, self.width).all())

    def claim(self, owner: np.ndarray, pattern: Any, start: int, first: int, track: Track, width: int) -> bool | None:
        """The same by the compiled loops, None where they cannot. width 1: each lane is a unit."""
        compiled = self.machine.compiled
        if compiled is None or isinstance(pattern, Rows):
            return None
        ids, low = self.ids(self._prepare(pattern), first)
        shift, (count, each) = (start - track.buffer.start) // self.granule, pattern.cells.shape
        low = ids if width == 1 else low
        places = address(owner), address(pattern.cells), count, each, shift, address(ids), address(low)
        return bool(compiled.claim(*places, width))

    def ids(self, lanes: np.ndarray, first: int) -> tuple[np.ndarray, np.ndarray]:
        """Lanes of the grid plus 1, and the first of each one's unit: both [lanes, 1]."""
        if first == self.first_lane:
            return (self.lane, self.low) if lanes is self._every else (self.lane[lanes], self.low[lanes])
        ids = (lanes + (first + 1)).astype(np.int32)[:, None]
        return ids, (ids - 1) // np.int32(self.width) * np.int32(self.width) + 1

    def _activate(self, track: Track) -> None:
        count = track.granules(self.granule)
        track.tables = [Table(count, 1 if kind == WRITE else 2) for kind in (READ, WRITE, STRONG, POLL)]
        track.active, track.owner, track.owners[0] = True, None, 0
        for index, pattern, start, first, clocks in track.noted:
            cells, lanes = self.cells(pattern, start, track)
            ids, low = self.ids(lanes, first)
            role = self.roles[index]
            assert role is not None
            grain = self.width if self.telling is None else self.telling.grain
            clock = 0 if clocks is None else clocks[(ids - 1 - first) // grain]
            for kind in role.kinds:
                track.tables[kind].put(cells, ids, low, self.width, index, clock)
        track.noted.clear()
        track.patterns.clear()

    def cells(self, pattern: Any, start: int, track: Track) -> tuple[np.ndarray, np.ndarray]:
        """(granules of the buffer [accesses, k], lanes of the batch)."""
        if isinstance(pattern, Rows):
            each = max(pattern.nbytes // self.granule, 1)
            first = (pattern.starts - track.buffer.start) // self.granule
            return first[:, None] + np.arange(each), np.broadcast_to(pattern.lanes, (len(first),))
        lanes = self._prepare(pattern)
        return pattern.cells + (start - track.buffer.start) // self.granule, lanes

    def _prepare(self, pattern: GlobalPattern) -> np.ndarray:
        """The lanes of a pattern; from then on it knows its granules, from the first address on."""
        if pattern.cells is None:
            relative = pattern.relative.view(np.int64) // self.granule
            pattern.cells = relative[:, None] + np.arange(max(pattern.nbytes // self.granule, 1))
        return self._every if pattern.lanes is None else pattern.lanes

    def _tell(self, role: Role, index: int, pattern: Any, start: int, track: Track, telling: Telling) -> None:
        """A strong access, by which blocks may tell each other something."""
        cells, lanes = self.cells(pattern, start, track)
        words = track.buffer.start + cells[:, 0] * self.granule
        if role.listens and track.active:
            for word in telling.unknown(words):  # a plain store may have told it
                cell, stores = (word - track.buffer.start) // self.granule, track.tables[WRITE]
                if stores.lane[0][cell]:
                    telling.told(word, (int(stores.lane[0][cell]) - 1) // telling.grain, int(stores.clock[0][cell]))
        if role.trusted and self._others_too(track, cells, lanes):
            self._trusts(track, index, cells, lanes)
        pairs = telling.pairs(lanes, words)
        if role.listens:
            telling.act(role, lanes, pairs, tells=False)
        self._look(role, index, pattern, start, track)
        if role.tells:
            telling.act(role, lanes, pairs)
        self.between = not telling.overflowed

    def _tell_plainly(self, role: Role, pattern: Any, start: int, track: Track, telling: Telling) -> None:
        """A plain store: it tells something where others listen."""
        cells, lanes = self.cells(pattern, start, track)
        words = track.buffer.start + cells[:, 0] * self.granule
        low, high = int(words.min()), int(words.max())
        near = [flag for flag in telling.flags if low <= flag <= high]
        flags = np.isin(words, near)
        if near and flags.any():
            telling.act(role, lanes[flags], telling.pairs(lanes[flags], words[flags]))

    # Judging

    def _judge(self, role: Role, index: int, pattern: Any, start: int, track: Track) -> None:
        cells, lanes = self.cells(pattern, start, track)
        ids, low = self.ids(lanes, self.first_lane)
        telling = self.telling
        clock = 0 if telling is None else telling.clocks[(ids - 1 - self.first_lane) // telling.grain]
        for kind in role.kinds:
            against = self.against(kind, index)
            clashes = [clash for other in against for clash in self._against(track, other, index, cells, lanes, low)]
            if telling is not None and kind in (WRITE, STRONG):
                self._outdate(track, cells, low)
            track.tables[kind].put(cells, ids, low, self.width, index, clock)
            if (kind == WRITE or self.updates[index]) and not pattern.unique:
                clashes += self._at_once(track, kind, index, cells, lanes, low)
            for clash in clashes:
                self.met(role, kind, clash)

    def against(self, kind: int, index: int) -> tuple[int, ...]:
        """Return which kinds of earlier access may race with one of this kind by instruction `index`."""
        if self.mixed and self.elements[index]:
            return (*AGAINST[kind], STRONG, POLL) if kind == STRONG else (*AGAINST[kind], STRONG)
        return (*AGAINST[kind], STRONG) if self.updates[index] else AGAINST[kind]

    def strong_too(self, index: int, by: np.ndarray) -> np.ndarray:
        """Return which earlier strong accesses, by their instructions, race with one by `index`, which is strong."""
        bad = self.updates[by] if self.updates[index] else np.zeros(by.shape, bool)
        if self.mixed and (element := self.elements[index]):
            bad |= (self.elements[by] != element) & (self.elements[by] > 0)
        return bad

    def _outdate(self, track: Track, cells: np.ndarray, low: np.ndarray) -> None:
        """Granules are written: other units that have read them may keep the old bytes in a cache."""
        reads = track.tables[READ]
        if not reads.used:
            return
        if not track.cached.size:
            track.cached = np.zeros((2, reads.lane.shape[1]), np.int32)
        own = within(reads.lane[0][cells], low, self.width).astype(np.int64)
        kept = ~self.uncached[reads.by[own, cells]]
        track.cached[0][cells], track.cached[1][cells] = reads.lane[own, cells] * kept, reads.clock[own, cells]

    def met(self, role: Role, kind: int, clash: Clash) -> None:
        """Report a clash; of two stores once their values are known, but for updates: to store one value loses one.
        (Lanes of one warp mean one update by it.)"""
        other = self.roles[clash.other.index]
        lost = role.updates and other is not None and other.updates and not self.reports.one_warp(clash)
        if kind == clash.other_kind and kind in (WRITE, STRONG) and (role.head in STORES or role.looks) and not lost:
            self.waiting.append((kind, clash))
        else:
            self.reports.report(kind, clash, same=False)

    def same_unit(self, last: np.ndarray, low: np.ndarray) -> np.ndarray:
        """Return which of `last` are lanes of the units that begin at the lanes `low`."""
        return within(last, low, self.width)

    def clash(
        self, track: Track, index: int, lanes: np.ndarray, bad: np.ndarray, cell: int, other: int, by: Instruction,
        kind: int, told: bool = False,
    ) -> Clash:  # fmt: skip
        """Report clashes: of accesses to [lanes, k] granules those marked `bad` meet what lane `other` of the grid did
        to one."""
        rows = np.asarray(bad.any(axis=1))
        address = track.buffer.start + cell * self.granule
        return Clash(index, lanes[rows], address, other, by, kind, told, rows, inside=True)

    def _against(
        self, track: Track, kind: int, index: int, cells: np.ndarray, lanes: np.ndarray, low: np.ndarray
    ) -> list[Clash]:
        """Earlier accesses of one kind by other units, which nothing orders before these."""
        table = track.tables[kind]
        if not table.used:
            return []
        role = self.roles[index]
        stores = role is not None and role.kinds == (WRITE,)
        for slot in range(len(table.lane)):
            last = table.lane[slot][cells]
            other = last != 0
            if not other.any():
                continue
            other &= ~within(last, low, self.width)
            if slot and kind == STRONG and stores:  # its own unit's atomic came after that
                other &= ~within(table.lane[0][cells], low, self.width)
            update = kind == STRONG and bool(self.updates[index])
            if kind in (STRONG, POLL) and self.elements[index]:
                other &= self.strong_too(index, table.by[slot][cells])
            if not other.any():
                continue
            told, apart = np.zeros((2, *other.shape), bool)
            if self.telling is not None:
                rows, columns = np.nonzero(other)
                theirs, clocks = (last[other] - 1) // self.telling.grain, table.clock[slot][cells[other]]
                known, told[rows, columns], apart[rows, columns] = self.telling.knows(lanes[rows], theirs, clocks)
                if kind == WRITE and self.telling.alone:
                    alone = known & self.telling.told_alone(lanes[rows], theirs, clocks, last[other] - 1)
                    if alone.any():
                        first = int(np.flatnonzero(alone)[0])
                        cell = int(cells[rows[first], columns[first]])
                        self.reports.report_alone(
                            index, lanes[np.unique(rows[alone])], track.buffer.start + cell * self.granule,
                            int(last[rows[first], columns[first]]) - 1, int(table.by[slot][cell]),
                        )  # fmt: skip
                if kind == WRITE and role is not None and role.kinds == (READ,):
                    self._unacquired(track, index, cells, lanes, low, slot, rows, columns, known)
                # What was read has been used before the flag was set, with a fence or without.
                before = told[rows, columns] if kind in (READ, POLL) or update else known
                other[rows[before], columns[before]] = False
                if not other.any():
                    continue
            bad = np.asarray(other.any(axis=1))
            row, k = (int(v) for v in np.argwhere(other)[0])
            cell = int(cells[row, k])
            by = self.machine.program.instructions[int(table.by[slot][cell])]
            address = track.buffer.start + cell * self.granule
            clash = Clash(index, lanes[bad], address, int(last[row, k]) - 1, by, kind, bool(told[row, k]), bad)
            clash.apart = bool(apart[row, k])
            return [clash]
        return []

    def _others_too(self, track: Track, cells: np.ndarray, lanes: np.ndarray) -> bool:
        """Return whether units share granules of a buffer, these lanes' among them, and keep what each did there."""
        if not track.active and track.owner is not None:
            owner, (_, low) = track.owner[cells], self.ids(lanes, self.first_lane)
            if ((owner != 0) & ~within(owner, low, self.width)).any():
                self._activate(track)
        return track.active

    def _trusts(self, track: Track, index: int, cells: np.ndarray, lanes: np.ndarray) -> None:
        """Report strong loads of strong stores that a flag has told of, where the writer ran no fence before it, or
        the reader none after it."""
        telling, table = self.telling, track.tables[STRONG]
        assert telling is not None
        last, clock, by = (part[0][cells[:, 0]] for part in (table.lane, table.clock, table.by))
        units, theirs = lanes // self.width, (last - 1) // telling.grain
        others = (last != 0) & (theirs // telling.parts != units + telling.first) & self.stores[by]
        if not others.any():
            return
        known = telling.known[units, theirs] >= clock
        late = known & (telling.taken[units, theirs] < clock)
        late &= (telling.loosely[units, theirs] >= clock) | telling.just_heard(lanes)
        told = ~known & (telling.compared[units, theirs] >= clock)
        for name, bad in (("fence_missing", others & told), ("acquire_missing", others & late)):
            for row in np.flatnonzero(bad).tolist():  # what it has seen there it sees again, whoever fences
                bad[row] = not telling.has_newest(track.buffer.start + int(cells[row, 0]) * self.granule, units[row])
            if bad.any():
                row = int(np.flatnonzero(bad)[0])
                place, other = track.buffer.start + int(cells[row, 0]) * self.granule, int(last[row]) - 1
                writer = self.machine.program.instructions[int(by[row])]
                clash = Clash(index, lanes[bad], place, other, writer, STRONG, True, bad)
                clash.name = name
                self.reports.report(POLL, clash, same=False)

    def _unacquired(
        self, track: Track, index: int, cells: np.ndarray, lanes: np.ndarray, low: np.ndarray, slot: int,
        rows: np.ndarray, columns: np.ndarray, known: np.ndarray,
    ) -> None:  # fmt: skip
        """Report plain reads of what a flag has told of, where the reader ran no fence after it: an error where its
        block has read the bytes before they were written, and its first-level cache may still hold them. Else a
        barrier does, which keeps the reads after it, unless another block has read them, perhaps on the same SM, or the
        reader says that the flag is read in no order."""
        telling, table = self.telling, track.tables[WRITE]
        assert telling is not None
        some = cells[rows, columns]
        units, clock = lanes[rows] // self.width, table.clock[slot]
        theirs = (table.lane[slot][some] - 1) // telling.grain
        late = known & (telling.taken[units, theirs] < clock[some])
        if not late.any():
            return
        held, nearby = np.zeros_like(late), np.zeros_like(late)
        role = self.roles[index]
        if track.cached.size and role is not None and not role.uncached:
            reader, when = track.cached[:, some]
            nearby = late & (reader != 0)
            held = late & within(reader, low[rows, 0], self.width)
            column = (reader[held] - 1 - self.first_lane) // telling.grain
            held[held] = when[held] > telling.fence_clock[column]
        loose = late & (telling.loosely[units, theirs] >= clock[some])
        which = held if held.any() else nearby | loose | (late & telling.just_heard(lanes[rows]))
        if not which.any():
            return
        at = int(some[which][0])
        by = self.machine.program.instructions[int(table.by[slot][at])]
        bad = np.zeros(len(lanes), bool)
        bad[rows[which]] = True
        place, other = track.buffer.start + at * self.granule, int(table.lane[slot][at]) - 1
        clash = Clash(index, lanes[bad], place, other, by, WRITE, True, bad)
        clash.name = "stale_read" if held.any() else "acquire_missing"
        self.reports.report(READ, clash, same=False)

    def _at_once(
        self, track: Track, kind: int, index: int, cells: np.ndarray, lanes: np.ndarray, low: np.ndarray
    ) -> list[Clash]:
        """Units that write one granule in the same step."""
        last = track.tables[kind].lane[0][cells]
        other = ~within(last, low, self.width)
        if not other.any():
            return []
        bad = np.asarray(other.any(axis=1))
        row, k = (int(v) for v in np.argwhere(other)[0])
        address = track.buffer.start + int(cells[row, k]) * self.granule
        instruction = self.machine.program.instructions[index]
        return [Clash(index, lanes[bad], address, int(last[row, k]) - 1, instruction, kind, False, bad, True)]

    def stored(self, before: np.ndarray, after: np.ndarray, values: np.ndarray) -> None:
        """A store that races with others has been done: `before` and `after` it, and its `values`, one per lane."""
        raw = [np.ascontiguousarray(part).view(np.uint8).reshape(len(values), -1) for part in (before, after, values)]
        waiting, self.waiting = self.waiting, []
        for kind, clash in waiting:
            kept = (raw[2] == raw[1 if clash.at_once else 0]).all(axis=1)
            self.reports.report(kind, clash, same=bool(kept[clash.rows].all()))
