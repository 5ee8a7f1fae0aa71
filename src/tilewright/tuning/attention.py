"""Tuning attention problems: what the tuner must know of them (run.Tunable)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from ..attn.family import ATTENTION
from ..attn.problem import AttentionProblem
from ..attn.rung import AttentionRung
from ..attn.rungs import EVERY_RUNG
from ..attn.space import explore_attention
from ..attn.split import MERGE
from ..gpus import Gpu
from ..plan.plan import Plan
from ..plan.space import KEPT, Candidate, Space
from .attention_trial import AttentionTrial
from .run import Job, Tuned, hash_of, tune_family
from .verify import Pattern


@lru_cache(maxsize=1)
def attention_kernels() -> str:
    """Hash of the device code of all attention rungs, the same for all problems."""
    return hash_of((*dict.fromkeys(rung.include for rung in EVERY_RUNG), MERGE))


def name_of(problem: AttentionProblem) -> str:
    """Such as bf16 causal attention, 4 x 16 heads on 4 of keys, 2048 x 2048, d_head 128."""
    mask = " causal" if problem.is_causal else ""
    shared = f" on {problem.heads_kv} of keys" if problem.group > 1 else ""
    lengths = f"{problem.seq_q} x {problem.seq_k}"
    return (
        f"{problem.dtype}{mask} attention, {problem.batch} x {problem.heads_q} heads{shared}, {lengths}, "
        f"d_head {problem.d_head}"
    )


@dataclass(frozen=True)
class TunableAttention:
    """See run.Tunable. `rungs`: those that are tried; those of Hopper say elsewhere that they cannot run."""

    rungs: tuple[AttentionRung, ...] = EVERY_RUNG
    kept: int = KEPT
    plans = ATTENTION

    def plain(self, problem: AttentionProblem) -> AttentionProblem:
        """Dense operands, nothing done to the scores, no LSE, entries of one length."""
        return replace(
            AttentionProblem.dense(
                problem.batch, problem.heads_q, problem.seq_q, problem.seq_k, problem.d_head, heads_kv=problem.heads_kv,
                dtype=problem.dtype, is_causal=problem.is_causal,
            ),
            window=problem.window,
        )  # fmt: skip

    def explore(self, problem: AttentionProblem, gpu: Gpu, also: Plan | None = None) -> Space[Candidate]:
        ours = [(also.rung, also.config)] if also is not None and also.rung in self.rungs else []
        return explore_attention(problem, gpu, self.rungs, self.kept, ours)

    def job(self, problem: AttentionProblem, candidate: Candidate) -> Job:
        rung = candidate.rung
        return Job(rung.include, rung.constants(problem, candidate.config), rung.entry)

    def kernels(self, problem: AttentionProblem) -> str:
        return attention_kernels()

    def trial(self, problem: AttentionProblem, ordinal: int, pattern: Pattern) -> AttentionTrial:
        return AttentionTrial(problem, ordinal, pattern)

    def shape(self, problem: AttentionProblem) -> tuple[int, ...]:
        return problem.batch, problem.heads_q, problem.heads_kv, problem.seq_q, problem.seq_k

    def name(self, problem: AttentionProblem) -> str:
        return name_of(problem)

    def fused(self, problem: AttentionProblem) -> str:
        return ""


def tune_attention_problems(
    problems: Sequence[AttentionProblem], *, rungs: Sequence[AttentionRung] | None = None, kept: int = KEPT,
    **options: Any,
) -> Iterator[Tuned]:  # fmt: skip
    """run.tune_family of attention. Operands are taken to be dense, with nothing done to the scores and no LSE."""
    return tune_family(TunableAttention(tuple(rungs or EVERY_RUNG), kept), problems, **options)
