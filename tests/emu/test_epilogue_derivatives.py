"""The derivatives of epilogues as kernels compute them: each function's at every bfloat16, and whole expressions."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import pytest
from epilogue_cases import ByNumpy, each_by_kernel

import tilewright as tw
from tilewright import epilogue as ep
from tilewright.epilogue.derivative import differentiate
from tilewright.epilogue.evaluate import evaluate
from tilewright.epilogue.expression import record
from tilewright.lab.numbers import from_stored

FUNCTIONS = {
    "exp": ep.exp, "exp2": ep.exp2, "log": ep.log, "sqrt": ep.sqrt, "rsqrt": ep.rsqrt, "tanh": ep.tanh, "erf": ep.erf,
    "sigmoid": ep.sigmoid, "silu": ep.silu, "relu": ep.relu, "gelu": ep.gelu, "gelu_tanh": ep.gelu_tanh, "abs": abs,
}  # fmt: skip
FLUSHED = 1.2e-36
"""Where a function's own parts are flushed to 0 below 2^-126, its derivative may be."""


@lru_cache
def inputs() -> np.ndarray:
    values = from_stored(np.arange(1 << 16, dtype=np.uint16), "bf16")
    values[np.isnan(values)] = np.nan  # of one payload: others warn in conversions
    return values


@lru_cache
def by_kernel(brief: bool) -> dict[str, np.ndarray]:
    """Each function's derivative at `inputs`. `brief`: as for results of 16 bits."""
    found = {}
    for name, function in FUNCTIONS.items():
        derivative = differentiate(record(lambda acc, function=function: function(acc), {}))
        expression = derivative.recorded(derivative.of_sum).expression
        assert expression.inputs == (derivative.grad,)
        found[name] = expression
    return each_by_kernel(found, inputs(), brief)


def exact(name: str) -> np.ndarray:
    """In float64, in forms that cancel nothing. At infinities as torch has it: silu's and gelu's are NaN there."""
    x = inputs().astype(np.float64)
    c = math.sqrt(8 / math.pi)
    with np.errstate(all="ignore"):
        bend = ByNumpy.sigmoid(x) * ByNumpy.sigmoid(-x)
        inner = c * x + 0.044715 * c * x**3
        inner_bend = ByNumpy.sigmoid(inner) * ByNumpy.sigmoid(-inner)
        far = (inner_bend == 0) & np.isfinite(x)
        return {
            "exp": lambda: np.exp(x), "log": lambda: 1 / x, "sqrt": lambda: 0.5 / np.sqrt(x),
            "exp2": lambda: np.where(x >= 128, np.inf, math.log(2) * np.exp2(x)),  # infinite with 2^x itself
            "rsqrt": lambda: -0.5 / np.sqrt(x) ** 3, "tanh": lambda: 1 / np.cosh(x) ** 2,
            "erf": lambda: 2 / math.sqrt(math.pi) * np.exp(-x * x), "sigmoid": lambda: bend,
            "silu": lambda: ByNumpy.sigmoid(x) + x * bend, "relu": lambda: np.where(x <= 0, 0.0, 1.0),
            "gelu": lambda: np.vectorize(math.erfc)(-x / math.sqrt(2)) / 2
            + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi),
            "gelu_tanh": lambda: ByNumpy.sigmoid(inner)
            + np.where(far, 0.0, x * inner_bend * (c + 3 * 0.044715 * c * x * x)),
            "abs": lambda: np.where(x > 0, 1.0, np.where(x < 0, -1.0, 0.0)),
        }[name]()  # fmt: skip


