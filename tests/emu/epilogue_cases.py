"""Epilogues as tests want them: written once over a namespace of functions, run by a kernel and by NumPy."""

from __future__ import annotations

import math

import numpy as np

import tilewright as tw
from tilewright.arrays import dlpack
from tilewright.epilogue.codegen import Expression
from tilewright.lab.check import CheckResult, Guarded, check, numpy_product, reference
from tilewright.lab.numbers import from_stored, rounded, to_stored


class ByNumpy:
    """The functions of tilewright.epilogue on arrays, in the arrays' own precision."""

    exp, exp2, log, sqrt, tanh = np.exp, np.exp2, np.log, np.sqrt, np.tanh
    maximum, minimum, where = np.maximum, np.minimum, np.where

    @staticmethod
    def rsqrt(x):
        return 1 / np.sqrt(x)

    @staticmethod
    def erf(x):
        return np.vectorize(math.erf, otypes=[x.dtype])(x)

    @staticmethod
    def sigmoid(x):
        less = np.exp(-np.abs(x))
        return np.where(x >= 0, 1, less) / (1 + less)

    @classmethod
    def silu(cls, x):
        return x * cls.sigmoid(x)

    @staticmethod
    def relu(x):
        return np.maximum(x, 0)

    @classmethod
    def gelu(cls, x):
        return x / 2 * (1 + cls.erf(x / math.sqrt(2)))

    @staticmethod
    def gelu_tanh(x):
        return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


class Bits:
    """A bfloat16 array as its bits, offered through DLPack: NumPy has no such type."""

    def __init__(self, bits: np.ndarray) -> None:
        self.bits = np.ascontiguousarray(bits)

    def __dlpack_device__(self):
        return dlpack.CPU, 0

    def __dlpack__(self, **_):
        return dlpack.give(
            self.bits.ctypes.data, self.bits.shape, "bf16", self.__dlpack_device__(), self, versioned=False
        )


def values(*shape: int, dtype: str = "f32", seed: int = 0) -> np.ndarray:
    """Random normal float32 values that `dtype` can hold."""
    rng = np.random.default_rng([seed, *shape])
    return rounded(rng.standard_normal(shape, dtype=np.float32), dtype)


def given(array: np.ndarray, dtype: str):
    """The values as an array of `dtype` that a caller could have, in the same layout where NumPy has the type."""
    return Bits(to_stored(np.ascontiguousarray(array), "bf16")) if dtype == "bf16" else to_stored(array, dtype)


def judge(out, a, b, function, *, c=None, alpha=1.0, beta=0.0, dtype="f32", out_dtype="f32", **operands) -> CheckResult:
    """`out` against function(acc, **operands) in float64; the measure is the same in float32."""
    exact = function(reference(a, b, c, alpha, beta), **{k: np.asarray(v, np.float64) for k, v in operands.items()})
    measure = function(numpy_product(a, b, c, alpha, beta), **operands)
    exact = np.broadcast_to(exact, out.shape)
    return check(out, a, b, expected=exact, library=np.broadcast_to(measure, out.shape), dtype=dtype,
                 out_dtype=out_dtype)  # fmt: skip


def target(shape: tuple[int, ...], dtype: str):
    """(a poisoned result between guard bands, the array a caller would pass)."""
    guarded = Guarded(shape, dtype)
    return guarded, Bits(guarded.view) if dtype == "bf16" else guarded.view


def assert_whole(guarded: Guarded) -> None:
    assert guarded.untouched() == 0, "elements that nobody wrote"
    assert guarded.intact(), "written beside the result"


def stored_values(guarded: Guarded) -> np.ndarray:
    return from_stored(guarded.view, guarded.dtype)


def each_by_kernel(expressions: dict[str, Expression], x: np.ndarray, brief: bool) -> dict[str, np.ndarray]:
    """What expressions of the sum, and of one operand that is 1, make of every element of x, by name. `brief`: as for
    results of 16 bits."""
    numbers = [number for expression in expressions.values() for number in expression.numbers] or [0.0]
    parts, first = [], 0
    for place, expression in enumerate(expressions.values()):
        parts.append(
            f"{{ float value[1] = {{x}}; const float in0[1] = {{1.0f}}; const int i = 0;\n"
            f"  const Args args{{numbers + {first}}};\n{expression.code}\n"
            f"  out[{place} * {x.size} + at] = value[0]; }}"
        )
        first += len(expression.numbers)
    source = "\n".join(
        [
            f"constexpr bool fused_brief = {str(brief).lower()};",
            '#include "tile/fused_math.cuh"',
            "struct Args { const float* number; };",
            'extern "C" __global__ void each(const float* in, const float* numbers, float* out) {',
            "  const int at = blockIdx.x * 256 + threadIdx.x;",
            "  const float x = in[at];",
            *parts,
            "}",
        ]
    )
    arrays = [x, np.array(numbers, np.float32), f"f32[{len(expressions) * x.size}]=nan"]
    result = tw.emulate(source, "each", x.size // 256, 256, arrays)
    return dict(zip(expressions, result.arrays[2].reshape(len(expressions), -1), strict=True))
