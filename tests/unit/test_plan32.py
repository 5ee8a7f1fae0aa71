"""Plans of fp32 products of several launches: when k is split, what is packed, and how it is told."""

from __future__ import annotations

import dataclasses
import json
from math import exp, log
from pathlib import Path
from statistics import fmean

import pytest

from tilewright.gemm.explain import explain_problem
from tilewright.gemm.problem import GemmProblem, Matrix
from tilewright.gemm.rungs.simt import find_rung
from tilewright.gemm.space import explore
from tilewright.gemm.stages import program_for
from tilewright.gpus import GPUS
from tilewright.plan.cost import CLEARLY, candidates, fp32_us, narrow_operands
from tilewright.plan.demands import Demands
from tilewright.plan.fallback import FP32_CHOICES
from tilewright.plan.plan import plan_for

H200 = GPUS["H200"]
UNTUNED = GPUS["H100"]
"""No table ships for it: the cost model chooses."""
F12 = find_rung("f12")
SWEEP = Path(__file__).parents[2] / "benchmarks" / "results" / "fp32-f12-sweep-H200.json"
dense = GemmProblem.dense


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("size", [1000, 4095])
def test_large_ragged_operands_are_packed_and_the_products_copies_test_nothing(size, layout):
    problem = dense(size, size, size, layout=layout)
    plan = plan_for(problem, UNTUNED)
    assert plan.packs == ("a", "b")
    assert f"a is packed first: {size} x {size} are no whole tiles of {plan.config.tile_m} x" in plan.why
    product = program_for(problem, plan).product.problem
    facts = F12.constants(product, plan.config)
    assert (facts["a_edge"], facts["b_edge"], facts["edge"]) == (False, False, True)
    told = str(explain_problem(problem, UNTUNED, "a test"))
    assert "pack a, pack b, product; " in told
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


@pytest.mark.parametrize("size", [64, 100, 512, 1024, 4096])
def test_whole_or_small_products_are_one_launch(size):
    problem = dense(size, size, size)
    plan = plan_for(problem, UNTUNED)
    assert [stage.name for stage in program_for(problem, plan).stages] == ["product"]
    assert "SMs" in plan.why


def test_several_launches_are_chosen_only_where_the_model_is_clear():
    for size in range(300, 1100, 67):
        problem = dense(size, size, size)
        plan = plan_for(problem, UNTUNED)
        known = candidates(problem, list(FP32_CHOICES), UNTUNED, True)
        one = min(c.us for c in known if not c.packs and c.config.split_k == 1)
        best = min(c.us for c in known)
        assert (bool(plan.packs) or plan.config.split_k > 1) == (best * CLEARLY < one), size


@pytest.mark.parametrize("shape", [(16, 8192, 8192), (256, 256, 8192), (1000, 1000, 1000)])
def test_batch_invariant_plans_never_split_k_but_may_pack(shape):
    plan = plan_for(dense(*shape), UNTUNED, demands=Demands(batch_invariant=True))
    assert plan.config.split_k == 1
    assert "k is never split" in plan.why
    assert bool(plan.packs) == (shape[0] == 1000)


def test_what_cannot_be_read_wide_is_packed_and_said_so():
    problem = dataclasses.replace(dense(4096, 4096, 4096), b=Matrix(8192, 2))
    plan = plan_for(problem, UNTUNED)
    assert plan.packs == ("b",)
    assert "b is packed first: no contiguous lines" in plan.why
    shifted = dataclasses.replace(dense(4096, 4096, 4096), a=Matrix(4096, 1, alignment=4), b=Matrix(4097, 1))
    assert narrow_operands(shifted, F12, F12.default) == ("b",), "A is transposed one element an access: it may lie so"
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
    assert {("a",), ()} <= {candidate.packs for candidate in kept}
    assert max(c.config.split_k for c in explore(dense(64, 64, 8192), H200, [F12], 24).kept) > 4
    lower = explore(dense(1000, 1000, 1000), H200, [find_rung("f09")], 24).kept
    assert {candidate.packs for candidate in lower} == {()}, "its copies know one edge for both operands"


def test_among_what_the_sweep_measured_the_model_chooses_well():
    """As the choices' docstring says: 1.002 times the best one's time in the mean, 1.025 at most."""
    choices = {str(choice.config): choice for choice in FP32_CHOICES}
    losses = []
    for record in json.loads(SWEEP.read_text()):
        case = record["case"]
        problem = dense(case["m"], case["n"], case["k"], layout=case["layout"])
        us = {
            config["config_text"]: config["us"]
            for config in record["result"]["configs"]
            if config["config_text"] in choices
            and choices[config["config_text"]].config.min_blocks == config["min_blocks"]
        }

        def modelled(text: str, problem=problem) -> float:
            config = choices[text].config
            tested = 2 * F12.edge(problem, config)  # as the kernels of that sweep did: both or none
            return fp32_us(problem, choices[text], config, tested, H200)

        losses.append(us[min(us, key=modelled)] / min(us.values()))
    assert len(losses) == 27
    assert exp(fmean(map(log, losses))) == pytest.approx(1.002, abs=0.0005)
    assert max(losses) == pytest.approx(1.025, abs=0.0005)
