"""Comparisons: setp and set, of integers and floats, combined with a predicate."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..machine import Machine
from ..ptx import Instruction, Pair
from .float32 import flush
from .registry import Step, dtype_of, executes

_COMPARE: dict[str, Callable[..., np.ndarray]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
}  # fmt: skip
_COMBINE: dict[str, Callable[..., np.ndarray]] = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}
_OPS = "eq|ne|lt|le|gt|ge|lo|ls|hi|hs|equ|neu|ltu|leu|gtu|geu|num|nan"
_TYPES = "b16|u16|s16|b32|u32|s32|b64|u64|s64|f32|f64"


def comparison(op: str, kind: str) -> Callable[[np.ndarray, np.ndarray, np.ndarray], None]:
    """The function (a, b, out): ordered comparisons are false for a NaN, those that end in u true."""
    if dtype_of(kind).kind != "f" or op in ("eq", "lt", "le", "gt", "ge"):
        function = _COMPARE[op]

        def ordered(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
            function(a, b, out=out)

        return ordered
    if op in ("num", "nan"):

        def unordered(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
            nan = np.isnan(a) | np.isnan(b)
            np.copyto(out, nan if op == "nan" else ~nan)

        return unordered
    opposite = {"equ": "ne", "neu": "eq", "ltu": "ge", "leu": "gt", "gtu": "le", "geu": "lt"}
    if op == "ne":

        def differ(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
            np.copyto(out, (a != b) & ~(np.isnan(a) | np.isnan(b)))

        return differ
    base = "eq" if op == "equ" else "ne" if op == "neu" else opposite[op]
    function = _COMPARE[base]

    def negated(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
        if op == "equ":
            np.copyto(out, (a == b) | np.isnan(a) | np.isnan(b))
        elif op == "neu":
            np.copyto(out, a != b)
        else:
            np.copyto(out, ~function(a, b))

    return negated


@executes(f"setp.{{op:{_OPS}}}{{with:.and|.or|.xor|}}{{ftz:.ftz|}}.{{type:{_TYPES}}}", kind="int")
def set_predicate(machine: Machine, instruction: Instruction) -> Step:
    """p = (a op b) combined with c; of a pair p|q, q = (not (a op b)) combined with c."""
    fields = instruction.fields
    kind = fields["type"]
    to, a, b, *rest = instruction.operands
    machine.expect(instruction, len(rest) == bool(fields["with"]), "has the wrong number of operands")
    compare = comparison(fields["op"], kind)
    first, second = machine.source(instruction, a, kind), machine.source(instruction, b, kind)
    combine = _COMBINE[fields["with"][1:]] if rest else None
    condition = machine.condition(instruction, rest[0]) if rest else None
    ftz = bool(fields["ftz"])
    pair = isinstance(to, Pair)
    if not pair and combine is None and not ftz:
        return machine.keep(instruction, to, "pred", lambda out, a, b: compare(a, b, out), [first, second])
    targets = (to.first, to.second) if isinstance(to, Pair) else (to, None)
    puts = [machine.write(target, "pred", instruction) for target in targets]
    result = machine.scratch("pred", "setp")

    def step() -> None:
        x, y = (flush(first), flush(second)) if ftz else (first, second)
        compare(x, y, result)
        values = [result, ~result] if pair else [result]
        if combine is not None and condition is not None:
            held = condition().copy()
            values = [combine(value, held) for value in values]
        lanes = machine.lane_list()
        for value, put in zip(values, puts, strict=False):
            put(value if lanes is None else value[lanes], lanes)

    return step


@executes(f"set.{{op:{_OPS}}}{{with:.and|.or|.xor|}}{{ftz:.ftz|}}.{{out:u32|s32|f32}}.{{type:{_TYPES}}}", kind="int")
def set_value(machine: Machine, instruction: Instruction) -> Step:
    """All ones (1.0 for f32) where a op b, combined with c, else zero."""
    fields = instruction.fields
    kind = fields["type"]
    to, a, b, *rest = instruction.operands
    machine.expect(instruction, len(rest) == bool(fields["with"]), "has the wrong number of operands")
    compare = comparison(fields["op"], kind)
    combine = _COMBINE[fields["with"][1:]] if rest else None
    condition = machine.condition(instruction, rest[0]) if rest else None
    result = machine.scratch("pred", "set")
    true = (
        np.float32(1)
        if fields["out"] == "f32"
        else dtype_of(fields["out"]).type(-1 if fields["out"] == "s32" else 2**32 - 1)
    )
    false = dtype_of(fields["out"]).type(0)

    def compute(out: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
        a, b = (flush(x) if fields["ftz"] else x for x in (a, b))
        compare(a, b, result)
        value = result if combine is None or condition is None else combine(result, condition())
        np.copyto(out, np.where(value, true, false))

    return machine.keep(instruction, to, fields["out"], compute, [machine.source(instruction, x, kind) for x in (a, b)])
