"""Which lanes run next: divergence, barriers, exits, deadlocks.

While all living lanes stand at one basic block the batch is *uniform* and only that block's number is kept. Otherwise
every lane has its own, and the lanes at the lowest block run next: in the order NVRTC lays code out, that brings
diverged lanes together again where their paths meet. Now and then another block is picked, so that lanes that spin
cannot starve those they wait for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from .compiled import address
from .endless import FAIR_EVERY, Watch
from .hazards import lane_ranges
from .orders import NOWHERE
from .ptx import Instruction

if TYPE_CHECKING:
    from .machine import Machine
    from .orders import Order

OFTEN = 16
"""Each time it does, the number halves, down to this, as somebody may be spinning; it doubles when all lanes meet."""

Release = Callable[[np.ndarray], None]


class Scheduler:
    """The lanes of one batch and where they are."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        n = machine.lanes
        self.uniform = True
        self.current = 0
        self.live = np.ones(n, bool)
        self.live_count = n
        self.live_warps = n // 32
        self.active = n
        """Lanes that execute the current block."""
        self.active_warps = -1
        """Warps of these; -1 when they have not been counted."""
        self._out = np.zeros(3, np.int64)
        """What the compiled pick has found."""
        self.key = np.full(n, NOWHERE, np.int32)
        """Block that a lane runs next; NOWHERE when it has exited or waits."""
        self.barrier = np.full(n, -1, np.int16)
        """Barrier that a lane waits for."""
        self.parked_at = np.full(n, -1, np.int32)
        """Instruction at which a lane waits."""
        self.resume = np.full(n, NOWHERE, np.int32)
        self.joining = np.full(n, -1, np.int32)
        """Block whose first instruction a lane waits to execute together with others of its warp."""
        self.tokens: dict[tuple[int, int], int] = {}
        """(cta, barrier) -> threads that arrived without waiting."""
        self.expected: dict[tuple[int, int], int | None] = {}
        self.passed: dict[tuple[int, int], int] = {}
        """(cta, barrier) -> threads that its last completed use counted."""
        self.on_release: dict[int, Release] = {}
        self.parked = np.zeros(n, bool)
        """Lanes that wait for anything but a barrier of their block: `wake` lets them go on."""
        self.born = np.ones(n, bool)
        self.picks = 0
        """Picks among diverged lanes since a block was picked in turn; `fair`: after how many one is."""
        self.fair = FAIR_EVERY
        self.ran = 0
        """Basic blocks that the batch has run."""
        self._turn = 0
        self._apart = np.zeros(n, bool)
        """Lanes that need not wait any more for the others of their warps, who cannot come."""
        self.watch = Watch(self)

    def start(self, born: np.ndarray) -> None:
        """A new batch: the lanes `born` stand at the first block."""
        self.born = born
        self.uniform, self.current = True, self.machine.program.first_block
        self.key[:] = NOWHERE
        self.barrier[:] = -1
        self.joining[:] = -1
        self.parked[:] = False
        self._apart[:] = False
        self.tokens.clear()
        self.expected.clear()
        self.passed.clear()
        self.watch.reset()
        self.ran = self.picks = self._turn = 0
        self.fair = FAIR_EVERY
        self._set_live(born.copy())
        if self.machine.order is not None:
            self.machine.order.start(self.machine)
            self.separate()

    def _set_live(self, live: np.ndarray) -> None:
        self.live = live
        self.live_count = int(np.count_nonzero(live))
        self.live_warps = int(live.reshape(-1, 32).any(axis=1).sum())
        if self.uniform:
            self.machine.set_mask(None if self.live_count == len(live) else live)
            self.active = self.live_count

    def running(self) -> np.ndarray:
        """Which blocks of the batch have a living lane."""
        return np.any(self.live.reshape(self.machine.ctas, -1), axis=1)

    def run(self) -> None:
        """Run the batch to its end."""
        machine = self.machine
        program, engine, finals, clock = machine.program, machine.engine, machine.finals, machine.clock
        limit = machine.limit - machine.ran_before
        while self.live_count:
            here = engine.run(-1) if engine else -1
            if here < 0:
                here = self._begin()
                if here < 0:
                    continue
                if engine:
                    here = engine.run(here)
                    if here < 0:
                        continue
                else:
                    for step in machine.steps[here] or machine.bind(here):
                        step()
                    block = program.blocks[here]
                    clock[0] += block.end - block.start
            if clock[0] > limit:
                total = int(clock[0]) + machine.ran_before
                self._endless(here, f"{total:,} instructions were run, more than limit={machine.limit:,} allows")
            else:
                finals[here]()

    def _begin(self) -> int:
        """Choose the lanes that run next, and count them; their block, or -1 if nothing is to be run this time."""
        machine = self.machine
        trace = machine.trace
        if self.uniform:
            here, warps = self.current, self.live_warps
            self.active = self.live_count
        else:
            here = self._pick()
            if here < 0:
                return -1
            mask = machine.mask
            if mask is None:
                warps = self.live_warps
            elif self.active_warps >= 0:
                warps = self.active_warps
            else:
                warps = int(np.count_nonzero(mask.reshape(-1, 32).any(axis=1)))
        trace.block_threads[here] += self.active
        trace.block_warps[here] += warps
        self.ran += 1
        if self.ran >= self.watch.at and self.watch.look(here, self.ran):
            self._endless(here, "the same state as before is reached again, so the loop has no end")
            return -1
        return here

    def _pick(self) -> int:
        """Choose lanes to run and set the mask; the block, or -1 if nothing is to be run this time."""
        machine, key = self.machine, self.key
        compiled, found = machine.compiled, None
        self.active_warps = -1
        if compiled is None:
            here = int(key.min())
        else:
            found = np.empty(len(key), bool)
            compiled.pick(address(key), len(key), address(found), address(self._out))
            here, self.active, self.active_warps = self._out.tolist()
        if here == NOWHERE:
            if not machine.mbarriers.stir(idle=True) and not self._let_go():
                self._deadlock()
            return -1
        if machine.order is not None:
            return self._pick_otherwise(machine.order)
        self.picks += 1
        if self.picks >= self.fair:
            self.picks, self.fair = 0, max(self.fair // 2, OFTEN)
            machine.mbarriers.stir(idle=False)
            places = np.unique(key)
            places = places[places != NOWHERE]
            self._turn += 1
            here, found = int(places[self._turn % len(places)]), None
        mask = key == here if found is None else found
        block = machine.program.blocks[here]
        joins = block.warpgroup or block.warp or block.member_mask is not None
        if joins:
            mask = self._join(here, mask)
        if joins or found is None:
            self.active, self.active_warps = int(np.count_nonzero(mask)), -1
        if not self.active:
            return -1
        if self.active == self.live_count:
            self.uniform, self.current = True, here
            self.picks, self.fair = 0, min(2 * self.fair, FAIR_EVERY)  # nobody was starved
            machine.set_mask(None if self.live_count == machine.lanes else self.live)
        else:
            machine.set_mask(mask)
        return here

    def _pick_otherwise(self, order: Order) -> int:
        """The same in an order drawn at random. All lanes never count as one: each warp is on its own."""
        machine = self.machine
        if order.happens():
            machine.mbarriers.happen(order)
        here, mask = order.pick(machine, self.key)
        self.active_warps = -1
        block = machine.program.blocks[here]
        if block.warpgroup or block.warp or block.member_mask is not None:
            mask = self._join(here, mask)
        self.active = int(np.count_nonzero(mask))
        machine.set_mask(None if self.active == machine.lanes else mask)
        return here if self.active else -1

    def _let_go(self) -> bool:
        """Nobody can run: let lanes go that wait for others of their warps at what is a whole warp's work. They run it
        alone, which is reported. Whether there were any.
        """
        blocks = self.machine.program.blocks
        waiting = [k for k in np.unique(self.joining).tolist() if k >= 0 and blocks[k].warp]
        lanes = np.isin(self.joining, waiting)
        self._apart |= lanes
        self.key[lanes] = self.joining[lanes]
        return bool(waiting)

    def _join(self, here: int, mask: np.ndarray) -> np.ndarray:
        """Lanes at a warp-wide instruction run once all lanes that their member mask names have come, or all of the
        warp; those at one of a warpgroup once all of that have.
        """
        machine = self.machine
        mask = mask | (self.joining == here)
        block = machine.program.blocks[here]
        if block.warpgroup:
            group = machine.cta_of_lane * machine.warps_per_cta + machine.warp_of_lane // 4
            absent = np.zeros(machine.lanes, bool)
            absent[group[self.live & ~mask]] = True
            held = mask & absent[group]
        elif block.warp:
            absent = (self.live & ~mask).reshape(-1, 32).any(axis=1)
            held = mask & np.repeat(absent, 32) & ~self._apart
            self._apart[mask & ~held] = False
        else:
            members = machine.source(machine.program.instructions[block.start], block.member_mask, "b32")
            wanted = np.where(mask, np.broadcast_to(members, mask.shape), 0).reshape(-1, 32)
            wanted = np.bitwise_or.reduce(wanted, axis=1)
            wanted_lanes = (wanted[:, None] >> np.arange(32, dtype=np.uint32)) & 1 != 0
            missing = (wanted_lanes & self.live.reshape(-1, 32) & ~mask.reshape(-1, 32)).any(axis=1)
            held = mask & np.repeat(missing, 32)
        self.joining[mask] = -1
        self.joining[held] = here
        self.parked_at[held] = block.start
        self.key[held] = NOWHERE
        return mask & ~held

    def goto(self, target: int) -> None:
        """All active lanes go on at a block."""
        if self.uniform:
            self.current = target
        else:
            np.putmask(self.key, self._mask(), target)

    def _mask(self) -> np.ndarray:
        mask = self.machine.mask
        return self.live if mask is None else mask

    def split(self, taken: np.ndarray, target: int, otherwise: int) -> None:
        """Active lanes for which `taken` holds go to `target`, the others to `otherwise`."""
        mask = self.machine.mask
        if mask is not None:
            taken = taken & mask
        count = int(np.count_nonzero(taken))
        if count == self.active:
            self.goto(target)
        elif not count:
            self.goto(otherwise)
        else:
            self._diverge()
            np.putmask(self.key, self._mask(), otherwise)
            np.putmask(self.key, taken, target)

    def scatter(self, targets: np.ndarray) -> None:
        """Each active lane goes to its own block: `targets` [lanes]."""
        self._diverge()
        np.putmask(self.key, self._mask(), targets)

    def _diverge(self) -> None:
        if self.uniform:
            self.uniform = False
            self.key[:] = NOWHERE

    def leave(self, gone: np.ndarray | None, otherwise: int) -> None:
        """Active lanes (of them those marked in `gone`; None: all) exit; the others go on at `otherwise`."""
        mask = self._mask()
        leaving = mask if gone is None else mask & gone
        if not leaving.any():
            self.goto(otherwise)
            return
        self.goto(otherwise)
        np.putmask(self.key, leaving, NOWHERE)
        machine = self.machine
        if machine.products:
            machine.products.leave(leaving)
        before = self.running()
        self._set_live(self.live & ~leaving)
        after = self.running()
        ended = before & ~after
        machine.bulk.leave(leaving, ended)
        machine.clusters.leave(leaving)
        machine.registers.leave()
        if ended.any():
            machine.shadow.finish(ended)
        if (self.joining >= 0).any():  # some may have waited for those that left
            np.copyto(self.key, self.joining, where=self.joining >= 0)
        for cta, ident in list(self.expected):
            if after[cta]:
                self._try_release(cta, ident)

    def arrive(
        self,
        instruction: Instruction,
        ident: int,
        expected: int | None,
        resume: int,
        *,
        blocking: bool = True,
        on_release: Release | None = None,
    ) -> None:
        """The active lanes reach barrier `ident`. `expected`: threads it takes; None: every thread of the block.

        `blocking`: they wait; else they only count. `on_release` gets the lanes as they are let go.
        """
        machine = self.machine
        if self.uniform and blocking and expected is None and not self.tokens and on_release is None:
            alive: np.ndarray | None = None
            if self.live_count != machine.lanes:
                self._missing(instruction, None)
                alive = self.running()
            machine.shadow.barrier(alive)
            self.current = resume
            return
        mask = self._mask()
        by_warp = mask.reshape(-1, 32).any(axis=1).reshape(machine.ctas, -1)
        present = np.flatnonzero(by_warp.any(axis=1)).tolist()
        if blocking:
            self.separate()
            self.barrier[mask] = ident
            self.parked_at[mask] = instruction.index
            self.resume[mask] = resume
            self.key[mask] = NOWHERE
            if on_release is not None:
                self.on_release[instruction.index] = on_release
        else:
            self.goto(resume)
        for cta in present:
            place = (cta, ident)
            if place in self.expected:
                self._counts(instruction, place, expected)
            self.expected[place] = expected
            if not blocking:
                self.tokens[place] = self.tokens.get(place, 0) + 32 * int(by_warp[cta].sum())
            machine.shadow.arrive(cta, ident, by_warp[cta])
            self._try_release(cta, ident)

    def _counts(self, instruction: Instruction, place: tuple[int, int], expected: int | None) -> None:
        """Report arrivals at one barrier that count different numbers of threads."""
        machine = self.machine
        every = machine.warps_per_cta * 32
        before = self.expected[place]
        if (before or every) != (expected or every):
            machine.report(
                "barrier_counts",
                f"barrier {place[1]} is reached for {expected or every} threads, and was for {before or every}",
                instruction, np.flatnonzero(self._mask() & (machine.cta_of_lane == place[0])), None,
                {"where_each_waits": self._whereabouts(place[0], instruction)},
            )  # fmt: skip

    def park(self, lanes: np.ndarray, instruction: Instruction, resume: int) -> None:
        """Lanes (indices) wait at an instruction until somebody wakes them; they go on at a block. Separate first."""
        self.parked[lanes] = True
        self.parked_at[lanes] = instruction.index
        self.resume[lanes] = resume
        self.key[lanes] = NOWHERE

    def wake(self, lanes: np.ndarray) -> None:
        """Parked lanes go on."""
        self.parked[lanes] = False
        self.key[lanes] = self.resume[lanes]

    def separate(self) -> np.ndarray:
        """Let every lane have a place of its own from now on; the active lanes as a mask."""
        active = self._mask()
        if self.uniform:
            self._diverge()
            np.putmask(self.key, self.live, self.current)
        return active

    def _try_release(self, cta: int, ident: int) -> None:
        machine = self.machine
        width = machine.warps_per_cta * 32
        span = slice(cta * width, (cta + 1) * width)
        waiting = self.barrier[span] == ident
        live = self.live[span]
        expected = self.expected[(cta, ident)]
        arrived = 32 * int(waiting.reshape(-1, 32).any(axis=1).sum()) + self.tokens.get((cta, ident), 0)
        if expected is None:
            if not waiting.any() or (live & ~waiting).any():
                return
        elif arrived < expected:
            return
        lanes = np.flatnonzero(waiting) + span.start
        del self.expected[(cta, ident)]
        self.tokens.pop((cta, ident), None)
        warps = waiting.reshape(-1, 32).any(axis=1)
        if not len(lanes):  # all only arrived
            machine.shadow.release(cta, ident, warps)
            return
        if expected is None:
            self._missing(machine.program.instructions[int(self.parked_at[lanes[0]])], cta)
        self.passed[cta, ident] = expected or width
        self._same_place(lanes)
        if bool((waiting == live).all()) and expected in (None, machine.threads):
            whole = np.zeros(machine.ctas, bool)
            whole[cta] = True
            machine.shadow.barrier(whole)
        machine.shadow.release(cta, ident, warps)
        self.barrier[lanes] = -1
        self.key[lanes] = self.resume[lanes]
        for index in np.unique(self.parked_at[lanes]).tolist():
            if index in self.on_release:
                self.on_release[index](lanes[self.parked_at[lanes] == index])

    def _same_place(self, lanes: np.ndarray) -> None:
        """A warp's lanes have to arrive at one instruction if the barrier is an aligned one."""
        places = self.parked_at[lanes]
        if (places == places[0]).all():
            return
        machine = self.machine
        warps = lanes // 32
        order = np.argsort(warps, kind="stable")
        split = (warps[order][1:] == warps[order][:-1]) & (places[order][1:] != places[order][:-1])
        for k in np.flatnonzero(split).tolist():
            instruction = machine.program.instructions[int(places[order][k])]
            if not instruction.opcode.startswith("barrier.") or ".aligned" in instruction.opcode:
                other = machine.program.instructions[int(places[order][k + 1])]
                machine.report(
                    "barrier_divergence",
                    f"lanes of one warp reach {instruction.text!r} and {other.text!r} apart",
                    instruction, lanes[order][[k]], None,
                    {"the_other": machine.reporter.sources.where(other)},
                )  # fmt: skip
                return

    def _missing(self, instruction: Instruction, cta: int | None) -> None:
        """Threads that ended before a barrier that others of their block reach."""
        machine = self.machine
        gone = (self.born & ~self.live).reshape(machine.ctas, -1)
        alive = self.running()
        for k in range(machine.ctas) if cta is None else (cta,):
            if alive[k] and gone[k].any():
                width = machine.warps_per_cta * 32
                if self._uneven(k, instruction):
                    return
                machine.report(
                    "barrier_divergence",
                    f"{int(gone[k].sum())} of {machine.threads} threads of the block ended without reaching "
                    "the barrier (CUDA C++ leaves that undefined; GPUs since Volta let the others pass)",
                    instruction, np.flatnonzero(self.live[k * width : (k + 1) * width]) + k * width, None,
                    {"where_each_waits": self._whereabouts(k, instruction)},
                )  # fmt: skip
                return

    def _uneven(self, cta: int, at: Instruction) -> bool:
        """Report a barrier that threads of a block wait at for another number than passed it; whether there is one."""
        machine = self.machine
        span = slice(cta * machine.warps_per_cta * 32, (cta + 1) * machine.warps_per_cta * 32)
        for (block, ident), before in self.passed.items():
            lanes = np.flatnonzero(self.barrier[span] == ident) + span.start
            wanted = (self.expected.get((cta, ident)) or machine.warps_per_cta * 32) if block == cta else before
            if wanted != before and len(lanes):
                machine.report(
                    "barrier_counts",
                    f"barrier {ident} is waited at for {wanted} threads, and {before} have passed it before",
                    machine.program.instructions[int(self.parked_at[lanes[0]])], lanes[lanes // 32 == lanes[0] // 32],
                    None, {"where_each_waits": self._whereabouts(cta, at)},
                )  # fmt: skip
                return True
        return False

    def _whereabouts(self, cta: int, at: Instruction | None = None) -> list[str]:
        """One line for each warp of a block: which lanes wait where."""
        machine, out = self.machine, []
        sources = machine.reporter.sources
        width = machine.warps_per_cta
        for warp in range(width):
            span = slice((cta * width + warp) * 32, (cta * width + warp + 1) * 32)
            places: dict[str, list[int]] = {}
            for lane in np.flatnonzero(self.born[span]).tolist():
                k = span.start + lane
                if not self.live[k]:
                    where = "have exited"
                elif self.barrier[k] >= 0 or self.joining[k] >= 0 or self.parked[k]:
                    where = "wait at " + sources.where(machine.program.instructions[int(self.parked_at[k])])
                elif at is not None:
                    where = "wait at " + sources.where(at)
                elif self.key[k] != NOWHERE:
                    first = machine.program.blocks[int(self.key[k])].start
                    where = "run at " + sources.where(machine.program.instructions[first])
                else:
                    where = "run"
                places.setdefault(where, []).append(lane)
            parts = [f"{lane_ranges(tuple(lanes))} {where}" for where, lanes in places.items()]
            out.append(f"warp {warp}: " + "; ".join(parts))
        return out

    def _deadlock(self) -> None:
        """Nobody can run and some wait."""
        machine = self.machine
        lanes = np.flatnonzero(self.live)
        cta = int(machine.cta_of_lane[lanes[0]])
        first = lanes[machine.cta_of_lane[lanes] == cta]
        instruction = machine.program.instructions[int(self.parked_at[first[0]])]
        if self._uneven(cta, instruction):
            self._abandon()
            return
        machine.report(
            "deadlock",
            "every thread that has not ended waits, and nothing can come to let it go",
            instruction, first[self.parked_at[first] == instruction.index], None,
            {"where_each_waits": self._whereabouts(cta), **self._waited_for(cta)},
        )  # fmt: skip
        self._abandon()

    def _waited_for(self, cta: int) -> dict[str, list[str]]:
        """What the blocks of a cluster wait for besides barriers of a block, in words."""
        machine = self.machine
        first = cta // machine.cluster_size * machine.cluster_size
        blocks = range(first, first + machine.cluster_size)
        lines = [line for block in blocks for line in machine.mbarriers.waited_for(block)]
        lines += [*machine.clusters.waited_for(first), *machine.registers.waited_for(blocks)]
        return {"what_is_waited_for": lines} if lines else {}

    def _abandon(self) -> None:
        """When collecting, the batch ends here."""
        self.uniform = False
        self.key[:] = NOWHERE
        self._set_live(np.zeros(self.machine.lanes, bool))
        self.machine.shadow.finish(None)

    def _endless(self, here: int, why: str) -> None:
        """The batch would run for ever, or longer than allowed."""
        machine = self.machine
        if self.uniform:  # from here on each lane's place can be shown
            self.separate()
        lanes = np.flatnonzero(self._mask() & self.live)
        cta = int(machine.cta_of_lane[lanes[0]])
        machine.report(
            "endless_loop", why, machine.program.instructions[machine.program.blocks[here].start], lanes, None,
            {"where_each_is": self._whereabouts(cta)},
        )  # fmt: skip
        self._abandon()
