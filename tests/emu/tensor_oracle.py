"""The sums of tensor cores spelled out in exact rational arithmetic, term by term, and operands to try them on."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from tilewright.emu.isa.tensor_sum import Rule

BITS = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8}
EXPONENT_BITS = {"f16": 5, "bf16": 8, "tf32": 8, "e4m3": 4, "e5m2": 5, "f32": 8}
MANTISSA_BITS = {"f16": 10, "bf16": 7, "tf32": 23, "e4m3": 3, "e5m2": 2, "f32": 23}
Number = tuple[Fraction, int] | str


def number(bits: int, kind: str) -> Number:
    """(significand with its sign, exponent) of a pattern; "nan", "inf" or "-inf"."""
    wide, fraction_bits = EXPONENT_BITS[kind], MANTISSA_BITS[kind]
    sign = -1 if bits >> (wide + fraction_bits) & 1 else 1
    field, fraction = bits >> fraction_bits & (2**wide - 1), bits & (2**fraction_bits - 1)
    if kind == "tf32":
        fraction &= ~0x1FFF
    bias = 2 ** (wide - 1) - 1
    if kind == "e4m3":
        if bits & 127 == 127:
            return "nan"
    elif field == 2**wide - 1:
        return "nan" if fraction else "inf" if sign > 0 else "-inf"
    significand = Fraction(fraction, 2**fraction_bits) + (1 if field else 0)
    return sign * significand, max(field, 1) - bias


def product(x: Number, y: Number) -> Number:
    if isinstance(x, str) or isinstance(y, str):
        zero = any(not isinstance(v, str) and v[0] == 0 for v in (x, y))
        if "nan" in (x, y) or zero:
            return "nan"
        negative = sum(v == "-inf" if isinstance(v, str) else v[0] < 0 for v in (x, y)) % 2
        return "-inf" if negative else "inf"
    return x[0] * y[0], x[1] + y[1]


def fused(terms: list[Number], fraction: int) -> Fraction | str:
    words = {term for term in terms if isinstance(term, str)}
    if words:
        return "nan" if "nan" in words or len(words) > 1 else words.pop()
    largest = max([-133, *(exponent for significand, exponent in terms if significand)])  # type: ignore[misc]
    unit = Fraction(2) ** (largest - fraction)
    total = 0
    for significand, exponent in terms:  # type: ignore[misc]
        scaled = significand * Fraction(2) ** exponent / unit
        total += int(scaled)  # towards zero
    return total * unit


def exponent_of(value: Fraction, least: int) -> int:
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    exponent -= Fraction(2) ** exponent > value
    return max(exponent, least)


def as_fp32(value: Fraction | str, kept: int) -> int:
    if isinstance(value, str):
        return {"nan": 0x7FFFFFFF, "inf": 0x7F800000, "-inf": 0xFF800000}[value]
    sign, size = (0x80000000, -value) if value < 0 else (0, value)
    if size == 0:
        return 0
    exponent = exponent_of(size, -126)
    if exponent > 127:
        return sign | 0x7F800000
    whole = int(size / Fraction(2) ** (exponent - kept)) << (23 - kept)
    return sign | (exponent + 126 << 23) + whole if whole else 0


def as_fp16(value: Fraction | str) -> int:
    if isinstance(value, str):
        return {"nan": 0x7FFF, "inf": 0x7C00, "-inf": 0xFC00}[value]
    sign, size = (0x8000, -value) if value < 0 else (0, value)
    if size == 0:
        return 0
    exponent = exponent_of(size, -14)
    whole = round(size / Fraction(2) ** (exponent - 10))  # to even
    bits = (exponent + 14 << 10) + whole
    return sign | min(bits, 0x7C00) if whole else 0


def oracle(a: list[int], b: list[int], c: int, kind: str, c_kind: str, rule: Rule) -> int:
    for first in range(0, len(a), rule.step):
        products = [
            product(number(x, kind), number(y, kind))
            for x, y in zip(a[first : first + rule.step], b[first : first + rule.step], strict=True)
        ]
        value = fused([number(c, c_kind), *products], rule.fraction)
        c = as_fp32(value, rule.kept) if c_kind == "f32" else as_fp16(value)
    return c


def patterns(rng: np.random.Generator, kind: str, shape: tuple[int, ...], how: str) -> np.ndarray:
    """Bits of a type. how: "near" one, "wide" exponents, "tiny" factors, "any" bits at all."""
    bits = BITS.get(kind, 32)
    dtype = np.dtype(f"u{bits // 8}")
    words = rng.integers(0, 2**bits, shape, dtype=dtype)
    if how == "any":
        return words
    exponent_bits, mantissa = EXPONENT_BITS[kind], MANTISSA_BITS[kind]
    bias = 2 ** (exponent_bits - 1) - 1
    reach = min(20 if how == "wide" else 3, bias - 1)
    middle = max(bias - 66, 4) if how == "tiny" else bias
    reach = min(reach, middle - 1)
    field = rng.integers(middle - reach, middle + reach + 1, shape).astype(dtype)
    field[rng.random(shape) < 0.05] = 0  # subnormal
    others = ~(((1 << exponent_bits) - 1) << mantissa) & (2**bits - 1)
    words = words & dtype.type(others) | field << dtype.type(mantissa)
    words[rng.random(shape) < 0.05] = 0
    return words


def oracle_matrix(a: np.ndarray, b: np.ndarray, c: np.ndarray, kind: str, rule: Rule) -> np.ndarray:
    """D's bits from those of A [m, k], B [k, n] and C [m, n]."""
    c_kind = "f32" if c.dtype == np.uint32 else "f16"
    out = np.zeros_like(c)
    for i, j in np.ndindex(*c.shape):
        out[i, j] = oracle(a[i].tolist(), b[:, j].tolist(), int(c[i, j]), kind, c_kind, rule)
    return out
