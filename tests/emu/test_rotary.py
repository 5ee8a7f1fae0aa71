"""Rotary positions on the emulator, against float64."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.attn.rotary import turn
from tilewright.errors import InvalidOperand

ERRORS = {np.float32: 3e-7, np.float16: 6e-4, ml_dtypes.bfloat16: 5e-3}


def by_numpy(x, cos, sin, back=False):
    x, cos, sin = (one.astype(np.float64) for one in (x, cos, sin))
    cos, sin = (one[None] if one.ndim == 2 else one for one in (cos, sin))
    cos, sin = cos[:, None], sin[:, None]
    half = x.shape[-1] // 2
    turned = np.concatenate((-x[..., half:], x[..., :half]), -1)
    if back:  # the transposed of the same
        y = x * sin
        return x * cos + np.concatenate((y[..., half:], -y[..., :half]), -1)
    return x * cos + turned * sin


def given(batch, heads, rows, d, dtype, angles, entries=None, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((batch, rows, heads, d)).astype(dtype).swapaxes(1, 2)
    lead = () if entries is None else (entries,)
    return x, *(rng.standard_normal((*lead, rows, d)).astype(angles) for _ in range(2))


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("dtype", ERRORS, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("sizes", [(2, 3, 5, 64, 2), (1, 2, 7, 128, 1), (2, 1, 3, 80, None), (3, 2, 4, 6, 3)], ids=str)
@pytest.mark.parametrize("own", [False, True], ids=["angles in fp32", "angles in x's type"])
def test_rows_are_turned_as_float64_says(sizes, dtype, back, own):
    *shape, entries = sizes
    x, cos, sin = given(*shape, dtype, dtype if own else np.float32, entries)
    with tw.emulator():
        found = turn(x, cos, sin, back)
    right = by_numpy(x, cos, sin, back)
    assert found.dtype == x.dtype
    assert found.strides == x.strides
    half = shape[-1] // 2
    size = np.abs(x.astype(np.float64)) + np.abs(np.roll(x.astype(np.float64), half, -1))
    scale = size * max(np.abs(cos.astype(np.float64)).max(), np.abs(sin.astype(np.float64)).max())
    assert np.all(np.abs(found.astype(np.float64) - right) <= ERRORS[dtype] * scale)


def test_rows_with_gaps_and_at_odd_addresses_are_turned_too():
    x, cos, sin = given(2, 3, 5, 32, ml_dtypes.bfloat16, ml_dtypes.bfloat16)
    wide = np.zeros((2, 5, 3, 35), ml_dtypes.bfloat16)
    wide[..., 1:33] = x.swapaxes(1, 2)
    with tw.emulator():
        np.testing.assert_array_equal(turn(wide[..., 1:33].swapaxes(1, 2), cos, sin), turn(x, cos, sin))
        np.testing.assert_array_equal(turn(np.ascontiguousarray(x), cos, sin), turn(x, cos, sin))


def test_no_rows_give_none_and_what_does_not_fit_is_refused():
    x, cos, sin = given(2, 3, 4, 32, np.float32, np.float32)
    with tw.emulator():
        assert turn(x[:, :, :0], cos[:0], sin[:0]).shape == (2, 3, 0, 32)
        for wrong in (x[..., :31], x[0], x.astype(np.float64)):
            with pytest.raises(InvalidOperand):
                turn(wrong, cos, sin)
        for angle in (cos[:3], cos[:, :30], cos.astype(np.float16), cos[None, None]):
            with pytest.raises(InvalidOperand, match="cos is"):
                turn(x, angle, sin)
        with pytest.raises(InvalidOperand, match="contiguous along their last axis"):
            turn(x[..., ::-1], cos, sin)
