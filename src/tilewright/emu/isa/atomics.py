"""Atomic operations on global and shared memory. Lanes that meet at one address go one after another, lowest first.

atom.add.f32 on global memory takes subnormal numbers as zeros, as the PTX manual says of GPUs; on shared memory not.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..machine import Machine
from ..ptx import Instruction, Operand
from .float32 import flush
from .memory import by_space, reachable, reaches_peers
from .registry import Step, dtype_of, executes

_SEMANTICS = "{.relaxed|.acquire|.release|.acq_rel|}{.cta|.cluster|.gpu|.sys|}"
_SPACE = "{space:.global|.shared|.shared::cta|.shared::cluster|}"
_OPS = (
    "{op:add}{.noftz|}.{type:u32|s32|u64|s64|f32|f64|f16}",
    "{op:min|max}.{type:u32|s32|u64|s64}",
    "{op:and|or|xor}.{type:b32|b64}",
    "{op:inc|dec}.{type:u32}",
    "{op:exch}.{type:b32|b64}",
    "{op:cas}.{type:b16|b32|b64}",
)
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


def rounds(index: np.ndarray) -> list[np.ndarray]:
    """Positions of `index` in groups without repeated values: the k-th group holds each value's k-th occurrence."""
    order = np.argsort(index, kind="stable")
    ordered = index[order]
    first = np.ones(len(order), bool)
    first[1:] = ordered[1:] != ordered[:-1]
    starts = np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))
    rank = np.arange(len(order)) - starts
    if not rank.any():
        return [order]
    by_rank = np.argsort(rank, kind="stable")
    edges = np.flatnonzero(np.diff(rank[by_rank])) + 1
    return [order[part] for part in np.split(by_rank, edges)]


def _bind(machine: Machine, instruction: Instruction, to: Operand, rest: tuple[Operand, ...]) -> Step:
    fields = instruction.fields
    kind, op = fields["type"], fields["op"]
    dtype = dtype_of(kind)
    update = _UPDATE[op]
    address, *values = rest
    machine.expect(instruction, len(values) == (2 if op == "cas" else 1), "has the wrong number of operands")
    base, offset = machine.pointer(instruction, address)
    sources = [machine.source(instruction, value, kind) for value in values]
    put = machine.write(to, kind, instruction)
    nbytes = dtype.itemsize
    space = fields["space"].lstrip(".").split("::")[0]
    sites = {name: machine.trace.site(instruction.index, f"{name}_atomic") for name in reachable(space)}

    def apply(memory: np.ndarray, index: np.ndarray, lanes: np.ndarray | None, change: Update = update) -> None:
        view = memory.view(dtype)
        operands = [np.broadcast_to(s, (machine.lanes,)) for s in sources]
        operands = [s if lanes is None else s[lanes] for s in operands]
        old = np.empty(len(index), dtype)
        for group in rounds(index):
            place = index[group]
            before = view[place]
            old[group] = before
            view[place] = change(before, *(s[group] for s in operands))
        put(old, lanes)

    def shared(base: np.ndarray, offset: int) -> None:
        pattern = machine.shared.locate(
            sites["shared"], "atomic", instruction, base, offset, nbytes, peers=reaches_peers(instruction)
        )
        if pattern is not None:
            apply(machine.shared.views[nbytes], pattern.index, pattern.lanes)

    def elsewhere(base: np.ndarray, offset: int, local: bool) -> None:
        machine.expect(instruction, not local, "is an atomic on local memory")
        found = machine.port.locate(sites["global"], instruction, base, offset, nbytes, True)
        if found is not None:
            lanes, index = found
            flushing = op == "add" and kind == "f32"
            apply(machine.memory.views[nbytes], index, lanes, _add_flushing if flushing else update)

    return by_space(machine, instruction, space, base, offset, shared, elsewhere)


@executes(
    *(f"atom{_SEMANTICS}{_SPACE}.{op}" for op in _OPS), *(f"atom{_SPACE}{_SEMANTICS}.{op}" for op in _OPS), kind=_kind
)
def atom(machine: Machine, instruction: Instruction) -> Step:
    """Read, update and write as one; the old value is the result."""
    to, *rest = instruction.operands
    return _bind(machine, instruction, to, tuple(rest))


@executes(
    *(f"red{_SEMANTICS}{_SPACE}.{op}" for op in _OPS if "exch" not in op and "cas" not in op),
    *(f"red{_SPACE}{_SEMANTICS}.{op}" for op in _OPS if "exch" not in op and "cas" not in op),
    kind=_kind,
    destination="none",
)
def red(machine: Machine, instruction: Instruction) -> Step:
    """The same without a result."""
    return _bind(machine, instruction, None, instruction.operands)
