"""fp8 for libraries without a dtype for it: bytes that are read as such, and fp32 rounded to them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import InvalidOperand
from .dtypes import FP8, parse_dtype

LARGEST = {"e4m3": 448.0, "e5m2": 57344.0}
_SHAPE = {"e4m3": (3, 7), "e5m2": (2, 15)}
"""Bits of the fraction, and the exponent's bias."""


class Float8Array:
    """An array of uint8 (NumPy's or CuPy's), each byte of which is a number of fp8.

    CuPy has no dtype for fp8, and NumPy has one by way of ml_dtypes only. tilewright takes such an array wherever it
    takes fp8, as `out` too. `bits`: the uint8 array; `dtype`: "e4m3" or "e5m2".
    """

    def __init__(self, bits: Any, dtype: str) -> None:
        self.bits, self.dtype = bits, parse_dtype(dtype, "dtype")
        if self.dtype not in FP8 or str(getattr(bits, "dtype", "")) != "uint8":
            raise InvalidOperand(
                f"a Float8Array is a uint8 array read as e4m3 or e5m2; these are {getattr(bits, 'dtype', type(bits))} "
                f"and {dtype!r}."
            )

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.bits.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def T(self) -> Float8Array:
        """The transpose, over the same memory."""
        return Float8Array(self.bits.T, self.dtype)

    def __getitem__(self, index: Any) -> Float8Array:
        return Float8Array(self.bits[index], self.dtype)

    def __repr__(self) -> str:
        return f"Float8Array(shape={self.shape}, dtype={self.dtype!r})"


def to_values(bits: np.ndarray, dtype: str) -> np.ndarray:
    """Bytes of fp8 as float32: exact."""
    if dtype == "e5m2":  # the upper half of an fp16
        return (bits.astype(np.uint16) << np.uint16(8)).view(np.float16).astype(np.float32)
    halves = (bits & np.uint8(0x80)).astype(np.uint16) << np.uint16(8) | (bits & np.uint8(0x7F)).astype(np.uint16) << 7
    values = halves.view(np.float16).astype(np.float32) * np.float32(256)
    return np.where(bits & np.uint8(0x7F) == 0x7F, np.float32(np.nan), values)


def to_bits(values: Any, dtype: str, library: Any = np) -> Any:
    """float32 values as bytes of fp8, rounded to nearest even; `library` is NumPy, or CuPy for its arrays.

    Beyond the largest number e5m2 becomes infinite and e4m3, which has no
    infinities, NaN. A NaN is 0x7f with its sign.
    """
    digits, bias = _SHAPE[dtype]
    drop, rebias = 23 - digits, 127 - bias
    bits = library.ascontiguousarray(values).view(library.uint32)
    sign = (bits >> 24) & 0x80
    magnitude = bits & 0x7FFFFFFF
    rounded = magnitude + ((1 << (drop - 1)) - 1) + ((magnitude >> drop) & 1)
    normal = (rounded >> drop) - (rebias << digits)
    # below the least normal number: fp32's own addition rounds to units of the least number
    unit = library.float32(2.0 ** (1 - bias - digits + 23))
    small = library.minimum(magnitude, (rebias + 1) << 23).astype(library.uint32).view(library.float32)
    subnormal = (small + unit).view(library.uint32) - unit.view(library.uint32)
    narrow = library.where(magnitude < ((rebias + 1) << 23), subnormal, normal)
    beyond = {"e4m3": 0x7F, "e5m2": 0x7C}[dtype]
    narrow = library.where(narrow > beyond, beyond, narrow)
    narrow = library.where(magnitude > 0x7F800000, 0x7F, narrow)
    return (sign | narrow).astype(library.uint8)
