"""Races on shared memory where parts of a block wait for one another: named barriers, mbarriers, clusters, bulk copies.

Vector clocks (knowledge.py), the general form of epochs.py. An access races with an earlier one of another
warp that it is not ordered after. Checked at each access, so slower than judging epochs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .barrier_clocks import BarrierClocks
from .bulk_hazards import BulkClocks
from .clock_loops import ClockLoops
from .compiled import address
from .knowledge import Knowledge
from .lane_races import LaneTable
from .memory import sparse_zeros
from .messages import PLAIN, STRONG, VOLATILE, Messages, passed, words_of
from .product_hazards import ProductClocks
from .ptx import Instruction
from .shared_memory import SharedPattern
from .told_alone import ToldAlone
from .uses import one_value

if TYPE_CHECKING:
    from .machine import Machine
    from .mbarriers import Mbarrier

WRITING = ("write", "copy", "bulk_write", "bulk_merge")
READING = ("read", "tensor", "bulk_read")


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
        self.narrow = np.array([word.narrow for word in self.words])
        """Instructions whose scope is their own block."""
        self.messages = Messages(self) if passed(machine.program) else None
        self.lanes = LaneTable(machine, self.messages)
        """Judges lanes of one warp, while what they may tell one another can be followed."""
        self.alone = ToldAlone(self)
        self.barriers = BarrierClocks(self)
        self.loops = ClockLoops(self)
        self.reset()

    def reset(self) -> None:
        """A new batch of blocks starts."""
        self.know_nothing()
        self.alone.reset()
        self.barriers.reset()
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
        if kind == "bulk_write" and self.alone.told:
            self.alone.check(pattern, *self._where(pattern))
        if kind == "bulk_write" and pattern.lanes is not None and self.alone.others_touched(int(pattern.lanes[0])):
            self.lanes.overwritten(pattern, pattern.lanes, self.machine.meetings)
        if kind in ("bulk_write", "tensor") and not word.updates and self.loops.bulk(pattern):
            return
        if self.messages and self.messages.loose and kind == "read" and word.strength == PLAIN:
            self.messages.check(pattern)
        if kind in ("read", "write") and word.strength == PLAIN and not word.updates and self.loops.plain(pattern):
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
            if self.alone.told and kind != "bulk_read":
                self.alone.check(pattern, lanes, warps, known)
            self.lanes.touch(pattern, granules, lanes, self.machine.meetings)
            if kind in ("read", "write"):
                self.alone.note(lanes, pattern.instruction.index, writes=kind == "write")
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
        narrow = self.narrow[self.by["atomic"][granules]] | self.narrow[pattern.instruction.index]
        table = self.written if writing else self.read if kind == "read" else self.updated
        table[granules, columns] = own[:, None]
        self.noted[granules] = True
        self.by[kind][granules] = pattern.instruction.index
        if writing:
            self.by["write"][granules] = pattern.instruction.index
            # Two warps that write one granule in this very step.
            self._compare(pattern, self.written, known, lanes, warps, addresses, "write")
        if kind == "atomic" and narrow.any() and self.machine.cluster_size > 1:
            self._scopes(pattern, narrow, known, lanes, warps, addresses)
        if kind == "copy":
            self.copies_of[pattern.instruction.index] = pattern
            self.flying[granules] = pattern.instruction.index + 1

    def meet(self, members: np.ndarray | None, firmly: bool = True) -> None:
        """Lanes came together."""
        races = self.machine.races
        if members is None and self.messages and races is not None and races.telling is not None:
            races.telling.meet(self.machine.mask)

    def _places(self, pattern: SharedPattern) -> tuple[np.ndarray, np.ndarray]:
        """(lanes of the batch, places of messages): below 0, where no place in global memory is."""
        lanes = np.arange(self.machine.lanes) if pattern.lanes is None else pattern.lanes
        return lanes, -1 - pattern.granules[:, 0]

    def met_at_once(self, pattern: SharedPattern) -> None:
        """Look at a store in which two warps write one granule."""
        lanes, warps, known = self._where(pattern)
        addresses = np.broadcast_to(pattern.addresses, lanes.shape)
        self._compare(pattern, self.written, known, lanes, warps, addresses, "write")

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

    def _scopes(
        self, pattern: SharedPattern, narrow: np.ndarray, known: np.ndarray, lanes: np.ndarray, warps: np.ndarray,
        addresses: np.ndarray,
    ) -> None:  # fmt: skip
        """Atomics of two blocks race where the scope of one (`narrow`, by granule) is its own block."""
        per = self.machine.warps_per_cta
        newer = (self.updated[pattern.granules] > known[:, None, :]) & narrow[:, :, None]
        newer &= (np.arange(self.warps) // per != (warps // per)[:, None])[:, None, :]
        if newer.any():
            row, _, other_warp = (int(v) for v in np.argwhere(newer)[0])
            where = lanes[newer.any(axis=(1, 2))], int(addresses[row])
            verb = "atomic of .cta scope"
            fault = "a scope of .cluster or wider for both, or an order between them"
            self.report_race(pattern, *where, verb, pattern.instruction, "atomic", other_warp, fault=fault)

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
        """See Shadow."""
        self.barriers.made(barrier)

    def fence_init(self) -> None:
        """See Shadow."""
        self.barriers.fence()

    def unmade(self, barrier: Mbarrier, lane: int, instruction: Instruction) -> None:
        """See Shadow."""
        self.barriers.unmade(barrier, lane, instruction)

    def touched(self, barrier: Mbarrier, lanes: np.ndarray, instruction: Instruction, *, later: bool = False) -> None:
        """See Shadow."""
        self.barriers.touched(barrier, lanes, instruction, later=later)

    def told_by(self, lanes: np.ndarray) -> None:
        """See Knowledge."""
        self.alone.by(lanes)

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
        self.barriers.cluster_completed(cluster)
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
