"""What runs products of precision="fp32x3": the models beside what was measured, and what compiling gives."""

from __future__ import annotations

from math import exp, log, sqrt
from pathlib import Path

import pytest

from tilewright.gemm.problem import GemmProblem
from tilewright.gemm.rungs.simt import find_rung, rungs_of
from tilewright.gemm.space import explore
from tilewright.gpus import ARCHS, GPUS
from tilewright.lab.record import read_records
from tilewright.plan.cost import fp32x3_us
from tilewright.plan.fallback import FP32X3_CHOICES, Choice
from tilewright.plan.model import predict

H200 = GPUS["H200"]


@pytest.fixture(scope="module")
def measured() -> list[tuple[GemmProblem, float, list[tuple[Choice, float]]]]:
    """(problem, us of the fastest kernel, us of each choice that was measured)."""
    results = Path(__file__).parents[2] / "benchmarks" / "results"
    found = []
    for record in read_records(results / "precision-sizes-H200.json"):
        case, configs = record["case"], record["result"]["configs"]
        problem = GemmProblem.dense(case["m"], case["n"], case["k"], layout=case["layout"], precision="fp32x3")
        by_name = {(c["rung"], c["config_text"], c["min_blocks"]): c["us"] for c in configs}
        names = {choice: (find_rung(choice.rung).id, str(choice.config), choice.config.min_blocks)
                 for choice in FP32X3_CHOICES}  # fmt: skip
        known = [(choice, by_name[name]) for choice, name in names.items() if name in by_name]
        found.append((problem, configs[0]["us"], known))
    return found


def modelled(problem: GemmProblem, choice: Choice) -> float:
    return fp32x3_us(problem, find_rung(choice.rung), choice, H200)


def test_the_model_chooses_nearly_the_fastest_of_what_was_measured(measured):
    assert len(measured) == 7
    rungs = set()
    for problem, fastest, known in measured:
        choice, us = min(known, key=lambda one: modelled(problem, one[0]))
        rungs.add(choice.rung)
        assert us <= 1.01 * fastest, (problem.m, problem.n, problem.k)
    assert rungs == {"t02", "t03"}


def test_the_model_misses_by_as_much_as_it_says(measured):
    misses = [log(modelled(problem, choice) / us) for problem, _, known in measured for choice, us in known]
    assert 1.05 < exp(sqrt(sum(miss**2 for miss in misses) / len(misses))) < 1.105


def test_tunings_model_is_not_far_off_what_was_measured(measured):
    for problem, _, known in measured:
        for choice, us in known:
            assert 0.5 < predict(problem, find_rung(choice.rung), choice.config, H200).ms * 1e3 / us < 1.6


def test_tuning_tries_both_rungs_and_what_the_plan_chooses():
    choices = {(find_rung(choice.rung).id, choice.config) for choice in FP32X3_CHOICES}
    assert choices <= {(rung.id, config) for rung in rungs_of("fp32x3") for config in rung.space()}
    for size in (256, 1024):
        kept = explore(GemmProblem.dense(size, size, size, precision="fp32x3"), H200, rungs_of("fp32x3")).kept
        assert {candidate.rung.id for candidate in kept} == {"t02_fp32x3", "t03_fp32x3_split"}


def test_one_unaligned_operand_costs_the_split_product_nothing_in_tunings_model():
    t03 = find_rung("t03")
    aligned, not_so = (GemmProblem.dense(512, 512, k, precision="fp32x3") for k in (512, 511))
    expected = [predict(problem, t03, t03.default, H200).ms for problem in (aligned, not_so)]
    assert expected[1] <= expected[0]


@pytest.mark.parametrize("size", [(4096, 4096, 4096), (4095, 4095, 256)], ids=str)
def test_t03s_default_does_not_spill(size):
    t03 = find_rung("t03")
    problem = GemmProblem.dense(*size, precision="fp32x3")
    resources = t03.compile(problem, t03.default, ARCHS["sm_90a"]).resources
    assert (resources.spill_store_bytes, resources.spill_load_bytes, resources.stack_bytes) == (0, 0, 0)
