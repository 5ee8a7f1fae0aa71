"""Calls of functions and what they return; functions of the CUDA runtime that a kernel may call."""

from __future__ import annotations

import numpy as np

from ..calls import Site
from ..link import function_address
from ..machine import Machine
from ..ptx import Instruction, Operand, Register, Symbol, Vector
from ..runtime import FUNCTIONS
from .memory import TYPES, Spread, argument_bytes, vector_of
from .registry import Step, executes


def _names(operand: Operand) -> list[str]:
    return [item.name for item in operand.items if isinstance(item, Symbol)] if isinstance(operand, Vector) else []


@executes("call{.uni|}", kind="control", ends_block=True, destination="none")
def call(machine: Machine, instruction: Instruction) -> Step:
    """`(results), function, (arguments)`, each perhaps left out; through a register a prototype follows."""
    operands = list(instruction.operands)
    results = _names(operands.pop(0)) if isinstance(operands[0], Vector) else []
    function = operands[0]
    arguments = _names(operands[1]) if len(operands) > 1 else []
    places = machine.program.arguments
    machine.expect(instruction, all(name in places for name in (*results, *arguments)), "passes what is no .param")
    guard = None if instruction.guard is None else machine.row(instruction.guard)
    resume = machine.following(instruction)
    caller = machine.program.routine_at(instruction.index)
    kept: dict[int, list[int]] = {}
    for register in machine.program.live.get(resume, ()):
        rows = kept.setdefault(register.width, [])
        if (row := machine.program.rows[register]) not in rows:
            rows.append(row)
    stack, scheduler = machine.calls, machine.scheduler
    site = Site(instruction, caller, resume, kept, [places[n] for n in arguments], [places[n] for n in results])
    number = len(stack.sites)
    stack.sites.append(site)
    known = {r.name: r for r in machine.program.routines[:-1]}
    functions = {name: function_address(machine.program.module, name) for name in known}
    by_address = {address: known[name] for name, address in functions.items()}
    if isinstance(function, Symbol) and function.name not in known:
        builtin = FUNCTIONS.get(function.name)
        machine.expect(instruction, builtin is not None, f"calls {function.name!r}, which the PTX only declares")
        assert builtin is not None

        def outside() -> None:
            lanes = _calling(machine, guard, instruction.guard_negated)
            gone = builtin(machine, site, lanes) if len(lanes) else None
            scheduler.leave(np.zeros(machine.lanes, bool) if gone is None else gone, resume)

        return outside
    machine.expect(instruction, isinstance(function, Symbol | Register), "needs a function")
    target = machine.source(instruction, function, "u64")

    def step() -> None:
        lanes = _calling(machine, guard, instruction.guard_negated)
        targets = np.full(machine.lanes, resume, np.int32)
        wanted = np.broadcast_to(target, (machine.lanes,))[lanes]
        for address in np.unique(wanted).tolist():
            group = lanes[wanted == address]
            routine = by_address.get(address)
            if routine is None or len(routine.parameters) != len(site.arguments):
                machine.report(
                    "illegal", f"a call to {address:#x}, where no such function is", instruction, group, None
                )
                continue
            targets[stack.enter(site, number, group, routine)] = machine.program.block_at[routine.start]
        _go(machine, targets)

    return step


def _calling(machine: Machine, guard: np.ndarray | None, negated: bool) -> np.ndarray:
    mask = machine.scheduler.live if machine.mask is None else machine.mask
    return np.flatnonzero(mask if guard is None else mask & (~guard if negated else guard))


def _go(machine: Machine, targets: np.ndarray) -> None:
    mask = machine.scheduler.live if machine.mask is None else machine.mask
    chosen = targets[mask]
    if (chosen == chosen[0]).all():
        machine.scheduler.goto(int(chosen[0]))
    else:
        machine.scheduler.scatter(targets)


def come_back(machine: Machine, instruction: Instruction) -> Step:
    """`ret` inside a function."""
    routine = machine.program.routine_at(instruction.index)
    guard = None if instruction.guard is None else machine.row(instruction.guard)
    otherwise, stack = machine.following(instruction), machine.calls

    def step() -> None:
        lanes = _calling(machine, guard, instruction.guard_negated)
        targets = np.full(machine.lanes, otherwise, np.int32)
        targets[lanes] = stack.leave(routine, lanes)
        _go(machine, targets)

    return step


@executes(f"st.{{space:param|param::func}}{{vec:.v2|.v4|}}.{{type:{TYPES}}}", kind="move", destination="none")
def store_argument(machine: Machine, instruction: Instruction) -> Step:
    """An argument of a call to come, or the result of this function."""
    spread = Spread(machine, instruction, vector_of(instruction), 1)
    take, nbytes = spread.gather(instruction), spread.bytes
    place = argument_bytes(machine, instruction, instruction.operands[0], nbytes)
    machine.expect(instruction, place is not None, "stores where no argument or result is")
    assert place is not None

    def step() -> None:
        lanes = machine.lane_list()
        raw = take(lanes).view(np.uint8).reshape(-1, nbytes)
        place[slice(None) if lanes is None else lanes] = raw

    return step
