"""Barriers of a block: who has arrived, who waits, and what is wrong with how threads came there."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .orders import NOWHERE
from .ptx import Instruction
from .standstill import whereabouts

if TYPE_CHECKING:
    from .schedule import Scheduler

Release = Callable[[np.ndarray], None]


class Use(NamedTuple):
    """One completed use of a barrier."""

    waited: np.ndarray
    """Which warps of the block have waited there ..."""
    clocks: np.ndarray
    """... and their clocks then."""
    threads: int
    instruction: Instruction


class BlockBarriers:
    """The barriers of all blocks of a batch."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler, self.machine = scheduler, scheduler.machine
        self.at = np.full(self.machine.lanes, -1, np.int16)
        """Barrier that a lane waits for; -1: none."""
        self.tokens: dict[tuple[int, int], int] = {}
        """(cta, barrier) -> threads that arrived without waiting."""
        self.expected: dict[tuple[int, int], int | None] = {}
        self.passed: dict[tuple[int, int], int] = {}
        """(cta, barrier) -> threads that its last completed use counted."""
        self.last: dict[tuple[int, int], Use] = {}
        """(cta, barrier) -> its last completed use."""
        self.on_release: dict[int, Release] = {}

    def reset(self) -> None:
        """A new batch."""
        self.at[:] = -1
        self.tokens.clear()
        self.expected.clear()
        self.passed.clear()
        self.last.clear()

    def look_again(self, running: np.ndarray) -> None:
        """Threads have exited: those that wait in blocks that still run may be all that are left."""
        for cta, ident in list(self.expected):
            if running[cta]:
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
        machine, scheduler = self.machine, self.scheduler
        if scheduler.uniform and blocking and expected is None and not self.tokens and on_release is None:
            alive: np.ndarray | None = None
            if scheduler.live_count != machine.lanes:
                self._missing(instruction, None)
                alive = scheduler.running()
            for place in [place for place in self.last if place[1] == ident]:
                if alive is None or alive[place[0]]:
                    self._after_last_use(instruction, place, np.ones(machine.warps_per_cta, bool), expected)
                    self.last.pop(place, None)
            machine.shadow.barrier(alive)
            scheduler.current = resume
            return
        mask = scheduler.active_mask()
        by_warp = mask.reshape(-1, 32).any(axis=1).reshape(machine.ctas, -1)
        present = np.flatnonzero(by_warp.any(axis=1)).tolist()
        if blocking:
            scheduler.separate()
            self.at[mask] = ident
            scheduler.parked_at[mask] = instruction.index
            scheduler.resume[mask] = resume
            scheduler.key[mask] = NOWHERE
            if on_release is not None:
                self.on_release[instruction.index] = on_release
        else:
            scheduler.goto(resume)
        for cta in present:
            place = (cta, ident)
            if place in self.expected:
                self._counts(instruction, place, expected)
            self._after_last_use(instruction, place, by_warp[cta], expected)
            self.expected[place] = expected
            if not blocking:
                self.tokens[place] = self.tokens.get(place, 0) + 32 * int(by_warp[cta].sum())
            machine.shadow.arrive(cta, ident, by_warp[cta])
            self._too_many(instruction, place)
            self._try_release(cta, ident)

    def _counts(self, instruction: Instruction, place: tuple[int, int], expected: int | None) -> None:
        """Report arrivals at one barrier that count different numbers of threads."""
        machine, scheduler = self.machine, self.scheduler
        every = machine.warps_per_cta * 32
        before = self.expected[place]
        if (before or every) != (expected or every):
            machine.report(
                "barrier_counts",
                f"barrier {place[1]} is reached for {expected or every} threads, and was for {before or every}",
                instruction, np.flatnonzero(scheduler.active_mask() & (machine.cta_of_lane == place[0])), None,
                {"where_each_waits": whereabouts(scheduler, place[0], instruction)},
            )  # fmt: skip

    def _after_last_use(
        self, instruction: Instruction, place: tuple[int, int], warps: np.ndarray, expected: int | None
    ) -> None:  # fmt: skip
        """Report warps that may have come before the last use of a barrier, by others, was over."""
        last, machine = self.last.get(place), self.machine
        if last is None:
            return
        early = warps & ~last.waited
        if early.any():
            early &= ~machine.shadow.come_after(place[0], np.flatnonzero(last.waited), last.clocks)
        if not early.any():
            return
        width = machine.warps_per_cta * 32
        warp = int(np.flatnonzero(early)[0])
        machine.report(
            "barrier_counts",
            f"warp {warp} reaches barrier {place[1]} for {expected or width} threads, and nothing orders that after "
            f"its use before, for {last.threads}, in which it may be counted",
            instruction, place[0] * width + 32 * warp + np.arange(32), None,
            {
                "the_use_before": machine.reporter.sources.where(last.instruction),
                "missing": "another barrier for one of the two groups, or one that orders them",
            },
        )  # fmt: skip
        self.last.pop(place, None)

    def _too_many(self, instruction: Instruction, place: tuple[int, int]) -> None:
        """Report threads at a barrier that takes fewer: which of them meet is anybody's guess."""
        expected = self.expected[place]
        if expected is None or (arrived := self._arrived(place)) <= expected:
            return
        machine, scheduler = self.machine, self.scheduler
        machine.report(
            "barrier_counts",
            f"barrier {place[1]} takes {expected} threads, and {arrived} are there at once",
            instruction, np.flatnonzero(scheduler.active_mask() & (machine.cta_of_lane == place[0])), None,
            {"where_each_waits": whereabouts(scheduler, place[0], instruction)},
        )  # fmt: skip

    def _arrived(self, place: tuple[int, int]) -> int:
        width = self.machine.warps_per_cta * 32
        span = slice(place[0] * width, (place[0] + 1) * width)
        waiting = self.at[span] == place[1]
        late = self.scheduler.live[span] & ~waiting
        # a warp comes with its last lane
        here = waiting.reshape(-1, 32).any(axis=1) & ~late.reshape(-1, 32).any(axis=1)
        return 32 * int(here.sum()) + self.tokens.get(place, 0)

    def _try_release(self, cta: int, ident: int) -> None:
        machine, scheduler = self.machine, self.scheduler
        width = machine.warps_per_cta * 32
        span = slice(cta * width, (cta + 1) * width)
        waiting = self.at[span] == ident
        live = scheduler.live[span]
        expected = self.expected[(cta, ident)]
        if expected is None:
            if not waiting.any() or (live & ~waiting).any():
                return
        elif self._arrived((cta, ident)) < expected:
            return
        lanes = np.flatnonzero(waiting) + span.start
        del self.expected[(cta, ident)]
        self.tokens.pop((cta, ident), None)
        warps = waiting.reshape(-1, 32).any(axis=1)
        if not len(lanes):  # all only arrived
            machine.shadow.release(cta, ident, warps)
            return
        if expected is None:
            self._missing(machine.program.instructions[int(scheduler.parked_at[lanes[0]])], cta)
        self.passed[cta, ident] = expected or width
        use = machine.program.instructions[int(scheduler.parked_at[lanes[0]])]
        clocks = machine.shadow.clocks_of(cta, np.flatnonzero(warps))
        self.last[cta, ident] = Use(warps, clocks, expected or width, use)
        self._same_place(lanes)
        if bool((waiting == live).all()) and expected in (None, machine.threads):
            whole = np.zeros(machine.ctas, bool)
            whole[cta] = True
            machine.shadow.barrier(whole)
        machine.shadow.release(cta, ident, warps)
        self.at[lanes] = -1
        scheduler.key[lanes] = scheduler.resume[lanes]
        for index in np.unique(scheduler.parked_at[lanes]).tolist():
            if index in self.on_release:
                self.on_release[index](lanes[scheduler.parked_at[lanes] == index])

    def _same_place(self, lanes: np.ndarray) -> None:
        """A warp's lanes have to arrive at one instruction if the barrier is an aligned one."""
        places = self.scheduler.parked_at[lanes]
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
        machine, scheduler = self.machine, self.scheduler
        gone = (scheduler.born & ~scheduler.live).reshape(machine.ctas, -1)
        alive = scheduler.running()
        for k in range(machine.ctas) if cta is None else (cta,):
            if alive[k] and gone[k].any():
                width = machine.warps_per_cta * 32
                if self.uneven(k, instruction):
                    return
                machine.report(
                    "barrier_divergence",
                    f"{int(gone[k].sum())} of {machine.threads} threads of the block ended without reaching "
                    "the barrier (CUDA C++ leaves that undefined; GPUs since Volta let the others pass)",
                    instruction, np.flatnonzero(scheduler.live[k * width : (k + 1) * width]) + k * width, None,
                    {"where_each_waits": whereabouts(scheduler, k, instruction)},
                )  # fmt: skip
                return

    def uneven(self, cta: int, at: Instruction) -> bool:
        """Report a barrier that threads of a block wait at for another number than passed it; whether there is one."""
        machine, scheduler = self.machine, self.scheduler
        span = slice(cta * machine.warps_per_cta * 32, (cta + 1) * machine.warps_per_cta * 32)
        for (block, ident), before in self.passed.items():
            lanes = np.flatnonzero(self.at[span] == ident) + span.start
            wanted = (self.expected.get((cta, ident)) or machine.warps_per_cta * 32) if block == cta else before
            if wanted != before and len(lanes):
                machine.report(
                    "barrier_counts",
                    f"barrier {ident} is waited at for {wanted} threads, and {before} have passed it before",
                    machine.program.instructions[int(scheduler.parked_at[lanes[0]])],
                    lanes[lanes // 32 == lanes[0] // 32], None, {"where_each_waits": whereabouts(scheduler, cta, at)},
                )  # fmt: skip
                return True
        return False
