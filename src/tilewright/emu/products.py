"""Products of wgmma in flight: what they read and write between their issue and the wait that covers them.

The numbers are computed at the issue. What this keeps is what nobody may touch before the wait. The bytes of shared
memory (told to epochs.py) are free once one of the warpgroup's four warps has waited. Registers are each warp's own;
accumulators may be neither read nor written, A not written. (The manual forbids to read A, too. But compilers share a
register, of zeros say, with whom they like, and reading does no harm.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .compiled import address
from .in_flight import is_copy
from .isa.registry import Step
from .ptx import Instruction, Register
from .shadow import Landing
from .shared_memory import SharedPattern

if TYPE_CHECKING:
    from .in_flight import InFlight
    from .machine import Machine

A = 0
FREE = -1
"""In place of a group's number: the register is in no product."""


class _Flight:
    """The bytes of one operand in shared memory that one executed wgmma reads."""

    __slots__ = ("group", "pattern", "waiting", "warps")

    def __init__(self, pattern: SharedPattern, warps: np.ndarray, group: np.ndarray) -> None:
        self.pattern = pattern
        self.warps = warps
        """[warpgroups of the pattern, 4]."""
        self.group = group
        """[warpgroups of the pattern, 4 warps]: the group that the warp will commit it to."""
        self.waiting = np.ones(group.shape, bool)


