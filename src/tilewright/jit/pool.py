"""Device memory that is given back and taken again: cuMemAlloc and cuMemFree take longer than a small product."""

from __future__ import annotations

import threading
from collections.abc import Callable

from . import limits


class Pool:
    """Blocks of one GPU's memory, by their sizes rounded up. A block is given back when nothing uses it any more."""

    def __init__(self, allocate: Callable[[int], int], free: Callable[[int], None]) -> None:
        self._allocate, self._free = allocate, free
        self._idle: dict[int, list[int]] = {}
        self._sizes: dict[int, int] = {}
        """The sizes of the blocks that are out."""
        self._idle_bytes = 0
        self._guard = threading.Lock()

    def take(self, nbytes: int) -> int:
        """The address of at least `nbytes`, not initialised. Raises what allocating raises."""
        size = rounded(nbytes)
        with self._guard:
            idle = self._idle.get(size)
            if idle:
                address = idle.pop()
                self._idle_bytes -= size
                self._sizes[address] = size
                return address
        address = self._allocate(size)
        with self._guard:
            self._sizes[address] = size
        return address

    def give_back(self, address: int) -> None:
        with self._guard:
            size = self._sizes.pop(address)
            if self._idle_bytes + size <= limits.pool_bytes():
                self._idle.setdefault(size, []).append(address)
                self._idle_bytes += size
                return
        self._free(address)

    def forget(self, address: int) -> None:
        """Let a block go that the caller frees. Without the lock: a finalizer may run while this thread has it."""
        self._sizes.pop(address)


def rounded(nbytes: int) -> int:
    """The size of the block that holds `nbytes`: 512 bytes, or that times a power of two or half as much again."""
    if nbytes <= 512:
        return 512
    size = 1 << (nbytes - 1).bit_length()
    return size // 4 * 3 if nbytes <= size // 4 * 3 else size
