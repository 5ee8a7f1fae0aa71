"""Successive halving: all candidates run a little, the better ones more, the best few long enough to tell them apart.

In a pass every candidate still in the race runs once, side by side, so that heat and clocks are the same for all. A
candidate's figure is the median over passes of its share of the pass, not of its time: a pass on a slow chip counts
like any other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, isfinite, log
from statistics import fmean, median
from typing import Generic, Protocol, TypeVar

C = TypeVar("C", contravariant=True)
T = TypeVar("T")


class Measurer(Protocol[C]):
    """Runs candidates. On a GPU: measure.GpuTrial."""

    def one_pass(self, candidates: Sequence[C], number: int) -> list[float]:
        """Each candidate's milliseconds, run once side by side; `number` counts passes."""
        ...


@dataclass(frozen=True)
class Round:
    """`passes` over who is left; then those stay that are within `margin` times the best, at most `most`."""

    passes: int
    margin: float
    most: int


ROUNDS = (Round(3, 1.35, 12), Round(6, 1.12, 6), Round(12, 1.04, 3), Round(24, 1.0, 1))
"""Passes of the four rounds: 3 x 24 + 6 x 12 + 12 x 6 + 24 x 3 runs at most, for 24 candidates."""


@dataclass(frozen=True)
class Ranked(Generic[T]):
    """The time of a candidate in ms, on the scale of the last round that ran, and the rounds it survived."""

    candidate: T
    ms: float
    rounds: int


def successive_halving(
    candidates: Sequence[T],
    measurer: Measurer[T],
    rounds: Sequence[Round] = ROUNDS,
    deadline: float = float("inf"),
    told: Callable[[list[Ranked[T]]], None] = lambda ranking: None,
) -> list[Ranked[T]]:
    """All candidates, the best first. Stops after the pass during which time.monotonic() passes `deadline`.

    `told` hears the ranking after every pass: what stands if the search is broken off. Equals keep the order in which
    they came. Raises ValueError for a time that is no positive number.
    """
    left = list(range(len(candidates)))
    final: dict[int, tuple[float, int]] = {}  # ms and rounds survived, by the candidate's place
    number = 0

    def ranking(now: dict[int, tuple[float, int]]) -> list[Ranked[T]]:
        order = sorted(now, key=lambda i: (-now[i][1], now[i][0], i))
        return [Ranked(candidates[i], *now[i]) for i in order]

    for round_number, plan in enumerate(rounds):
        if not left or (round_number and len(left) == 1):
            break
        samples: list[list[float]] = []
        for _ in range(plan.passes):
            samples.append(_checked(measurer.one_pass([candidates[i] for i in left], number), len(left)))
            number += 1
            figures = dict(zip(left, _figures(samples), strict=True))
            now = _on_this_scale(final, figures, round_number)
            told(ranking(now))
            if time.monotonic() > deadline:
                return ranking(now)
        final = now
        limit = min(figures.values()) * plan.margin
        stay = [i for i in sorted(left, key=lambda i: (figures[i], i))[: plan.most] if figures[i] <= limit]
        left = sorted(stay)
    return ranking(final)


def _checked(times: list[float], count: int) -> list[float]:
    if len(times) != count or any(not isfinite(ms) or ms <= 0 for ms in times):
        raise ValueError(f"{count} times in ms were expected, all positive; the measurer gave {times}")
    return times


def _figures(samples: Sequence[Sequence[float]]) -> list[float]:
    """Return, of each candidate, the median of its share of a pass, times what the typical pass took."""
    means = [exp(fmean(log(ms) for ms in sample)) for sample in samples]
    scale = median(means)
    return [
        scale * median(sample[i] / mean for sample, mean in zip(samples, means, strict=True))
        for i in range(len(samples[0]))
    ]


def _on_this_scale(
    final: dict[int, tuple[float, int]], figures: dict[int, float], round_number: int
) -> dict[int, tuple[float, int]]:
    """This round's figures for who is in it; for who is not the old ones, times what the chip has changed since."""
    drift = median(figures[i] / final[i][0] for i in figures if i in final) if final else 1.0
    return {i: (ms * drift, rounds) for i, (ms, rounds) in final.items()} | {
        i: (ms, round_number) for i, ms in figures.items()
    }
