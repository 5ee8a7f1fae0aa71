"""Coalescing of global memory: pure functions of the addresses of a warp. This file is the definition of the rule.

Memory moves in sectors of 32 bytes. A warp's request asks for each distinct sector once, whatever the lanes' order.
"""

from __future__ import annotations

import numpy as np

SECTOR = 32


def sectors(addresses: np.ndarray, nbytes: int, active: np.ndarray | None = None) -> np.ndarray:
    """Distinct 32-byte sectors of each warp's request.

    addresses: byte addresses, integers, [n, 32]. nbytes: bytes per lane. active: bool [n, 32]; None means all.
    Returns int64 [n]; 0 for a warp with no active lane.
    """
    addresses = np.asarray(addresses, np.int64)
    active = np.ones(addresses.shape, bool) if active is None else np.asarray(active, bool)
    first = addresses // SECTOR
    last = (addresses + nbytes - 1) // SECTOR
    span = int((last - first).max(initial=0)) + 1
    touched = first[:, :, None] + np.arange(span)
    mask = active[:, :, None] & (touched <= last[:, :, None])
    flat = np.sort(np.where(mask, touched, -1).reshape(len(addresses), -1), axis=1)
    new = flat >= 0
    new[:, 1:] &= flat[:, 1:] != flat[:, :-1]
    return new.sum(axis=1)