class AsyncProducts:
    """The products of one batch. A warp's group number counts the groups that it has committed."""

    def __init__(self, machine: Machine, where: InFlight) -> None:
        self.machine = machine
        self.where = where
        warps = machine.lanes // 32
        self.flights: list[_Flight] = []
        self.committed = np.zeros(warps, np.int64)
        self.finished = np.zeros(warps, np.int64)
        """Groups below this number have been waited for."""
        self.newest = np.full(warps, FREE, np.int64)
        """Group of the last product."""
        self.last = np.zeros(warps, np.int64)
        """Its instruction."""
        self.fenced = np.zeros(warps, bool)
        """Whether the warp has run wgmma.fence."""
        self.wrote = {writer: np.zeros(warps, bool) for late in where.unfenced.values() for writer in late}
        """Instruction that may write a product's registers too late -> the warps that have run it since their last
        wgmma.fence."""
        self.group = np.full((len(where.number), warps), FREE, np.int64)
        """Of each register that wgmma works on: the group of the product that did so last."""
        self.use = np.zeros((len(where.number), warps), np.int64)
        """How it did: a number for each shape of accumulators, or A."""
        self.by = np.zeros((len(where.number), warps), np.int64)
        """The instruction that did."""
        tables = self.group, self.use, self.by, self.committed, self.finished
        self.told = np.array([*map(address, tables), warps], np.int64)

    def reset(self) -> None:
        """A new batch of blocks starts."""
        self.flights.clear()
        self.committed[:] = 0
        self.finished[:] = 0
        self.newest[:] = FREE
        self.fenced[:] = False
        for wrote in self.wrote.values():
            wrote[:] = False
        self.group[:] = FREE

    def warps(self) -> np.ndarray:
        """The warps with an active lane, as a mask."""
        mask = self.machine.mask
        return np.ones(len(self.committed), bool) if mask is None else np.any(mask.reshape(-1, 32), axis=1)

    def fence(self) -> None:
        """The active warps order their registers before the products to come."""
        warps = self.warps()
        self.fenced |= warps
        for wrote in self.wrote.values():
            wrote &= ~warps

    def issue(
        self, instruction: Instruction, warps: np.ndarray, numbers: np.ndarray, use: np.ndarray,
        reads: list[SharedPattern],
    ) -> None:  # fmt: skip
        """Warpgroups (`warps`: all their warps) start a product on the registers `numbers`, each in its `use`.

        Accumulators may be those of an earlier product of the same shape, and A may be A again; else a wait is needed.
        """
        if not self.fenced[warps].all():
            late = warps[~self.fenced[warps]]
            self._report(
                "wgmma_fence_missing", "no wgmma.fence lies before the first wgmma of the warpgroup", instruction, late
            )
        self._fenced_since(instruction, warps)
        if not self._start_by_loops(instruction, warps, numbers, use):
            every = len(warps) == len(self.committed)
            own = numbers if every else np.ix_(numbers, warps)  # whole rows are found sooner
            busy = self.group[own] >= self.finished[warps]
            wrong = busy & (self.use[own] != use[:, None])
            if wrong.any():
                row = int(np.flatnonzero(wrong.any(axis=1))[0])
                self._late(instruction, int(numbers[row]), warps[wrong[row]])
            self.group[own] = self.committed[warps]
            self.use[own] = use[:, None]
            self.by[own] = instruction.index
        self.newest[warps], self.last[warps] = self.committed[warps], instruction.index
        fours = warps.reshape(-1, 4)
        group = self.committed[fours]
        self.flights += [_Flight(pattern, fours, group) for pattern in reads]

    def _fenced_since(self, instruction: Instruction, warps: np.ndarray) -> None:
        """Report a product on registers that other instructions have written since the last wgmma.fence of a warp."""
        for writer in sorted(self.where.unfenced.get(instruction.index, ())):
            late = warps[self.wrote[writer][warps]]
            if len(late):
                by = self.machine.program.instructions[writer]
                self._report(
                    "wgmma_fence_missing",
                    "no wgmma.fence lies between a write of registers and this wgmma, which works on them",
                    instruction, late, {"the_write": self.machine.reporter.sources.where(by)},
                )  # fmt: skip
                return

    def _start_by_loops(
        self, instruction: Instruction, warps: np.ndarray, numbers: np.ndarray, use: np.ndarray
    ) -> bool:  # fmt: skip
        """Return whether the compiled loops found nothing wrong with the registers of a product, and noted it."""
        library = self.machine.compiled
        if library is None:
            return False
        where = address(numbers), address(use), len(numbers), address(warps), len(warps)
        return bool(library.product_starts(address(self.told), *where, instruction.index))

    def commit(self) -> None:
        """The active warps close their group."""
        self.committed[self.warps()] += 1

    def wait(self, newest: int) -> None:
        """All groups of the active warps but the `newest` last ones are done."""
        warps = self.warps()
        self.finished[warps] = np.maximum(self.finished[warps], self.committed[warps] - newest)
        kept = []
        for flight in self.flights:
            due = flight.waiting & (flight.group < self.finished[flight.warps]) & warps[flight.warps]
            if due.all():
                flight.waiting = ~due
                self.machine.shadow.waited(flight.pattern, due)
                self.machine.shadow.landed(flight.pattern, None)
                continue
            if due.any():
                first = due.any(axis=1) & flight.waiting.all(axis=1)
                flight.waiting &= ~due
                self.machine.shadow.waited(flight.pattern, due)
                if first.any():
                    self.machine.shadow.landed(flight.pattern, None if first.all() else np.flatnonzero(first))
            if flight.waiting.any():
                kept.append(flight)
        self.flights = kept

    def leave(self, lanes: np.ndarray) -> None:
        """Lanes (a mask) end."""
        late = np.flatnonzero(lanes.reshape(-1, 32).any(axis=1) & (self.newest >= self.finished))
        if len(late):
            product = self.machine.program.instructions[int(self.last[late[0]])]
            self._report("wgmma_not_waited", "the warp ends and has not waited for this wgmma", product, late)

    def snapshot(self) -> tuple[Any, ...]:
        """Return what is being read now, as the hazard checker names it: equal for equal states of a loop."""
        rows = [(flight.pattern, flight.waiting.all(axis=1)) for flight in self.flights]
        return tuple(
            pattern if busy.all() else Landing(pattern, np.flatnonzero(busy)) for pattern, busy in rows if busy.any()
        )

    def watches(self, instruction: Instruction) -> bool:
        """Return whether anything is to run before an instruction."""
        return instruction.index in self.where.suspects or instruction.index in self.wrote

    def watch(self, instruction: Instruction) -> Step | None:
        """Return what is to run before an instruction that may meet registers in flight, or write those of a product
        after the last wgmma.fence before that; None if it cannot."""
        steps = [step for step in (self._meets(instruction), self._writes(instruction)) if step is not None]
        if len(steps) < 2:
            return steps[0] if steps else None

        def both() -> None:
            for step in steps:
                step()

        return both

    def _writes(self, instruction: Instruction) -> Step | None:
        wrote = self.wrote.get(instruction.index)
        if wrote is None:
            return None

        def step() -> None:
            np.logical_or(wrote, self._running(instruction), out=wrote)

        return step

    def _meets(self, instruction: Instruction) -> Step | None:
        suspects = self.where.suspects.get(instruction.index)
        if not suspects:
            return None
        number = self.where.number
        if is_copy(instruction):
            to, source = instruction.operands
            assert isinstance(to, Register)
            return self._copying(instruction, number[to], number.get(source))  # type: ignore[arg-type]
        numbers = np.array([number[register] for register in suspects])
        written = self.machine.program.effects(instruction.index).writes
        writes = np.array([register in written for register in suspects])

        def step() -> None:
            busy = self.group[numbers] >= self.finished
            if busy.any():
                busy &= self._running(instruction)
                busy &= writes[:, None] | (self.use[numbers] != A)
                for row in np.flatnonzero(busy.any(axis=1))[:1].tolist():
                    self._late(instruction, int(numbers[row]), np.flatnonzero(busy[row]))

        return step

    def _copying(self, instruction: Instruction, to: int, source: int | None) -> Step:
        """A copy of an accumulator in flight is in flight; anything else may not be written over one."""

        def step() -> None:
            warps = np.flatnonzero(self._running(instruction))
            new = np.full(len(warps), FREE)
            if source is not None:
                follows = self.use[source, warps] != A
                new[follows] = self.group[source, warps[follows]]
            lost = (self.group[to, warps] >= self.finished[warps]) & (new < self.finished[warps])
            if lost.any():
                self._late(instruction, to, warps[lost])
            self.group[to, warps] = new
            if source is not None:
                self.use[to, warps[follows]] = self.use[source, warps[follows]]
                self.by[to, warps[follows]] = self.by[source, warps[follows]]

        return step

    def _running(self, instruction: Instruction) -> np.ndarray:
        """The warps in which some lane runs an instruction, its guard considered, as a mask."""
        if instruction.guard is None:
            return self.warps()
        held = self.machine.row(instruction.guard) != instruction.guard_negated
        mask = self.machine.mask
        return (held if mask is None else held & mask).reshape(-1, 32).any(axis=1)

    def _late(self, instruction: Instruction, number: int, warps: np.ndarray) -> None:
        register = list(self.where.number)[number]
        product = self.machine.program.instructions[int(self.by[number, warps[0]])]
        role = "A of" if self.use[number, warps[0]] == A else "an accumulator of"
        self._report(
            "wgmma_not_waited",
            f"the register {register.name} is {role} a wgmma that this warp has not waited for",
            instruction, warps, {"the_wgmma": self.machine.reporter.sources.where(product)},
        )  # fmt: skip

    def _report(
        self, kind: str, message: str, instruction: Instruction, warps: np.ndarray,
        details: dict[str, Any] | None = None
    ) -> None:  # fmt: skip
        lanes = (warps[:1, None] * 32 + np.arange(32)).reshape(-1)
        self.machine.report(kind, message, instruction, lanes, None, details)
