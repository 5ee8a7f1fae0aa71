"""A duel: the best candidate against what would run without it, in pairs, each run next to the other.

A race of many candidates says roughly who is fast; by how much the best beats what runs today decides whether it takes
its place. Medians of paired ratios do not move with the chip's clock. But where power is the limit, a pair shares it
out: who draws more lowers the clock of both. So who wins in pairs must be no slower when each runs alone for a while.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from .search import Measurer

PAIRS = 24
FEWEST = 8
"""Pairs that are run even where the time is up."""
SURELY = 2.0
"""How many times its noise a ratio must be above 1."""
ALONE_S = 0.3
"""Seconds that each runs alone, of which the second half counts: clocks follow power with a delay."""
TURNS = 2
"""How often."""
LEAST_PASSES = 4
"""Of a turn."""


@dataclass(frozen=True)
class Duel:
    """`ratio`: how many times as fast as the incumbent the challenger is, as a median of pairs; `noise`: the standard
    error of that median."""

    incumbent: str
    challenger: str
    ratio: float
    noise: float
    alone: float | None = None
    """The ratio where each ran alone; None where it lost in pairs."""

    @property
    def is_won_in_pairs(self) -> bool:
        """Return whether it is faster by more than the noise, side by side."""
        return self.ratio > 1 + SURELY * self.noise

    @property
    def is_won(self) -> bool:
        """Return whether the challenger takes the incumbent's place."""
        return self.is_won_in_pairs and (self.alone is None or self.alone >= 1)

    def __str__(self) -> str:
        outcome = "replaces" if self.is_won else "does not replace"
        told = f"{self.ratio:.3f} times as fast, +-{self.noise:.3f}, in pairs"
        told += f", {self.alone:.3f} alone" if self.alone is not None else ""
        return f"{self.challenger} {outcome} {self.incumbent}: {told}"


def duel(measurer: Measurer[Any], incumbent: Any, challenger: Any, deadline: float = float("inf")) -> Duel:
    """Run both in turn, and then, if the challenger wins, each alone.

    Stops after FEWEST pairs once time.monotonic() has passed `deadline`.
    """
    ratios: list[float] = []
    while len(ratios) < PAIRS and (len(ratios) < FEWEST or time.monotonic() <= deadline):
        before, after = measurer.one_pass([incumbent, challenger], len(ratios))
        ratios.append(before / after)
    middle = median(ratios)
    spread = 1.4826 * median(abs(ratio - middle) for ratio in ratios)  # a standard deviation, of normal noise
    found = Duel(str(incumbent), str(challenger), middle, 1.2533 * spread / len(ratios) ** 0.5)
    return replace(found, alone=_alone(measurer, incumbent, challenger)) if found.is_won_in_pairs else found


def _alone(measurer: Measurer[Any], incumbent: Any, challenger: Any) -> float:
    """Return how many times as fast the challenger is where each runs alone."""
    times: dict[str, list[float]] = {"incumbent": [], "challenger": []}
    for _ in range(TURNS):
        for name, candidate in (("incumbent", incumbent), ("challenger", challenger)):
            samples: list[float] = []
            end = time.monotonic() + ALONE_S
            while len(samples) < LEAST_PASSES or time.monotonic() < end:
                samples += measurer.one_pass([candidate], len(samples))
            times[name] += samples[len(samples) // 2 :]
    return median(times["incumbent"]) / median(times["challenger"])
