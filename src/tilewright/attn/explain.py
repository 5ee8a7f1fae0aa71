"""The explanation of attention: what would run and why, in words and figures, with nothing launched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..arrays.scalar import flag
from ..errors import check_keywords
from ..gemm.explain import Roofline
from ..gemm.explain import _gpu_of as gpu_of
from ..gpus import Gpu, Resources
from ..plan.explained import Explained, Row, chosen_rows, compiled_words, counted, plain, refused_rows
from ..plan.plan import Plan
from .attention import attention, attention_varlen
from .call import AttentionCall, read_attention, read_attention_varlen
from .config import AttentionConfig
from .family import plan_attention
from .problem import AttentionProblem
from .score import modification_of


@dataclass(frozen=True, repr=False)
class AttentionExplanation(Explained):
    """An account of what `attention` would run. `str()` tells it; the fields hold the same for programs."""

    problem: AttentionProblem | None
    """None when the result is empty and nothing would be launched; then there is no plan either."""
    gpu: Gpu
    gpu_source: str
    plan: Plan | None
    copied: tuple[tuple[str, str], ...]
    """(operand, why) of those that are copied for the kernel, each by a launch of its own."""
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    roofline: Roofline | None
    resources: Resources | None = None
    """The compiler's figures, when asked for."""

    def rows(self) -> list[Row]:
        rows = [("GPU", f"{self.gpu.name} ({self.gpu.arch}): {self.gpu_source}")]
        if self.problem is None or self.plan is None or self.roofline is None:
            rows.append(("runs", "nothing: the result is empty"))
        else:
            rows = [("problem", describe(self.problem)), *rows]
            rows += [
                *chosen_rows(self.plan),
            ]
            rows += [("copies", f"{name}: {why}") for name, why in self.copied] or [
                ("copies", "none: every operand is read and written where it lies")
            ]
            grid = " x ".join(map(str, self.grid))
            shared = f"{self.shared_bytes} B of shared memory per block"
            rows.append(("launch", f"{grid} blocks of {self.block[0]} threads, {shared}"))
            if self.resources is not None:
                rows.append(("compiled", compiled_words(self.resources)))
            rows.append(("bound", self._bound(self.roofline)))
            if self.plan.ignored:
                rows.append(("ignored", self.plan.ignored))
            rows += refused_rows(self.plan.refused)
        return rows

    def _bound(self, bound: Roofline) -> str:
        peak = self.gpu.bf16_tflops
        told = f"{peak:.1f} TFLOP/s tensor-core peak" if peak else "tensor-core peak not known"
        return (
            f"{bound.bound_tflops:.3g} TFLOP/s at most, by {bound.limiter} ({plain(bound.intensity)} FLOP per byte of "
            f"least traffic; {told}, {self.gpu.dram_gb_s:.0f} GB/s): a roof, not a measurement"
        )


def describe(problem: AttentionProblem) -> str:
    """One line: sizes, dtype, and what the scores go through."""
    heads = counted(problem.heads_q, "head")
    heads += f" that share {problem.heads_kv} of keys and values" if problem.group > 1 else ""
    parts = [
        f"batch {problem.batch}, {heads}, {problem.seq_q} queries, {problem.seq_k} keys, d_head {problem.d_head}"
        + (f", values of {problem.d_v} columns" if problem.d_v else "")
        + f", {problem.dtype}"
    ]
    if problem.totals is not None:
        parts[0] = parts[0].replace("queries", "queries per entry").replace("keys, d", "keys per entry, d")
    parts.append(f"scale {problem.scale:.6g}")
    if problem.is_causal:
        parts.append("causal")
    if problem.window != (-1, -1):
        parts.append("window ({}, {})".format(*("any" if side < 0 else side for side in problem.window)))
    if problem.softcap:
        parts.append(f"soft cap {problem.softcap:g}")
    if problem.bias is not None:
        read = "in pairs" if problem.bias.in_pairs and problem.seq_k % 2 == 0 else "one by one"
        parts.append(f"bias in {problem.bias.dtype}, read {read}")
    if problem.modify:
        parts.append("scores changed by the caller's function")
    if problem.seqused:
        parts.append("as many keys of each entry as seqused says")
    if problem.pages is not None:
        parts.append(f"in pages of {problem.pages[0]}")
    if problem.with_lse:
        parts.append("with LSE")
    return f"{', '.join(parts)}; {problem.flops:.4g} FLOP"


def explain_attention(
    q: Any, k: Any, v: Any, *, cu_seqlens_q: Any = None, cu_seqlens_k: Any = None, max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None, score: Any = None, rung: str | None = None,
    config: AttentionConfig | str | None = None, gpu: str | None = None, compile: bool = False, **options: Any,
) -> AttentionExplanation:  # fmt: skip
    """Return what `attention` would run for the same arguments, or `attention_varlen` where cu_seqlens are given, and
    why.

    `gpu` names the GPU to explain for (see tilewright.arch.GPUS), as for `explain`. `compile=True` adds the compiler's
    figures. Nothing is launched. Raises as `attention` does.
    """
    call: AttentionCall
    packed, compile = cu_seqlens_q is not None or cu_seqlens_k is not None, flag(compile, "compile")
    check_keywords(attention_varlen if packed else attention, options)
    options["modify"] = modification_of(score)
    if packed:
        call = read_attention_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, **options)
    else:
        call = read_attention(q, k, v, **options)
    named, source = gpu_of(call, gpu)
    if call.problem is None:
        return AttentionExplanation(None, named, source, None, (), (0, 1, 1), (0, 1, 1), 0, None)
    return _explained(*call.planned(named, rung, config), named, source, compile)


def explain_attention_problem(
    problem: AttentionProblem, gpu: Gpu, gpu_source: str, rung: str | None = None,
    config: AttentionConfig | str | None = None, *, compile: bool = False,
) -> AttentionExplanation:  # fmt: skip
    """Explain a problem apart from arrays. Raises ConfigRejected (rung or config), CompileError if compiled."""
    return _explained(problem, (), plan_attention(problem, gpu, rung, config), gpu, gpu_source, compile)


def _explained(
    problem: AttentionProblem, copied: tuple[tuple[str, str], ...], plan: Plan, gpu: Gpu, gpu_source: str, compile: bool
) -> AttentionExplanation:
    launch = plan.rung.shape(problem, plan.config)
    memory = gpu.dram_gb_s * problem.intensity * 1e-3
    peak = gpu.peak_tflops(problem.dtype) or memory
    bound = Roofline(problem.intensity, min(memory, peak), "memory" if memory <= peak else "arithmetic")
    resources = plan.rung.compile(problem, plan.config, gpu.arch).resources if compile else None
    return AttentionExplanation(
        problem, gpu, gpu_source, plan, copied, launch.grid, launch.block, launch.shared_bytes, bound, resources
    )
