"""The pass between the products of a gated feed-forward, against float64."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.epilogue.ops import OPS
from tilewright.errors import InvalidOperand
from tilewright.gemm.gated import gate, gate_gradients

ERRORS = {np.float32: 2e-6, np.float16: 1.0e-3, ml_dtypes.bfloat16: 8e-3}
"""What a result may be off by, relative to the largest of its factors' product."""


def given(count, dtype, seed=0):
    rng = np.random.default_rng(seed)
    return [(3 * rng.standard_normal(count)).astype(dtype) for _ in range(3)]


def slope(function, x, step=1e-6):
    return (function(x + step) - function(x - step)) / (2 * step)


def assert_near(found, wanted, scale, dtype):
    assert found.dtype == dtype
    assert np.all(np.abs(found.astype(np.float64) - wanted) <= ERRORS[dtype] * (scale + 1e-3))


@pytest.mark.parametrize("dtype", ERRORS, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "relu"])
@pytest.mark.parametrize("shape", [(1,), (7,), (3, 1000), (4, 5, 8)], ids=str)
def test_values_and_gradients_are_those_of_float64(shape, activation, dtype):
    grad, inside, other = (x.reshape(shape) for x in given(int(np.prod(shape)), dtype))
    function = OPS[activation].numpy
    g, x, y = (one.astype(np.float64) for one in (grad, inside, other))
    with tw.emulator():
        value = gate(inside, other, activation)
        of_inside, of_other = gate_gradients(grad, inside, other, activation)
    assert_near(value, function(x) * y, np.abs(x * y), dtype)
    assert_near(of_inside, g * y * slope(function, x), 1.2 * np.abs(g * y), dtype)
    assert_near(of_other, g * function(x), np.abs(g * x), dtype)


def test_arrays_that_begin_at_odd_addresses_give_the_same_bits():
    grad, inside, other = given(1001, ml_dtypes.bfloat16)
    with tw.emulator():
        wanted = (gate(inside[1:].copy(), other[1:].copy(), "silu"),
                  *gate_gradients(grad[1:].copy(), inside[1:].copy(), other[1:].copy(), "silu"))  # fmt: skip
        found = (gate(inside[1:], other[1:], "silu"), *gate_gradients(grad[1:], inside[1:], other[1:], "silu"))
    for one, right in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one.view(np.uint16), right.view(np.uint16))


def test_a_nan_stays_and_empty_arrays_give_empty_ones():
    with tw.emulator():
        inside, other = np.array([np.nan, 1, 0], np.float32), np.array([1, np.nan, np.inf], np.float32)
        assert np.isnan(gate(inside, other, "silu")).all()
        assert gate(np.zeros((0, 4), np.float32), np.zeros((0, 4), np.float32), "silu").shape == (0, 4)


def test_arrays_that_differ_or_have_gaps_are_refused():
    x = np.ones((8, 8), np.float32)
    with tw.emulator():
        with pytest.raises(InvalidOperand, match="all are alike"):
            gate(x, x[:4], "silu")
        with pytest.raises(InvalidOperand, match="all are alike"):
            gate(x, x.astype(np.float16), "silu")
        with pytest.raises(InvalidOperand, match="is not dense"):
            gate(x, x.T, "silu")
