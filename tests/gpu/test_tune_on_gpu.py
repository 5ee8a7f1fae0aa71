"""Tuning on a GPU: what is right is timed, what is wrong is caught, plans follow, captures are refused."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import tilewright as tw
from tilewright.attn.family import plan_attention
from tilewright.attn.problem import AttentionProblem
from tilewright.epilogue import relu, where
from tilewright.errors import DeviceError
from tilewright.gemm.family import plan_for
from tilewright.gemm.problem import GemmProblem, Matrix, row_major
from tilewright.gemm.rungs import find_rung, rungs_for
from tilewright.gemm.space import explore
from tilewright.jit.device import device
from tilewright.plan import tables
from tilewright.plan.space import Candidate
from tilewright.plan.store import Store
from tilewright.tuning.attention import tune_attention_problems
from tilewright.tuning.fused import read_words, with_epilogue
from tilewright.tuning.product_trial import ProductTrial, program_of
from tilewright.tuning.products import tune_problems
from tilewright.tuning.verify import Pattern

pytestmark = pytest.mark.gpu


@pytest.fixture
def folder(tuned_folder):
    tables._stores.clear()
    yield tuned_folder
    tables._stores.clear()
    tables.results_changed()


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize(
    "shape", [(256, 256, 256), (1, 512, 700), (129, 257, 65), (16, 4096, 4096)], ids=lambda s: "x".join(map(str, s))
)
def test_problems_are_tuned_with_no_failure_and_the_plan_follows(folder, dtype, shape):
    problem = GemmProblem.dense(*shape, dtype=dtype)
    (tuned,) = tune_problems([problem], kept=8, store=Store("H200", "test"))
    assert not tuned.entry.failed
    assert len(tuned.entry.timed) == 8
    assert all(0 < timed.ms < 100 for timed in tuned.entry.timed)


def test_strides_offsets_batches_and_other_results_are_measured_as_they_lie():
    a, b = Matrix(61, 1, 6100, alignment=2), Matrix(3, 200, 43_200)
    rows = GemmProblem(100, 72, 60, a, b, row_major(100, 72, 3), None, 3, "bf16", "f32")
    gpu = device(0).gpu
    with ProductTrial(rows, 0, Pattern("bf16")) as measurer:
        for candidate in explore(rows, gpu, rungs_for("bf16"), 12).kept:
            kernel = program_of(rows, candidate).product.compile(gpu.arch)
            assert measurer.verify(candidate, kernel) == "", str(candidate)


def test_another_types_kernel_a_row_too_few_and_one_too_many_are_found(monkeypatch):
    problem = GemmProblem.dense(256, 256, 256, dtype="bf16")
    gpu, h11 = device(0).gpu, find_rung("h11")
    right = Candidate(h11, h11.default, None)  # type: ignore[arg-type]
    with ProductTrial(problem, 0, Pattern("bf16")) as measurer:
        assert measurer.verify(right, h11.compile(problem, h11.default, gpu.arch)) == ""
        halves = dataclasses.replace(problem, dtype="f16", out_dtype="bf16")
        assert "elements are wrong" in measurer.verify(right, h11.compile(halves, h11.default, gpu.arch))
        for rows, words in (
            (255, "256 of 65536 elements are wrong or unwritten"),
            (257, "it wrote outside its output"),
        ):
            other = dataclasses.replace(problem, m=rows)
            launch = h11.launch(other, h11.default, measurer.sets[0])
            monkeypatch.setattr(measurer, "_launches_of", lambda *_, launch=launch: [launch])
            assert words in measurer.verify(right, h11.compile(other, h11.default, gpu.arch))


def test_tune_on_arrays_stores_the_result_and_matmul_runs_it(folder):
    a = np.random.default_rng(0).standard_normal((200, 300)).astype(np.float16)
    b = np.random.default_rng(1).standard_normal((300, 104)).astype(np.float16)
    tuned = tw.tune(a, b, rungs=["h11"], seconds=2)
    plan = plan_for(tuned.problem, device(0).gpu)
    assert plan.source == "tuned here"
    assert plan.config == tuned.entry.best.config
    right = a.astype(np.float64) @ b.astype(np.float64)
    assert np.abs(tw.matmul(a, b).astype(np.float64) - right).max() < 0.05 * np.abs(right).max()
    assert tw.tune(a, b, rungs=["h11"]).space is None, "known already"


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize(
    "shape", [(256, 256, 256), (129, 257, 65), (16, 4096, 4096)], ids=lambda s: "x".join(map(str, s))
)
def test_products_with_an_epilogue_are_tuned_with_no_failure(folder, dtype, shape):
    problem = with_epilogue(GemmProblem.dense(*shape, dtype=dtype), *read_words("row_scale,bias,silu,residual"))
    (tuned,) = tune_problems([problem], kept=8, store=Store("H200", "test"), seconds=2)
    assert not tuned.entry.failed
    assert len(tuned.entry.timed) == 8
    assert tuned.entry.klass.fused


def test_tune_with_an_epilogue_of_ones_own_stores_the_result_and_matmul_runs_it(folder):
    random = np.random.default_rng(0)
    a, b, gate = (random.standard_normal(s).astype(np.float16) for s in ((200, 320), (320, 104), (200, 104)))
    x = random.standard_normal(104, dtype=np.float32)

    def own(acc, x, gate, row):
        return where(row % 2 == 0, relu(acc + x), acc * gate)

    tuned = tw.tune(a, b, epilogue=own, x=x, gate=gate, rungs=["h11"], seconds=2)
    assert not tuned.entry.failed
    plan = plan_for(tuned.problem, device(0).gpu)
    assert (plan.source, plan.config) == ("tuned here", tuned.entry.best.config)
    sums = a.astype(np.float64) @ b.astype(np.float64)
    right = np.where(np.arange(200)[:, None] % 2 == 0, np.maximum(sums + x, 0), sums * gate)
    found = tw.matmul(a, b, epilogue=own, x=x, gate=gate).astype(np.float64)
    assert np.abs(found - right).max() < 2e-3 * np.abs(right).max()


def test_another_epilogue_is_found_wrong_where_the_product_and_where_a_sum_of_parts_computes_it(monkeypatch):
    gpu, h11 = device(0).gpu, find_rung("h11")
    plain = GemmProblem.dense(256, 256, 512, dtype="bf16")
    problem, other = (with_epilogue(plain, *read_words(words)) for words in ("bias,silu", "bias,gelu"))
    with ProductTrial(problem, 0, Pattern("bf16")) as measurer:
        for parts in (1, 4):
            candidate = Candidate(h11, dataclasses.replace(h11.default, split_k=parts), None)  # type: ignore[arg-type]
            kernel = program_of(problem, candidate).product.compile(gpu.arch)
            assert measurer.verify(candidate, kernel) == ""
            with monkeypatch.context() as patch:
                patch.setattr("tilewright.tuning.product_trial.program_of", lambda _, of: program_of(other, of))
                wrong = program_of(other, candidate).product.compile(gpu.arch)
                assert "elements are wrong" in measurer.verify(candidate, wrong)


@pytest.mark.parametrize(
    "attention",
    [
        AttentionProblem.dense(2, 4, 512, 512, 128),
        AttentionProblem.dense(1, 8, 333, 1000, 64, heads_kv=2, is_causal=True),
        AttentionProblem.dense(4, 2, 5, 19, 128, dtype="f16"),
        AttentionProblem.dense(1, 8, 4, 8192, 128, heads_kv=2),
    ],
    ids=["whole", "ragged, causal, groups", "few queries", "few queries on many keys"],
)
def test_attention_is_tuned_with_no_failure_and_the_plan_follows(folder, attention):
    (tuned,) = tune_attention_problems([attention], kept=8, seconds=2)
    assert not tuned.entry.failed
    assert len(tuned.entry.timed) == 8
    plan = plan_attention(attention, device(0).gpu)
    assert (plan.source, plan.config) == ("tuned here", tuned.entry.best.config)


def test_tune_inside_a_capture_is_refused():
    torch = pytest.importorskip("torch")
    a = torch.zeros(64, 64, device="cuda", dtype=torch.bfloat16)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), pytest.raises(DeviceError, match="captured"):
        tw.tune(a, a)
