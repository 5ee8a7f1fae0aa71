"""Which attention rung and config run a problem, and why. Deterministic: the same call runs the same kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from ..errors import ConfigRejected
from ..gemm.rung import ceil_div
from ..gpus import GPUS, Arch, Gpu
from ..plan.tables import generation_now, sources_for
from .problem import AttentionProblem
from .rung import AttentionConfig, AttentionRung
from .rungs import ATTENTION_RUNGS, find_attention_rung


@dataclass(frozen=True)
class AttentionPlan:
    """The rung and config that run a problem. `refused`: (rung, config, reason) of what was considered and cannot."""

    rung: AttentionRung
    config: AttentionConfig
    source: str
    why: str
    refused: tuple[tuple[str, str, str], ...] = ()
    runners_up: tuple[tuple[str, str, str], ...] = ()
    """(rung, config, how it compares) of the next best that were measured or estimated."""
    ignored: str = ""
    """Tuning results that this version cannot use, in a line; "" where all were of use."""


def plan_attention(
    problem: AttentionProblem, on: Gpu | Arch, rung: str | None = None, config: AttentionConfig | str | None = None
) -> AttentionPlan:
    """The plan for a problem on a GPU (or on the first listed GPU of an architecture).

    A `config`, or its text, without a rung is one of the last rung. Raises ConfigRejected, with the numbers, when what
    is named cannot run the problem, or nothing can.
    """
    if isinstance(config, str):
        config = AttentionConfig.parse(config)
    if config is not None and not isinstance(config, AttentionConfig):
        raise ConfigRejected(f"config is {config!r}; pass a tilewright.ladder.AttentionConfig, its text, or none.")
    if rung is not None and not isinstance(rung, str):
        raise ConfigRejected(f"rung is {rung!r}; pass the name of one, such as 'a16', or none.")
    gpu = on if isinstance(on, Gpu) else next(gpu for gpu in GPUS.values() if gpu.arch == on)
    return _plan(problem, gpu, rung, config, generation_now())


@lru_cache(maxsize=4096)
def _plan(
    problem: AttentionProblem, gpu: Gpu, name: str | None, config: AttentionConfig | None, tuned: int
) -> AttentionPlan:
    """`tuned` counts the changes of tuning results in this process."""
    rung = find_attention_rung(name) if name is not None else ATTENTION_RUNGS[-1]
    if config is not None:
        if reason := rung.why_not(problem, config, gpu.arch):
            raise ConfigRejected(f"{reason}. Leave rung and config away to let the plan choose.")
        return AttentionPlan(rung, config, "the caller", "the config was named in the call")
    if name is not None:
        return AttentionPlan(
            rung, rung.default(problem, gpu.arch), "the rung's default", f"{rung} was named in the call"
        )
    from .choice import choose_attention  # whose measurer asks for plans

    ignored: list[str] = []
    found = choose_attention(problem, gpu, sources_for(gpu), ignored)
    if found is not None:
        return AttentionPlan(
            found.rung, found.config, found.source, found.why, found.refused, found.runners_up, "; ".join(ignored)
        )
    return replace(_choose(problem, gpu, rung), ignored="; ".join(ignored))


def _choose(problem: AttentionProblem, gpu: Gpu, top: AttentionRung) -> AttentionPlan:
    refused, fits = [], []
    own = tuple(config for config in top.defaults if config.d_head == problem.d_head)
    for config in (*own, AttentionConfig(problem.d_head, 64, 64 if problem.d_head <= 128 else 32, 4, 2, 2, 2)):
        if reason := top.why_not(problem, config, gpu.arch):
            refused.append((top.id, str(config), reason))
        elif config not in fits:
            fits.append(config)
    if not fits:
        reasons = "; ".join(dict.fromkeys(reason for _, _, reason in refused))
        raise ConfigRejected(f"no attention rung can run this problem on {gpu.arch}: {reasons}.")
    best = fits[0]
    blocks = _blocks(problem, best)
    why = f"{top}'s best measured config for d_head={problem.d_head}: {blocks} blocks on {gpu.sm_count} SMs"
    if blocks < gpu.sm_count:
        # Too few for every SM: fewer rows a block spread the same work over more of them.
        smaller = min(fits, key=lambda config: config.b_r)
        if smaller.b_r < best.b_r:
            share = _blocks(problem, smaller)
            why = (
                f"{best} would make {blocks} blocks for {gpu.sm_count} SMs; with {smaller.b_r} rows a block {share} "
                "share the work"
                if share > blocks
                else f"{smaller.b_r} rows a block hold all {problem.seq_q} queries; {best} would idle the rest"
            )
            best = smaller
    return AttentionPlan(top, best, "the rung's defaults", why, tuple(refused))


def _blocks(problem: AttentionProblem, config: AttentionConfig) -> int:
    return ceil_div(problem.seq_q, config.b_r) * problem.heads_q * problem.batch
