"""Races on global memory within a block (or cluster): between its warps, and between lanes of one warp.

What orders warps is what orders their accesses to shared memory (shadow.py, clocks.py), what orders lanes are
meetings.py's; bulk copies in flight are bulk_global.py's. Accesses to a buffer are noted, with the time of the newest
of equal ones; its granules have owners once it meets kinds of access that may race. When a second lane touches one
the notes are gone through, and from then on each granule keeps who accessed it last.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .bulk_global import BulkGlobal, Flight
from .compiled import address
from .global_rows import Rows
from .global_words import POLL, READ, STRONG, WRITE, Role
from .messages import words_of

if TYPE_CHECKING:
    from .global_port import GlobalPattern
    from .global_races import GlobalRaces
    from .global_tracks import Clash, Track
    from .mbarriers import Mbarrier
    from .ptx import Instruction

NOTED = 1 << 15
"""Accesses of one buffer that are only noted."""
LAST, ELSEWHERE, BESIDE = range(3)
"""Slots of a table: the last access, the last by another warp than that one's, the last by another lane of its warp."""


@dataclass(eq=False, slots=True)
class Note:
    """One access, and when it happened last."""

    index: int
    pattern: GlobalPattern | Rows
    start: int
    first: int
    """The first lane of its batch, of the grid."""
    stamps: np.ndarray
    time: int


class Last:
    """A table by granule of who did one kind of access last: lanes of the grid, plus 1."""

    def __init__(self, granules: int, slots: int) -> None:
        self.lane, self.by, self.stamp, self.time = (np.zeros((slots, granules), np.int32) for _ in range(4))
        self.used = False

    def put(self, cells: np.ndarray, ids: np.ndarray, index: int, stamps: np.ndarray, time: int) -> None:
        """Lanes `ids`, whose warps stand at `stamps`: both [accesses, 1]."""
        several = len(self.lane) > 1
        if several and self.used:
            last = self.lane[LAST][cells]
            other = (last != 0) & (last != ids)
            if other.any():
                near = (last - 1) // 32 == (ids - 1) // 32
                for slot, which in ((ELSEWHERE, other & ~near), (BESIDE, other & near)):
                    for part in (self.lane, self.by, self.stamp, self.time):
                        part[slot][cells[which]] = part[LAST][cells[which]]
        self.used = True
        self._set(LAST, cells, ids, index, stamps, time)
        if several and (rest := self.lane[LAST][cells] != ids).any():  # lanes that met others here in this very step
            near = (self.lane[LAST][cells] - 1) // 32 == (ids - 1) // 32
            for slot, which in ((ELSEWHERE, rest & ~near), (BESIDE, rest & near)):
                ours = (np.broadcast_to(part, cells.shape)[which] for part in (ids, stamps))
                self._set(slot, cells[which], next(ours), index, next(ours), time)

    def _set(
        self, slot: int, cells: np.ndarray, ids: np.ndarray, index: int, stamps: np.ndarray, time: int
    ) -> None:  # fmt: skip
        self.lane[slot][cells], self.by[slot][cells] = ids, index
        self.stamp[slot][cells], self.time[slot][cells] = stamps, time


class Inner:
    """A record of what was done to one buffer in this launch."""

    def __init__(self) -> None:
        self.kinds: set[int] = set()
        self.notes: dict[tuple[int, Any, int], Note] = {}
        """By instruction, pattern and first address, in the order in which they first happened."""
        self.judged: tuple[Any, int] = (None, -1)
        """The time of those in `notes`, once each access is judged."""
        self.owner: np.ndarray | None = None
        """Of each granule the lane that touched it, plus 1."""
        self.tables: list[Last] = []


