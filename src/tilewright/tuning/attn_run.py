"""Tuning attention problems: what run.py does, with attention's space, its measurer and its classes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from ..attn.classes import attention_class_of
from ..attn.family import ATTENTION, plan_attention
from ..attn.problem import AttentionProblem
from ..attn.rung import KERNELS, AttentionRung
from ..attn.rungs import ATTENTION_RUNGS
from ..attn.space import AttentionCandidate, explore_attention
from ..gemm.space import KEPT, Space
from ..gpus import Gpu
from ..plan.store import Store
from .attn_measure import AttentionMeasurer, plain
from .run import Family, Job, Say, Tuned, hash_of, silent, tune_family


@lru_cache(maxsize=1)
def attention_kernels() -> str:
    """Hash of the device code of all attention rungs, the same for all problems."""
    return hash_of((KERNELS,))


def name_of(problem: AttentionProblem) -> str:
    """Such as bf16 causal attention, 4 x 16 heads on 4 of keys, 2048 x 2048, d_head 128."""
    mask = " causal" if problem.is_causal else ""
    shared = f" on {problem.heads_kv} of keys" if problem.group > 1 else ""
    lengths = f"{problem.seq_q} x {problem.seq_k}"
    return (
        f"{problem.dtype}{mask} attention, {problem.batch} x {problem.heads_q} heads{shared}, {lengths}, "
        f"d_head {problem.d_head}"
    )


def _job(problem: AttentionProblem, candidate: AttentionCandidate) -> Job:
    rung = candidate.rung
    return Job(rung.include, rung.constants(problem, candidate.config), rung.entry)


def tune_attention_problems(
    problems: Sequence[AttentionProblem], *, ordinal: int = 0, rungs: Sequence[AttentionRung] | None = None,
    seconds: float = 60.0, jobs: int | None = None, again: bool = False, kept: int = KEPT, store: Store | None = None,
    say: Say = silent,
) -> Iterator[Tuned]:  # fmt: skip
    """As run.tune_problems. Operands are taken to be dense, with nothing done to the scores and no LSE."""
    tried = tuple(rungs) if rungs else ATTENTION_RUNGS

    def explored(problem: AttentionProblem, gpu: Gpu) -> Space[AttentionCandidate]:
        now = plan_attention(problem, gpu)
        return explore_attention(problem, gpu, tried, kept, [(now.rung, now.config)] if now.rung in tried else [])

    family = Family(
        ATTENTION, plain, attention_class_of, explored, _job, lambda p: attention_kernels(), AttentionMeasurer,
        lambda p: (p.batch, p.heads_q, p.heads_kv, p.seq_q, p.seq_k), name_of,
    )  # fmt: skip
    return tune_family(family, problems, ordinal=ordinal, seconds=seconds, jobs=jobs, again=again, store=store, say=say)
