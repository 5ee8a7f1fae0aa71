"""Products with one weight and ever other numbers of rows, as a server has them.

The first numbers of rows are planned each by itself. After that a new one takes one of the kernels that are there: of
those that the nearest of them run, the one that is estimated the fastest for it. Nothing is searched, and nothing is
compiled. deterministic=True and batch_invariant=True plan each number of rows by itself, always.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from math import log2
from operator import attrgetter
from typing import Any

from ..arrays.dtypes import ceil_div
from ..gpus import Gpu
from ..jit.limits import Recent
from ..jit.source import Constant
from ..plan.demands import Demands
from ..plan.estimate import predict
from ..plan.plan import Plan
from ..plan.tables import generation
from .config import GemmConfig
from .family import plan_for
from .problem import GemmProblem
from .rungs.rows import WIDE_SUMS, few_elements
from .shapes import Product
from .work import work_of

ENOUGH = 24
"""Numbers of rows of a weight that are planned each by itself."""
NEAREST = 3
"""How many of them the plan for a new one is taken from."""


@dataclass
class _Weight:
    plans: dict[int, Plan] = field(default_factory=dict)
    """By rows."""
    kernels: list[tuple[Any, int, dict[str, Constant]]] = field(default_factory=list)
    """The rung and what is packed, the rows, and what the kernel is compiled for."""
    serving: dict[Any, int] = field(default_factory=dict)
    """Rows of a kernel that serves (a rung, a config, what is packed, and a number of rows by `_alike`); 0: none."""
    fastest: Recent[Any, Any] = field(default_factory=lambda: Recent(lambda: 256))
    """What is estimated the fastest of some plans (a rung, a config, what is packed), by those and their tiles of m."""
    adopted: Recent[int, Plan] = field(default_factory=lambda: Recent(lambda: 256))
    """By rows, of those that took another number's kernel."""


_weights: Recent[Any, _Weight] = Recent(lambda: 1024)
_without_m = attrgetter(*(each.name for each in fields(GemmProblem) if each.name != "m"))


def plan_rows(product: Product, gpu: Gpu, demands: Demands, note: bool = True) -> Plan:
    """The plan for a product that names no rung and no config. Raises ConfigRejected as plan_for does.

    `note`: whether it is about to run, so that its kernel is there for other numbers of rows.
    """
    problem = product.problem
    if demands.deterministic or demands.batch_invariant or problem.batch != 1 or product.outer:
        return plan_for(problem, gpu, demands=demands)
    key = _without_m(problem), gpu, generation()
    weight = _weights.get(key)
    if weight is None:
        weight = _Weight()
        _weights.put(key, weight)
    plan = weight.plans.get(problem.m) or weight.adopted.get(problem.m)
    if plan is None and len(weight.plans) >= ENOUGH:
        plan = _of_the_nearest(weight, product, gpu)
        if plan is not None:
            weight.adopted.put(problem.m, plan)
            return plan
    if plan is None:
        plan = plan_for(problem, gpu, demands=demands)
        if not note:
            return plan
        weight.plans[problem.m] = plan
        kind, constants = _class(problem, plan)
        if not any(own == kind and has == constants for own, _, has in weight.kernels):
            weight.kernels.append((kind, problem.m, constants))
            weight.serving.clear()
        if len(weight.plans) > 2 * ENOUGH:
            weight.plans.pop(next(iter(weight.plans)), None)
    return plan


def _class(problem: GemmProblem, plan: Plan) -> tuple[Any, dict[str, Constant]]:
    """Return what the kernels of a product with one weight are compiled for. Products of one class run the same
    kernels."""
    packs = plan.rung.packs(problem, plan.packs)
    constants = plan.rung.constants(problem.packed(plan.config.tile, packs), plan.config)
    return (plan.rung.id, plan.packs), constants


def _serves(constants: dict[str, Constant], wanted: dict[str, Constant]) -> bool:
    """Return whether a kernel serves a class: it is that one, or tests edges where that has whole tiles."""
    return all(
        value is wanted[name] or (value == wanted[name] and type(value) is type(wanted[name]))
        or (value is True and name.endswith("edge"))
        for name, value in constants.items()
    )  # fmt: skip


def _alike(m: int, config: GemmConfig) -> tuple[bool, bool, bool]:
    """Return what of a number of rows a kernel is compiled for, and what why_not looks at."""
    return m > 1, m % config.tile_m == 0, m % (config.tile_m * config.cluster_m) == 0


def _kernel_for(weight: _Weight, problem: GemmProblem, plan: Plan, gpu: Gpu) -> int:
    """The rows of a kernel of the weight that runs the problem as the plan says; 0 where none does."""
    if plan.rung is WIDE_SUMS and not few_elements(problem):
        return 0
    key = plan.rung.id, plan.config, plan.packs, _alike(problem.m, plan.config)
    found = weight.serving.get(key)
    if found is None:
        found = 0
        if not plan.rung.why_not(problem.packed(plan.config.tile, plan.packs), plan.config, gpu.arch):
            kind, wanted = _class(problem, plan)
            found = next((rows for own, rows, has in weight.kernels if own == kind and _serves(has, wanted)), 0)
        weight.serving[key] = found
    return found


def _fastest(weight: _Weight, problem: GemmProblem, found: dict[Any, tuple[int, Plan, int]], gpu: Gpu) -> Any:
    """The key of what is estimated the fastest; the same for numbers of rows that are as many tiles of each."""
    if len(found) == 1:
        return next(iter(found))
    tiles = tuple([(key, ceil_div(problem.m, plan.config.tile_m)) for key, (_, plan, _) in found.items()])
    chosen = weight.fastest.get(tiles)
    if chosen is None:
        times = {
            key: (predict(work_of(problem, plan.rung, plan.config, plan.packs), gpu).ms, m)
            for key, (m, plan, _) in found.items()
        }
        chosen = min(times, key=times.__getitem__)
        weight.fastest.put(tiles, chosen)
    return chosen


def _of_the_nearest(weight: _Weight, product: Product, gpu: Gpu) -> Plan | None:
    """The plan of another number of rows that suits this one best; None where a kernel would have to be compiled."""
    problem = product.problem
    found: dict[Any, tuple[int, Plan, int]] = {}
    plans = weight.plans.copy()  # another thread may add one and drop one
    own = log2(problem.m)
    for m, plan in sorted(plans.items(), key=lambda one: abs(log2(one[0]) - own)):
        key = plan.rung.id, plan.config, plan.packs
        if key not in found and (rows := _kernel_for(weight, problem, plan, gpu)):
            found[key] = m, plan, rows
            if len(found) == NEAREST:
                break
    if not found:
        return None
    m, plan, rows = found[_fastest(weight, problem, found, gpu)]
    return Plan(
        plan.rung, plan.config, "the kernels that are there",
        f"this weight has run with {len(plans)} numbers of rows; of the kernels of the nearest that of {m} rows "
        f"is estimated the fastest. deterministic=True plans {problem.m} rows by themselves",
        packs=plan.packs, rows=rows,
    )  # fmt: skip
