"""The choice of the backward rung and config that run a problem on a GPU."""

from __future__ import annotations

from functools import lru_cache

from ..errors import ConfigRejected
from ..gpus import Arch, Gpu
from .backward_config import BackwardConfig
from .backward_problem import BackwardProblem
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
    if config is not None and deterministic and not config.deterministic:
        raise ConfigRejected(f"{config} is not deterministic. Name one that makes dQ by queries, or none.")
    if rung is None and config is None:
        return _last_that_fits(problem, arch, deterministic)
    if rung is None:
        assert config is not None
        chosen = next(one for one in BACKWARD_RUNGS if one.sums is bool(config.sums))
    else:
        chosen = find_backward_rung(rung)
    if config is None:
        default = chosen.default(problem, arch, deterministic)
        return BackwardPlan(chosen, default, f"{chosen} was named in the call")
    if reason := chosen.why_not(problem, config, arch):
        raise ConfigRejected(f"{reason}. Omit rung and config to let the plan choose.")
    return BackwardPlan(chosen, config, "the config was named in the call")


def _last_that_fits(problem: BackwardProblem, arch: Arch, deterministic: bool) -> BackwardPlan:
    """The last rung that is planned for the problem and has a config, with its best measured one."""
    reasons = []
    for rung in reversed(BACKWARD_RUNGS):
        if not rung.is_planned(problem, deterministic):
            continue
        try:
            config = rung.default(problem, arch, deterministic)
        except ConfigRejected as error:
            reasons.append(str(error))
            continue
        same = ", with gradients of the same bits at every run" if deterministic else ""
        return BackwardPlan(rung, config, f"the best measured config of the rung planned for it on {arch}{same}")
    raise ConfigRejected(" ".join(reasons))
