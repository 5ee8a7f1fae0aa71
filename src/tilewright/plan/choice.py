"""The choice for a problem from tuning results: the very class where it was tuned, else its neighbours' times.

For a class that was not tuned, each config that ran on a neighbour gets an estimate: the model's time for this problem
(its waves, its edges, its splits of k), corrected by what the model missed for that config on the neighbours, the
nearer the more. The least estimate wins. A pure function of problem, GPU and tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby, islice
from math import exp, isfinite, log, log2
from typing import NamedTuple

from ..gemm.classes import ProblemClass, class_of, distance
from ..gemm.problem import ITEM_BYTES, GemmProblem
from ..gemm.rung import GemmConfig, Rung
from ..gemm.rungs.simt import GEMM_RUNGS, rungs_of
from ..gemm.space import splits, ways_to_pack
from ..gpus import Gpu
from .cost import packable_operands
from .entries import AnyEntry, GemmEntry, classes_in, worded
from .model import Model, predict

NEIGHBOURS = 10
REACH = 1.0
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
    """`packs` as plan.Plan.packs; `runners_up`: (rung, config, words on its time) of the next best."""

    rung: Rung
    config: GemmConfig
    packs: tuple[str, ...]
    source: str
    why: str
    runners_up: tuple[tuple[str, str, str], ...]
    refused: tuple[tuple[str, str, str], ...] = ()
    """(rung, config, reason) of what the table knows and the problem or GPU does not allow."""


SAME_BITS = frozenset({"h11_mma_multistage", "h12_wgmma", "h13_persistent", "f12_multistage", "t01_tf32"})
"""Of each kind of product the rungs whose results have the same bits, k walked in one chain: wgmma adds as mma.sync
does (tests/gpu)."""
_ALL_RUNGS = tuple(rung.id for rung in GEMM_RUNGS)
Source = tuple[str, Mapping[str, AnyEntry]]
"""What to call a table ("tuned here", "shipped"), and the table."""


def choose(
    problem: GemmProblem, gpu: Gpu, sources: Sequence[Source], one_chain: bool = False, ignored: list[str] | None = None
) -> TunedChoice | None:
    """The choice from the tables in order: the problem's own class in the first that has it, else the heuristic over
    the first that has near neighbours. None where no table knows anything near.

    `one_chain`: only kernels that walk k in one chain, whatever the grid, and have the same bits (batch_invariant).
    `ignored` is told, in a line a table, which of its results name what this version does not have.
    """
    for alike in _own_classes(problem):
        for name, table in sources:
            entry = next((table[key] for key in alike if key in table), None)
            if entry is None:
                continue
            if ignored is not None:
                ignored.extend(unknown(name, [entry], _ALL_RUNGS))
            if (choice := _exact(problem, gpu, name, entry, one_chain)) is not None:
                return choice
    for name, table in sources:
        near = neighbours(class_of(problem), table)
        if ignored is not None:
            ignored.extend(
                line for line in unknown(name, [entry for _, entry in near], _ALL_RUNGS) if line not in ignored
            )
        if near and (choice := _estimated(problem, gpu, name, near, one_chain)) is not None:
            return choice
    return None


def _own_classes(problem: GemmProblem) -> list[list[str]]:
    """Keys under which a result serves the problem as its own, the best first; those in one list serve it equally.

    C changes little; an epilogue more, since nothing covers it at the end of a block, but which one it is less than
    whether there is one. The two 16-bit types run the same code at the same rate. Beside the products of fp32 operands
    it is little what type is stored: where one of 16 bits was not tuned, what was found for fp32's serves.
    """
    without_c = replace(problem, c=None)
    ways = [problem, without_c, replace(without_c, epilogue=None)]
    if problem.dtype == "f32":
        ways += [replace(way, out_dtype="f32") for way in ways]
    other = {"bf16": "f16", "f16": "bf16"}
    found = []
    for kind in dict.fromkeys(class_of(way) for way in ways):
        twin = replace(
            kind, dtype=other.get(kind.dtype, kind.dtype), out_dtype=other.get(kind.out_dtype, kind.out_dtype)
        )
        found.append(list(dict.fromkeys((str(kind), str(twin)))))
    return found


def unknown(name: str, entries: Sequence[AnyEntry], rungs: Iterable[str]) -> list[str]:
    """One line for the results whose rung or config this version does not know; none where there are none."""
    rungs = set(rungs)
    gone = [timed.rung for entry in entries for timed in entry.timed if timed.rung not in rungs]
    count = len(gone) + sum(entry.unknown for entry in entries)
    if not count:
        return []
    names = f" ({', '.join(sorted(set(gone)))})" if gone else ""
    return [f"{count} result{'s' if count > 1 else ''} {name}: of rungs or configs that this version lacks{names}"]


def _rungs(kind: str, one_chain: bool) -> dict[str, Rung]:
    known = rungs_of(kind)
    return {rung.id: rung for rung in known if not one_chain or rung.id in SAME_BITS}


def _in_one_chain(config: GemmConfig) -> bool:
    return config.split_k == 1 and config.slices_k == 1


def _exact(problem: GemmProblem, gpu: Gpu, name: str, entry: GemmEntry, one_chain: bool) -> TunedChoice | None:
    rungs = _rungs(problem.kind, one_chain)
    able, refused = [], []
    for t in entry.timed:
        if t.rung not in rungs or not set(t.packs) <= set(packable_operands(problem, rungs[t.rung], t.config)):
            continue
        if one_chain and not _in_one_chain(t.config):
            continue
        if reason := rungs[t.rung].why_not(problem.packed(t.config.tile, t.packs), t.config, gpu.arch):
            refused.append((t.rung, str(t.config), reason))
        else:
            able.append(t)
    if not able:
        return None
    best, rest = able[0], able[1 : 1 + RUNNERS_UP]
    what = f"{_shape(entry)}, the class of this problem{_with(problem, entry)}"
    return TunedChoice(
        rungs[best.rung], best.config, best.packs, name,
        f"fastest of {len(able)} kernels measured at {what}: {time_words(best.ms)}",
        tuple(
            (t.rung, worded(t.config, t.packs), f"{time_words(t.ms)}, {t.ms / best.ms:.2f} of the fastest's")
            for t in rest
        ),
        tuple(refused),
    )  # fmt: skip


def _with(problem: GemmProblem, entry: GemmEntry) -> str:
    """What was computed with an entry's product, where a problem has an epilogue; and results of another size."""
    told = []
    if problem.epilogue is not None:
        told.append(f"with {entry.epilogue}" if entry.epilogue else "without an epilogue")
    if ITEM_BYTES[problem.out_dtype] != ITEM_BYTES[entry.klass.out_dtype]:
        told.append(f"results in {entry.klass.out_dtype}")
    return f" ({', '.join(told)})" if told else ""


