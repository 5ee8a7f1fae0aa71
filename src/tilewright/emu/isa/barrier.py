"""Barriers of a block and of a warp."""

from __future__ import annotations

import numpy as np

from ..block_barriers import Release
from ..machine import Machine
from ..ptx import Immediate, Instruction, Operand
from .registry import Step, executes
from .shuffle import by_name, check_members

BARRIERS = 16
"""Named barriers of a block."""


def _arrive(
    machine: Machine,
    instruction: Instruction,
    ident: Operand,
    count: Operand,
    *,
    blocking: bool = True,
    on_release: Release | None = None,
) -> Step:
    """The step by which lanes reach a barrier. Warps may name different barriers, as by a register they may."""
    scheduler, resume = machine.scheduler, machine.following(instruction)
    if isinstance(ident, Immediate):
        machine.expect(instruction, 0 <= ident.bits < BARRIERS, f"names no barrier: a block has 0 to {BARRIERS - 1}")
    idents = machine.source(instruction, ident, "u32")
    counts = None if count is None else machine.source(instruction, count, "u32")
    guard = None if instruction.guard is None else machine.row(instruction.guard)

    def arrive(number: int, expected: int | None) -> None:
        if expected is not None:
            right = expected > 0 and expected % 32 == 0
            machine.expect(instruction, right, f"counts {expected} threads, not a multiple of 32")
        if number >= BARRIERS:
            lanes = np.flatnonzero(scheduler.live if machine.mask is None else machine.mask)
            machine.report(
                "illegal", f"barrier {number}: a block has {BARRIERS}, 0 to {BARRIERS - 1}", instruction, lanes, None
            )
            scheduler.goto(resume)
            return
        scheduler.barriers.arrive(instruction, number, expected, resume, blocking=blocking, on_release=on_release)

    def step() -> None:
        lanes = machine.lane_list()

        def seen(values: np.ndarray) -> np.ndarray:
            return values if lanes is None or len(values) == 1 else values[lanes]

        first, counted = seen(idents), np.zeros(1, np.uint32) if counts is None else seen(counts)
        alike = bool((first == first[0]).all() and (counted == counted[0]).all())
        if alike and guard is None:
            arrive(int(first[0]), None if counts is None else int(counted[0]))
            return
        outer = scheduler.separate()
        if guard is not None:
            held = ~guard if instruction.guard_negated else guard
            machine.set_mask(outer & ~held)
            scheduler.goto(resume)
            outer = outer & held
        every = np.broadcast_to(idents, outer.shape)
        wanted = np.zeros(outer.shape, np.uint32) if counts is None else np.broadcast_to(counts, outer.shape)
        for number, expected in sorted(set(zip(every[outer].tolist(), wanted[outer].tolist(), strict=True))):
            machine.set_mask(outer & (every == number) & (wanted == expected))
            arrive(number, None if counts is None else expected)

    return step


@executes(
    "bar{.cta|}.{what:sync|arrive}",
    "barrier{.cta|}.{what:sync|arrive}{.aligned|}",
    kind="barrier",
    ends_block=True,
    destination="none",
)
def barrier(machine: Machine, instruction: Instruction) -> Step:
    """Wait at (sync) or count in (arrive) a barrier of the block: `a` or `a, threads`."""
    blocking = instruction.fields["what"] == "sync"
    ident, *rest = instruction.operands
    machine.expect(instruction, len(rest) == 1 or (blocking and not rest), "needs a number of threads")
    return _arrive(machine, instruction, ident, rest[0] if rest else None, blocking=blocking)


@executes(
    "bar{.cta|}.red.{op:popc.u32|and.pred|or.pred}",
    "barrier{.cta|}.red.{op:popc|and|or}{.aligned|}.{type:u32|pred}",
    kind="barrier",
    ends_block=True,
)
def barrier_reduce(machine: Machine, instruction: Instruction) -> Step:
    """A barrier that counts, ands or ors a predicate of all its threads: `d, a{, threads}, p`."""
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

    return _arrive(machine, instruction, ident, rest[0] if rest else None, on_release=released)


@executes("bar.warp.sync", kind="barrier", member_mask=0, destination="none")
def warp_barrier(machine: Machine, instruction: Instruction) -> Step:
    """Lanes of a warp wait for one another; the scheduler sees to that."""
    members = machine.source(instruction, instruction.operands[0], "b32")
    check, named = check_members(machine, instruction, members), by_name(instruction.operands[0], members)

    def step() -> None:
        check()
        met, machine.scheduler.met = machine.scheduler.met, None
        if met is None or not met.any():
            machine.meet(named)
        elif (others := machine.scheduler.active_mask() & ~met).any():
            machine.meet(named, others)

    return step
