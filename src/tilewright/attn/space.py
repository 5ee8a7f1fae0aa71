"""Which attention kernels are worth compiling for a problem, by the model of time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from ..gpus import Gpu
from ..plan.estimate import predict
from ..plan.space import KEPT, Candidate, Space, select, why_pruned
from .problem import AttentionProblem
from .rung import AttentionRung
from .work import work_of


def explore_attention(
    problem: AttentionProblem,
    gpu: Gpu,
    rungs: Sequence[AttentionRung],
    kept: int = KEPT,
    also: Iterable[tuple[AttentionRung, Any]] = (),
) -> Space[Candidate]:
    """The candidates worth compiling: of every rung its space and its defaults. `also`: some kept in any case."""
    pruned: Counter[str] = Counter()
    fits: list[Candidate] = []
    always = list(also)
    everything = [*always]
    for rung in rungs:
        own = tuple(config for config in rung.defaults if config.d_head == problem.d_head)
        everything += [(rung, config) for config in (*own, *rung.space(problem.d_head))]
    everything = list(dict.fromkeys(everything))
    wanted: list[Candidate] = []
    for number, (rung, config) in enumerate(everything):
        if rung.why_not(problem, config, gpu.arch) is not None:
            pruned["cannot run it (why_not)"] += 1
            continue
        candidate = Candidate(rung, config, predict(work_of(problem, rung, config), gpu))
        reason = why_pruned(candidate, gpu)
        if reason is not None and (candidate.prediction.resident == 0 or number >= len(always)):
            pruned[reason] += 1
            continue
        fits.append(candidate)
        if number < len(always):
            wanted.append(candidate)
    return Space(select(fits, wanted, kept, pruned, _shape, _order), dict(pruned), len(everything))


def _shape(candidate: Candidate) -> tuple[object, ...]:
    return candidate.config.b_r, candidate.config.b_c, candidate.config.threads


def _order(candidate: Candidate) -> tuple[float, int, str]:
    """By modelled time; of equals the higher rung first, so that a space is always the same."""
    return candidate.prediction.ms, -int(candidate.rung.id[1:3]), candidate.text
