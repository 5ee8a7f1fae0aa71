"""The choice of rung and config: deterministic, explained, and refused with numbers where nothing fits."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from fake_executor import fake_gpu

import tilewright as tw
from tilewright.errors import ConfigRejected, InvalidOperand
from tilewright.gemm.explain import edge_reason, explain_problem, roofline
from tilewright.gemm.family import plan_for
from tilewright.gemm.presets import PRESETS
from tilewright.gemm.problem import GemmProblem, Matrix
from tilewright.gemm.rung import GemmConfig
from tilewright.gemm.rungs import find_rung, rungs_for
from tilewright.gemm.stages import program_for
from tilewright.gpus import ARCHS, GPUS, Resources, as_found, occupancy
from tilewright.jit import Launch

H200 = GPUS["H200"]
UNTUNED = as_found(GPUS["H100"], 120, 0, 0)
"""No table ships for it or for its likes: the cost model chooses."""


@pytest.mark.parametrize("gpu", GPUS.values(), ids=str)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_every_choice_compiles_in_principle_on_every_gpu(gpu, layout):
    problem = GemmProblem.dense(4096, 4096, 4096, layout=layout)
    f12 = find_rung("f12")
    fits = [choice for choice in PRESETS["f32"] if f12.why_not(problem, choice.config, gpu.arch) is None]
    assert len(fits) >= len(PRESETS["f32"]) - 1, "a choice that fits nowhere is dead weight"
    plan = plan_for(problem, gpu)
    assert plan.rung.why_not(problem, plan.config, gpu.arch) is None


def test_large_products_take_large_tiles_and_small_ones_spread_over_the_sms():
    large = plan_for(GemmProblem.dense(4096, 4096, 4096), H200).config
    small = plan_for(GemmProblem.dense(256, 256, 256), H200).config
    thin = plan_for(GemmProblem.dense(16, 4096, 4096), H200).config
    assert large.tile_m * large.tile_n >= 128 * 128
    assert small.tile_m * small.tile_n <= 64 * 64
    assert thin.tile_m == min(choice.config.tile_m for choice in PRESETS["f32"])


def test_the_same_problem_gets_the_same_plan_and_batch_counts_as_tiles():
    one = GemmProblem.dense(512, 512, 512)
    assert plan_for(one, H200) == plan_for(dataclasses.replace(one), H200)
    assert plan_for(dataclasses.replace(one, batch=64), H200).config.tile_m > plan_for(one, H200).config.tile_m


def test_an_architecture_stands_for_its_first_gpu():
    problem = GemmProblem.dense(512, 512, 512)
    assert plan_for(problem, ARCHS["sm_80"]) == plan_for(problem, GPUS["A100"])


@pytest.mark.parametrize("rung", [rung.id for rung in rungs_for("f32")])
def test_a_named_rung_runs_its_default(rung):
    plan = plan_for(GemmProblem.dense(100, 100, 100), H200, rung)
    assert (plan.rung.id, plan.config, plan.source) == (rung, find_rung(rung).default, "the rung's default")


def test_a_named_config_without_a_rung_is_one_of_the_fast_rung():
    config = PRESETS["f32"][-1].config
    plan = plan_for(GemmProblem.dense(100, 100, 100), H200, config=config)
    assert (plan.rung.id, plan.config, plan.source) == ("f12_multistage", config, "the caller")


def test_a_warp_of_f12_whose_lanes_stand_in_one_row_is_refused_before_it_is_compiled():
    config = GemmConfig(4, 256, 16, 4, 4, 4, 128, stages=2, cache="cg")
    reason = find_rung("f12").why_not(GemmProblem.dense(1, 256, 64), config, H200.arch)
    assert "a subtile takes 1 x 32 lanes: not 32 in two rows or more" in (reason or "")


def test_a_named_config_that_does_not_fit_is_refused_with_numbers_and_a_way_out():
    config = dataclasses.replace(find_rung("f12").default, stages=10)
    with pytest.raises(ConfigRejected, match=r"needs \d+ B of shared memory per block; sm_90a allows 232448.*Omit"):
        plan_for(GemmProblem.dense(100, 100, 100), H200, config=config)


def test_what_a_smaller_gpu_refuses_is_listed_and_the_rest_still_runs(monkeypatch):
    small = dataclasses.replace(UNTUNED, arch=dataclasses.replace(UNTUNED.arch, shared_per_block=48 * 1024))
    plan = plan_for(GemmProblem.dense(4096, 4096, 4096), small)
    assert plan.refused
    for rung, config, reason in plan.refused:
        assert rung == "f12_multistage"
        assert "shared memory" in reason
        assert config not in str(plan.config)
    none = dataclasses.replace(UNTUNED, arch=dataclasses.replace(UNTUNED.arch, shared_per_block=1024))
    assert not plan_for(GemmProblem.dense(64, 64, 64), none).rung.dynamic_shared


# --- explain ---------------------------------------------------------------------------------------------------------


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def test_explain_names_rung_config_reason_source_path_launch_and_bound():
    text = str(tw.explain(zeros(300, 200), zeros(200, 100), gpu="A100"))
    for word in ("[300 x 200] @ [200 x 100]", "A100 (sm_80)", "f12_multistage", "edge (predicated): m=300", "blocks of",
                 "B of shared memory", "TFLOP/s at most", "not a measurement", "refused"):  # fmt: skip
        assert word in text.replace("\n         ", " ")
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_where_no_table_is_the_cost_model_is_named_with_its_runners_up(dtype):
    plan = plan_for(GemmProblem.dense(999, 1000, 999, dtype=dtype), UNTUNED)
    assert plan.source == "cost model"
    assert len(plan.runners_up) == 3
    shares = [float(words.split()[2]) for _, _, words in plan.runners_up]
    assert 1 <= shares[0] <= shares[1] <= shares[2]
    assert str(plan.config) not in [config for _, config, _ in plan.runners_up]


def test_explain_says_what_the_check_of_a_result_costs():
    a = zeros(64, 32)
    assert "verify" not in str(tw.explain(a, a.T))
    rows = f"Freivalds' product: {4 * (64 * 32 * 2 + 64 * 64)} B"
    assert rows in " ".join(str(tw.explain(a, a.T, verify=True)).split())
    for fused in ({"activation": "relu"}, {"c": (out := zeros(64, 64)), "out": out}):
        told = " ".join(str(tw.explain(a, a.T, verify=True, **fused)).split())
        assert f"makes the product once more, without what follows it; {12 * 64 * 64} B" in told


def test_explain_says_which_gpu_it_speaks_of_and_why(monkeypatch):
    from tilewright.jit import device

    monkeypatch.setattr(device, "gpu_available", lambda: False)
    a = zeros(8, 8)
    assert "no usable GPU" in tw.explain(a, a).gpu_source
    assert tw.explain(a, a).gpu.name == "H200"
    with fake_gpu():
        assert tw.explain(a, a).gpu_source == "the emulator in force"
    assert tw.explain(a, a, gpu="RTX 3090").gpu.name == "RTX 3090"
    with pytest.raises(InvalidOperand, match=r"Known: .*H100"):
        tw.explain(a, a, gpu="Voodoo 2")


def test_explain_agrees_with_what_matmul_launches():
    a, b = zeros(5, 130, 70), zeros(5, 70, 90)
    told = tw.explain(a, b, gpu="H200")
    with fake_gpu() as gpu:
        tw.matmul(a, b)
    assert [launch.grid for launch in gpu.launches] == [told.grid] * told.launches
    assert gpu.launches[0].block == told.block


def test_explain_tells_the_whole_grid_of_parts_and_of_batches_that_one_grid_cannot_hold():
    thin = tw.explain(zeros(16, 4096).astype(np.float16), zeros(4096, 512).astype(np.float16), gpu="H200")
    parts = thin.plan.config.split_k
    assert parts > 1
    assert f"the product: 1 launch of {thin.grid[0]} x 1 x {parts} blocks of" in str(thin)
    many = tw.explain(zeros(70000, 3, 5), zeros(70000, 5, 3), gpu="H200")
    assert "2 launches, the largest of 1 x 65535 blocks of" in str(many)
    assert "1 launch of 1 block of" in str(tw.explain(zeros(3, 5), zeros(5, 3), gpu="H200"))


def test_explain_tells_how_many_blocks_stay():
    a = zeros(4096, 4096).astype(np.float16)
    told = tw.explain(a, a, rung="h13", gpu="H200")
    assert told.grid == (132, 1, 1)  # one an SM, for 512 tiles
    assert "1 launch of 132 blocks of 256 threads, tile after tile," in " ".join(str(told).split())


def test_a_board_with_fewer_sms_than_its_name_says_gets_fewer_blocks_that_stay():
    sxm, pcie = GPUS["H100"], as_found(GPUS["H100"], 114, 0, 0)
    launch = Launch((512, 3, 2), (256, 1, 1), b"", resident=1)
    assert launch.grid_on(sxm) == (132, 3, 2)
    assert launch.grid_on(pcie) == (114, 3, 2)
    assert pcie.peak_tflops("bf16") == pytest.approx(989.4 * 114 / 132)


@pytest.mark.parametrize("shared", [0, 16384, 49152])
@pytest.mark.parametrize("blocks", [1, 132, 133, 264, 372, 528, 10_000])
def test_no_more_blocks_of_a_launch_that_spreads_fit_on_an_sm_than_must(blocks, shared):
    gpu, resources = GPUS["H200"], Resources(64, 0, 0, 0, 512, 1)
    launch = Launch((blocks, 1, 1), (128, 1, 1), b"", shared, overlaps=True)
    assert launch.shared_on(gpu, lambda: resources) == shared
    asked = dataclasses.replace(launch, spreads=True).shared_on(gpu, lambda: resources)
    fit, before = (occupancy(resources, 128, size, gpu.arch).blocks for size in (asked, shared))
    assert fit == min(before, -(-blocks // 132))
    assert asked >= shared
    assert (asked == shared) == (fit == before)


def test_a_launch_spreads_only_where_grids_overlap():
    launch = Launch((100, 1, 1), (128, 1, 1), b"", 1024, overlaps=True, spreads=True)
    assert launch.shared_on(GPUS["A100"], lambda: pytest.fail("nothing is asked of the kernel")) == 1024


def test_a_product_spreads_where_other_stages_run_beside_it():
    gpu, rung = GPUS["H200"], find_rung("f12")
    whole = GemmProblem.dense(320, 1088, 2688)
    alone, parts = (dataclasses.replace(rung.default, split_k=count) for count in (1, 3))
    assert not program_for(whole, plan_for(whole, gpu, "f12", alone)).product.shape.spreads
    assert program_for(whole, plan_for(whole, gpu, "f12", parts)).product.shape.spreads


def test_what_no_grid_can_hold_is_refused_in_a_few_words():
    huge = np.broadcast_to(np.float32(0), (2**30, 2**30))
    with pytest.raises(ConfigRejected, match=r"a grid holds 2147483647.* more\.$") as caught:
        tw.explain(huge, huge, gpu="H200")
    assert len(str(caught.value)) < 500


def test_explain_of_an_empty_result_says_that_nothing_runs():
    told = tw.explain(zeros(0, 8), zeros(8, 8))
    assert told.plan is None
    assert "nothing: the result is empty" in str(told)


def test_explain_compiles_when_asked():
    told = tw.explain(zeros(64, 64), zeros(64, 64), rung="f01", gpu="H200", compile=True)
    assert told.resources.registers > 0
    assert f"{told.resources.registers} registers per thread" in str(told)


@pytest.mark.parametrize("compile", ["no", None, np.ones(2)], ids=repr)
def test_explain_refuses_a_compile_that_is_not_true_or_false(compile):
    a, q = zeros(8, 8), np.zeros((1, 1, 8, 32), np.float16)
    for call in (
        lambda **more: tw.explain(a, a, **more),
        lambda **more: tw.explain_grouped_matmul(a, a[None], [8], **more),
        lambda **more: tw.explain_attention(q, q, q, **more),
        lambda **more: tw.explain_attention_backward(q, q, q, **more),
    ):
        with pytest.raises(InvalidOperand, match=r"compile=.* is not True or False"):
            call(compile=compile, gpu="H200")


@pytest.mark.parametrize("q", [{1}, np.float16(1)], ids=repr)
def test_explain_of_a_packed_backward_pass_refuses_what_has_no_rows(q):
    k = np.zeros((8, 1, 32), np.float16)
    with pytest.raises(InvalidOperand, match=r"^q is"):
        tw.explain_attention_backward(q, k, k, cu_seqlens_q=[0, 8], cu_seqlens_k=[0, 8], gpu="H200")


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (GemmProblem.dense(128, 256, 64), "aligned"),
        (GemmProblem.dense(129, 256, 64), "m=129 is not a multiple of the tile's 128"),
        (GemmProblem.dense(128, 256, 65), "k=65 is not a multiple of the tile's 16"),
        (
            GemmProblem(128, 256, 64, Matrix(64, 1, alignment=4), Matrix(256, 1), Matrix(256, 1)),
            r"A's lines start at multiples of 4 B \(base aligned to 4 B",
        ),
        (
            GemmProblem(128, 256, 64, Matrix(64, 1), Matrix(512, 2), Matrix(256, 1)),
            "B has no contiguous lines",
        ),
    ],
)
def test_the_path_is_told_with_its_reason(problem, words):
    import re

    rung = find_rung("f12")
    text = edge_reason(rung, problem, rung.default)
    assert re.search(words, text), text
    assert text.startswith("aligned") != rung.edge(problem, rung.default)


def test_the_roofline_takes_the_lower_roof():
    assert roofline(GemmProblem.dense(4096, 4096, 4096), H200).limiter == "arithmetic"
    thin = roofline(GemmProblem.dense(1, 4096, 4096), H200)
    assert thin.limiter == "memory"
    assert thin.bound_tflops == pytest.approx(4800e-3 * thin.intensity)


def test_a_refused_config_shows_in_the_text():
    small = dataclasses.replace(UNTUNED, arch=dataclasses.replace(UNTUNED.arch, shared_per_block=48 * 1024))
    text = str(explain_problem(GemmProblem.dense(512, 512, 512), small, "a test"))
    assert "refused  f12_multistage: 128x256x16" in text


def test_a_config_given_to_explain_is_a_config_of_the_call():
    told = tw.explain(zeros(64, 64), zeros(64, 64), rung="f01", config=GemmConfig(16, 16), gpu="H200")
    assert told.plan.config == GemmConfig(16, 16)
