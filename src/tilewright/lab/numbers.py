"""The operand types as NumPy holds them: f32 and f16 as themselves, what NumPy lacks as bits: bf16 in uint16, fp8 in
uint8."""

from __future__ import annotations

import numpy as np

from ..arrays.dtypes import FP8
from ..arrays.float8 import to_bits, to_values

STORED: dict[str, type[np.generic]] = {
    "f32": np.float32, "f16": np.float16, "bf16": np.uint16, "e4m3": np.uint8, "e5m2": np.uint8,
}  # fmt: skip
"""How an array of each type is stored."""

POISON: dict[str, np.generic] = {
    "f32": np.uint32(0x7FC0BEEF), "f16": np.uint16(0x7EEF), "bf16": np.uint16(0x7FEF), "e4m3": np.uint8(0xFF),
    "e5m2": np.uint8(0xFE),
}  # fmt: skip
"""The bits of a NaN that no instruction makes: where it still stands, nobody wrote, and a stray NaN is told from it."""


def to_stored(values: np.ndarray, dtype: str) -> np.ndarray:
    """float32 values rounded to nearest even to `dtype`, as stored; the layout in memory is kept (C or transposed)."""
    if dtype == "f32":
        return values
    if dtype == "f16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16)
    if dtype in FP8:
        return to_bits(values, dtype) if values.flags.c_contiguous else to_bits(values.T, dtype).T
    from ..emu.isa.convert import f32_to_bf16

    return f32_to_bf16(values) if values.flags.c_contiguous else f32_to_bf16(values.T).T


def from_stored(stored: np.ndarray, dtype: str) -> np.ndarray:
    """The float32 values of a stored array: exact."""
    if dtype in FP8:
        return to_values(stored, dtype)
    if dtype != "bf16":
        return stored.astype(np.float32, copy=False)
    from ..emu.isa.convert import bf16_to_f32

    return bf16_to_f32(stored)


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """float32 values rounded to `dtype` (or to "tf32"), as float32."""
    if dtype == "tf32":
        return to_tf32(values)
    return from_stored(to_stored(values, dtype), dtype)


def half_spacing(values: np.ndarray, dtype: str) -> np.ndarray:
    """Half the distance from each value (>= 0) to the next number of `dtype`; 0 for f32. Like `values`."""
    if dtype == "f32":
        return np.zeros_like(values)
    # bits of a significand; exponent of the least normal number
    digits, least = {"f16": (11, -13), "bf16": (8, -125), "e4m3": (4, -5), "e5m2": (3, -13)}[dtype]
    exponent = np.where(values == 0, least, np.maximum(np.frexp(values)[1], least))
    return np.ldexp(1.0, exponent - digits - 1)


def to_tf32(values: np.ndarray) -> np.ndarray:
    """float32 values rounded to 10 fractional bits, ties to even, as t01 takes them. NaN stays NaN."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    kept = (bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))) & ~np.uint32(0x1FFF)
    return np.where(np.isfinite(values), kept, bits).view(np.float32)
