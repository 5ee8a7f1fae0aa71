"""Moves, packing, selection and addresses."""

from __future__ import annotations

import numpy as np

from ..machine import Machine
from ..operands import WINDOWS
from ..ptx import Instruction, Vector
from ..shared_memory import PEER
from .registry import NUMPY, Compute, Step, elementwise, executes


@executes("mov.{type:b16|u16|s16|b32|u32|s32|f32|b64|u64|s64|f64|f16|bf16|b128}", kind="move")
def move(machine: Machine, instruction: Instruction) -> Step:
    """A copy; or packing `d, {a, b}` and unpacking `{a, b}, d`, the first item in the low bits."""
    to, what = instruction.operands
    kind = instruction.fields["type"]
    if isinstance(to, Vector):
        return _unpack(machine, instruction, to, kind)
    if isinstance(what, Vector):
        return _pack(machine, instruction, what, kind)
    source = machine.source(instruction, what, kind)
    return machine.keep(instruction, to, kind, lambda out, a: np.copyto(out, a), [source])


def _part(machine: Machine, instruction: Instruction, vector: Vector, kind: str) -> str:
    bits = 8 * np.dtype(NUMPY[kind]).itemsize // len(vector.items)
    machine.expect(instruction, bits in (8, 16, 32, 64), f"splits .{kind} in {len(vector.items)}")
    return f"u{bits}"


def _unpack(machine: Machine, instruction: Instruction, to: Vector, kind: str) -> Step:
    part = _part(machine, instruction, to, kind)
    source = machine.source(instruction, instruction.operands[1], kind)
    whole = machine.scratch(kind, "unpack")
    pieces: np.ndarray = whole.view(NUMPY[part]).reshape(machine.lanes, len(to.items))
    puts = [machine.write(item, part, instruction) for item in to.items]

    def step() -> None:
        np.copyto(whole, source)
        lanes = machine.lane_list()
        for k, put in enumerate(puts):
            column = np.ascontiguousarray(pieces[:, k])
            put(column if lanes is None else column[lanes], lanes)

    return step


def _pack(machine: Machine, instruction: Instruction, what: Vector, kind: str) -> Step:
    part = _part(machine, instruction, what, kind)
    sources = [machine.source(instruction, item, part) for item in what.items]
    whole = machine.scratch(kind, "pack")
    pieces: np.ndarray = whole.view(NUMPY[part]).reshape(machine.lanes, len(sources))

    def compute(out: np.ndarray, *values: np.ndarray) -> None:
        for k, value in enumerate(values):
            pieces[:, k] = value
        np.copyto(out, whole)

    return machine.keep(instruction, instruction.operands[0], kind, compute, sources)


@executes("mov.pred", kind="move")
def move_predicate(machine: Machine, instruction: Instruction) -> Step:
    """A predicate copied, or set to a constant."""
    condition = machine.condition(instruction, instruction.operands[1])
    return machine.keep(instruction, instruction.operands[0], "pred", lambda out: np.copyto(out, condition()), [])


@executes("selp.{type:b16|u16|s16|b32|u32|s32|f32|b64|u64|s64|f64}", kind="move")
def select(machine: Machine, instruction: Instruction) -> Step:
    """p ? a : b."""
    kind = instruction.fields["type"]
    to, a, b, p = instruction.operands
    condition = machine.condition(instruction, p)
    chosen = machine.scratch(kind, "selp")

    def compute(out: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
        mask = condition()
        if len(mask) == 1:
            np.copyto(out, a if mask[0] else b)
            return
        np.copyto(chosen, b)
        np.putmask(chosen, mask, a)
        np.copyto(out, chosen)

    sources = [machine.source(instruction, a, kind), machine.source(instruction, b, kind)]
    return machine.keep(instruction, to, kind, compute, sources)


@executes("slct{.ftz|}.{type:b16|u16|s16|b32|u32|s32|f32|b64|u64|s64|f64}.{by:s32|f32}", kind="move")
@elementwise(types=("{type}", "{type}", "{type}", "{by}"))
def select_by_sign(machine: Machine, fields: dict[str, str]) -> Compute:
    """c >= 0 ? a : b; a NaN chooses b."""

    def compute(out: np.ndarray, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
        np.copyto(out, np.where(c >= 0, a, b))

    return compute


@executes(
    "cvta{to:.to|}.{space:global|shared|shared::cta|shared::cluster|local|const|param}.{type:u64|u32}", kind="int"
)
@elementwise
def convert_address(machine: Machine, fields: dict[str, str]) -> Compute:
    """Between an address in a state space and the generic one. Only shared and local memory have two."""
    space = fields["space"].split("::")[0]
    window = 0 if space == "param" else WINDOWS.get(space, 0)
    if fields["type"] == "u32":
        raise ValueError("generic addresses are 64-bit here")
    shift = np.array([-window % (1 << 64) if fields["to"] else window], np.uint64)
    if not window:
        return lambda out, a: np.copyto(out, a)
    if space == "local":
        shift = shift - machine.local.slots if fields["to"] else shift + machine.local.slots

    def compute(out: np.ndarray, a: np.ndarray) -> None:
        np.add(a, shift, out=out)

    return compute


@executes("isspacep.{space:global|shared|shared::cta|shared::cluster|local|const|param}", kind="int")
@elementwise(types=("pred", "u64"))
def is_space(machine: Machine, fields: dict[str, str]) -> Compute:
    """Does a generic address lie in the window of a state space?"""
    space = fields["space"].split("::")[0]

    def compute(out: np.ndarray, a: np.ndarray) -> None:
        if space in WINDOWS:
            low = WINDOWS[space]
            inside = (a >= np.uint64(low)) & (a < np.uint64(low + (1 << 32)))
            if space == "shared" and fields["space"] != "shared::cluster":  # a peer's is not in this block's window
                rank = (a - np.uint64(low)) // np.uint64(PEER)
                inside &= (rank == 0) | (rank == machine.specials["%cluster_ctarank"] + np.uint64(1))
            np.copyto(out, inside)
            return
        named = np.ones(a.shape, bool)
        for low in WINDOWS.values():
            named &= (a < np.uint64(low)) | (a >= np.uint64(low + (1 << 32)))
        np.copyto(out, named)

    return compute
