"""The attention kernels worth compiling for a problem, by the model of time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from ..gpus import Gpu
from ..plan.estimate import predict
from ..plan.space import KEPT, Candidate, Space, select, why_pruned
from .problem import AttentionProblem
from .rung import AttentionRung
from .split import SplitRung
from .split_plan import few_on_many, tilings_of, ways_of
from .work import work_of


def explore_attention(
    problem: AttentionProblem,
    gpu: Gpu,
    rungs: Sequence[AttentionRung],
    kept: int = KEPT,
    also: Iterable[tuple[AttentionRung, Any]] = (),
) -> Space[Candidate]:
    """The candidates worth compiling: of every rung its space and its defaults; of keys in parts only where queries are
    few, or where nothing else is asked for. `also`: some kept in any case."""
    pruned: Counter[str] = Counter()
    fits: list[Candidate] = []
    always = list(also)
    everything = [*always]
    for rung in rungs:
        own = tuple(config for config in rung.defaults if config.d_head == problem.d_head)
        configs = (*own, *rung.space(problem.d_head))
        if isinstance(rung, SplitRung):
            configs = _with_parts(problem, configs, gpu) if few_on_many(problem) or len(rungs) == 1 else ()
        everything += [(rung, config) for config in configs]
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


def _with_parts(problem: AttentionProblem, configs: Iterable[Any], gpu: Gpu) -> tuple[Any, ...]:
    """Each with its keys in the numbers of parts that are worth it: best_split's and those of the rung's space."""
    every = (*tilings_of(problem, gpu), *configs)
    return tuple(way for config in dict.fromkeys(every) for way in ways_of(problem, config, gpu))


def _shape(candidate: Candidate) -> tuple[object, ...]:
    return candidate.config.b_r, candidate.config.b_c, candidate.config.threads


def _order(candidate: Candidate) -> tuple[float, int, str]:
    """The order by modelled time; of equals the higher rung comes first, so that a space is always the same."""
    return candidate.prediction.ms, -int(candidate.rung.id[1:3]), candidate.text
