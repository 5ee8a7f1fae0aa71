"""Exchange within a warp: shuffles, votes, matches and reductions. The scheduler brings the named lanes together."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..machine import Machine
from ..program import Code
from ..ptx import Immediate, Instruction, Operand, Pair, registers_of
from .integer import count_bits
from .registry import Step, dtype_of, executes

_LANE = np.arange(32)


def _warps(machine: Machine, values: np.ndarray) -> np.ndarray:
    """One value a lane as [warps, 32]."""
    return np.broadcast_to(values, (machine.lanes,)).reshape(-1, 32)


def _active(machine: Machine) -> np.ndarray:
    mask = machine.mask
    return (np.ones(machine.lanes, bool) if mask is None else mask).reshape(-1, 32)


def _by_mask(
    machine: Machine, members: np.ndarray, compute: Callable[[np.ndarray], tuple[np.ndarray, ...]]
) -> tuple[np.ndarray, ...]:
    """The results of `compute(lanes)` [warps, 32] for each set of lanes that execute with one member mask.

    A warp that runs the instruction with several masks at once is several groups, as tiles of a warp are.
    """
    masks, rest = _warps(machine, members), _active(machine)
    first = np.take_along_axis(masks, rest.argmax(axis=1)[:, None], axis=1)
    group = rest & (masks == first)
    results = compute(group)
    while (rest := rest & ~group).any():
        first = np.take_along_axis(masks, rest.argmax(axis=1)[:, None], axis=1)
        group = rest & (masks == first)
        results = tuple(np.where(group, new, old) for new, old in zip(compute(group), results, strict=True))
    return results


def check_members(machine: Machine, instruction: Instruction, members: np.ndarray) -> Step:
    """A step that reports lanes which their own member mask does not name, or that name one with another mask."""
    if by_name(instruction.operands[-1], members) is None:
        return lambda: None

    def apart(active: np.ndarray) -> None:
        """Report lanes whose mask is not that of the lowest lane that it names."""
        masks = np.where(active, _warps(machine, members), np.uint32(0))
        lowest = masks & (~masks + np.uint32(1))
        first = np.frexp(np.maximum(lowest, np.uint32(1)).astype(np.float64))[1] - 1
        theirs = np.take_along_axis(masks, first, axis=1)
        others = active & (masks != 0) & (theirs != 0) & (theirs != masks)
        if others.any():
            lanes = np.flatnonzero(others)
            at = (lanes[0] // 32, lanes[0] % 32)
            machine.report(
                "member_mask", f"lane {at[1]} calls with the member mask {int(masks[at]):#010x}, which names lane "
                f"{first[at]}; that one calls with {int(theirs[at]):#010x}",
                instruction, lanes, None,
            )  # fmt: skip

    def step() -> None:
        active = _active(machine)
        if members.size > 1:
            masks = _warps(machine, members)
            of_first = np.take_along_axis(masks, active.argmax(axis=1)[:, None], axis=1)
            if (active & (masks != of_first)).any():
                apart(active)
        absent = active & ((_warps(machine, members) >> _LANE.astype(np.uint32)) & 1 == 0)
        if absent.any():
            lanes = np.flatnonzero(absent)
            mask = int(np.broadcast_to(members, (machine.lanes,))[lanes[0]])
            machine.report(
                "member_mask", f"lane {lanes[0] % 32} calls with the member mask {mask:#010x}, which lacks it",
                instruction, lanes, None,
            )  # fmt: skip

    return step


def by_name(operand: Operand, members: np.ndarray) -> np.ndarray | None:
    """Member masks that may name less than all lanes; None for the constant that names all."""
    everybody = isinstance(operand, Immediate) and bool((members == 0xFFFFFFFF).all())
    return None if everybody else members


def _together(machine: Machine, instruction: Instruction, members: np.ndarray, step: Step) -> Step:
    """`step` after the check of the member mask, for lanes that come together."""
    check, named = check_members(machine, instruction, members), by_name(instruction.operands[-1], members)

    def checked() -> None:
        check()
        machine.meet(named, firmly=False)
        step()

    return checked


def _put(machine: Machine, put: object, values: np.ndarray) -> None:
    lanes = machine.lane_list()
    flat = np.ascontiguousarray(values).reshape(-1)
    put(flat if lanes is None else flat[lanes], lanes)  # type: ignore[operator]


def _may_be_dropped(program: Code, result: Operand) -> bool:
    """Return whether all that read a result choose whether they use it."""
    readers = [
        program.instructions[index] for register in registers_of(result) for index in program.readers.get(register, ())
    ]
    return all(reader.guard is not None or reader.opcode.startswith("selp.") for reader in readers)


@executes("shfl{sync:.sync|}.{mode:up|down|bfly|idx}.b32", kind="shuffle", member_mask=-1)
def shuffle(machine: Machine, instruction: Instruction) -> Step:
    """Each lane reads the value of another. What it gets from a lane that does not take part is undefined: reported.

    Only where the result depends on it, if the kernel may drop it: of .up, and of .down but for the first lane of a
    segment, since in a sum over fewer lanes than 32 the others read what nobody uses; and of what goes to a `selp` or a
    guarded instruction.
    """
    machine.expect(
        instruction, bool(instruction.fields["sync"]), "is the form without .sync, which sm_70 and later lack"
    )
    to, a, b, c, mask = instruction.operands
    first, second = (to.first, to.second) if isinstance(to, Pair) else (to, None)
    put = machine.write(first, "b32", instruction)
    put_ok = machine.write(second, "pred", instruction)
    value, by, clamp, members = (machine.source(instruction, x, "b32") for x in (a, b, c, mask))
    named = by_name(mask, members)
    mode = instruction.fields["mode"]
    dropped = mode == "up" or _may_be_dropped(machine.program, first)

    def sources() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return of each lane whom it reads, whether that is one of its segment, and where the segment begins."""
        amount = (by.reshape(-1, 32 if len(by) > 1 else 1) & np.uint32(31)).astype(np.int64)
        bits = clamp.reshape(-1, 32 if len(clamp) > 1 else 1).astype(np.int64)
        segment = (bits >> 8) & 31
        top = (_LANE & segment) | (bits & 31 & ~segment)
        low = _LANE & segment
        if mode == "up":
            other = _LANE - amount
            ok = other >= top
        elif mode == "down":
            other = _LANE + amount
            ok = other <= top
        elif mode == "bfly":
            other = _LANE ^ amount
            ok = other <= top
        else:
            other = low | (amount & ~segment)
            ok = other <= top
        return np.where(ok, other, _LANE) & 31, ok, low

    always = sources() if isinstance(b, Immediate) and isinstance(c, Immediate) else None

    def whole() -> bool:
        """Return whether of each warp all lanes are active, or none."""
        mask = machine.mask
        if mask is None:
            return True
        lanes = mask.reshape(-1, 32)
        return bool((lanes == lanes[:, :1]).all())

    def step() -> None:
        values = _warps(machine, value)
        other, ok, low = always or sources()
        if always and whole() and (named is None or bool((members == 0xFFFFFFFF).all())):
            _put(machine, put, values.take(other[0], axis=1))
            if second is not None:
                _put(machine, put_ok, np.broadcast_to(ok, values.shape))
            return
        other, ok, low = (np.broadcast_to(part, values.shape) for part in (other, ok, low))
        active = _active(machine)
        present = np.take_along_axis(active, other, axis=1)
        taking = present if named is None else present & (_warps(machine, members) >> other.astype(np.uint32) & 1 != 0)
        undefined = active & ok & ~taking
        got = np.take_along_axis(values, np.where(taking, other, _LANE), axis=1)
        if undefined.any():
            sure = undefined & ~present & (not dropped) & ((mode != "down") | (low == _LANE))
            if not sure.any() and machine.undefined is not None:
                got = np.where(undefined, np.uint32(machine.undefined), got)
            lanes = np.flatnonzero(sure if sure.any() else undefined)
            at = lanes[0] // 32, lanes[0] % 32
            why = "does not take part: it has ended, took another path, or does not exist"
            why = "its member mask does not name" if present[at] else why
            machine.report(
                "shuffle_source", f"lane {at[1]} reads the value of lane {int(other[at])}, which {why}",
                instruction, lanes, None, None if sure.any() else {"effect": "another value makes another result"},
                suspect=not sure.any(),
            )  # fmt: skip
        _put(machine, put, got)
        _put(machine, put_ok, ok)

    return _together(machine, instruction, members, step)


