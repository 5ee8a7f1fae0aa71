"""Which lane holds which element of a matrix that a warp works on together: pure lane maps.

Every fragment is made of pieces that all 32 lanes hold one register of. With g = lane / 4, t = lane % 4 and e elements
to a 32-bit register (2 of 16 bits, 1 of 32):

    A (m x k)        piece 8 x 4e    lane holds (g, e t .. e t + e - 1)    pieces go down m first, then along k
    B (k x n)        piece 4e x 8    lane holds (e t .. e t + e - 1, g)    pieces go down k first, then along n
    C and D (m x n)  piece 8 x 8     lane holds (g, 2 t .. 2 t + 1)        pieces go down m first, then along n

For mma.sync these are the PTX manual's figures. For wmma, whose layout is unspecified, the same maps serve; fp16's A
and B repeat their pieces until eight registers are full. A matrix of ldmatrix is a piece of A with e = 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

_LANE = np.arange(32)
G, T = _LANE // 4, _LANE % 4


@dataclass(frozen=True, eq=False)
class Fragment:
    """One operand: element `part` of register `r` of lane `l` is (row[r, l, part], col[r, l, part])."""

    rows: int
    cols: int
    row: np.ndarray
    col: np.ndarray
    order: np.ndarray
    """Position of every element of the matrix, row by row, in the flat (register, lane, part)."""

    @property
    def registers(self) -> int:
        """Registers a lane, without repeats."""
        return len(self.row)

    def matrix(self, registers: np.ndarray) -> np.ndarray:
        """[warps, registers, 32, parts] -> [warps, rows, cols]."""
        flat = registers.reshape(len(registers), -1)
        return flat[:, self.order].reshape(-1, self.rows, self.cols)

    def split(self, matrix: np.ndarray) -> np.ndarray:
        """[warps, rows, cols] -> [warps, registers, 32, parts]."""
        return matrix[:, self.row, self.col]


def _fragment(rows: int, cols: int, row: np.ndarray, col: np.ndarray) -> Fragment:
    return Fragment(rows, cols, row, col, np.argsort((row * cols + col).reshape(-1)))


def _places(pieces: int, parts: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(piece, g, t, part), each broadcast to [pieces, 32, parts]."""
    shape = (pieces, 32, parts)
    piece, part = np.arange(pieces)[:, None, None], np.arange(parts)[None, None, :]
    values = (piece, G[None, :, None], T[None, :, None], part)
    return tuple(np.broadcast_to(value, shape) for value in values)  # type: ignore[return-value]


@lru_cache(maxsize=64)
def a_fragment(m: int, k: int, bits: int) -> Fragment:
    """A, m x k, of elements of 16 or 32 bits."""
    e, down = 32 // bits, m // 8
    piece, g, t, part = _places(down * (k // (4 * e)), e)
    return _fragment(m, k, 8 * (piece % down) + g, 4 * e * (piece // down) + e * t + part)


@lru_cache(maxsize=64)
def b_fragment(k: int, n: int, bits: int) -> Fragment:
    """B, k x n, of elements of 16 or 32 bits."""
    e = 32 // bits
    down = k // (4 * e)
    piece, g, t, part = _places(down * (n // 8), e)
    return _fragment(k, n, 4 * e * (piece % down) + e * t + part, 8 * (piece // down) + g)


@lru_cache(maxsize=64)
def d_fragment(m: int, n: int, bits: int) -> Fragment:
    """C or D, m x n: two registers a piece for 32 bits, one for 16."""
    down = m // 8
    piece, g, t, part = _places(down * (n // 8), 2)
    row, col = 8 * (piece % down) + g, 8 * (piece // down) + 2 * t + part
    if bits == 32:
        row, col = (np.moveaxis(x, 2, 1).reshape(-1, 32, 1) for x in (row, col))
    return _fragment(m, n, row, col)
