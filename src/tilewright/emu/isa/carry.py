"""Additions of many words: a carry flag for each lane, which .cc writes and addc, subc and madc read.

The flag is the adder's carry, as on the GPU: a - b is a + ~b + 1, so sub.cc sets it where nothing was borrowed.
"""

from __future__ import annotations

import numpy as np

from ..machine import Machine
from ..ptx import Instruction
from .integer import multiply_high
from .registry import Step, dtype_of, executes

_TYPES = "u32|s32|u64|s64"


def _step(machine: Machine, instruction: Instruction, product: bool) -> Step:
    fields = instruction.fields
    kind = "u" + fields["type"][1:]
    dtype = dtype_of(kind)
    one, takes, gives = dtype.type(1), fields["op"].endswith("c"), bool(fields.get("cc"))
    subtract = fields["op"].startswith("sub")
    high = multiply_high(fields["type"])
    signed = dtype_of(fields["type"])
    carry = machine.carry

    def compute(out: np.ndarray, a: np.ndarray, b: np.ndarray, *c: np.ndarray) -> None:
        if product:
            a = a * b if fields["part"] == "lo" else high(a.view(signed), b.view(signed)).view(dtype)
            b = c[0]
        b = ~b if subtract else b
        extra = np.where(carry, one, dtype.type(0)) if takes else dtype.type(subtract)
        result = a + b + extra
        over = (result < a) | ((result == a) & (extra != 0) & (b != 0))
        if gives:
            np.copyto(carry, over, where=True if machine.mask is None else machine.mask)
        np.copyto(out, result)

    count = 4 if product else 3
    machine.expect(instruction, len(instruction.operands) == count, f"needs {count} operands")
    sources = [machine.source(instruction, operand, kind) for operand in instruction.operands[1:]]
    return machine.keep(instruction, instruction.operands[0], kind, compute, sources)


@executes(f"{{op:add|sub}}{{cc:.cc}}.{{type:{_TYPES}}}", f"{{op:addc|subc}}{{cc:.cc|}}.{{type:{_TYPES}}}", kind="int")
def add_with_carry(machine: Machine, instruction: Instruction) -> Step:
    """a + b + carry, or a + ~b + carry, which is a - b - borrow."""
    return _step(machine, instruction, False)


@executes(
    f"{{op:mad}}.{{part:lo|hi}}{{cc:.cc}}.{{type:{_TYPES}}}",
    f"{{op:madc}}.{{part:lo|hi}}{{cc:.cc|}}.{{type:{_TYPES}}}",
    kind="int",
)
def multiply_add_with_carry(machine: Machine, instruction: Instruction) -> Step:
    """One half of a * b, + c + carry."""
    return _step(machine, instruction, True)
