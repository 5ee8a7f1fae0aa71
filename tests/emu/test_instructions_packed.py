"""Arithmetic on pairs of 16-bit floats: each half is what the scalar form gives, and that is correctly rounded."""

from __future__ import annotations

import struct
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from single_instruction import execute, f32, round_fraction

KINDS = ["f16", "bf16"]
FORMAT = {"f16": (11, -24, Fraction(65504)), "bf16": (8, -133, Fraction(255) * Fraction(2) ** 120)}
# zeros, least and largest subnormal, one, largest, infinities, NaN; of fp16 and of bf16
EDGES = [
    0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x007F, 0x0080, 0x3C00, 0xBC00, 0x3F80, 0xBF80, 0x7BFF, 0xFBFF,
    0x7F7F, 0xFF7F, 0x7C00, 0xFC00, 0x7F80, 0xFF80, 0x7E00, 0x7FC0, 0x7FFF,
]  # fmt: skip


def value(bits: int, kind: str) -> float:
    return struct.unpack("<e", struct.pack("<H", bits))[0] if kind == "f16" else f32(bits << 16)


def halves(seed: int, count: int = 128) -> np.ndarray:
    """Random bit patterns, edges among them: uint16 [count]."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2**16, count).astype(np.uint16)
    bits[:: len(bits) // len(EDGES)][: len(EDGES)] = EDGES
    return rng.permutation(bits)


def packed(line: str, kind: str, sources: list[np.ndarray]) -> np.ndarray:
    """The halves of `line` on pairs: `{}` in it stands for the type."""
    words = [source.view(np.uint32) for source in sources]
    return execute(line.format(kind + "x2"), "b32", ["b32"] * len(words), words).view(np.uint16)


def scalar(line: str, kind: str, sources: list[np.ndarray]) -> np.ndarray:
    return execute(line.format(kind), kind, [kind] * len(sources), sources)


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.tolist() == b.tolist()


BINARY = ["add.{}", "add.rn.{}", "sub.{}", "mul.{}", "min.{}", "max.{}", "min.NaN.{}", "max.NaN.{}"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", [*BINARY, "fma.rn.{}", "fma.rn.relu.{}", "neg.{}", "abs.{}", "ex2.approx.ftz.{}"])
def test_each_half_of_a_pair_is_the_scalar_result(form, kind):
    count = 3 if form.startswith("fma") else 2 if form in BINARY else 1
    if kind == "f16":
        form = form.replace("approx.ftz", "approx")
    line = f"{form} %d, {', '.join('%' + name for name in 'abc'[:count])};"
    sources = [halves(seed) for seed in range(count)]
    assert same(packed(line, kind, sources), scalar(line, kind, sources))


def exact(function: Callable[..., Fraction], kind: str, *bits: int) -> float | None:
    """The correctly rounded result; None where an operand is no number or the result is zero."""
    values = [value(b, kind) for b in bits]
    if not np.isfinite(values).all() or not (result := function(*map(Fraction, values))):
        return None
    rounded = round_fraction(result, *FORMAT[kind])
    return (np.inf if result > 0 else -np.inf) if rounded == "inf" else float(rounded)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("line", "function"),
    [
        ("add.{} %d, %a, %b;", lambda a, b: a + b),
        ("sub.{} %d, %a, %b;", lambda a, b: a - b),
        ("mul.{} %d, %a, %b;", lambda a, b: a * b),
        ("fma.rn.{} %d, %a, %b, %c;", lambda a, b, c: a * b + c),
        ("fma.rn.relu.{} %d, %a, %b, %c;", lambda a, b, c: max(a * b + c, Fraction(0))),
    ],
    ids=["add", "sub", "mul", "fma", "fma.relu"],
)
def test_pairs_are_rounded_once(line, function, kind):
    sources = [halves(seed) for seed in range(10, 13 if "fma" in line else 12)]
    got = packed(line, kind, sources)
    judged = 0
    for bits, *operands in zip(got.tolist(), *(source.tolist() for source in sources), strict=True):
        want = exact(function, kind, *operands)
        if want is not None:
            judged += 1
            assert value(bits, kind) == want, [hex(x) for x in (*operands, bits)]
    assert judged > 30


@pytest.mark.parametrize("kind", KINDS)
def test_relu_gives_zero_for_what_is_negative_and_keeps_nan(kind):
    one, minus = (0x3C00, 0xBC00) if kind == "f16" else (0x3F80, 0xBF80)
    a = np.array([one, minus, 0x7FFF, 0x8000], np.uint16)
    ones, zeros = np.full(4, one, np.uint16), np.full(4, 0x8000, np.uint16)
    assert packed("fma.rn.relu.{} %d, %a, %b, %c;", kind, [a, ones, zeros]).tolist() == [one, 0, 0x7FFF, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_extremes_order_zeros_and_treat_nan_as_asked(kind):
    one = 0x3C00 if kind == "f16" else 0x3F80
    a = np.array([0x8000, one, 0x7FFF, 0x7FFF], np.uint16)
    b = np.array([0x0000, 0x7FFF, one, 0x7FFF], np.uint16)
    assert packed("max.{} %d, %a, %b;", kind, [a, b]).tolist() == [0x0000, one, one, 0x7FFF]
    assert packed("min.{} %d, %a, %b;", kind, [a, b]).tolist() == [0x8000, one, one, 0x7FFF]
    assert packed("max.NaN.{} %d, %a, %b;", kind, [a, b]).tolist() == [0x0000, 0x7FFF, 0x7FFF, 0x7FFF]


@pytest.mark.parametrize("kind", KINDS)
def test_extremes_of_magnitudes_have_the_product_of_the_signs(kind):
    one, two = (0x3C00, 0x4000) if kind == "f16" else (0x3F80, 0x4000)
    a = np.array([one, one | 0x8000, two | 0x8000, 0x7FFF], np.uint16)
    b = np.array([two, two | 0x8000, one, one | 0x8000], np.uint16)
    most = packed("max.xorsign.abs.{} %d, %a, %b;", kind, [a, b])
    assert (most & 0x7FFF).tolist() == [two, two, two, one]
    assert (most[:3] & 0x8000).tolist() == [0, 0, 0x8000]
    assert (packed("min.xorsign.abs.{} %d, %a, %b;", kind, [a, b])[:3] & 0x7FFF).tolist() == [one] * 3


@pytest.mark.parametrize("kind", KINDS)
def test_two_fp32_values_become_a_pair_the_first_on_top(kind):
    rng = np.random.default_rng(4)
    high, low = (rng.standard_normal(64).astype(np.float32) for _ in range(2))
    line = f"cvt.rn.{kind}x2.f32 %d, %a, %b;"
    got = execute(line, "b32", ["f32"] * 2, [high.view(np.uint32), low.view(np.uint32)]).view(np.uint16).reshape(-1, 2)
    for column, source in ((0, low), (1, high)):
        wanted = [round_fraction(Fraction(float(x)), *FORMAT[kind]) for x in source]
        assert [value(bits, kind) for bits in got[:, column].tolist()] == [float(x) for x in wanted]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("op", "holds"), [("gt", np.greater), ("le", np.less_equal), ("neu", np.not_equal)])
def test_comparisons_of_pairs_give_one_or_all_bits(kind, op, holds):
    a, b = halves(20), halves(21)
    b[::3] = a[::3]
    want = holds(*([value(bits, kind) for bits in source.tolist()] for source in (a, b)))
    one = 0x3C00 if kind == "f16" else 0x3F80
    as_numbers = packed(f"set.{op}.{kind}x2.{{}} %d, %a, %b;", kind, [a, b])
    assert as_numbers.tolist() == np.where(want, one, 0).tolist()
    as_bits = packed(f"set.{op}.u32.{{}} %d, %a, %b;", kind, [a, b])
    assert as_bits.tolist() == np.where(want, 0xFFFF, 0).tolist()
