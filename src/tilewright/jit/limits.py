"""The bounds of what is kept, in memory and on disk: sizes that a user sets, and a mapping that forgets what is used
least."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import Generic, TypeVar

from .locks import lock

KERNELS_VARIABLE = "TILEWRIGHT_KERNELS"
CACHE_SIZE_VARIABLE = "TILEWRIGHT_CACHE_SIZE"
PROGRAMS_VARIABLE = "TILEWRIGHT_PROGRAMS"
WARM_CALLS_VARIABLE = "TILEWRIGHT_WARM_CALLS"
POOL_VARIABLE = "TILEWRIGHT_POOL"
KERNELS = 1024
PROGRAMS = 4096
WARM_CALLS = 4096
POOL_BYTES = 256 << 20
CACHE_BYTES = 2 << 30

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}

K = TypeVar("K")
V = TypeVar("V")


def kernels() -> int:
    """The most compiled kernels that a process holds in memory, and the most that it keeps loaded on GPUs."""
    return max(1, _number(KERNELS_VARIABLE, os.environ.get(KERNELS_VARIABLE, ""), KERNELS))


def programs() -> int:
    """The most programs that a process keeps ready to launch."""
    return max(1, _number(PROGRAMS_VARIABLE, os.environ.get(PROGRAMS_VARIABLE, ""), PROGRAMS))


def warm_calls() -> int:
    """The most calls of one function that a process remembers; 0: none."""
    return _number(WARM_CALLS_VARIABLE, os.environ.get(WARM_CALLS_VARIABLE, ""), WARM_CALLS)


def pool_bytes() -> int:
    """The most bytes of a GPU's memory that are kept for the next call on host and DLPack arrays; 0: none."""
    return _number(POOL_VARIABLE, os.environ.get(POOL_VARIABLE, ""), POOL_BYTES)


def cache_bytes() -> int:
    """The most bytes of compiled kernels on disk; 0: none are kept."""
    return _number(CACHE_SIZE_VARIABLE, os.environ.get(CACHE_SIZE_VARIABLE, ""), CACHE_BYTES)


@lru_cache(maxsize=16)  # so that a wrong value is said once
def _number(name: str, text: str, default: int) -> int:
    """The value of a variable such as 500000, 64K, 500M, 1.5G."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if found:
        return int(float(found[1]) * _UNITS[found[2].upper()])
    if text.strip():
        warnings.warn(
            f"{name} is {text!r}, which is not a size such as 500000, 500M or 2G; {default} is used.",
            RuntimeWarning,
            stacklevel=5,
        )
    return default


class Recent(Generic[K, V]):
    """A mapping of at most `limit()` entries that drops the one used longest ago. Safe to share between threads."""

    def __init__(self, limit: Callable[[], int]) -> None:
        self._limit = limit
        self._entries: dict[K, V] = {}  # in order of use
        self._guard = lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        with self._guard:
            if key not in self._entries:
                return None
            value = self._entries[key] = self._entries.pop(key)
            return value

    def put(self, key: K, value: V) -> None:
        dropped = []  # what their ends call must not run under the guard
        with self._guard:
            dropped.append(self._entries.pop(key, None))
            self._entries[key] = value
            while len(self._entries) > self._limit():
                dropped.append(self._entries.pop(next(iter(self._entries))))

    def clear(self) -> None:
        with self._guard:
            dropped, self._entries = self._entries, {}
        dropped.clear()
