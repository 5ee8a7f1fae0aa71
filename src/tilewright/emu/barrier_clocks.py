"""mbarriers and shared memory, beside vector clocks: their own bytes, which come into being, are used and end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .ptx import Instruction
from .shared_memory import SharedPattern

if TYPE_CHECKING:
    from .clocks import ClockShadow
    from .mbarriers import Mbarrier


class BarrierClocks:
    """The part of ClockShadow that knows mbarriers."""

    def __init__(self, shadow: ClockShadow) -> None:
        self.shadow, self.machine = shadow, shadow.machine
        self.ends = bool(self.machine.program.opcodes_begin("mbarrier.inval").any())
        self.unfenced: list[Mbarrier] = []
        """mbarriers that no fence.mbarrier_init has followed yet."""
        self.fenced: list[Mbarrier] = []
        """Those that the next barrier of their cluster tells, however relaxed it is."""
        self.fresh: dict[Mbarrier, int] = {}
        """Those that lanes of the initialising warp may not know of -> when it was, by the meetings."""
        self._after: set[tuple[Mbarrier, int, int]] = set()
        """Warps of the batch, from one to another, that are known to come after an mbarrier's initialisation, of blocks
        without a cluster."""

    def reset(self) -> None:
        """A new batch of blocks starts."""
        self.unfenced.clear()
        self.fenced.clear()
        self.fresh.clear()
        self._after.clear()

    def made(self, barrier: Mbarrier) -> None:
        """An mbarrier was initialised: a write of its bytes."""
        shadow, key = self.shadow, (barrier.cta, barrier.address)
        columns = self.machine.mbarriers.columns
        if key not in columns:
            cluster = barrier.cta // self.machine.cluster_size
            columns[key] = shadow.warps + int(shadow.columns[cluster])
            shadow.columns[cluster] += 1
            if columns[key] >= shadow.known.shape[2]:
                shadow.make_room(2 * (shadow.known.shape[2] - shadow.warps))
        barrier.column = columns[key]
        self._wrote(barrier, barrier.lane, barrier.instruction, True)
        self.fresh[barrier] = self.machine.meetings.time
        if self.machine.cluster_size > 1:
            self.unfenced.append(barrier)

    def fence(self) -> None:
        """The active lanes ran fence.mbarrier_init, a release of their initialisations and of nothing else."""
        if self.unfenced:
            active = self.machine.lane_list()
            lanes = {barrier.lane for barrier in self.unfenced} if active is None else set(active.tolist())
            self.fenced += [barrier for barrier in self.unfenced if barrier.lane in lanes]
            self.unfenced = [barrier for barrier in self.unfenced if barrier.lane not in lanes]

    def unmade(self, barrier: Mbarrier, lane: int, instruction: Instruction) -> None:
        """An mbarrier was ended: a write of its bytes, which has to come after all uses."""
        shadow = self.shadow
        (cluster,), (warp,) = shadow.place(np.array([lane]))
        known = shadow.order[cluster, warp]
        for other_warp, (clock, use) in barrier.uses.items():
            if other_warp != warp and clock > known[other_warp]:
                pattern, where = SharedPattern("atomic", instruction, 8), (np.array([lane]), barrier.address)
                shadow.report_race(pattern, *where, "mbarrier.inval", use, "use", other_warp)
                break
        self._wrote(barrier, lane, instruction, False)

    def _bytes_of(self, barrier: Mbarrier) -> slice:
        shared = self.machine.shared
        start = (barrier.cta * shared.stride + barrier.address) // shared.granule
        return slice(start, start + 8 // shared.granule)

    def _wrote(self, barrier: Mbarrier, lane: int, instruction: Instruction, alive: bool) -> None:
        shadow = self.shadow
        shadow.used = True
        self._after.clear()
        part = self._bytes_of(barrier)
        (cluster,), (warp,) = shadow.place(np.array([lane]))
        shadow.noted[part] = True
        shadow.written[part] = 0
        shadow.written[part, warp] = shadow.order[cluster, warp, warp]
        shadow.by["write"][part] = instruction.index
        shadow.bulk.objects[part] = alive

    def touched(self, barrier: Mbarrier, lanes: np.ndarray, instruction: Instruction, *, later: bool = False) -> None:
        """Lanes use an mbarrier: they have to be ordered after its initialisation."""
        shadow = self.shadow
        if barrier in self.fresh:
            self._expect_met(barrier, lanes, instruction)
        if self.machine.cluster_size == 1 and not self.ends and not shadow.bulk.spoiled:
            first, last = lanes.item(0) // 32, lanes.item(-1) // 32 + 1
            if (barrier, first, last) in self._after:
                return
            known = shadow.known.reshape(-1, shadow.known.shape[2])[first:last, : shadow.warps]
            newer = shadow.written[self._bytes_of(barrier).start] > known
            warps = np.arange(first, last)
            newer[warps - first, warps % shadow.warps] = False
            if not newer.any():
                self._after.add((barrier, first, last))
                return
        start = self._bytes_of(barrier).start
        cluster, warps = shadow.place(lanes)
        known = shadow.order[cluster, warps]
        newer = shadow.written[start] > known
        newer[np.arange(len(warps)), warps] = False
        if newer.any():
            row, other_warp = (int(v) for v in np.argwhere(newer)[0])
            pattern = SharedPattern("atomic", instruction, 8)
            other = self.machine.program.instructions[int(shadow.by["write"][start])]
            name = ".".join(instruction.opcode.split(".")[:2])
            shadow.report_race(pattern, lanes[row : row + 1], barrier.address, name, other, "write", other_warp)
        if self.ends:
            every = range(len(warps))
            barrier.uses.update((int(warps[k]), (int(known[k, warps[k]]), instruction)) for k in every)
        far = self.machine.cta_of_lane[lanes] != barrier.cta
        if far.any() and not later:
            part = self._bytes_of(barrier)  # its block may not end before this
            shadow.noted[part] = True
            shadow.updated[part, warps[far]] = known[far, warps[far]]
            shadow.by["atomic"][part] = instruction.index

    def _expect_met(self, barrier: Mbarrier, lanes: np.ndarray, instruction: Instruction) -> None:
        """Report lanes of the warp that initialised an mbarrier which have not met the one that did."""
        machine, maker, made_at = self.machine, barrier.lane, self.fresh[barrier]
        if machine.meetings.last[maker // 32] > made_at:
            del self.fresh[barrier]
            return
        some = lanes[(lanes // 32 == maker // 32) & (lanes != maker)]
        bad = machine.meetings.apart(some, np.full(len(some), maker), np.full(len(some), made_at))
        if bad.any():
            name = ".".join(instruction.opcode.split(".")[:2])
            machine.report(
                "lane_race",
                f"{name} at shared address {barrier.address:#x}, mbarrier.init by lane {maker % 32} of the same warp, "
                "and no __syncwarp() between them",
                instruction, some[bad], barrier.address,
                {"other_access": machine.reporter.sources.where(barrier.instruction)}, barrier.instruction,
            )  # fmt: skip

    def cluster_completed(self, cluster: int) -> None:
        """All have arrived at the barrier of a cluster."""
        for barrier in [one for one in self.fenced if one.cta // self.machine.cluster_size == cluster]:
            self.shadow.written[self._bytes_of(barrier)] = 0
            self.fenced.remove(barrier)
