"""Which attention kernels are worth compiling for a problem, by the model of time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..gemm.space import FAR_BEHIND, KEPT, MOST_SPILL, SHARE_OF_A_SHAPE, Space
from ..gpus import Gpu
from ..plan.estimate import Prediction, predict
from .problem import AttentionProblem
from .rung import AttentionConfig, AttentionRung
from .work import work_of


@dataclass(frozen=True)
class AttentionCandidate:
    """One kernel to try, and what the model says of it."""

    rung: AttentionRung
    config: AttentionConfig
    prediction: Prediction
    packs: tuple[str, ...] = ()
    """Always none: operands that must be copied are copied whatever the config."""

    @property
    def text(self) -> str:
        return str(self.config)

    def __str__(self) -> str:
        return f"{self.rung.id} {self.text}"


def explore_attention(
    problem: AttentionProblem,
    gpu: Gpu,
    rungs: Sequence[AttentionRung],
    kept: int = KEPT,
    also: Iterable[tuple[AttentionRung, AttentionConfig]] = (),
) -> Space[AttentionCandidate]:
    """The candidates worth compiling: of every rung its space and its defaults. `also`: some kept in any case."""
    pruned: Counter[str] = Counter()
    fits: dict[tuple[str, AttentionConfig], AttentionCandidate] = {}
    always = list(also)
    wanted = {(rung.id, config) for rung, config in always}
    everything = [*always]
    for rung in rungs:
        own = tuple(config for config in rung.defaults if config.d_head == problem.d_head)
        everything += [(rung, config) for config in (*own, *rung.space(problem.d_head))]
    everything = list(dict.fromkeys(everything))
    for rung, config in everything:
        if rung.why_not(problem, config, gpu.arch) is not None:
            pruned["cannot run it (why_not)"] += 1
            continue
        prediction = predict(work_of(problem, rung, config), gpu)
        granted = min(65536 // (config.threads * config.min_blocks), gpu.arch.registers_per_thread)
        if prediction.resident == 0:
            pruned["do not fit on an SM"] += 1
        elif prediction.registers > MOST_SPILL * granted and (rung.id, config) not in wanted:
            pruned["would spill registers"] += 1
        else:
            fits[rung.id, config] = AttentionCandidate(rung, config, prediction)
    ordered = sorted(fits.values(), key=_order)
    chosen = [candidate for candidate in ordered if (candidate.rung.id, candidate.config) in wanted][:kept]
    near = [c for c in ordered if c.prediction.ms <= FAR_BEHIND * ordered[0].prediction.ms]
    far = sum(candidate not in chosen for candidate in ordered[len(near) :])
    tiles: Counter[tuple[int, ...]] = Counter()
    for first_choice in (True, False):
        for candidate in near:
            tile = (candidate.config.b_r, candidate.config.b_c, candidate.config.n_warps)
            if len(chosen) >= kept or candidate in chosen or (first_choice and tiles[tile] >= SHARE_OF_A_SHAPE):
                continue
            tiles[tile] += 1
            chosen.append(candidate)
    pruned[f"more than {FAR_BEHIND:g} times the best modelled time"] = far
    pruned[f"not among the best {kept} by the model"] = len(ordered) - far - len(chosen)
    return Space(tuple(sorted(chosen, key=_order)), dict(pruned), len(everything))


def _order(candidate: AttentionCandidate) -> tuple[float, int, str]:
    """By modelled time; of equals the higher rung first, so that a space is always the same."""
    return candidate.prediction.ms, -int(candidate.rung.id[1:3]), candidate.text