class UnitRaces:
    """The checker of one launch."""

    def __init__(self, races: GlobalRaces, lanes: bool) -> None:
        self.races, self.machine = races, races.machine
        self.lanes = lanes
        """Whether lanes of one warp are judged: not where they may pass one another messages."""
        self.bulk = BulkGlobal(races)
        self.words = words_of(races.machine.program)

    def note(
        self, role: Role, index: int, pattern: GlobalPattern, start: int, track: Track, claimed: bool = False
    ) -> None:
        """See GlobalRaces.note."""
        word, messages = self.words[index], self.machine.shadow.messages
        writes = role.inside == (WRITE,)
        if messages is not None and (role.listens or role.tells) and not (word.hears or word.tells):
            (messages.listened if role.listens else messages.said)(self.races.cells(pattern, start, track)[1])
        if messages is None or not (word.hears or word.tells or (writes and messages.places)):
            self._look(role, index, pattern, start, track, claimed)
            return
        cells, lanes = self.races.cells(pattern, start, track)
        places = track.buffer.start + cells[:, 0] * self.races.granule
        if word.hears:
            messages.hear(lanes, places, word)
        self._look(role, index, pattern, start, track)
        if word.tells:
            messages.tell(lanes, places, word)
        elif writes:
            messages.tell_plainly(lanes, places)
        if messages.overflowed:
            self.races.within = None

    def note_loads(self, role: Role, index: int, pattern: GlobalPattern, starts: Iterable[int], track: Track) -> None:
        """Note accesses of which `only_reads` holds, each from another address on."""
        bulk, shadow = self.bulk, self.machine.shadow
        if shadow.messages is not None or self.races.updated or track in bulk.stores or track in bulk.loads:
            for start in starts:
                self.note(role, index, pattern, start, track)
            return
        stamps, time, first = shadow.stamps(), self.machine.meetings.time, self.races.first_lane
        inner = track.inner
        inner.kinds.add(READ)
        notes = inner.notes
        for start in starts:
            key = index, pattern, start
            known = notes.get(key)
            if known is not None and known.first == first:
                known.stamps, known.time = stamps, time
                continue
            notes[key] = Note(index, pattern, start, first, stamps, time)
            if len(notes) > NOTED:
                notes.clear()

    @staticmethod
    def only_reads(role: Role, track: Track) -> bool:
        """Return whether an access of this role only reads what is only read."""
        return role.inside == (READ,) and not track.inner.tables and not track.inner.kinds - {READ}

    def wrote(self, track: Track, address: int, nbytes: int) -> bool:
        """Return whether a store of this launch wrote any of these bytes of a buffer."""
        low = (address - track.buffer.start) // self.races.granule
        high, inner = low + nbytes // self.races.granule, track.inner
        if inner.tables:
            return bool(inner.tables[WRITE].lane[LAST][low:high].any())
        stores = [note for note in inner.notes.values() if (r := self.races.roles[note.index]) and WRITE in r.inside]
        cells = (self.races.cells(note.pattern, note.start, track)[0] for note in stores)
        return any(bool(((some >= low) & (some < high)).any()) for some in cells)

    def begin(
        self, role: Role, instruction: Instruction, rows: Rows, track: Track, barrier: Mbarrier | None
    ) -> Flight:  # fmt: skip
        """A bulk copy of one thread starts: a store, or a load that completes at an mbarrier."""
        inner = track.inner
        if barrier is not None and inner.kinds - {READ}:
            lanes = np.repeat(rows.lanes, len(rows.starts))
            self.bulk.check(track, (READ,), instruction.index, rows.starts, rows.nbytes, lanes)
            if not inner.tables:
                self._activate(inner, track)
            self.bulk.check_proxy(track, instruction, rows)
        self._look(role, instruction.index, rows, 0, track)
        if inner.tables:
            inner.notes.clear()
        return self.bulk.begin(track, instruction, rows, barrier)

    def end(self, role: Role, flight: Flight) -> None:
        """A bulk copy is done."""
        self.bulk.ended(flight)
        if flight.barrier is None:
            self._look(role, flight.instruction.index, flight.rows, 0, flight.track)

    def _look(
        self, role: Role, index: int, pattern: GlobalPattern | Rows, start: int, track: Track, claimed: bool = False
    ) -> None:  # fmt: skip
        inner, machine = track.inner, self.machine
        if (track in self.bulk.stores or track in self.bulk.loads) and not isinstance(pattern, Rows):
            cells, lanes = self.races.cells(pattern, start, track)
            starts = track.buffer.start + cells[:, 0] * self.races.granule
            self.bulk.check(track, role.inside, index, starts, role.nbytes, lanes)
        stamps, time = machine.shadow.stamps(), machine.meetings.time
        key = index, pattern, start
        if inner.tables:
            if inner.judged[0] is not stamps or inner.judged[1] != time:
                inner.notes.clear()
                inner.judged = stamps, time
            elif key in inner.notes:
                return
            inner.notes[key] = Note(index, pattern, start, self.races.first_lane, stamps, time)
            self._judge(role, index, pattern, start, track, stamps, time)
            return
        known = inner.notes.get(key)
        if known is not None and known.first == self.races.first_lane:
            known.stamps, known.time = stamps, time
            return
        note = inner.notes[key] = Note(index, pattern, start, self.races.first_lane, stamps, time)
        inner.kinds.update(role.inside)
        if not (WRITE in inner.kinds or {READ, STRONG} <= inner.kinds or self.races.updated):
            if len(inner.notes) > NOTED:
                inner.notes.clear()
            return
        new = [note]
        if inner.owner is None:
            inner.owner, new = np.zeros(track.granules(self.races.granule), np.int32), list(inner.notes.values())
            track.owners[1] = address(inner.owner)
        alone = claimed or all(self._claim(inner.owner, one, track) for one in new)
        if len(inner.notes) > NOTED or not alone:
            del inner.notes[key]
            self._activate(inner, track)
            self._judge(role, index, pattern, start, track, stamps, time)

    def _claim(self, owner: np.ndarray, note: Note, track: Track) -> bool:
        """Return whether no other lane has touched the granules of an access, which become its lanes'."""
        claimed = self.races.claim(owner, note.pattern, note.start, note.first, track, 1)
        if claimed is not None:
            return claimed
        cells, lanes = self.races.cells(note.pattern, note.start, track)
        ids, _ = self.races.ids(lanes, note.first)
        before = owner[cells]
        if before.any():
            if (before == ids).all():
                return True
            if ((before != 0) & (before != ids)).any():
                return False
        owner[cells] = ids
        return note.pattern.unique or bool((owner[cells] == ids).all())

    def _activate(self, inner: Inner, track: Track) -> None:
        count = track.granules(self.races.granule)
        inner.tables = [Last(count, 1 if kind == WRITE else 3) for kind in (READ, WRITE, STRONG, POLL)]
        inner.owner, track.owners[1] = None, 0
        for note in inner.notes.values():
            cells, lanes = self.races.cells(note.pattern, note.start, track)
            ids, _ = self.races.ids(lanes, note.first)
            role = self.races.roles[note.index]
            assert role is not None
            stamps = note.stamps[lanes // 32][:, None]
            for kind in self._kept(role, note.pattern):
                inner.tables[kind].put(cells, ids, note.index, stamps, note.time)
        inner.notes.clear()

    @staticmethod
    def _kept(role: Role, pattern: GlobalPattern | Rows) -> tuple[int, ...]:
        """The kinds of an access that later ones are judged against: what a bulk load reads is free with its phase."""
        return () if isinstance(pattern, Rows) and role.inside == (READ,) else role.inside

    def _judge(
        self,
        role: Role,
        index: int,
        pattern: GlobalPattern | Rows,
        start: int,
        track: Track,
        stamps: np.ndarray,
        time: int,
    ) -> None:
        cells, lanes = self.races.cells(pattern, start, track)
        ids, low = self.races.ids(lanes, self.races.first_lane)
        own = stamps[lanes // 32][:, None]
        tables = track.inner.tables
        for kind in role.inside:
            update = bool(self.races.updates[index])
            against = self.races.against(kind, index)
            clashes = [clash for other in against for clash in self._against(track, other, index, cells, lanes, low)]
            if kind in self._kept(role, pattern):
                tables[kind].put(cells, ids, index, own, time)
            if (kind == WRITE or update) and not pattern.unique:
                clashes += self._at_once(track, kind, index, cells, lanes)
            for clash in clashes:
                if isinstance(pattern, Rows):  # it has yet to write
                    again = clash.other.index == index and clash.other_lane // 32 == int(ids[0, 0] - 1) // 32
                    if not again:  # one store that all lanes of a warp start, mostly of one tile
                        self.races.reports.report(kind, clash, same=False)
                else:
                    self.races.met(role, kind, clash)

    def _against(
        self, track: Track, kind: int, index: int, cells: np.ndarray, lanes: np.ndarray, low: np.ndarray
    ) -> list[Clash]:
        """Earlier accesses of one kind by other lanes of the unit, which nothing orders before these."""
        table = track.inner.tables[kind]
        for slot in range(len(table.lane)) if table.used else ():
            last = table.lane[slot][cells]
            other = last != 0
            if not other.any():
                continue
            mine = np.broadcast_to(lanes[:, None], cells.shape)
            theirs = last - (1 + self.races.first_lane)
            other &= (theirs != mine) & self.races.same_unit(last, low)
            update = kind == STRONG and bool(self.races.updates[index])
            if kind in (STRONG, POLL) and self.races.elements[index]:
                other &= self.races.strong_too(index, table.by[slot][cells])
            if not other.any():
                continue
            where = cells[other]
            stamps, mine_here, theirs_here = table.stamp[slot][where], mine[other], theirs[other]
            bad = self._unordered(mine_here, theirs_here, stamps, table.time[slot][where])
            if update:  # what was read has been used before the other was told, with a fence or without
                bad &= ~self._told(mine_here, theirs_here, stamps)
            other[other] = bad
            if other.any():
                row, k = (int(v) for v in np.argwhere(other)[0])
                cell = int(cells[row, k])
                by = self.machine.program.instructions[int(table.by[slot][cell])]
                told = bool(self._told(mine[row, k : k + 1], theirs[row, k : k + 1], table.stamp[slot][[cell]])[0])
                return [self.races.clash(track, index, lanes, other, cell, int(last[row, k]) - 1, by, kind, told)]
        return []

    def _told(self, lanes: np.ndarray, others: np.ndarray, stamps: np.ndarray) -> np.ndarray:
        messages = self.machine.shadow.messages
        return np.zeros(len(lanes), bool) if messages is None else messages.told(lanes, others, stamps)

    def _unordered(self, mine: np.ndarray, theirs: np.ndarray, stamps: np.ndarray, times: np.ndarray) -> np.ndarray:
        near = mine // 32 == theirs // 32
        result = np.zeros(len(mine), bool)
        far = ~near
        if far.any():
            result[far] = self.machine.shadow.unordered(mine[far], theirs[far], stamps[far])
        if self.lanes and near.any():
            result[near] = self.machine.meetings.apart(mine[near], theirs[near], times[near])
            messages = self.machine.shadow.messages
            if messages is not None and result[near].any():
                result[near] &= ~messages.between_lanes(mine[near], times[near])
        return result

    def _at_once(self, track: Track, kind: int, index: int, cells: np.ndarray, lanes: np.ndarray) -> list[Clash]:
        """Warps that write one granule in the same step, or lanes that change it. (Mostly lanes store one value.)"""
        last, grain = track.inner.tables[kind].lane[LAST][cells], 32 if kind == WRITE else 1
        other = (last - (1 + self.races.first_lane)) // grain != lanes[:, None] // grain
        other &= self.races.same_unit(last, self.races.low[lanes])
        if not other.any():
            return []
        row, k = (int(v) for v in np.argwhere(other)[0])
        by = self.machine.program.instructions[index]
        clash = self.races.clash(track, index, lanes, other, int(cells[row, k]), int(last[row, k]) - 1, by, kind)
        clash.at_once = True
        return [clash]