def _spread(values: np.ndarray) -> np.ndarray:
    """One value a warp, for each of its lanes: [warps, 32]."""
    return np.broadcast_to(values[:, None], (len(values), 32))


def _ballot(held: np.ndarray) -> np.ndarray:
    """[warps, 32] bool -> uint32 [warps]."""
    return np.packbits(held, axis=1, bitorder="little").view(np.uint32).reshape(-1)


@executes(
    "vote.sync.{op:all|any|uni|ballot}.{type:pred|b32}",
    "vote.{op:all|any|uni}.sync.{type:pred}",
    "vote.{op:ballot}.sync.{type:b32}",
    kind="shuffle",
    member_mask=-1,
)
def vote(machine: Machine, instruction: Instruction) -> Step:
    """All, any, the same everywhere, or the bits of a predicate over the active lanes."""
    to, p, mask = instruction.operands
    op = instruction.fields["op"]
    put = machine.write(to, instruction.fields["type"], instruction)
    condition, members = machine.condition(instruction, p), machine.source(instruction, mask, "b32")

    def voted(active: np.ndarray) -> tuple[np.ndarray]:
        held = _warps(machine, condition()) & active
        if op == "ballot":
            return (_spread(_ballot(held)),)
        every, some = (held == active).all(axis=1), held.any(axis=1)
        return (_spread({"all": every, "any": some, "uni": every | ~some}[op]),)

    def step() -> None:
        _put(machine, put, *_by_mask(machine, members, voted))

    return _together(machine, instruction, members, step)


