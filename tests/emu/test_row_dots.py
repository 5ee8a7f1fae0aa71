"""v01 on the emulator: few rows, wide and narrow lines, every type, batches and epilogues."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.gemm.config import SimtConfig
from tilewright.gemm.problem import GemmProblem
from tilewright.gemm.rungs import find_rung, rungs_beside, rungs_for
from tilewright.gpus import ARCHS
from tilewright.lab.check import check

V01 = find_rung("v01")
TYPES = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16}


def config(rows: int, columns: int, tile_k: int) -> SimtConfig:
    return SimtConfig(rows, 8 * columns, tile_k, warp_m=rows, warp_n=columns, min_blocks=2)


def normal(rng: np.random.Generator, dtype: str, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32).astype(TYPES[dtype])


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("rows", "columns", "m", "n", "k"),
    [(1, 1, 1, 40, 1200), (2, 4, 2, 33, 1031), (4, 2, 3, 37, 640), (8, 2, 8, 32, 1024), (8, 1, 17, 20, 264),
     (1, 2, 1, 19, 7)],
)  # fmt: skip
def test_rows_times_lines_are_right(dtype, rows, columns, m, n, k):
    rng = np.random.default_rng(m + n + k)
    a, b = normal(rng, dtype, m, k), normal(rng, dtype, n, k).T
    with tw.emulator():
        out = tw.matmul(a, b, rung="v01", config=config(rows, columns, 512), out_dtype="f32")
    verdict = check(np.asarray(out), a, b, out_dtype="f32")
    assert verdict.ok, verdict.reason


@pytest.mark.parametrize("layout", ["nn", "tn", "tt"])
def test_other_layouts_are_read_by_elements(layout):
    rng = np.random.default_rng(3)
    a = normal(rng, "bf16", 2, 70) if layout[0] == "n" else normal(rng, "bf16", 70, 2).T
    b = normal(rng, "bf16", 70, 24) if layout[1] == "n" else normal(rng, "bf16", 24, 70).T
    with tw.emulator():
        out = tw.matmul(a, b, rung="v01")
    assert check(np.asarray(out), a, b, out_dtype="bf16").ok


def test_batches_and_epilogues_reach_their_own_elements():
    rng = np.random.default_rng(4)
    a, b = normal(rng, "f32", 3, 2, 300), normal(rng, "f32", 3, 21, 300).transpose(0, 2, 1)
    bias, residual = normal(rng, "f32", 21), normal(rng, "f32", 3, 2, 21)
    with tw.emulator():
        out = tw.matmul(a, b, bias=bias, activation="relu", residual=residual, rung="v01", config=config(2, 2, 128))
    exact = np.maximum(a.astype(np.float64) @ b.astype(np.float64) + bias, 0) + residual
    np.testing.assert_allclose(out, exact, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", TYPES)
def test_every_config_of_the_space_says_whether_it_fits(dtype):
    problem = GemmProblem.dense(1, 4096, 4096, layout="nt", dtype=dtype)
    reasons = [V01.why_not(problem, each, ARCHS["sm_80"]) for each in V01.space()]
    assert reasons.count(None) >= len(reasons) // 3
    assert V01.why_not(problem, V01.default, ARCHS["sm_80"]) is None
    assert V01 in rungs_beside(dtype)
    assert V01 not in rungs_for(dtype)


def test_what_a_warp_cannot_walk_is_refused_with_its_numbers():
    problem = GemmProblem.dense(1, 4096, 4096, layout="nt", dtype="bf16")
    for wrong, word in (
        (SimtConfig(2, 8, 512, warp_m=1, warp_n=1), "makes all rows of a tile.*has 1 x 1 of 2 x 8"),
        (config(1, 1, 128), "a multiple of 256"),
        (config(16, 8, 512), "16 x 8 are 128"),
    ):
        assert re.search(word, V01.why_not(problem, wrong, ARCHS["sm_80"]))
