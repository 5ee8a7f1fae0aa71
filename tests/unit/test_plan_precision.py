"""What runs products of precision="fp32x3": the models beside what was measured, and what compiling gives."""

from __future__ import annotations

import pytest

from tilewright.gemm.presets import PRESETS
from tilewright.gemm.problem import GemmProblem
from tilewright.gemm.rungs import find_rung, rungs_of
from tilewright.gemm.space import explore
from tilewright.gemm.work import work_of
from tilewright.gpus import ARCHS, GPUS
from tilewright.plan.estimate import predict

H200 = GPUS["H200"]


def test_tuning_tries_both_rungs_and_what_the_plan_chooses():
    choices = {(preset.rung.id, preset.config) for preset in PRESETS["fp32x3"]}
    assert choices <= {(rung.id, config) for rung in rungs_of("fp32x3") for config in rung.space()}
    for size in (256, 1024):
        kept = explore(GemmProblem.dense(size, size, size, precision="fp32x3"), H200, rungs_of("fp32x3")).kept
        assert {candidate.rung.id for candidate in kept} == {"t02_fp32x3", "t03_fp32x3_split"}


def test_one_unaligned_operand_costs_the_split_product_nothing_in_tunings_model():
    t03 = find_rung("t03")
    aligned, not_so = (GemmProblem.dense(512, 512, k, precision="fp32x3") for k in (512, 511))
    expected = [predict(work_of(problem, t03, t03.default), H200).ms for problem in (aligned, not_so)]
    assert expected[1] <= expected[0]


@pytest.mark.parametrize("size", [(4096, 4096, 4096), (4095, 4095, 256)], ids=str)
def test_t03s_default_does_not_spill(size):
    t03 = find_rung("t03")
    problem = GemmProblem.dense(*size, precision="fp32x3")
    resources = t03.compile(problem, t03.default, ARCHS["sm_90a"]).resources
    assert (resources.spill_store_bytes, resources.spill_load_bytes, resources.stack_bytes) == (0, 0, 0)
