"""Integer instructions and conversions against Python integers and rationals."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from single_instruction import execute, f32, f32_lanes, f32_of_fraction, f64, f64_lanes, integer_lanes

QUICK = settings(max_examples=8, deadline=None)


def signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def as_type(value: int, kind: str) -> int:
    bits = int(kind[1:])
    return signed(value, bits) if kind[0] == "s" else value & ((1 << bits) - 1)


def check(line, out, ins, lanes, function):
    """`function` of the operands (as their types say) equals the result, modulo the width of the result."""
    got = execute(line, out, ins, lanes).tolist()
    mask = (1 << int(out[1:])) - 1
    for k, bits in enumerate(got):
        values = [as_type(lane[k], kind) for lane, kind in zip(lanes, ins, strict=True)]
        assert bits & mask == function(*values) & mask, (line, values, bits)


def quotient(a, b):
    if b == 0:
        return -1
    return abs(a) // abs(b) * (-1 if (a < 0) != (b < 0) else 1)


BINARY = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul.lo": lambda a, b: a * b,
    "min": min,
    "max": max,
    "div": quotient,
    "rem": lambda a, b: a if b == 0 else a - quotient(a, b) * b,
}


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("op", BINARY)
@QUICK
@given(st.data())
def test_binary(op, kind, data):
    bits = int(kind[1:])
    lanes = [data.draw(integer_lanes(bits)) for _ in range(2)]
    check(
        f"{op}.{kind} %d, %a, %b;", kind, [kind] * 2, [[as_type(v, kind) for v in lane] for lane in lanes], BINARY[op]
    )


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32", "u64", "s64"])
@QUICK
@given(st.data())
def test_multiplications(kind, data):
    bits = int(kind[1:])
    a, b, c = ([as_type(v, kind) for v in data.draw(integer_lanes(bits))] for _ in range(3))
    check(f"mul.hi.{kind} %d, %a, %b;", kind, [kind] * 2, [a, b], lambda x, y: (x * y) >> bits)
    check(f"mad.lo.{kind} %d, %a, %b, %c;", kind, [kind] * 3, [a, b, c], lambda x, y, z: x * y + z)
    if bits < 64:
        wide = f"{kind[0]}{2 * bits}"
        check(f"mul.wide.{kind} %d, %a, %b;", wide, [kind] * 2, [a, b], lambda x, y: x * y)
        check(
            f"mad.wide.{kind} %d, %a, %b, %c;", wide, [kind, kind, wide], [a, b, [v * 77 for v in c]],
            lambda x, y, z: x * y + z,
        )  # fmt: skip


@pytest.mark.parametrize("bits", [16, 32, 64])
@QUICK
@given(st.data())
def test_bits_and_shifts(bits, data):
    a, b = (data.draw(integer_lanes(bits)) for _ in range(2))
    by = [v % 80 for v in data.draw(integer_lanes(8))]
    kind, number, sign = f"b{bits}", f"u{bits}", f"s{bits}"
    for op, function in {"and": lambda x, y: x & y, "or": lambda x, y: x | y, "xor": lambda x, y: x ^ y}.items():
        check(f"{op}.{kind} %d, %a, %b;", number, [number] * 2, [a, b], function)
    check(f"not.{kind} %d, %a;", number, [number], [a], lambda x: ~x)
    check(f"shl.{kind} %d, %a, %b;", number, [number, "u32"], [a, by], lambda x, n: x << n)
    check(f"shr.{number} %d, %a, %b;", number, [number, "u32"], [a, by], lambda x, n: x >> n)
    check(f"shr.{sign} %d, %a, %b;", sign, [sign, "u32"], [[signed(v, bits) for v in a], by], lambda x, n: x >> n)
    check(f"shr.{sign} %d, %a, 5;", sign, [sign], [[signed(v, bits) for v in a]], lambda x: x >> 5)


@pytest.mark.parametrize("bits", [32, 64])
@QUICK
@given(st.data())
def test_counting_and_fields(bits, data):
    a, b = (data.draw(integer_lanes(bits)) for _ in range(2))
    position, length = ([v % 70 for v in data.draw(integer_lanes(8))] for _ in range(2))
    number, sign = f"u{bits}", f"s{bits}"
    check(f"popc.b{bits} %d, %a;", "u32", [number], [a], lambda x: bin(x).count("1"))
    check(f"clz.b{bits} %d, %a;", "u32", [number], [a], lambda x: bits - x.bit_length())
    check(f"bfind.{number} %d, %a;", "u32", [number], [a], lambda x: x.bit_length() - 1)
    check(
        f"bfind.shiftamt.{sign} %d, %a;", "u32", [sign], [[signed(v, bits) for v in a]],
        lambda x: -1 if x in (0, -1) else bits - (x if x >= 0 else ~x).bit_length(),
    )  # fmt: skip
    check(f"brev.b{bits} %d, %a;", number, [number], [a], lambda x: int(f"{x:0{bits}b}"[::-1], 2))

    def extract(x, pos, n, sign):
        word = x & ((1 << bits) - 1)
        out = 0
        top = min(pos + n - 1, bits - 1)
        fill = (word >> top & 1) if sign and n else 0
        for k in range(bits):
            inside = k < n and pos + k < bits
            out |= ((word >> (pos + k) & 1) if inside else fill) << k
        return out

    check(
        f"bfe.{number} %d, %a, %b, %c;", number, [number, "u32", "u32"], [a, position, length],
        lambda x, p, n: extract(x, p, n, False),
    )  # fmt: skip
    check(
        f"bfe.{sign} %d, %a, %b, %c;", sign, [sign, "u32", "u32"], [[signed(v, bits) for v in a], position, length],
        lambda x, p, n: extract(x, p, n, True),
    )  # fmt: skip

    def insert(x, y, pos, n):
        for k in range(n):
            if k < bits and pos + k < bits:
                y = y & ~(1 << (pos + k)) | (x >> k & 1) << (pos + k)
        return y

    check(
        f"bfi.b{bits} %d, %a, %b, %c, %e;", number, [number, number, "u32", "u32"], [a, b, position, length], insert
    )  # fmt: skip


@pytest.mark.parametrize("table", [0x00, 0x96, 0xE8, 0xCA, 0x2D, 0xFF])
@QUICK
@given(integer_lanes(32), integer_lanes(32), integer_lanes(32))
def test_lop3(table, a, b, c):
    def function(x, y, z):
        return sum((table >> ((x >> k & 1) << 2 | (y >> k & 1) << 1 | (z >> k & 1)) & 1) << k for k in range(32))

    check(f"lop3.b32 %d, %a, %b, %c, {table};", "u32", ["u32"] * 3, [a, b, c], function)


@QUICK
@given(integer_lanes(32), integer_lanes(32), integer_lanes(32))
def test_byte_permute_funnel_shift_and_dot_products(a, b, c):
    def permute(x, y, selector):
        both, out = y << 32 | x, 0
        for k in range(4):
            nibble = selector >> 4 * k & 15
            byte = both >> 8 * (nibble & 7) & 255
            out |= (255 * (byte >> 7) if nibble & 8 else byte) << 8 * k
        return out

    check("prmt.b32 %d, %a, %b, %c;", "u32", ["u32"] * 3, [a, b, c], permute)
    both = lambda x, y: y << 32 | x  # noqa: E731
    check("shf.l.wrap.b32 %d, %a, %b, %c;", "u32", ["u32"] * 3, [a, b, c], lambda x, y, n: both(x, y) << (n & 31) >> 32)
    check("shf.r.clamp.b32 %d, %a, %b, %c;", "u32", ["u32"] * 3, [a, b, c], lambda x, y, n: both(x, y) >> min(n, 32))

    def dot(x, y, z):
        return z + sum(signed(x >> 8 * k, 8) * (y >> 8 * k & 255) for k in range(4))

    check("dp4a.s32.u32 %d, %a, %b, %c;", "u32", ["u32"] * 3, [a, b, c], dot)


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64", "u16", "s16"])
@pytest.mark.parametrize("op", ["eq", "ne", "lt", "le", "gt", "ge"])
@settings(max_examples=3, deadline=None)
@given(st.data())
def test_setp(op, kind, data):
    a, b = ([as_type(v, kind) for v in data.draw(integer_lanes(int(kind[1:])))] for _ in range(2))
    compare = {
        "eq": int.__eq__,
        "ne": int.__ne__,
        "lt": int.__lt__,
        "le": int.__le__,
        "gt": int.__gt__,
        "ge": int.__ge__,
    }
    check(f"setp.{op}.{kind} %p1, %a, %b; selp.b32 %d, 1, 0, %p1;", "u32", [kind] * 2, [a, b], compare[op])
    check(
        f"setp.{op}.{kind} %p1, %a, %b; setp.{op}.and.{kind} %p2|%p3, %b, %a, !%p1; "
        "selp.u32 %r1, 1, 0, %p2; selp.u32 %r2, 2, 0, %p3; or.b32 %d, %r1, %r2;",
        "u32", [kind] * 2, [a, b],
        lambda x, y: 0 if compare[op](x, y) else (1 if compare[op](y, x) else 2),
    )  # fmt: skip


INTEGERS = ["u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"]


@pytest.mark.parametrize("source", INTEGERS)
@settings(max_examples=2, deadline=None)
@given(st.data())
def test_cvt_between_integers(source, data):
    a = [as_type(v, source) for v in data.draw(integer_lanes(int(source[1:])))]
    for to in INTEGERS:
        check(f"cvt.{to}.{source} %d, %a;", to, [source], [a], lambda x: x)
        bits = int(to[1:])
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if to[0] == "s" else (0, (1 << bits) - 1)
        check(f"cvt.sat.{to}.{source} %d, %a;", to, [source], [a], lambda x, lo=low, hi=high: min(max(x, lo), hi))


@pytest.mark.parametrize("source", ["u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@QUICK
@given(st.data())
def test_cvt_integer_to_f32(mode, source, data):
    a = [as_type(v, source) for v in data.draw(integer_lanes(int(source[1:])))]
    got = execute(f"cvt.{mode}.f32.{source} %d, %a;", "f32", [source], [a]).tolist()
    assert got == [f32_of_fraction(Fraction(v), False, mode) for v in a]


@pytest.mark.parametrize("to", ["s32", "u32", "s64", "u64", "s16", "u8"])
@pytest.mark.parametrize("mode", ["rni", "rzi", "rmi", "rpi"])
@QUICK
@given(f32_lanes)
def test_cvt_f32_to_integer(mode, to, a):
    got = execute(f"cvt.{mode}.{to}.f32 %d, %a;", to, ["f32"], [a]).tolist()
    bits = int(to[1:])
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if to[0] == "s" else (0, (1 << bits) - 1)
    whole = {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}[mode]
    for x, v in zip(map(f32, a), got, strict=True):
        if math.isnan(x):
            want = 0 if bits < 64 else (low if to[0] == "s" else 1 << 63)
        elif math.isinf(x):
            want = high if x > 0 else low
        else:
            want = min(max(whole(x), low), high)
        assert v == want, (x, v)


@QUICK
@given(f64_lanes, f32_lanes)
def test_cvt_between_floats(a, b):
    for mode in ("rn", "rz", "rm", "rp"):
        got = execute(f"cvt.{mode}.f32.f64 %d, %a;", "f32", ["f64"], [a]).tolist()
        for bits, x in zip(got, map(f64, a), strict=True):
            if math.isnan(x):
                assert bits == 0x7FFFFFFF
            elif math.isinf(x):
                assert f32(bits) == x
            else:
                assert bits == f32_of_fraction(Fraction(x), math.copysign(1, x) < 0, mode)
    wide = execute("cvt.f64.f32 %d, %a;", "f64", ["f32"], [b]).tolist()
    assert all(f64(w) == f32(x) or math.isnan(f32(x)) for w, x in zip(wide, b, strict=True))
    half = execute("cvt.rn.f16.f32 %d, %a;", "f16", ["f32"], [b]).view(np.float16)
    with np.errstate(all="ignore"):
        want = np.array(b, np.uint32).view(np.float32).astype(np.float16)
    assert ((half == want) | (np.isnan(half) & np.isnan(want))).all()
    brain = execute("cvt.rn.bf16.f32 %d, %a;", "bf16", ["f32"], [b]).tolist()
    for x, bits in zip(b, brain, strict=True):
        if math.isnan(f32(x)):
            assert bits == 0x7FFF
        else:  # ties to even on the upper half; the largest numbers round to infinity by the carry
            low = x & 0xFFFF
            assert bits == (x >> 16) + (low > 0x8000 or (low == 0x8000 and x >> 16 & 1))


@QUICK
@given(f32_lanes)
def test_cvt_f32_to_a_whole_f32_and_saturated(a):
    for mode, whole in {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}.items():
        got = execute(f"cvt.{mode}.f32.f32 %d, %a;", "f32", ["f32"], [a]).tolist()
        for x, bits in zip(map(f32, a), got, strict=True):
            if math.isfinite(x):
                assert f32(bits) == whole(x)
                assert math.copysign(1, f32(bits)) == math.copysign(1, x)
    got = execute("cvt.sat.f32.f32 %d, %a;", "f32", ["f32"], [a]).tolist()
    for x, bits in zip(map(f32, a), got, strict=True):
        assert f32(bits) == (0 if math.isnan(x) else min(max(x, 0), 1))
