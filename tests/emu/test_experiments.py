"""The kernels of experiments: right as the rungs they change are, counted as they say, on no ladder and in no plan."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from attention_runs import STRIDED, run_attention
from rung_products import Bench, Case

import tilewright as tw
from tilewright.attn.config import AttentionConfig
from tilewright.attn.problem import AttentionProblem
from tilewright.attn.rungs import EVERY_RUNG, find_attention_rung
from tilewright.attn.rungs import EXPERIMENTS as ATTENTION_EXPERIMENTS
from tilewright.errors import ConfigRejected
from tilewright.gemm.rung import GemmConfig
from tilewright.gemm.rungs import EXPERIMENTS, GEMM_RUNGS, find_rung
from tilewright.lab.attention import select_attention_rungs
from tilewright.lab.rung_source import below
from tilewright.lab.select import select_rungs

SMALL = {
    "f02x_16bit": GemmConfig(16, 32),
    "f03x_16bit": GemmConfig(16, 32, 16, group_m=2),
    "f08x_single_loads": GemmConfig(64, 64, 8, 4, 4, 32, 64, 2, 2),
    "f08y_wide_b": GemmConfig(64, 64, 8, 4, 4, 32, 64, 2, 2),
    "h05x_registers": GemmConfig(32, 32, 16, warp_m=32, warp_n=16, subtiles_m=2, subtiles_n=1, stages=2),
}
CASES = [
    Case(64, 32, 96, "nn", dtype="bf16", out_dtype="f32"),
    Case(32, 64, 64, "tt", dtype="f16", out_dtype="f16"),
    Case(64, 64, 32, "tn", dtype="bf16", out_dtype="bf16", alpha=1.5, beta=-0.5),
    Case(45, 70, 37, "nn", out="q", dtype="f16", out_dtype="f32", alpha=-1.0, beta=2.0, c="q"),
    Case(40, 30, 50, "ss", dtype="bf16", out_dtype="f16", batch=2),
    Case(33, 34, 1, "nt", dtype="bf16", out_dtype="bf16"),
    Case(33, 24, 0, dtype="bf16", out_dtype="bf16", beta=2.0),
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("rung", SMALL)
def test_a_product_is_right_and_stays_inside(rung, case):
    if find_rung(rung).dtypes == ("f32",):
        case = dataclasses.replace(case, dtype="f32")
    Bench(case).run(find_rung(rung), SMALL[rung]).assert_right()


def test_vectors_of_b_alone_save_loads_but_not_those_of_a():
    def loads(name: str) -> int:
        return (
            Bench(Case(64, 64, 64, dtype="f32"))
            .run(find_rung(name), SMALL["f08y_wide_b"])
            .result.counters.shared_load_requests
        )

    # per step of k and warp: 8 elements of A and 8 of B; f08 reads both four at a time
    assert [loads(name) / (2 * 64) for name in ("f08x", "f08y", "f08")] == [16, 10, 4]


def test_every_experiment_with_products_is_tested_here():
    assert set(SMALL) == {rung.id for rung in EXPERIMENTS}


def test_sixteen_bits_take_f02_as_many_loads_of_fewer_sectors_and_no_shared_load_conflicts():
    wide = Bench(Case(64, 64, 64, dtype="f32", out_dtype="f32")).run(find_rung("f02"), SMALL["f02x_16bit"])
    narrow = Bench(Case(64, 64, 64, out_dtype="f32")).run(find_rung("f02x"), SMALL["f02x_16bit"])
    before, after = wide.result.counters, narrow.result.counters
    assert after.global_load_requests == before.global_load_requests
    assert before.global_load_sectors / before.global_load_requests == 2.5  # four of B, one of A
    assert after.global_load_sectors / after.global_load_requests == 1.5
    shared = Bench(Case(64, 64, 64, out_dtype="f32")).run(find_rung("f03x"), SMALL["f03x_16bit"]).result.counters
    assert shared.shared_load_wavefronts == shared.shared_load_requests


@pytest.mark.parametrize(("seq", "is_causal"), [(17, True), (136, True), (128, False)])
def test_unswizzled_attention_is_right(seq, is_causal):
    problem = AttentionProblem.dense(1, 2, seq, seq, 64, is_causal=is_causal, with_lse=True)
    verdict, _ = run_attention(find_attention_rung("a07x"), problem)
    assert verdict.ok, verdict.reason


def test_unswizzled_attention_is_right_between_nan():
    verdict, _ = run_attention(find_attention_rung("a07x"), STRIDED, AttentionConfig(64, 64, 32, 4, 2, 2, 2))
    assert verdict.ok, verdict.reason


def test_without_its_swizzle_a07_takes_32_wavefronts_per_ldmatrix_instead_of_4():
    problem, taken = AttentionProblem.dense(1, 1, 128, 128, 128), {}
    for name in ("a07", "a07x"):
        verdict, emulator = run_attention(find_attention_rung(name), problem)
        assert verdict.ok, verdict.reason
        loads = [row for row in emulator.last.counters.per_instruction if "ldmatrix" in row.ptx]
        taken[name] = {row.wavefronts / row.requests for row in loads}
    assert taken == {"a07": {4}, "a07x": {32}}, "docs/attention.md says so"


def test_an_experiment_is_compared_with_the_rung_it_changes_and_differs_in_nothing_else():
    for rung in (*EXPERIMENTS, *ATTENTION_EXPERIMENTS):
        changed = below(rung)
        assert changed is not None
        assert changed.id[:3] == rung.id[:3]
        assert changed in (*GEMM_RUNGS, *EVERY_RUNG)
    a07, a07x = find_attention_rung("a07"), find_attention_rung("a07x")
    own = {"id", "file", "entry", "teaches"}
    for field in dataclasses.fields(a07):
        assert (field.name in own) == (getattr(a07, field.name) != getattr(a07x, field.name)), field.name


def test_an_experiment_is_found_by_its_name_and_is_on_no_ladder_and_in_no_plan():
    assert not {rung.id for rung in EXPERIMENTS} & {rung.id for rung in GEMM_RUNGS}
    assert not {rung.id for rung in ATTENTION_EXPERIMENTS} & {rung.id for rung in EVERY_RUNG}
    assert [rung.id for rung in select_rungs("f02x,h05x", "bf16")] == ["f02x_16bit", "h05x_registers"]
    assert [rung.id for rung in select_attention_rungs("a07..a08,a07x")][-1] == "a07x_unswizzled"
    for select, wrong, words in (
        (lambda text: select_rungs(text, "bf16"), "f02x..h03", "is on no ladder, so it ends no range"),
        (lambda text: select_rungs(text, "f32"), "f02x", "does not multiply f32"),
        (select_attention_rungs, "d01", "d01_split is on no ladder"),
        (select_attention_rungs, "a07x..a09", "is on no ladder, so it ends no range"),
    ):
        with pytest.raises(ConfigRejected, match=words):
            select(wrong)


def test_a_call_runs_an_experiment_that_it_names():
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal((20, 20)).astype(np.float16) for _ in range(2))
    with tw.emulator():
        out = tw.matmul(a, b, rung="f03x", out_dtype="f32")
    np.testing.assert_allclose(out, a.astype(np.float64) @ b.astype(np.float64), atol=1e-4)
