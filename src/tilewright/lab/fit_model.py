"""Fit the model of time (plan/estimate.py) to measured times, and say what it misses.

    python -m tilewright.lab.fit_model --write    fit the constants anew, into fits.json
    tilewright bench model-fit                    record what the model misses

The times are those of the H200 in this repository: the table that ships, each class with up to 24 kernels, and kernels
that were swept one by one (benchmarks/times). What counts is the order of the kernels of one problem, most of all near
the fastest; how long each takes counts a little, since plans compare problems too. Needs no GPU. The same input gives
the same constants.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import exp, log
from statistics import fmean, median, quantiles
from typing import Any, NamedTuple

from ..attn.config import AttentionConfig
from ..attn.family import ATTENTION
from ..attn.problem import AttentionProblem
from ..attn.rungs import find_attention_rung
from ..gemm.config import GemmConfig, in_parts
from ..gemm.family import PRODUCTS, GemmEntry
from ..gemm.presets import CONFIGS
from ..gemm.problem import GemmProblem
from ..gemm.rungs import find_rung
from ..gpus import GPUS
from ..plan.choose import choose
from ..plan.demands import NONE
from ..plan.estimate import FITTED, Fit, Work, fits, forget_fits, predict, speed_key
from ..plan.tables import SHIPPED, shipped
from .ladder import Progress, silent
from .record import provenance
from .suite import benchmarks

GPU = GPUS["H200"]
NEAR = 0.25
"""A kernel that takes so much longer than the problem's fastest counts 1/e of it in the fit."""
FAR = 1.75
"""One that takes so many times as long counts nothing."""
LEVEL = 0.1
"""What a problem's mean miss counts, next to the spread of its kernels' misses."""
PASSES = 12
"""Times that every constant is varied."""
FIXED: dict[str, frozenset[str]] = {
    "attention": frozenset(Fit._fields) - {"share", "exposed"},
    "wgmma attention": frozenset(Fit._fields),  # from a sweep that is no record
    "wgmma-tma": frozenset(Fit._fields),  # fitted to ratios within each product, by hand: no record of times is
}
"""Constants that the times at hand say nothing of."""
START = {
    "ffma": Fit(1.4, 1.28, 0.23, 1.3, 0.4, 0.024, 0.8, 1.0, 2.9, 0.01, 2.1, 2.5, 1.0, 0.04, 0.1),
    "mma": Fit(1.05, 0.22, 0.74, 1.14, 0.23, 0.06, 2.4, 0.92, 4.7, 0.21, 2.1, 2.5, 1.0, 0.5, 0.02),
    "parts": Fit(1.35, 1.05, 0.14, 1.1, 2.1, 0.47, 3.0, 0.92, 4.7, 0.21, 2.1, 0.4, 1.0, 0.01, 0.02),
    "wgmma": Fit(0.71, 0.014, 1.02, 0.17, 0.74, 0.02, 2.6, 0.92, 4.7, 0.21, 2.1, 2.5, 1.0, 0.01, 0.02),
    "wgmma-tma": Fit(0.793, 0.0, 0.6, 0.08, 2.86, 0.0, 3.23, 0.95, 3.33, 0.02, 12.2, 1.2, 0.95, 0.0, 0.03),
    "wgmma attention": Fit(0.947, 0.257, 0.58, 1.907, 1.824, 0.042, 2.85, 1.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0),
    "attention": Fit(1.24, 0.31, 0.0, 0.0, 3.0, 0.0, 1000.0, 1.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.43),
}
"""Where the search begins: guesses from data sheets and single measurements. Attention's kernels were swept before the
records that are kept: what hides its latencies and how much its reads of shared memory show are from that sweep."""


class Kernel(NamedTuple):
    """One measured kernel."""

    rung: Any
    config: Any
    packs: tuple[str, ...]
    ms: float
    work: Work


