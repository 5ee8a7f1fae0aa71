"""Grouped products, as planning sees them (plan/family.py)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..errors import ConfigRejected
from ..gemm.classes import ProblemClass
from ..gemm.config import GemmConfig
from ..gemm.family import Products, check_names, rung_for
from ..gemm.rung import Rung
from ..gemm.work import tiles_of, work_of
from ..gpus import Arch, Gpu
from ..plan.choose import plan
from ..plan.demands import NONE, Demands
from ..plan.estimate import Work
from ..plan.family import Preset
from ..plan.plan import Plan, Refusal
from .presets import presets_of
from .problem import GroupedProblem
from .rungs import find_grouped_rung, rungs_for
from .stages import as_cut, as_run, why_not


class GroupedProducts(Products):
    """The family of grouped products: each is planned as a batch of products of the average size."""

    name = "grouped products"

    def rungs(self, problem: Any, demands: Demands) -> Mapping[str, Rung]:
        return {rung.id: rung for rung in rungs_for(problem.product.dtype)}

    def why_not(
        self, problem: Any, rung: Rung, config: GemmConfig, packs: tuple[str, ...], gpu: Gpu, demands: Demands
    ) -> str | None:
        return why_not(problem, rung, config, gpu.arch)

    def named(self, problem: Any, gpu: Gpu, rung: str | None, config: GemmConfig | None) -> Plan:
        def takes(rung: Rung, config: GemmConfig) -> bool:
            return why_not(problem, rung, config, gpu.arch) is None

        known = rungs_for(problem.product.dtype)
        chosen = find_grouped_rung(rung) if rung is not None else rung_for(config, known, gpu, takes)
        config = chosen.own(config) if config is not None else None
        if reason := why_not(problem, chosen, config or chosen.default, gpu.arch):
            raise ConfigRejected(f"{reason}. Omit rung and config to let the plan choose.")
        if config is not None:
            return Plan(chosen, config, "the caller", "the config was named in the call")
        return Plan(chosen, chosen.default, "the rung's default", f"{chosen} was named in the call")

    def presets(self, problem: Any, gpu: Gpu) -> Iterable[Preset]:
        return presets_of(problem)

    def is_modelled(self, problem: Any, gpu: Gpu) -> bool:
        return False

    def last_resort(self, problem: Any, gpu: Gpu, refused: Sequence[Refusal]) -> Plan:
        reasons = "; ".join(dict.fromkeys(one.reason for one in refused))
        raise ConfigRejected(f"no rung can run this grouped product on {gpu.arch}: {reasons}.")

    def relatives(
        self, problem: Any, rung: Rung, config: GemmConfig, gpu: Gpu, several: bool
    ) -> Iterator[tuple[GemmConfig, tuple[str, ...]]]:
        yield config, ()

    def work(self, problem: Any, rung: Rung, config: GemmConfig, packs: tuple[str, ...]) -> Work:
        return work_of(as_run(problem, rung).product, rung, as_cut(problem, rung, config))

    def remark(self, problem: Any, plan: Plan, gpu: Gpu) -> str:
        tiles = tiles_of(as_run(problem, plan.rung).product, as_cut(problem, plan.rung, plan.config))
        return f"about {tiles} tiles on {gpu.sm_count} SMs, if groups are of one size"

    def settled(self, problem: Any, chosen: Plan, demands: Demands) -> Plan:
        """The same: sums of products that are not grouped are shortened by other rungs, which know no groups."""
        return chosen

    def classes(self, problem: Any) -> Sequence[Sequence[ProblemClass]]:
        """None: no table holds grouped products yet."""
        return ()

    def owns(self, values: Mapping[str, Any]) -> bool:
        return False


GROUPED = GroupedProducts()


def plan_grouped(
    problem: GroupedProblem, on: Gpu | Arch, rung: str | None = None, config: GemmConfig | None = None, *,
    demands: Demands = NONE,
) -> Plan:  # fmt: skip
    """The plan for a problem on a GPU (or on the first listed GPU of an architecture). Deterministic.

    Raises ConfigRejected, with the numbers, when what is named cannot run the problem, or nothing can.
    """
    check_names(rung, config, "g02")
    return plan(GROUPED, problem, on, rung, config, demands)
