"""cp.async: copies from global to shared memory that land at the wait of the thread that issued them."""

from __future__ import annotations

import numpy as np

from ..compiled import address
from ..machine import Machine
from ..ptx import Immediate, Instruction, Register
from ..trace import FAR_SIDE
from .registry import Step, dtype_of, executes

_WHOLE = {4: "u32", 8: "u64", 16: "b128"}


@executes(
    "cp.async.{cache:ca|cg}.shared{::cta|}.global{hint:.L2::cache_hint|}{.L2::64B|.L2::128B|.L2::256B|}",
    kind="async_copy",
    destination="none",
)
def copy(machine: Machine, instruction: Instruction) -> Step:
    """`[dst], [src], size{, src-size}`: bytes beyond src-size become zero; with src-size 0 nothing is read.

    With a predicate in its place, lanes for which it holds copy zeros.
    """
    to, source, size, *rest = instruction.operands
    if instruction.fields["hint"]:  # a cache policy changes nothing here
        machine.expect(instruction, bool(rest), "needs a cache policy")
        rest.pop()
    machine.expect(instruction, isinstance(size, Immediate) and len(rest) <= 1, "needs a constant size")
    assert isinstance(size, Immediate)
    nbytes = size.bits
    allowed = (16,) if instruction.fields["cache"] == "cg" else (4, 8, 16)
    machine.expect(instruction, nbytes in allowed, f"copies {nbytes} bytes; {allowed} are allowed")
    to_base, to_offset = machine.pointer(instruction, to)
    from_base, from_offset = machine.pointer(instruction, source)
    ignored = given = None
    if rest:
        if isinstance(rest[0], Register) and rest[0].kind == "pred":
            ignored = machine.condition(instruction, rest[0])
        else:
            given = machine.source(instruction, rest[0], "u32")
    values_of = np.dtype(dtype_of(_WHOLE[nbytes]))
    shared_site = machine.trace.site(instruction.index, "async_copy")
    # Both sides of the copy count at one instruction: the global side through a site of its own.
    global_site = machine.trace.site(instruction.index, FAR_SIDE)

    def read(sizes: np.ndarray | None, pattern_lanes: np.ndarray | None) -> np.ndarray:
        """Return what lands, one element for each lane of the pattern."""
        outer = machine.mask
        if sizes is None:
            found = _found(values_of, nbytes)
            if found is not None and found[0] is None:
                values = found[1]
            else:
                values = np.zeros(machine.lanes, values_of)
                _put(values, found)
        else:
            values = np.zeros(machine.lanes, values_of)
            as_bytes = values.view(np.uint8).reshape(machine.lanes, nbytes)
            active = np.ones(machine.lanes, bool) if outer is None else outer
            for length in np.unique(sizes[active]).tolist():
                machine.expect(instruction, length <= nbytes, f"has a src-size of {length}, more than {nbytes}")
                if not length:
                    continue
                machine.set_mask(active & (sizes == length))
                if length == nbytes:
                    _put(values, _found(values_of, nbytes))
                    continue
                part = length & -length  # the widest element that divides it
                for at in range(0, length, part):
                    piece = np.zeros(machine.lanes, f"u{part}")
                    _put(piece, _found(piece.dtype, part, at))
                    as_bytes[:, at : at + part] = piece.view(np.uint8).reshape(machine.lanes, part)
            machine.set_mask(outer)
        return values if pattern_lanes is None else values[pattern_lanes]

    def _found(dtype: np.dtype, width: int, at: int = 0) -> tuple[np.ndarray | None, np.ndarray] | None:
        """The active lanes (None: all) and what they read; None if no lane is left."""
        found = machine.port.find(global_site, instruction, from_base, from_offset + at, width, False)
        if found is None:
            return None
        lanes, offsets, start = found
        if machine.compiled is None:
            return lanes, machine.memory.views[width].take((offsets + start) // width, mode="clip").view(dtype)
        got = np.empty(len(offsets), dtype)
        machine.compiled.fetch(machine.memory.host + start, address(offsets), len(offsets), width, address(got))
        return lanes, got

    def _put(values: np.ndarray, found: tuple[np.ndarray | None, np.ndarray] | None) -> None:
        if found is not None:
            lanes, got = found
            values[slice(None) if lanes is None else lanes] = got

    def step() -> None:
        sizes = None
        if given is not None:
            sizes = np.broadcast_to(given, (machine.lanes,))
            active = sizes if machine.mask is None else sizes[machine.mask]
            if len(active) and bool((active == nbytes).all()):
                sizes = None
        elif ignored is not None:
            sizes = np.where(ignored(), np.uint32(0), np.uint32(nbytes))
        pattern = machine.shared.locate(shared_site, "copy", instruction, to_base, to_offset, nbytes)
        if pattern is not None:
            machine.copies.issue(pattern, read(sizes, pattern.lanes))
            shared_site.bytes += nbytes * len(pattern.offsets)

    return step


@executes("cp.async.commit_group", kind="async_copy", destination="none")
def commit(machine: Machine, instruction: Instruction) -> Step:
    """Close the group of copies issued since the last commit."""
    return machine.copies.commit


@executes("cp.async.wait_group", kind="async_copy", destination="none")
def wait_group(machine: Machine, instruction: Instruction) -> Step:
    """Land all groups but the n newest."""
    n = instruction.operands[0]
    machine.expect(instruction, isinstance(n, Immediate) and 0 <= n.bits < 1 << 31, "needs a constant of 0 or more")
    assert isinstance(n, Immediate)
    newest = n.bits
    return lambda: machine.copies.wait(newest)


@executes("cp.async.wait_all", kind="async_copy", destination="none")
def wait_all(machine: Machine, instruction: Instruction) -> Step:
    """Land everything, committed or not."""
    return lambda: machine.copies.wait(None)