class Case(NamedTuple):
    """One problem, and the kernels that were measured for it in one run."""

    problem: Any
    kind: str
    kernels: tuple[Kernel, ...]


# --- measured times ---------------------------------------------------------------------------------------------------


def tables() -> Iterator[Case]:
    """The classes of the table that ships."""
    view = shipped(GPU.name).of(PRODUCTS)
    for key in sorted(view):
        entry = view[key]
        problem = PRODUCTS.problem_of(entry)
        yield _case(
            problem, f"{entry.klass.kind}{' with an epilogue' if entry.klass.fused else ''}",
            ((t.rung, t.config, t.packs, t.ms) for t in entry.timed),
        )  # fmt: skip


def _case(problem: GemmProblem, kind: str, timed: Iterable[tuple[str, GemmConfig, tuple[str, ...], float]]) -> Case:
    rungs = PRODUCTS.rungs(problem, NONE)
    return Case(problem, kind, tuple(
        Kernel(rungs[name], config, packs, ms, PRODUCTS.work(problem, rungs[name], config, packs))
        for name, config, packs, ms in timed if name in rungs
    ))  # fmt: skip


@lru_cache(maxsize=64)
def _by_text(rung: str) -> Mapping[tuple[str, int], GemmConfig]:
    own = (config for configs in CONFIGS.values() for name, config in configs if find_rung(name).id == rung)
    return {(str(config), config.min_blocks): config for config in (*find_rung(rung).space(), *own)}


def _read_config(rung: str, text: str, min_blocks: int) -> GemmConfig | None:
    plain = re.sub(r" split k \d+", "", text)
    config = _by_text(rung).get((plain, min_blocks))
    parts = re.search(r" split k (\d+)", text)
    return in_parts(config, int(parts[1])) if config and parts else config


@lru_cache(maxsize=1)
def _swept() -> Mapping[str, Any]:
    """The times of benchmarks/times: kernels as [rung, config, blocks per SM, packed operands, ms]."""
    return json.loads((benchmarks() / "times" / f"{GPU.name}.json").read_text(encoding="utf-8"))


def sweeps() -> Iterator[Case]:
    """Products whose kernels were swept one by one."""
    for group in _swept()["products"]:
        problem = GemmProblem.dense(**group["problem"])
        read = [(rung, _read_config(rung, text, blocks), tuple(packs), ms)
                for rung, text, blocks, packs, ms in group["kernels"]]  # fmt: skip
        kernels = [(rung, config, packs, ms) for rung, config, packs, ms in read if config is not None]
        yield _case(problem, f"{problem.kind}, swept", kernels)


def attention() -> Iterator[Case]:
    """Attention's rungs on its ladder's problems and by size. Sizes are cases of no kind: each holds many problems."""
    for group in _swept()["attention"]:
        kernels = []
        for given, name, fields, ms in group["kernels"]:
            problem = AttentionProblem.dense(
                given["batch"], given["heads"], given["seq_q"], given["seq_k"], given["d_head"],
                heads_kv=given["heads_kv"], dtype=given["dtype"], is_causal=given["is_causal"], layout=given["layout"],
            )  # fmt: skip
            rung, config = find_attention_rung(name), AttentionConfig(**fields)
            work = ATTENTION.work(problem, rung, config, ())
            assert isinstance(work, Work)
            kernels.append((problem, Kernel(rung, config, (), ms, work)))
        kind = "" if group["of"] == "sizes" else "attention"
        yield Case(kernels[0][0], kind, tuple(kernel for _, kernel in kernels))


# --- fitting ----------------------------------------------------------------------------------------------------------


