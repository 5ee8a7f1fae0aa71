"""fp8 products in float64, and what wgmma's rule may lose of them."""

from __future__ import annotations

import ml_dtypes
import numpy as np

E4M3, E5M2 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)
BLOCK = 128
STEP = 32
"""Products that one wgmma of fp8 adds up at once."""
CUT = 2.0**-13
"""A term keeps 13 bits below the largest exponent of the step, and the sum 13 bits after its first."""


def normal(shape: tuple[int, ...], dtype: np.dtype = E4M3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(sum(shape) + seed).standard_normal(shape).astype(dtype)


def scales(*shape: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(sum(shape) + seed + 7)
    return (np.exp2(rng.integers(-3, 4, shape)) * rng.uniform(0.5, 2, shape)).astype(np.float32)


def spread(scale: np.ndarray | float | None, of: str, rows: int, cols: int) -> np.ndarray:
    """A scale for each element of an operand of rows x cols."""
    if scale is None:
        return np.ones((rows, cols))
    scale = np.asarray(scale, np.float64)
    lines = (rows, 1) if of == "a" else (1, cols)
    if scale.ndim == 0 or scale.shape[-2:] in ((1, 1), lines):
        return np.broadcast_to(scale, (*scale.shape[:-2], rows, cols))
    wide = np.repeat(scale, BLOCK, -1)[..., :cols]
    return wide if of == "a" else np.repeat(wide, BLOCK, -2)[..., :rows, :]


def dequantised(values: np.ndarray, scale: np.ndarray | float | None, of: str) -> np.ndarray:
    return values.astype(np.float64) * spread(scale, of, *values.shape[-2:])


def product(a: np.ndarray, b: np.ndarray, a_scale=None, b_scale=None) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return dequantised(a, a_scale, "a") @ dequantised(b, b_scale, "b")


def most_lost(a: np.ndarray, b: np.ndarray, chain: int = BLOCK) -> np.ndarray:
    """What wgmma may lose of each element of a @ b where sums of `chain` of k are its own.

    Each of the 32 terms of a step and the sum so far lose less than 2^-13 of a power of two that the largest of them
    reaches; the result loses as much of itself once more.
    """
    left, right = np.abs(a.astype(np.float64)), np.abs(b.astype(np.float64))
    lost = np.zeros((a.shape[0], b.shape[1]))
    for first in range(0, a.shape[1], chain):
        sums = np.zeros_like(lost)
        for k in range(first, min(first + chain, a.shape[1]), STEP):
            terms = left[:, k : k + STEP, None] * right[None, k : k + STEP]
            largest = np.maximum(terms.max(axis=1), sums)
            sums = sums + terms.sum(axis=1)
            lost += (STEP + 1) * CUT * largest + CUT * sums
    return lost


def laid(rng, shape, dtype):
    """Random numbers, as a view that lies by rows, by columns, with room between lines or elements, or backwards."""
    *batch, rows, cols = shape
    how = rng.choice(["rows", "columns", "room", "apart", "backwards", "shared"])
    if how == "columns":
        x = np.empty((*batch, cols, rows), dtype).swapaxes(-1, -2)
    elif how == "room":
        x = np.empty((*batch, rows, cols + int(rng.integers(1, 9))), dtype)[..., :cols]
    elif how == "apart":
        x = np.empty((*batch, rows, 2 * cols), dtype)[..., ::2]
    elif how == "backwards":
        x = np.empty((*batch, rows, cols), dtype)[..., ::-1, :]
    else:
        x = np.empty((*batch, rows, cols), dtype)
    x[...] = rng.standard_normal(shape).astype(dtype)
    return np.broadcast_to(x[:1], shape) if how == "shared" and batch and shape[0] else x
