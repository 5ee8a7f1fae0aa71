"""The explanation of attention_backward: what would run and why, in words and figures, with nothing launched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..arrays.scalar import flag
from ..errors import ConfigRejected, check_keywords
from ..gpus import Gpu
from ..plan.explained import Explained, Row, compiled_words
from ..run.program import Program
from .attention import attention, attention_varlen
from .backward_call import Taken, planned, rows_of
from .backward_config import BackwardConfig
from .backward_plan import BackwardPlan
from .backward_problem import BackwardProblem
from .backward_rung import BackwardRung
from .backward_rungs import BACKWARD_RUNGS
from .backward_score import differentiable
from .backward_stages import backward_program
from .call import read_attention, read_attention_varlen
from .explain import describe, gpu_of
from .problem import AttentionProblem, head_rows
from .score import Modification


@dataclass(frozen=True, repr=False)
class BackwardExplanation(Explained):
    """An account of what `attention_backward` would run. `str()` tells it; the fields hold the same for programs."""

    problem: BackwardProblem | None
    """None when nothing is multiplied: gradients are 0 or empty. There is no plan either."""
    gpu: Gpu
    gpu_source: str
    plan: BackwardPlan | None = None
    program: Program | None = None
    compiled: tuple[tuple[str, str], ...] = ()
    """(stage, the compiler's figures), when asked for."""
    refused: tuple[tuple[str, str], ...] = ()
    """(rung, why) of the rungs that cannot run the problem."""

    def rows(self) -> list[Row]:
        rows = [("GPU", f"{self.gpu.name} ({self.gpu.arch}): {self.gpu_source}")]
        if self.problem is None or self.plan is None or self.program is None:
            rows.append(("runs", "nothing that multiplies: gradients are 0 or empty"))
        else:
            rows = [("computes", f"the gradients of {describe(self.problem.forward)}"), *rows]
            rows.append(("runs", f"{self.plan.rung.id}, config {self.plan.config}"))
            rows.append(("why", self.plan.why))
            same = "the same at every run" if self.plan.config.deterministic else "may differ from run to run"
            rows.append(("bits", same))
            for stage in self.program.stages:
                grid, shape = " x ".join(map(str, stage.shape.grid[:2])), stage.shape
                text = f"{stage.name}: {grid} blocks of {shape.block[0]} threads, {shape.shared_bytes} B shared"
                rows.append(("launch", text))
            rows += [("compiled", f"{name}: {told}") for name, told in self.compiled]
            rows.append(("memory", f"{self.program.workspace_bytes} B borrowed, {self.problem.flops:.4g} FLOP"))
            rows += [("refused", f"{rung}: {why}") for rung, why in self.refused]
        return rows


def explain_attention_backward(
    q: Any, k: Any, v: Any, *, cu_seqlens_q: Any = None, cu_seqlens_k: Any = None, score: Any = None,
    deterministic: bool = False, rung: str | None = None, config: BackwardConfig | str | None = None,
    gpu: str | None = None, compile: bool = False, **options: Any,
) -> BackwardExplanation:  # fmt: skip
    """Return what `attention_backward` would run for these operands and options, and why, if grad and out lie densely.

    `gpu` names the GPU to explain for (see tilewright.arch.GPUS), as for `explain`. `compile=True` adds the compiler's
    figures. Nothing is launched. Raises as `attention_backward` does.
    """
    packed = cu_seqlens_q is not None or cu_seqlens_k is not None
    check_keywords(attention_varlen if packed else attention, options)
    deterministic, compile = flag(deterministic, "deterministic"), flag(compile, "compile")
    found = differentiable(score)
    options["modify"] = Modification(found.code, found.numbers)
    if packed:
        call = read_attention_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, *rows_of(q, k), **options)
    else:
        call = read_attention(q, k, v, **options)
    named, source = gpu_of(call, gpu)
    if call.problem is None or not call.k.shape[2]:
        return BackwardExplanation(None, named, source)
    rows, keys = call.q.shape[2], call.k.shape[2]

    def taken(p: AttentionProblem) -> Taken:
        dk, dv = (head_rows(p.heads_kv, keys, p.columns(x)) for x in "kv")
        return BackwardProblem(p, p.out, p.q, dk, dv, (p.heads_q * rows, rows, 1), None, found.slope), ()

    own = taken(call.own_columns[0]) if call.own_columns is not None else None
    (problem, _), plan = planned(taken(call.problem), own, named, deterministic, rung, config)
    program = backward_program(problem, plan)
    told: tuple[tuple[str, str], ...] = ()
    if compile:
        told = tuple((stage.name, compiled_words(stage.compile(named.arch).resources)) for stage in program.stages)
    reasons = tuple(
        (other.id, reason)
        for other in BACKWARD_RUNGS
        if other is not plan.rung and (reason := _why_no_default(other, problem, named, deterministic))
    )
    return BackwardExplanation(problem, named, source, plan, program, told, reasons)


def _why_no_default(rung: BackwardRung, problem: BackwardProblem, gpu: Gpu, deterministic: bool) -> str | None:
    try:
        rung.default(problem, gpu.arch, deterministic)
    except ConfigRejected as error:
        return str(error).rstrip(".")
    return None
