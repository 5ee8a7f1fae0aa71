"""Grouped products of random forms, sizes, layouts, dtypes, scales and results, beside float64."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from fp8_reference import E4M3, E5M2, laid, product, scales

import tilewright as tw

HALVES = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
LOST = {1: 2.0**-9, 2: 2.0**-17, 4: 2.0**-20}
"""What sums may lose of the sum of magnitudes, by bytes of the operands' elements."""
ROUNDED = {"float32": 0.0, "float16": 2.0**-11, "bfloat16": 2.0**-8, "float8_e4m3fn": 2.0**-4, "float8_e5m2": 2.0**-3}
FILL = 3.0
"""What `out` holds before."""


def scale_of(rng, axis, of, sizes, groups):
    """A scale of operand `of` of one of the shapes that suit it, or none."""
    m, n, k = sizes
    deep, wide = -(-k // 128), -(-n // 128)
    own = axis == {"a": "m", "b": "n"}[of]
    lines = (m, 1) if of == "a" else (1, n)
    blocks = (m, deep) if of == "a" else (deep, wide)
    shapes = [(), (groups, 1, 1), lines]
    if not own:
        shapes.append((groups, *lines))
    if axis != "k" and not (axis == "n" and of == "b"):
        shapes += [blocks] if own else [blocks, (groups, *blocks)]
    shapes = [shape for shape in shapes if 0 not in shape]
    which = int(rng.integers(-2, len(shapes)))
    return scales(*shapes[which]) if which >= 0 else float(rng.uniform(0.5, 2)) if which == -1 else None


def of_group(scale, group, cut):
    """A group's part of a scale; `cut` selects its lines where these are cut."""
    if not isinstance(scale, np.ndarray) or scale.ndim < 2 or scale.shape == (1, 1):
        return scale
    if scale.ndim == 3:
        return scale[group]
    return scale if cut is None else scale[cut]


@pytest.mark.parametrize("seed", range(24))
def test_a_random_grouped_product_is_right(seed):
    rng = np.random.default_rng(seed)
    axis = str(rng.choice(["m", "m", "n", "k"]))
    fp8 = bool(rng.integers(0, 2))
    dtypes = [(E4M3, E5M2)[i] for i in rng.integers(0, 2, 2)] if fp8 else [HALVES[rng.integers(0, 2)]] * 2
    if not fp8 and rng.integers(0, 4) == 0:
        dtypes = [np.dtype(np.float32)] * 2
    groups = int(rng.integers(1, 7))
    counts = rng.choice([0, 0, 1, 2, 15, 16, 17, 33, 70], groups)
    ends = np.cumsum(counts)
    total = int(ends[-1]) + int(rng.choice([0, 0, 1, 20]))
    m, n, k = (int(x) for x in (rng.integers(1, 40), rng.integers(1, 80), rng.choice([0, 1, 2, 7, 16, 33, 64, 130])))
    m, n, k = (total if own == axis else extent for own, extent in zip("mnk", (m, n, k), strict=True))
    lead = {"m": ((), (groups,), ()), "n": ((groups,), (), ()), "k": ((), (), (groups,))}[axis]
    a, b = laid(rng, (*lead[0], m, k), dtypes[0]), laid(rng, (*lead[1], k, n), dtypes[1])
    a_scale, b_scale = (scale_of(rng, axis, of, (m, n, k), groups) if fp8 else None for of in "ab")
    offs = [ends.astype(np.int32), ends.astype(np.int64), ends.tolist()][rng.integers(0, 3)]
    own_out = bool(rng.integers(0, 2))
    kind = np.dtype(ml_dtypes.bfloat16) if fp8 else dtypes[0]
    out = None
    if own_out:
        out = laid(rng, (*lead[2], m, n), kind)
        out = out if out.flags.writeable else out.copy()
        out[...] = FILL
    options = {"a_scale": a_scale, "b_scale": b_scale} if fp8 else {}
    gpu = str(rng.choice(["H200", "H200", "A100"]))
    with tw.emulator(gpu):
        found = tw.grouped_matmul(a, b, offs, out=out, **options)
    assert found is out if own_out else found.shape == (*lead[2], m, n)
    wanted = np.full(found.shape, FILL if own_out and axis != "k" else 0.0)
    lost, begin = np.zeros(found.shape), 0
    for group, end in enumerate(ends.tolist()):
        cut = slice(begin, end)
        begin = end
        in_a, in_b, in_out = {
            "m": (cut, group, cut), "n": (group, (slice(None), cut), (slice(None), cut)),
            "k": ((slice(None), cut), cut, group),
        }[axis]  # fmt: skip
        one = of_group(a_scale, group, cut if axis == "m" else None)
        other = of_group(b_scale, group, (slice(None), cut) if axis == "n" else None)
        x, y = a[in_a], b[in_b]
        wanted[in_out] = product(x, y, one, other)
        sized = [None if s is None else np.abs(s) for s in (one, other)]
        lost[in_out] = product(np.abs(x.astype(np.float64)), np.abs(y.astype(np.float64)), *sized)
    bound = np.abs(wanted) * ROUNDED[found.dtype.name] + lost * LOST[a.itemsize] + 1e-6
    off = np.abs(found.astype(np.float64) - wanted)
    assert (off <= bound).all(), (axis, a.shape, b.shape, counts, float(np.nanmax(off - bound)))
