"""Plans of 16-bit products: which config, when k is split, what is packed, and how it is told."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import tilewright as tw
from tilewright.gemm.classes import class_of
from tilewright.gemm.config import WgmmaConfig
from tilewright.gemm.family import plan_for
from tilewright.gemm.presets import PRESETS, presets_of
from tilewright.gemm.problem import GemmProblem, Matrix
from tilewright.gemm.rung import Reading
from tilewright.gemm.rungs import GEMM_RUNGS, find_rung
from tilewright.gemm.space import SPLITS, ways_to_pack
from tilewright.gemm.stages import program_for
from tilewright.gemm.work import tiles_of, work_of
from tilewright.gpus import GPUS
from tilewright.plan import tables
from tilewright.plan.demands import Demands
from tilewright.plan.entries import Entry, Timed, table_of
from tilewright.plan.estimate import predict, predict_all
from tilewright.plan.tables import results_changed, store_of
from tilewright.run.program import SLOT

H200 = dataclasses.replace(GPUS["H200"], name="H200 without a table", sm_count=130)
"""What the model says by itself: no table ships for one of so many SMs."""
H11 = find_rung("h11")
H17 = WgmmaConfig(128, 128, 64, warp_m=32, warp_n=128, stages=5, group_m=8, staged=2, turns=2, cluster_m=2)


def dense(m: int, n: int, k: int, **options) -> GemmProblem:
    return GemmProblem.dense(m, n, k, dtype="bf16", **options)


def odd(m: int, n: int, k: int) -> GemmProblem:
    """Leading dimensions that no 16-byte access suits."""
    return dataclasses.replace(dense(m, n, k), a=Matrix(k | 1, 1), b=Matrix(n | 1, 1))


def test_the_choices_are_members_of_their_rungs_spaces():
    for kind, presets in PRESETS.items():
        for rung, config, speed in presets:
            assert config in rung.space(), f"{kind}: {config}"
            assert 0.5 < speed < 1.5


@pytest.mark.parametrize("gpu", [H200, *GPUS.values()], ids=lambda gpu: gpu.name)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_every_gpu_has_a_plan(gpu, layout):
    problem = dense(4096, 4096, 4096, layout=layout)
    plan = plan_for(problem, gpu)
    assert plan.rung.warpgroups if gpu.arch.name == "sm_90a" else plan.rung is H11
    assert plan.rung.why_not(problem, plan.config, gpu.arch) is None
    assert len(plan.refused) < len(PRESETS["bf16"]) / 2
    reasons = [(rung, reason) for rung, _, reason in plan.refused]
    assert len(set(reasons)) == len(reasons), "a reason that all configs of a rung share is told once"


@pytest.mark.parametrize("rung", [rung for rung in GEMM_RUNGS if rung.reads], ids=str)
def test_plans_read_operands_as_kernels_are_compiled_to(rung):
    half = dataclasses.replace(dense(512, 520, 512), a=Matrix(520, 1))
    for problem in (dense(512, 512, 512), dense(500, 528, 528, layout="nt"), half, odd(64, 64, 64)):
        of_its = dataclasses.replace(problem, dtype=rung.dtypes[0])
        for config in rung.space()[::9]:
            assert rung.reads(of_its)[:2] == Reading.of(rung.own_constants(config, of_its))[:2]


def test_large_products_take_large_tiles_and_small_ones_small():
    large, small = plan_for(dense(4096, 4096, 4096), H200), plan_for(dense(256, 256, 256), H200)
    assert large.config.tile_m * large.config.tile_n >= 128 * 128
    assert small.config.tile_m * small.config.tile_n <= 64 * 64
    assert large.config.split_k == 1
    assert not large.packs


@pytest.mark.parametrize("shape", [(1, 4096, 4096), (16, 2048, 8192), (128, 128, 16384)])
def test_thin_products_split_k_and_say_so(shape):
    plan = plan_for(dense(*shape), H200)
    assert plan.config.split_k in SPLITS[1:]
    assert f"k in {plan.config.split_k} parts, since" in plan.why
    never = plan_for(dense(*shape), H200, demands=Demands(batch_invariant=True))
    assert never.config.split_k == 1
    assert never.config.slices_k == 1


def test_k_is_not_split_beyond_its_tiles():
    for k in (1, 31, 64, 65, 200):
        plan = plan_for(dense(1, 64, k), H200)
        assert plan.config.split_k <= max(1, -(-k // plan.config.tile_k))


def test_lines_that_wide_accesses_cannot_read_are_packed_where_it_pays():
    plan = plan_for(odd(4095, 4095, 4095), H200)
    assert plan.packs == ("a", "b")
    assert "a is packed first: its lines start at multiples of 2 B" in plan.why
    small = plan_for(odd(16, 16, 17), H200)
    assert small.packs == (), "two more launches cost more than they bring"
    assert "element by element, which costs less" in small.why


def test_an_empty_k_packs_nothing():
    problem = dataclasses.replace(odd(2048, 2048, 1), k=0)
    assert plan_for(problem, H200).packs == ()


def test_packing_counts_the_zeros_that_fill_whole_tiles():
    """A single column is counted as a tile deep."""
    config = H11.default
    column, tile = (work_of(dense(10**7, 64, k), H11, config, ("a",)).passes[0] for k in (1, config.tile_k))
    assert 0.5 < column / tile < 0.6


def test_the_same_problem_gets_the_same_plan():
    assert plan_for(odd(1000, 1000, 1000), H200) == plan_for(odd(1000, 1000, 1000), H200)


def test_demands_narrow_what_tuning_results_are_asked(tuned_folder):
    problem = dense(512, 512, 512)
    gpu = GPUS["H200"]
    split = dataclasses.replace(H11.default, split_k=4)
    timed = (Timed("h11_mma_multistage", split, 1.0), Timed("h11_mma_multistage", H11.default, 2.0))
    store_of(gpu).add([Entry(class_of(problem), (512, 512, 512, 1), timed, when="2026-01-01")])
    results_changed()
    here = plan_for(problem, gpu)
    assert (here.source, here.config) == ("tuned here", split)
    assert plan_for(problem, gpu, demands=Demands(deterministic=True)).source == "shipped with the package"
    one_chain = plan_for(problem, gpu, demands=Demands(batch_invariant=True))
    assert (one_chain.source, one_chain.config) == ("tuned here", H11.default)
    assert "batch_invariant asks for one chain" in one_chain.refused[0].reason


# --- programs --------------------------------------------------------------------------------------------------------


def test_a_plain_plan_is_one_launch_that_borrows_nothing():
    program = program_for(dense(512, 512, 512), plan_for(dense(512, 512, 512), H200, "h11"))
    assert [stage.name for stage in program.stages] == ["product"]
    assert program.workspace_bytes == 0


def test_the_workspace_holds_packed_lines_and_parts_apart_from_one_another():
    plan = dataclasses.replace(plan_for(odd(100, 90, 70), H200, "h11"), packs=("a", "b"))
    plan = dataclasses.replace(plan, config=dataclasses.replace(plan.config, split_k=3))
    program = program_for(dataclasses.replace(odd(100, 90, 70), batch=2), plan)
    assert [stage.name for stage in program.stages] == ["pack a", "pack b", "product", "sum of parts"]
    # neither operand has a batch stride: each is packed once
    a, b = (dict(stage.params.addresses)[8].offset for stage in program.stages[:2])  # PackArgs.target
    parts = dict(program.stages[2].params.addresses)[24].offset
    tile = plan.config
    rows, depth, cols = (-(-size // by) * by for size, by in ((100, tile.tile_m), (70, tile.tile_k), (90, tile.tile_n)))
    assert (a, b) == (0, rows * depth * 2), "whole tiles"
    assert parts - b == depth * cols * 2
    assert program.workspace_bytes - parts >= 3 * 2 * 100 * 92 * 4
    for offset in (a, b, parts, program.workspace_bytes):
        assert offset % SLOT == 0


def test_explain_tells_which_operands_lines_split_sectors():
    a, b = np.zeros((64, 1000), np.float16), np.zeros((1000, 64), np.float16)
    told = str(tw.explain(a, b, gpu="H200")).replace("\n         ", " ")
    assert "; A through L1: lines start in the middle of 32-byte sectors" in told
    whole = str(tw.explain(np.zeros((64, 1008), np.float16), np.zeros((1008, 64), np.float16), gpu="H200"))
    assert "through L1" not in whole
    narrow = tw.explain(np.zeros((64, 1001), np.float16), np.zeros((1001, 64), np.float16), gpu="H200", rung="h12")
    assert "through L1" not in str(narrow).replace("\n         ", " "), "its elements are copied one by one"


def test_explain_tells_the_stages_and_what_is_borrowed():
    a, b = np.zeros((4095, 4095), np.float16), np.zeros((4095, 4095), np.float16)
    told = tw.explain(a, b, gpu="H200")
    assert told.stages == ("pack a", "pack b", "product")
    text = str(told).replace("\n         ", " ")
    assert f"pack a, pack b, product; {told.workspace_bytes} B of memory borrowed" in text
    assert "path     aligned copies of packed operands" in text
    assert "\nstages" not in str(tw.explain(a[:4088, :4088], np.zeros((4088, 64), np.float16), gpu="H200", rung="h11"))


@pytest.mark.parametrize(("m", "n", "k", "batch"), [(640, 1024, 512, 40), (768, 768, 768, 48), (512, 512, 2048, 32)])
def test_a_batch_that_no_table_knows_is_planned_as_tiles_that_blocks_walk(m, n, k, batch):
    problem = dense(m, n, k, batch=batch)
    plan = plan_for(problem, GPUS["H200"])
    assert plan.source == "cost model"
    assert plan.rung.walks is not None
    assert plan.rung.walks(plan.config, problem) == batch
    assert plan.rung.shape(problem, plan.config).grid[1] == 1


def test_a_batch_whose_products_blocks_cannot_walk_takes_no_turns_over_single_tiles():
    """C's products are told apart by the grid, so that each block has one tile, and one set of h17 nothing to do."""
    problem = dense(512, 512, 512, batch=64)
    with_c = dataclasses.replace(problem, c=problem.out)
    assert plan_for(problem, GPUS["H200"]).config.turns == 2
    assert plan_for(with_c, GPUS["H200"]).config.turns == 1
    h17 = find_rung("h17")
    named = plan_for(with_c, GPUS["H200"], "h17", h17.default)
    assert named.config == h17.default, "who names it has it"


