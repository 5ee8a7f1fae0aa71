"""Whole products as tw.matmul plans them, packing and sums of parts included, in pairs with the library's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ..errors import WrongResult
from ..gemm.family import plan_for
from ..gemm.problem import GemmProblem
from ..gemm.stages import program_for
from ..jit.device import device
from ..jit.gpu_executor import executor_for
from ..plan.plan import Plan
from ..run.program import Program
from .climb_gpu import origin_of
from .ground import Ground, program_launch, verify_reference
from .ladder import Progress, silent
from .reference import needed_reference


def product_records(
    suite: str, cases: Sequence[dict[str, Any]], ordinal: int = 0, seconds: float = 1.0, say: Progress = silent
) -> list[dict[str, Any]]:
    """One record a case {"m", "n", "k", "layout", "dtype"}: checked against float64, then timed. Wrong is not timed.

    Raises TilewrightError without a library to compare with.
    """
    where = device(ordinal)
    executor = executor_for(ordinal)
    library = needed_reference(ordinal)
    origin = origin_of(where, library.name, library.version)
    records = []
    for number, case in enumerate(cases):
        problem = GemmProblem.dense(
            case["m"], case["n"], case["k"], layout=case.get("layout", "nn"), dtype=case["dtype"]
        )
        say(number, f"{problem.m} x {problem.n} x {problem.k} {problem.layout} in {problem.dtype}")
        plan = plan_for(problem, where.gpu)
        program = program_for(problem, plan)
        ground = Ground(problem, where, library)
        kernels = [stage.compile(where.arch) for stage in program.stages]
        own = [program_launch(program, kernels, buffers, ordinal) for buffers in ground.sets]
        result: dict[str, Any] = {"right": True, "reason": ""}
        try:
            verify_reference(str(plan.rung), own[0], ground.sets[0].out.address, executor, problem, ground.given)
        except WrongResult as error:
            result = {"right": False, "reason": str(error)}
        if result["right"]:
            timed = ground.timed(own, seconds)
            result |= timed | {"gb_s": problem.bytes / timed["ms"] * 1e-6}
        records.append({"suite": suite, "case": _case(problem, plan, program), "result": result, "provenance": origin})
    return records


def _case(problem: GemmProblem, plan: Plan, program: Program) -> dict[str, Any]:
    return {
        "rung": plan.rung.id, "config": asdict(plan.config), "config_text": str(plan.config), "source": plan.source,
        "stages": [stage.name for stage in program.stages], "workspace_bytes": program.workspace_bytes,
        "m": problem.m, "n": problem.n, "k": problem.k, "dtype": problem.dtype, "out_dtype": problem.out_dtype,
        "layout": problem.layout,
    }  # fmt: skip
