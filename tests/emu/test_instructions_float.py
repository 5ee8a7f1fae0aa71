"""fp32, fp64 and 16-bit floats: each instruction against rational arithmetic, bit for bit."""

from __future__ import annotations

import math
import struct
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from single_instruction import execute, f32, f32_lanes, f32_of_fraction, f64, f64_lanes, round_fraction

NAN = 0x7FFFFFFF
QUICK = settings(max_examples=10, deadline=None)


def _bits32(value: float) -> int:
    return struct.unpack("<I", struct.pack("<f", value))[0]


def fma32(a: int, b: int, c: int, mode: str = "rn") -> int:
    x, y, z = f32(a), f32(b), f32(c)
    if any(map(math.isnan, (x, y, z))) or (math.isinf(x) and y == 0) or (math.isinf(y) and x == 0):
        return NAN
    negative = math.copysign(1, x) * math.copysign(1, y) < 0
    if math.isinf(x) or math.isinf(y):
        product = -math.inf if negative else math.inf
        return NAN if math.isinf(z) and z != product else _bits32(product)
    if math.isinf(z):
        return c
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    both_negative = negative and math.copysign(1, z) < 0
    both_positive = not negative and math.copysign(1, z) > 0
    zero_negative = both_negative or (mode == "rm" and not both_positive)
    return f32_of_fraction(exact, zero_negative, mode)


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@QUICK
@given(f32_lanes, f32_lanes, f32_lanes)
def test_fma_f32_is_correctly_rounded(mode, a, b, c):
    got = execute(f"fma.{mode}.f32 %d, %a, %b, %c;", "f32", ["f32"] * 3, [a, b, c])
    want = [fma32(*v, mode) for v in zip(a, b, c, strict=True)]
    assert [hex(v) for v in got] == [hex(v) for v in want]


def test_fma_f32_at_a_tie_that_double_rounding_gets_wrong():
    # 1 + 2^-23 + (2^-24 + 2^-60): float64 drops the last term and would then round the tie to even, downwards.
    a, b = _bits32(1 + 2.0**-23), _bits32(1.0)
    tiny = _bits32(2.0**-24)
    cases = [
        (a, b, tiny),
        (_bits32(2.0**-30 + 2.0**-50), _bits32(2.0**-30), a),
        (tiny, _bits32(1 + 2.0**-23), _bits32(1.0)),
    ]
    got = execute("fma.rn.f32 %d, %a, %b, %c;", "f32", ["f32"] * 3, [list(v) for v in zip(*cases, strict=True)])
    assert got.tolist() == [fma32(*case) for case in cases]
    assert f32(int(got[2])) == 1 + 2.0**-23  # the tie is broken upwards by a term far below


def test_fma_f32_with_a_subnormal_result_is_rounded_once():
    generator = np.random.default_rng(3)
    a = (generator.integers(0, 2**23, 1024) | (generator.integers(20, 60, 1024) << 23)).astype(np.uint32)
    b = (generator.integers(0, 2**23, 1024) | (generator.integers(20, 60, 1024) << 23)).astype(np.uint32)
    c = generator.integers(0, 2**23, 1024).astype(np.uint32)
    got = execute("fma.rn.f32 %d, %a, %b, %c;", "f32", ["f32"] * 3, [a, b, c])
    assert got.tolist() == [fma32(int(x), int(y), int(z)) for x, y, z in zip(a, b, c, strict=True)]


def test_fma_f32_at_a_subnormal_tie_that_double_rounding_gets_wrong():
    # (2^23 - 2^12 + 1)(2^23 + 2^12 + 1) = 2^46 + 1: a product of half the smallest subnormal and a bit far below,
    # which float64 drops. The sum is then a tie, and would go down to the even neighbour.
    a, b = _bits32((2**23 - 2**12 + 1) * 2.0**-98), _bits32((2**23 + 2**12 + 1) * 2.0**-98)
    c = 2**23 - 2
    got = execute("fma.rn.f32 %d, %a, %b, %c;", "f32", ["f32"] * 3, [[a] * 32, [b] * 32, [c] * 32])
    assert got.tolist() == [fma32(a, b, c)] * 32 == [c + 1] * 32


@pytest.mark.parametrize("op", ["add", "sub", "mul"])
@pytest.mark.parametrize("mode", ["", ".rn", ".rz", ".rm", ".rp"])
@settings(max_examples=5, deadline=None)
@given(f32_lanes, f32_lanes)
def test_add_sub_mul_f32(op, mode, a, b):
    got = execute(f"{op}{mode}.f32 %d, %a, %b;", "f32", ["f32"] * 2, [a, b])
    way = mode.lstrip(".") or "rn"
    for x, y, bits in zip(a, b, got.tolist(), strict=True):
        if op == "mul":
            if math.isnan(f32(x)) or math.isnan(f32(y)):
                want = NAN
            else:  # a product is a fused multiply-add with a zero of its own sign
                zero = (x ^ y) & 0x80000000
                want = fma32(x, y, zero, way)
        else:
            want = fma32(x, 0x3F800000, y ^ (0x80000000 if op == "sub" and not math.isnan(f32(y)) else 0), way)
        assert bits == want, (hex(x), hex(y), hex(bits), hex(want))


