"""The loss of the heuristic: shapes of classes that no table may hold, tuned with the heuristic's choice among the
rest.

The loss of a shape is the time of what the plan would have run, over the time of the fastest candidate measured beside
it. Tables are asked less the classes of all the shapes held out, so that none of them speaks for itself.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from math import exp, log
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any

from ..errors import TilewrightError
from ..gemm.classes import class_of
from ..gemm.family import PRODUCTS, GemmEntry
from ..gemm.problem import GemmProblem
from ..gpus import Gpu
from ..plan.choose import decide
from ..plan.entries import AnyEntry, worded
from ..plan.plan import Plan
from ..plan.tables import SHIPPED
from .ladder import Progress, silent
from .record import provenance

Entries = Mapping[str, AnyEntry]
TABLE = f"{SHIPPED}, less the shapes held out"


def problem_of(case: Mapping[str, Any]) -> GemmProblem:
    return GemmProblem.dense(case["m"], case["n"], case["k"], layout=case["layout"], dtype=case["dtype"])


def without(table: Entries, cases: Sequence[Mapping[str, Any]]) -> dict[str, AnyEntry]:
    """The table less every class that one of the cases belongs to."""
    held = {str(class_of(problem_of(case))) for case in cases}
    return {key: entry for key, entry in table.items() if key not in held}


def loss_record(suite: str, case: Mapping[str, Any], entry: GemmEntry, known: Entries, gpu: Gpu) -> dict[str, Any]:
    """The record of one shape. Raises TilewrightError when the heuristic's choice is not among what was measured."""
    choice = decide(PRODUCTS, problem_of(case), gpu, [(TABLE, known)])
    times = {(timed.rung, timed.config, timed.packs): timed.ms for timed in entry.timed}
    ms = times.get((choice.rung.id, choice.config, choice.packs))
    text = worded(choice.config, choice.packs)
    if ms is None:
        raise TilewrightError(
            f"{entry.key}: the heuristic chooses {choice.rung} {text}, which was not measured. Run the suite {suite} "
            f"on a {gpu.name}."
        )
    best = entry.best
    return {
        "suite": f"{suite}-shapes",
        "case": {**case, "rung": choice.rung.id, "config_text": text},
        "result": {
            "right": True, "us": round(ms * 1e3, 4), "loss": round(ms / best.ms - 1, 5), "candidates": len(times),
            "tuned_rung": best.rung, "tuned_config": worded(best.config, best.packs),
            "tuned_us": round(best.ms * 1e3, 4), "tuning_seconds": entry.seconds,
        },
    }  # fmt: skip


def summary(suite: str, dtype: str, records: Sequence[dict[str, Any]], known: Entries) -> dict[str, Any]:
    """One record for a type's shapes: their losses as geometric mean, median, 90th percentile and the largest."""
    losses = [record["result"]["loss"] for record in records]
    return {
        "suite": suite,
        "case": {"dtype": dtype, "call": f"heuristic, {dtype}"},
        "result": {
            "right": True, "shapes": len(losses),
            "classes": sum(entry.klass.dtype == dtype for entry in known.values()),
            "mean_loss": round(exp(fmean(log(1 + loss) for loss in losses)) - 1, 5),
            "median_loss": round(median(losses), 5),
            "p90_loss": round(quantiles(losses, n=10, method="inclusive")[-1], 5) if len(losses) > 1 else losses[0],
            "largest_loss": max(losses), "fastest": sum(loss == 0 for loss in losses),
            "longest_tuning_seconds": max(record["result"]["tuning_seconds"] for record in records),
        },
    }  # fmt: skip


def loss_records(
    suite: str,
    cases: Sequence[Mapping[str, Any]],
    measured: Entries,
    known: Entries,
    gpu: Gpu,
    origin: dict[str, Any],
) -> list[dict[str, Any]]:
    """A summary for each type, then a record for each shape, from what was `measured` of the cases."""
    shapes = [loss_record(suite, case, measured[str(class_of(problem_of(case)))], known, gpu) for case in cases]
    dtypes = dict.fromkeys(case["dtype"] for case in cases)
    totals = [summary(suite, d, [r for r in shapes if r["case"]["dtype"] == d], known) for d in dtypes]
    return [record | {"provenance": origin} for record in (*totals, *shapes)]


def heldout_records(
    suite: str, cases: Sequence[dict[str, Any]], ordinal: int = 0, seconds: float = 1.0, say: Progress = silent
) -> list[dict[str, Any]]:
    """Tune each case {"m", "n", "k", "layout", "dtype"} into a store of its own, and compare. Needs a GPU.

    Raises TilewrightError where no table ships for the GPU: there is no heuristic to judge.
    """
    from ..jit.device import device
    from ..plan.store import Store
    from ..plan.tables import driver_name, shipped
    from ..tuning.products import tune_problems
    from .climb_gpu import driver_version

    where = device(ordinal)
    known = without(shipped(where.gpu.name).of(PRODUCTS), cases)
    if not known:
        raise TilewrightError(f"no table of tuning results ships for {where.gpu.name}.")

    def planned(problem: GemmProblem, gpu: Gpu) -> Plan:
        return decide(PRODUCTS, problem, gpu, [(TABLE, known)])

    with tempfile.TemporaryDirectory() as folder:
        store = Store(where.gpu.name, driver_name(), Path(folder))
        for dtype in dict.fromkeys(case["dtype"] for case in cases):
            problems = [problem_of(case) for case in cases if case["dtype"] == dtype]
            for tuned in tune_problems(
                problems, ordinal=ordinal, seconds=seconds, store=store, planned=planned, say=say
            ):
                say(0, str(tuned))
    origin = provenance(machine_kind="gpu", gpu=where.name, arch=where.arch.name, driver=driver_version())
    return loss_records(suite, cases, store.of(PRODUCTS), known, where.gpu, origin)
