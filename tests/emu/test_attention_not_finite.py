"""NaN and infinities in attention's operands: none that a query sees passes silently, and others stay away from it."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw

RUNGS = ["a17", "a24", "d01"]
NAN, INF = float("nan"), float("inf")


def operands(sq=70, sk=150, d=64, seed=0):
    rng = np.random.default_rng(seed)
    shapes = (1, 2, sq, d), (1, 1, sk, d), (1, 1, sk, d)
    return [rng.standard_normal(shape, np.float32).astype(ml_dtypes.bfloat16) for shape in shapes]


def run(q, k, v, rung, **options):
    with tw.emulator():
        out, lse = tw.attention(q, k, v, return_lse=True, rung=rung, **options)
    return out.astype(np.float32), lse


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_a_query_that_is_not_finite_spoils_its_own_row_alone(rung, value):
    q, k, v = operands()
    q[0, 1, 33, 5] = value
    out, lse = run(q, k, v, rung)
    spoilt = np.isnan(out).all(axis=-1)
    assert spoilt[0, 1, 33]
    assert spoilt.sum() == 1
    assert np.isnan(lse[0, 1, 33])
    assert np.isfinite(lse).sum() == lse.size - 1


@pytest.mark.parametrize("rung", RUNGS)
def test_a_key_that_is_nan_spoils_the_queries_that_see_it(rung):
    q, k, v = operands(sq=150)
    k[0, 0, 100, 0] = NAN
    out, lse = run(q, k, v, rung, is_causal=True)
    assert np.isnan(out[:, :, 100:]).all()
    assert np.isnan(lse[:, :, 100:]).all()
    assert np.isfinite(out[:, :, :100]).all()


@pytest.mark.parametrize("rung", RUNGS)
def test_every_score_nan_is_no_row_without_keys(rung):
    q, k, v = operands()
    k[...] = NAN
    out, lse = run(q, k, v, rung)
    assert np.isnan(out).all()
    assert np.isnan(lse).all()


@pytest.mark.parametrize("rung", RUNGS)
def test_scores_of_minus_infinity_hide_and_those_of_infinity_are_nan(rung):
    q, k, v = operands()
    q[..., 0] = 1
    k[0, 0, 120, 0] = -INF
    out, lse = run(q, k, v, rung)
    without = run(q, np.delete(k, 120, axis=2), np.delete(v, 120, axis=2), rung)
    np.testing.assert_allclose(out, without[0], atol=0.02)
    np.testing.assert_allclose(lse, without[1], atol=0.01)
    k[0, 0, 120, 0] = INF
    assert np.isnan(run(q, k, v, rung)[0]).all()


@pytest.mark.parametrize("rung", RUNGS)
def test_values_that_are_not_finite_arrive_in_their_column(rung):
    q, k, v = operands()
    v[0, 0, 149, 7], v[0, 0, 0, 9] = NAN, INF
    out, lse = run(q, k, v, rung)
    assert np.isnan(out[..., 7]).all()
    assert (out[..., 9] == INF).all()
    assert np.isfinite(np.delete(out, (7, 9), axis=-1)).all()
    assert np.isfinite(lse).all()


@pytest.mark.parametrize("rung", ["b02", "b05"])
def test_gradients_of_what_is_nan_are_nan(rung):
    q, k, v = operands()
    grad = operands(seed=1)[0]
    q[0, 1, 33, 5] = NAN
    with tw.emulator():
        out, lse = tw.attention(q, k, v, return_lse=True)
        dq, dk, dv = (x.astype(np.float32) for x in tw.attention_backward(grad, q, k, v, out, lse, rung=rung))
    assert np.isnan(dq[0, 1, 33]).all()
    assert np.isnan(dk).all()
    assert np.isnan(dv).all()
    assert np.isfinite(dq[0, 0]).all()
    assert np.isfinite(np.delete(dq[0, 1], 33, axis=0)).all()
