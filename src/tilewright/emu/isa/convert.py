"""cvt: between integers and floats of all widths, with every rounding. All of it is exact."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..machine import Machine
from ..ptx import Instruction
from .float32 import NAN, flush
from .registry import Compute, Step, dtype_of, elementwise, executes

INTS = "u8|s8|u16|s16|u32|s32|u64|s64"
FLOATS = "f16|f32|f64"
_TO_WHOLE: dict[str, Callable[..., np.ndarray]] = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
_QUIET = {"f16": np.uint16(0x7FFF), "f32": NAN}


def directed(nearest: np.ndarray, exact: np.ndarray, mode: str) -> np.ndarray:
    """Correct values rounded to nearest so that they are rounded in `mode`; `exact` is of a wider type."""
    wide = nearest.astype(exact.dtype)
    up, down = np.array(np.inf, nearest.dtype), np.array(-np.inf, nearest.dtype)
    if mode == "rz":
        off, to = np.abs(wide) > np.abs(exact), np.where(exact > 0, down, up)
    elif mode == "rm":
        off, to = wide > exact, down
    else:
        off, to = wide < exact, up
    return np.where(off, np.nextafter(nearest, to), nearest)


def _quieten(values: np.ndarray, kind: str) -> np.ndarray:
    if kind in _QUIET:
        quiet = np.array([_QUIET[kind]]).view(values.dtype)
        return np.where(np.isnan(values), quiet, values)
    return values


def _saturate(values: np.ndarray) -> np.ndarray:
    """Clamped to [0, 1]; NaN becomes 0."""
    zero, one = values.dtype.type(0), values.dtype.type(1)
    return np.where(values > zero, np.minimum(values, one), zero)


@executes(f"cvt{{sat:.sat|}}.{{to:{INTS}}}.{{from:{INTS}}}", kind="convert")
@elementwise(types=("{to}", "{from}"))
def integers(machine: Machine, fields: dict[str, str]) -> Compute:
    """Truncated or extended by the sign of the source; with .sat clamped."""
    to = dtype_of(fields["to"])
    if not fields["sat"]:
        return lambda out, a: np.copyto(out, a, casting="unsafe")
    low, high = int(np.iinfo(to).min), int(np.iinfo(to).max)
    source = np.iinfo(dtype_of(fields["from"]))
    low, high = max(low, int(source.min)), min(high, int(source.max))
    return lambda out, a: np.copyto(out, np.clip(a, a.dtype.type(low), a.dtype.type(high)), casting="unsafe")


@executes(f"cvt.{{mode:rn|rz|rm|rp}}.{{to:{FLOATS}}}.{{from:{INTS}}}", kind="convert")
@elementwise(types=("{to}", "{from}"))
def integer_to_float(machine: Machine, fields: dict[str, str]) -> Compute:
    """An integer rounded to a float."""
    to, mode = dtype_of(fields["to"]), fields["mode"]

    def compute(out: np.ndarray, a: np.ndarray) -> None:
        if to == np.float16:
            clipped = np.clip(a, -(2**31) if a.dtype.kind == "i" and a.dtype.itemsize > 2 else np.iinfo(a.dtype).min,
                              min(int(np.iinfo(a.dtype).max), 2**31))  # fmt: skip
            exact: np.ndarray = clipped.astype(np.float64)
            nearest = exact.astype(to)
        else:
            exact, nearest = a, a.astype(to)
        if mode != "rn":
            nearest = directed(nearest, exact.astype(np.longdouble), mode)
        np.copyto(out, nearest)

    return compute


@executes(f"cvt.{{mode:rni|rzi|rmi|rpi}}{{ftz:.ftz|}}{{sat:.sat|}}.{{to:{INTS}}}.{{from:{FLOATS}}}", kind="convert")
@elementwise(types=("{to}", "{from}"))
def float_to_integer(machine: Machine, fields: dict[str, str]) -> Compute:
    """Rounded to an integer and clamped to its range; what a NaN gives is the PTX manual's table."""
    to = dtype_of(fields["to"])
    wide = fields["from"] == "f64" or to.itemsize == 8

    def compute(out: np.ndarray, a: np.ndarray) -> None:
        np.copyto(out, to_integer(flush(a) if fields["ftz"] else a, to, fields["mode"], wide))

    return compute


def to_integer(values: np.ndarray, to: np.dtype, mode: str, wide: bool) -> np.ndarray:
    """Floats rounded to an integer and clamped to its range. A NaN gives zero, of 64 bits (`wide`) the smallest number
    of signed types and 2^(bits - 1) of others.
    """
    limits = np.iinfo(to)
    nan = (limits.min if to.kind == "i" else 1 << (8 * to.itemsize - 1)) if wide else 0
    whole = _TO_WHOLE[mode](values.astype(np.float64))
    above, below, lost = whole >= float(limits.max), whole <= float(limits.min), np.isnan(whole)
    safe = np.where(above | below | lost, 0.0, whole)
    result = safe.astype(to if to.itemsize == 8 else np.int64).astype(to)
    result = np.where(above, to.type(limits.max), np.where(below, to.type(limits.min), result))
    return np.where(lost, to.type(nan), result)


