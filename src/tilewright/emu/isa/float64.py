"""Arithmetic in fp64, correctly rounded in every mode."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from ..machine import Machine
from .float32 import least_or_greatest, move, round_to_odd
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
    # Beside an infinite c, a product too large for fp64 is still a finite one.
    product = np.where(np.isinf(c) & np.isfinite(a) & np.isfinite(b), 0.0, high)
    result = np.where(finite & ~nothing, result, product + c)
    for k in np.flatnonzero(finite & ~tame & ~nothing):
        result[k] = exact_fma(float(a[k]), float(b[k]), float(c[k]))
    return result


@executes("{op:fma|mad}.rn.f64", kind="fp64", flops=("dfma", 2))
@elementwise(types=("f64", "f64", "f64", "f64"))
def fma(machine: Machine, fields: dict[str, str]) -> Compute:
    """a * b + c, rounded once."""
    return lambda out, a, b, c: np.copyto(out, fma64(a, b, c))


# --- towards zero, down, up -------------------------------------------------------------------------------------------

_DIRECTED: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "sqrt": np.sqrt,
    "rcp": lambda a: np.divide(1.0, a), "fma": fma64,
}  # fmt: skip


def _side(op: str, given: list[float], nearest: float) -> int:
    """Return where the exact result lies: 1 above `nearest`, -1 below, 0 neither. Of finite numbers."""
    if math.isinf(nearest):
        return -1 if nearest > 0 else 1
    values, rounded = [Fraction(x) for x in given], Fraction(nearest)
    if op == "sqrt":
        difference = values[0] - rounded * rounded
    elif op in ("div", "rcp"):
        a, b = (Fraction(1), values[0]) if op == "rcp" else values
        difference = (a - rounded * b) * (1 if b > 0 else -1)
    elif op == "mul":
        difference = values[0] * values[1] - rounded
    elif op == "fma":
        difference = values[0] * values[1] + values[2] - rounded
    else:
        difference = values[0] + (values[1] if op == "add" else -values[1]) - rounded
    return (difference > 0) - (difference < 0)


def _sides(op: str, given: list[np.ndarray], nearest: np.ndarray) -> np.ndarray:
    """_side of all, by exact arithmetic in fp64 where exponents allow it."""
    side = np.zeros(nearest.shape)
    finite = np.logical_and.reduce([np.isfinite(x) for x in given]) & ~np.isnan(nearest)
    if op in ("div", "rcp"):
        finite &= given[-1] != 0
    tame = finite & (nearest != 0)
    for x in (*given, nearest):
        tame &= (np.abs(x) > 2.0**-300) & (np.abs(x) < 2.0**300)
    if op in ("add", "sub"):
        side = two_sum(given[0], given[1] if op == "add" else -given[1])[1]
    elif op == "mul":
        side = two_product(*given)[1]
    elif op == "sqrt":
        side = -fma64(nearest, nearest, -given[0])
    elif op in ("div", "rcp"):
        a, b = (np.ones_like(nearest), given[0]) if op == "rcp" else given
        side = -fma64(nearest, b, -a) * np.sign(b)
    else:
        tame &= False
    side = np.where(tame, side, 0.0)
    for k in np.flatnonzero(finite & ~tame):
        side[k] = _side(op, [float(x[k]) for x in given], float(nearest[k]))
    return side


@executes(
    "{op:add|sub|mul}.{mode:rz|rm|rp}.f64", kind="fp64", flops=lambda f: ("dmul" if f["op"] == "mul" else "dadd", 1)
)
@elementwise(types=_D3)
def directed_two(machine: Machine, fields: dict[str, str]) -> Compute:
    """Sums, differences and products rounded towards zero, down or up."""
    return _directed(fields)


@executes("div.{mode:rz|rm|rp}.f64", kind="fp64", flops=("ddiv", 1))
@elementwise(types=_D3)
def directed_quotient(machine: Machine, fields: dict[str, str]) -> Compute:
    """Quotients rounded towards zero, down or up."""
    return _directed({**fields, "op": "div"})


@executes("{op:sqrt|rcp}.{mode:rz|rm|rp}.f64", kind="fp64", flops=("dspecial", 1))
@elementwise(types=("f64", "f64"))
def directed_one(machine: Machine, fields: dict[str, str]) -> Compute:
    """Square roots and reciprocals rounded towards zero, down or up."""
    return _directed(fields)


@executes("{op:fma}.{mode:rz|rm|rp}.f64", kind="fp64", flops=("dfma", 2))
@elementwise(types=("f64", "f64", "f64", "f64"))
def directed_fma(machine: Machine, fields: dict[str, str]) -> Compute:
    """a * b + c, rounded once towards zero, down or up."""
    return _directed(fields)


def _directed(fields: dict[str, str]) -> Compute:
    op, mode = fields["op"], fields["mode"]

    def compute(out: np.ndarray, *sources: np.ndarray) -> None:
        given = [np.broadcast_to(x, out.shape) for x in sources]
        nearest = _DIRECTED[op](*given)
        side = _sides(op, given, nearest)
        result = move(nearest, side, mode)
        if mode == "rm" and op in ("add", "sub", "fma"):  # an exact zero from terms of opposite signs is negative
            terms = [given[0] * given[1], given[2]] if op == "fma" else given
            other = -terms[1] if op == "sub" else terms[1]
            result = np.where((result == 0) & (side == 0) & (np.signbit(terms[0]) != np.signbit(other)), -0.0, result)
        np.copyto(out, result)

    return compute


@executes("rsqrt.approx.f64", kind="fp64", flops=("dspecial", 1))
@elementwise(types=("f64", "f64"))
def reciprocal_root(machine: Machine, fields: dict[str, str]) -> Compute:
    """1 / sqrt(a), here of a correctly rounded root; a GPU's has an error of its own."""
    return lambda out, a: np.divide(1.0, np.sqrt(a), out=out)
