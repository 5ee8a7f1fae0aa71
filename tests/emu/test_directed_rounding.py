"""Quotients, roots and fp64 arithmetic rounded towards zero, down and up, against rational arithmetic."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from single_instruction import F32_MOST, execute, round_fraction

F64_MOST = Fraction(2**53 - 1) * Fraction(2) ** 971
FORMATS = {"f32": (24, -149, F32_MOST, "<f", "<I", np.float32), "f64": (53, -1074, F64_MOST, "<d", "<Q", np.float64)}


def integer_root(value: Fraction) -> tuple[Fraction, bool]:
    """A root with 80 bits or so, cut, and whether it is exact."""
    shift = 2 * (200 + max(value.denominator.bit_length(), 0))
    scaled = (value.numerator << shift) // value.denominator
    root = math.isqrt(scaled)
    return Fraction(root, 1 << shift // 2), Fraction(root, 1 << shift // 2) ** 2 == value


def exact(op: str, x: list[Fraction]) -> Fraction:
    if op == "sqrt":
        root, whole = integer_root(x[0])
        return root if whole else root + Fraction(1, 1 << 2000)  # between the same two numbers
    return {
        "add": lambda: x[0] + x[1], "sub": lambda: x[0] - x[1], "mul": lambda: x[0] * x[1],
        "div": lambda: x[0] / x[1], "rcp": lambda: 1 / x[0], "fma": lambda: x[0] * x[1] + x[2],
    }[op]()  # fmt: skip


def expected(op: str, kind: str, mode: str, bits: list[int]) -> int | None:
    """The result's bits; None where it is not a number or not finite by nature."""
    mantissa, least, most, pack, whole, _ = FORMATS[kind]
    x = [struct.unpack(pack, struct.pack(whole, b))[0] for b in bits]
    if not all(map(math.isfinite, x)) or (op in ("div", "rcp") and x[-1] == 0) or (op == "sqrt" and x[0] < 0):
        return None
    value = exact(op, [Fraction(v) for v in x])
    top = 1 << (8 * struct.calcsize(pack) - 1)
    if value == 0:
        if op in ("add", "sub", "fma"):
            terms = [math.copysign(1, x[0]) * (math.copysign(1, x[1]) if op == "fma" else 1), math.copysign(1, x[-1])]
            terms[1] *= -1 if op == "sub" else 1
            return top if terms == [-1, -1] or (mode == "rm" and terms != [1, 1]) else 0
        return top if math.prod(math.copysign(1, v) for v in x) < 0 else 0
    rounded = round_fraction(value, mantissa, least, most, mode)
    negative = top if value < 0 else 0
    if rounded == "inf":
        return negative | (0x7F800000 if kind == "f32" else 0x7FF << 52)
    return negative | struct.unpack(whole, struct.pack(pack, float(abs(rounded))))[0]


def numbers(kind: str, rng: np.random.Generator, count: int) -> np.ndarray:
    """Bits: near one, of any exponent, subnormal, special."""
    wide, mantissa = (8, 23) if kind == "f32" else (11, 52)
    bias = (1 << wide - 1) - 1
    field = np.where(rng.random(count) < 0.6, rng.integers(bias - 3, bias + 4, count), rng.integers(0, 2 * bias, count))
    field[rng.random(count) < 0.1] = 0
    short = rng.random(count) < 0.3
    fraction = rng.integers(0, 1 << mantissa, count) & np.where(short, -1 << mantissa - 6, -1)
    bits = field.astype(np.uint64) << np.uint64(mantissa) | fraction.astype(np.uint64)
    bits |= rng.integers(0, 2, count).astype(np.uint64) << np.uint64(wide + mantissa)
    return bits.astype(np.uint32 if kind == "f32" else np.uint64)


def check(op: str, kind: str, mode: str, sources: int, change: Callable[[list[np.ndarray]], None]) -> None:
    rng = np.random.default_rng(len(op) + len(mode))
    given = [numbers(kind, rng, 768) for _ in range(sources)]
    change(given)
    names = ", ".join(f"%{name}" for name in "abc"[:sources])
    got = execute(f"{op}.{mode}.{kind} %d, {names};", kind, [kind] * sources, given)
    looked_at = 0
    for k, result in enumerate(got.tolist()):
        want = expected(op, kind, mode, [int(x[k]) for x in given])
        if want is not None:
            looked_at += 1
            assert hex(result) == hex(want), [hex(int(x[k])) for x in given]
    assert looked_at > 300


@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
@pytest.mark.parametrize(
    ("op", "kind", "sources"),
    [("div", "f32", 2), ("sqrt", "f32", 1), ("rcp", "f32", 1), ("add", "f64", 2), ("sub", "f64", 2), ("mul", "f64", 2),
     ("div", "f64", 2), ("sqrt", "f64", 1), ("rcp", "f64", 1), ("fma", "f64", 3)],
)  # fmt: skip
def test_results_are_the_exact_ones_rounded_once(op, kind, sources, mode):
    def change(given: list[np.ndarray]) -> None:
        if op == "sqrt":
            given[0] &= given[0].dtype.type(~(1 << 8 * given[0].itemsize - 1) & (1 << 8 * given[0].itemsize) - 1)
        if op == "add":
            given[1][:50] = given[0][:50] ^ given[0].dtype.type(1 << 63)  # exact zeros

    check(op, kind, mode, sources, change)


def test_rsqrt_of_fp64_is_within_two_units():
    rng = np.random.default_rng(1)
    values = 2.0 ** rng.uniform(-1000, 1000, 96)
    got = execute("rsqrt.approx.f64 %d, %a;", "f64", ["f64"], [values.view(np.uint64)]).view(np.float64)
    np.testing.assert_allclose(got, values**-0.5, rtol=2.0**-51)
    special = np.array([0.0, -0.0, np.inf, -1.0, np.nan]).view(np.uint64)
    got = execute("rsqrt.approx.f64 %d, %a;", "f64", ["f64"], [special]).view(np.float64)
    np.testing.assert_array_equal(got, [np.inf, -np.inf, 0.0, np.nan, np.nan])
