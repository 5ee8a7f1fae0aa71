"""The elements that each lane holds of a matrix that a warp works on together.

Every fragment is made of pieces that all 32 lanes hold one register of. With g = lane / 4, t = lane % 4 and e elements
to a register (4 of 8 bits, 2 of 16, 1 of 32 or 64):

    A (m x k)        piece 8 x 4e    lane holds (g, e t .. e t + e - 1)    pieces go down m first, then along k
    B (k x n)        piece 4e x 8    lane holds (e t .. e t + e - 1, g)    pieces go down k first, then along n
    C and D (m x n)  piece 8 x 8     lane holds (g, 2 t .. 2 t + 1)        pieces go down m first, then along n

For mma.sync these are the PTX manual's figures. For wmma, whose layout is unspecified, the same maps serve; fp16's A
and B repeat their pieces until eight registers are full. A matrix of ldmatrix is a piece of A with e = 2.

Registers are given as [registers, 32 x warps]. Matrices have the warps last, so that NumPy's inner loops run over them.
"""

from __future__ import annotations

import numpy as np

LANE = np.arange(32)
G, T = LANE // 4, LANE % 4


def _elements(words: np.ndarray, size: int, *pieces: int) -> np.ndarray:
    """Registers as unsigned integers of `size` bytes: [*pieces, warps, g, t, e]."""
    return words.reshape(*pieces, -1, 8, 4, 1).view(f"u{size}")


def a_matrix(words: np.ndarray, m: int, size: int) -> np.ndarray:
    """A's elements of `size` bytes, [k, m, 1, warps], from its registers."""
    parts = _elements(words, size, len(words) * 8 // m, m // 8)
    return parts.transpose(0, 4, 5, 1, 3, 2).reshape(-1, m, 1, words.shape[1] // 32)


def b_matrix(words: np.ndarray, n: int, size: int) -> np.ndarray:
    """B's elements, [k, 1, n, warps]."""
    parts = _elements(words, size, n // 8, len(words) * 8 // n)
    return parts.transpose(1, 4, 5, 0, 3, 2).reshape(-1, 1, n, words.shape[1] // 32)


def d_matrix(words: np.ndarray, m: int, n: int, size: int) -> np.ndarray:
    """The elements of C or D, [m, n, warps]: two registers a piece, for elements of 16 bits one."""
    if size == 2:
        parts = _elements(words, size, n // 8, m // 8).transpose(1, 3, 0, 4, 5, 2)
    else:
        parts = words.reshape(n // 8, m // 8, 2, -1, 8, 4).transpose(1, 4, 0, 5, 2, 3)
    return parts.reshape(m, n, words.shape[1] // 32)


def d_registers(matrix: np.ndarray) -> np.ndarray:
    """The inverse of d_matrix."""
    m, n, warps = matrix.shape
    parts = matrix.reshape(m // 8, 8, n // 8, 4, 2, warps)
    if matrix.itemsize == 2:
        held = np.ascontiguousarray(parts.transpose(2, 0, 5, 1, 3, 4)).view(np.uint32)
        return held.reshape(-1, 32 * warps)
    return parts.transpose(2, 0, 4, 5, 1, 3).reshape(-1, 32 * warps)


def neighbours(m: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """(row, column) of the two elements of C or D that each lane holds of each piece: [pieces, 32, 2]."""
    piece = np.arange(m // 8 * (n // 8))[:, None, None]
    part = np.arange(2)
    row = 8 * (piece % (m // 8)) + G[:, None] + 0 * part
    return row, 8 * (piece // (m // 8)) + 2 * T[:, None] + part


# m8n8k4 of fp16 is four products of 8 x 8 x 4: lanes 4 q to 4 q + 3 and those 16 on work on number q. What is the warp
# above is here one of the 4 x warps products.


def _quads(words: np.ndarray) -> np.ndarray:
    """[registers, lanes] -> [registers, warps, upper half, product, lane of 4]."""
    return words.reshape(len(words), -1, 2, 4, 4)


def quad_factor(words: np.ndarray, inner: bool) -> np.ndarray:
    """A's or B's fp16 elements from their two registers, as bits [k, 8, products].

    inner: a lane holds four k of one row of A or column of B; else its four elements are of one k.
    """
    parts = _quads(words)[..., None].view(np.uint16)  # [2, warps, half, q, lane, 2]
    if inner:  # row 4 half + lane
        return parts.transpose(0, 5, 2, 4, 1, 3).reshape(4, 8, -1)
    return parts.transpose(4, 2, 0, 5, 1, 3).reshape(4, 8, -1)  # k = lane, row 4 half + element


def quad_matrix(words: np.ndarray) -> np.ndarray:
    """C or D, [8, 8, products], of fp32 (eight registers) or fp16 (four)."""
    parts = _quads(words)
    if len(words) == 4:  # row 4 half + lane, columns by register
        halves = parts[..., None].view(np.uint16)
        return halves.transpose(2, 4, 0, 5, 1, 3).reshape(8, 8, -1)
    # register 4 c + 2 r + p, lane 2 q + s: row 4 half + 2 r + s, column 4 c + 2 q + p
    split = parts.reshape(2, 2, 2, -1, 2, 4, 2, 2)  # c r p . half product q s
    return split.transpose(4, 1, 7, 0, 6, 2, 3, 5).reshape(8, 8, -1)


def quad_registers(matrix: np.ndarray) -> np.ndarray:
    """The inverse of quad_matrix."""
    warps = matrix.shape[2] // 4
    if matrix.itemsize == 2:
        parts = matrix.reshape(2, 4, 4, 2, warps, 4).transpose(2, 4, 0, 5, 1, 3)
        return np.ascontiguousarray(parts).view(np.uint32).reshape(4, 32 * warps)
    split = matrix.reshape(2, 2, 2, 2, 2, 2, warps, 4)  # half r s c q p . product
    return split.transpose(3, 1, 5, 6, 0, 7, 4, 2).reshape(8, 32 * warps)
