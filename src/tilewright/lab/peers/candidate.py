"""Candidates of a peer: each is judged like a rung, then they race, and the fastest is timed as the peer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import inf
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from ...jit.device import GpuExecutor, bound_to
from ...jit.timing import SHORT_MS, Launch, Stopwatch
from ...ops.device_array import DeviceArray
from ...problems import GemmProblem
from ..check import CheckResult, Guarded, check
from ..ladder import Operands, judged
from ..numbers import from_stored

if TYPE_CHECKING:
    from ..climb_gpu import Buffers

ROWS = 97
"""Rows of a result on which candidates are judged before they race; the winner is judged on all."""


@dataclass(frozen=True)
class Candidate:
    """One way in which a peer can make a product. `prepare(buffers)` gives the launch that writes buffers.out."""

    text: str
    """Its config, as tables show it."""
    prepare: Callable[[Buffers], Launch]
    config: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    """What the compiler says of it (see resources.static_facts), where it can be known."""


class Inside(DeviceArray):
    """A DeviceArray over memory that somebody else holds for as long."""

    def __init__(self, address: int, shape: tuple[int, ...], dtype: str, ordinal: int) -> None:
        self.address, self.shape, self.dtype, self.device = address, shape, dtype, ordinal
        self.nbytes = Guarded(shape, dtype, band=0).whole.nbytes


def judge(
    candidate: Candidate, buffers: Buffers, problem: GemmProblem, given: Operands, executor: GpuExecutor,
    rows: int | None = None,
) -> CheckResult:  # fmt: skip
    """Run it once on `buffers`, which hold `given`, into a poisoned output between guard bands, and judge that.

    `rows`: compare so many rows with float64, evenly spread and the last among them, instead of all. That every
    element was written, and nothing else, is looked at in any case.
    """
    from dataclasses import replace

    guarded = Guarded((problem.m, problem.n), problem.out_dtype)
    held = executor.upload(guarded.whole.view(np.uint8))
    try:
        start = held + guarded.band * guarded.whole.itemsize
        out = Inside(start, (problem.m, problem.n), problem.out_dtype, executor.ordinal)
        launch = candidate.prepare(replace(buffers, out=out))
        with bound_to(executor.ordinal):
            launch(executor.stream)
        guarded.whole[:] = executor.download(held, guarded.whole.nbytes).view(guarded.whole.dtype)
    finally:
        executor.release(held)
    if not guarded.intact():
        return CheckResult(False, inf, 0.0, "it wrote outside its output")
    if missing := guarded.untouched():
        return CheckResult(False, inf, 0.0, f"it left {missing} elements unwritten")
    if rows is None or rows >= problem.m:
        return judged(guarded.view, problem, given)
    some = np.unique(np.linspace(0, problem.m - 1, rows).astype(int))
    return check(
        from_stored(guarded.view[some], problem.out_dtype), given.a[some], given.b, expected=given.expected[some],
        library=given.library[some], dtype=problem.dtype, out_dtype=problem.out_dtype,
    )  # fmt: skip


def race(candidates: Sequence[Candidate], sets: Sequence[Buffers], ordinal: int, rounds: int = 5) -> list[float]:
    """Milliseconds of one product by each candidate: the median of rounds in which all take turns.

    For choosing only: what is quoted is measured in pairs afterwards. Short ones are timed by graph replay.
    """
    with bound_to(ordinal), ExitStack() as stack:
        watch = Stopwatch(ordinal)
        stack.callback(watch.close)
        launches = [[candidate.prepare(buffers) for buffers in sets] for candidate in candidates]
        first = [min(watch.measure([each[index % len(sets)] for index in range(3)])) for each in launches]
        if min(first) < SHORT_MS:
            runs = [stack.enter_context(watch.graph_of(each)) for each in launches]
            count = len(sets)
            turns = [[run] for run in runs]
        else:
            turns, count = launches, 1
        rows = [
            watch.measure([each[number % len(each)] for each in (turns if number % 2 == 0 else turns[::-1])])
            for number in range(rounds + 1)
        ][1:]  # fmt: skip
        ordered = [row if number % 2 else row[::-1] for number, row in enumerate(rows)]
        return [median(row[index] for row in ordered) / count for index in range(len(candidates))]
