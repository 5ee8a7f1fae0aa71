"""The choice for a problem from tuning results: the very class where it was tuned, else its neighbours' times.

For a class that was not tuned, each config that ran on a neighbour gets an estimate: the model's time for this problem
(its waves, its edges, its splits of k), corrected by what the model missed for that config on the neighbours, the
nearer the more. The least estimate wins. A pure function of problem, GPU and tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log

from ..arch import Gpu
from ..ladder import GEMM_RUNGS
from ..ladder.rung import GemmConfig, Rung
from ..problems import GemmProblem
from .classes import ProblemClass, class_of, distance
from .entries import Entry, Timed
from .model import predict

NEIGHBOURS = 10
REACH = 1.2
"""The distance at which a neighbour's word counts 1/e of the nearest possible one's."""
DOUBT = 0.06
"""Weight of what a config's neighbours say of others: a config seen nearby only rarely is taken to be average."""
UNSEEN = 0.04
"""What a config not measured on a neighbour is taken to be slower than those that were, in log time."""
FARTHEST = 6.0
"""Beyond this distance the nearest class says nothing."""
RUNNERS_UP = 3


@dataclass(frozen=True)
class TunedChoice:
    """`runners_up`: (rung, config, words on its time) of the next best."""

    rung: Rung
    config: GemmConfig
    source: str
    why: str
    runners_up: tuple[tuple[str, str, str], ...]


Source = tuple[str, Mapping[str, Entry]]
"""What to call a table ("tuned here", "shipped"), and the table."""


def choose(problem: GemmProblem, gpu: Gpu, sources: Sequence[Source]) -> TunedChoice | None:
    """The choice from the tables in order: the exact class of the first that has it, else the heuristic over the
    first that has near neighbours. None where no table knows anything near."""
    wanted = class_of(problem)
    for name, table in sources:
        entry = table.get(str(wanted))
        if entry is not None and (choice := _exact(problem, gpu, name, entry)) is not None:
            return choice
    for name, table in sources:
        near = neighbours(wanted, table)
        if near and (choice := _estimated(problem, gpu, name, near)) is not None:
            return choice
    return None


def _rungs() -> dict[str, Rung]:
    return {rung.id: rung for rung in GEMM_RUNGS}


def _exact(problem: GemmProblem, gpu: Gpu, name: str, entry: Entry) -> TunedChoice | None:
    rungs = _rungs()
    able = [t for t in entry.timed if t.rung in rungs and not rungs[t.rung].why_not(problem, t.config, gpu.arch)]
    if not able:
        return None
    best, rest = able[0], able[1 : 1 + RUNNERS_UP]
    m, n, k, batch = entry.shape
    what = f"{m} x {n} x {k}" + (f" x{batch}" if batch != 1 else "")
    return TunedChoice(
        rungs[best.rung], best.config, name,
        f"fastest of {len(entry.timed)} kernels measured at {what}, the class of this problem: {_time(best.ms)}",
        tuple((t.rung, str(t.config), f"{_time(t.ms)}, {t.ms / best.ms:.2f} of the fastest's") for t in rest),
    )  # fmt: skip


def _time(ms: float) -> str:
    return f"{ms * 1e3:.3g} us" if ms < 1 else f"{ms:.3g} ms"


def neighbours(wanted: ProblemClass, table: Mapping[str, Entry]) -> list[tuple[float, Entry]]:
    """(distance, entry) of the nearest classes, the nearest first."""
    found = [(distance(wanted, entry.klass), key, entry) for key, entry in table.items()]
    near = sorted((d, key, entry) for d, key, entry in found if d <= FARTHEST)
    return [(d, entry) for d, _, entry in near[:NEIGHBOURS]]


def estimates(
    problem: GemmProblem, gpu: Gpu, near: Sequence[tuple[float, Entry]]
) -> list[tuple[float, str, GemmConfig]]:
    """(estimated ms, rung, config) of every config that ran on a neighbour and can run here, the least first."""
    rungs = _rungs()
    nearest = near[0][0]
    said: dict[tuple[str, GemmConfig], list[tuple[float, float]]] = {}
    total = mean = 0.0
    for d, entry in near:
        weight = exp(-((d - nearest) / REACH) * (1 + d) / (1 + nearest)) / (1 + d)
        m, n, k, batch = entry.shape
        there = GemmProblem.dense(
            m, n, k, layout=entry.klass.layout.replace("s", "n"), batch=batch, dtype=entry.klass.dtype,
            out_dtype=entry.klass.out_dtype, use_c=entry.klass.use_c,
        )  # fmt: skip
        misses = []
        for timed in entry.timed:
            if timed.rung not in rungs:
                continue
            expected = predict(there, rungs[timed.rung], timed.config, gpu).ms
            miss = log(timed.ms / expected)
            misses.append(miss)
            said.setdefault((timed.rung, timed.config), []).append((weight, miss))
        if misses:
            total += weight
            mean += weight * sum(misses) / len(misses)
    if not said:
        return []
    prior = mean / total + UNSEEN
    found = []
    for (rung, config), words in said.items():
        if rungs[rung].why_not(problem, config, gpu.arch) is not None:
            continue
        weight = sum(w for w, _ in words)
        miss = (sum(w * value for w, value in words) + DOUBT * total * prior) / (weight + DOUBT * total)
        found.append((predict(problem, rungs[rung], config, gpu).ms * exp(miss), rung, config))
    return sorted(found, key=lambda item: (item[0], item[1], repr(item[2])))


def _estimated(problem: GemmProblem, gpu: Gpu, name: str, near: Sequence[tuple[float, Entry]]) -> TunedChoice | None:
    ordered = estimates(problem, gpu, near)
    if not ordered:
        return None
    ms, rung, config = ordered[0]
    m, n, k, batch = near[0][1].shape
    what = f"{m} x {n} x {k}" + (f" x{batch}" if batch != 1 else "")
    return TunedChoice(
        _rungs()[rung], config, f"heuristic from what is {name}",
        f"this class was not tuned; least of {len(ordered)} estimates from {len(near)} neighbours' times, the nearest "
        f"{what}, and the model's waves",
        tuple(
            (other, str(c), f"estimated at {estimate / ms:.2f} of the choice's time")
            for estimate, other, c in ordered[1 : 1 + RUNNERS_UP]
        ),
    )  # fmt: skip


def best_of(entry: Entry) -> Timed:
    """The fastest kernel of an entry."""
    return entry.timed[0]
