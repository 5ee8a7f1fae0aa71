"""Arithmetic in fp64, correctly rounded to nearest even."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from ..machine import Machine
from .float32 import least_or_greatest, round_to_odd
from .registry import Compute, elementwise, executes, simply

_SPLIT = np.float64(2**27 + 1)
_D3 = ("f64", "f64", "f64")

for _name, _function, _pipe in (
    ("add", np.add, "dadd"), ("sub", np.subtract, "dadd"), ("mul", np.multiply, "dmul"),
):  # fmt: skip
    executes(f"{_name}{{.rn|}}.f64", kind="fp64", flops=(_pipe, 1))(elementwise(simply(_function), types=_D3))
executes("div.rn.f64", kind="fp64", flops=("ddiv", 1))(elementwise(simply(np.divide), types=_D3))
executes("sqrt.rn.f64", kind="fp64", flops=("dspecial", 1))(elementwise(simply(np.sqrt, 1), types=("f64", "f64")))
executes("rcp.rn.f64", kind="fp64", flops=("dspecial", 1))(
    elementwise(simply(lambda a, out: np.divide(1.0, a, out=out), 1), types=("f64", "f64"))
)


@executes("{op:rcp|rsqrt}.approx.ftz.f64", kind="fp64", flops=("dspecial", 1))
@elementwise(types=("f64", "f64"))
def coarse(machine: Machine, fields: dict[str, str]) -> Compute:
    """The seed of a division or root: of the upper 32 bits, and with the lower 32 bits of the result zero."""
    upper = np.uint64(0xFFFFFFFF00000000)
    tiny = np.finfo(np.float64).tiny

    def compute(out: np.ndarray, a: np.ndarray) -> None:
        x = (np.ascontiguousarray(a).view(np.uint64) & upper).view(np.float64)
        x = np.where(np.abs(x) < tiny, np.copysign(0.0, x), x)
        result = 1.0 / (x if fields["op"] == "rcp" else np.sqrt(x))
        result = np.where(np.abs(result) < tiny, np.copysign(0.0, result), result)
        np.copyto(out, (result.view(np.uint64) & upper).view(np.float64))

    return compute


@executes("{op:neg|abs}.f64", kind="fp64")
@elementwise(types=("f64", "f64"))
def sign(machine: Machine, fields: dict[str, str]) -> Compute:
    """The sign flipped, or cleared."""
    function: Callable[..., np.ndarray] = np.negative if fields["op"] == "neg" else np.absolute

    def compute(out: np.ndarray, a: np.ndarray) -> None:
        function(a, out=out)

    return compute


@executes("copysign.f64", kind="fp64")
@elementwise(types=_D3)
def copysign(machine: Machine, fields: dict[str, str]) -> Compute:
    """The second source with the sign of the first."""
    return lambda out, a, b: np.copyto(out, np.copysign(b, a))


@executes("{op:min|max}.f64", kind="fp64")
@elementwise(types=_D3)
def extreme(machine: Machine, fields: dict[str, str]) -> Compute:
    """The smaller or the larger; of one NaN the other."""
    function = least_or_greatest(fields["op"], False, np.dtype(np.uint64), 0x7FFFFFFFFFFFFFFF)
    return lambda out, a, b: np.copyto(out, function(a, b))


def two_product(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """a * b as an unevaluated exact sum (Dekker); exact away from overflow and underflow."""
    product = a * b

    def halves(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        big = _SPLIT * x
        high = big - (big - x)
        return high, x - high

    (ah, al), (bh, bl) = halves(a), halves(b)
    return product, ((ah * bh - product) + ah * bl + al * bh) + al * bl


def two_sum(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """a + b as an unevaluated exact sum (Knuth)."""
    total = a + b
    virtual = total - a
    return total, (a - (total - virtual)) + (b - virtual)


def exact_fma(a: float, b: float, c: float) -> float:
    """One fused multiply-add of finite numbers through rational arithmetic."""
    value = Fraction(a) * Fraction(b) + Fraction(c)
    if value == 0:  # the sign of a zero sum: negative only if both terms are
        product_negative = math.copysign(1, a) * math.copysign(1, b) < 0
        nothing = a == 0 or b == 0
        return -0.0 if nothing and product_negative and math.copysign(1, c) < 0 else 0.0
    try:
        return value.numerator / value.denominator  # correctly rounded by Python
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def fma64(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c in float64 with one rounding (Boldo and Melquiond: round to odd, then to nearest)."""
    a, b, c = np.broadcast_arrays(a, b, c)
    high, low = two_product(a, b)
    th, tl = two_sum(c, low)
    vh, vl = two_sum(high, th)
    result = vh + round_to_odd(tl, vl, tl + vl)
    finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    magnitudes = [np.abs(x) for x in (a, b, c, high, vh)]
    tame = finite & (high != 0) & (vh != 0)
    for x in magnitudes:
        tame &= (x == 0) | ((x > 2.0**-400) & (x < 2.0**480))
    nothing = (a == 0) | (b == 0)  # whose product is exact, its sign too
    result = np.where(finite & ~nothing, result, a * b + c)
    for k in np.flatnonzero(finite & ~tame & ~nothing):
        result[k] = exact_fma(float(a[k]), float(b[k]), float(c[k]))
    return result


@executes("{op:fma|mad}.rn.f64", kind="fp64", flops=("dfma", 2))
@elementwise(types=("f64", "f64", "f64", "f64"))
def fma(machine: Machine, fields: dict[str, str]) -> Compute:
    """a * b + c, rounded once."""
    return lambda out, a, b, c: np.copyto(out, fma64(a, b, c))