@pytest.mark.parametrize(("m", "n", "shape"), [(384, 5120, (1, 2)), (5120, 384, (2, 1))])
def test_the_model_turns_clusters_so_that_fewer_tiles_lie_outside(m, n, shape):
    problem = dense(m, n, 5120)
    odd_tiles = [one.config for one in presets_of(problem) if one.config.cluster_m * one.config.cluster_n == 2]
    assert {(config.cluster_m, config.cluster_n) for config in odd_tiles if config.tile[:2] == (128, 128)} == {shape}


@pytest.mark.parametrize(("m", "n", "tile"), [(256, 4096, (128, 64)), (4096, 256, (64, 128)), (1024, 1024, (64, 128))])
def test_of_two_small_tiles_the_one_that_stands_where_the_result_lies_is_an_option(m, n, tile):
    small = [preset.config for preset in presets_of(dense(m, n, 4096)) if preset.rung.id == "h15_tma_store"]
    assert {config.tile[:2] for config in small if config.tile_m * config.tile_n == 64 * 128} == {tile}


def test_few_tiles_of_a_middling_k_are_neither_split_nor_shared_by_clusters(monkeypatch):
    """At 256 x 4096 x 4096 a wave of small tiles is 5% faster on an H200 than clusters that share k, by the record."""
    monkeypatch.setattr(tables, "shipped", lambda gpu: table_of([]))
    results_changed()
    plan = plan_for(dense(256, 4096, 4096), GPUS["H200"])
    monkeypatch.undo()
    results_changed()
    assert plan.source == "cost model"
    assert (plan.config.tile[:2], plan.config.parts, plan.config.cluster) == ((128, 64), 1, 1)


