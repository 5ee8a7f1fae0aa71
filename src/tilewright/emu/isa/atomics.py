"""Atomic operations on global and shared memory. Lanes that meet at one address go one after another, lowest first.

atom.add.f32 on global memory takes subnormal numbers as zeros, as the PTX manual says of GPUs; on shared memory not.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..compiled import address
from ..machine import Machine
from ..ptx import Instruction, Operand, Register, Vector
from .convert import bf16_to_f32, f32_to_bf16
from .float32 import flush
from .memory import by_space, reachable, reaches_peers
from .registry import Step, dtype_of, executes

_SEMANTICS = "{.relaxed|.acquire|.release|.acq_rel|}{.cta|.cluster|.gpu|.sys|}"
_SPACE = "{space:.global|.shared|.shared::cta|.shared::cluster|}"
_OPS = {
    "{op:add}": "{.noftz|}.{type:u32|s32|u64|s64|f32|f64|f16|f16x2|bf16|bf16x2}",
    "{op:min|max}": ".{type:u32|s32|u64|s64}",
    "{op:and|or|xor}": ".{type:b32|b64}",
    "{op:inc|dec}": ".{type:u32}",
    "{op:exch}": ".{type:b32|b64}",
    "{op:cas}": ".{type:b16|b32|b64}",
}
_HINT = "{hint:.L2::cache_hint|}"
_VECTOR = "{op:add}{.noftz|}.{vec:v2|v4|v8}.{type:f32|f16|bf16|f16x2|bf16x2}"


def _forms(head: str, *without: str) -> list[str]:
    """The forms of an instruction, one for each operation."""
    return [f"{head}{_SEMANTICS}{_SPACE}.{op}{_HINT}{kinds}" for op, kinds in _OPS.items() if op not in without]


Update = Callable[..., np.ndarray]


def _kind(fields: dict[str, str]) -> str:
    return "memory_" + (fields["space"].lstrip(".").split("::")[0] or "generic")


_UPDATE: dict[str, Update] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "exch": lambda old, b: b,
    "cas": lambda old, b, c: np.choose(old == b, (old, c)),
    "inc": lambda old, b: np.choose(old >= b, (old + np.uint32(1), np.uint32(0))),
    "dec": lambda old, b: np.choose((old == 0) | (old > b), (old - np.uint32(1), b)),
}


def _add_flushing(old: np.ndarray, b: np.ndarray) -> np.ndarray:
    return flush(flush(old) + flush(b))


def update_of(op: str, kind: str) -> Update:
    """The function of an operation; sums of pairs and of bf16 take their numbers out of the bits."""
    if kind == "bf16":
        return lambda old, b: f32_to_bf16(bf16_to_f32(old) + bf16_to_f32(b))
    if kind.endswith("x2"):
        single = update_of(op, kind[:-2])
        part = dtype_of(kind[:-2])

        def both(old: np.ndarray, b: np.ndarray) -> np.ndarray:
            halves = (np.ascontiguousarray(v).view(part) for v in (old, b))
            return np.ascontiguousarray(single(*halves)).view(np.uint32)

        return both
    return _UPDATE[op]


def _in_order(values: np.ndarray) -> np.ndarray:
    """A stable argsort of integers; of a narrow range it is a radix sort, ten times as fast."""
    low = values.min()
    near = values.max() - low < 1 << 16
    return np.argsort((values - low).astype(np.uint16) if near else values, kind="stable")


def rounds(index: np.ndarray) -> list[np.ndarray]:
    """Positions of `index` in groups without repeated values: the k-th group holds each value's k-th occurrence."""
    order = _in_order(index)
    starts = _starts(index[order])
    rank = np.arange(len(order)) - starts
    if not rank.any():
        return [order]
    by_rank = _in_order(rank)
    edges = np.flatnonzero(np.diff(rank[by_rank])) + 1
    return [order[part] for part in np.split(by_rank, edges)]


def _starts(ordered: np.ndarray) -> np.ndarray:
    """For each of some sorted values where its first occurrence stands."""
    first = np.ones(len(ordered), bool)
    first[1:] = ordered[1:] != ordered[:-1]
    return np.maximum.accumulate(np.where(first, np.arange(len(ordered)), 0))


