"""Products of several launches with their blocks spread over the SMs, in pairs with the same where they fall."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

from ..errors import WrongResult
from ..gemm.config import SimtConfig
from ..gemm.family import plan_for
from ..gemm.problem import GemmProblem
from ..gemm.stages import config_of, program_for
from ..gpus import occupancy
from ..jit.device import bound_to, device
from ..jit.gpu_executor import executor_for
from ..run.program import Program
from .climb_gpu import origin_of
from .ground import Ground, program_launch, verify_reference
from .ladder import Progress, silent


def as_they_fall(program: Program) -> Program:
    """The same launches, whose blocks start wherever there is room (jit.launch.Launch.spreads)."""
    stages = tuple(replace(stage, shape=replace(stage.shape, spreads=False)) for stage in program.stages)
    return replace(program, stages=stages)


def spread_records(
    suite: str, cases: Sequence[dict[str, Any]], ordinal: int = 0, seconds: float = 1.0, say: Progress = silent
) -> list[dict[str, Any]]:
    """One record a case {"m", "n", "k", "layout", "rung", "config"} in fp32: both ways checked against float64, then
    timed in pairs. `ratio`: how many times as fast the product is whose blocks are spread; `stay`: blocks that may stay
    on an SM with what the kernel uses, of which one gets `even` where all get the same."""
    where = device(ordinal)
    origin, records = origin_of(where, None, None), []
    for number, case in enumerate(cases):
        problem = GemmProblem.dense(case["m"], case["n"], case["k"], layout=case["layout"], dtype="f32")
        say(number, f"{problem.m} x {problem.n} x {problem.k} {problem.layout}")
        program = program_for(problem, plan_for(problem, where.gpu, case["rung"], SimtConfig(**case["config"])))
        kernels = [stage.compile(where.arch) for stage in program.stages]
        ground, shape = Ground(problem, where, None), program.product.shape
        ways = [
            [program_launch(way, kernels, buffers, ordinal) for buffers in ground.sets]
            for way in (program, as_they_fall(program))
        ]
        blocks, resources = prod(shape.grid), kernels[program.main].resources
        result: dict[str, Any] = {
            "right": True, "reason": "", "blocks": blocks, "even": -(-blocks // where.gpu.sm_count),
            "stay": occupancy(resources, prod(shape.block), shape.shared_bytes, where.arch).blocks,
        }  # fmt: skip
        try:
            for name, launches in zip(("spread", "as they fall"), ways, strict=True):
                out = ground.sets[0].out.address
                with bound_to(ordinal):  # no library of a reference has made a context current
                    verify_reference(name, launches[0], out, executor_for(ordinal), problem, ground.given)
            result |= ground.timed(ways[0], seconds, ways[1])
        except WrongResult as error:
            result |= {"right": False, "reason": str(error)}
        stages = [stage.name for stage in program.stages]
        told = {"m": problem.m, "n": problem.n, "k": problem.k, "layout": problem.layout, "dtype": "f32",
                "rung": case["rung"], "config_text": str(config_of(program)), "stages": stages}  # fmt: skip
        records.append({"suite": suite, "case": told, "result": result, "provenance": origin})
    return records
