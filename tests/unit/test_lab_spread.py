"""The suite of products of several launches: its cases are such, and what it compares differs in one thing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tilewright.gemm.config import SimtConfig
from tilewright.gemm.family import plan_for
from tilewright.gemm.problem import GemmProblem
from tilewright.gemm.stages import program_for
from tilewright.gpus import GPUS
from tilewright.lab.spread import as_they_fall

SUITE = json.loads((Path(__file__).parents[2] / "benchmarks" / "fp32-spread.json").read_text())


@pytest.mark.parametrize("case", SUITE["cases"], ids=lambda case: "{m}x{n}x{k}".format(**case))
def test_a_case_spreads_and_its_opponent_asks_for_what_its_kernel_uses(case):
    gpu = GPUS["H200"]
    problem = GemmProblem.dense(case["m"], case["n"], case["k"], layout=case["layout"])
    program = program_for(problem, plan_for(problem, gpu, case["rung"], SimtConfig(**case["config"])))
    kernel = program.product.compile(gpu.arch)
    spread, falls = (
        way.product.shape.shared_on(gpu, lambda: kernel.resources) for way in (program, as_they_fall(program))
    )
    assert spread > falls == program.product.shape.shared_bytes
    assert [stage.params for stage in program.stages] == [stage.params for stage in as_they_fall(program).stages]