def _shape(entry: GemmEntry) -> str:
    m, n, k, batch = entry.shape
    return f"{m} x {n} x {k}" + (f" x{batch}" if batch != 1 else "")


def time_words(ms: float) -> str:
    """A time in ms, to three digits."""
    return f"{ms * 1e3:.3g} us" if ms < 1 else f"{ms:.3g} ms"


def neighbours(wanted: ProblemClass, table: Mapping[str, AnyEntry]) -> list[tuple[float, GemmEntry]]:
    """(distance, entry) of the nearest classes, the nearest first.

    Times with an epilogue and without are not mixed: what an epilogue costs would count as a config's own slowness.
    Bare products ask bare ones alone; for one with an epilogue it goes by the nearest.
    """
    known = classes_in(table, ProblemClass)
    found = [(distance(wanted, klass), key) for key, klass in known if wanted.fused or not klass.fused]
    within = sorted((d, key) for d, key in found if d <= FARTHEST)
    near = ((d, entry) for d, key in within if (entry := table.get(key)) is not None)
    nearest = next(near, None)
    if nearest is None:
        return []
    alike = (one for one in near if one[1].klass.fused == nearest[1].klass.fused)
    return [nearest, *islice(alike, NEIGHBOURS - 1)]


class _Word(NamedTuple):
    """What neighbours say of a config, with k in some number of parts and operands packed or not: the sum of their
    weights, and of weight times how much slower than modelled it was, in log time."""

    weight: float
    miss: float


