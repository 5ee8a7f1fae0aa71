"""Products with one weight and ever other numbers of rows, as a server has them.

The first numbers of rows are planned each by itself. After that a new one takes one of the kernels that are there: of
those that the nearest of them run, the one that is estimated the fastest for it. Nothing is searched, and nothing is
compiled. deterministic=True and
batch_invariant=True plan each number of rows by itself, always.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from math import log2
from typing import Any

from ..arrays.result import empty_like
from ..arrays.view import as_operand
from ..errors import InvalidOperand
from ..gpus import Gpu
from ..jit.limits import Recent
from ..jit.source import Constant
from ..plan.demands import Demands
from ..plan.estimate import predict
from ..plan.plan import Plan
from ..plan.tables import generation
from .family import plan_for
from .problem import GemmProblem
from .shapes import Product
from .work import work_of

ENOUGH = 24
"""Numbers of rows of a weight that are planned each by itself."""
NEAREST = 4
"""Of them, how many the plan for a new one is taken from."""


@dataclass
class _Weight:
    plans: dict[int, Plan] = field(default_factory=dict)
    """By rows."""
    kernels: list[tuple[Any, int, dict[str, Constant]]] = field(default_factory=list)
    """The rung and what is packed, the rows, and what the kernel is compiled for."""


_weights: Recent[Any, _Weight] = Recent(lambda: 1024)


def plan_rows(product: Product, gpu: Gpu, demands: Demands, note: bool = True) -> Plan:
    """The plan for a product that names no rung and no config. Raises ConfigRejected as plan_for does.

    `note`: whether it is about to run, so that its kernel is there for other numbers of rows.
    """
    problem = product.problem
    if demands.deterministic or demands.batch_invariant or problem.batch != 1 or product.outer:
        return plan_for(problem, gpu, demands=demands)
    key = replace(problem, m=1), gpu, generation()
    weight = _weights.get(key)
    if weight is None:
        weight = _Weight()
        _weights.put(key, weight)
    plan = weight.plans.get(problem.m)
    if plan is None and len(weight.plans) >= ENOUGH:
        plan = _of_the_nearest(weight, product, gpu)
        if plan is not None:
            return plan
    if plan is None:
        plan = plan_for(problem, gpu, demands=demands)
        if not note:
            return plan
        weight.plans[problem.m] = plan
        kind, constants = _class(problem, plan)
        if not any(own == kind and has == constants for own, _, has in weight.kernels):
            weight.kernels.append((kind, problem.m, constants))
        if len(weight.plans) > 2 * ENOUGH:
            del weight.plans[next(iter(weight.plans))]
    return plan


def _class(problem: GemmProblem, plan: Plan) -> tuple[Any, dict[str, Constant]]:
    """What the kernels of a product with one weight are compiled for. Products of one class run the same kernels."""
    constants = plan.rung.constants(problem.packed(plan.config.tile, plan.packs), plan.config)
    return (plan.rung.id, plan.packs), constants


def _serves(constants: dict[str, Constant], wanted: dict[str, Constant]) -> bool:
    """Whether a kernel serves a class: it is that one, or tests edges where that has whole tiles."""
    return all(
        value is wanted[name] or (value == wanted[name] and type(value) is type(wanted[name]))
        or (value is True and name.endswith("edge"))
        for name, value in constants.items()
    )  # fmt: skip


def _of_the_nearest(weight: _Weight, product: Product, gpu: Gpu) -> Plan | None:
    """The plan of another number of rows that suits this one best; None where a kernel would have to be compiled."""
    problem = product.problem
    found: dict[Any, tuple[float, int, Plan]] = {}
    for m in sorted(weight.plans, key=lambda m: abs(log2(m) - log2(problem.m))):
        plan = weight.plans[m]
        key = plan.rung.id, plan.config, plan.packs
        if key in found or plan.rung.why_not(problem.packed(plan.config.tile, plan.packs), plan.config, gpu.arch):
            continue
        kind, wanted = _class(problem, plan)
        same = next((rows for own, rows, has in weight.kernels if own == kind and _serves(has, wanted)), None)
        if same is not None:
            found[key] = (
                predict(work_of(problem, plan.rung, plan.config, plan.packs), gpu).ms,
                m,
                replace(plan, rows=same),
            )
            if len(found) == NEAREST:
                break
    if not found:
        return None
    _, m, plan = min(found.values(), key=lambda one: one[:2])
    return Plan(
        plan.rung, plan.config, "the kernels that are there",
        f"this weight has run with {len(weight.plans)} numbers of rows; of the kernels of the nearest that of {m} rows "
        f"is estimated the fastest. deterministic=True plans {problem.m} rows by themselves",
        packs=plan.packs, rows=plan.rows,
    )  # fmt: skip


def representatives(rows: Iterable[int], most: int = ENOUGH) -> list[int]:
    """1, and at most `most` of the other numbers: the least, the largest, and others between, evenly in logarithms."""
    known = sorted({int(m) for m in rows if m >= 1})
    if len(known) > 1 and known[0] == 1:  # a row lies otherwise than rows do
        return [1, *representatives(known[1:], most)]
    if len(known) <= most:
        return known
    low, high = log2(known[0]), log2(known[-1])
    chosen = {min(known, key=lambda m: abs(log2(m) - low - step * (high - low) / (most - 1))) for step in range(most)}
    rest = (m for m in known if m not in chosen)
    while len(chosen) < most:
        chosen.add(next(rest))
    return sorted(chosen)


def prepare(
    b: Any, m: Iterable[int], *, progress: Callable[[int, int], None] | None = None, **options: Any
) -> tuple[int, ...]:
    """Make products with `b` quick from their first call on, whatever their number of rows.

    b: an array [k, n] as `tilewright.matmul` takes it; m: the numbers of rows to expect, as range(1, 4097). Up to 25 of
    them are planned, compiled and run once with operands that are not initialised. After that a new number of rows
    takes one of their kernels, so that nothing is compiled while requests wait.
    options: as for `matmul` (bias, activation, out_dtype, precision ...). An array that depends on the number of rows,
    such as a residual, is given as a function of it: residual=lambda m: torch.empty(m, n, ...).
    progress: called with (done, of how many); by default a line on standard error, where that is a terminal.

    Returns the numbers of rows that were run. Raises as `matmul` does, and InvalidOperand where `m` holds none.
    """
    from .matmul import matmul

    view = as_operand(b, "b")
    if len(view.shape) != 2:
        raise InvalidOperand(f"b has shape {view.shape}; prepare takes a matrix [k, n].")
    chosen = representatives(m)
    if not chosen:
        raise InvalidOperand("m holds no number of rows. Pass some, such as range(1, 4097).")
    say = progress or (_say if sys.stderr.isatty() else None)
    for done, rows in enumerate(chosen):
        if say is not None:
            say(done, len(chosen))
        given = {
            name: value(rows) if callable(value) and name != "epilogue" else value for name, value in options.items()
        }
        a = empty_like(view, (rows, view.shape[0]), view.dtype)
        matmul(a, b, **given)
    if say is not None:
        say(len(chosen), len(chosen))
    return tuple(chosen)


def _say(done: int, of: int) -> None:
    print(
        f"\rpreparing kernels: {done} of {of} numbers of rows",
        end="\n" if done == of else "",
        file=sys.stderr,
        flush=True,
    )
