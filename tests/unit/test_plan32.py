"""Plans of fp32 products of several launches: when k is split, what is packed, and how it is told."""

from __future__ import annotations

import dataclasses

import pytest

from tilewright.gemm import family
from tilewright.gemm.explain import explain_problem
from tilewright.gemm.family import PRODUCTS, plan_for
from tilewright.gemm.presets import PRESETS
from tilewright.gemm.problem import GemmProblem, Matrix
from tilewright.gemm.rung import reading
from tilewright.gemm.rungs import find_rung
from tilewright.gemm.space import explore
from tilewright.gemm.stages import program_for
from tilewright.gpus import GPUS, as_found
from tilewright.lab.sums import AS_CHOSEN
from tilewright.plan import choose
from tilewright.plan.demands import Demands
from tilewright.plan.estimate import predict, speed_of
from tilewright.plan.plan import Plan

H200 = GPUS["H200"]
UNTUNED = as_found(GPUS["H100"], 120, 0, 0)
"""No table ships for it or for its likes: the cost model chooses."""
F12 = find_rung("f12")
dense = GemmProblem.dense


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("size", [1000, 4095])
def test_large_ragged_operands_are_packed_and_the_products_copies_test_nothing(size, layout):
    problem = dense(size, size, size, layout=layout)
    plan = plan_for(problem, UNTUNED)
    assert plan.packs == ("a", "b")
    assert f"a is packed first: {size} x {size} are not whole tiles of {plan.config.tile_m} x" in plan.why
    product = program_for(problem, plan).product.problem
    facts = F12.constants(product, plan.config)
    assert (facts["a_edge"], facts["b_edge"], facts["edge"]) == (False, False, True)
    told = str(explain_problem(problem, UNTUNED, "a test"))
    assert "pack a, pack b, product" in told
    assert "aligned copies of packed operands" in told


@pytest.mark.parametrize(
    ("shape", "packed"),
    [((1, 8192, 8192), ("a",)), ((16, 8192, 8192), ()), ((256, 256, 8192), ()), ((64, 64, 16384), ())],
)
def test_products_of_few_tiles_split_k(shape, packed):
    plan = plan_for(dense(*shape), UNTUNED)
    assert plan.config.split_k > 1
    assert plan.packs == packed
    assert f"k in {plan.config.split_k} parts, since" in plan.why
    assert plan.config.tile_m <= max(64, shape[0])
    told = str(explain_problem(dense(*shape), UNTUNED, "a test")).replace("\n         ", " ")
    assert f" x 1 x {plan.config.split_k} blocks of" in told
    assert ("aligned copies of packed operands" in told) == bool(packed)


@pytest.mark.parametrize("size", [64, 2048, 4096])
def test_whole_or_small_products_are_one_launch(size):
    problem = dense(size, size, size)
    plan = plan_for(problem, UNTUNED)
    assert [stage.name for stage in program_for(problem, plan).stages] == ["product"]
    assert "SMs" in plan.why


def test_the_way_to_run_an_option_that_the_model_finds_quickest_is_chosen():
    for size in range(300, 1100, 167):
        problem = dense(size, size, size)
        plan = choose.plan(AS_CHOSEN, problem, UNTUNED)
        least = min(
            predict(PRODUCTS.work(problem, rung, way, packs), UNTUNED).ms / speed
            for rung, config, speed in PRESETS["f32"]
            if rung.why_not(problem, config, UNTUNED.arch) is None
            for way, packs in PRODUCTS.relatives(problem, rung, config, UNTUNED, True)
        )
        own = speed_of(plan.rung.id, plan.config.whole_k)
        assert predict(PRODUCTS.work(problem, plan.rung, plan.config, plan.packs), UNTUNED).ms / own == least, size


@pytest.mark.parametrize("shape", [(16, 8192, 8192), (256, 256, 8192), (1000, 1000, 1000)])
def test_batch_invariant_plans_never_split_k_but_may_pack(shape):
    plan = plan_for(dense(*shape), UNTUNED, demands=Demands(batch_invariant=True))
    assert plan.config.split_k == 1
    assert bool(plan.packs) == (shape[0] == 1000)


@pytest.mark.parametrize(("n", "k"), [(512, 4096), (333, 1001), (4096, 4096), (11008, 4096), (8192, 8192)])
def test_batch_invariant_plans_add_up_one_chain_whatever_the_number_of_rows(n, k):
    demands = Demands(batch_invariant=True)
    for m in (*range(1, 18), 33, 64, 100, 128, 1024, 3000):
        for layout in ("nn", "nt"):
            config = plan_for(dense(m, n, k, layout=layout), H200, demands=demands).config
            assert (config.sums, config.parts, config.slices_k) == (1, 1, 1), f"m = {m}, {layout}: {config}"


def test_what_cannot_be_read_wide_is_packed_and_said_so():
    problem = dataclasses.replace(dense(4096, 4096, 4096), b=Matrix(8192, 2))
    plan = plan_for(problem, UNTUNED)
    assert plan.packs == ("b",)
    assert "b is packed first: no contiguous lines" in plan.why
    shifted = dataclasses.replace(dense(4096, 4096, 4096), a=Matrix(4096, 1, alignment=4), b=Matrix(4097, 1))
    assert reading(F12, F12.default, shifted).narrow == ("b",), "A is transposed one element an access: it may lie so"
    assert "b is packed first: its lines start at multiples of 4 B" in plan_for(shifted, UNTUNED).why