def _running_sums(view: np.ndarray, index: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Integers added one after another, lanes at one address in their order: the values before."""
    order = _in_order(index)
    ordered, added = index[order], values[order]
    before = np.cumsum(added, dtype=added.dtype) - added
    running = view[ordered] + before - before[_starts(ordered)]
    old = np.empty_like(running)
    old[order] = running
    last = np.append(ordered[1:] != ordered[:-1], True)
    view[ordered[last]] = running[last] + added[last]
    return old


def _tame(*values: np.ndarray) -> bool:
    """Return whether sums of these fp32 numbers cannot be subnormal."""
    return all(bool(((np.abs(x) >= 2.0**-100) | (x == 0)).all()) for x in values)


Fast = Callable[[int, np.ndarray, "np.ndarray | None", bool], None]
"""(where memory lies in this process, bytes from there on of each lane, lanes, whether it is global memory)."""


def _compiled(
    machine: Machine, to: Operand, unused: bool, op: str, kind: str, sources: list[np.ndarray]
) -> Fast | None:
    """The compiled form of an atomic; None where there is none."""
    compiled, nbytes = machine.compiled, dtype_of(kind).itemsize
    width = {"add": kind.replace("s", "u"), "exch": f"b{8 * nbytes}", "cas": f"b{8 * nbytes}"}.get(op, kind)
    code = compiled.atomics.get(f"{op}_{width}") if compiled else None
    if compiled is None or code is None:
        return None
    steps = [1 if len(source) == machine.lanes else 0 for source in sources]
    if any(step and source.strides != (nbytes,) for step, source in zip(steps, sources, strict=True)):
        return None
    old = 0
    if not unused:
        if not isinstance(to, Register) or machine.row(to).itemsize != nbytes:
            return None
        old = address(machine.row(to))
    first, last = (address(source) for source in (sources[0], sources[-1]))
    told = np.array([0, 0, 0, 0, first, last, steps[0], steps[-1], old], np.int64)
    at, flushing = address(told), compiled.atomics["add_flushing_f32"]

    def fast(host: int, offsets: np.ndarray, lanes: np.ndarray | None, everybody: bool) -> None:
        told[:4] = host, address(offsets), 0 if lanes is None else address(lanes), len(offsets)
        compiled.atomic(flushing if everybody and width == "f32" and op == "add" else code, at)

    return fast


def _bind(machine: Machine, instruction: Instruction, to: Operand, rest: tuple[Operand, ...]) -> Step:
    fields = instruction.fields
    kind, op = fields["type"], fields["op"]
    dtype = dtype_of(kind)
    update = update_of(op, kind)
    address, *values = rest[: len(rest) - bool(fields["hint"])]
    machine.expect(instruction, len(values) == (2 if op == "cas" else 1), "has the wrong number of operands")
    base, offset = machine.pointer(instruction, address)
    sources = [machine.source(instruction, value, kind) for value in values]
    put = machine.write(to, kind, instruction)
    unused = to is None or to not in machine.program.readers
    integer = dtype.kind in "iu" and not kind.startswith(("f16", "bf16"))
    # What nobody asks the old value of is added up by ufunc.at, in the order of the lanes.
    at_once = update if unused and isinstance(update, np.ufunc) and (integer or kind in ("f32", "f64")) else None
    nbytes = dtype.itemsize
    space = fields["space"].lstrip(".").split("::")[0]
    sites = {name: machine.trace.site(instruction.index, f"{name}_atomic") for name in reachable(space)}

    def apply(memory: np.ndarray, index: np.ndarray, lanes: np.ndarray | None, change: Update = update) -> None:
        view = memory.view(dtype)
        operands = [np.broadcast_to(s, (machine.lanes,)) for s in sources]
        operands = [s if lanes is None else s[lanes] for s in operands]
        if at_once and (change is update or _tame(operands[0], view[index])):
            at_once.at(view, index, operands[0])
            return
        if op == "add" and integer:
            put(_running_sums(view, index, operands[0]), lanes)
            return
        old = np.empty(len(index), dtype)
        for group in rounds(index):
            place = index[group]
            before = view[place]
            old[group] = before
            view[place] = change(before, *(s[group] for s in operands))
        put(old, lanes)

    fast = _compiled(machine, to, unused, op, kind, sources)

    def shared(base: np.ndarray, offset: int) -> None:
        pattern = machine.shared.locate(
            sites["shared"], "atomic", instruction, base, offset, nbytes, peers=reaches_peers(instruction)
        )
        if pattern is not None and fast is not None:
            fast(machine.shared.host, pattern.offsets, pattern.lanes, False)
        elif pattern is not None:
            apply(machine.shared.views[nbytes], pattern.index, pattern.lanes)

    def elsewhere(base: np.ndarray, offset: int, local: bool) -> None:
        machine.expect(instruction, not local, "is an atomic on local memory")
        found = machine.port.find(sites["global"], instruction, base, offset, nbytes, True)
        if found is not None:
            lanes, offsets, start = found
            races, flushing = machine.races, op == "add" and kind == "f32"
            waiting = races if races is not None and races.waiting else None
            if fast is not None and waiting is None:
                fast(machine.memory.host + start, offsets, lanes, True)
                return
            index, view = (offsets + start) // nbytes, machine.memory.views[nbytes]
            if waiting:  # the old value may take the register of the new one
                before, values = view[index], np.broadcast_to(sources[0], (machine.lanes,)).copy()
            if fast is not None:
                fast(machine.memory.host + start, offsets, lanes, True)
            else:
                apply(view, index, lanes, _add_flushing if flushing else update)
            if waiting:
                waiting.stored(before, view[index], values if lanes is None else values[lanes])

    return by_space(machine, instruction, space, base, offset, shared, elsewhere)


def _bind_vector(machine: Machine, instruction: Instruction, to: Operand, rest: tuple[Operand, ...]) -> Step:
    """Each element of a vector is an atomic of its own; the address is aligned for the whole."""
    fields = instruction.fields
    kind, count = fields["type"], int(fields["vec"][1:])
    address, values = rest[:2]
    given = values.items if isinstance(values, Vector) else ()
    results = to.items if isinstance(to, Vector) else (None,) * count
    machine.expect(instruction, len(given) == count == len(results), f"needs {count} registers")
    base, offset = machine.pointer(instruction, address)
    sources = [machine.source(instruction, item, kind) for item in given]
    puts = [machine.write(item, kind, instruction) for item in results]
    dtype = dtype_of(kind)
    whole = dtype.itemsize * count
    site = machine.trace.site(instruction.index, "global_atomic")
    update = _add_flushing if kind == "f32" else update_of("add", kind)

    def step() -> None:
        found = machine.port.locate(site, instruction, base, offset, whole, True)
        if found is None:
            return
        lanes, index = found
        view, index = machine.memory.views[dtype.itemsize].view(dtype), index.copy()
        every = slice(None) if lanes is None else lanes
        # All are read before any result is written: registers of results may be those of the values.
        operands = [np.broadcast_to(source, (machine.lanes,))[every].copy() for source in sources]
        for k, operand in enumerate(operands):
            old = np.empty(len(index), dtype)
            for group in rounds(index):
                place = index[group] * count + k
                old[group] = view[place]
                view[place] = update(old[group], operand[group])
            puts[k](old, lanes)

    return step


@executes(*_forms("atom"), kind=_kind)
def atom(machine: Machine, instruction: Instruction) -> Step:
    """Read, update and write as one; the old value is the result."""
    to, *rest = instruction.operands
    return _bind(machine, instruction, to, tuple(rest))


@executes(*_forms("red", "{op:exch}", "{op:cas}"), kind=_kind, destination="none")
def red(machine: Machine, instruction: Instruction) -> Step:
    """The same without a result."""
    return _bind(machine, instruction, None, instruction.operands)


@executes(f"atom{_SEMANTICS}.global.{_VECTOR}", kind="memory_global")
def atom_vector(machine: Machine, instruction: Instruction) -> Step:
    """`{old, ...}, [address], {value, ...}`."""
    to, *rest = instruction.operands
    return _bind_vector(machine, instruction, to, tuple(rest))


@executes(f"red{_SEMANTICS}.global.{_VECTOR}", kind="memory_global", destination="none")
def red_vector(machine: Machine, instruction: Instruction) -> Step:
    """The same without a result."""
    return _bind_vector(machine, instruction, None, instruction.operands)
