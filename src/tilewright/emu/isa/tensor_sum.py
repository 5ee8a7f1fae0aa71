"""The sums of tensor cores to the bit: one rule for each unit, type and architecture, used by mma, wmma and wgmma.

Tensor cores neither round each product nor the exact sum. All terms of one step, the accumulator C among them, are
aligned to the largest exponent among them and cut (towards zero) `fraction` bits below it; what is left is summed
exactly, and the sum is cut to fp32 or rounded to the nearest fp16. A product's exponent is the sum of its factors'
exponents, so that it counts as one less than its own where the significands multiply to 2 or more. Subnormal factors
have the exponent of the smallest normal number. Zeros have none, and the largest exponent is at least
SMALLEST_EXPONENT. An instruction of more products than one step takes is several steps, each with the result of the one
before as its C.

The rules were published with MMA-Sim (Xie and others, arXiv 2511.10909), who checked them on the hardware; what an
instruction is made of on each architecture is what its assembler makes of it. What zeros count and where exponents end
was measured on an H200, and is taken to hold for the others. tests/gpu/tensor_bits.py compares them all with a GPU.

Operands are the bits of their elements, [k, ...], where `...` broadcasts to the shape of C.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from .float32 import NAN, round_to_odd
from .float64 import fma64

FP8 = ("e4m3", "e5m2")
SMALLEST_EXPONENT = -133
"""The largest exponent of a step is at least this. Only products of bf16 and tf32 beside a zero C get there."""
ZERO_FACTOR = -300
"""The exponent here of factors that are zero: whatever they are multiplied by is below SMALLEST_EXPONENT."""


@dataclass(frozen=True)
class Rule:
    """The way one instruction adds up."""

    fraction: int
    """Bits below the largest exponent that a term keeps."""
    step: int
    """Products of one fused sum; they are taken in the order of k."""
    kept: int = 23
    """Mantissa bits of an fp32 result."""
    as_halves: bool = False
    """The assembler has no such instruction and makes two of fp16: of the lower two bytes of each register, then of the
    upper two, starting from zero. C is added to the result by a rounded addition. Subnormal e4m3 are normal fp16."""


RULES: dict[str, list[tuple[tuple[str, ...], tuple[int, int], Rule]]] = {
    "mma": [
        (("f16", "bf16"), (8, 0), Rule(24, 8)),
        (("f16", "bf16"), (9, 0), Rule(25, 16)),
        (("tf32",), (8, 0), Rule(24, 4)),
        (("tf32",), (9, 0), Rule(25, 8)),
        (FP8, (8, 9), Rule(13, 16, kept=13)),
        (FP8, (9, 0), Rule(25, 16, as_halves=True)),
        (FP8, (12, 0), Rule(25, 32)),
    ],
    "wmma": [
        (("f16", "bf16"), (8, 0), Rule(24, 8)),
        (("f16", "bf16"), (9, 0), Rule(25, 16)),
        (("tf32",), (8, 0), Rule(24, 4)),
        (("tf32",), (9, 0), Rule(25, 4)),
    ],
    "wgmma": [
        (("f16", "bf16"), (9, 0), Rule(25, 16)),
        (("tf32",), (9, 0), Rule(25, 8)),
        (FP8, (9, 0), Rule(13, 32, kept=13)),
    ],
}
"""Unit -> (types of A, compute capability from which on, rule): the last row that fits is in force."""


def rule_for(unit: str, kind: str, compute_capability: tuple[int, int]) -> Rule | None:
    """The rule in force; None where the architecture has no such instruction."""
    fitting = [rule for kinds, since, rule in RULES[unit] if kind in kinds and since <= compute_capability]
    return fitting[-1] if fitting else None


# --- operands ---------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=2)
def fp8_values(kind: str) -> np.ndarray:
    """The value of each of the 256 patterns, float32."""
    bits = np.arange(256)
    if kind == "e5m2":  # the upper half of an fp16
        return (bits.astype(np.uint16) << np.uint16(8)).view(np.float16).astype(np.float32)
    exponent, fraction = bits >> 3 & 15, bits & 7
    value = np.where(exponent == 0, fraction / 8 * 2.0**-6, (1 + fraction / 8) * 2.0 ** (exponent - 7))
    value = np.where(bits & 127 == 127, np.nan, value)
    return np.where(bits & 128, -value, value).astype(np.float32)


@lru_cache(maxsize=2)
def fp8_exponents(kind: str) -> np.ndarray:
    bits = np.arange(256)
    field, bias = (bits >> 3 & 15, 7) if kind == "e4m3" else (bits >> 2 & 31, 15)
    exponents = np.maximum(field, 1) - bias
    if kind == "e4m3":
        exponents[bits & 127 == 127] = _NOT_FINITE["e4m3"]
    return np.where(bits & 127 == 0, ZERO_FACTOR, exponents).astype(np.int16)


_NOT_FINITE = {"f16": 16, "bf16": 128, "tf32": 128, "e4m3": 9, "e5m2": 16}
"""The exponent that only infinities and NaN have."""


@dataclass
class Factors:
    """Elements of A or B, [k, ...]."""

    values: np.ndarray
    """float32."""
    exponents: np.ndarray
    """int16."""
    finite: bool
    low: int
    """Exponents of all numbers but zeros are at least this ..."""
    high: int
    """... and at most this."""

    @staticmethod
    def of(words: np.ndarray, kind: str) -> Factors:
        """From bits: unsigned integers of the type's width."""
        if kind in FP8:
            values, exponents = fp8_values(kind).take(words), fp8_exponents(kind).take(words)
        elif kind == "f16":
            values = words.view(np.float16).astype(np.float32)
            field = (words >> np.uint16(10) & np.uint16(31)).view(np.int16)
            exponents = np.maximum(field, np.int16(1)) - np.int16(15)
        elif kind == "bf16":
            values = (words.astype(np.uint32) << np.uint32(16)).view(np.float32)
            field = (words >> np.uint16(7) & np.uint16(255)).view(np.int16)
            exponents = np.maximum(field, np.int16(1)) - np.int16(127)
        else:  # tf32, whose low 13 bits do not take part
            values = (words & np.uint32(0xFFFFE000)).view(np.float32)
            exponents = _fp32_exponents(words)
        if kind not in FP8:
            np.copyto(exponents, np.int16(ZERO_FACTOR), where=values == 0)
        high = int(exponents.max(initial=ZERO_FACTOR))
        low = int(exponents.min(initial=high))
        if low == ZERO_FACTOR:
            low = int(exponents.min(initial=high, where=values != 0))
        return Factors(values, exponents, high < _NOT_FINITE[kind], low, high)

    def at(self, index: Any) -> Factors:
        """Return the factors at an index, of k first."""
        return Factors(self.values[index], self.exponents[index], self.finite, self.low, self.high)

    def negated(self) -> Factors:
        """Return the same with the other signs."""
        return Factors(-self.values, self.exponents, self.finite, self.low, self.high)


