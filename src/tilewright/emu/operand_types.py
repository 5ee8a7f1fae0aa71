"""The refusals of an assembler: operands that are too few or too many, or of another type than the instruction's.

Only instructions whose operands follow from their opcode are judged here. Types agree as the PTX manual has it: of one
size, and either is untyped bits, or both are integers, or both are the same.
"""

from __future__ import annotations

from functools import lru_cache

from .ptx import TYPE_BYTES, Immediate, Instruction, Memory, Negated, Operand, Pair, Register, Special, Symbol, Vector

_SOURCES = {
    "add": 2, "addc": 2, "sub": 2, "subc": 2, "mul": 2, "mul24": 2, "mad": 3, "madc": 3, "mad24": 3, "fma": 3,
    "div": 2, "rem": 2, "min": 2, "max": 2, "abs": 1, "neg": 1, "sad": 3, "and": 2, "or": 2, "xor": 2, "not": 1,
    "cnot": 1, "sqrt": 1, "rcp": 1, "rsqrt": 1, "sin": 1, "cos": 1, "ex2": 1, "lg2": 1, "tanh": 1, "mov": 1,
    "copysign": 2, "brev": 1,
}  # fmt: skip
"""Opcode -> its sources, which have the type of the result."""
_BARE = ("membar", "fence", "griddepcontrol", "cp.async.commit_group", "cp.async.wait_all", "wgmma.fence", "trap")
"""Instructions without operands."""
_TWICE = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}
_TAKE_SPECIAL = ("mov", "cvt")


@lru_cache(maxsize=4096)
def _signature(opcode: str) -> tuple[str, ...] | None:
    """The type of each operand; None where it does not follow from the opcode."""
    head, *rest = opcode.split(".")
    kind = rest[-1] if rest else ""
    if any(opcode == bare or opcode.startswith(bare + ".") for bare in _BARE):
        return None if opcode.startswith("fence.proxy.tensormap") else ()
    if kind not in TYPE_BYTES or kind.endswith(("16x2", "bf16")):
        return None
    if head in _SOURCES and not any(part in TYPE_BYTES for part in rest[:-1]):
        if "wide" in rest:
            return (_TWICE[kind], kind, kind, *[_TWICE[kind]] * (head == "mad")) if kind in _TWICE else None
        return (kind,) * (1 + _SOURCES[head])
    if head == "setp":
        return ("pred", kind, kind, *["pred"] * any(part in ("and", "or", "xor") for part in rest))
    if head == "selp":
        return kind, kind, kind, "pred"
    if head in ("shl", "shr"):
        return kind, kind, "u32"
    return None


def _alike(had: str, kind: str) -> bool:
    """Return whether a register of type `had` serves as `kind`."""
    if had == kind:
        return True
    untyped = any(name[0] == "b" and name[1].isdigit() for name in (had, kind))
    return TYPE_BYTES[had] == TYPE_BYTES[kind] and (untyped or {had[0], kind[0]} == {"s", "u"})


def _wrong(operand: Operand, kind: str, head: str, first: bool) -> str:
    """Return what is wrong with an operand where one of type `kind` belongs; "" if nothing is."""
    if isinstance(operand, Register) and not _alike(operand.kind, kind):
        return f"uses the .{operand.kind} register {operand.name} as .{kind}"
    if isinstance(operand, Pair) and not (first and head == "setp"):
        return "has a pair of registers where one value belongs"
    if isinstance(operand, Pair) and any(r and r.kind != kind for r in (operand.first, operand.second)):
        return f"writes .{kind} to a register of another type"
    if isinstance(operand, Vector) and head != "mov":
        return "has a vector where one value belongs"
    if isinstance(operand, Memory):
        return "has an address in brackets where a value belongs"
    if isinstance(operand, Negated) and kind != "pred":
        return f"negates an operand of type .{kind}"
    if isinstance(operand, Symbol) and head != "mov":
        return f"names {operand.name!r} where a register or a constant belongs; mov gives its address"
    if operand is None and (not first or head != "setp"):
        return "discards its result"
    if isinstance(operand, Immediate):
        if first:
            return "has a constant as its destination"
        if kind == "pred":
            return ""
        if (kind[0] == "f") != bool(operand.float_bytes) and not (kind[0] == "b" and operand.float_bytes == 4):
            return f"has a constant that is not of type .{kind}"
    return ""


def check(instruction: Instruction) -> str:
    """Return what an assembler would refuse about an instruction's operands; "" for nothing that is known here."""
    opcode, operands = instruction.opcode, instruction.operands
    head = opcode.split(".")[0]
    if head not in _TAKE_SPECIAL and Special in map(type, operands):
        return "reads a special register, which only mov and cvt may"
    kinds = _signature(opcode)
    if kinds is None:
        return ""
    if len(operands) != len(kinds):
        return f"has {len(operands)} operands and needs {len(kinds)}"
    for number, (operand, kind) in enumerate(zip(operands, kinds, strict=True)):
        if isinstance(operand, Register) and operand.kind == kind:  # most are
            continue
        if wrong := _wrong(operand, kind, head, not number):
            return wrong
    return ""
