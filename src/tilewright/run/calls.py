"""Remembered calls of a function, the most recently used ones, for as long as the tuning tables stay as they are."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from ..jit import limits
from ..plan.tables import generation

MISS = object()
"""What a warm path returns for a call that it does not know."""

T = TypeVar("T")


class Calls(Generic[T]):
    """Remembered calls of one function, the most recently used ones.

    Two generations of at most half of them each: what is found in the old one moves to the young one, and when that is
    full the old one is dropped. A hit in the young one costs a look-up.
    """

    def __init__(self) -> None:
        self._young: dict[Hashable, T] = {}
        self._old: dict[Hashable, T] = {}
        self._tables: int | None = None
        """The tuning tables' generation: what they have changed may choose other kernels now."""

    def get(self, key: Hashable) -> T | None:
        if self._tables != generation():
            self.forget()
            return None
        try:
            found = self._young.get(key)
        except TypeError:  # an option that cannot be hashed: the full path says what is wrong with it
            return None
        if found is not None:
            return found
        found = self._old.pop(key, None)
        if found is not None:
            self.put(key, found)
        return found

    def put(self, key: Hashable, call: T) -> None:
        if self._tables != generation():  # a plan was made since the last look-up, and noticed new tables first
            self.forget()
        most = limits.warm_calls() // 2
        if len(self._young) >= most:
            self._old, self._young = self._young, {}
        if most:
            self._young[key] = call

    def forget(self) -> None:
        """Let every call take the full path once more."""
        self._young, self._old, self._tables = {}, {}, generation()

    def __len__(self) -> int:
        return len(self._young) + len(self._old)