def test_products_of_several_launches_are_in_the_table_that_ships():
    ragged = plan_for(dense(4095, 4095, 4095), H200)
    assert (ragged.source, ragged.packs) == ("shipped with the package", ("a", "b"))
    thin = plan_for(dense(256, 256, 8192), H200)
    assert (thin.source, thin.config.split_k > 1) == ("shipped with the package", True)
    assert plan_for(dense(256, 256, 8192), H200, demands=Demands(batch_invariant=True)).config.split_k == 1


def entry_layout(entry, which: int) -> Matrix:
    m, n, k, _ = entry.shape
    of = dense(m, n, k, layout=entry.klass.layout)
    return of.b if which else of.a


def test_tuning_considers_packing_and_parts():
    kept = explore(dense(1000, 1000, 1000), H200, [F12], 24).kept
    assert ("a", "b") in {candidate.packs for candidate in kept}
    kept = explore(dense(300, 300, 300), H200, [F12], 24).kept
    assert () in {candidate.packs for candidate in kept}
    assert max(c.config.split_k for c in explore(dense(64, 64, 8192), H200, [F12], 24).kept) > 4
    lower = explore(dense(1000, 1000, 1000), H200, [find_rung("f09")], 24).kept
    assert {candidate.packs for candidate in lower} == {()}, "its copies know one edge for both operands"


LONG = [(1, 4000, 9802), (2, 1700, 202), (990, 2060, 6764), (21, 1712, 1808), (1582, 27, 38)]


@pytest.mark.parametrize("layout", ["nn", "nt"])
@pytest.mark.parametrize("shape", LONG, ids=str)
def test_small_tiles_add_up_stretches_of_k_in_two_sets_of_sums_and_say_so(shape, layout):
    problem = dense(*shape, layout=layout)
    plan = plan_for(problem, H200)
    assert plan.config.sums == 2
    assert plan.rung.why_not(problem.packed(plan.config.tile, plan.packs), plan.config, H200.arch) is None
    assert f"sums of {max(plan.config.tile_k, 8)} products are added up apart, for accuracy" in plan.why
    assert "2 sets of sums" in str(explain_problem(problem, H200, "a test")).replace("\n         ", " ")
    assert plan_for(problem, H200, demands=Demands(batch_invariant=True)).config.sums == 1
    named = plan_for(problem, H200, "f12", dataclasses.replace(plan.config, sums=1, split_k=1))
    assert named.config.sums == 1


@pytest.mark.parametrize(
    ("shape", "layout", "rung"),
    [
        ((1, 1, 94617), "nn", "v02"), ((4, 7, 47), "nn", "v02"), ((1, 8, 1 << 24), "nt", "v02"),
        ((32, 32, 2000), "tn", "v02"), ((32, 32, 1 << 16), "nn", "f12"), ((33, 32, 64), "nn", "f12"),
        ((1, 1000, 2048), "nt", "v01"), ((1, 16, 2048), "nt", "v02"), ((1, 2, 16), "nn", "f12"),
    ],
)  # fmt: skip
def test_results_of_few_elements_are_summed_in_fp64(shape, layout, rung):
    problem = dense(*shape, layout=layout)
    plan = plan_for(problem, H200)
    assert plan.rung is find_rung(rung)
    assert plan.rung.why_not(problem.packed(plan.config.tile, plan.packs), plan.config, H200.arch) is None
    assert ("sums in fp64" in plan.why) == (rung == "v02")
    for other in (
        plan_for(problem, H200, demands=Demands(batch_invariant=True)),
        plan_for(dense(*shape, layout=layout, dtype="bf16"), H200),
        plan_for(dense(*shape, layout=layout, batch=2), H200),
    ):
        assert other.rung is not find_rung("v02")


def test_large_tiles_of_a_long_split_k_get_more_parts():
    problem = dense(886, 447, 75227)
    before, plan = choose.plan(AS_CHOSEN, problem, H200), plan_for(problem, H200)
    assert plan.config.sums == 1
    assert plan.config.split_k in (2 * before.config.split_k, 3 * before.config.split_k, 4 * before.config.split_k)
    assert f"in {plan.config.split_k} parts, not {before.config.split_k}, so that sums are shorter" in plan.why
    assert program_for(problem, plan).stages[-1].name == "sum of parts"


@pytest.mark.parametrize("shape", [(4096, 4096, 4096), (512, 512, 128), (64, 2048, 2048), (33, 64, 100)], ids=str)
def test_other_sums_are_one_chain(shape):
    assert plan_for(dense(*shape), H200) == choose.plan(AS_CHOSEN, dense(*shape), H200)


def test_parts_of_a_split_k_are_never_made_fewer_for_shorter_sums(monkeypatch):
    problem = dense(16, 4096, 1024)
    config = dataclasses.replace(F12.default, split_k=4)
    planned = Plan(F12, config, "a test", "a test")
    monkeypatch.setattr(family, "plan", lambda *given: planned)
    assert plan_for(problem, H200) == planned


@pytest.mark.parametrize("gpu", [GPUS["A100"], GPUS["RTX 4090"], UNTUNED], ids=lambda gpu: gpu.name)
def test_a_row_times_lines_along_k_is_made_of_dot_products_where_no_table_ships(gpu):
    for n, k in ((4096, 4096), (11008, 4096), (1000, 4096)):
        assert plan_for(dense(1, n, k, layout="nt"), gpu).rung.id == "v01_row_dots"
        assert plan_for(dense(1, n, k, layout="nn"), gpu).rung is F12, "its lines run along n"
        assert plan_for(dense(16, n, k, layout="nt"), gpu).rung is F12, "so many rows read B again"