def _fp32_exponents(words: np.ndarray) -> np.ndarray:
    field = (words >> np.uint32(23) & np.uint32(255)).astype(np.int16)
    return np.maximum(field, np.int16(1)) - np.int16(127)


# --- the sum ----------------------------------------------------------------------------------------------------------

_MOST = 1000
"""The exponent that sums of powers of two in float64 stay below."""
_BLOCK = 1 << 15
"""Elements of a temporary: few enough to stay in cache."""


class _Scratch(threading.local):
    """Temporaries of a thread, kept: fresh memory costs more than what is done with it."""

    def __init__(self) -> None:
        self.kept: dict[str, np.ndarray] = {}

    def __call__(self, use: str, shape: tuple[int, ...], dtype: type) -> np.ndarray:
        count = math.prod(shape)
        if count < _BLOCK // 8:
            return np.empty(shape, dtype)
        if use not in self.kept or self.kept[use].size < count:
            self.kept[use] = np.empty(max(count, _BLOCK), dtype)
        return self.kept[use][:count].reshape(shape)


_scratch = _Scratch()


def _accumulator(words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """C as float64 and exponents, from the bits of fp32 (uint32) or fp16 (uint16)."""
    values = _scratch("c", words.shape, np.float64)
    if words.dtype == np.uint32:
        np.copyto(values, words.view(np.float32))
        field = np.right_shift(words, np.uint32(23), out=_scratch("fields", words.shape, np.uint32))
        np.bitwise_and(field, np.uint32(255), out=field)
        exponents = _scratch("largest", words.shape, np.int16)
        np.copyto(exponents, field, casting="unsafe")
        np.maximum(exponents, np.int16(1), out=exponents)
        return values, np.subtract(exponents, np.int16(127), out=exponents)
    factors = Factors.of(words, "f16")
    np.copyto(values, factors.values)
    return values, np.maximum(factors.exponents, np.int16(SMALLEST_EXPONENT))


def _fused_sum(a: Factors, b: Factors, words: np.ndarray, fraction: int) -> np.ndarray:
    """C, of these bits, and all products in one sum, as the file's head says, not rounded yet: float64, in _scratch."""
    c, largest = _accumulator(words)
    shape, count = c.shape, len(a.values)
    if a.low + b.low < -126:  # else a zero C's exponent cannot be the largest but among zeros
        np.copyto(largest, np.int16(SMALLEST_EXPONENT), where=c == 0)
    most = 1 << max(29 - fraction, 0)  # products whose sum int32 holds
    group = max(1, min(count, most, _BLOCK // max(c.size, 1)))
    _enlarge(largest, a, b, group)
    scale = _scratch("scale", shape, np.float64)
    bits = scale.view(np.int64)
    np.subtract(1023 + fraction, largest, out=bits)
    np.left_shift(bits, 52, out=bits)
    sums = np.multiply(c, scale, out=_scratch("sums", shape, np.float64))
    np.trunc(sums, out=sums)
    # fp32 holds products exactly, scaled ones too, unless exponents go too far apart; they are then cut by becoming
    # integers.
    if a.high + b.high <= 100 and a.low + b.low >= -100:
        total = _scratch("total", shape, np.int32)
        # Below -100 there are no products but zeros, whatever they are scaled by.
        np.maximum(largest, np.int16(-100), out=largest)
        np.subtract(127 + fraction, largest, out=total)
        small = np.left_shift(total, 23, out=_scratch("small", shape, np.int32)).view(np.float32)
        total[...] = 0
        products, whole = (
            _scratch("products", (group, *shape), np.float32),
            _scratch("whole", (group, *shape), np.int32),
        )
        held = 0
        for k in range(0, count, group):
            here = min(group, count - k)
            if held + here > most:
                sums += total
                total[...], held = 0, 0
            part, cut = (products, whole) if here == group else (products[:here], whole[:here])
            np.multiply(a.values[k : k + here], b.values[k : k + here], out=part)
            np.multiply(part, small, out=part)
            np.copyto(cut, part, casting="unsafe")
            for one in cut if here < 16 else (np.add.reduce(cut, dtype=np.int32),):
                np.add(total, one, out=total)
            held += here
        sums += total
    else:
        product = _scratch("product", shape, np.float64)
        for k in range(count):
            np.multiply(a.values[k], b.values[k], out=product, dtype=np.float64)
            np.multiply(product, scale, out=product)
            sums += np.trunc(product, out=product)
    np.subtract(2046 << 52, bits, out=bits)
    sums *= scale
    if not (a.finite and b.finite):
        plain = c.copy()
        for k in range(count):
            plain += np.multiply(a.values[k], b.values[k], dtype=np.float64)
        np.copyto(sums, plain, where=~np.isfinite(plain))
    return sums


def _enlarge(largest: np.ndarray, a: Factors, b: Factors, group: int) -> None:
    """Raise exponents to those of products."""
    count = len(a.values)
    if a.exponents.shape[-1] == 1 == b.exponents.shape[-2] and a.high + b.high <= _MOST // count.bit_length():
        np.maximum(largest, _largest_of_matrix(a.exponents, b.exponents, largest.shape), out=largest)
        return
    exponents = _scratch("exponents", (group, *largest.shape), np.int16)
    for k in range(0, count, group):
        part = exponents[: min(group, count - k)]
        np.add(a.exponents[k : k + group], b.exponents[k : k + group], out=part)
        np.maximum(largest, part[0] if len(part) == 1 else np.maximum.reduce(part), out=largest)


def _largest_of_matrix(a: np.ndarray, b: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The largest sum of exponents, [k, ..., m, 1] and [k, ..., 1, n], over k: [..., m, n].

    Powers of a base so large that k of them do not reach the next one are multiplied as matrices, which is fast: the
    largest power is then the first digit of the sum. Exponents that vanish, such as zeros', are below all that matter.
    """
    digit = len(a).bit_length()
    left, right = (np.maximum(1023 + digit * x.astype(np.int64), 0) << 52 for x in (a[..., 0], b[..., 0, :]))
    powers = np.matmul(
        np.ascontiguousarray(np.moveaxis(left, 0, -1)).view(np.float64),
        np.ascontiguousarray(np.moveaxis(right, 0, -2)).view(np.float64),
        out=_scratch("sums", shape, np.float64),
    ).view(np.int64)
    np.right_shift(powers, 52, out=powers)
    np.subtract(powers, 1023, out=powers)
    return np.floor_divide(powers, digit, out=powers).astype(np.int16)


def _to_fp32(sums: np.ndarray, kept: int, out: np.ndarray) -> None:
    """float64 cut to fp32, of whose mantissa `kept` bits are used: the bits, uint32. `sums` is used up."""
    bits = sums.view(np.int64)
    np.bitwise_and(bits, np.int64(-1 << 52 - kept), out=bits)
    tiny = np.abs(sums, out=_scratch("c", sums.shape, np.float64)) < 2.0**-126
    if tiny.any():  # subnormal, or zero, which has no sign
        sums[tiny] = np.trunc(sums[tiny] * 2.0 ** (126 + kept)) * 2.0 ** -(126 + kept) + 0.0
    np.copyto(out.view(np.float32), sums, casting="same_kind")
    np.copyto(out, NAN, where=np.isnan(sums))


def _to_fp16(values: np.ndarray, out: np.ndarray) -> None:
    """Floats rounded to the nearest fp16: the bits, uint16. A zero has no sign, a NaN is 0x7fff."""
    halves = out.view(np.float16)
    np.copyto(halves, values, casting="same_kind")
    halves += np.float16(0)
    np.copyto(out, np.uint16(0x7FFF), where=np.isnan(values))


def multiply_add(a: Factors, b: Factors, c: np.ndarray, rule: Rule) -> np.ndarray:
    """D = A B + C. C and D: the bits of fp32 (uint32) or of fp16 (uint16)."""
    with np.errstate(all="ignore"):
        if not rule.as_halves:
            return _steps(a, b, c, rule, rule.step)
        k = len(a.values)
        order = np.argsort(np.arange(k) & 2, kind="stable")
        left, right = (Factors.of(x.values[order].astype(np.float16).view(np.uint16), "f16") for x in (a, b))
        sums = _steps(left, right, np.zeros_like(c), rule, k // 2)
        if c.dtype == np.uint32:
            added = c.view(np.float32) + sums.view(np.float32)
            return np.where(np.isnan(added), NAN, added.view(np.uint32))
        _to_fp16(c.view(np.float16).astype(np.float64) + sums.view(np.float16), sums)
        return sums


def _steps(a: Factors, b: Factors, c: np.ndarray, rule: Rule, step: int) -> np.ndarray:
    out = np.empty(c.shape, c.dtype)
    rows = max(1, _BLOCK // max(c[:1].size, 1))
    for start in range(0, len(c), rows):
        some = slice(start, start + rows)
        left, right = a, b
        if rows < len(c):
            left, right = (x.at((slice(None), some if x.values.shape[1] > 1 else slice(None))) for x in (a, b))
        given, result = c[some], out[some]
        for k in range(0, len(a.values), step):
            whole = step >= len(a.values)
            ks = slice(k, k + step)
            parts = (left, right) if whole else (left.at(ks), right.at(ks))
            sums = _fused_sum(*parts, given, rule.fraction)
            if c.dtype == np.uint32:
                _to_fp32(sums, rule.kept, result)
            else:
                _to_fp16(sums, result)
            given = result
    return out


# --- units that do not cut --------------------------------------------------------------------------------------------


def multiply_add_integers(a: np.ndarray, b: np.ndarray, c: np.ndarray, saturate: bool) -> np.ndarray:
    """D = A B + C of int32 (A and B within 8 bits): modulo 2^32, or held at the ends of int32."""
    total = np.zeros(c.shape, np.int32)
    for k in range(len(a)):
        total += a[k] * b[k]
    if not saturate:
        return total + c
    limits = np.iinfo(np.int32)
    return np.clip(total.astype(np.int64) + c, limits.min, limits.max).astype(np.int32)


def multiply_add_doubles(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """D = A B + C of float64: fused multiply-adds in the order of k."""
    with np.errstate(all="ignore"):
        for k in range(len(a)):
            left, right = (np.broadcast_to(x[k], c.shape).reshape(-1) for x in (a, b))
            c = fma64(left, right, c.reshape(-1)).reshape(c.shape)
    return c


def _fma32(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    product, addend = np.multiply(a, b, dtype=np.float64), c.astype(np.float64)
    return round_to_odd(product, addend, product + addend).astype(np.float32)


def multiply_add_quads(a_words: np.ndarray, b_words: np.ndarray, c: np.ndarray) -> np.ndarray:
    """D = A B + C of m8n8k4, which is Volta's: later assemblers make it of fp32 arithmetic. All are bits: A and B of
    fp16, [4, ...], C and D of fp32 or fp16.
    """
    a, b = (words.view(np.float16).astype(np.float32) for words in (a_words, b_words))
    with np.errstate(all="ignore"):
        if c.dtype == np.uint32:
            total = np.zeros(c.shape, np.float32)
            for k in range(4):
                total = _fma32(a[k], b[k], total)
            added = c.view(np.float32) + total
            return np.where(np.isnan(added), NAN, added.view(np.uint32))
        added = c.view(np.float16).astype(np.float32)
        for k in (0, 2):
            added = added + _fma32(a[k + 1], b[k + 1], (a[k] * b[k]).astype(np.float32))
        bits = added.astype(np.float16).view(np.uint16)
        return np.where(np.isnan(added), np.uint16(0x7FFF), bits)


# --- an instruction ---------------------------------------------------------------------------------------------------

Arithmetic = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""(A [k, ...], B [k, ...], C [...]), all of them bits -> D's bits."""


def arithmetic(
    unit: str, kinds: tuple[str, str, str, str], compute_capability: tuple[int, int], saturate: bool = False,
    negative: bool = False, rule: Rule | None = None,
) -> Arithmetic | None:  # fmt: skip
    """Return how D, of kinds[0], is made of A and B, of kinds[1] and [2], and of C; None where there is no such
    instruction.

    unit: "mma", "wmma", "wgmma", or "quads" for m8n8k4 of fp16. saturate: of integers. negative: the product is
    subtracted. rule: another than the architecture's.
    """
    d_kind, a_kind, b_kind, c_kind = kinds
    if unit == "quads":
        return multiply_add_quads
    if d_kind == "s32":
        signs = [np.int8 if kind == "s8" else np.uint8 for kind in (a_kind, b_kind)]

        def whole(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
            left, right = (x.view(sign).astype(np.int32) for x, sign in zip((a, b), signs, strict=True))
            return multiply_add_integers(left, right, c.view(np.int32), saturate).view(np.uint32)

        return whole
    if d_kind == "f64":
        return lambda a, b, c: multiply_add_doubles(*(x.view(np.float64) for x in (a, b, c))).view(np.uint64)
    own = rule or rule_for(unit, a_kind, compute_capability)
    if own is None:
        return None

    def fused(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        if c_kind == "f16" != d_kind:
            c = c.view(np.float16).astype(np.float32).view(np.uint32)
        left = Factors.of(a, a_kind)
        sums = multiply_add(left.negated() if negative else left, Factors.of(b, b_kind), c, own)
        if not d_kind == "f16" != c_kind:
            return sums
        values = sums.view(np.float32)
        with np.errstate(over="ignore"):
            return np.where(np.isnan(values), np.uint16(0x7FFF), values.astype(np.float16).view(np.uint16))

    return fused
