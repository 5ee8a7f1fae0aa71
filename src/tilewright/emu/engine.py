"""Runs a batch from block to block by the compiled loops (native/engine.c), and does in Python what they leave to it.

Plain instructions (straight.py), loads and stores with known address patterns (access.py) and branches are done there.
All else is a step: it gets the lanes as it would without the loops, and finds every access noted that came before.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from .compiled import address
from .endless import FAIR_EVERY
from .garbage import uncollected
from .isa.registry import Step
from .memory import ARENA_BASE, Buffer
from .ptx import Instruction, Memory, Operand, Register

if TYPE_CHECKING:
    from .compiled import Library
    from .global_port import GlobalPattern
    from .isa.memory import Spread
    from .machine import Machine
    from .shared_memory import SharedPattern
    from .trace import Site

# As native/engine.c and native/access.c number and name them.
PLAIN, ACCESS, PYTHON, MULTIPLY = range(4)
BY_PYTHON, ON, BY_PREDICATE = range(3)
BEGIN, STEP, FINAL, LIMIT, FULL = range(5)
READS_SHARED, WRITES_SHARED, READS_GLOBAL, WRITES_GLOBAL = range(4)
_STATE = (
    "blocks", "key", "live", "picked", "mask", "lanes", "uniform", "here", "entry", "active", "live_count",
    "live_warps", "active_warps", "picks", "fair", "fair_most", "ran", "watch_at", "by_order", "clock", "limit",
    "batch", "shared", "global", "initialised", "granule_bits", "arena", "marks", "races", "claims", "events",
    "event_count", "event_room",
)  # fmt: skip
_BLOCK = (
    "entries", "count", "threads", "warps", "instructions", "final", "predicate", "negated", "target", "otherwise",
    "bound", "joins",
)  # fmt: skip
_ACCESS = (
    "kind", "base", "base_step", "base_bytes", "offset", "bytes", "part", "parts", *("rows",) * 4, *("steps",) * 4,
    "guard", "negated", "guarded", "patterns", "pattern_count", "next", "requests", "wavefronts", "ideal", "sectors",
    "moved", "instruction", "hits", "misses", "claims",
)  # fmt: skip
_PATTERN = (
    "mask", "lanes", "count", "known", "offsets", "classes", "ready", "requests", "wavefronts", "ideal", "low", "high",
    "aligned", "buffer_start", "buffer_end", "buffer_fixed", "number", "owners", *("sectors",) * 32,
)  # fmt: skip
S, B, A, P = ({name: names.index(name) for name in names} for names in (_STATE, _BLOCK, _ACCESS, _PATTERN))
EVENTS = 1024
"""Accesses noted at once."""
HOPELESS = 64
"""Misses in a row of one access, more than its hits, after which it is left to Python."""
FORGOTTEN = 8
"""Patterns that are kept beyond those that Python remembers."""
_STRONG = re.compile(r"\.(volatile|mmio|relaxed|acquire|release)\b")


class Access:
    """One load or store that the loops may do. `held`: what has to stay where it is."""

    def __init__(self, engine: Engine, site: Site, told: np.ndarray, held: Any) -> None:
        self.engine, self.site, self.told, self.held = engine, site, told, held
        self.table = np.zeros(0, np.int64)
        self.known: dict[Any, np.ndarray] = {}
        """Pattern -> what the loops are told of it."""
        self.shared = bool(told[A["kind"]] < READS_GLOBAL)
        engine.every.append(self)

    def learn(self) -> bool:
        """After Python has done the access: tell the loops of the patterns it knows now. False: there is no use."""
        told = self.told
        if told[A["misses"]] > HOPELESS and told[A["misses"]] > told[A["hits"]]:
            return False
        patterns = self.site.patterns
        if len(self.known) > len(patterns) + FORGOTTEN:
            for pattern in self.known.keys() - set(patterns):
                del self.engine.patterns[int(self.known.pop(pattern)[P["number"]])]
        rows = [row for pattern in patterns if (row := self._row(pattern)) is not None]
        self.table = np.array([address(row) for row in rows], np.int64)
        told[A["patterns"]], told[A["pattern_count"]], told[A["next"]] = address(self.table), len(rows), 0
        return True

    def _row(self, pattern: SharedPattern | GlobalPattern) -> np.ndarray | None:
        row = self.known.get(pattern)
        if row is None:
            row = self.known[pattern] = self._described(pattern)
        if self.shared:
            if pattern.peers is not None:  # type: ignore[union-attr]
                return None
            row[P["ready"]] = pattern.batch  # type: ignore[union-attr]
        else:
            buffer = pattern.buffer  # type: ignore[union-attr]
            if buffer is None:
                return None
            row[P["buffer_start"]], row[P["buffer_end"]] = buffer.start, buffer.end
            row[P["buffer_fixed"]] = buffer.read_only
            row[P["owners"]] = self.engine.owners(buffer)
            for phase, sectors in pattern.sectors.items():  # type: ignore[union-attr]
                row[P["sectors"] + phase] = sectors
        return row

    def _described(self, pattern: Any) -> np.ndarray:
        engine, row, size = self.engine, np.zeros(len(_PATTERN), np.int64), int(self.told[A["bytes"]])
        known, offsets = (pattern.base, pattern.offsets) if self.shared else (pattern.relative, pattern.relative)
        held = [known, offsets]
        if pattern.lanes is None:
            held.append(np.empty(len(offsets) // 32, np.uint8))
            row[P["classes"]] = address(held[-1])
            engine.library.classes(address(offsets), len(offsets), size, address(held[-1]))
        else:
            mask = np.zeros(engine.machine.lanes, bool)
            mask[pattern.lanes] = True
            held += [mask, pattern.lanes]
            row[P["mask"]], row[P["lanes"]] = address(mask), address(pattern.lanes)
        row[P["count"]] = len(offsets)
        row[P["known"]], row[P["offsets"]] = address(known), address(offsets)
        row[P["requests"]] = pattern.requests
        if self.shared:
            row[P["wavefronts"]], row[P["ideal"]] = pattern.wavefronts, pattern.ideal
        else:
            row[P["low"]], row[P["high"]], row[P["aligned"]] = pattern.low, pattern.high, pattern.aligned
            row[P["sectors"] :] = -1
        row[P["number"]] = number = next(engine.numbers)
        engine.patterns[number] = pattern, held, self.shared
        return row

    def count(self) -> None:
        """Hand the counts on."""
        for name, place in (
            ("requests", "requests"), ("wavefronts", "wavefronts"), ("ideal", "ideal"), ("sectors", "sectors"),
            ("bytes", "moved"),
        ):  # fmt: skip
            setattr(self.site, name, getattr(self.site, name) + int(self.told[A[place]]))
            self.told[A[place]] = 0


@dataclass
class BlockPart:
    """A part of a block: a run of plain instructions (address, how many), or a step, perhaps one that the loops may do:
    an access, or products of warps (tensor_tiles.py)."""

    step: Step | None
    run: tuple[int, int] = (0, 0)
    access: Access | None = None
    products: np.ndarray | None = None


class Engine:
    """The compiled loops at work on the batches of one machine."""

    def __init__(self, machine: Machine, library: Library) -> None:
        self.machine, self.library = machine, library
        self.state = np.zeros(len(_STATE), np.int64)
        blocks = machine.program.blocks
        self.blocks = np.zeros((len(blocks), len(_BLOCK)), np.int64)
        for block, row in zip(blocks, self.blocks, strict=True):
            row[B["instructions"]] = block.end - block.start
            row[B["joins"]] = bool(block.warpgroup or block.warp or block.member_mask is not None)
            row[B["final"]], row[B["target"]] = (ON, block.index + 1) if block.index + 1 < len(blocks) else (0, 0)
        self.steps: list[list[Step | None]] = [[] for _ in blocks]
        """Of each block what Python does at each entry."""
        self.accesses: dict[tuple[int, int], Access] = {}
        """(block, entry) -> access."""
        self.every: list[Access] = []
        self.offered: Access | None = None
        """The access that is being bound."""
        self.products: np.ndarray | None = None
        """The products that are being bound."""
        self.numbers = count()
        self.patterns: dict[int, tuple[Any, Any, bool]] = {}
        """Number -> pattern, what has to stay where it is, and whether it is one of shared memory."""
        self.events = np.zeros((EVENTS, 4), np.int64)
        self._claims = np.zeros(6, np.int64)
        self._claims_at = address(self._claims)
        self._judged: tuple[bool, bool] | None = None
        self._lanes: np.ndarray | None = None
        """The lanes of the grid that the loops have been told of, for their claims."""
        self._view = self.state.data
        """The same: one number is had and put in half the time."""
        self._picked = np.zeros(machine.lanes, bool)
        self._picked_at = address(self._picked)
        self._tables: dict[int, np.ndarray] = {}
        self._kept: list[np.ndarray] = []
        self._live: np.ndarray | None = None
        self._ran = self._released = 0
        state, self._at = self.state, address(self.state)
        state[S["blocks"]], state[S["picked"]] = address(self.blocks), self._picked_at
        state[S["events"]], state[S["event_room"]] = address(self.events), EVENTS
        state[S["lanes"]], state[S["fair_most"]] = machine.lanes, FAIR_EVERY
        state[S["clock"]], state[S["arena"]] = address(machine.clock), ARENA_BASE
        state[S["by_order"]], state[S["shared"]] = machine.order is not None, machine.shared.host
        state[S["key"]] = address(machine.scheduler.key)
        state[S["initialised"]] = address(machine.shared.initialised)
        state[S["granule_bits"]] = machine.shared.granule.bit_length() - 1

    # Binding

    def offer(
        self, instruction: Instruction, spread: Spread, operand: Operand, space: str, site: Site, writes: bool
    ) -> None:
        """A load or store is being bound: take it if the loops can do it."""
        machine, rows = self.machine, spread.rows_told
        if rows is None or not isinstance(operand, Memory):
            return
        if space != "shared" and (_STRONG.search(instruction.opcode) or space == "local"):
            return
        base, offset = machine.pointer(instruction, operand)
        if len(base) > 1 and (base.strides != (base.itemsize,) or not isinstance(operand.base, Register)):
            return
        told = np.zeros(len(_ACCESS), np.int64)
        kind = (READS_SHARED if space == "shared" else READS_GLOBAL) + writes
        told[A["kind"]], told[A["base"]], told[A["base_step"]] = kind, address(base), len(base) > 1
        told[A["base_bytes"]], told[A["offset"]], told[A["bytes"]] = base.itemsize, offset, spread.bytes
        places, steps = rows
        told[A["part"]], told[A["parts"]] = spread.bytes // len(places), len(places)
        told[A["rows"] : A["rows"] + len(places)] = places
        told[A["steps"] : A["steps"] + len(places)] = steps
        told[A["instruction"]] = instruction.index
        told[A["claims"]] = machine.races is not None and machine.races.plain(instruction.index)
        if instruction.guard is not None:
            told[A["guard"]], told[A["negated"]] = address(machine.row(instruction.guard)), instruction.guard_negated
            told[A["guarded"]] = address(machine.trace.guarded[instruction.index :])
        self.offered = Access(self, site, told, (base, spread))

    def end(self, index: int, target: int, predicate: int = 0, negated: bool = False, otherwise: int = 0) -> None:
        """A block ends with a branch: to `target`, or where the predicate's row says so."""
        row = self.blocks[index]
        row[B["final"]] = BY_PREDICATE if predicate else ON
        row[B["target"]], row[B["otherwise"]], row[B["predicate"]], row[B["negated"]] = (
            target, otherwise, predicate, negated,
        )  # fmt: skip

    def python_ends(self, index: int) -> None:
        """A block ends with something that Python does, unless `end` says otherwise."""
        self.blocks[index, B["final"]] = BY_PYTHON

    def bound(self, index: int, entries: list[BlockPart]) -> None:
        """A block has been bound."""
        table = np.zeros((len(entries), 3), np.int64)
        for number, entry in enumerate(entries):
            if entry.access is not None:
                table[number] = ACCESS, address(entry.access.told), 0
                self.accesses[index, number] = entry.access
            elif entry.products is not None:
                table[number] = MULTIPLY, address(entry.products), 0
                self._kept.append(entry.products)
            elif entry.step is None:
                table[number] = (PLAIN, *entry.run)
            else:
                table[number, 0] = PYTHON
        self._tables[index] = table
        self.steps[index] = [entry.step for entry in entries]
        row = self.blocks[index]
        row[B["entries"]], row[B["count"]], row[B["bound"]] = address(table), len(entries), True

    def owners(self, buffer: Buffer) -> int:
        """Return where the loops find who owns the granules of a buffer; 0: nobody is asked."""
        races = self.machine.races
        return 0 if races is None or buffer.read_only else address(races.track(buffer).owners)

    # Running

    def run(self, here: int) -> int:
        """Run a block whose lanes have been picked, or (-1) the next one if it is plain which, and those that follow.

        Returns the block that Python has to end, its instructions being done; -1 if it has to say which comes next.
        """
        state, scheduler = self._view, self.machine.scheduler
        if here >= 0 and not self.blocks[here, B["bound"]]:
            self.machine.bind(here)
        self._tell(here)
        while True:
            code = self.library.go(self._at)
            self._told(code == STEP)
            self.machine.pulse()
            if code == STEP:
                here, entry = state[S["here"]], state[S["entry"]]
                self._step(here, entry)
                state[S["entry"]] = entry + 1
                self._tell_memory()
            elif code != FULL:
                scheduler.ran = state[S["ran"]]
                return -1 if code == BEGIN else state[S["here"]]

    def _tell(self, here: int) -> None:
        machine, scheduler, state = self.machine, self.machine.scheduler, self.state
        self._ran = scheduler.ran
        if scheduler.live is not self._live:
            self._live = scheduler.live
            state[S["live"]] = address(scheduler.live)
        state[S["mask"]] = machine.mask_address()
        state[S["uniform"] : S["ran"] + 1] = (
            scheduler.uniform, scheduler.current if here < 0 else here, -1 if here < 0 else 0, scheduler.active,
            scheduler.live_count, scheduler.live_warps, 0, scheduler.picks, scheduler.fair, FAIR_EVERY, scheduler.ran,
        )  # fmt: skip
        state[S["watch_at"]], state[S["limit"]] = scheduler.watch.at, machine.limit - machine.ran_before
        state[S["batch"]] = machine.shared.batch
        self._tell_memory()

    def _tell_memory(self) -> None:
        machine, state = self.machine, self._view
        state[S["global"]] = machine.memory.host
        state[S["marks"]] = machine.memory.written is not None
        races = machine.races
        state[S["races"]] = races is not None and races.on
        state[S["claims"]] = 0
        if races is not None and races.telling is None and machine.shadow.messages is None:
            if races.lane is not self._lanes:  # another batch
                self._lanes = races.lane
                self._claims[2:] = address(races.lane), address(races.low), races.width, races.granule.bit_length() - 1
            judged = races.between, races.within is not None
            if judged != self._judged:
                self._judged = self._claims[:2] = judged
            state[S["claims"]] = self._claims_at
        if machine.memory.released != self._released:  # a pattern may have been in what is no buffer any more
            self._released = machine.memory.released
            for access in self.every:
                if not access.shared:
                    access.told[A["pattern_count"]] = 0

    def _told(self, within: bool) -> None:
        """Take over what the loops have done, in the same block (`within`) if they have begun no other."""
        machine, scheduler, state = self.machine, self.machine.scheduler, self.state
        scheduler.picks, scheduler.fair, _, ran = state[S["picks"] : S["ran"] + 1].tolist()
        if ran == self._ran and within:
            self._note()
            return
        uniform, here, _, scheduler.active = state[S["uniform"] : S["active"] + 1].tolist()
        scheduler.uniform = bool(uniform)
        if uniform:
            scheduler.current = here
        if ran != self._ran:
            self._ran = ran
            mask = int(state[S["mask"]])
            if mask == self._picked_at:
                machine.set_mask(self._picked.copy())
            else:
                machine.set_mask(scheduler.live if mask else None)
        self._note()

    def _note(self) -> None:
        """Tell those who judge of the accesses that were done."""
        count = self._view[S["event_count"]]
        if not count:
            return
        self._view[S["event_count"]] = 0
        with uncollected():
            self._note_events(count)

    def _note_events(self, count: int) -> None:
        shadow, races, patterns = self.machine.shadow, self.machine.races, self.patterns
        events = self.events[:count].tolist()
        loads: dict[tuple[int, int], list[int]] = {}
        for index, number, start, _ in events:
            pattern, _, shared = patterns[number]
            if shared:
                shadow.record(pattern)
            else:
                loads.setdefault((index, number), []).append(start)
        if races is None:
            return
        buffers = {number: patterns[number][0].buffer for _, number in loads}
        if all(races.only_reads(index, buffers[number], len(events)) for index, number in loads):
            for (index, number), starts in loads.items():
                races.note_loads(index, patterns[number][0], starts, buffers[number])
            return
        for index, number, start, claimed in events:
            if number in buffers:
                races.note(index, patterns[number][0], start, buffers[number], claimed=bool(claimed))

    def _step(self, here: int, entry: int) -> None:
        step = self.steps[here][entry]
        assert step is not None
        step()
        access = self.accesses.get((here, entry))
        if access is not None and not access.learn():
            self._tables[here][entry, 0] = PYTHON
            del self.accesses[here, entry]

    def count(self) -> None:
        """A batch is done: hand the counts on."""
        trace = self.machine.trace
        for index, row in enumerate(self.blocks[:, [B["threads"], B["warps"]]].tolist()):
            trace.block_threads[index] += row[0]
            trace.block_warps[index] += row[1]
        self.blocks[:, [B["threads"], B["warps"]]] = 0
        for access in self.every:
            access.count()
