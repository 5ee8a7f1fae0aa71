"""The choice of the rung and config that run a problem of any family, and why.

The choice is a pure function of the problem, the GPU, the demands and the tables: the same call runs the same kernel. A
rung or config named by the caller runs. Else tables decide: those of this machine, then those that ship with the
package; the problem's own class first, its neighbours if it was not tuned. Where no table knows anything near, or none
but the one that ships and the family says that the model knows more (Family.is_modelled), the model of time chooses
among configs that are known to do well.

For a class that was not tuned, each config that ran on a neighbour gets an estimate: the model's time for this problem
(its waves, its edges, its splits of k), corrected by what the model missed for that config on the neighbours, the
nearer the more. The least estimate wins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import groupby, islice
from math import exp, isfinite, log, log2
from typing import Any, NamedTuple

import numpy as np

from ..errors import ConfigRejected
from ..gpus import GPUS, Arch, Gpu
from .demands import NONE, Demands
from .entries import AnyEntry, View, worded
from .estimate import AnyWork, predict_all
from .family import Family
from .plan import Plan, Refusal, RunnerUp
from .tables import generation_now, ships, sources_for

NEIGHBOURS = 10
REACH = 1.0
"""The distance at which a neighbour's word counts 1/e of the nearest possible one's."""
DOUBT = 0.12
"""Weight of what a config's neighbours say of others: a config seen nearby only rarely is taken to be average."""
UNSEEN = 0.15
"""What a config not measured on a neighbour is taken to be slower than those that were, in log time."""
FARTHEST = 6.0
"""Beyond this distance the nearest class says nothing."""
RUNNERS_UP = 3

AnyFamily = Family[Any, Any, Any, Any]
Source = tuple[str, Mapping[str, AnyEntry]]
"""What to call a table ("tuned here", "shipped with the package"), and a family's entries in it by key."""


def plan(
    family: AnyFamily, problem: Any, on: Gpu | Arch, rung: str | None = None, config: Any = None,
    demands: Demands = NONE,
) -> Plan:  # fmt: skip
    """The plan for a problem on a GPU (or on the first listed GPU of an architecture). Deterministic.

    Raises ConfigRejected, with the numbers, when what is named cannot run the problem, or nothing can.
    """
    gpu = on if isinstance(on, Gpu) else next(gpu for gpu in GPUS.values() if gpu.arch == on)
    return _plan(family, problem, gpu, rung, config, demands, generation_now())


@lru_cache(maxsize=4096)
def _plan(
    family: AnyFamily, problem: Any, gpu: Gpu, rung: str | None, config: Any, demands: Demands, generation: int
) -> Plan:
    """`generation`: of the tables; plans of an older one are never asked for again."""
    if rung is not None or config is not None:
        return family.named(problem, gpu, rung, config)
    ignored: list[str] = []
    sources = [source for source in sources_for(family, gpu) if not demands.deterministic or ships(source[0])]
    settled = decide(family, problem, gpu, sources, demands, ignored)
    if ignored:
        settled = replace(settled, ignored="; ".join(ignored))
    if settled.rung.id not in family.rungs(problem, NONE):  # its kernel reads other parameters than it would be given
        raise ConfigRejected(f"{settled.rung.id} was planned for {family.name} that it does not compute: name a rung.")
    return settled


def decide(
    family: AnyFamily, problem: Any, gpu: Gpu, sources: Sequence[Source], demands: Demands = NONE,
    ignored: list[str] | None = None,
) -> Plan:  # fmt: skip
    """The plan that these tables make: their choice, or the model's where they know nothing near. See choose."""
    found = choose(family, problem, gpu, sources, demands, ignored)
    found = found or _by_model(family, problem, gpu, family.rungs(problem, demands), demands)
    return family.settled(problem, found, demands)


def choose(
    family: AnyFamily, problem: Any, gpu: Gpu, sources: Sequence[Source], demands: Demands = NONE,
    ignored: list[str] | None = None,
) -> Plan | None:  # fmt: skip
    """The choice from the tables in order: the problem's own class in the first that has it, else the estimates over
    the first that has near neighbours. Of tables that ship, only the last is asked for neighbours: the others know few
    classes. None where no table knows anything near, or the model says more than the neighbours of that last one.

    To `ignored` is added, in a line per table, which of its results name what this version does not have.
    """
    told = [] if ignored is None else ignored
    own = family.classes(problem)
    if not own:
        return None
    rungs = family.rungs(problem, demands)
    every = family.rungs(problem, NONE)
    for alike in own:
        for name, view in sources:
            entry = next((known for one in alike if (known := _of_class(view, one)) is not None), None)
            if entry is None:
                continue
            told.extend(_unknown(name, [entry], every))
            if (found := _exact(family, problem, gpu, name, entry, rungs, demands)) is not None:
                return found
    for name, view in sources:
        if ships(name) and (view is not sources[-1][1] or family.is_modelled(problem, gpu)):
            continue
        near = neighbours(family, own[0][0], view)
        told.extend(line for line in _unknown(name, [entry for _, entry in near], every) if line not in told)
        if near and (found := _estimated(family, problem, gpu, name, near, demands)) is not None:
            return found
    return None


