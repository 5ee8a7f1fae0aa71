"""fp8 products of random shapes, layouts, batches, scales and results, beside float64."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from fp8_reference import E4M3, E5M2, laid, product, scales

import tilewright as tw
from tilewright.errors import InvalidOperand

LOST = 2.0**-9
"""What sums may lose of the sum of magnitudes."""
RESULTS = {
    "f32": (np.dtype(np.float32), 0.0), "f16": (np.dtype(np.float16), 2.0**-11),
    "bf16": (np.dtype(ml_dtypes.bfloat16), 2.0**-8), "e4m3": (E4M3, 2.0**-4), "e5m2": (E5M2, 2.0**-3),
}  # fmt: skip


def scale_of(rng, of, batch, lines, k):
    """None, a number, or an array of one of the shapes, with the batch's axis, one of 1, or none."""
    others, deep = -(-lines // 128), -(-k // 128)
    shapes = {"a": [(1, 1), (lines, 1), (lines, deep)], "b": [(1, 1), (1, lines), (deep, others)]}[of]
    which = int(rng.integers(-3, 3))
    if which < 0 or 0 in shapes[which]:
        return {-3: None, -2: float(rng.uniform(0.5, 2))}.get(which, scales())
    lead = [(), (1,), (batch,)][rng.integers(0, 3)] if batch else ()
    return scales(*lead, *shapes[which])


@pytest.mark.parametrize("seed", range(24))
def test_a_random_product_is_right(seed):
    rng = np.random.default_rng(1000 + seed)
    batch = int(rng.choice([0, 0, 1, 3]))
    m, n = int(rng.choice([1, 2, 7, 16, 33, 65])), int(rng.choice([1, 3, 8, 17, 64, 130, 200]))
    k = int(rng.choice([0, 1, 2, 15, 16, 100, 128, 130, 257]))
    dtypes = [(E4M3, E5M2)[i] for i in rng.integers(0, 2, 2)]
    lead = [(batch,) if batch and rng.integers(0, 3) else () for _ in range(2)]
    if batch and not any(lead):
        lead[0] = (batch,)
    a, b = laid(rng, (*lead[0], m, k), dtypes[0]), laid(rng, (*lead[1], k, n), dtypes[1])
    a_scale, b_scale = scale_of(rng, "a", batch, m, k), scale_of(rng, "b", batch, n, k)
    out_dtype = str(rng.choice(list(RESULTS)))
    kind, rounded = RESULTS[out_dtype]
    out = None
    if rng.integers(0, 2):
        out = laid(rng, (*((batch,) if batch else ()), m, n), kind)
        out = out if out.flags.writeable else out.copy()
    with tw.emulator(str(rng.choice(["H200", "H200", "A100", "RTX 4090"]))):
        found = tw.matmul(a, b, a_scale=a_scale, b_scale=b_scale, out=out, out_dtype=None if out is not None else kind)
    wanted = product(a, b, a_scale, b_scale)
    sized = product(*(np.abs(x.astype(np.float64)) for x in (a, b)), a_scale, b_scale)
    assert found.shape == wanted.shape
    assert found is out or out is None
    largest = float(ml_dtypes.finfo(kind).max)
    bound = np.abs(wanted) * rounded + sized * LOST + float(ml_dtypes.finfo(kind).smallest_subnormal)
    off = np.abs(found.astype(np.float64) - np.clip(wanted, -largest, largest))
    assert (off <= bound).all(), (a.shape, b.shape, out_dtype, float(np.nanmax(off - bound)))


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf, 1e-45, -2.0])
@pytest.mark.parametrize("blocks", [False, True], ids=["lines", "blocks"])
def test_a_scale_of_any_value_counts_where_it_stands(value, blocks):
    a, b = (np.random.default_rng(i).standard_normal((40, 256)).astype(E4M3) for i in range(2))
    a_scale = np.ones((40, 2 if blocks else 1), np.float32)
    a_scale[3, 0] = value
    with tw.emulator():
        found = tw.matmul(a, b.T, a_scale=a_scale, out_dtype="f32")
    wanted = product(a, b.T, a_scale)
    others = np.arange(40) != 3
    assert np.allclose(found[others], wanted[others], atol=0.2)
    if np.isfinite(value):
        assert np.allclose(found[3], wanted[3], atol=0.5)
    else:  # scales are applied to sums, where zeros are no terms of their own
        assert not np.isfinite(found[3]).any()


@pytest.mark.parametrize(
    ("of", "shape"),
    [("a", (1, 40)), ("a", (39, 1)), ("a", (40, 3)), ("a", (40,)), ("a", (2, 40, 1)), ("b", (24, 1)), ("b", (2, 2)),
     ("b", (256, 24)), ("b", (3, 2, 1))],
)  # fmt: skip
def test_scales_of_other_shapes_are_refused_with_those_that_fit(of, shape):
    a, b = np.ones((40, 256), E4M3), np.ones((256, 24), E4M3)
    with tw.emulator(), pytest.raises(InvalidOperand, match=f"{of}_scale"):
        tw.matmul(a, b, **{f"{of}_scale": np.ones(shape, np.float32)})
