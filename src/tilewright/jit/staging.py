"""Blocks of pinned host memory, each with one of a GPU's memory: small arrays go there and back through them.

A copy from pinned memory is queued and not waited for, and one copy of all operands costs what one copy of each does.
"""

from __future__ import annotations

from typing import NamedTuple

from .device import bound_to, check, driver, outside_captures

SIZE = 256 << 10
"""Bytes of a block. The driver copies larger arrays as fast by itself."""
KEPT = 8
"""Blocks of a GPU that stay for the next call: one per thread that calls at once."""


class Block(NamedTuple):
    """Addresses of SIZE bytes each."""

    host: int
    there: int


_idle: dict[int, list[Block]] = {}


def take(ordinal: int) -> Block:
    """A block for the caller alone, not initialised. Raises DeviceError where memory is short."""
    try:
        return _idle[ordinal].pop()
    except (KeyError, IndexError):
        pass
    api = driver()
    with bound_to(ordinal), outside_captures():
        host = int(check(api.cuMemHostAlloc(SIZE, 0), f"allocating {SIZE} B of pinned memory"))
        try:
            return Block(host, int(check(api.cuMemAlloc(SIZE), f"allocating {SIZE} B on GPU {ordinal}")))
        except BaseException:
            api.cuMemFreeHost(host)
            raise


def give_back(ordinal: int, block: Block) -> None:
    """Give a block back that no copy and no kernel uses any more."""
    idle = _idle.setdefault(ordinal, [])
    if len(idle) < KEPT:
        idle.append(block)
        return
    with bound_to(ordinal), outside_captures():
        check(driver().cuMemFreeHost(block.host), "freeing pinned memory")
        check(driver().cuMemFree(block.there), "freeing device memory")
