"""Branches, exits, and instructions that only hint."""

from __future__ import annotations

import numpy as np

from ..compiled import address
from ..machine import Machine
from ..ptx import Instruction, Symbol
from .call import come_back
from .registry import Step, executes


@executes("bra{.uni|}", kind="control", ends_block=True, destination="none")
def branch(machine: Machine, instruction: Instruction) -> Step:
    """A jump; with a guard, of the lanes whose guard holds."""
    scheduler = machine.scheduler
    target, otherwise = machine.label(instruction, instruction.operands[0]), machine.following(instruction)
    block = machine.binding
    if instruction.guard is None:
        if machine.engine:
            machine.engine.end(block, target)
        return lambda: scheduler.goto(target)
    row, negated = machine.row(instruction.guard), instruction.guard_negated
    if machine.engine:
        machine.engine.end(block, target, address(row), negated, otherwise)
    if negated:
        return lambda: scheduler.split(~row, target, otherwise)
    return lambda: scheduler.split(row, target, otherwise)


@executes("brx.idx{.uni|}", kind="control", ends_block=True, destination="none")
def branch_indexed(machine: Machine, instruction: Instruction) -> Step:
    """A jump through a table. An index outside the table is illegal."""
    scheduler = machine.scheduler
    table = instruction.operands[1]
    machine.expect(instruction, isinstance(table, Symbol), "needs the name of a jump table")
    assert isinstance(table, Symbol)
    labels = machine.program.entry.tables.get(table.name)
    machine.expect(instruction, bool(labels), f"names the jump table {table.name!r}, which is nowhere")
    machine.expect(instruction, instruction.guard is None, "has a guard; a jump through a table may not")
    targets = np.array([machine.label(instruction, Symbol(label)) for label in labels or ()], np.int32)
    index = machine.source(instruction, instruction.operands[0], "u32")

    def step() -> None:
        chosen = np.broadcast_to(index, (machine.lanes,))
        outside = chosen >= len(targets)
        if machine.mask is not None:
            outside = outside & machine.mask
        if outside.any():
            bad = np.flatnonzero(outside)
            machine.report(
                "illegal", f"index {int(chosen[bad[0]])} into a jump table of {len(targets)}", instruction, bad, None
            )
        scheduler.scatter(targets.take(chosen, mode="clip"))

    return step


@executes("{ret|exit}{.uni|}", kind="control", ends_block=True, destination="none")
def leave(machine: Machine, instruction: Instruction) -> Step:
    """The end of a thread, or `ret` in a function: back to its caller."""
    program = machine.program
    if instruction.opcode.startswith("ret") and program.routine_at(instruction.index) is not program.routines[-1]:
        return come_back(machine, instruction)
    scheduler, otherwise = machine.scheduler, machine.following(instruction)
    if instruction.guard is None:
        return lambda: scheduler.leave(None, otherwise)
    row, negated = machine.row(instruction.guard), instruction.guard_negated
    return lambda: scheduler.leave(~row if negated else row, otherwise)


@executes("{trap|brkpt}", kind="control", ends_block=True, destination="none")
def trap(machine: Machine, instruction: Instruction) -> Step:
    """The kernel stops itself: always reported. When collecting, the threads end."""
    scheduler, otherwise = machine.scheduler, machine.following(instruction)
    guard = None if instruction.guard is None else machine.row(instruction.guard)

    def step() -> None:
        lanes = np.flatnonzero(scheduler.live if machine.mask is None else machine.mask)
        gone = None
        if guard is not None:
            gone = ~guard if instruction.guard_negated else guard
            lanes = lanes[gone[lanes]]
        if len(lanes):
            machine.report("illegal", f"the kernel executed {instruction.opcode!r}", instruction, lanes, None)
        scheduler.leave(gone, otherwise)

    return step


@executes(
    "createpolicy.fractional.L2::{evict_last|evict_normal|evict_first|evict_unchanged}"
    "{.L2::evict_first|.L2::evict_unchanged|}.b64",
    kind="control",
)
def cache_policy(machine: Machine, instruction: Instruction) -> Step:
    """A cache policy: a number that means nothing here."""
    return machine.keep(instruction, instruction.operands[0], "b64", lambda out: out.fill(0), [])


@executes(
    "{prefetch|prefetchu}{.global|.local|}{.L1|.L2}{::evict_last|::evict_normal|}",
    "applypriority{.global|}.L2::evict_normal",
    "discard{.global|}.L2",
    "fence.acquire{.cta|.cluster}",
    "fence.proxy.alias",
    "nanosleep.u32",
    "griddepcontrol.{wait|launch_dependents}",
    "pmevent",
    kind="control",
    destination="none",
)
def hint(machine: Machine, instruction: Instruction) -> Step:
    """No effect here: memory is sequentially consistent, and time does not exist."""
    return lambda: None


@executes("membar{.gl|.sys}", "fence{.acq_rel|.sc|.release|}{.gpu|.sys}", kind="control", destination="none")
def fence(machine: Machine, instruction: Instruction) -> Step:
    """Order what came before ahead of what comes after: nothing to memory, something to races."""
    telling, messages = machine.races.telling if machine.races else None, machine.shadow.messages
    if telling is None and messages is None:
        return lambda: None

    def step() -> None:
        lanes = machine.lane_list()
        lanes = np.arange(machine.lanes) if lanes is None else lanes
        if telling is not None:
            telling.fence(lanes)
        if messages is not None:
            messages.fence(lanes)

    return step


@executes("fence.acquire{.gpu|.sys|}", kind="control", destination="none")
def acquire_fence(machine: Machine, instruction: Instruction) -> Step:
    """Let what is read after it be as new as what was read before it says: half of a fence."""
    telling = machine.races.telling if machine.races else None
    if telling is None:
        return lambda: None

    def step() -> None:
        lanes = machine.lane_list()
        telling.take(np.arange(machine.lanes) if lanes is None else lanes)

    return step


@executes(
    "membar{.cta|}", "fence{.acq_rel|.sc|.release|}{.cta|.cluster|}", kind="control", destination="none"
)  # fmt: skip
def block_fence(machine: Machine, instruction: Instruction) -> Step:
    """The same for the warps of a block, or of a cluster."""
    messages, narrow = machine.shadow.messages, not instruction.opcode.endswith(".cluster")
    if messages is None:
        return lambda: None

    def step() -> None:
        lanes = machine.lane_list()
        messages.fence(np.arange(machine.lanes) if lanes is None else lanes, narrow)

    return step