@pytest.mark.parametrize("brief", [False, True], ids=["float32", "16 bits"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_derivative_is_right_at_every_bfloat16(name, brief):
    """Within 2^-18 of the larger of it and 1: the slopes of activations pass through 0. Infinities and NaN where the
    true one has them and nowhere else."""
    out, wanted, x = by_kernel(brief)[name].astype(np.float64), exact(name), inputs()
    with np.errstate(all="ignore"):
        rounded = wanted.astype(np.float32).astype(np.float64)
        special = ~np.isfinite(rounded)
        same = (out == rounded) | (np.isnan(out) & np.isnan(rounded))
        near = np.abs(out - rounded) <= 2.0**-18 * np.maximum(1, np.abs(rounded))
    off = ~np.where(special, same, near)
    assert not off.any(), (x[off][:5], out[off][:5], rounded[off][:5])


@pytest.mark.parametrize("name", ["exp", "exp2", "log", "sqrt", "rsqrt", "erf", "sigmoid"])
def test_a_slope_that_dies_away_keeps_its_digits(name):
    out, wanted = by_kernel(False)[name].astype(np.float64), exact(name)
    with np.errstate(all="ignore"):
        finite = np.isfinite(wanted.astype(np.float32))
        off = finite & ~(np.abs(out - wanted) <= 2.0**-18 * np.abs(wanted) + FLUSHED)
    assert not off.any(), (inputs()[off][:5], out[off][:5], wanted[off][:5])


def everything(acc, x, y, row, col):
    one = ep.exp(acc / 4) - ep.log(acc * acc + 1) + ep.sqrt(y * y + 1) * ep.rsqrt(x * x + 2)
    two = ep.tanh(acc) * ep.erf(x) + ep.sigmoid(y) * ep.silu(acc) - ep.gelu(acc) / (1 + ep.gelu_tanh(y) ** 2)
    three = abs(acc) * ep.relu(x) + ep.maximum(acc, y) * ep.minimum(x, y) + ep.where(acc < x, -y, 3 * x)
    return one + two - three * ep.where((row + 2 * col) % 3 == 1, 1.0, acc) + acc * row


@pytest.mark.parametrize("wanted", ["sum", "x", "y"])
def test_a_product_with_the_derivative_as_its_epilogue_is_the_slope_of_the_product(wanted):
    """Against differences of the expression in float64, by steps small enough for their square to vanish."""
    rng = np.random.default_rng(7)
    a, b = (rng.standard_normal(shape, dtype=np.float32) for shape in ((9, 5), (5, 11)))
    x, y, grad = (rng.standard_normal(shape, dtype=np.float32) for shape in ((11,), (9, 1), (9, 11)))
    recorded = record(everything, {"x": None, "y": None})
    derivative = differentiate(recorded)
    number = derivative.of_sum if wanted == "sum" else derivative.of_operands[wanted]
    expression = derivative.recorded(number)
    operands = {"x": x, "y": y, derivative.grad: grad}
    with tw.emulator():
        out = tw.matmul(a, b, epilogue=expression, **{name: operands[name] for name in expression.operands})
    acc = a.astype(np.float64) @ b.astype(np.float64)
    given = {"x": x.astype(np.float64), "y": y.astype(np.float64), "row": np.arange(9)[:, None], "col": np.arange(11)}
    step = 1e-6

    def moved(by: float) -> np.ndarray:
        at = {**given, wanted: given[wanted] + by} if wanted in given else given
        return evaluate(recorded.nodes, acc + by if wanted == "sum" else acc, at)[0]

    slope = grad * (moved(step) - moved(-step)) / (2 * step)
    assert np.isfinite(out).all()
    np.testing.assert_allclose(out, slope, rtol=2e-5, atol=2e-5 * np.abs(slope).max())


def test_the_gradients_name_gives_way_to_an_operands():
    derivative = differentiate(record(lambda acc, grad: acc * grad, {"grad": None}))
    assert derivative.grad == "grad_"
    assert derivative.recorded(derivative.of_sum).operands == ("grad", "grad_")


def test_what_does_not_reach_the_result_has_no_derivative():
    derivative = differentiate(record(lambda acc, x, y: ep.where(acc > y, x, 2.0), {"x": None, "y": None}))
    assert derivative.of_sum is None
    assert list(derivative.of_operands) == ["x"]
