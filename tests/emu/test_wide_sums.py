"""v02 on the emulator: results of few elements, each rounded once however long its sum is."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import tilewright as tw
from tilewright.gemm.config import SimtConfig
from tilewright.gemm.problem import GemmProblem
from tilewright.gemm.rungs import find_rung
from tilewright.gemm.rungs.rows import wide_sums
from tilewright.gpus import ARCHS

V02 = find_rung("v02")


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def rounded_once(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32)


@pytest.mark.parametrize("config", V02.space(), ids=str)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_every_element_is_rounded_once(config, layout):
    for m, n, k in ((1, 1, 2311), (3, 5, 77), (9, 10, 1), (16, 8, 300)):
        a = normal(m, k, seed=m) if layout[0] == "n" else normal(k, m, seed=m).T
        b = normal(k, n, seed=n) if layout[1] == "n" else normal(n, k, seed=n).T
        with tw.emulator():
            out = tw.matmul(a, b, rung="v02", config=config)
        np.testing.assert_array_equal(out, rounded_once(a, b))


def test_a_sum_that_cancels_is_as_right_as_any():
    a, b = np.ones((1, 3001), np.float32), normal(3001, 1)
    a[0, 0], a[0, -1], b[0], b[-1] = 1, -1, 3e7, 3e7
    with tw.emulator():
        out = tw.matmul(a, b, rung="v02")
    np.testing.assert_array_equal(out, rounded_once(a, b))


def test_parts_of_k_are_rounded_before_they_are_added_up():
    a, b = normal(2, 5000), normal(5000, 3, seed=1)
    with tw.emulator():
        out = tw.matmul(a, b, rung="v02", config=replace(wide_sums(2, 4), split_k=3))
    ends = [5000 * part // 3 for part in range(4)]
    parts = [rounded_once(a[:, lo:hi], b[lo:hi]) for lo, hi in pairwise(ends)]
    np.testing.assert_array_equal(out, (parts[0] + parts[2]) + parts[1])


def test_batches_c_and_epilogues_reach_their_own_elements():
    a, b = normal(3, 2, 300), normal(3, 300, 5, seed=1)
    bias, residual, c = normal(5, seed=2), normal(3, 2, 5, seed=3), normal(3, 2, 5, seed=4)
    with tw.emulator():
        fused = tw.matmul(a, b, bias=bias, activation="relu", residual=residual, rung="v02")
        added = tw.matmul(a, b, c=c, alpha=2, beta=0.5, rung="v02")
    exact = rounded_once(a, b)
    np.testing.assert_allclose(fused, np.maximum(exact + bias, 0) + residual, rtol=1e-6, atol=1e-5)
    np.testing.assert_allclose(added, 2 * exact + 0.5 * c, rtol=1e-6, atol=1e-5)


def test_what_a_block_cannot_make_is_refused_with_its_numbers():
    problem = GemmProblem.dense(2, 2, 4096)
    for wrong, word in (
        (SimtConfig(1, 4, warp_m=1, warp_n=1), "makes 8 or 16 elements; the config has 4"),
        (SimtConfig(2, 8, warp_m=1, warp_n=2), "makes one element; the config has 1 x 2"),
    ):
        assert re.search(word, V02.why_not(problem, wrong, ARCHS["sm_80"]))