def _of_class(view: Mapping[str, AnyEntry], klass: Any) -> AnyEntry | None:
    return view.of_class(klass) if isinstance(view, View) else view.get(str(klass))


def _unknown(name: str, entries: Sequence[AnyEntry], rungs: Iterable[str]) -> list[str]:
    """One line for the results whose rung or config this version does not know; none where there are none."""
    rungs = set(rungs)
    gone = [timed.rung for entry in entries for timed in entry.timed if timed.rung not in rungs]
    count = len(gone) + sum(entry.unknown for entry in entries)
    if not count:
        return []
    names = f" ({', '.join(sorted(set(gone)))})" if gone else ""
    return [f"{count} result{'s' if count > 1 else ''} {name}: of rungs or configs that this version lacks{names}"]


# --- the problem's own class ------------------------------------------------------------------------------------------


def _exact(
    family: AnyFamily, problem: Any, gpu: Gpu, name: str, entry: AnyEntry, rungs: Mapping[str, Any], demands: Demands
) -> Plan | None:
    able, refused = [], []
    for t in entry.timed:
        if t.rung not in rungs:
            continue
        if reason := family.why_not(problem, rungs[t.rung], t.config, t.packs, gpu, demands):
            refused.append(Refusal(t.rung, str(t.config), reason))
        else:
            able.append(t)
    if not able:
        return None
    best, rest = able[0], able[1 : 1 + RUNNERS_UP]
    fastest = f"fastest of {len(able)} kernels" if rest else "the one kernel"
    what = f"{family.words(entry)}, the class of this problem{family.measured_with(problem, entry)}"
    return Plan(
        rungs[best.rung], best.config, name,
        f"{fastest} measured at {what}: {time_words(best.ms)}", lambda: tuple(refused),
        tuple(
            RunnerUp(
                t.rung, worded(t.config, t.packs), f"{time_words(t.ms)}, {t.ms / best.ms:.2f} of the fastest's"
            )
            for t in rest
        ),
        best.packs,
    )  # fmt: skip


def time_words(ms: float) -> str:
    """A time in ms, to three digits."""
    return f"{ms * 1e3:.3g} us" if ms < 1 else f"{ms:.3g} ms"


# --- neighbours' times ------------------------------------------------------------------------------------------------


def neighbours(family: AnyFamily, wanted: Any, view: Mapping[str, AnyEntry]) -> list[tuple[float, AnyEntry]]:
    """(distance, entry) of the nearest classes, the nearest first.

    Times with an epilogue and without are not mixed: what an epilogue costs would count as a config's own slowness.
    """
    if isinstance(view, View):
        keys, columns = view.columns
    else:
        keys, columns = tuple(view), family.columns([entry.klass.to_dict() for entry in view.values()])
    apart = family.distances(wanted, columns)
    within = sorted((float(apart[place]), keys[place]) for place in np.flatnonzero(apart <= FARTHEST).tolist())
    near = ((d, entry) for d, key in within if (entry := view.get(key)) is not None)
    nearest = next(near, None)
    if nearest is None:
        return []
    alike = (one for one in near if one[1].klass.fused == nearest[1].klass.fused)
    return [nearest, *islice(alike, NEIGHBOURS - 1)]


class _Word(NamedTuple):
    """The word of neighbours on a config, with k in some number of parts and operands packed or not: the sum of their
    weights, and of weight times how much slower than modelled it was, in log time."""

    weight: float
    miss: float


_Words = dict[tuple[int, bool], _Word]
"""By parts of k, and whether operands were packed."""


class _Miss(NamedTuple):
    """A miss: how much slower than modelled a result is, in log time; `whole`: its config with k in one part."""

    rung: str
    whole: Any
    miss: float
    parts: int
    packed: bool


class Estimate(NamedTuple):
    """The time that a config of a neighbour, or a relative of it, should take here. `packs`: as Plan.packs."""

    ms: float
    rung: str
    config: Any
    packs: tuple[str, ...]


