"""Barriers of a block and of a warp."""

from __future__ import annotations

import numpy as np

from ..machine import Machine
from ..ptx import Immediate, Instruction, Operand
from .registry import Step, executes


def _uniform(machine: Machine, instruction: Instruction, operand: Operand) -> int:
    """The value of an operand that must be the same for all active lanes."""
    values = machine.source(instruction, operand, "u32")
    lanes = machine.lane_list()
    seen = values if lanes is None or len(values) == 1 else values[lanes]
    machine.expect(instruction, bool((seen == seen[0]).all()), "has a barrier operand that differs between lanes")
    return int(seen[0])


@executes(
    "bar{.cta|}.{what:sync|arrive}",
    "barrier{.cta|}.{what:sync|arrive}{.aligned|}",
    kind="barrier",
    ends_block=True,
    destination="none",
)
def barrier(machine: Machine, instruction: Instruction) -> Step:
    """Wait at (sync) or count in (arrive) a barrier of the block: `a` or `a, threads`."""
    machine.expect(instruction, instruction.guard is None, "is guarded: a barrier under a predicate is not emulated")
    scheduler, resume = machine.scheduler, machine.following(instruction)
    blocking = instruction.fields["what"] == "sync"
    ident, *rest = instruction.operands
    machine.expect(instruction, blocking or bool(rest), "needs a number of threads")
    if isinstance(ident, Immediate) and not rest:
        number = ident.bits
        return lambda: scheduler.arrive(instruction, number, None, resume)

    def step() -> None:
        expected = _uniform(machine, instruction, rest[0]) if rest else None
        if expected is not None:
            machine.expect(
                instruction, expected > 0 and expected % 32 == 0, f"counts {expected} threads, no multiple of 32"
            )
        scheduler.arrive(instruction, _uniform(machine, instruction, ident), expected, resume, blocking=blocking)

    return step


@executes(
    "bar{.cta|}.red.{op:popc.u32|and.pred|or.pred}",
    "barrier{.cta|}.red.{op:popc|and|or}{.aligned|}.{type:u32|pred}",
    kind="barrier",
    ends_block=True,
)
def barrier_reduce(machine: Machine, instruction: Instruction) -> Step:
    """A barrier that counts, ands or ors a predicate of all its threads: `d, a{, threads}, p`."""
    machine.expect(instruction, instruction.guard is None, "is guarded: a barrier under a predicate is not emulated")
    scheduler, resume = machine.scheduler, machine.following(instruction)
    to, ident, *rest, p = instruction.operands
    op = instruction.fields["op"].split(".")[0]
    put = machine.write(to, "u32" if op == "popc" else "pred", instruction)
    condition = machine.condition(instruction, p)

    def released(lanes: np.ndarray) -> None:
        held = np.broadcast_to(condition(), (machine.lanes,))[lanes]
        if op == "popc":
            put(np.full(len(lanes), np.count_nonzero(held), np.uint32), lanes)
        else:
            put(np.full(len(lanes), held.all() if op == "and" else held.any()), lanes)

    def step() -> None:
        expected = _uniform(machine, instruction, rest[0]) if rest else None
        scheduler.arrive(instruction, _uniform(machine, instruction, ident), expected, resume, on_release=released)

    return step


@executes("bar.warp.sync", kind="barrier", member_mask=0, destination="none")
def warp_barrier(machine: Machine, instruction: Instruction) -> Step:
    """Lanes of a warp wait for one another; the scheduler sees to that."""
    return lambda: None
