"""What is worth compiling: refusals, the resource model, the modelled order; all of it the same each time."""

from __future__ import annotations

import dataclasses

import pytest

from tilewright.arrays.dtypes import ITEM_BYTES
from tilewright.gemm.classes import ProblemClass, class_of, columns, distances
from tilewright.gemm.family import PRODUCTS, plan_for
from tilewright.gemm.problem import GemmProblem, Matrix
from tilewright.gemm.rung import GemmConfig
from tilewright.gemm.rungs import GEMM_RUNGS, find_rung, rungs_for, rungs_of
from tilewright.gemm.space import explore, ways_to_pack
from tilewright.gemm.work import estimate_registers, work_of
from tilewright.gpus import GPUS
from tilewright.plan.classes import bucket
from tilewright.plan.estimate import predict, predict_all
from tilewright.tuning.fused import read_words, with_epilogue

H200 = GPUS["H200"]


def dense(*shape: int, **more) -> GemmProblem:
    return GemmProblem.dense(*shape, **{"dtype": "bf16", **more})


# --- the space -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("gpu", ["RTX 3090", "A100", "H200"])
def test_every_candidate_kept_can_run_and_the_count_adds_up(gpu, dtype):
    gpu = GPUS[gpu]
    for shape in ((1, 1, 1), (1024, 1024, 1024)):
        problem = dense(*shape, dtype=dtype)
        space = explore(problem, gpu, rungs_for(dtype), 12)
        assert 1 <= len(space.kept) <= 12
        assert len(space.kept) + sum(space.pruned.values()) == space.considered
        for candidate in space.kept:
            assert candidate.rung.why_not(problem, candidate.config, gpu.arch) is None
            assert candidate.prediction.resident >= 1
        times = [candidate.prediction.ms for candidate in space.kept]
        assert times == sorted(times)


def test_a_space_is_the_same_each_time():
    problem = dense(1000, 1000, 1000)
    assert explore(problem, H200, rungs_for("bf16")) == explore(problem, H200, rungs_for("bf16"))


def test_what_cannot_run_is_put_aside_and_told():
    small = dataclasses.replace(H200, arch=dataclasses.replace(H200.arch, shared_per_block=48 * 1024))
    space = explore(dense(4096, 4096, 4096), small, [find_rung("h11")])
    assert space.pruned["cannot run it (why_not)"] > 20
    assert "cannot run it" in str(space)


@pytest.mark.parametrize("kind", ["f32", "bf16", "tf32", "fp32x3"])
def test_a_gpu_whose_tensor_peak_is_not_known_is_planned_and_tuned_for_all_the_same(kind):
    unlisted = dataclasses.replace(GPUS["RTX 4090"], name="RTX 4080", sm_count=76, bf16_tflops=0.0)
    of = GemmProblem.dense(512, 512, 512, **({"dtype": kind} if kind in ITEM_BYTES else {"precision": kind}))
    assert of.kind == kind
    assert explore(of, unlisted, rungs_of(kind), 4).kept
    assert plan_for(of, unlisted).source == "cost model"
    assert unlisted.peak_tflops("bf16") == 0, "nothing is quoted"
    listed = GPUS["RTX 4090"]
    assert listed.assumed_tflops(kind) == listed.peak_tflops(kind)


def test_an_epilogue_that_does_not_show_has_the_space_of_the_bare_product():
    """What --dry-run prints is what tuning measures: it leaves such an epilogue away."""
    bare = dense(4096, 4096, 1024, dtype="bf16")
    fused = with_epilogue(bare, *read_words("bias"))
    spaces = [explore(problem, H200, rungs_for("bf16")) for problem in (bare, fused)]
    assert [str(one) for one in spaces[0].kept] == [str(one) for one in spaces[1].kept]


def test_no_block_tile_crowds_out_all_others():
    space = explore(dense(2048, 2048, 2048), H200, rungs_for("bf16"), 24)
    assert len({(c.config.tile_m, c.config.tile_n) for c in space.kept}) >= 4


