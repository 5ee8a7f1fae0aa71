"""A duel: the best candidate against what would run without it, in pairs, each run next to the other.

A race of many candidates says roughly who is fast; by how much the best beats what runs today decides whether it takes
its place. Medians of paired ratios do not move with the chip's clock.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median
from typing import Any

from .search import Measurer

PAIRS = 24
FEWEST = 8
"""Pairs that are run even where the time is up."""
SURELY = 2.0
"""How many times its noise a ratio must be above 1."""


@dataclass(frozen=True)
class Duel:
    """`ratio`: how many times as fast as the incumbent the challenger is, as a median of pairs; `noise`: the standard
    error of that median."""

    incumbent: str
    challenger: str
    ratio: float
    noise: float

    @property
    def is_won(self) -> bool:
        """Whether the challenger takes the incumbent's place."""
        return self.ratio > 1 + SURELY * self.noise

    def __str__(self) -> str:
        outcome = "replaces" if self.is_won else "does not replace"
        told = f"{self.ratio:.3f} times as fast, +-{self.noise:.3f}, in pairs"
        return f"{self.challenger} {outcome} {self.incumbent}: {told}"


def duel(measurer: Measurer[Any], incumbent: Any, challenger: Any, deadline: float = float("inf")) -> Duel:
    """Run both in turn. Stops after FEWEST pairs once time.monotonic() has passed `deadline`."""
    ratios: list[float] = []
    while len(ratios) < PAIRS and (len(ratios) < FEWEST or time.monotonic() <= deadline):
        before, after = measurer.one_pass([incumbent, challenger], len(ratios))
        ratios.append(before / after)
    middle = median(ratios)
    spread = 1.4826 * median(abs(ratio - middle) for ratio in ratios)  # a standard deviation, of normal noise
    return Duel(str(incumbent), str(challenger), middle, 1.2533 * spread / len(ratios) ** 0.5)