_Words = dict[tuple[int, bool], _Word]
"""By parts of k, and whether operands were packed."""


class _Miss(NamedTuple):
    """How much slower than modelled a result is, in log time; `whole`: its config with k in one part."""

    rung: str
    whole: GemmConfig
    miss: float
    split_k: int
    packed: bool


class Estimate(NamedTuple):
    """What a config that ran on a neighbour, or a relative of it, should take here. `packs`: as plan.Plan.packs."""

    ms: float
    rung: str
    config: GemmConfig
    packs: tuple[str, ...]


def estimates(
    problem: GemmProblem, gpu: Gpu, near: Sequence[tuple[float, GemmEntry]], one_chain: bool = False
) -> list[Estimate]:
    """Of what ran on a neighbour, the least first; some of it may not be able to run here (Rung.why_not).

    k may be split into other numbers of parts than there, and what lies unaligned here packed or not: a neighbour's
    word on a config counts for its relatives, the less the further they are.
    """
    rungs = _rungs(problem.kind, one_chain)
    said, prior, total = _words_of(near, rungs, gpu)
    found = []
    # of fp32 tables exist whose neighbours say nothing of several launches: the model alone is no word on them
    several = problem.dtype != "f32" or not all(timed.one_launch for _, entry in near for timed in entry.timed)
    for (name, base), words in said.items():
        rung = rungs[name]
        if one_chain and base.slices_k > 1:
            continue
        parts = splits(rung, base, problem, gpu) if several and not one_chain else (1,)
        configs = [_in_parts(base, count) for count in parts]
        for packs in ways_to_pack(rung, base, problem) if several else [()]:
            model = Model(problem, rung, base, gpu, packs)
            for config in configs:
                weight = miss = 0.0
                for (parts_there, packed_there), word in words.items():
                    kinship = _kinship(config.split_k, parts_there, packed_there != bool(packs))
                    weight += kinship * word.weight
                    miss += kinship * word.miss
                miss = (miss + DOUBT * total * prior) / (weight + DOUBT * total)
                found.append(Estimate(model.predict(config).ms * exp(miss), name, config, packs))
    found.sort(key=lambda one: one.ms)
    equals = (list(group) for _, group in groupby(found, key=lambda one: one.ms))
    return [one for group in equals for one in (sorted(group, key=_by_name) if len(group) > 1 else group)]


def _by_name(one: Estimate) -> tuple[str, str]:
    """The order of equal estimates, so that the choice does not depend on that of a table."""
    return one.rung, repr((one.config, one.packs))


@lru_cache(maxsize=1 << 14)
def _in_parts(config: GemmConfig, parts: int) -> GemmConfig:
    return replace(config, split_k=parts)


@lru_cache(maxsize=1 << 10)
def _kinship(parts: int, parts_there: int, packed_otherwise: bool) -> float:
    """What a neighbour's word on a config counts for one with k in other parts, or packed or not where that was not."""
    return exp(-abs(log2(parts / parts_there)) - 2 * packed_otherwise)


_MOST_KNOWN = 4096
_missed_before: dict[tuple[int, Gpu], tuple[GemmEntry, tuple[_Miss, ...]]] = {}
"""By an entry's identity, which holds while the entry stands beside it."""


