"""The choice of the lanes that run next: divergence, barriers, exits, deadlocks.

While all living lanes stand at one basic block the batch is *uniform* and only that block's number is kept. Otherwise
every lane has its own, and the lanes at the lowest block run next: in the order NVRTC lays code out, that brings
diverged lanes together again where their paths meet. Now and then another block is picked, so that lanes that spin
cannot starve those they wait for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .absent import Absent
from .block_barriers import BlockBarriers
from .compiled import address
from .endless import FAIR_EVERY, Watch
from .orders import NOWHERE
from .ptx import Instruction
from .standstill import report_deadlock, report_endless

if TYPE_CHECKING:
    from .machine import Machine
    from .orders import Order

OFTEN = 16
"""Each time it does, the number halves, down to this, as somebody may be spinning; it doubles when all lanes meet."""


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
        self.parked_at = np.full(n, -1, np.int32)
        """Instruction at which a lane waits."""
        self.resume = np.full(n, NOWHERE, np.int32)
        self.joining = np.full(n, -1, np.int32)
        """Block whose first instruction a lane waits to execute together with others of its warp."""
        self.barriers = BlockBarriers(self)
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
        """Lanes that need not wait any more for the others of their warps, who cannot come or have come elsewhere."""
        self.met: np.ndarray | None = None
        """Lanes that run a __syncwarp() and have met there before, with those at another one."""
        self.watch = Watch(self)
        self.absent = Absent(self)

    def start(self, born: np.ndarray) -> None:
        """A new batch: the lanes `born` stand at the first block."""
        self.born = born
        self.uniform, self.current = True, self.machine.program.first_block
        self.key[:] = NOWHERE
        self.joining[:] = -1
        self.parked[:] = False
        self._apart[:] = False
        self.barriers.reset()
        self.watch.reset()
        self.absent.reset()
        self.ran = self.picks = self._turn = 0
        self.fair = FAIR_EVERY
        self._set_live(born.copy())
        if self.machine.order is not None:
            self.machine.order.start(self.machine)
            self.separate()

    def _set_live(self, live: np.ndarray) -> None:
        self.live = live
        self.live_count = int(np.count_nonzero(live))
        some = 0 < self.live_count < len(live)
        self.live_warps = int(live.reshape(-1, 32).any(axis=1).sum()) if some else self.live_count // 32
        if self.uniform:
            self.machine.set_mask(None if self.live_count == len(live) else live)
            self.active = self.live_count

    def running(self) -> np.ndarray:
        """Return which blocks of the batch have a living lane."""
        return np.any(self.live.reshape(self.machine.ctas, -1), axis=1)

    def run(self) -> None:
        """Run the batch to its end."""
        machine = self.machine
        program, engine, finals, clock = machine.program, machine.engine, machine.finals, machine.clock
        limit = machine.limit - machine.ran_before
        while self.live_count:
            machine.pulse()
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
                report_endless(self, here, f"{total:,} instructions were run, more than limit={machine.limit:,} allows")
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
        if self.ran >= self.watch.at and self.watch.look(here, self.ran) and not machine.mbarriers.deliver():
            report_endless(self, here, "the same state as before is reached again, so the loop has no end")
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
                report_deadlock(self)
            return -1
        if machine.order is not None:
            return self._pick_otherwise(machine.order)
        self.picks += 1
        if self.picks >= self.fair:
            self.picks, self.fair = 0, max(self.fair // 2, OFTEN)
            machine.mbarriers.stir(idle=False)
            places = np.flatnonzero(np.bincount(key[key != NOWHERE]))
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
        """Nobody can run: let lanes go that wait for one another at different __syncwarp(), or else for others of their
        warps at what is a whole warp's work. These run it alone, which is reported. Whether there were any.
        """
        blocks = self.machine.program.blocks
        if self._meet_elsewhere():
            return True
        waiting = [k for k in np.unique(self.joining).tolist() if k >= 0 and blocks[k].warp]
        lanes = np.isin(self.joining, waiting)
        self._apart |= lanes
        self.key[lanes] = self.joining[lanes]
        return bool(waiting)

    def _meet_elsewhere(self) -> bool:
        """Let lanes go that wait at bar.warp.sync, not all at the same one, if all that their masks name are there.

        PTX asks for the same mask, not for the same instruction.
        """
        machine, instructions = self.machine, self.machine.program.instructions
        masks = np.zeros(machine.lanes, np.uint32)
        for k in np.unique(self.joining).tolist():
            block = machine.program.blocks[k]
            if k >= 0 and instructions[block.start].opcode.startswith("bar.warp.sync"):
                members = machine.source(instructions[block.start], block.member_mask, "b32")
                np.copyto(masks, members, where=self.joining == k)
        lane = np.arange(machine.lanes)
        same = masks.reshape(-1, 1, 32) == masks.reshape(-1, 32, 1)
        here = (same << lane[:32].astype(np.uint32)).sum(axis=2, dtype=np.uint32).reshape(-1)
        alive = np.repeat((self.live.reshape(-1, 32) << lane[:32].astype(np.uint32)).sum(axis=1, dtype=np.uint32), 32)
        going = (masks >> (lane % 32).astype(np.uint32) & 1 != 0) & (masks & alive & ~here == 0)
        if not going.any():
            return False
        masks[~going] = 0
        machine.meet(masks, going)
        self._apart |= going
        self.key[going] = self.joining[going]
        return True

    def _join(self, here: int, mask: np.ndarray) -> np.ndarray:
        """Lanes at a warp-wide instruction run once all lanes that their member mask names have come, or all of the
        warp; those at one of a warpgroup once all of that have.
        """
        machine = self.machine
        mask = mask | (self.joining == here)
        block = machine.program.blocks[here]
        if block.warpgroup:
            group = machine.warpgroup_of_lane
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
            missing = wanted_lanes & self.live.reshape(-1, 32) & ~mask.reshape(-1, 32)
            held = mask & np.repeat(missing.any(axis=1), 32) & ~self._apart
            self.met = mask & self._apart
            self._apart[self.met] = False
            self.absent.wait(here, missing.reshape(-1), mask & ~held)
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
            np.putmask(self.key, self.active_mask(), target)

    def active_mask(self) -> np.ndarray:
        """The active lanes."""
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
            np.putmask(self.key, self.active_mask(), otherwise)
            np.putmask(self.key, taken, target)

    def scatter(self, targets: np.ndarray) -> None:
        """Each active lane goes to its own block: `targets` [lanes]."""
        self._diverge()
        np.putmask(self.key, self.active_mask(), targets)

    def _diverge(self) -> None:
        if self.uniform:
            self.uniform = False
            self.key[:] = NOWHERE

    def leave(self, gone: np.ndarray | None, otherwise: int) -> None:
        """Active lanes (of them those marked in `gone`; None: all) exit; the others go on at `otherwise`."""
        mask = self.active_mask()
        leaving = mask if gone is None else mask & gone
        if not leaving.any():
            self.goto(otherwise)
            return
        self.goto(otherwise)
        np.putmask(self.key, leaving, NOWHERE)
        machine = self.machine
        if machine.products:
            machine.products.leave(leaving)
        if self.absent.any:
            self.absent.leave(leaving)
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
        self.barriers.look_again(after)

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
        active = self.active_mask()
        if self.uniform:
            self._diverge()
            np.putmask(self.key, self.live, self.current)
        return active

    def abandon(self) -> None:
        """When collecting, the batch ends here."""
        self.uniform = False
        self.key[:] = NOWHERE
        self._set_live(np.zeros(self.machine.lanes, bool))
        self.machine.shadow.finish(None)