@QUICK
@given(f32_lanes, f32_lanes)
def test_div_and_sqrt_f32(a, b):
    quotients = execute("div.rn.f32 %d, %a, %b;", "f32", ["f32"] * 2, [a, b])
    roots = execute("sqrt.rn.f32 %d, %a;", "f32", ["f32"], [a])
    for x, y, q, r in zip(a, b, quotients.tolist(), roots.tolist(), strict=True):
        u, v = f32(x), f32(y)
        if all(map(math.isfinite, (u, v))) and v != 0 and u != 0:
            assert q == f32_of_fraction(Fraction(u) / Fraction(v), False), (hex(x), hex(y), hex(q))
        elif math.isnan(u) or math.isnan(v) or (u == 0 and v == 0) or (math.isinf(u) and math.isinf(v)):
            assert q == NAN
        if math.isnan(u) or u < 0:
            assert r == NAN
        elif math.isfinite(u) and u > 0:
            low, high = Fraction(f32(max(r - 1, 0))), Fraction(f32(r + 1))
            middle = Fraction(f32(r))
            assert ((low + middle) / 2) ** 2 <= Fraction(u) <= ((middle + high) / 2) ** 2


@QUICK
@given(f32_lanes, f32_lanes)
def test_min_max_f32_prefer_numbers_and_order_zeros(a, b):
    low = execute("min.f32 %d, %a, %b;", "f32", ["f32"] * 2, [a, b]).tolist()
    high = execute("max.NaN.f32 %d, %a, %b;", "f32", ["f32"] * 2, [a, b]).tolist()
    for x, y, small, large in zip(a, b, low, high, strict=True):
        numbers = [bits for bits in (x, y) if not math.isnan(f32(bits))]
        key = {bits: (f32(bits), not bits >> 31) for bits in numbers}
        assert small == (min(numbers, key=key.__getitem__) if numbers else NAN)
        assert large == (max(numbers, key=key.__getitem__) if len(numbers) == 2 else NAN)


@QUICK
@given(f32_lanes, f32_lanes, f32_lanes)
def test_ftz_and_sat_f32(a, b, c):
    def flushed(bits):
        return bits & 0x80000000 if bits & 0x7F800000 == 0 else bits

    got = execute("fma.rn.ftz.f32 %d, %a, %b, %c;", "f32", ["f32"] * 3, [a, b, c]).tolist()
    assert got == [flushed(fma32(*map(flushed, v))) for v in zip(a, b, c, strict=True)]
    got = execute("fma.rn.sat.f32 %d, %a, %b, %c;", "f32", ["f32"] * 3, [a, b, c]).tolist()
    for x, y, z, bits in zip(a, b, c, got, strict=True):
        value = f32(fma32(x, y, z))
        assert bits == (0 if math.isnan(value) or value <= 0 else 0x3F800000 if value >= 1 else _bits32(value))


_ORDERED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


@pytest.mark.parametrize("op", [*_ORDERED, *(name + "u" for name in _ORDERED), "num", "nan"])
@settings(max_examples=3, deadline=None)
@given(f32_lanes, f32_lanes)
def test_setp_f32(op, a, b):
    got = execute(f"setp.{op}.f32 %p1, %a, %b; selp.b32 %d, 1, 0, %p1;", "b32", ["f32"] * 2, [a, b]).tolist()
    for x, y, bit in zip(a, b, got, strict=True):
        nan = math.isnan(f32(x)) or math.isnan(f32(y))
        if op in ("num", "nan"):
            assert bit == (nan == (op == "nan"))
        elif nan:
            assert bit == op.endswith("u")
        else:
            assert bit == eval(f"{f32(x)!r} {_ORDERED[op.removesuffix('u')]} {f32(y)!r}", {"inf": math.inf})


@pytest.mark.parametrize(
    ("op", "function", "relative", "absolute"),
    [
        ("ex2", lambda x: 2.0**x if x < 200 else math.inf, 2.0**-22, 0.0),
        ("lg2", lambda x: math.log2(x), 2.0**-22, 2.0**-22),
        ("rcp", lambda x: 1 / x, 2.0**-23, 0.0),
        ("rsqrt", lambda x: 1 / math.sqrt(x), 2.0**-22.4, 0.0),
        ("sqrt", math.sqrt, 2.0**-23, 0.0),
        ("sin", math.sin, 0.0, 2.0**-20.5),
        ("cos", math.cos, 0.0, 2.0**-20.5),
        ("tanh", math.tanh, 2.0**-10.9, 0.0),
    ],
)
def test_approximate_functions_stay_within_the_manuals_bound(op, function, relative, absolute):
    values = np.random.default_rng(1).uniform(0.01, 6.0, 1024).astype(np.float32)
    got = execute(f"{op}.approx.f32 %d, %a;", "f32", ["f32"], [values.view(np.uint32)]).view(np.float32)
    for x, y in zip(values.tolist(), got.tolist(), strict=True):
        assert abs(y - function(x)) <= relative * abs(function(x)) + absolute


