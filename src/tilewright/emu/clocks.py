"""Races on shared memory where parts of a block wait for one another: named barriers, mbarriers, clusters, bulk copies.

Vector clocks (knowledge.py), the general form of epochs.py. An access races with an earlier one of another
warp that it is not ordered after. Checked at each access, so slower than judging epochs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .bulk_hazards import BulkClocks
from .compiled import address
from .knowledge import Knowledge
from .lane_races import LaneTable
from .memory import sparse_zeros
from .messages import PLAIN, STRONG, VOLATILE, Messages, passed, words_of
from .product_hazards import ProductClocks
from .ptx import Instruction
from .shadow import WORDS
from .shared_memory import SharedPattern
from .uses import one_value

if TYPE_CHECKING:
    from .machine import Machine
    from .mbarriers import Mbarrier

WRITING = ("write", "copy", "bulk_write", "bulk_merge")
READING = ("read", "tensor", "bulk_read")
REFUSED, NOTED, AT_ONCE = range(3)
"""As native/clocks.c numbers its answers."""


class ClockShadow(Knowledge):
    """Last write, reads and atomics of every granule, by warp."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        granules = len(machine.shared.initialised)
        self.written = sparse_zeros((granules, self.warps), np.int32)
        """Clock of each warp's last write of a granule; 0: none."""
        self.read = sparse_zeros((granules, self.warps), np.int32)
        self.updated = sparse_zeros((granules, self.warps), np.int32)
        """The same of atomics."""
        self.flying = np.zeros(granules, np.int32)
        """1 + the instruction of the copy in flight to a granule."""
        self.by: dict[str, np.ndarray] = {
            kind: np.zeros(granules, np.int32) for kind in ("write", "read", "atomic", "copy")
        }
        """The instruction of the last access of each kind."""
        self.copies_of: dict[int, SharedPattern] = {}
        self.every = np.arange(machine.lanes)
        self.noted = np.zeros(granules, bool)
        """Whether a granule has any clock in these: bytes that only bulk copies write and wgmma reads have none."""
        self.used = False
        """Whether anything has been noted in this batch."""
        self.products = ProductClocks(self) if machine.products else None
        self.bulk = BulkClocks(self)
        self.words = words_of(machine.program)
        self.ends_barriers = bool(machine.program.opcodes_begin("mbarrier.inval").any())
        self.messages = Messages(self) if passed(machine.program) else None
        self.lanes = LaneTable(machine, self.messages)
        """Judges lanes of one warp, while what they may tell one another can be followed."""
        self.stored_at = np.full(machine.lanes, -1, np.int64)
        """The time of each lane's last plain store, by the meetings."""
        self.loaded_at = np.full(machine.lanes, -1, np.int64)
        """The same of plain loads, but for those that all lanes of a warp run together."""
        self.stored = False
        """Whether there was any store or load of these."""
        self.alone: dict[tuple[int, int, int], tuple[np.ndarray, int]] = {}
        """(cluster, warp, clock) -> of an arrival at an mbarrier by a part of a warp: which lanes arrived, and when the
        warp had last come together. What the others have done since then is not told."""
        self.unfenced: list[Mbarrier] = []
        """mbarriers that no fence.mbarrier_init has followed yet."""
        self.fenced: list[Mbarrier] = []
        """Those that the next barrier of their cluster tells, however relaxed it is."""
        self._after: set[tuple[Mbarrier, int, int]] = set()
        """Warps of the batch, from one to another, that are known to come after an mbarrier's initialisation, of blocks
        without a cluster."""
        self._told = np.zeros(0, np.int64)
        """What the compiled loops are told of the tables (native/clocks.c)."""
        self.reset()

    def reset(self) -> None:
        """A new batch of blocks starts."""
        self.know_nothing()
        self.unfenced.clear()
        self.fenced.clear()
        self.alone.clear()
        self._after.clear()
        self.stored_at[:] = self.loaded_at[:] = -1
        self.stored = False
        if self.used:  # else they are as they were made, and to write them is to use the memory
            self.forget(np.flatnonzero(self.noted))
            self.flying[:] = 0
            if self.products:
                self.products.reset()
            self.lanes.reset()
        self.used = False
        self.bulk.reset()
        if self.messages:
            self.messages.reset()

    def _where(self, pattern: SharedPattern) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(lanes of the batch, their warps in the cluster, what those know of warps [lanes, warps])."""
        lanes = np.arange(self.machine.lanes) if pattern.lanes is None else pattern.lanes
        cluster, warps = self.place(lanes)
        return lanes, warps, self.order[cluster, warps]

    # Accesses

    def record(self, pattern: SharedPattern) -> None:
        """Check an access against what came before it, then note it."""
        self.used = True
        word, kind = self.words[pattern.instruction.index], pattern.kind
        if kind == "bulk_write" and self.alone:
            self._told_alone(pattern, *self._where(pattern))
        if kind in ("bulk_write", "tensor") and not word.updates and self._by_loops(pattern):
            return
        if kind in ("read", "write") and word.strength == PLAIN and not word.updates and self._noted_by_loops(pattern):
            if self.messages and kind == "write":
                self.messages.tell_plainly(*self._places(pattern))
            return
        messages = self.messages if kind in ("read", "write", "atomic") else None
        if messages and word.hears:
            messages.hear(*self._places(pattern), word)
        lanes, warps, known = self._where(pattern)
        granules = pattern.granules
        addresses = np.broadcast_to(pattern.addresses, lanes.shape)
        if self.flying[pattern.where].any():
            flying = (self.flying[granules] != 0).any(axis=1)
            row = int(np.flatnonzero(flying)[0])
            number = int(self.flying[granules[row]].max()) - 1
            self.report_not_waited(pattern, lanes[flying], addresses[flying], self.copies_of[number])
        self.bulk.check(pattern, lanes, writing=kind not in READING)
        if self.products and kind == "tensor":
            self.products.issue(pattern)
            return
        if self.products and kind not in READING:
            self.products.written(pattern, lanes, addresses, known)
        strong = word.strength in (VOLATILE, STRONG)
        if strong and kind == "write":
            kind = "atomic"
        writing = kind in WRITING
        against = [(self.written, "write")]
        if kind not in READING:
            against.append((self.read, "read"))
        if kind != "atomic" and not strong:
            against.append((self.updated, "atomic"))
        for table, name in against if self.noted[pattern.where].any() else ():
            self._compare(pattern, table, known, lanes, warps, addresses, name)
        if word.updates:
            self._lost(pattern, known, lanes, warps, addresses)
        if self.messages and (self.messages.overflowed or (word.strength > PLAIN and word.asks)):
            if word.strength == VOLATILE and kind == "atomic":  # data, as may be, or a flag: whoever reads it knows
                self.lanes.landed(pattern, granules, lanes, self.machine.meetings)
        elif kind in ("read", "write", "atomic", "copy", "bulk_read"):
            if self.alone and kind != "bulk_read":
                self._told_alone(pattern, lanes, warps, known)
            self.lanes.touch(pattern, granules, lanes, self.machine.meetings)
            if kind == "write" or (kind == "read" and not self.lanes.together[pattern.instruction.index]):
                self.stored = True
                (self.stored_at if kind == "write" else self.loaded_at)[lanes] = self.machine.meetings.time
        if kind.startswith("bulk_"):
            self.bulk.issued(pattern)
            return
        if messages and word.tells:
            messages.tell(*self._places(pattern), word)
        elif messages and kind == "write":
            messages.tell_plainly(*self._places(pattern))
        if strong and kind == "read":
            return
        own = known[np.arange(len(warps)), warps]
        columns = np.broadcast_to(warps[:, None], granules.shape)
        table = self.written if writing else self.read if kind == "read" else self.updated
        table[granules, columns] = own[:, None]
        self.noted[granules] = True
        self.by[kind][granules] = pattern.instruction.index
        if writing:
            self.by["write"][granules] = pattern.instruction.index
            # Two warps that write one granule in this very step.
            self._compare(pattern, self.written, known, lanes, warps, addresses, "write")
        if kind == "copy":
            self.copies_of[pattern.instruction.index] = pattern
            self.flying[granules] = pattern.instruction.index + 1

    def meet(self, members: np.ndarray | None, firmly: bool = True) -> None:
        """Lanes came together."""
        races = self.machine.races
        if members is None and self.messages and races is not None and races.telling is not None:
            races.telling.meet(self.machine.mask)

    def _by_loops(self, pattern: SharedPattern) -> bool:
        """Return whether the compiled loops found nothing wrong with a bulk copy's write or a product's read, and noted
        it."""
        library, machine, index, lanes = self.machine.compiled, self.machine, pattern.instruction.index, pattern.lanes
        if library is None or lanes is None:
            return False
        if pattern.kind == "tensor":
            granules, group = pattern.granules, (pattern.warps.astype(np.int64) - 1) // 4
            warps, places = lanes // 32, np.ascontiguousarray(granules, np.int64)
            where = address(places), *granules.shape, address(warps), address(group)
            return bool(library.product_reads(self._tables(), *where, 1 + index))
        if pattern.piece is None or self.bulk.lent is not None:
            return False
        low, high = pattern.piece.start, pattern.piece.stop
        cta = low * machine.shared.granule // machine.shared.stride
        first = cta % machine.cluster_size * machine.warps_per_cta
        if not library.bulk_write(self._tables(), low, high, int(lanes[0]) // 32, first, index):
            return False
        self.bulk.used = True
        return True

    def _noted_by_loops(self, pattern: SharedPattern) -> bool:
        """Return whether the compiled loops found nothing wrong with a plain load or store, and noted it."""
        library, machine, table = self.machine.compiled, self.machine, self.lanes
        writes, index, met = pattern.kind == "write", pattern.instruction.index, machine.meetings
        if library is None or self.alone or (writes and self.bulk.lent is not None):
            return False
        if self.messages and self.messages.overflowed:
            return False
        granules, lanes = pattern.granules, self.every if pattern.lanes is None else pattern.lanes
        together, shared, block = bool(table.together[index]), machine.shared, (0, 0)
        if machine.cluster_size > 1:
            block = shared.stride // shared.granule, machine.warps_per_cta
        touch = np.array(
            [address(granules), address(lanes), *granules.shape, writes, together, bool(met.parts or self.messages),
             met.time + together, index, *block, address(self.by[pattern.kind])],
            np.int64,
        )  # fmt: skip
        found = library.access(self._tables(), address(table.told), address(touch))
        if found == REFUSED:
            return False
        if together:
            met.whole(np.unique(lanes // 32))
        if writes or not together:
            self.stored = True
            (self.stored_at if writes else self.loaded_at)[lanes] = met.time
        if found == AT_ONCE:
            lanes, warps, known = self._where(pattern)
            addresses = np.broadcast_to(pattern.addresses, lanes.shape)
            self._compare(pattern, self.written, known, lanes, warps, addresses, "write")
        return True

    def _tables(self) -> int:
        """Return where the compiled loops find what they are told of the tables."""
        known, width, bulk, products = self.known, self.known.shape[2], self.bulk, self.products
        if not len(self._told) or self._told[12] != width:  # a wider table may lie where the old one did
            reads = np.zeros(5, np.int64) if products is None else products.told
            parts = (
                self.noted, bulk.merging, bulk.objects, self.flying, self.written, self.read, self.updated, bulk.phase,
                bulk.column, bulk.by, bulk.reading,
            )  # fmt: skip
            told = [*map(address, parts), self.warps, width, address(known), *reads.tolist()]
            self._told = np.array(told, np.int64)
        return address(self._told)

    def told_by(self, lanes: np.ndarray, clock: int | None = None) -> None:
        """Note of which lanes of their warps these cannot speak: of those that have stored or read since they last
        met. `clock`: up to when they tell of their warp, where that is not now."""
        met = self.machine.meetings
        if not self.stored:
            return
        for warp in dict.fromkeys((lanes // 32).tolist()):
            every = slice(32 * warp, 32 * warp + 32)
            absent = np.ones(32, bool)  # those that have ended, too
            absent[lanes[lanes // 32 == warp] % 32] = False
            since = int(met.last[warp])
            (cluster,), (own,) = self.place(np.array([32 * warp]))
            key = int(cluster), int(own), int(self.order[cluster, own, own]) if clock is None else clock
            if not (absent & (np.maximum(self.stored_at[every], self.loaded_at[every]) >= since)).any():
                self.alone.pop(key, None)
                continue
            if any(time > since and members[every].any() for time, members in met.parts):
                continue  # some have met: whoever it was is taken to speak for all
            if self.messages and self.messages.spoken(warp, lanes, since):
                self.alone.pop(key, None)
                continue
            self.alone[key] = ~absent, since

    def _told_alone(self, pattern: SharedPattern, lanes: np.ndarray, warps: np.ndarray, known: np.ndarray) -> None:
        """Report reads of what a lane has stored, and writes of what it has read, of which another one of its warp has
        told without having met it."""
        table, granules = self.lanes, pattern.granules
        if pattern.kind == "read":
            clocks, who, at, by, verb = self.written, table.writer, table.wrote_at, table.wrote, "write"
        else:
            clocks, who, at, by, verb = self.read, table.reader, table.read_at, table.read, "read"
        last = who[granules] - 1
        cluster, theirs = self.place(np.maximum(last, 0))
        mine, rows = warps[:, None], np.arange(len(warps))[:, None]
        clock = clocks[granules, theirs]
        some = (last >= 0) & (theirs != mine) & (clock > 0) & (known[rows, theirs] == clock)
        some &= ~table.together[by[granules]] if verb == "read" else True
        if not some.any():
            return
        keys = np.stack([cluster[some], theirs[some], clock[some]], axis=1)
        for key in np.unique(keys, axis=0).tolist():
            found = self.alone.get((key[0], key[1], key[2]))
            if found is None:
                continue
            bad = some.copy()
            bad[some] = (keys == key).all(axis=1)
            bad &= ~found[0][last % 32] & (at[granules] >= found[1])
            if bad.any():
                row, k = (int(v) for v in np.argwhere(bad)[0])
                granule = int(granules[row, k])
                other = self.machine.program.instructions[int(by[granule])]
                self._report_alone(pattern, lanes[bad.any(axis=1)], granule, int(last[row, k]), verb, other)
                return

    def _report_alone(
        self, pattern: SharedPattern, lanes: np.ndarray, granule: int, lane: int, verb: str, other: Instruction
    ) -> None:
        machine = self.machine
        address = granule * machine.shared.granule % machine.shared.stride
        machine.report(
            "lane_race",
            f"{WORDS.get(pattern.kind, pattern.kind)} at shared address {address:#x}, a {verb} by lane {lane % 32} of "
            f"warp {int(machine.warp_of_lane[lane])}, of which another lane of that warp has told",
            pattern.instruction, lanes, address,
            {
                "other_access": machine.reporter.sources.where(other),
                "missing": f"a __syncwarp() between the {verb} and the arrival or flag of the lane that speaks for it",
            },
            other,
        )  # fmt: skip

    def _places(self, pattern: SharedPattern) -> tuple[np.ndarray, np.ndarray]:
        """(lanes of the batch, places of messages): below 0, where no place in global memory is."""
        lanes = np.arange(self.machine.lanes) if pattern.lanes is None else pattern.lanes
        return lanes, -1 - pattern.granules[:, 0]

    def _compare(
        self,
        pattern: SharedPattern,
        table: np.ndarray,
        known: np.ndarray,
        lanes: np.ndarray,
        warps: np.ndarray,
        addresses: np.ndarray,
        name: str,
    ) -> None:
        """`table` [granules, warps]: clocks of earlier accesses; a lane must know of all but its own warp's."""
        if self.all_known(table, pattern.granules, known, warps):
            return
        newer = table[pattern.granules] > known[:, None, :]
        newer[np.arange(len(warps)), :, warps] = False
        if not newer.any():
            return
        race = "shared_race"
        if pattern.kind == name == "write":
            same = self._one_value(pattern, newer)
            race = "flag_race" if same.all() else race
            newer &= same.all() | ~same[:, :, None]
        bad = newer.any(axis=(1, 2))
        row = int(np.flatnonzero(bad)[0])
        _, other_warp = (int(v) for v in np.argwhere(newer[row])[0])
        granule = pattern.granules[row][newer[row].any(axis=1)][0]
        other = self.machine.program.instructions[int(self.by[name][granule])]
        other_kind = name if not other.opcode.startswith("cp.") else "copy" if name == "write" else "bulk_read"
        self.report_race(pattern, lanes[bad], int(addresses[bad][0]), pattern.kind, other, other_kind, other_warp, race)

    def _one_value(self, pattern: SharedPattern, newer: np.ndarray) -> np.ndarray:
        """Return at which granules [rows, k] that others have written a store leaves their value as it is."""
        program, by = self.machine.program, self.by["write"][pattern.granules]
        value = one_value(program, pattern.instruction.index)
        equal = {int(index) for index in np.unique(by) if value is not None and one_value(program, int(index)) == value}
        return np.isin(by, list(equal)) | ~newer.any(axis=2)

    def _lost(
        self, pattern: SharedPattern, known: np.ndarray, lanes: np.ndarray, warps: np.ndarray, addresses: np.ndarray
    ) -> None:
        """A strong store of what was read there, changed: others of its kind have to be heard of before."""
        updates = np.array([word.updates for word in self.words])
        rows = updates[self.by["atomic"][pattern.granules]].all(axis=1)
        if self.messages:
            known = np.maximum(known, self.messages.heard[self.place(lanes)[0], warps])
        newer = (self.updated[pattern.granules] > known[:, None, :]).any(axis=1) & rows[:, None]
        for granule in np.unique(pattern.granules[:, 0]):  # and those of this very step
            together = np.flatnonzero(pattern.granules[:, 0] == granule)
            newer[together[:, None], warps[together]] = True
        newer[np.arange(len(warps)), warps] = False
        if newer.any():
            row, other_warp = (int(v) for v in np.argwhere(newer)[0])
            by = int(self.by["atomic"][pattern.granules[row, 0]])
            other = self.machine.program.instructions[by] if rows[row] else pattern.instruction
            where = lanes[newer.any(axis=1)], int(addresses[row])
            self.report_race(pattern, *where, "update", other, "update", other_warp, name="lost_update")

    def all_known(self, table: np.ndarray, granules: np.ndarray, known: np.ndarray, own: np.ndarray | None) -> bool:
        """Return whether the compiled loops find no clock of the granules [rows, k] beyond what their row knows.

        known: [rows, warps]; own: the warp of each row that does not count. False where there are none to ask.
        """
        compiled = self.machine.compiled
        if compiled is None or self.warps > 1024:
            return False
        granules, known = np.ascontiguousarray(granules, np.int64), np.ascontiguousarray(known, np.int32)
        mine = None if own is None else np.ascontiguousarray(own, np.int64)
        rows, each = granules.shape
        return not compiled.newer(
            address(table),
            address(granules),
            rows,
            each,
            self.warps,
            address(known),
            0 if mine is None else address(mine),
        )

    def forget(self, granules: np.ndarray | slice) -> None:
        """Forget what was noted of granules."""
        if self.noted[granules].any():
            self.written[granules] = self.read[granules] = self.updated[granules] = 0
            self.noted[granules] = False

    def landed(self, pattern: SharedPattern, rows: np.ndarray | None, barrier: Mbarrier | None = None) -> None:
        """A cp.async landed: a write of the issuing warp now, or, at an mbarrier, one known with its phase."""
        if self.products and pattern.kind == "tensor":
            self.products.landed(pattern, rows)
            return
        lanes, warps, known = self._where(pattern)
        granules = pattern.granules
        if rows is not None:
            lanes, granules, warps, known = lanes[rows], granules[rows], warps[rows], known[rows]
        self.flying[granules] = 0
        self.by["write"][granules] = pattern.instruction.index
        if barrier is not None:
            self.bulk.comes_with(granules, barrier, pattern.instruction)
            return
        if not (self.messages and self.messages.overflowed):
            self.lanes.landed(pattern, granules, lanes, self.machine.meetings)
        own = known[np.arange(len(warps)), warps]
        self.noted[granules] = True
        self.written[granules, np.broadcast_to(warps[:, None], granules.shape)] = own[:, None]

    def waited(self, pattern: SharedPattern, due: np.ndarray) -> None:
        """Warps waited for a product."""
        if self.products:
            self.products.finish(pattern, due)

    def reads_pending(self, pattern: SharedPattern) -> bool:
        """Report a read of bytes that an asynchronous copy has yet to bring; whether it was one."""
        if super().reads_pending(pattern):
            return True
        lanes, _, _ = self._where(pattern)
        return self.bulk.unknown(pattern, lanes)

    # mbarriers

    def made(self, barrier: Mbarrier) -> None:
        """An mbarrier was initialised: a write of its bytes."""
        key = (barrier.cta, barrier.address)
        columns = self.machine.mbarriers.columns
        if key not in columns:
            cluster = barrier.cta // self.machine.cluster_size
            columns[key] = self.warps + int(self.columns[cluster])
            self.columns[cluster] += 1
            if columns[key] >= self.known.shape[2]:
                self.make_room(2 * (self.known.shape[2] - self.warps))
        barrier.column = columns[key]
        self._wrote(barrier, barrier.lane, barrier.instruction, True)
        if self.machine.cluster_size > 1:
            self.unfenced.append(barrier)

    def fence_init(self) -> None:
        """The active lanes ran fence.mbarrier_init, a release of their initialisations and of nothing else."""
        if self.unfenced:
            active = self.machine.lane_list()
            lanes = {barrier.lane for barrier in self.unfenced} if active is None else set(active.tolist())
            self.fenced += [barrier for barrier in self.unfenced if barrier.lane in lanes]
            self.unfenced = [barrier for barrier in self.unfenced if barrier.lane not in lanes]

    def unmade(self, barrier: Mbarrier, lane: int, instruction: Instruction) -> None:
        """An mbarrier was ended: a write of its bytes, which has to come after all uses."""
        (cluster,), (warp,) = self.place(np.array([lane]))
        known = self.order[cluster, warp]
        for other_warp, (clock, use) in barrier.uses.items():
            if other_warp != warp and clock > known[other_warp]:
                pattern, where = SharedPattern("atomic", instruction, 8), (np.array([lane]), barrier.address)
                self.report_race(pattern, *where, "mbarrier.inval", use, "use", other_warp)
                break
        self._wrote(barrier, lane, instruction, False)

    def _bytes_of(self, barrier: Mbarrier) -> slice:
        shared = self.machine.shared
        start = (barrier.cta * shared.stride + barrier.address) // shared.granule
        return slice(start, start + 8 // shared.granule)

    def _wrote(self, barrier: Mbarrier, lane: int, instruction: Instruction, alive: bool) -> None:
        self.used = True
        self._after.clear()
        part = self._bytes_of(barrier)
        (cluster,), (warp,) = self.place(np.array([lane]))
        self.noted[part] = True
        self.written[part] = 0
        self.written[part, warp] = self.order[cluster, warp, warp]
        self.by["write"][part] = instruction.index
        self.bulk.objects[part] = alive

    def touched(self, barrier: Mbarrier, lanes: np.ndarray, instruction: Instruction, *, later: bool = False) -> None:
        """Lanes use an mbarrier: they have to be ordered after its initialisation."""
        if self.machine.cluster_size == 1 and not self.ends_barriers and not self.bulk.spoiled:
            first, last = lanes.item(0) // 32, lanes.item(-1) // 32 + 1
            if (barrier, first, last) in self._after:
                return
            known = self.known.reshape(-1, self.known.shape[2])[first:last, : self.warps]
            newer = self.written[self._bytes_of(barrier).start] > known
            warps = np.arange(first, last)
            newer[warps - first, warps % self.warps] = False
            if not newer.any():
                self._after.add((barrier, first, last))
                return
        start = self._bytes_of(barrier).start
        cluster, warps = self.place(lanes)
        known = self.order[cluster, warps]
        newer = self.written[start] > known
        newer[np.arange(len(warps)), warps] = False
        if newer.any():
            row, other_warp = (int(v) for v in np.argwhere(newer)[0])
            pattern = SharedPattern("atomic", instruction, 8)
            other = self.machine.program.instructions[int(self.by["write"][start])]
            name = ".".join(instruction.opcode.split(".")[:2])
            self.report_race(pattern, lanes[row : row + 1], barrier.address, name, other, "write", other_warp)
        if self.ends_barriers:
            every = range(len(warps))
            barrier.uses.update((int(warps[k]), (int(known[k, warps[k]]), instruction)) for k in every)
        far = self.machine.cta_of_lane[lanes] != barrier.cta
        if far.any() and not later:
            part = self._bytes_of(barrier)  # its block may not end before this
            self.noted[part] = True
            self.updated[part, warps[far]] = known[far, warps[far]]
            self.by["atomic"][part] = instruction.index

    # Bulk copies

    def aimed(self, pattern: SharedPattern, barrier: Mbarrier, lane: int) -> None:
        """A bulk copy will complete at an mbarrier."""
        self.bulk.column[pattern.where] = barrier.column

    def bulk_landed(self, pattern: SharedPattern, barrier: Mbarrier) -> None:
        """A bulk copy has written its bytes, which its mbarrier's current phase tells."""
        self.bulk.comes_with(pattern.where, barrier, pattern.instruction)

    def bulk_lent(self, pattern: SharedPattern, barrier: Mbarrier | None) -> None:
        """A copy to another block reads bytes until the current phase of its mbarrier ends; None: it has not come."""
        self.bulk.lend(pattern, barrier)

    def unseen(self, barrier: Mbarrier, phase: int, lanes: np.ndarray) -> np.ndarray:
        """Return which lanes' warps do not know that phases of an mbarrier are complete."""
        cluster, warps = self.place(lanes)
        return np.asarray(self.known[cluster, warps, barrier.column] < phase)

    def bulk_read_done(self, pattern: SharedPattern) -> None:
        """A thread has waited for its bulk store to have read."""
        self.bulk.read_done(pattern)

    # Clusters

    def fenced_by(self, lanes: np.ndarray, near: bool) -> np.ndarray | None:
        return None if self.messages is None else self.messages.covered(lanes, near)

    def cluster_completed(self, cluster: int) -> None:
        """All have arrived."""
        for barrier in [one for one in self.fenced if one.cta // self.machine.cluster_size == cluster]:
            self.written[self._bytes_of(barrier)] = 0
            self.fenced.remove(barrier)
        super().cluster_completed(cluster)

    # Ends of blocks

    def finish(self, ctas: np.ndarray | None = None) -> None:
        """Blocks ended: their peers may not be at their memory any more."""
        if self.machine.cluster_size == 1 or ctas is None:
            return
        shared, size, per = self.machine.shared, self.machine.cluster_size, self.machine.warps_per_cta
        each = shared.stride // shared.granule
        for cta in np.flatnonzero(ctas).tolist():
            own = slice(cta % size * per, (cta % size + 1) * per)
            knows = self.by_cta[cta].max(axis=0)[: self.warps]
            noted = cta * each + np.flatnonzero(self.noted[cta * each : (cta + 1) * each])
            for table, name in ((self.written, "write"), (self.read, "read"), (self.updated, "atomic")):
                newer = table[noted] > knows
                newer[:, own] = False
                if newer.any():
                    row, warp = (int(v) for v in np.argwhere(newer)[0])
                    access = self.machine.program.instructions[int(self.by[name][noted[row]])]
                    self._report_left(cta, int(noted[row] - cta * each) * shared.granule, access, name, warp)
                    break

    def _report_left(self, cta: int, address: int, access: Instruction, name: str, warp: int) -> None:
        machine, per = self.machine, self.machine.warps_per_cta
        first = cta // machine.cluster_size * machine.cluster_size
        lanes = (first * per + warp) * 32 + np.arange(32)
        machine.report(
            "peer_exited",
            f"{name} at shared address {address:#x} of block {cta - first} of the cluster, which may have ended by "
            "then: nothing orders its end after this",
            access, lanes, address,
        )  # fmt: skip
