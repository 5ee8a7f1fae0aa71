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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .compiled import address
from .global_words import (
    AGAINST,
    POLL,
    READ,
    STRONG,
    WRITE,
    Role,
    constant_stored,
    looks_before_an_atomic,
    own_load,
    role_of,
    stored_back,
)
from .memory import ARENA_BASE, Buffer
from .ptx import Instruction
from .telling import MOST_UNITS, Telling
from .unit_races import Inner, UnitRaces

if TYPE_CHECKING:
    from .global_port import GlobalPattern
    from .machine import Machine

STORES = ("st", "wmma", "cp.async.bulk")
"""What tells the values that it stores: two blocks may store one value."""
NOTED = 1 << 17
"""Accesses of one buffer that are only noted."""
PATTERNS = 512
"""Different patterns among them."""


class Rows:
    """Rows of `nbytes` that a bulk copy of one lane reads or writes, from absolute addresses; stands for a pattern."""

    __slots__ = ("lanes", "nbytes", "starts", "unique")

    def __init__(self, lane: int, starts: np.ndarray, nbytes: int) -> None:
        self.starts, self.nbytes = starts, nbytes
        self.lanes = np.array([lane])
        self.unique = True

    @classmethod
    def of(cls, lane: int, addresses: np.ndarray, size: int) -> Rows:
        """Elements of `size` bytes, put together where they lie in a row."""
        edges = np.flatnonzero(np.diff(addresses) != size) + 1
        lengths = np.diff(edges, prepend=0, append=len(addresses))
        if (lengths == lengths[0]).all():
            return cls(lane, addresses[np.append(0, edges)], int(lengths[0]) * size)
        return cls(lane, addresses, size)


class Table:
    """Of each granule the lanes (of the grid, plus 1) that did one kind of access last, of so many different units."""

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
            rest = ~_within(self.lane[0][cells], low, width)
            if rest.any():
                some = cells[rest]
                self.lane[1][some], self.by[1][some] = np.broadcast_to(ids, cells.shape)[rest], index
                self.clock[1][some] = np.broadcast_to(clock, cells.shape)[rest]

    def _shift(self, cells: np.ndarray, low: np.ndarray, width: int) -> None:
        last = self.lane[0][cells]
        other = (last != 0) & ~_within(last, low, width)
        if other.any():
            some = cells[other]
            for part in (self.lane, self.by, self.clock):
                part[1][some] = part[0][some]


def _within(lanes: np.ndarray, low: np.ndarray, width: int) -> np.ndarray:
    """Which lanes are of the unit that begins at `low`."""
    return (lanes - low).view(np.uint32) < width


class Track:
    """What was done to one buffer in this launch."""

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
        self.inner = Inner()

    def granules(self, size: int) -> int:
        """How many of them the buffer has, and a few more for what begins inside of it."""
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