@pytest.mark.parametrize(
    ("dtype", "fastest"),
    [("bf16", "h17_ping_pong 128x128x64 warp 32x128 6 stages"),
     ("f32", "f12_multistage 128x128x16 warp 64x32/2x2 thread 4x4 4 stages ca group 8")],
)  # fmt: skip
def test_with_an_epilogue_more_blocks_that_share_an_sm_are_tried_with_what_was_fastest_among_them(dtype, fastest):
    """`fastest`: tile and depth of what was fastest with silu(acc + bias) + residual at this shape on an H200."""
    bare = dense(4096, 4096, 1024, dtype=dtype)
    fused = with_epilogue(bare, *read_words("bias,silu,residual"))
    spaces = [explore(problem, H200, rungs_for(dtype)) for problem in (bare, fused)]
    top = [rung for rung in rungs_for(dtype) if rung.warpgroups] or rungs_for(dtype)[-1:]
    beside = [sum(c.rung in top and c.prediction.resident > 1 for c in space.kept) for space in spaces]
    assert beside[0] < beside[1] or beside[0] >= 12
    assert beside[1] >= 12
    assert any(str(candidate).startswith(fastest) for candidate in spaces[1].kept)
    assert len(spaces[1].kept) == 24
    f01, h01 = find_rung("f01"), find_rung("h01")
    now = f01 if dtype == "f32" else h01
    (few,) = explore(fused, H200, rungs_for(dtype), 1, [(now, now.default, ())]).kept
    assert few.rung == now, "what would run now comes first"


def test_blocks_that_stay_are_not_tried_where_each_has_one_tile():
    few, many = (explore(dense(size, size, 512), H200, rungs_of("bf16")) for size in (512, 8192))
    assert "stay for one tile" in str(few)
    assert not any(candidate.rung.stays for candidate in few.kept)
    assert any(candidate.rung.stays for candidate in many.kept)


def test_what_is_asked_for_is_kept_whatever_the_model_says():
    f01 = find_rung("f01")
    space = explore(dense(4096, 4096, 4096, dtype="f32"), H200, rungs_for("f32"), 8, also=[(f01, f01.default, ())])
    assert any(candidate.rung is f01 for candidate in space.kept)
    assert not any(c.rung is f01 for c in explore(dense(4096, 4096, 4096, dtype="f32"), H200, rungs_for("f32"), 8).kept)


# --- the model -------------------------------------------------------------------------------------------------------


def test_the_model_knows_waves():
    config = dataclasses.replace(find_rung("h11").default)
    h11 = find_rung("h11")
    assert (config.tile_m, config.tile_n) == (128, 256)
    one = predict(work_of(dense(128 * 12, 256 * 11, 4096), h11, config), H200)  # 132 tiles on 132 SMs
    two = predict(work_of(dense(128 * 12, 256 * 12, 4096), h11, config), H200)
    assert two.ms / one.ms > 1.8
    assert one.waves == pytest.approx(1.0)


def test_the_model_knows_that_element_copies_are_slow_and_memory_bounds_thin_products():
    h11 = find_rung("h11")
    odd, even = (predict(work_of(dense(n, n, n), h11, h11.default), H200).ms for n in (4095, 4096))
    assert odd > 2 * even
    thin = dense(16, 8192, 8192)
    best = explore(thin, H200, [h11], 1).kept[0].prediction
    assert best.ms > thin.bytes / (H200.dram_gb_s * 1e6)


def test_the_model_knows_that_halves_of_sectors_are_fetched_twice():
    square, config = dense(1024, 1024, 1024), GemmConfig(64, 128, 64, warp_m=16, warp_n=128, stages=8)
    whole, half = (
        predict(work_of(dataclasses.replace(square, b=Matrix(pitch, 1)), find_rung("h12"), config), H200)
        for pitch in (1040, 1032)
    )
    assert half.limiter == "L2"
    assert whole.ms < half.ms


@pytest.mark.parametrize("rung", [r for r in GEMM_RUNGS if r.id[:3] in ("h11", "f12", "h08", "f09")], ids=str)
def test_registers_are_estimated_near_what_the_compiler_reports(rung):
    problem = dense(1024, 1024, 1024, dtype=rung.dtypes[0])
    told = rung.compile(problem, rung.default, H200.arch).resources.registers
    assert 0.7 * told < estimate_registers(rung.default) < 1.35 * told