def _miss(cases: Sequence[Case], fit: Mapping[str, Fit]) -> float:
    """Return what the fit is to make small: of each case the spread of its kernels' misses, and a little of their
    mean."""
    total = 0.0
    for case in cases:
        best = min(kernel.ms for kernel in case.kernels)
        near = [kernel for kernel in case.kernels if kernel.ms < FAR * best]
        weights = [exp(-(kernel.ms / best - 1) / NEAR) for kernel in near]
        misses = [log(kernel.ms / predict(kernel.work, GPU, fit[kernel.work.way]).ms) for kernel in near]
        weight = sum(weights)
        mean = sum(w * miss for w, miss in zip(weights, misses, strict=True)) / weight
        spread = sum(w * (miss - mean) ** 2 for w, miss in zip(weights, misses, strict=True)) / weight
        total += spread + LEVEL * mean**2
    return total / len(cases)


def fitted(cases: Sequence[Case], start: Mapping[str, Fit], say: Callable[[str], None]) -> dict[str, Fit]:
    """Vary each constant in turn, by steps that shrink, and keep what makes the miss smaller."""
    fit = dict(start)
    of_way = {way: [case for case in cases if any(k.work.way == way for k in case.kernels)] for way in fit}
    steps = {(way, name): 0.25 for way in fit for name in Fit._fields if name not in FIXED.get(way, ())}
    for number in range(PASSES):
        for way, name in steps:
            if not of_way[way]:
                continue
            least = _miss(of_way[way], fit)
            value = getattr(fit[way], name)
            for factor in (1 + steps[way, name], 1 / (1 + steps[way, name])):
                tried = fit | {way: fit[way]._replace(**{name: value * factor})}
                if _miss(of_way[way], tried) < least * 0.9999:
                    fit, steps[way, name] = tried, steps[way, name] * 1.3
                    break
            else:
                steps[way, name] /= 2.5
        say(f"pass {number + 1} of {PASSES}: {_miss(cases, fit):.6f}")
    return {way: Fit(*(float(f"{value:.3g}") for value in values)) for way, values in fit.items()}


def speeds(cases: Sequence[Case], fit: Mapping[str, Fit]) -> dict[str, float]:
    """Return how fast each of the presets (gemm/presets.py) is over what the model says, next to the others of its
    cases."""
    known = {speed_key(find_rung(name).id, config) for configs in CONFIGS.values() for name, config in configs}
    misses: dict[str, list[float]] = {}
    for case in cases:
        own: dict[str, list[float]] = {}
        for kernel in case.kernels:
            key = speed_key(kernel.rung.id, kernel.config.whole_k)
            if key in known:
                own.setdefault(key, []).append(log(kernel.ms / predict(kernel.work, GPU, fit[kernel.work.way]).ms))
        for key, found in own.items():
            misses.setdefault(key, []).append(min(found))
    kept = {key: found for key, found in misses.items() if len(found) >= 3}
    return {key: float(f"{exp(-median(found)):.3g}") for key, found in sorted(kept.items())}


# --- what the model misses --------------------------------------------------------------------------------------------


def losses(cases: Sequence[Case], fit: Mapping[str, Fit]) -> list[float]:
    """For each case the time of the model's first choice among its kernels, over the fastest's."""
    found = []
    for case in cases:
        first = min(case.kernels, key=lambda kernel: predict(kernel.work, GPU, fit[kernel.work.way]).ms)
        found.append(first.ms / min(kernel.ms for kernel in case.kernels))
    return found


def preset_losses(cases: Sequence[Case], fit: Mapping[str, Fit], speed: Mapping[str, float]) -> list[float]:
    """The same among the presets alone, each with its speed."""
    found = []
    known = {speed_key(find_rung(name).id, config) for configs in CONFIGS.values() for name, config in configs}
    for case in cases:
        keyed = [(speed_key(kernel.rung.id, kernel.config.whole_k), kernel) for kernel in case.kernels]
        own = [(key, kernel) for key, kernel in keyed if key in known]
        if len({key for key, _ in own}) > 1:
            _, first = min(own, key=lambda o: predict(o[1].work, GPU, fit[o[1].work.way]).ms / speed.get(o[0], 1.0))
            found.append(first.ms / min(kernel.ms for _, kernel in own))
    return found