class GlobalRaces:
    """The checker of one launch."""

    def __init__(self, machine: Machine, blocks: int) -> None:
        self.machine = machine
        self.roles = [role_of(instruction, machine.program) for instruction in machine.program.instructions]
        self.width = machine.cluster_size * machine.warps_per_cta * 32
        """Lanes of a unit."""
        units = -(-blocks // machine.cluster_size)
        roles = [role for role in self.roles if role is not None]
        listens = Telling.needed(self.roles)
        judged = units * self.width < 2**31 and any(role.kinds != (READ,) for role in roles)
        self.between = judged and units > 1 and (not listens or units <= MOST_UNITS)
        """Whether units are judged against one another."""
        heard = listens or any(role.narrow and role.head != "st" for role in roles)
        self.within = UnitRaces(self, lanes=not heard) if judged and self.width > 1 else None
        self.telling = Telling(machine, units, self.width) if listens and self.between else None
        self.granule = min((role.nbytes for role in roles), default=4)
        self.batch = -1
        self.first_lane = 0
        self._every = np.arange(machine.lanes)
        self.lane = np.zeros(0, np.int32)
        self.low = np.zeros(0, np.int32)
        self.tracks: list[Track] = []
        self.missed = False
        """Whether some access was not noted."""
        self.waiting: list[Clash] = []
        """Stores that race with other stores, until their values are known."""

    def start(self, first_cta: int) -> None:
        """A new batch of blocks."""
        machine = self.machine
        self.batch += 1
        self.first_lane = first_cta * machine.warps_per_cta * 32
        self.lane = np.arange(machine.lanes, dtype=np.int32)[:, None] + np.int32(self.first_lane + 1)
        self.low = (self.lane - 1) // np.int32(self.width) * np.int32(self.width) + 1
        if self.telling is not None:
            self.telling.start(self.first_lane // self.width)

    def track(self, buffer: Buffer) -> Track:
        """What is known of a buffer in this launch."""
        if buffer.track is None or buffer.track.launch is not self:
            buffer.track = Track(self, buffer)
            self.tracks.append(buffer.track)
        return buffer.track

    def note(self, index: int, pattern: GlobalPattern | Rows, start: int, buffer: Buffer) -> None:
        """Instruction `index` accesses a buffer at the pattern's places from `start` on."""
        role = self.roles[index]
        if role is None or buffer.read_only:
            return
        track = self.track(buffer)
        if self.within is not None and not isinstance(pattern, Rows):
            self.within.note(role, index, pattern, start, track)
        if not self.between:
            return
        age = self.batch if self.telling is None else self.telling.age
        if track.age != age:
            track.seen.clear()
            track.age = age
        if self.telling is not None and (role.tells or role.listens):
            self._tell(role, index, pattern, start, track, self.telling)
            return
        starts = track.seen.setdefault((index, pattern), set())
        if start not in starts:
            starts.add(start)
            self._look(role, index, pattern, start, track)
        if self.telling is not None and self.telling.flags and role.kinds == (WRITE,):
            self._tell_plainly(role, pattern, start, track, self.telling)

    @property
    def on(self) -> bool:
        """Whether anything is judged."""
        return self.between or self.within is not None

    def only_reads(self, index: int, buffer: Buffer, count: int) -> bool:
        """Whether `count` accesses of instruction `index` can be noted at once: plain loads of what is only read."""
        role = self.roles[index]
        if role is None or buffer.read_only or not self.on:
            return True
        track = self.track(buffer)
        if self.within is not None and not self.within.only_reads(role, track):
            return False
        if role.kinds != (READ,) or role.listens or track.active or track.kinds - {READ}:
            return False
        return len(track.noted) + count <= NOTED and len(track.patterns) < PATTERNS

    def note_loads(self, index: int, pattern: GlobalPattern, starts: list[int], buffer: Buffer) -> None:
        """Note accesses of which `only_reads` holds."""
        telling = self.telling
        role = self.roles[index]
        if role is None or buffer.read_only or not self.on:
            return
        track = self.track(buffer)
        if self.within is not None:
            for start in dict.fromkeys(starts):
                self.within.note(role, index, pattern, start, track)
        if not self.between:
            return
        age = self.batch if telling is None else telling.age
        if track.age != age:
            track.seen.clear()
            track.age = age
        seen = track.seen.setdefault((index, pattern), set())
        new = dict.fromkeys(start for start in starts if start not in seen)
        seen.update(new)
        track.kinds.add(READ)
        track.patterns.add(id(pattern))
        clocks = None if telling is None else telling.clock
        track.noted += [(index, pattern, start, self.first_lane, clocks) for start in new]

    def kinds(self) -> dict[int, set[int]]:
        """Address of each buffer that was accessed -> kinds of access."""
        return {track.buffer.start: track.kinds for track in self.tracks}

    def touched(self, buffer: Buffer) -> tuple[np.ndarray, np.ndarray] | None:
        """Which granules of a buffer were read, and which written, atomically or not: bool; None if none was."""
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

    def note_rows(self, instruction: Instruction, rows: Rows) -> None:
        """A bulk copy accesses global memory, all of it in one buffer."""
        role, buffer = self.roles[instruction.index], self.machine.memory.find(int(rows.starts[0]))
        if role is not None and buffer is not None and not buffer.read_only and self.between:
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
            for clash in waiting:
                self._report(WRITE, clash, same)

    def _look(self, role: Role, index: int, pattern: Any, start: int, track: Track) -> None:
        track.kinds.update(role.kinds)
        if track.active:
            self._judge(role, index, pattern, start, track)
            return
        clocks = None if self.telling is None else self.telling.clock
        track.noted.append((index, pattern, start, self.first_lane, clocks))
        if not isinstance(pattern, Rows):
            track.patterns.add(id(pattern))
        alone = True
        if WRITE in track.kinds or {READ, STRONG} <= track.kinds:
            new = track.noted[-1:]
            if track.owner is None:
                track.owner, new = np.zeros(track.granules(self.granule), np.int32), track.noted
            alone = all(self._claim(track.owner, note, track) for note in new)
        if not alone or len(track.noted) > NOTED or len(track.patterns) > PATTERNS:
            track.noted.pop()
            self._activate(track)
            self._judge(role, index, pattern, start, track)

    def _claim(self, owner: np.ndarray, note: tuple[Any, ...], track: Track) -> bool:
        """Whether no other unit than a noted access's own has touched its granules, which become that unit's."""
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
            if ((before != 0) & ~_within(before, low, self.width)).any():
                return False
        owner[cells] = ids
        return pattern.unique or bool(_within(owner[cells], low, self.width).all())

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
        track.active, track.owner = True, None
        for index, pattern, start, first, clocks in track.noted:
            cells, lanes = self.cells(pattern, start, track)
            ids, low = self.ids(lanes, first)
            role = self.roles[index]
            assert role is not None
            clock = 0 if clocks is None else clocks[(ids - 1) // self.width - first // self.width]
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
        if pattern.unique is None:
            first = np.sort(pattern.cells[:, 0])
            pattern.unique = bool((first[1:] != first[:-1]).all())
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
                writer = int(track.tables[WRITE].lane[0][(word - track.buffer.start) // self.granule])
                if writer:
                    telling.told(word, (writer - 1) // self.width)
        if role.listens:
            telling.act(role, lanes, words, tells=False)
        self._look(role, index, pattern, start, track)
        if role.tells:
            telling.act(role, lanes, words)
        self.between = not telling.overflowed

    def _tell_plainly(self, role: Role, pattern: Any, start: int, track: Track, telling: Telling) -> None:
        """A plain store: it tells something where others listen."""
        cells, lanes = self.cells(pattern, start, track)
        words = track.buffer.start + cells[:, 0] * self.granule
        flags = np.isin(words, list(telling.flags))
        if flags.any():
            telling.act(role, lanes[flags], words[flags])

    # Judging

    def _judge(self, role: Role, index: int, pattern: Any, start: int, track: Track) -> None:
        cells, lanes = self.cells(pattern, start, track)
        ids, low = self.ids(lanes, self.first_lane)
        clock = 0 if self.telling is None else self.telling.clock[(ids - 1 - self.first_lane) // self.width]
        for kind in role.kinds:
            clashes = [
                clash for other in AGAINST[kind] for clash in self._against(track, other, index, cells, lanes, low)
            ]
            track.tables[kind].put(cells, ids, low, self.width, index, clock)
            if kind == WRITE and not pattern.unique:
                clashes += self._at_once(track, index, cells, lanes, low)
            for clash in clashes:
                self.met(role, kind, clash)

    def met(self, role: Role, kind: int, clash: Clash) -> None:
        """Report a clash; of two stores once their values are known."""
        if kind == clash.other_kind == WRITE and role.head in STORES:
            self.waiting.append(clash)
        else:
            self._report(kind, clash, same=False)

    def same_unit(self, last: np.ndarray, low: np.ndarray) -> np.ndarray:
        """Which of `last` are lanes of the units that begin at the lanes `low`."""
        return _within(last, low, self.width)

    def clash(
        self, track: Track, index: int, lanes: np.ndarray, bad: np.ndarray, cell: int, other: int, by: Instruction,
        kind: int, told: bool = False,
    ) -> Clash:  # fmt: skip
        """Of accesses to [lanes, k] granules those marked `bad` meet what lane `other` of the grid did to one."""
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
        for slot in range(len(table.lane)):
            last = table.lane[slot][cells]
            other = last != 0
            if not other.any():
                continue
            other &= ~_within(last, low, self.width)
            if not other.any():
                continue
            told = np.zeros(other.shape, bool)
            if self.telling is not None:
                rows, columns = np.nonzero(other)
                mine = (low[rows, 0] - 1 - self.first_lane) // self.width
                units, clocks = (last[other] - 1) // self.width, table.clock[slot][cells[other]]
                heard = self.telling.heard[mine, units] >= clocks
                # What was read has been used before the flag was set, with a fence or without.
                before = heard if kind == READ else self.telling.known[mine, units] >= clocks
                other[rows[before], columns[before]] = False
                told[rows, columns] = heard
                if not other.any():
                    continue
            bad = np.asarray(other.any(axis=1))
            row, k = (int(v) for v in np.argwhere(other)[0])
            cell = int(cells[row, k])
            by = self.machine.program.instructions[int(table.by[slot][cell])]
            address = track.buffer.start + cell * self.granule
            return [Clash(index, lanes[bad], address, int(last[row, k]) - 1, by, kind, bool(told[row, k]), bad)]
        return []

    def _at_once(self, track: Track, index: int, cells: np.ndarray, lanes: np.ndarray, low: np.ndarray) -> list[Clash]:
        """Units that write one granule in the same step."""
        last = track.tables[WRITE].lane[0][cells]
        other = ~_within(last, low, self.width)
        if not other.any():
            return []
        bad = np.asarray(other.any(axis=1))
        row, k = (int(v) for v in np.argwhere(other)[0])
        address = track.buffer.start + int(cells[row, k]) * self.granule
        instruction = self.machine.program.instructions[index]
        return [Clash(index, lanes[bad], address, int(last[row, k]) - 1, instruction, WRITE, False, bad, True)]

    def stored(self, before: np.ndarray, after: np.ndarray, values: np.ndarray) -> None:
        """A store that races with others has been done: `before` and `after` it, and its `values`, one a lane."""
        raw = [np.ascontiguousarray(part).view(np.uint8).reshape(len(values), -1) for part in (before, after, values)]
        waiting, self.waiting = self.waiting, []
        for clash in waiting:
            kept = (raw[2] == raw[1 if clash.at_once else 0]).all(axis=1)
            self._report(WRITE, clash, same=bool(kept[clash.rows].all()))

    # Words

    def _report(self, kind: int, clash: Clash, same: bool) -> None:
        machine = self.machine
        instruction = machine.program.instructions[clash.index]
        role, other_role = self.roles[clash.index], self.roles[clash.other.index]
        assert role is not None
        assert other_role is not None
        name = self._kind(role, instruction, kind, clash, other_role, same)
        cta, thread = divmod(clash.other_lane, machine.warps_per_cta * 32)
        block = machine.block_at(cta)
        where = machine.memory.describe(clash.address)
        whose = f"block {block}"
        if clash.inside and cta == int(machine.cta_of_lane[clash.lanes[0]]) + machine.first_cta:
            same_warp = thread // 32 == int(machine.warp_of_lane[clash.lanes[0]])
            whose = f"lane {thread % 32} of the same warp" if same_warp else f"warp {thread // 32} of the same block"
        details: dict[str, Any] = {
            "other_access": machine.reporter.sources.where(clash.other),
            "other_thread": f"block {block}, warp {thread // 32}, lane {thread % 32}",
        }
        narrow = [text for text, one in ((instruction.opcode, role), (clash.other.opcode, other_role)) if one.narrow]
        if narrow and not clash.inside:
            details["scope"] = f"{narrow[0]} is seen by its own block; other blocks need .gpu"
        elif clash.told:
            fence = "__threadfence_block()" if clash.inside else "__threadfence()"
            details["missing"] = f"a {fence} between the other access and the flag or atomic that told of it"
        if name == "lost_update":
            what = "reads, changes and stores, without an atomic,"
        else:
            what = f"{role.verb(kind)} of {role.nbytes} bytes at"
        machine.report(
            name,
            f"{what} {clash.address:#x}, {where}; {other_role.verb(clash.other_kind)} by {whose}"
            f"{' (the same instruction)' if clash.other is instruction else ''}, and nothing orders the two"
            + (", which store one value" if same else ""),
            instruction, clash.lanes, clash.address, details, clash.other,
        )  # fmt: skip

    def _kind(self, role: Role, instruction: Instruction, kind: int, clash: Clash, other_role: Role, same: bool) -> str:
        program = self.machine.program
        pair, held = {kind, clash.other_kind}, self._held(clash, kind)
        narrow = (role.narrow or other_role.narrow) and not clash.inside
        if narrow or (clash.told and pair <= {READ, WRITE} and not held):
            return "fence_missing"
        stores = [i for i, k in ((instruction, kind), (clash.other, clash.other_kind)) if k == WRITE]
        loads = [i for i, k in ((instruction, kind), (clash.other, clash.other_kind)) if k == READ]
        if {STRONG, POLL} & pair:
            if loads and clash.inside:  # the count of a block, read where a barrier is missing
                return "flag_race" if looks_before_an_atomic(program, loads[0]) else "global_race"
            if READ in pair or all(constant_stored(program, store) for store in stores) or held:
                return "flag_race"
            return "global_race"
        changed = any(own_load(program, store) is not None for store in stores)
        if changed and all(stored_back(program, load) for load in loads):
            return "lost_update"
        if same or (READ in pair and constant_stored(program, stores[0])) or held:
            return "flag_race"
        return "lane_race" if self._one_warp(clash) else "global_race"

    def _one_warp(self, clash: Clash) -> bool:
        return clash.inside and clash.other_lane // 32 == (self.first_lane + int(clash.lanes[0])) // 32

    def _held(self, clash: Clash, kind: int) -> bool:
        """Whether the units of plain stores have used the place by atomics, as who holds a lock has."""
        writers = [clash.other_lane] if clash.other_kind == WRITE else []
        writers += [int(self.lane[clash.lanes[0], 0]) - 1] if kind == WRITE else []
        telling, messages = self.telling, self.machine.shadow.messages
        if clash.inside:
            cluster = int(self.machine.cta_of_lane[clash.lanes[0]]) // self.machine.cluster_size
            return messages is not None and (cluster, clash.address) in messages.places
        return telling is not None and all(telling.has_listened(clash.address, lane // self.width) for lane in writers)