def estimates(
    family: AnyFamily, problem: Any, gpu: Gpu, near: Sequence[tuple[float, AnyEntry]], demands: Demands = NONE
) -> list[Estimate]:
    """Estimates for what ran on a neighbour, the least first; some of it may not be able to run here (Family.why_not).

    k may be split into other numbers of parts than there, and what lies unaligned here packed or not: a neighbour's
    word on a config counts for its relatives, the less the further they are.
    """
    rungs = family.rungs(problem, demands)
    said, prior, total = _words_of(family, near, rungs, gpu)
    several = not all(timed.one_launch for _, entry in near for timed in entry.timed)
    found: list[tuple[str, Any, tuple[str, ...]]] = []
    works: list[AnyWork] = []
    misses: list[float] = []
    for (name, base), words in said.items():
        rung = rungs[name]
        ways = list(family.relatives(problem, rung, base, gpu, several))
        works += family.works(problem, rung, ways)
        for config, packs in ways:
            weight = miss = 0.0
            for (parts_there, packed_there), word in words.items():
                kinship = _kinship(config.parts, parts_there, packed_there != bool(packs))
                weight += kinship * word.weight
                miss += kinship * word.miss
            misses.append((miss + DOUBT * total * prior) / (weight + DOUBT * total))
            found.append((name, config, packs))
    times = predict_all(works, gpu) * np.exp(misses)
    ordered = [Estimate(float(times[place]), *found[place]) for place in np.argsort(times, kind="stable").tolist()]
    equals = (list(group) for _, group in groupby(ordered, key=lambda one: one.ms))
    return [one for group in equals for one in (sorted(group, key=_by_name) if len(group) > 1 else group)]


def _by_name(one: Estimate) -> tuple[str, str]:
    """The order of equal estimates, so that the choice does not depend on that of a table."""
    return one.rung, repr((one.config, one.packs))


@lru_cache(maxsize=1 << 10)
def _kinship(parts: int, parts_there: int, packed_otherwise: bool) -> float:
    """Return what a neighbour's word on a config counts for one with k in other parts, or packed or not where that was
    not."""
    return exp(-abs(log2(parts / parts_there)) - 2 * packed_otherwise)


_MOST_KNOWN = 4096
_missed_before: dict[tuple[int, Gpu], tuple[AnyEntry, tuple[_Miss, ...]]] = {}
"""By an entry's identity, which holds while the entry stands next to it."""


def _missed(family: AnyFamily, entries: Sequence[AnyEntry], gpu: Gpu) -> list[tuple[_Miss, ...]]:
    """Return what the model missed for each of the entries' results that can run on the GPU: once for all plans near
    them."""
    known = {id(entry): held[1] for entry in entries if (held := _missed_before.get((id(entry), gpu))) is not None}
    new = [entry for entry in entries if id(entry) not in known]
    able, works = [], []
    for entry in new:
        there = family.problem_of(entry)
        rungs = family.rungs(there, NONE)
        able.append([timed for timed in entry.timed if timed.rung in rungs])
        works += [family.work(there, rungs[t.rung], t.config, t.packs) for t in able[-1]]
    expected = predict_all(works, gpu).tolist() if works else []
    if len(_missed_before) + len(new) > _MOST_KNOWN:
        _missed_before.clear()
    for entry, results in zip(new, able, strict=True):
        own, expected = expected[: len(results)], expected[len(results) :]
        known[id(entry)] = tuple(
            _Miss(t.rung, t.config.whole_k, log(t.ms / ms), t.config.parts, bool(t.packs))
            for t, ms in zip(results, own, strict=True)
            if isfinite(ms)  # else it does not fit on this GPU
        )
        _missed_before[id(entry), gpu] = entry, known[id(entry)]
    return [known[id(entry)] for entry in entries]


def _words_of(
    family: AnyFamily, near: Sequence[tuple[float, AnyEntry]], rungs: Mapping[str, Any], gpu: Gpu
) -> tuple[dict[tuple[str, Any], _Words], float, float]:
    """(words by rung and config with k whole, what an unknown config is taken to miss by, the weight of all)."""
    said: dict[tuple[str, Any], _Words] = {}
    total = mean = 0.0
    nearest = near[0][0]
    for (d, _), missed in zip(near, _missed(family, [entry for _, entry in near], gpu), strict=True):
        weight = exp(-(d - nearest) / REACH) / (1 + d)
        misses = [known for known in missed if known.rung in rungs]
        for known in misses:
            words = said.setdefault((known.rung, known.whole), {})
            so_far = words.get(way := (known.parts, known.packed), _Word(0.0, 0.0))
            words[way] = _Word(so_far.weight + weight, so_far.miss + weight * known.miss)
        if misses:
            total += weight
            mean += weight * sum(known.miss for known in misses) / len(misses)
    return said, (mean / total if total else 0.0) + UNSEEN, total


