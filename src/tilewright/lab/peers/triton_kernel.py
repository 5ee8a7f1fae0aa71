"""A persistent matmul in Triton, ours. Imported only where Triton is installed."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def matmul(
    a, b, out, m, n, k,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP_M: tl.constexpr, PROGRAMS: tl.constexpr,
    A_TURNED: tl.constexpr, B_TURNED: tl.constexpr,
):  # fmt: skip
    """out = A B by tensor descriptors of what lies in memory; A_TURNED, B_TURNED: that is the transpose.

    Each of PROGRAMS programs takes every PROGRAMS-th tile; tiles are walked GROUP_M rows together, so that the operands
    of those that run at once meet in L2.
    """
    rows, cols = tl.cdiv(m, TILE_M), tl.cdiv(n, TILE_N)
    for tile in tl.range(tl.program_id(0), rows * cols, PROGRAMS, flatten=True):
        group = tile // (GROUP_M * cols)
        height = min(rows - group * GROUP_M, GROUP_M)
        inside = tile % (GROUP_M * cols)
        row = (group * GROUP_M + inside % height) * TILE_M
        col = (inside // height) * TILE_N
        sums = tl.zeros((TILE_M, TILE_N), tl.float32)
        for step in range(tl.cdiv(k, TILE_K)):
            left = a.load([step * TILE_K, row]).T if A_TURNED else a.load([row, step * TILE_K])
            right = b.load([col, step * TILE_K]).T if B_TURNED else b.load([step * TILE_K, col])
            sums = tl.dot(left, right, sums, input_precision="ieee")
        out.store([row, col], sums.to(out.dtype))
