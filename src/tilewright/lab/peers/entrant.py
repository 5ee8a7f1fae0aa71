"""A peer: candidates for a product. Each is judged like a rung; then they race for who is timed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from math import inf
from statistics import median
from typing import Any

import numpy as np

from ...arrays.device_array import DeviceArray
from ...arrays.dtypes import ITEM_BYTES
from ...jit import CompiledKernel
from ...jit.device import bound_to
from ...jit.timing import SHORT_MS, Start, Stopwatch
from ..check import CheckResult, Guarded, check
from ..ground import Buffers, Ground, rung_launcher
from ..ladder import Step, judged
from ..numbers import from_stored

ROWS = 97
"""Rows of a result on which candidates are judged before they race; the one that is timed is judged on all."""


@dataclass(frozen=True)
class Entrant:
    """One way in which a peer can make a product. `prepare(buffers)` gives the launch that writes buffers.out."""

    text: str
    """Its config, as tables show it."""
    prepare: Callable[[Buffers], Start]
    config: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    """What the compiler says of it (see resources.static_facts), where that is known."""


@dataclass(frozen=True)
class Contender:
    """A peer that is here and can make the product: in which version, and how."""

    version: str
    candidates: Sequence[Entrant]


@dataclass(frozen=True)
class Peer:
    """Somebody else's product.

    `enter(ground)` raises MissingDependency where the peer is not installed, ConfigRejected where it cannot make the
    product.
    """

    id: str
    what: str
    """One line."""
    enter: Callable[[Ground], Contender]


def rung_candidate(step: Step, kernel: CompiledKernel, ground: Ground) -> Entrant:
    """A rung with its config as a candidate."""
    return Entrant(
        str(step.config), rung_launcher(step, ground.where), asdict(step.config),
        step.facts(kernel, ground.where.gpu),
    )  # fmt: skip


class _Inside(DeviceArray):
    """A DeviceArray over memory that somebody else holds for as long."""

    def __init__(self, address: int, shape: tuple[int, int], dtype: str, ordinal: int) -> None:
        self.address, self.shape, self.dtype, self.device = address, shape, dtype, ordinal
        self.nbytes = shape[0] * shape[1] * ITEM_BYTES[dtype]


def same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    """Return whether two results, as they are stored, agree in every bit."""
    return np.array_equal(one.view(np.uint8), other.view(np.uint8))


def judge(candidate: Entrant, ground: Ground, rows: int | None = None) -> CheckResult:
    """Run it once on the operands given, into a poisoned output between guard bands, and judge what it wrote.

    `rows`: compare so many rows with float64, evenly spread and the last among them, instead of all. That every
    element was written, and nothing else, is looked at in any case.
    """
    problem, executor = ground.problem, ground.executor
    guarded = Guarded((problem.m, problem.n), problem.out_dtype)
    held = executor.upload(guarded.whole.view(np.uint8))
    try:
        start = held + guarded.band * guarded.whole.itemsize
        out = _Inside(start, (problem.m, problem.n), problem.out_dtype, executor.ordinal)
        launch = candidate.prepare(replace(ground.sets[0], out=out))
        with bound_to(executor.ordinal):
            launch(executor.stream)
        guarded.whole[:] = executor.download(held, guarded.whole.nbytes).view(guarded.whole.dtype)
    finally:
        executor.release(held)
    if not guarded.intact():
        return CheckResult(False, inf, 0.0, "it wrote outside its output")
    if missing := guarded.untouched():
        return CheckResult(False, inf, 0.0, f"it left {missing} elements unwritten")
    given = ground.given
    if ground.last_judged is not None and same_bits(guarded.view, ground.last_judged[0]):
        return ground.last_judged[1]
    if rows is None or rows >= problem.m:
        ground.last_judged = guarded.view, judged(guarded.view, problem, given)
        return ground.last_judged[1]
    some = np.unique(np.linspace(0, problem.m - 1, rows).astype(int))
    return check(
        from_stored(guarded.view[some], problem.out_dtype), given.a[some], given.b, expected=given.expected[some],
        library=given.library[some], dtype=problem.dtype, out_dtype=problem.out_dtype,
    )  # fmt: skip


def race(candidates: Sequence[Entrant], ground: Ground, rounds: int) -> list[float]:
    """Milliseconds of one product by each: the median of rounds in which all take turns, in another order each.

    Good for a first choice only: a hot GPU's clock follows what ran before, by a few percent. Short products are timed
    by graph replay.
    """
    ordinal, sets, chance = ground.where.ordinal, ground.sets, random.Random(0)
    with bound_to(ordinal), ExitStack() as stack:
        watch = Stopwatch(ordinal)
        stack.callback(watch.close)
        turns = [[candidate.prepare(buffers) for buffers in sets] for candidate in candidates]
        count = 1
        if min(min(watch.measure(each[:2])) for each in turns) < SHORT_MS:
            count = len(sets)
            turns = [[stack.enter_context(watch.graph_of(each))] for each in turns]
        times: list[list[float]] = [[] for _ in candidates]
        for number in range(rounds):
            order = chance.sample(range(len(turns)), len(turns))
            taken = watch.measure([turns[index][number % len(turns[index])] for index in order])
            for index, ms in zip(order, taken, strict=True):
                times[index].append(ms / count)
        return [median(each) for each in times]
