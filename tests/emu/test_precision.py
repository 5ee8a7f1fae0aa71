"""matmul(precision=...) on the emulator: what runs, what it gives, what is refused and what explain says of it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import tilewright as tw
from tilewright.arrays.dtypes import LARGEST_EXTENT
from tilewright.errors import ConfigRejected, InvalidOperand
from tilewright.gemm.family import plan_for
from tilewright.gemm.problem import GemmProblem, row_major
from tilewright.gemm.rung import GemmConfig
from tilewright.gemm.rungs import find_rung
from tilewright.gpus import GPUS
from tilewright.plan.demands import Demands

RNG = np.random.default_rng(21)
A, B = RNG.standard_normal((2, 40, 70), np.float32), RNG.standard_normal((70, 33), np.float32)
EXACT = A.astype(np.float64) @ B.astype(np.float64)
SMALL = GemmConfig(32, 32, 32, warp_m=16, warp_n=16, stages=2, group_m=2)


def error(out: np.ndarray) -> float:
    return float(np.abs(out - EXACT).max())


def test_each_precision_gives_its_accuracy():
    with tw.emulator():
        plain = error(tw.matmul(A, B))
        parts = error(tw.matmul(A, B, precision="fp32x3", config=SMALL))
        rounded = error(tw.matmul(A, B, precision="tf32", config=SMALL))
    assert parts <= 1.5 * plain
    assert 100 * plain < rounded < 0.05


def test_gpus_of_compute_capability_8_0_get_the_same_accuracy():
    """They lack the instructions by which others round to tf32 and watch magnitudes."""
    with tw.emulator(gpu="A100"):
        assert error(tw.matmul(A, B, precision="fp32x3", config=SMALL)) < 1e-5
        assert error(tw.matmul(A, B, precision="tf32", config=SMALL)) < 0.05
        np.testing.assert_array_equal(tw.matmul(1e-30 * A, 1e-10 * B, precision="fp32x3", config=SMALL)[0, 0, 0],
                                      tw.matmul(1e-30 * A, 1e-10 * B, rung="f01")[0, 0, 0])  # fmt: skip


def test_c_bias_and_activation_go_with_a_precision():
    c, bias = RNG.standard_normal((40, 33), np.float32), RNG.standard_normal(33, np.float32)
    with tw.emulator():
        out = tw.matmul(
            A, B, c=c.astype(np.float16), alpha=0.5, beta=2.0, bias=bias, activation="relu", precision="fp32x3",
            config=SMALL, out_dtype="f16",
        )  # fmt: skip
    exact = np.maximum(0.5 * EXACT + 2.0 * c.astype(np.float16) + bias, 0)
    np.testing.assert_allclose(out, exact, rtol=1.01 * 2.0**-11, atol=2e-5)


@pytest.mark.parametrize(("precision", "tolerance"), [("tf32", 0.2), ("fp32x3", 1e-4)])
def test_everything_that_is_fused_goes_with_a_precision(precision, tolerance):
    """Ragged, batched, strided: scales, a bias a row, an expression of its own, a transposed residual, a given out."""
    rows, cols, bias = (RNG.standard_normal(shape, np.float32) for shape in ((2, 40, 1), (33,), (40, 1)))
    residual = RNG.standard_normal((33, 40), np.float32).T
    out = np.full((2, 33, 40), np.nan, np.float16 if precision == "tf32" else np.float32).swapaxes(-1, -2)
    with tw.emulator():
        given = tw.matmul(
            A, B, out=out, precision=precision, config=SMALL, bias=bias, r=residual, rows=rows, cols=cols,
            epilogue=lambda acc, bias, r, rows, cols: acc * rows * cols + bias - r,
        )  # fmt: skip
    assert given is out
    assert np.abs(out - (EXACT * rows * cols + bias - residual)).max() < tolerance


@pytest.mark.parametrize(("precision", "small", "large"), [("tf32", "t01", "t01"), ("fp32x3", "t02", "t03")])
@pytest.mark.parametrize("gpu", GPUS.values(), ids=lambda gpu: gpu.arch.name)
def test_the_plan_takes_the_precisions_rungs_on_every_gpu_and_size(gpu, precision, small, large):
    """Where an SM's shared memory holds only one block of t03, the model may prefer t02's many small ones."""
    tiles = set()
    if gpu.arch.name == "sm_90a":
        large = {"t01": "t04", "t03": "t05"}[large]
    many = (large,) if gpu.arch.shared_per_sm > 128 * 1024 else (large, small)
    for size, rungs in ((1, (small,)), (64, (small,)), (2048, many), (4096, many)):
        problem = GemmProblem.dense(size, size, size, precision=precision)
        plan = plan_for(problem, gpu)
        assert plan.rung.id.startswith(rungs)
        assert plan.rung.why_not(problem, plan.config, gpu.arch) is None
        tiles.add((plan.config.tile_m, plan.config.tile_n))
    assert len(tiles) > 1 or len(many) > 1


@pytest.mark.parametrize("gpu", GPUS.values(), ids=lambda gpu: gpu.arch.name)
def test_every_product_has_a_plan_also_where_splitting_would_borrow_too_much(gpu):
    most = LARGEST_EXTENT
    for m, n, k, batch in ((0, 5, 5, 1), (5, 5, 0, 1), (1, 1, most, 1), (most, 1, 1, 1), (64, 64, 64, 10**6)):
        assert plan_for(GemmProblem.dense(m, n, k, batch=batch, precision="fp32x3"), gpu)
    huge = plan_for(GemmProblem.dense(32768, 32768, 32768, precision="fp32x3"), gpu)
    assert huge.rung.id == "t02_fp32x3"
    assert any("B; at most 4294967296 are borrowed" in reason for _, _, reason in huge.refused)
    with pytest.raises(ConfigRejected, match="its split operands are 12889096704 B"):
        plan_for(GemmProblem.dense(32768, 32768, 32768, precision="fp32x3"), GPUS["H200"], rung="t03")
    shared = GemmProblem.dense(64, 4096, 4096, precision="fp32x3", batch=60000)
    assert "borrowed" not in (find_rung("t03").why_not(
        dataclasses.replace(shared, a=row_major(64, 4096), b=row_major(4096, 4096)), SMALL, GPUS["H200"].arch
    ) or "")  # fmt: skip
    assert "borrowed" in find_rung("t03").why_not(shared, SMALL, GPUS["H200"].arch)


def test_16_bit_operands_and_unknown_names_are_refused():
    half = A.astype(np.float16)
    with tw.emulator():
        with pytest.raises(InvalidOperand, match="a way to multiply float32 operands; these are float16"):
            tw.matmul(half, B.astype(np.float16), precision="tf32")
        with pytest.raises(InvalidOperand, match="precision 'fp64' is not known"):
            tw.matmul(A, B, precision="fp64")


def test_a_rung_of_another_precision_is_refused():
    with tw.emulator():
        with pytest.raises(ConfigRejected, match="precision 'fp32x3'; asked for is 'ieee'"):
            tw.matmul(A, B, rung="t02")
        with pytest.raises(ConfigRejected, match="asked for is 'tf32'"):
            tw.matmul(A, B, rung="f12", precision="tf32")


@pytest.mark.parametrize("gpu", GPUS.values(), ids=lambda gpu: gpu.arch.name)
@pytest.mark.parametrize("rung", ["t01", "t02", "t03"])
def test_a_rung_can_be_named_on_every_gpu(gpu, rung):
    """Defaults are the H200's: with 99 KiB of shared memory per block another of the rung's configs stands in."""
    named = find_rung(rung)
    for size in (64, 4096):
        problem = GemmProblem.dense(size, size, size, precision=named.precision)
        plan = plan_for(problem, gpu, rung)
        assert plan.rung is named
        assert named.why_not(problem, plan.config, gpu.arch) is None
        assert (plan.config == named.default) == (named.why_not(problem, named.default, gpu.arch) is None)


def test_parts_and_batch_invariance_exclude_one_another():
    problem = GemmProblem.dense(64, 64, 64, precision="fp32x3")
    with pytest.raises(ConfigRejected, match="batch_invariant=True cannot be had with precision='fp32x3'"):
        plan_for(problem, GPUS["H200"], demands=Demands(batch_invariant=True))


def test_explain_says_the_precision_and_what_it_costs():
    text = " ".join(str(tw.explain(A[0], B, precision="fp32x3", gpu="H200")).split())
    assert "by products of two or three parts" in text
    assert "t02_fp32x3" in text
    text = " ".join(str(tw.explain(A[0], B, precision="fp32x3", rung="t03", gpu="H200")).split())
    assert "split a, split b, product; 147968 B of memory borrowed" in text
    assert "aligned copies of split operands, zeros up to whole tiles; only results are predicated" in text
    big = np.zeros((4096, 4096), np.float32)
    bounds = [tw.explain(big, big, precision=p, gpu="H200").roofline.bound_tflops for p in ("fp32x3", "tf32")]
    assert bounds[1] == pytest.approx(3 * bounds[0])
    assert "rounded to tf32" in " ".join(str(tw.explain(A[0], B, precision="tf32", gpu="H200")).split())