def neighbour_losses(kind: str) -> list[float]:
    """For each class of the shipped table: the time of what its neighbours' times choose when it is left out itself,
    over the fastest's; only where that was measured."""
    view = shipped(GPU.name).of(PRODUCTS)
    entries = dict(view)
    found = []
    for key, entry in entries.items():
        if entry.klass.kind == kind and not entry.klass.fused:
            found.extend(_left_out(key, entry, entries))
    return found


def _left_out(key: str, entry: GemmEntry, entries: dict[str, GemmEntry]) -> list[float]:
    others = {name: other for name, other in entries.items() if name != key}
    plan = choose(PRODUCTS, PRODUCTS.problem_of(entry), GPU, [(SHIPPED, others)])
    times = {(t.rung, t.config, t.packs): t.ms for t in entry.timed}
    ms = times.get((plan.rung.id, plan.config, plan.packs)) if plan is not None else None
    return [] if ms is None else [ms / entry.best.ms]


def summary(found: Sequence[float]) -> dict[str, Any]:
    """Shares within 5% and 10% of the fastest, and the median, 90th percentile and mean of time over it."""
    return {
        "cases": len(found),
        "within_5": round(sum(loss <= 1.05 for loss in found) / len(found), 3),
        "within_10": round(sum(loss <= 1.1 for loss in found) / len(found), 3),
        "median": round(median(found), 4),
        "p90": round(quantiles(found, n=10, method="inclusive")[-1], 4) if len(found) > 1 else round(found[0], 4),
        "mean": round(exp(fmean(map(log, found))), 4),
    }


def misses(
    cases: Sequence[Case], fit: Mapping[str, Fit], speed: Mapping[str, float], held_out: Mapping[str, list[float]]
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """(case, result) of a record for each kind of problem and each way to choose."""
    for kind in dict.fromkeys(case.kind for case in cases if case.kind):
        own = [case for case in cases if case.kind == kind]
        found = [
            ("the model, among all measured", losses(own, fit)),
            ("the model, fitted to the other half", held_out.get(kind, [])),
            ("the model, among the options", preset_losses(own, fit, speed)),
        ]
        if kind in CONFIGS:
            found.append(("neighbours' times, the class left out", neighbour_losses(kind)))
        for how, values in found:
            if values:
                yield {"kind": kind, "chosen_by": how}, {"right": True, **summary(values)}


def halves(
    cases: Sequence[Case], start: Mapping[str, Fit], say: Callable[[str], None] = lambda text: None
) -> dict[str, list[float]]:
    """The model's losses on each half of the cases when it was fitted to the other one, by kind."""
    found: dict[str, list[float]] = {}
    for half in range(2):
        fit = fitted(cases[1 - half :: 2], start, say)
        for case in cases[half::2]:
            found.setdefault(case.kind, []).extend(losses([case], fit))
    return found


def measured() -> list[Case]:
    """Every case that constants are fitted to."""
    return [*tables(), *sweeps(), *attention()]


def model_records(suite: str, cases: Sequence[dict[str, Any]], say: Progress = silent) -> list[dict[str, Any]]:
    """Return what the shipped constants miss, by kind of problem and by what chooses. `cases` of the suite hold
    nothing."""
    known, fit = measured(), fits()
    held_out = halves(known, START, lambda text: say(0, text))
    origin = provenance(machine_kind="gpu", gpu=GPU.name)
    told = misses(known, fit, speeds(known, fit), held_out)
    return [{"suite": suite, "case": case, "result": result, "provenance": origin} for case, result in told]


def main() -> None:
    """Fit the constants anew, and write them."""
    cases = measured()
    fit = fitted(cases, START, print)
    data = {"fits": {way: values._asdict() for way, values in fit.items()}, "speeds": speeds(cases, fit)}
    FITTED.write_text(json.dumps(data, indent=1) + "\n")
    forget_fits()


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        raise SystemExit("usage: python -m tilewright.lab.fit_model --write")
    main()
