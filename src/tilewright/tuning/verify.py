"""Is a candidate's result right? Compared on the GPU with another rung's product, itself checked in float64.

Random operands, an output filled with NaN before, guard bands around it intact after, every element compared. The
measure is what lab.check allows: rounding of a sum of k products at random, half a step of the result's type.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from math import sqrt

import numpy as np

from ..arrays.dtypes import CPP_TYPES, FP8, ITEM_BYTES
from ..arrays.float8 import to_bits, to_values
from ..jit import CompiledKernel, Launch, compile_rung
from ..jit.source import Constant

DIGITS = {"f32": 24, "f16": 11, "bf16": 8}
"""Binary digits of a number's significand."""
_ARGS = struct.Struct("<5Qqf4x")
_RESULT = struct.Struct("<QI4x")
RESULT_BYTES = _RESULT.size
_UNIT_ROUNDOFF = 2.0**-24


@dataclass(frozen=True)
class Difference:
    """`wrong`: elements beyond their bound; `worst`: the largest finite difference."""

    wrong: int
    worst: float


def compare_kernel(out_dtype: str, arch: str) -> CompiledKernel:
    """The kernel of cuda/tuning/compare.cuh for results of `out_dtype`."""
    constants: dict[str, Constant] = {"out_type": CPP_TYPES[out_dtype], "digits": DIGITS[out_dtype]}
    return compile_rung("tuning/compare.cuh", constants, "compare", arch)


def compare_launch(
    found: int, expected: int, result: int, elements: int, allowed: float, sides: tuple[int, int] = (0, 0)
) -> Launch:
    """Compare `elements` elements at addresses `found` and `expected` (fp32) into `result` (RESULT_BYTES zeros).

    `sides`: of two more arrays of fp32, as far from which as an element is expected to be it may be off as well.
    """
    blocks = max(1, min(-(-elements // 1024), 2048))
    return Launch((blocks, 1, 1), (256, 1, 1), _ARGS.pack(found, expected, *sides, result, elements, allowed))


def read_difference(data: np.ndarray) -> Difference:
    wrong, worst = _RESULT.unpack(data.tobytes())
    return Difference(wrong, float(np.uint32(worst).view(np.float32)))


def allowed_error(k: int, kind: str, largest: float) -> float:
    """Return what two fp32 sums of k products may differ by, results being `largest` at most; `kind`: GemmProblem.kind.

    Each is off by about sqrt(k) roundings; tensor cores cut where fp32 rounds, once in 16 products, and cuts add up
    ("fp32x3" adds up in fp32). Operands rounded to tf32 are off by up to 2^-11 each, at random. Hopper's tensor cores
    keep 13 bits of sums of fp8: of 128 products, or ("fast") of all of k, cut once in 32.
    """
    if kind in ("fp8", "fast"):
        return (2.0**-10 + (2.0**-13 * k / 32 if kind == "fast" else 0)) * largest
    steps = 4 * sqrt(max(k, 1)) + (0 if kind in ("f32", "fp32x3") else k / 8)
    return (steps * _UNIT_ROUNDOFF + (2.0**-9 if kind == "tf32" else 0)) * largest


def as_float64(stored: np.ndarray, dtype: str) -> np.ndarray:
    """The values of numbers as they are stored; bf16's as uint16, fp8's as uint8."""
    if dtype in FP8:
        return to_values(stored, dtype).astype(np.float64)
    if dtype == "bf16":
        return (stored.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return stored.astype(np.float64)


class Pattern:
    """Random normal numbers of a type, repeated: cheap to make as large as the L2 asks for.

    Its length is prime, so that no two rows of a matrix that lies in it are equal.
    """

    LENGTH = 4_194_301

    def __init__(self, dtype: str, seed: int = 0) -> None:
        self.dtype = dtype
        values = np.random.default_rng(seed).standard_normal(self.LENGTH, dtype=np.float32)
        if dtype == "f32":
            self.stored: np.ndarray = values
        elif dtype == "f16":
            self.stored = values.astype(np.float16)
        elif dtype in FP8:
            self.stored = to_bits(values, dtype)
        else:
            self.stored = (values.view(np.uint32) >> 16).astype(np.uint16)  # cut, not rounded: random all the same

    def values(self, places: np.ndarray) -> np.ndarray:
        """float64 values at element offsets from the start of the repeated pattern."""
        return as_float64(self.stored[places % self.LENGTH], self.dtype)

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES[self.dtype]


@lru_cache(maxsize=4)
def pattern_of(dtype: str, seed: int = 0) -> Pattern:
    """A pattern, made once while it is used."""
    return Pattern(dtype, seed)


def sample_places(extent: int, count: int, seed: int) -> np.ndarray:
    """Up to `count` indices below `extent`, the first and the last among them."""
    if extent <= count:
        return np.arange(extent)
    inner = np.random.default_rng(seed).integers(0, extent, count - 2)
    return np.unique(np.concatenate(([0, extent - 1], inner)))