def _estimated(
    family: AnyFamily, problem: Any, gpu: Gpu, name: str, near: Sequence[tuple[float, AnyEntry]], demands: Demands
) -> Plan | None:
    rungs = family.rungs(problem, demands)
    ordered = estimates(family, problem, gpu, near, demands)
    able = (
        one for one in ordered
        if family.why_not(problem, rungs[one.rung], one.config, one.packs, gpu, demands) is None
    )  # fmt: skip
    first = list(islice(able, 1 + RUNNERS_UP))
    if not first:
        return None
    best, *rest = first
    return Plan(
        rungs[best.rung], best.config, f"heuristic from what is {name}",
        f"this class was not tuned; least of {len(ordered)} estimates from {len(near)} neighbours' times, the nearest "
        f"{family.words(near[0][1])}, and the model's waves",
        partial(_refused, family, problem, gpu, near, rungs, demands), _runners_up(best.ms, rest, "estimated"),
        best.packs,
    )  # fmt: skip


def _runners_up(least: float, rest: Sequence[Estimate], how: str) -> tuple[RunnerUp, ...]:
    return tuple(
        RunnerUp(one.rung, worded(one.config, one.packs), f"{how} at {one.ms / least:.2f} of the choice's time")
        for one in rest
    )


def _refused(
    family: AnyFamily, problem: Any, gpu: Gpu, near: Sequence[tuple[float, AnyEntry]], rungs: Mapping[str, Any],
    demands: Demands,
) -> tuple[Refusal, ...]:  # fmt: skip
    """Return what ran on a neighbour as it lies, and cannot here."""
    ran = dict.fromkeys((t.rung, t.config) for _, entry in near for t in entry.timed if t.rung in rungs and not t.packs)
    told = ((name, config, family.why_not(problem, rungs[name], config, (), gpu, demands)) for name, config in ran)
    return tuple(Refusal(name, str(config), reason) for name, config, reason in told if reason)


# --- the model alone --------------------------------------------------------------------------------------------------


def _by_model(family: AnyFamily, problem: Any, gpu: Gpu, rungs: Mapping[str, Any], demands: Demands) -> Plan:
    """The quickest of the family's presets by the model; of equals the one preferred."""
    found: list[tuple[Any, Any, Any, tuple[str, ...]]] = []
    """(rung, preset, one of its relatives, what is packed)"""
    works: list[AnyWork] = []
    speeds: list[float] = []
    for rung, config, speed in family.presets(problem, gpu):
        if rung.id in rungs and rung.not_on(gpu.arch) is None:
            ways = list(family.relatives(problem, rung, config, gpu, True))
            works += family.works(problem, rung, ways)
            found += [(rung, config, way, packs) for way, packs in ways]
            speeds += [speed] * len(ways)
    times = (predict_all(works, gpu) / speeds).tolist()
    first_of_tile: dict[object, Estimate] = {}
    for place in sorted(range(len(times)), key=times.__getitem__):
        rung, preset, config, packs = found[place]
        if config.tile[:2] in first_of_tile:
            continue
        asked = dict.fromkeys(((preset, ()), (config, packs)))
        if not any(family.why_not(problem, rung, *one, gpu, demands) for one in asked):
            first_of_tile[config.tile[:2]] = Estimate(times[place], rung.id, config, packs)
            if len(first_of_tile) > RUNNERS_UP:
                break
    refusals = partial(_refused_presets, family, problem, gpu, rungs, demands)
    if not first_of_tile:
        return family.last_resort(problem, gpu, refusals())
    best, *rest = first_of_tile.values()
    chosen = Plan(
        rungs[best.rung], best.config, "cost model",
        f"least modelled time of those that can run among {len(found)} ways",
        refusals, _runners_up(best.ms, rest, "modelled"), best.packs,
    )  # fmt: skip
    remark = family.remark(problem, chosen, gpu)
    return replace(chosen, why=f"{chosen.why}; {remark}") if remark else chosen


def _refused_presets(
    family: AnyFamily, problem: Any, gpu: Gpu, rungs: Mapping[str, Any], demands: Demands
) -> tuple[Refusal, ...]:
    """Return the presets that cannot run here; what all of a rung share once."""
    told: dict[tuple[str, str], Refusal] = {}
    for rung, config, _ in family.presets(problem, gpu):
        if rung.id in rungs and (reason := family.why_not(problem, rung, config, (), gpu, demands)):
            told.setdefault((rung.id, reason), Refusal(rung.id, str(config), reason))
    return tuple(told.values())
