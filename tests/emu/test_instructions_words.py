"""Carry chains and arithmetic on parts of words, against Python's integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from single_instruction import LANES, execute, f64_lanes, integer_lanes

from tilewright import emulate


def words(values: np.ndarray, bits: int) -> list[int]:
    return [int(v) & ((1 << bits) - 1) for v in values]


@pytest.mark.parametrize("bits", [32, 64])
@settings(max_examples=4, deadline=None)
@given(a=integer_lanes(64), b=integer_lanes(64), c=integer_lanes(64), e=integer_lanes(64))
def test_carries_and_borrows_go_from_word_to_word(bits, a, b, c, e):
    kind, register = f"u{bits}", "%r" if bits == 32 else "%rd"
    low = 1 << bits
    given_ = [[v % low for v in values] for values in (a, b, c, e)]
    arrays = [np.array(v, f"u{bits // 8}") for v in given_]
    for op, want in (("add", lambda x, y: x + y), ("sub", lambda x, y: x - y)):
        line = f"{op}.cc.{kind} {register}1, %a, %c; {op}c.cc.{kind} %d, %b, %e;"
        got = execute(line, f"b{bits}", [f"b{bits}"] * 4, arrays)
        assert words(got, bits) == [
            want(a + (b << bits), c + (e << bits)) >> bits & (low - 1) for a, b, c, e in zip(*given_, strict=True)
        ]
        line = f"{op}.cc.{kind} {register}1, %a, %c; {op}c.cc.{kind} {register}2, %b, %e; {op}c.{kind} %d, 0, 0;"
        got = execute(line, f"b{bits}", [f"b{bits}"] * 4, arrays)
        assert words(got, bits) == [
            want(a + (b << bits), c + (e << bits)) >> 2 * bits & (low - 1) for a, b, c, e in zip(*given_, strict=True)
        ]


@pytest.mark.parametrize("bits", [32, 64])
@settings(max_examples=4, deadline=None)
@given(a=integer_lanes(64), b=integer_lanes(64))
def test_additions_and_subtractions_share_one_flag(bits, a, b):
    """As on the GPU: a subtraction sets it where nothing is borrowed, and subtracts one more where it is not set."""
    kind, register, low = f"u{bits}", "%r" if bits == 32 else "%rd", 1 << bits
    a, b = [v % low for v in a], [v % low for v in b]
    arrays = [np.array(v, f"u{bits // 8}") for v in (a, b)]
    got = execute(f"sub.cc.{kind} {register}1, %a, %b; addc.{kind} %d, 0, 0;", f"b{bits}", [f"b{bits}"] * 2, arrays)
    assert got.tolist() == [x >= y for x, y in zip(a, b, strict=True)]
    got = execute(f"add.cc.{kind} {register}1, %a, %b; subc.{kind} %d, 1, 0;", f"b{bits}", [f"b{bits}"] * 2, arrays)
    assert got.tolist() == [x + y >= low for x, y in zip(a, b, strict=True)]


def test_quotients_and_remainders_of_128_bits():
    source = """__global__ void k(const unsigned long long *a, unsigned long long *out) {
        int t = threadIdx.x;
        unsigned __int128 x = (unsigned __int128)a[4 * t] << 64 | a[4 * t + 1];
        unsigned __int128 y = (unsigned __int128)a[4 * t + 2] << 64 | a[4 * t + 3];
        unsigned __int128 q = x / y, r = x % y;
        out[4 * t] = q >> 64; out[4 * t + 1] = q; out[4 * t + 2] = r >> 64; out[4 * t + 3] = r;
    }"""
    random = np.random.default_rng(3)
    a = random.integers(0, 2**64, (64, 4), np.uint64, endpoint=False)
    a[1::4, 2] = 0
    a[2::4, 2] >>= np.uint64(40)
    a[3::4, 0] = 0
    out = emulate(source, "k", 1, 64, [a, np.zeros_like(a)]).arrays[1]
    for (x1, x0, y1, y0), got in zip(a.tolist(), out.tolist(), strict=True):
        q, r = divmod(x1 << 64 | x0, y1 << 64 | y0)
        assert got == [q >> 64, q % 2**64, r >> 64, r % 2**64]


@settings(max_examples=4, deadline=None)
@given(a=integer_lanes(32), b=integer_lanes(5), c=integer_lanes(6))
def test_the_nth_set_bit(a, b, c):
    def nth(mask: int, base: int, n: int) -> int:
        if n == 0:
            return base if mask >> base & 1 else 0xFFFFFFFF
        places = range(base, 32) if n > 0 else range(base, -1, -1)
        ones = [place for place in places if mask >> place & 1]
        return ones[abs(n) - 1] if abs(n) <= len(ones) else 0xFFFFFFFF

    offsets = [v - 20 for v in c]
    arrays = [np.array(a, np.uint32), np.array(b, np.uint32), np.array(offsets, np.int32).view(np.uint32)]
    got = execute("fns.b32 %d, %a, %b, %c;", "b32", ["b32"] * 3, arrays)
    assert got.tolist() == [nth(*values) for values in zip(a, b, offsets, strict=True)]


@pytest.mark.parametrize(("part", "shift"), [("lo", 0), ("hi", 32)])
@settings(max_examples=4, deadline=None)
@given(a=integer_lanes(32), b=integer_lanes(32), c=integer_lanes(32))
def test_multiply_add_with_carry(part, shift, a, b, c):
    line = f"mad.{part}.cc.u32 %r1, %a, %b, %c; madc.{part}.u32 %d, %a, %b, %c;"
    got = execute(line, "b32", ["b32"] * 3, [np.array(v, np.uint32) for v in (a, b, c)])
    halves = [(x * y >> shift) % 2**32 for x, y in zip(a, b, strict=True)]
    assert words(got, 32) == [(h + z + (h + z >> 32)) % 2**32 for h, z in zip(halves, c, strict=True)]


def test_the_flag_of_a_lane_is_its_own_under_a_guard():
    a = np.arange(LANES, dtype=np.uint32)
    line = """setp.lt.u32 %p1, %a, 40; mov.u32 %r1, 0xffffffff; add.cc.u32 %r2, %a, 0;
              @%p1 add.cc.u32 %r2, %r1, 1; addc.u32 %d, %a, 100;"""
    got = execute(line, "b32", ["b32"], [a])
    assert got.tolist() == [t + 100 + (t < 40) for t in range(LANES)]


def parts(word: int, count: int, signed: bool) -> list[int]:
    bits = 32 // count
    values = [word >> bits * k & (1 << bits) - 1 for k in range(count)]
    return [v - (1 << bits) if signed and v >> bits - 1 else v for v in values]


OPERATIONS = {
    "vadd": lambda x, y: x + y, "vsub": lambda x, y: x - y, "vabsdiff": lambda x, y: abs(x - y),
    "vmin": min, "vmax": max, "vavrg": lambda x, y: (x + y + (x + y >= 0)) >> 1,
}  # fmt: skip


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("op", OPERATIONS)
@pytest.mark.parametrize("kind", ["u32", "s32"])
@settings(max_examples=2, deadline=None)
@given(a=integer_lanes(32), b=integer_lanes(32), c=integer_lanes(32))
def test_video_instructions_take_each_part_apart(op, count, kind, a, b, c):
    signed, bits = kind == "s32", 32 // count
    least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    arrays = [np.array(v, np.uint32) for v in (a, b, c)]
    each = [
        [OPERATIONS[op](x, y) for x, y in zip(parts(v, count, signed), parts(w, count, signed), strict=True)]
        for v, w in zip(a, b, strict=True)
    ]
    for suffix, clamp in (("", False), (".sat", True)):
        got = execute(f"{op}{count}.{kind}.{kind}.{kind}{suffix} %d, %a, %b, %c;", "b32", ["b32"] * 3, arrays)
        for k, values in enumerate(each):
            values = [min(max(v, least), most) for v in values] if clamp else values
            assert parts(int(got[k]), count, False) == [v % (1 << bits) for v in values]
    got = execute(f"{op}{count}.{kind}.{kind}.{kind}.add %d, %a, %b, %c;", "b32", ["b32"] * 3, arrays)
    assert words(got, 32) == [(sum(values) + z) % 2**32 for values, z in zip(each, c, strict=True)]


@pytest.mark.parametrize("op", ["add", "min", "max"])
@pytest.mark.parametrize("kind", ["u16x2", "s16x2"])
@settings(max_examples=3, deadline=None)
@given(a=integer_lanes(32), b=integer_lanes(32))
def test_halves_of_a_word(op, kind, a, b):
    got = execute(f"{op}.{kind} %d, %a, %b;", "b32", ["b32"] * 2, [np.array(v, np.uint32) for v in (a, b)])
    function = OPERATIONS["v" + op]
    for k, (v, w) in enumerate(zip(a, b, strict=True)):
        want = [
            function(x, y) % 2**16
            for x, y in zip(parts(v, 2, kind[0] == "s"), parts(w, 2, kind[0] == "s"), strict=True)
        ]
        assert parts(int(got[k]), 2, False) == want


@pytest.mark.parametrize("op", ["min", "max"])
@settings(max_examples=3, deadline=None)
@given(a=integer_lanes(32), b=integer_lanes(32))
def test_relu_takes_what_is_below_zero_to_zero(op, a, b):
    sources = [np.array(v, np.uint32) for v in (a, b)]
    function = OPERATIONS["v" + op]
    for kind, count in (("s16x2", 2), ("s32", 1)):
        got = execute(f"{op}.{kind}.relu %d, %a, %b;", "b32", ["b32"] * 2, sources)
        for word, v, w in zip(got.tolist(), a, b, strict=True):
            pairs = zip(parts(v, count, True), parts(w, count, True), strict=True)
            assert parts(word, count, True) == [max(function(x, y), 0) for x, y in pairs]


@settings(max_examples=4, deadline=None)
@given(a=f64_lanes)
def test_seeds_of_double_precision_divisions_are_close_and_have_no_low_bits(a):
    values = np.array(a, np.uint64).view(np.float64)
    for op, exact in (("rcp", lambda x: 1 / x), ("rsqrt", lambda x: 1 / np.sqrt(x))):
        got = execute(f"{op}.approx.ftz.f64 %d, %a;", "f64", ["f64"], [values.view(np.uint64)]).view(np.float64)
        assert not (got.view(np.uint64) & np.uint64(0xFFFFFFFF))[np.isfinite(got)].any()
        with np.errstate(all="ignore"):
            want = exact(values)
        normal = np.isfinite(want) & (np.abs(want) > 1e-300) & (np.abs(values) > 1e-300)
        np.testing.assert_allclose(got[normal], want[normal], rtol=2e-6)
        assert (np.isnan(got) == np.isnan(want)).all()
