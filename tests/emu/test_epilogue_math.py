"""The functions of epilogues against float64: every 16-bit input, float32 inputs of every size, infinities, NaN."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import pytest
from epilogue_cases import ByNumpy, each_by_kernel

from tilewright import epilogue as ep
from tilewright.epilogue.expression import trace
from tilewright.lab.numbers import from_stored

NAMES = ("exp", "exp2", "log", "sqrt", "rsqrt", "tanh", "erf", "sigmoid", "silu", "relu", "gelu", "gelu_tanh")
FLUSHED = 1.2e-36
"""Below this sigmoid, silu and gelu_tanh may give 0, and exp for results of 16 bits below 2^-126."""


@lru_cache
def inputs() -> np.ndarray:
    """Every bfloat16, every float16, and as many float32 of random bits: 196608 values."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    wide = np.random.default_rng(4).integers(0, 1 << 32, 1 << 16, dtype=np.uint32)
    values = [from_stored(bits, "bf16"), bits.view(np.float16).astype(np.float32), wide.view(np.float32)]
    all_of_them = np.concatenate(values)
    all_of_them[np.isnan(all_of_them)] = np.nan  # of one payload: others warn in conversions
    return all_of_them


@lru_cache
def by_kernel(brief: bool) -> dict[str, np.ndarray]:
    """Each function of `inputs`, by the statements that a trace of it becomes. `brief`: as for results of 16 bits."""
    return each_by_kernel({name: trace(getattr(ep, name), {}) for name in NAMES}, inputs(), brief)


@lru_cache
def exact(name: str) -> np.ndarray:
    """In float64. gelu and gelu_tanh in forms that cancel nothing where x is far below 0."""
    with np.errstate(all="ignore"):
        x = inputs().astype(np.float64)
        if name == "gelu":
            return x / 2 * np.vectorize(math.erfc)(-x / math.sqrt(2))
        if name == "gelu_tanh":
            return x * ByNumpy.sigmoid(2 * argument_of_tanh(x))
        return getattr(ByNumpy, name)(x)


def argument_of_tanh(x: np.ndarray) -> np.ndarray:
    return math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)


def spacing(values: np.ndarray) -> np.ndarray:
    """Of float32 at each value: what one ulp is."""
    return np.ldexp(1.0, np.maximum(np.frexp(values)[1], -125) - 24)


def assert_within(name: str, brief: bool, allowed: np.ndarray) -> None:
    """Special values are exactly right; all others are within `allowed`, absolute, and 0 below FLUSHED."""
    out, wanted, x = by_kernel(brief)[name].astype(np.float64), exact(name), inputs()
    largest = float(np.finfo(np.float32).max)
    rounded = np.where(np.abs(wanted) > largest, np.copysign(np.inf, wanted), wanted)
    special = ~np.isfinite(rounded)
    near_overflow = np.abs(wanted) > 0.999 * largest  # may round to infinity, or not yet
    judged = special & ~near_overflow | np.isinf(wanted) | np.isnan(wanted)
    wrong = judged & ~((out == rounded) | (np.isnan(out) & np.isnan(rounded)))
    assert not wrong.any(), (name, x[wrong][:5], out[wrong][:5], rounded[wrong][:5])
    finite = ~special & ~near_overflow
    with np.errstate(invalid="ignore"):
        off = finite & ~(np.abs(out - wanted) <= allowed)
    assert not off.any(), (name, x[off][:5], out[off][:5], wanted[off][:5])


ULPS = {"exp": 2, "exp2": 2, "log": 1, "sqrt": 0.5, "rsqrt": 2, "tanh": 2, "erf": 2, "sigmoid": 4, "silu": 5, "relu": 0}
FLUSHES = ("sigmoid", "silu", "gelu_tanh")


@pytest.mark.parametrize("name", NAMES)
def test_float32_results_are_as_exact_as_told(name):
    wanted, x = exact(name), inputs().astype(np.float64)
    with np.errstate(all="ignore"):
        if name == "gelu":
            allowed = 2.0**-22 * np.abs(x) + 2.0**-149
        elif name == "gelu_tanh":
            allowed = (8 + 4 * np.abs(argument_of_tanh(x))) * spacing(wanted)
        else:
            allowed = ULPS[name] * spacing(wanted) * (1 + 2.0**-20)
        allowed = allowed + (FLUSHED if name in FLUSHES else 0)
        assert_within(name, False, allowed)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_rounded_to_16_bits_is_off_by_a_part_of_that_rounding(name):
    """2^-16 of the result, where rounding is 2^-9 (bfloat16) or 2^-12 (float16); gelu by 2^-22 |x| as in float32."""
    wanted, x = exact(name), inputs().astype(np.float64)
    with np.errstate(all="ignore"):
        allowed = 2.0**-16 * np.abs(wanted) + 2.0**-149 + (FLUSHED if name in (*FLUSHES, "exp") else 0)
        assert_within(name, True, allowed + 2.0**-22 * np.abs(x) if name == "gelu" else allowed)


def test_the_brief_forms_are_other_forms():
    """Else the two tests above would be one."""
    for name in ("exp", "sigmoid", "silu", "gelu_tanh"):
        assert (by_kernel(True)[name] != by_kernel(False)[name]).any()


@pytest.mark.parametrize("base", [2, 0.25])
def test_a_power_with_a_constant_base_is_a_power_of_two(base):
    """2 ** x keeps exp2's bound at every size of x: by e it would be 26 ulp off at 120."""
    x = np.linspace(-62, 63, 4096, dtype=np.float32) * (2 if base == 2 else 1)
    out = each_by_kernel({"power": trace(lambda s: base**s, {})}, x, False)["power"]
    wanted = np.power(float(base), x.astype(np.float64))
    assert (np.abs(out - wanted) <= 2 * spacing(wanted) * (1 + 2.0**-20)).all()
