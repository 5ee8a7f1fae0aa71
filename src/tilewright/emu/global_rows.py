"""Where a bulk copy touches global memory."""

from __future__ import annotations

import numpy as np


class Rows:
    """Rows of `nbytes` that a bulk copy of one lane reads or writes, from absolute addresses; stands for a pattern."""

    __slots__ = ("lanes", "nbytes", "starts", "unique")

    def __init__(self, lane: int, starts: np.ndarray, nbytes: int) -> None:
        self.starts, self.nbytes = starts, nbytes
        self.lanes = np.array([lane])
        self.unique = True

    @classmethod
    def of(cls, lane: int, addresses: np.ndarray, size: int) -> Rows:
        """Elements of `size` bytes, put together where they lie in a row."""
        return cls(lane, *in_rows(addresses, size))


def in_rows(addresses: np.ndarray, size: int) -> tuple[np.ndarray, int]:
    """Return where rows of elements begin that lie next to one another, and their bytes: all of one length."""
    edges = np.flatnonzero(np.diff(addresses) != size) + 1
    lengths = np.diff(edges, prepend=0, append=len(addresses))
    if (lengths == lengths[0]).all():
        return addresses[np.append(0, edges)], int(lengths[0]) * size
    return addresses, size