@QUICK
@given(f64_lanes, f64_lanes, f64_lanes)
def test_fma_f64_is_correctly_rounded(a, b, c):
    got = execute("fma.rn.f64 %d, %a, %b, %c;", "f64", ["f64"] * 3, [a, b, c]).tolist()
    most = Fraction(2**53 - 1) * Fraction(2) ** 971
    for x, y, z, bits in zip(a, b, c, got, strict=True):
        u, v, w = f64(x), f64(y), f64(z)
        if not all(map(math.isfinite, (u, v, w))):
            with np.errstate(all="ignore"):
                product = 0.0 if math.isfinite(u) and math.isfinite(v) else np.float64(u) * np.float64(v)
                np.testing.assert_equal(f64(bits), product + np.float64(w))
            continue
        exact = Fraction(u) * Fraction(v) + Fraction(w)
        if exact == 0:
            assert f64(bits) == 0
            continue
        rounded = round_fraction(exact, 53, -1074, most)
        want = (math.inf if exact > 0 else -math.inf) if rounded == "inf" else float(rounded)
        assert f64(bits) == want, (hex(x), hex(y), hex(z))


def test_fma_f64_of_a_product_of_zero_keeps_the_signs_of_zeros():
    zeros = [(a, b, c) for a in (0.0, -0.0) for b in (1.5, -2.0, 0.0, -0.0) for c in (0.0, -0.0, 3.0, -5e-324)]
    bits = [list(map(int, np.array(lane).view(np.uint64))) for lane in zip(*zeros, strict=True)]
    got = execute("fma.rn.f64 %d, %a, %b, %c;", "f64", ["f64"] * 3, bits)
    want = np.array([a * b + c for a, b, c in zeros])
    np.testing.assert_array_equal(got.view(np.uint64), want.view(np.uint64))


def test_fma_f64_adds_an_infinity_to_a_product_that_is_too_large_but_finite():
    lanes = [1e300, -1e300, 1e300, np.inf], [1e300, 1e300, 1e300, 1e300], [-np.inf, np.inf, np.inf, -np.inf]
    bits = [np.array(lane).view(np.uint64) for lane in lanes]
    got = execute("fma.rn.f64 %d, %a, %b, %c;", "f64", ["f64"] * 3, bits).view(np.float64)
    np.testing.assert_array_equal(got, [-np.inf, np.inf, np.inf, np.nan])


def test_copysign_f64_gives_the_second_the_sign_of_the_first():
    lanes = [1.0, -1.0, -0.0, 0.0, -np.inf], [2.0, 3.0, np.inf, -4.0, -0.0]
    a, b = (np.array(lane).view(np.uint64) for lane in lanes)
    got = execute("copysign.f64 %d, %a, %b;", "f64", ["f64"] * 2, [a, b]).view(np.float64)
    np.testing.assert_array_equal(got, [2.0, -3.0, -np.inf, 4.0, -0.0])
    assert np.signbit(got[4])


def _f16(bits: int) -> float:
    return struct.unpack("<e", struct.pack("<H", bits))[0]


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@QUICK
@given(f32_lanes, f32_lanes, f32_lanes)
def test_fma_of_16_bit_floats_is_correctly_rounded(kind, a, b, c):
    a, b, c = ([v & 0xFFFF for v in lane] for lane in (a, b, c))
    got = execute(f"fma.rn.{kind} %d, %a, %b, %c;", kind, [kind] * 3, [a, b, c]).tolist()
    value = _f16 if kind == "f16" else (lambda bits: f32(bits << 16))
    mantissa, least, most = (
        (11, -24, Fraction(65504)) if kind == "f16" else (8, -133, Fraction(255) * Fraction(2) ** 120)
    )
    for x, y, z, bits in zip(a, b, c, got, strict=True):
        u, v, w = value(x), value(y), value(z)
        if not all(map(math.isfinite, (u, v, w))):
            continue
        exact = Fraction(u) * Fraction(v) + Fraction(w)
        if exact == 0:
            assert value(bits) == 0
            continue
        rounded = round_fraction(exact, mantissa, least, most)
        want = (math.inf if exact > 0 else -math.inf) if rounded == "inf" else float(rounded)
        assert value(bits) == want, (hex(x), hex(y), hex(z), hex(bits))


@pytest.mark.parametrize("op", ["add", "sub", "mul"])
def test_pairs_of_halves_are_computed_apart(op):
    generator = np.random.default_rng(5)
    a, b = (generator.standard_normal(128).astype(np.float16) for _ in range(2))
    got = execute(f"{op}.f16x2 %d, %a, %b;", "b32", ["b32"] * 2, [a.view(np.uint32), b.view(np.uint32)]).view(
        np.float16
    )
    want = {"add": a + b, "sub": a - b, "mul": a * b}[op]
    assert (got == want).all()