def test_the_model_of_an_h100_asks_less_of_l2():
    """There tiles of 128x160 were 8% faster at 4096 x 11008 x 4096 NT than those of 128x128 that an H200 takes."""
    problem = dense(4096, 11008, 4096, layout="nt")
    tiles = {name: plan_for(problem, GPUS[name]).config.tile[:2] for name in ("H100", "H200")}
    assert tiles == {"H100": (128, 160), "H200": (128, 128)}
    work = work_of(problem, find_rung("h17"), H17)
    assert predict_all([work], GPUS["H100"])[0] == pytest.approx(predict(work, GPUS["H100"]).ms)


def test_tiles_of_clusters_that_lie_outside_the_result_count():
    config = WgmmaConfig(128, 128, 64, warp_m=32, warp_n=128, stages=5, cluster_m=2, turns=2)
    assert tiles_of(dense(384, 512, 64), config) == 4 * 4
    assert tiles_of(dense(384, 512, 64), dataclasses.replace(config, cluster_m=1, cluster_n=2)) == 3 * 4


def test_stores_under_the_next_tile_s_products_take_time_after_the_last_one_only():
    work = work_of(dense(4096, 4096, 1024), find_rung("h17"), H17)
    assert work.covered
    apart = predict(work._replace(covered=False), H200).ms - predict(work._replace(covered=False, stores=0), H200).ms
    covered = predict(work, H200).ms - predict(work._replace(stores=0), H200).ms
    assert 0 < covered < apart / 2
    assert predict_all([work], H200)[0] == pytest.approx(predict(work, H200).ms)