# --- classes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("extent", "rounded"),
    [(0, 0), (1, 1), (16, 16), (17, 18), (31, 32), (33, 36), (1000, 1024), (4096, 4096), (4097, 4608)],
)
def test_buckets_are_steps_of_about_a_tenth(extent, rounded):
    assert bucket(extent) == rounded
    assert bucket(rounded) == rounded


def test_what_takes_another_path_is_another_class():
    whole = class_of(dense(4096, 4096, 4096))
    assert whole.whole
    assert whole.access == "wwv"
    ragged = class_of(dense(4095, 4095, 4095))
    assert (ragged.m, ragged.access, ragged.whole) == (4096, "nne", False)
    odd = GemmProblem(
        64, 64, 64, Matrix(64, 1, alignment=2), Matrix(64, 1), Matrix(64, 1), dtype="bf16", out_dtype="bf16"
    )
    assert class_of(odd).access == "nwv"
    assert class_of(dense(64, 64, 64, use_c=True)) != class_of(dense(64, 64, 64))
    assert class_of(dense(64, 64, 64, out_dtype="f32")) != class_of(dense(64, 64, 64))
    assert class_of(dense(64, 64, 64, layout="nt")).layout == "nt"
    assert class_of(dense(64, 64, 64, batch=3)).batch == 3
    assert ProblemClass.from_dict(whole.to_dict()) == whole


def distance(one: ProblemClass, other: ProblemClass) -> float:
    (found,) = distances(one, columns([other.to_dict()]))
    return float(found)


def test_distance_is_one_for_a_factor_of_two_and_infinite_between_fp32_and_16_bits():
    one = class_of(dense(1024, 1024, 1024))
    assert distance(one, one) == 0
    assert distance(one, class_of(dense(2048, 1024, 1024))) == pytest.approx(1.0)
    assert distance(one, class_of(dense(1024, 1024, 1024, dtype="f32"))) == float("inf")
    assert 0 < distance(one, class_of(dense(1024, 1024, 1024, dtype="f16"))) < 0.2
    assert distance(one, class_of(dense(1024, 1024, 1024, layout="nt"))) >= 1.0


def test_lines_in_the_middle_of_sectors_are_a_class_nearer_to_whole_ones_than_lines_without_vectors_are():
    whole, half, narrow = (class_of(dense(1000, size, size)) for size in (1008, 1000, 1001))
    assert (whole.access, half.access, narrow.access) == ("wwv", "hhv", "nne")
    assert ProblemClass.from_dict(half.to_dict()) == half
    assert 0 < distance(whole, half) < distance(whole, narrow)
    assert distance(half, narrow) == distance(whole, narrow)


@pytest.mark.parametrize("kind", ["f32", "bf16", "e4m3"])
def test_many_predictions_at_once_are_those_of_one_by_one(kind):
    """The chooser asks for hundreds; explain and rows ask for one."""
    for shape in ((1000, 512, 4096), (1, 4096, 333), (4095, 100, 64)):
        problem = dense(*shape, dtype=kind)
        works = []
        for rung in rungs_for(kind):
            for config in rung.space()[::17]:
                for parts in (1, 2, 7):
                    if parts == 1 or "split_k" in rung.levels:
                        split = dataclasses.replace(config, split_k=parts)
                        works.append(work_of(problem, rung, split, ways_to_pack(rung, split, problem)[-1]))
        for gpu in (H200, GPUS["RTX 4090"]):
            one_by_one = [predict(work, gpu).ms for work in works]
            assert predict_all(works, gpu).tolist() == pytest.approx(one_by_one, rel=1e-12)
            assert len(set(one_by_one)) > 5


@pytest.mark.parametrize("rung", GEMM_RUNGS, ids=str)
def test_what_relatives_do_together_is_what_each_does(rung):
    for problem in (dense(192, 320, 8192, dtype=rung.dtypes[0], precision=rung.precision),
                    dense(33, 100, 40_000, dtype=rung.dtypes[0], precision=rung.precision)):  # fmt: skip
        for config in rung.space()[::11]:
            ways = list(PRODUCTS.relatives(problem, rung, config, H200, True))
            each = [work_of(problem, rung, split, packs) for split, packs in ways]
            assert PRODUCTS.works(problem, rung, ways) == each