@executes(
    "cvt{mode:.rni|.rzi|.rmi|.rpi|.rn|.rz|.rm|.rp|}{ftz:.ftz|}{sat:.sat|}.{to:f16|f32|f64}.{from:f16|f32|f64}",
    kind="convert",
)
@elementwise(types=("{to}", "{from}"))
def float_to_float(machine: Machine, fields: dict[str, str]) -> Compute:
    """Between widths, or to a whole number of the same width."""
    to, mode, kind = dtype_of(fields["to"]), fields["mode"].lstrip("."), fields["to"]
    plain = not (fields["ftz"] or fields["sat"])
    if mode == "rn" and not plain and fields["to"] == fields["from"]:
        raise ValueError(".rn does not go with equal types")

    def compute(out: np.ndarray, a: np.ndarray) -> None:
        a = flush(a).astype(a.dtype) if fields["ftz"] and a.dtype == np.float32 else a
        if mode in _TO_WHOLE:
            result = _TO_WHOLE[mode](a).astype(to)
        else:
            result = a.astype(to)
            if mode in ("rz", "rm", "rp"):
                result = directed(result, a, mode)
        result = _saturate(result) if fields["sat"] else result
        result = flush(result).astype(to) if fields["ftz"] and to == np.float32 else result
        np.copyto(out, _quieten(result, kind))

    return compute


def bf16_to_f32(bits: np.ndarray) -> np.ndarray:
    """bf16 bits (uint16) as float32, exactly."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def f32_to_bf16(values: np.ndarray, mode: str = "rn") -> np.ndarray:
    """float32 rounded (rn or rz) to bf16 bits (uint16); a NaN gives 0x7fff."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = bits
    if mode == "rn":
        rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return np.where(np.isnan(values), np.uint16(0x7FFF), (rounded >> np.uint32(16)).astype(np.uint16))


def f32_to_f16(values: np.ndarray, mode: str = "rn") -> np.ndarray:
    """float32 rounded (rn or rz) to float16; a NaN gives 0x7fff."""
    result = values.astype(np.float16)
    if mode == "rz":
        result = directed(result, values, "rz")
    return _quieten(result, "f16")


def relu_of(values: np.ndarray, relu: str) -> np.ndarray:
    """Negative numbers and -0 as +0; a NaN stays."""
    return np.where(values <= 0, values.dtype.type(0), values) if relu else values


@executes("cvt.{mode:rn|rz}{relu:.relu|}.{to:bf16}.f32", kind="convert")
@elementwise(types=("b16", "f32"))
def to_bf16(machine: Machine, fields: dict[str, str]) -> Compute:
    """fp32 to bf16."""
    return lambda out, a: np.copyto(out, f32_to_bf16(relu_of(a, fields["relu"]), fields["mode"]))


@executes("cvt.{mode:rn|rz}.relu.f16.f32", kind="convert")
@elementwise(types=("f16", "f32"))
def to_f16_relu(machine: Machine, fields: dict[str, str]) -> Compute:
    """fp32 to fp16, negative numbers to zero."""
    return lambda out, a: np.copyto(out, f32_to_f16(relu_of(a, ".relu"), fields["mode"]))


@executes("cvt.{mode:rn|rz}{relu:.relu|}.{to:f16x2|bf16x2}.f32", kind="convert")
@elementwise(types=("b32", "f32", "f32"))
def to_pair(machine: Machine, fields: dict[str, str]) -> Compute:
    """Two fp32 to a pair: the first source goes to the upper half."""
    mode, relu = fields["mode"], fields["relu"]

    def half(a: np.ndarray) -> np.ndarray:
        a = relu_of(a, relu)
        return f32_to_bf16(a, mode) if fields["to"] == "bf16x2" else f32_to_f16(a, mode).view(np.uint16)

    def compute(out: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
        np.copyto(out, (half(a).astype(np.uint32) << np.uint32(16)) | half(b))

    return compute


@executes("cvt{ftz:.ftz|}.f32.bf16", kind="convert")
@elementwise(types=("f32", "b16"))
def from_bf16(machine: Machine, fields: dict[str, str]) -> Compute:
    """bf16 to fp32."""
    return lambda out, a: np.copyto(out, flush(bf16_to_f32(a)) if fields["ftz"] else bf16_to_f32(a))


@executes("cvt.{mode:rna|rn|rz}.tf32.f32", kind="convert")
@elementwise(types=("b32", "f32"))
def to_tf32(machine: Machine, fields: dict[str, str]) -> Compute:
    """fp32 with its mantissa rounded to 10 bits: ties away from zero (rna), to even (rn), or cut (rz)."""
    mode, low = fields["mode"], np.uint32(0x1FFF)

    def compute(out: np.ndarray, a: np.ndarray) -> None:
        bits = np.ascontiguousarray(a).view(np.uint32)
        if mode == "rna":
            rounded = bits + np.uint32(0x1000)
        elif mode == "rn":
            rounded = bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))
        else:
            rounded = bits
        kept = np.where(np.isfinite(a), rounded & ~low, bits)
        np.copyto(out, np.where(np.isnan(a), NAN, kept))

    return compute


@executes("cvt.pack.sat.{to:u16|s16|u8|s8}.s32{with:.b32|}", kind="convert")
def pack(machine: Machine, instruction: Instruction) -> Step:
    """Two s32 clamped and packed; with a third operand, 8-bit results are shifted in below it."""
    fields = instruction.fields
    to = dtype_of(fields["to"])
    target, *rest = instruction.operands
    machine.expect(
        instruction, (len(rest) == 3) == (to.itemsize == 1) == bool(fields["with"]), "has the wrong operands"
    )
    limits = np.iinfo(to)
    bits = np.uint32(8 * to.itemsize)
    mask = np.uint32(2 ** int(bits) - 1)

    def compute(out: np.ndarray, a: np.ndarray, b: np.ndarray, *c: np.ndarray) -> None:
        high, low = (np.clip(v, limits.min, limits.max).view(np.uint32) & mask for v in (a, b))
        packed = (high << bits) | low
        np.copyto(out, packed | (c[0] << np.uint32(16)) if c else packed)

    kinds = ["s32", "s32", "b32"]
    sources = [machine.source(instruction, x, kind) for x, kind in zip(rest, kinds, strict=False)]
    return machine.keep(instruction, target, "b32", compute, sources)