def test_lines_that_tma_reads_stay_as_they_lie():
    in_the_middle = dense(5000, 5000, 1000)  # of sectors: 16-byte lines
    assert ways_to_pack(find_rung("h17"), H17, in_the_middle) == [()]
    assert ("a", "b") in ways_to_pack(find_rung("h12"), find_rung("h12").default, in_the_middle)
    assert ("a", "b") in ways_to_pack(find_rung("h17"), H17, odd(5000, 5000, 1000))
    assert plan_for(in_the_middle, GPUS["H200"]).packs == ()


def test_narrow_boxes_of_lines_in_the_middle_of_sectors_carry_more():
    """Tiles of 160 columns come in boxes of 64 bytes where B's lines run along n."""
    problem, wide = dense(5000, 5000, 1000), find_rung("h17")
    narrow = dataclasses.replace(H17, tile_n=160, warp_n=160)
    whole = dataclasses.replace(H17, tile_n=192, warp_n=192, stages=4)
    assert work_of(problem, wide, narrow).carried > work_of(problem, wide, whole).carried
    along_k = dense(5000, 5000, 1000, layout="nt")
    assert work_of(along_k, wide, narrow).carried < work_of(along_k, wide, whole).carried


@pytest.mark.parametrize("shape", [(2048, 512, 2048, "nt"), (512, 2048, 2048, "tn"), (512, 2048, 4096, "tn")])
def test_keys_and_values_of_llama_s_layers_are_planned_by_measurement(shape):
    m, n, k, layout = shape
    plan = plan_for(dense(m, n, k, layout=layout), GPUS["H200"])
    assert plan.source == "shipped with the package"
    assert plan.rung.loaders


@pytest.mark.parametrize(("blocks", "fit"), [(3, 39), (4, 30)])
def test_clusters_that_do_not_all_fit_at_once_take_twice_the_time(blocks, fit):
    """One more fits neither, though 40 clusters of 3 and 31 of 4 would fill no more than an H200's 132 SMs."""
    rung = find_rung("h19")
    config = dataclasses.replace(rung.default, cluster_k=blocks)
    works = [work_of(dense(128, 128 * clusters, 14336), rung, config) for clusters in (fit, fit + 1)]
    times = [predict(work, GPUS["H200"]).ms for work in works]
    assert times[1] > 1.5 * times[0]
    assert predict_all(works, GPUS["H200"]) == pytest.approx(times)
