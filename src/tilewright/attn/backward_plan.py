"""Which backward rung and config run a problem on a GPU."""

from __future__ import annotations

from functools import lru_cache

from ..errors import ConfigRejected
from ..gpus import Arch, Gpu
from .backward_problem import BackwardProblem
from .backward_rung import BackwardConfig
from .backward_rungs import BACKWARD_RUNGS, find_backward_rung
from .backward_stages import BackwardPlan


@lru_cache(maxsize=4096)
def plan_backward(
    problem: BackwardProblem, on: Gpu | Arch, deterministic: bool = False, rung: str | None = None,
    config: BackwardConfig | str | None = None,
) -> BackwardPlan:  # fmt: skip
    """The plan for a problem on a GPU or an architecture. Deterministic.

    Raises ConfigRejected, with the numbers, when what is named cannot run the problem, or nothing can.
    """
    arch = on if isinstance(on, Arch) else on.arch
    if isinstance(config, str):
        config = BackwardConfig.parse(config)
    if rung is None and config is not None:
        rung = next(one.id for one in BACKWARD_RUNGS if not one.deterministic or config.queries is not None)
    if rung is not None:
        chosen = find_backward_rung(rung)
        if deterministic and not chosen.deterministic:
            raise ConfigRejected(f"{chosen} is not deterministic. Omit rung, or deterministic=True.")
        if config is None:
            return BackwardPlan(chosen, chosen.default(problem, arch), f"{chosen} was named in the call")
        if reason := chosen.why_not(problem, config, arch):
            raise ConfigRejected(f"{reason}. Omit rung and config to let the plan choose.")
        return BackwardPlan(chosen, config, "the config was named in the call")
    chosen = BACKWARD_RUNGS[0]
    why = "sums in a fixed order were asked for" if deterministic else "the first rung's default"
    return BackwardPlan(chosen, chosen.default(problem, arch), why)
