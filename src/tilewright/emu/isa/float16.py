"""Arithmetic in fp16 and bf16, one value or two to a register, correctly rounded."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..machine import Machine
from ..ptx import Instruction
from .compare import comparison
from .convert import bf16_to_f32, f32_to_bf16
from .float32 import least_or_greatest, round_to_odd
from .registry import Compute, Step, elementwise, executes

_KINDS = "f16|f16x2|bf16|bf16x2"
_QUIET = np.uint16(0x7FFF)


def widen(bits: np.ndarray, kind: str) -> np.ndarray:
    """The bits of fp16 or bf16 values (uint16) as float64."""
    values = bf16_to_f32(bits) if kind.startswith("bf16") else np.ascontiguousarray(bits).view(np.float16)
    return values.astype(np.float64)


def narrow(values: np.ndarray, kind: str) -> np.ndarray:
    """float64 (exact, or rounded to odd) rounded to fp16 or bf16: the bits, uint16. A NaN gives 0x7fff."""
    if not kind.startswith("bf16"):
        return np.where(np.isnan(values), _QUIET, values.astype(np.float16).view(np.uint16))
    cut = values.astype(np.float32)
    wide = cut.astype(np.float64)
    over = np.abs(wide) > np.abs(values)
    cut = np.where(over, np.nextafter(cut, np.float32(0)), cut).astype(np.float32)
    inexact = np.isfinite(values) & (cut.astype(np.float64) != values)
    sticky = (cut.view(np.uint32) | inexact.astype(np.uint32)).view(np.float32)  # rounded to odd
    return f32_to_bf16(sticky)


def pairwise(kind: str, function: Callable[..., np.ndarray]) -> Compute:
    """`function` on uint16 values, applied to both halves where the type is a pair."""

    def compute(out: np.ndarray, *sources: np.ndarray) -> None:
        if not kind.endswith("x2"):
            np.copyto(out, function(*sources))
            return
        low = function(*((a & np.uint32(0xFFFF)).astype(np.uint16) for a in sources))
        high = function(*((a >> np.uint32(16)).astype(np.uint16) for a in sources))
        np.copyto(out, (high.astype(np.uint32) << np.uint32(16)) | low)

    return compute


def _storage(kind: str) -> str:
    return "b32" if kind.endswith("x2") else "b16"


def _register(
    form: str, count: int, flops: tuple[str, int] | None, make: Callable[..., Callable[..., np.ndarray]]
) -> None:
    def bind(machine: Machine, instruction: Instruction) -> Step:
        fields = instruction.fields
        kind = fields["type"]
        to, *sources = instruction.operands
        machine.expect(instruction, len(sources) == count, f"needs {count} sources")
        storage = _storage(kind)
        return machine.keep(
            instruction,
            to,
            storage,
            pairwise(kind, make(fields)),
            [machine.source(instruction, x, storage) for x in sources],
        )

    executes(form, kind="fp16", flops=flops)(bind)


def _flush16(values: np.ndarray, fields: dict[str, str]) -> np.ndarray:
    if fields.get("ftz"):
        return np.where(np.abs(values) < 2.0**-14, np.copysign(0.0, values), values)
    return values


def _finish(values: np.ndarray, fields: dict[str, str]) -> np.ndarray:
    if fields.get("sat"):
        values = np.where(values > 0, np.minimum(values, 1.0), 0.0)
    if fields.get("relu"):
        values = np.where(values <= 0, 0.0, values)
    return values


def _binary(function: Callable[..., np.ndarray]) -> Callable[[dict[str, str]], Callable[..., np.ndarray]]:
    def make(fields: dict[str, str]) -> Callable[..., np.ndarray]:
        kind = fields["type"]

        def apply(a: np.ndarray, b: np.ndarray) -> np.ndarray:
            x, y = (_flush16(widen(v, kind), fields) for v in (a, b))
            bits = narrow(function(x, y), kind)
            if not (fields.get("sat") or fields.get("ftz")):
                return bits
            return narrow(_finish(_flush16(widen(bits, kind), fields), fields), kind)

        return apply

    return make


def _odd_sum(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return round_to_odd(x, y, x + y)


def _odd_difference(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return round_to_odd(x, -y, x - y)


def _fused(fields: dict[str, str]) -> Callable[..., np.ndarray]:
    kind = fields["type"]

    def apply(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        x, y, z = (_flush16(widen(v, kind), fields) for v in (a, b, c))
        product = x * y
        bits = narrow(round_to_odd(product, z, product + z), kind)
        if not (fields.get("sat") or fields.get("relu") or fields.get("ftz")):
            return bits
        return narrow(_finish(_flush16(widen(bits, kind), fields), fields), kind)

    return apply


_FORM = "{.rn|}{ftz:.ftz|}{sat:.sat|}.{type:" + _KINDS + "}"
_register("add" + _FORM, 2, ("hadd", 1), _binary(_odd_sum))
_register("sub" + _FORM, 2, ("hadd", 1), _binary(_odd_difference))
_register("mul" + _FORM, 2, ("hmul", 1), _binary(np.multiply))
_register("fma.rn{ftz:.ftz|}{sat:.sat|}{relu:.relu|}.{type:" + _KINDS + "}", 3, ("hfma", 2), _fused)


def _extreme(fields: dict[str, str]) -> Callable[..., np.ndarray]:
    """The smaller or the larger; with .xorsign.abs of the magnitudes, under the product of the signs."""
    kind = fields["type"]
    function = least_or_greatest(fields["op"], bool(fields["nan"]), np.dtype(np.uint64), 0x7FFFFFFFFFFFFFFF)

    def apply(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        x, y = (_flush16(widen(v, kind), fields) for v in (a, b))
        if not fields["abs"]:
            return narrow(function(x, y), kind)
        result = function(np.abs(x), np.abs(y))
        return narrow(np.where(np.signbit(x) != np.signbit(y), -result, result), kind)

    return apply


_register("{op:min|max}{ftz:.ftz|}{nan:.NaN|}{abs:.xorsign.abs|}.{type:" + _KINDS + "}", 2, None, _extreme)


def _sign(fields: dict[str, str]) -> Callable[..., np.ndarray]:
    if fields["op"] == "neg":
        return lambda a: a ^ np.uint16(0x8000)
    return lambda a: a & np.uint16(0x7FFF)


_register("{op:neg|abs}{.ftz|}.{type:" + _KINDS + "}", 1, None, _sign)


def _approximate(fields: dict[str, str]) -> Callable[..., np.ndarray]:
    function: Callable[..., np.ndarray] = np.exp2 if fields["op"] == "ex2" else np.tanh
    return lambda a: narrow(function(widen(a, fields["type"])), fields["type"])


_register("{op:tanh}.approx.{type:" + _KINDS + "}", 1, ("mufu", 1), _approximate)
_register("{op:ex2}.approx{.ftz|}.{type:" + _KINDS + "}", 1, ("mufu", 1), _approximate)


_COMPARISONS = "eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan"


@executes("setp.{op:" + _COMPARISONS + "}.{type:f16|bf16}", kind="int")
@elementwise(types=("pred", "b16", "b16"))
def set_predicate(machine: Machine, fields: dict[str, str]) -> Compute:
    """p = a op b."""
    compare, kind = comparison(fields["op"], "f64"), fields["type"]
    return lambda out, a, b: compare(widen(a, kind), widen(b, kind), out)


def _set_halves(fields: dict[str, str]) -> Callable[..., np.ndarray]:
    """Each half: 1.0 or 0 in its type, or all bits or none for an integer destination."""
    compare, kind = comparison(fields["op"], "f64"), fields["type"]
    one = {"f16": 0x3C00, "bf1": 0x3F80}.get(fields["out"][:3], 0xFFFF)

    def apply(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        holds = np.empty(a.shape, np.bool_)
        compare(_flush16(widen(a, kind), fields), _flush16(widen(b, kind), fields), holds)
        return np.where(holds, np.uint16(one), np.uint16(0))

    return apply


_register("set.{op:" + _COMPARISONS + "}{ftz:.ftz|}.{out:f16|u16|s16}.{type:f16}", 2, None, _set_halves)
_register("set.{op:" + _COMPARISONS + "}{ftz:.ftz|}.{out:f16x2|u32|s32}.{type:f16x2}", 2, None, _set_halves)
_register("set.{op:" + _COMPARISONS + "}.{out:bf16|u16|s16}.{type:bf16}", 2, None, _set_halves)
_register("set.{op:" + _COMPARISONS + "}.{out:bf16x2|u32|s32}.{type:bf16x2}", 2, None, _set_halves)
