"""Calls on torch's tensors like those of late, told by torch's guards: a third of the time of making their keys."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Generic, NamedTuple, TypeVar

from ..plan.tables import generation
from .calls import Calls
from .libraries import guard

T = TypeVar("T")
ENOUGH = 8
"""Times running that a call is found by its key until a guard is made for it, which takes 15 us."""
MOST_WAYS = 4
MOST_GUARDS = 16
"""That are made for one hint: calls that go on changing are found by their keys."""


class Way(NamedTuple):
    """How the tensors of a call lay."""

    lie_so: Callable[..., bool]
    """Whether tensors lie as they did and torch is in the state that it was in (libraries.guard)."""
    low: list[int]
    """The low bits of their addresses."""
    found: Any
    """What is remembered of it."""


class Ways(Generic[T]):
    """The ways in which tensors of calls lay that have a hint in common."""

    def __init__(self) -> None:
        self._ways: tuple[Way, ...] = ()
        self._last: T | None = None
        """What was found by its key, and how many times running."""
        self._times = 0
        self._left = MOST_GUARDS

    def find(self, *tensors: Any) -> T | None:
        """What was noted of tensors that lie so. Where anything was, raises RuntimeError or TypeError for what is no
        tensor or has no memory of its own."""
        for way in self._ways:
            if way.lie_so(*tensors) and way.low == [x.data_ptr() & 15 for x in tensors]:
                found: T = way.found
                return found
        return None

    def note(self, found: T | None, *tensors: Any) -> None:
        """Let a call that was found otherwise, or not at all, be known. Raises RuntimeError for what has no memory."""
        self._times = self._times + 1 if found is self._last else 1
        self._last = found
        if found is None or self._times < ENOUGH or not self._left:
            return
        self._times, self._left = 0, self._left - 1
        lie_so = guard(*tensors)
        if lie_so is not None:
            way = Way(lie_so, [x.data_ptr() & 15 for x in tensors], found)
            self._ways = (way, *self._ways[: MOST_WAYS - 1])


class Lately(Calls[Ways[T]]):
    """What is remembered of calls, by a hint: what is cheap to ask for and differs between calls that take turns, and
    whether gradients are recorded, which guards do not see."""

    def of(self, hint: Hashable) -> Ways[T]:
        """The ways of calls with this hint. Raises TypeError for one that cannot be hashed."""
        found = self._young.get(hint) if self._tables == generation() else None
        if found is None and (found := self.get(hint)) is None:
            self.put(hint, found := Ways())
        return found
