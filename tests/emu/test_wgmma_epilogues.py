"""Epilogues of h12 and h13 on the emulator: what is read ahead of the sums, in either order of a lane's columns."""

from __future__ import annotations

import numpy as np
import pytest
from epilogue_cases import ByNumpy, assert_whole, given, judge, stored_values, target, values
from test_epilogues import SHAPES

import tilewright as tw
from tilewright import epilogue as ep
from tilewright.gemm.rung import GemmConfig
from tilewright.gemm.rungs import find_rung

H12, H13 = (find_rung(name).id for name in ("h12", "h13"))
WIDE = GemmConfig(64, 128, 32, warp_m=16, warp_n=128, stages=3)
"""Four groups of 32 columns a warp: some are read ahead, others behind their stores."""
TWICE = GemmConfig(128, 64, 16, warp_m=32, warp_n=64, stages=3)
"""Two products under one another a warpgroup."""


def run(rung: str, a, b, out, config: GemmConfig = WIDE, **options) -> None:
    with tw.emulator():
        tw.matmul(a, b, out=out, rung=rung, config=config, **options)


def operands(m: int, n: int, k: int, layout: str):
    """a, b, and b as it is given: along n ("nn"), where lanes exchange columns, or along k ("nt"), where none must."""
    a, b = values(m, k, dtype="f16"), values(k, n, dtype="f16")
    stored = given(b, "f16")
    return a, b, stored if layout == "nn" else np.asfortranarray(stored)


@pytest.mark.parametrize("layout", ["nn", "nt"])
@pytest.mark.parametrize("out_dtype", ["f16", "f32"])
@pytest.mark.parametrize("first", [0, 4, 8], ids=lambda first: " ".join([*SHAPES][first : first + 4]))
def test_operands_of_any_shape_at_an_edge(first, out_dtype, layout):
    """Three products of 40 x 48 from tiles of 64 x 128: a group of 32 columns is inside, of the next one half."""
    a, b = values(3, 40, 24, dtype="f16"), values(3, 24, 48, dtype="f16")
    b_given = given(b, "f16")
    if layout == "nt":
        b_given = np.ascontiguousarray(b_given.swapaxes(1, 2)).swapaxes(1, 2)
    named = {x: SHAPES[name]() for x, name in zip("wxyz", [*SHAPES][first : first + 4], strict=True)}
    guarded, out = target((3, 40, 48), out_dtype)

    def function(acc, w, x, y, z):
        return acc - 2 * w + 3 * x - 5 * y + 7 * z

    run(H12, given(a, "f16"), b_given, out, epilogue=function, **named)
    assert_whole(guarded)
    verdict = judge(stored_values(guarded), a, b, function, dtype="f16", out_dtype=out_dtype, **named)
    assert verdict.ok, verdict.reason


@pytest.mark.parametrize(
    ("rung", "config", "layout", "dtype"),
    [
        (H12, WIDE, "nn", "f16"), (H12, WIDE, "nt", "f32"), (H13, WIDE, "nn", "f32"), (H13, TWICE, "nn", "f16"),
        (H13, TWICE, "nt", "f16"),
    ],
    ids=str,
)  # fmt: skip
def test_a_residual_and_c_that_lie_where_the_result_goes_are_read_before_it(rung, config, layout, dtype):
    m, n, k = 136, 264, 40
    a, b, b_given = operands(m, n, k, layout)
    old, bias = values(m, n, dtype=dtype, seed=3), values(n, dtype="f16")
    for option in ("residual", "c"):
        guarded, out = target((m, n), dtype)
        out[...] = given(old, dtype)
        given_old = {"residual": out} if option == "residual" else {"c": out, "beta": -2.0}
        run(rung, given(a, "f16"), b_given, out, config, bias=given(bias, "f16"), activation="relu", **given_old)
        assert_whole(guarded)

        def function(acc, bias, old, behind=option == "residual"):
            return ByNumpy.relu(acc + bias) + old if behind else ByNumpy.relu(acc - 2 * old + bias)

        verdict = judge(stored_values(guarded), a, b, function, dtype="f16", out_dtype=dtype, bias=bias, old=old)
        assert verdict.ok, (option, verdict.reason)


@pytest.mark.parametrize("layout", ["nn", "nt"])
@pytest.mark.parametrize(("m", "n"), [(72, 136), (70, 131)])
def test_indices_count_a_lanes_own_columns(m, n, layout):
    """Whole vectors, and rows that no vector suits."""
    a, b, b_given = operands(m, n, 16, layout)
    guarded, out = target((m, n), "f16")
    run(H13, given(a, "f16"), b_given, out,
        epilogue=lambda acc, row, col: ep.where((row * 3 + col) % 7 < 3, acc, row - 2 * col))  # fmt: skip
    assert_whole(guarded)
    row, col = np.arange(m)[:, None], np.arange(n)

    def function(acc):
        return np.where((row * 3 + col) % 7 < 3, acc, row - 2.0 * col)

    verdict = judge(stored_values(guarded), a, b, function, dtype="f16", out_dtype="f16")
    assert verdict.ok, verdict.reason


@pytest.mark.parametrize("rung", [H12, H13])
@pytest.mark.parametrize("layout", ["nn", "nt"])
def test_fp32_rows_that_end_within_eight_columns_end_there(rung, layout):
    """16-byte vectors suit rows of 100 fp32 numbers; a lane's eight columns may still be half inside."""
    m, n, k = 40, 100, 24
    a, b, b_given = operands(m, n, k, layout)
    old, bias = values(m, n, dtype="f32", seed=3), values(n, dtype="f16")
    guarded, out = target((m, n), "f32")
    run(rung, given(a, "f16"), b_given, out, c=given(old, "f32"), beta=-2.0, bias=given(bias, "f16"))
    assert_whole(guarded)

    def function(acc, bias, old):
        return acc - 2 * old + bias

    verdict = judge(stored_values(guarded), a, b, function, dtype="f16", out_dtype="f32", bias=bias, old=old)
    assert verdict.ok, verdict.reason
