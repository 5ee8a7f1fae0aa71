"""The choice for an attention problem from tuning results: its own class, else what its neighbours' times say.

As for products (choice.py): a config that ran on a neighbour is taken to need the model's time for this problem, times
what the model missed for it there, the nearer the more. A pure function of problem, GPU and tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import exp, isfinite, log

from ..gpus import Gpu
from ..plan.choice import RUNNERS_UP, Source, time_words, unknown
from ..plan.entries import AnyEntry, AttentionEntry, classes_in
from .classes import AttentionClass, attention_class_of, attention_distance
from .problem import AttentionProblem
from .rung import AttentionConfig, AttentionRung
from .rungs import ATTENTION_RUNGS
from .space import predict_attention

NEIGHBOURS = 4
FARTHEST = 2.5
"""Beyond this distance the nearest class says nothing."""
REACH = 0.5
"""Further than the nearest by this much, a neighbour's word counts 1/e of its."""
_RUNGS = {rung.id: rung for rung in ATTENTION_RUNGS}


@dataclass(frozen=True)
class AttentionChoice:
    """`runners_up`: (rung, config, words on its time); `refused`: (rung, config, reason)."""

    rung: AttentionRung
    config: AttentionConfig
    source: str
    why: str
    runners_up: tuple[tuple[str, str, str], ...]
    refused: tuple[tuple[str, str, str], ...]


def choose_attention(
    problem: AttentionProblem, gpu: Gpu, sources: Sequence[Source], ignored: list[str]
) -> AttentionChoice | None:
    """From the tables in order: the problem's class in the first that has it, else the heuristic over the first that
    has near neighbours. None where no table knows anything near. `ignored` as for choice.choose.
    """
    wanted = attention_class_of(problem)
    twin = replace(wanted, dtype={"bf16": "f16", "f16": "bf16"}[wanted.dtype])
    for name, table in sources:
        entry = table.get(str(wanted)) or table.get(str(twin))
        if entry is not None:
            ignored.extend(unknown(name, [entry], _RUNGS))
            if (choice := _exact(problem, gpu, name, entry)) is not None:
                return choice
    for name, table in sources:
        near = neighbours(wanted, table)
        ignored.extend(line for line in unknown(name, [e for _, e in near], _RUNGS) if line not in ignored)
        if near and (choice := _estimated(problem, gpu, name, near)) is not None:
            return choice
    return None


def neighbours(wanted: AttentionClass, table: Mapping[str, AnyEntry]) -> list[tuple[float, AttentionEntry]]:
    """(distance, entry) of the nearest classes of the same d_head, the nearest first."""
    known = classes_in(table, AttentionClass)
    found = sorted((attention_distance(wanted, klass), key) for key, klass in known)
    near = ((d, table.get(key)) for d, key in found if d <= FARTHEST)
    return list(islice(((d, entry) for d, entry in near if entry is not None), NEIGHBOURS))


def _shape(entry: AttentionEntry) -> str:
    batch, heads, _, queries, keys = entry.shape
    return f"{batch} x {heads} heads, {queries} x {keys}{', causal' if entry.klass.is_causal else ''}"


def _exact(problem: AttentionProblem, gpu: Gpu, name: str, entry: AttentionEntry) -> AttentionChoice | None:
    able, refused = [], []
    for timed in entry.timed:
        if timed.rung not in _RUNGS:
            continue
        if reason := _RUNGS[timed.rung].why_not(problem, timed.config, gpu.arch):
            refused.append((timed.rung, str(timed.config), reason))
        else:
            able.append(timed)
    if not able:
        return None
    best, rest = able[0], able[1 : 1 + RUNNERS_UP]
    return AttentionChoice(
        _RUNGS[best.rung], best.config, name,
        f"fastest of {len(able)} kernels measured at {_shape(entry)}, the class of this problem: {time_words(best.ms)}",
        tuple((t.rung, str(t.config), f"{time_words(t.ms)}, {t.ms / best.ms:.2f} of the fastest's") for t in rest),
        tuple(refused),
    )  # fmt: skip


def _problem_of(entry: AttentionEntry) -> AttentionProblem:
    batch, heads, heads_kv, queries, keys = entry.shape
    seen = min(keys, entry.klass.keys)  # a window leaves about so many to every query
    return AttentionProblem.dense(
        batch, heads, queries, seen, entry.klass.d_head, heads_kv=heads_kv, dtype=entry.klass.dtype,
        is_causal=entry.klass.is_causal,
    )  # fmt: skip


def _estimated(
    problem: AttentionProblem, gpu: Gpu, name: str, near: Sequence[tuple[float, AttentionEntry]]
) -> AttentionChoice | None:
    said: dict[tuple[str, AttentionConfig], tuple[float, float]] = {}
    total = 0.0
    for distance, entry in near:
        weight = exp((near[0][0] - distance) / REACH)
        total += weight
        there = _problem_of(entry)
        for timed in entry.timed:
            if timed.rung not in _RUNGS:
                continue
            expected = predict_attention(there, _RUNGS[timed.rung], timed.config, gpu).ms
            if isfinite(expected):
                weights, misses = said.get((timed.rung, timed.config), (0.0, 0.0))
                miss = log(timed.ms / expected)
                said[timed.rung, timed.config] = (weights + weight, misses + weight * miss)
    if not said:
        return None
    usual = sum(misses for _, misses in said.values()) / sum(weights for weights, _ in said.values())
    found, refused = [], []
    for (rung, config), (weight, misses) in said.items():
        if reason := _RUNGS[rung].why_not(problem, config, gpu.arch):
            refused.append((rung, str(config), reason))
            continue
        doubt = 0.1 * total  # what few neighbours say of a config is drawn to what is usual
        miss = (misses + doubt * usual) / (weight + doubt)
        found.append((predict_attention(problem, _RUNGS[rung], config, gpu).ms * exp(miss), rung, config))
    if not found:
        return None
    (ms, rung, config), *rest = sorted(found, key=lambda item: (item[0], item[1], str(item[2])))
    return AttentionChoice(
        _RUNGS[rung], config, f"heuristic from what is {name}",
        f"this class was not tuned; least of {len(found)} estimates from {len(near)} neighbours' times, the nearest "
        f"{_shape(near[0][1])}, and the model's waves",
        tuple((r, str(c), f"estimated at {other / ms:.2f} of the choice's time") for other, r, c in rest[:RUNNERS_UP]),
        tuple(refused),
    )  # fmt: skip
