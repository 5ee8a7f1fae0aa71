"""What the compiler made of the fp8 rungs: products that stay asynchronous next to additions, and nothing spilled."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright.gemm.presets import CONFIGS
from tilewright.gemm.problem import Epilogue, FusedOperand, GemmProblem, Matrix
from tilewright.gemm.rungs import find_rung
from tilewright.gemm.rungs.fp8 import FP8_RUNGS
from tilewright.gpus import ARCHS

PROBLEM = GemmProblem.dense(4096, 4096, 4096, layout="nt", dtype="e4m3")
BLOCKS = Epilogue(
    "acc", "", (FusedOperand("a_scale", "f32", Matrix(32, 1), scales="a"),
                FusedOperand("b_scale", "f32", Matrix(32, 1), scales="b")),
)  # fmt: skip
BY_WGMMA = [rung for rung in FP8_RUNGS if rung.warpgroups]
CHOSEN = [(name, config) for name, config in CONFIGS["fp8"] if find_rung(name).warpgroups]


def compiled_well(rung, config, problem) -> None:
    kernel = rung.compile(replace(problem, precision=rung.precision), config, ARCHS["sm_90a"])
    assert "serialized" not in kernel.log, "ptxas waits for each product (C7514 and its like)"
    assert kernel.resources.spill_load_bytes == 0


@pytest.mark.parametrize("rung", BY_WGMMA, ids=str)
def test_products_stay_asynchronous_and_nothing_spills(rung):
    compiled_well(rung, rung.default, PROBLEM)


@pytest.mark.parametrize(("name", "config"), CHOSEN, ids=str)
def test_so_they_do_with_scales_of_blocks_in_what_plans_choose_from(name, config):
    compiled_well(find_rung(name), config, replace(PROBLEM, epilogue=BLOCKS))
