"""cvt: fp8 in pairs, and bf16 to and from all but fp32 (convert.py has most of that). All of it is exact."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ..machine import Machine
from .convert import INTS, bf16_to_f32, directed, f32_to_f16, relu_of, to_integer
from .float16 import narrow
from .float32 import NAN
from .registry import Compute, dtype_of, elementwise, executes
from .tensor_sum import fp8_values

_FP8 = "e4m3x2|e5m2x2"
_FP8_NAN = np.uint8(0x7F)


@lru_cache(maxsize=2)
def _finite(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """The finite magnitudes of a type, by their bits, and the middles between neighbours."""
    values = fp8_values(kind).astype(np.float64)[: 0x7F if kind == "e4m3" else 0x7C]
    return values, (values[1:] + values[:-1]) / 2


def to_fp8(values: np.ndarray, kind: str) -> np.ndarray:
    """Floats rounded to the nearest fp8, ties to even: bits, uint8. What is too large gives the largest number."""
    _, middles = _finite(kind)
    magnitude = np.abs(values).astype(np.float64)
    bits = np.searchsorted(middles, magnitude)
    tie = magnitude == middles[np.minimum(bits, len(middles) - 1)]
    bits = (bits + (tie & (bits & 1 == 1) & (bits < len(middles)))).astype(np.uint8)
    bits |= np.signbit(values).astype(np.uint8) << np.uint8(7)
    return np.where(np.isnan(values), _FP8_NAN, bits)


@executes(f"cvt.rn.satfinite{{relu:.relu|}}.{{to:{_FP8}}}.f32", kind="convert")
@elementwise(types=("b16", "f32", "f32"))
def to_fp8_pair(machine: Machine, fields: dict[str, str]) -> Compute:
    """Two fp32 to a pair of fp8: the first source goes to the upper byte."""
    kind = fields["to"][:4]

    def compute(out: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
        high, low = (to_fp8(relu_of(x, fields["relu"]), kind).astype(np.uint16) for x in (a, b))
        np.copyto(out, high << np.uint16(8) | low)

    return compute


@executes(f"cvt.rn.satfinite{{relu:.relu|}}.{{to:{_FP8}}}.f16x2", kind="convert")
@elementwise(types=("b16", "b32"))
def halves_to_fp8(machine: Machine, fields: dict[str, str]) -> Compute:
    """A pair of fp16 to a pair of fp8."""
    kind = fields["to"][:4]

    def compute(out: np.ndarray, a: np.ndarray) -> None:
        pair = np.ascontiguousarray(a).view(np.float16).reshape(-1, 2)
        np.copyto(out, to_fp8(relu_of(pair, fields["relu"]), kind).view(np.uint16)[:, 0])

    return compute


@executes(f"cvt.rn{{relu:.relu|}}.f16x2.{{from:{_FP8}}}", kind="convert")
@elementwise(types=("b32", "b16"))
def fp8_to_halves(machine: Machine, fields: dict[str, str]) -> Compute:
    """A pair of fp8 to a pair of fp16, which holds them all."""
    kind = fields["from"][:4]

    def compute(out: np.ndarray, a: np.ndarray) -> None:
        values = fp8_values(kind).take(np.ascontiguousarray(a).view(np.uint8))
        np.copyto(out, f32_to_f16(relu_of(values, fields["relu"])).view(np.uint32))

    return compute


_WIDER = "u16|s16|u32|s32|u64|s64"


@executes(
    f"cvt.{{mode:rn|rz|rm|rp}}.bf16.{{from:{_WIDER}|f16|f64}}", "cvt.{mode:rm|rp}.bf16.{from:f32}", kind="convert"
)
@elementwise(types=("b16", "{from}"))
def number_to_bf16(machine: Machine, fields: dict[str, str]) -> Compute:
    """An integer, fp16 or fp64, rounded to bf16; fp32 rounded up or down."""
    mode = fields["mode"]

    def compute(out: np.ndarray, a: np.ndarray) -> None:
        values = a.astype(np.float64)
        if a.dtype.itemsize == 8 and a.dtype.kind in "iu":  # to 53 bits, the last of which says whether more follow
            values = directed(values, a.astype(np.longdouble), "rz")
            inexact = values.astype(np.longdouble) != a.astype(np.longdouble)
            values = (values.view(np.uint64) | inexact).view(np.float64)
        nearest = narrow(values, "bf16")
        np.copyto(out, nearest if mode == "rn" else _directed_bf16(nearest, values, mode))

    return compute


def _directed_bf16(nearest: np.ndarray, exact: np.ndarray, mode: str) -> np.ndarray:
    """The bits of the bf16 nearest to `exact`, moved to where `mode` wants them."""
    wide = bf16_to_f32(nearest).astype(np.float64)
    negative = np.signbit(exact) & ~np.isnan(exact)
    step = (wide < exact).astype(np.int32) - (wide > exact)  # where the exact number lies
    low, high = {"rm": (True, False), "rp": (False, True), "rz": (~negative, negative)}[mode]
    step = np.where(step < 0, step * low, step * high)
    magnitude = (nearest & np.uint16(0x7FFF)).astype(np.int32)
    moved = np.abs(np.where(negative, -magnitude, magnitude) + step)
    return (moved | negative << 15).astype(np.uint16)


@executes(f"cvt.{{mode:rni|rzi|rmi|rpi}}.{{to:{INTS}}}.bf16", kind="convert")
@elementwise(types=("{to}", "b16"))
def bf16_to_integer(machine: Machine, fields: dict[str, str]) -> Compute:
    """bf16 rounded to an integer and clamped to its range."""
    to, wide = dtype_of(fields["to"]), dtype_of(fields["to"]).itemsize == 8
    return lambda out, a: np.copyto(out, to_integer(bf16_to_f32(a), to, fields["mode"], wide))


@executes("cvt.{mode:rni|rzi|rmi|rpi}.bf16.bf16", kind="convert")
@elementwise(types=("b16", "b16"))
def whole_bf16(machine: Machine, fields: dict[str, str]) -> Compute:
    """bf16 to a whole number of the same type."""
    whole = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[fields["mode"]]
    return lambda out, a: np.copyto(out, narrow(whole(bf16_to_f32(a)).astype(np.float64), "bf16"))


@executes("cvt.{mode:rn|rz|rm|rp}.{to:f16}.bf16", "cvt.{to:f64}.bf16", kind="convert")
@elementwise(types=("{to}", "b16"))
def bf16_to_float(machine: Machine, fields: dict[str, str]) -> Compute:
    """bf16 to fp16, rounded, or to fp64."""

    def compute(out: np.ndarray, a: np.ndarray) -> None:
        values = bf16_to_f32(a)
        if fields["to"] == "f64":
            np.copyto(out, values)
            return
        result = f32_to_f16(values)
        if fields["mode"] != "rn":
            result = np.where(np.isnan(values), result, directed(result, values, fields["mode"]))
        np.copyto(out, result)

    return compute


@executes("cvt.{mode:rn|rz}{relu:.relu|}.satfinite.{to:f16|bf16}.f32", kind="convert")
@elementwise(types=("b16", "f32"))
def held_at_the_largest(machine: Machine, fields: dict[str, str]) -> Compute:
    """fp32 to fp16 or bf16; what is too large, infinities too, gives the largest number."""
    kind, mode = fields["to"], fields["mode"]
    largest = np.float32(65504) if kind == "f16" else np.array([0x7F7F0000], np.uint32).view(np.float32)[0]

    def compute(out: np.ndarray, a: np.ndarray) -> None:
        values = np.clip(relu_of(a, fields["relu"]), -largest, largest)
        if kind == "f16":
            np.copyto(out, f32_to_f16(values, mode).view(np.uint16))
        else:
            nearest = narrow(values.astype(np.float64), "bf16")
            np.copyto(out, nearest if mode == "rn" else _directed_bf16(nearest, values.astype(np.float64), mode))

    return compute


@executes("cvt.rna.satfinite.tf32.f32", kind="convert")
@elementwise(types=("b32", "f32"))
def to_tf32_finite(machine: Machine, fields: dict[str, str]) -> Compute:
    """fp32 with 10 bits of mantissa, ties away from zero; what is too large gives the largest number."""
    largest = np.uint32(0x7F7FE000)

    def compute(out: np.ndarray, a: np.ndarray) -> None:
        bits = np.ascontiguousarray(a).view(np.uint32)
        sign, magnitude = bits & np.uint32(0x80000000), bits & np.uint32(0x7FFFFFFF)
        rounded = np.minimum((magnitude + np.uint32(0x1000)) & np.uint32(0xFFFFE000), largest)
        np.copyto(out, np.where(np.isnan(a), NAN, sign | rounded))

    return compute
