"""The sums of tensor cores against the rule spelled out in exact rational arithmetic, term by term."""

from __future__ import annotations

import numpy as np
import pytest
from tensor_oracle import oracle, patterns

from tilewright.emu.isa.tensor_sum import Factors, Rule, fp8_values, multiply_add, rule_for

FORMS = [
    ("f16", "f32", Rule(25, 16)), ("f16", "f16", Rule(25, 16)), ("bf16", "f32", Rule(25, 16)),
    ("tf32", "f32", Rule(25, 8)), ("e4m3", "f32", Rule(13, 32, kept=13)), ("e5m2", "f16", Rule(13, 32, kept=13)),
    ("f16", "f32", Rule(24, 8)), ("tf32", "f32", Rule(24, 4)), ("e5m2", "f32", Rule(25, 32)),
]  # fmt: skip


@pytest.mark.parametrize("how", ["near", "wide", "tiny", "any"])
@pytest.mark.parametrize(("kind", "c_kind", "rule"), FORMS, ids=str)
def test_sums_are_the_rules(kind, c_kind, rule, how):
    rng = np.random.default_rng(len(kind) + len(how))
    k = 32 if kind in ("e4m3", "e5m2") else 16 if kind != "tf32" else 8
    m, n, warps = 3, 4, 5
    a, b = patterns(rng, kind, (k, m, 1, warps), how), patterns(rng, kind, (k, 1, n, warps), how)
    c = patterns(rng, c_kind, (m, n, warps), how)
    c[0, 0] = 0
    if how == "tiny":  # so that products alone say which exponent is the largest
        c[1:] = 0
    out = multiply_add(Factors.of(a, kind), Factors.of(b, kind), c, rule)
    for i, j, w in np.ndindex(m, n, warps):
        expected = oracle(a[:, i, 0, w].tolist(), b[:, 0, j, w].tolist(), int(c[i, j, w]), kind, c_kind, rule)
        assert out[i, j, w] == expected, (a[:, i, 0, w], b[:, 0, j, w], c[i, j, w])


def sum_of(a: list[float], b: list[float], c: float) -> float:
    """Hopper's sum of fp16 products and C."""
    left, right = (Factors.of(np.array(x, np.float16).view(np.uint16)[:, None], "f16") for x in (a, b))
    return multiply_add(left, right, np.array([c], np.float32).view(np.uint32), Rule(25, 16)).view(np.float32)[0]


def test_cancelled_products_leave_what_lies_above_the_cut():
    assert sum_of([64, -64, 2.0**-7], [64, 64, 2.0**-6], 0) == 2.0**-13
    assert sum_of([64, -64, 2.0**-7], [64, 64, 2.0**-7], 0) == 0


def test_a_product_is_aligned_by_its_factors_exponents():
    """1.5 x 1.5 = 2.25 counts as 2^0, so that 2^-25 beside it is kept. C = 2.25 counts as 2^1, and it is lost."""
    assert sum_of([1.5, -1.5, 2.0**-12], [1.5, 1.5, 2.0**-13], 0) == 2.0**-25
    assert sum_of([1.5, 2.0**-12], [1.5, 2.0**-13], -2.25) == 0


def test_zeros_have_no_exponent():
    """C would lose bits if 0 x 32768 counted."""
    c = np.array([0x0269BB99], np.uint32).view(np.float32)[0]
    assert sum_of([0, 0], [32768, 0], float(c)) == c


@pytest.mark.parametrize(("exponent", "bits"), [(-158, 0), (-159, 1)])
def test_the_largest_exponent_of_a_step_is_at_least_minus_133(exponent, bits):
    """2^-149 - 2^-158 is cut to 0; 2^-159 is not seen, though it is within 25 bits of 2^-149."""
    factors = np.array([[2.0**-74, -(2.0**-79)], [2.0**-75, 2.0 ** (exponent + 79)]], np.float32).view(np.uint32)
    a, b = (Factors.of(words[:, None], "tf32") for words in factors)
    assert multiply_add(a, b, np.zeros(1, np.uint32), Rule(25, 8)) == [bits]


def test_hoppers_fp8_mma_is_two_products_of_fp16_and_a_rounded_addition():
    """As its assembler makes it: bytes 0 and 1 of each register first, from zero, and C joins by an fp32 addition."""
    rng = np.random.default_rng(3)
    rule = rule_for("mma", "e4m3", (9, 0))
    a, b = rng.integers(0, 127, (32, 50), dtype=np.uint8), rng.integers(0, 127, (32, 50), dtype=np.uint8)
    c = rng.standard_normal(50).astype(np.float32) * 1000
    first = np.arange(32) % 4 < 2
    halves = [fp8_values("e4m3").take(x).astype(np.float16).view(np.uint16) for x in (a, b)]
    total = np.zeros(50, np.uint32)
    for ks in (first, ~first):
        total = multiply_add(*(Factors.of(x[ks], "f16") for x in halves), total, Rule(25, 16))
    out = multiply_add(Factors.of(a, "e4m3"), Factors.of(b, "e4m3"), c.view(np.uint32), rule)
    np.testing.assert_array_equal(out.view(np.float32), c + total.view(np.float32))


def test_subnormal_e4m3_count_as_the_normal_fp16_that_hoppers_mma_makes_of_them():
    """2^-9 x 1.75 x 2^15 counts as 2^6, so that 2^-17 beside it is kept; it would be lost beside 2^-6 x 2^15."""
    rule = rule_for("mma", "e4m3", (9, 0))
    a, b = np.zeros((2, 16, 1), np.uint8)
    a[:2], b[:2] = 0x01, [[0x7B], [0x1C]]
    out = multiply_add(Factors.of(a, "e4m3"), Factors.of(b, "e5m2"), np.zeros(1, np.uint32), rule)
    assert out.view(np.float32) == [112 + 2.0**-17]


def test_fp8_patterns_have_the_values_that_the_formats_say():
    values = fp8_values("e4m3")
    assert values[0x7E] == 448
    assert values[0x01] == 2.0**-9
    assert np.isnan(values[[0x7F, 0xFF]]).all()
    values = fp8_values("e5m2")
    assert values[0x7B] == 57344
    assert values[0x7C] == np.inf
    assert np.isnan(values[0x7D])


@pytest.mark.parametrize(
    ("unit", "kind", "capability", "rule"),
    [
        ("mma", "f16", (8, 6), Rule(24, 8)),
        ("mma", "bf16", (9, 0), Rule(25, 16)),
        ("mma", "e4m3", (8, 9), Rule(13, 16, kept=13)),
        ("mma", "e5m2", (8, 6), None),
        ("mma", "e5m2", (12, 0), Rule(25, 32)),
        ("wgmma", "e5m2", (9, 0), Rule(13, 32, kept=13)),
    ],
)
def test_each_architecture_has_its_own_rule(unit, kind, capability, rule):
    assert rule_for(unit, kind, capability) == rule
