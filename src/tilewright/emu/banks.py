"""Shared-memory bank conflicts: pure functions of the addresses of a warp. This file is the definition of the rule.

Shared memory has 32 banks of one 32-bit word; word w lies in bank w mod 32. A wavefront serves every bank once, and any
number of lanes that want the same word. A warp's request is split into groups of lanes, each served apart, and a group
takes as many wavefronts as its busiest bank holds distinct words:

    bytes per lane     groups
    1, 2, 4          the warp
    8                two half-warps; of a load the warp, if its lanes pair up
    16               four quarter-warps; of a load the two of a half merge, if the lanes of that half pair up

Lanes pair up when, for d = 1 or for d = 2, every active lane i finds lane i^d inactive or at the same address. Stores
never merge, nor do the eight rows of 16 bytes that make one matrix of ldmatrix.

An asynchronous copy (cp.async) of 4 or 8 bytes takes as many wavefronts as its busiest bank has lanes, duplicates
included. One of 16 bytes takes one for each 128 bytes, wherever they go.

Measured on an H200 with Nsight Compute: tests/emu/data/shared_wavefronts_h200.json. Every row of loads, stores,
ldmatrix and copies of 4 and 16 bytes is reproduced, all with 32 active lanes and, for copies, a source of whole lines.
Widths of 1 and 2 bytes, copies of 8 bytes and inactive lanes follow the same rule unmeasured.
"""

from __future__ import annotations

import numpy as np

BANKS = 32
WORD = 4
WARP = 32


def _degrees(words: np.ndarray, active: np.ndarray) -> np.ndarray:
    """Wavefronts of each row: words [n, k] (int64), active [n, k] -> the most distinct words in one bank, [n]."""
    n = len(words)
    fresh = np.sort(np.where(active, words, -1), axis=1)
    new = fresh >= 0
    new[:, 1:] &= fresh[:, 1:] != fresh[:, :-1]
    rows, columns = np.nonzero(new)
    cells = rows * BANKS + fresh[rows, columns] % BANKS
    return np.bincount(cells, minlength=n * BANKS).reshape(n, BANKS).max(axis=1, initial=0)


def _distinct(words: np.ndarray, active: np.ndarray) -> np.ndarray:
    fresh = np.sort(np.where(active, words, -1), axis=1)
    new = fresh >= 0
    new[:, 1:] &= fresh[:, 1:] != fresh[:, :-1]
    return new.sum(axis=1)


def _paired(addresses: np.ndarray, active: np.ndarray) -> np.ndarray:
    """[n, k] -> [n]: do the lanes of each row pair up, at distance 1 or at distance 2?"""
    lane = np.arange(addresses.shape[1])
    ok = np.zeros(len(addresses), bool)
    for distance in (1, 2):
        other = lane ^ distance
        agree = ~active | ~active[:, other] | (addresses == addresses[:, other])
        ok |= agree.all(axis=1)
    return ok


def _copy(addresses: np.ndarray, nbytes: int, active: np.ndarray) -> np.ndarray:
    """The shared side of cp.async."""
    if nbytes == 16:
        return -(-active.sum(axis=1) * nbytes // (BANKS * WORD))
    n = len(addresses)
    words = addresses[:, :, None] // WORD + np.arange(max(nbytes // WORD, 1))
    rows = np.broadcast_to(np.arange(n)[:, None, None], words.shape)
    chosen = np.broadcast_to(active[:, :, None], words.shape)
    cells = (rows * BANKS + words % BANKS)[chosen]
    return np.bincount(cells, minlength=n * BANKS).reshape(n, BANKS).max(axis=1, initial=0)


def wavefronts(
    addresses: np.ndarray, nbytes: int, active: np.ndarray | None = None, access: str = "load"
) -> np.ndarray:
    """Wavefronts of each warp's request to shared memory.

    addresses: byte addresses in the block's shared memory, integers, [n, 32], each a multiple of `nbytes`.
    nbytes: bytes per lane: 1, 2, 4, 8 or 16. active: bool [n, 32]; None means all.
    access: "load", "store", "matrix" (ldmatrix: 16 bytes per lane) or "copy" (the shared side of cp.async).
    Returns int64 [n]; 0 for a warp with no active lane. Raises ValueError for another width or access.
    """
    if access not in ("load", "store", "matrix", "copy"):
        raise ValueError(f"access {access!r} is not one of load, store, matrix, copy")
    if nbytes not in (1, 2, 4, 8, 16):
        raise ValueError(f"an access of {nbytes} bytes a lane does not exist; a lane moves 1, 2, 4, 8 or 16 bytes")
    addresses = np.asarray(addresses, np.int64)
    active = np.ones(addresses.shape, bool) if active is None else np.asarray(active, bool)
    if access == "copy":
        return _copy(addresses, nbytes, active)
    words = addresses[:, :, None] // WORD + np.arange(max(nbytes // WORD, 1))

    def cost(lanes: slice, rows: np.ndarray) -> np.ndarray:
        out = np.zeros(len(addresses), np.int64)
        if rows.any():
            chosen = words[rows, lanes]
            mask = np.broadcast_to(active[rows, lanes, None], chosen.shape)
            out[rows] = _degrees(chosen.reshape(len(chosen), -1), mask.reshape(len(chosen), -1))
        return out

    everything = np.ones(len(addresses), bool)
    if nbytes <= WORD:
        return cost(slice(0, WARP), everything)
    whole = WARP if nbytes == 8 else WARP // 2
    total = np.zeros(len(addresses), np.int64)
    for start in range(0, WARP, whole):
        lanes = slice(start, start + whole)
        merged = _paired(addresses[:, lanes], active[:, lanes]) & (access == "load")
        total += cost(lanes, merged)
        middle = start + whole // 2
        total += cost(slice(start, middle), ~merged) + cost(slice(middle, start + whole), ~merged)
    return total


def ideal(addresses: np.ndarray, nbytes: int, active: np.ndarray | None = None) -> np.ndarray:
    """The fewest wavefronts that could carry the distinct bytes asked for: ceil(distinct words * 4 / 128), [n].

    Arguments as for `wavefronts`; at least 1 for a warp with an active lane.
    """
    addresses = np.asarray(addresses, np.int64)
    active = np.ones(addresses.shape, bool) if active is None else np.asarray(active, bool)
    words = addresses[:, :, None] // WORD + np.arange(max(nbytes // WORD, 1))
    mask = np.broadcast_to(active[:, :, None], words.shape)
    n = len(addresses)
    return -(-_distinct(words.reshape(n, -1), mask.reshape(n, -1)) // BANKS)
