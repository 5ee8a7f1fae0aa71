"""A plan: the rung and config that run a problem, and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple


class Refusal(NamedTuple):
    """A kernel that was considered and cannot run the problem."""

    rung: str
    config: str
    reason: str


class RunnerUp(NamedTuple):
    """One of the next best, and how it compares."""

    rung: str
    config: str
    words: str


@dataclass(frozen=True)
class Plan:
    """The rung and config that run a problem, whatever its family."""

    rung: Any
    config: Any
    source: str
    """Who chose: "the caller", "the rung's default", "the rung's presets", "tuned here", "shipped with the package",
    "heuristic from what is" either of the two, or "cost model"."""
    why: str
    refusals: Callable[[], tuple[Refusal, ...]] = field(default=tuple, repr=False, compare=False)
    """Makes `refused`, which explanations alone ask for."""
    runners_up: tuple[RunnerUp, ...] = ()
    """The next best that were measured or estimated."""
    packs: tuple[str, ...] = ()
    """The operands, "a" and "b", that are copied first to lines that wide accesses can read."""
    ignored: str = ""
    """Tuning results that this version cannot use, in a line; "" where all were of use."""
    rows: int = 0
    """Where not 0: the product's kernel is the one that is compiled for so many rows; it takes any number."""

    @cached_property
    def refused(self) -> tuple[Refusal, ...]:
        """What was considered and cannot run the problem."""
        return self.refusals()

    def __getstate__(self) -> dict[str, Any]:
        """To be pickled: what was refused, not how that is found."""
        return self.__dict__ | {"refusals": partial(tuple, self.refused)}