@executes("activemask.b32", kind="shuffle")
def active_mask(machine: Machine, instruction: Instruction) -> Step:
    """The lanes of the warp that execute this together."""
    put = machine.write(instruction.operands[0], "b32", instruction)
    return lambda: _put(machine, put, np.repeat(_ballot(_active(machine)), 32))


@executes("match.{op:any|all}.sync.{type:b32|b64}", kind="shuffle", member_mask=-1)
def match(machine: Machine, instruction: Instruction) -> Step:
    """Return which active lanes hold my value (any); or all of them if they agree, else none (all)."""
    to, a, mask = instruction.operands
    op = instruction.fields["op"]
    first, second = (to.first, to.second) if isinstance(to, Pair) else (to, None)
    put, put_ok = machine.write(first, "b32", instruction), machine.write(second, "pred", instruction)
    value = machine.source(instruction, a, instruction.fields["type"])
    members = machine.source(instruction, mask, "b32")

    def matched(active: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values = _warps(machine, value)
        equal = (values[:, :, None] == values[:, None, :]) & active[:, None, :]
        mine = _ballot(equal.reshape(-1, 32)).reshape(-1, 32)
        whole = _ballot(active)[:, None]
        agree = ((mine == whole) | ~active).all(axis=1)
        if op == "all":
            mine = np.where(agree[:, None], whole, np.uint32(0)) + np.zeros((1, 32), np.uint32)
        return mine, _spread(agree)

    def step() -> None:
        mine, agree = _by_mask(machine, members, matched)
        _put(machine, put, mine)
        if op == "all":
            _put(machine, put_ok, agree)

    return _together(machine, instruction, members, step)


@executes(
    "redux.sync.{op:add|min|max}.{type:u32|s32}",
    "redux.sync.{op:and|or|xor}.{type:b32}",
    kind="shuffle",
    member_mask=-1,
)
def reduce(machine: Machine, instruction: Instruction) -> Step:
    """A reduction over the lanes that share a member mask."""
    to, a, mask = instruction.operands
    op, kind = instruction.fields["op"], instruction.fields["type"]
    dtype = dtype_of(kind)
    put = machine.write(to, kind, instruction)
    value = machine.source(instruction, a, kind)
    members = machine.source(instruction, mask, "b32")
    limits = np.iinfo(dtype)
    neutral = {"add": 0, "or": 0, "xor": 0, "and": limits.max, "min": limits.max, "max": limits.min}[op]
    functions = {
        "add": np.add, "min": np.minimum, "max": np.maximum,
        "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    }  # fmt: skip

    def reduced(active: np.ndarray) -> tuple[np.ndarray]:
        values = np.where(active, _warps(machine, value), dtype.type(neutral))
        return (_spread(functions[op].reduce(values, axis=1, dtype=dtype)),)

    def step() -> None:
        _put(machine, put, *_by_mask(machine, members, reduced))

    return _together(machine, instruction, members, step)


@executes("elect.sync", kind="shuffle", member_mask=-1)
def elect(machine: Machine, instruction: Instruction) -> Step:
    """The lowest active lane is the leader: `d|p`, d its number, p true for it alone."""
    to, mask = instruction.operands
    members = machine.source(instruction, mask, "b32")
    first, second = (to.first, to.second) if isinstance(to, Pair) else (to, None)
    put, put_ok = machine.write(first, "b32", instruction), machine.write(second, "pred", instruction)

    def elected(active: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        bits = _ballot(active)
        lowest = count_bits((bits & (~bits + np.uint32(1))) - np.uint32(1))
        return _spread(lowest), _LANE[None, :] == lowest[:, None]

    def step() -> None:
        lowest, leads = _by_mask(machine, members, elected)
        _put(machine, put, lowest)
        _put(machine, put_ok, leads)

    return _together(machine, instruction, members, step)