def _missed(entry: GemmEntry, gpu: Gpu) -> tuple[_Miss, ...]:
    """What the model missed for each of an entry's results that can run on the GPU: once for all plans near it."""
    if (found := _missed_before.get((id(entry), gpu))) is not None:
        return found[1]
    m, n, k, batch = entry.shape
    there = GemmProblem.dense(
        m, n, k, layout=entry.klass.layout.replace("s", "n"), batch=batch, dtype=entry.klass.dtype,
        out_dtype=entry.klass.out_dtype, use_c=entry.klass.use_c, precision=entry.klass.precision,
    )  # fmt: skip
    rungs, misses = _rungs(entry.klass.kind, False), []
    for timed in entry.timed:
        if timed.rung not in rungs:
            continue
        expected = predict(there, rungs[timed.rung], timed.config, gpu, timed.packs).ms
        if isfinite(expected):  # else it does not fit on this GPU
            whole, miss = _in_parts(timed.config, 1), log(timed.ms / expected)
            misses.append(_Miss(timed.rung, whole, miss, timed.config.split_k, bool(timed.packs)))
    if len(_missed_before) >= _MOST_KNOWN:
        _missed_before.clear()
    _missed_before[id(entry), gpu] = entry, tuple(misses)
    return tuple(misses)


def _words_of(
    near: Sequence[tuple[float, GemmEntry]], rungs: Mapping[str, Rung], gpu: Gpu
) -> tuple[dict[tuple[str, GemmConfig], _Words], float, float]:
    """(words by rung and config with k whole, what an unknown config is taken to miss by, the weight of all)."""
    said: dict[tuple[str, GemmConfig], _Words] = {}
    total = mean = 0.0
    nearest = near[0][0]
    for d, entry in near:
        weight = exp(-(d - nearest) / REACH) / (1 + d)
        misses = [known for known in _missed(entry, gpu) if known.rung in rungs]
        for known in misses:
            words = said.setdefault((known.rung, known.whole), {})
            so_far = words.get(way := (known.split_k, known.packed), _Word(0.0, 0.0))
            words[way] = _Word(so_far.weight + weight, so_far.miss + weight * known.miss)
        if misses:
            total += weight
            mean += weight * sum(known.miss for known in misses) / len(misses)
    return said, (mean / total if total else 0.0) + UNSEEN, total


def _estimated(
    problem: GemmProblem, gpu: Gpu, name: str, near: Sequence[tuple[float, GemmEntry]], one_chain: bool
) -> TunedChoice | None:
    rungs = _rungs(problem.kind, one_chain)
    ordered = estimates(problem, gpu, near, one_chain)
    able = (
        one for one in ordered
        if rungs[one.rung].why_not(problem.packed(one.config.tile, one.packs), one.config, gpu.arch) is None
    )  # fmt: skip
    first = list(islice(able, 1 + RUNNERS_UP))
    if not first:
        return None
    best, *rest = first
    return TunedChoice(
        rungs[best.rung], best.config, best.packs, f"heuristic from what is {name}",
        f"this class was not tuned; least of {len(ordered)} estimates from {len(near)} neighbours' times, the nearest "
        f"{_shape(near[0][1])}, and the model's waves",
        tuple(
            (one.rung, worded(one.config, one.packs), f"estimated at {one.ms / best.ms:.2f} of the choice's time")
            for one in rest
        ),
        _refused(problem, gpu, near, one_chain),
    )  # fmt: skip


def _refused(
    problem: GemmProblem, gpu: Gpu, near: Sequence[tuple[float, GemmEntry]], one_chain: bool
) -> tuple[tuple[str, str, str], ...]:
    """What ran on a neighbour as it lies, and cannot here."""
    rungs = _rungs(problem.kind, one_chain)
    ran = dict.fromkeys((t.rung, t.config) for _, entry in near for t in entry.timed if t.rung in rungs and not t.packs)
    told = ((rung, config, rungs[rung].why_not(problem, config, gpu.arch)) for rung, config in ran)
    return tuple((rung, str(config), reason) for rung, config, reason in told if reason)
