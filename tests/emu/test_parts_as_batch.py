"""fp32x3 with k in parts: to its kernels a batch of products, summed by the launch that sums all parts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ConfigRejected
from tilewright.gemm.problem import GemmProblem
from tilewright.gemm.rung import GemmConfig
from tilewright.gemm.rungs import find_rung
from tilewright.gemm.space import explore
from tilewright.gemm.stages import program_for
from tilewright.gpus import find_gpu
from tilewright.plan.plan import Plan
from tilewright.plan.space import Candidate
from tilewright.tuning.products import TunableProducts

THREE = GemmConfig(32, 32, 32, warp_m=16, warp_n=16, stages=2, group_m=2, min_blocks=4, split_k=3)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize(("rung", "launches"), [("t02", 2), ("t03", 4)])
@pytest.mark.parametrize("layout", ["row-major", "transposed and reversed"])
def test_the_parts_add_up(rung, launches, layout):
    a, b, c, bias = normal(33, 192), normal(192, 40), normal(33, 40), normal(40)
    if layout != "row-major":
        a, b = np.asfortranarray(a)[:, ::-1], np.asfortranarray(b)[::-1]
    out = np.full((33, 40), np.nan, np.float32)
    with tw.emulator() as emulator:
        tw.matmul(a, b, c=c, alpha=0.5, bias=bias, out=out, precision="fp32x3", rung=rung, config=THREE)
        assert len(emulator.results) == launches
        assert not emulator.memory._buffers, "the workspace is given back"
    sizes = np.abs(a).astype(np.float64) @ np.abs(b)
    np.testing.assert_array_less(np.abs(out - (0.5 * (a.astype(np.float64) @ b) + c + bias)), 2.0**-23 * (sizes + 4))


def test_what_parts_of_numbers_cannot_give_is_done_again_in_its_part_of_k():
    """Infinities, NaN, and products too small for bf16 parts, each in one part of k; verify agrees."""
    a, b = normal(32, 96), normal(96, 32)
    a[3, 40], a[5, 70], b[90, 7] = np.inf, np.nan, -np.inf
    a[8], b[:, 9] = 1e-30 * a[8], 1e-12 * b[:, 9]
    with np.errstate(all="ignore"):
        expected = a.astype(np.float64) @ b
    with tw.emulator():
        out = tw.matmul(a, b, precision="fp32x3", rung="t02", config=THREE, verify=True)
    np.testing.assert_array_equal(np.isfinite(out), np.isfinite(expected))
    np.testing.assert_array_equal(np.isnan(out), np.isnan(expected))
    assert abs(expected[8, 9]) > 1e-42
    assert abs(out[8, 9] - expected[8, 9]) <= 96 * 2.0**-150, "half the least number a step"


@pytest.mark.parametrize("rung", ["t02", "t03"])
def test_unequal_parts_and_batches_are_refused_with_the_numbers(rung):
    with tw.emulator():
        with pytest.raises(ConfigRejected, match="k=190 is not 3 parts of whole tiles of 32"):
            tw.matmul(normal(8, 190), normal(190, 8), precision="fp32x3", rung=rung, config=THREE)
        with pytest.raises(ConfigRejected, match="split_k=3 of 2 products"):
            tw.matmul(normal(2, 8, 96), normal(2, 96, 8), precision="fp32x3", rung=rung, config=THREE)


def test_the_kernel_is_that_of_a_batch_also_in_tuning():
    problem, rung = GemmProblem.dense(64, 512, 8192, precision="fp32x3"), find_rung("t03")
    config = replace(rung.default, split_k=16)
    assert rung.shared_bytes(config, problem) < rung.shared_bytes(rung.default, problem), "one chain holds a part of k"
    stage = program_for(problem, Plan(rung, config, "a test", "a test")).product
    assert (stage.problem.batch, stage.problem.k, stage.kernel.config) == (16, 512, rung.default)
    space = explore(problem, find_gpu("H200"), [rung])
    assert max(candidate.config.split_k for candidate in space.kept) > 1, "few tiles: parts are worth measuring"
    job = TunableProducts().job(problem, Candidate(rung, config, space.kept[0].prediction))
    assert job.constants == rung.constants(stage.problem, stage.kernel.config)
    a, b = np.empty((64, 8192), np.float32), np.empty((8192, 512), np.float32)
    told = str(tw.explain(a, b, precision="fp32x3", rung="t03", config=config, gpu="H200"))
    assert "split k 16" in told
    assert "sum of parts" in told
