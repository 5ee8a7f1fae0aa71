"""The kernel that copies rows of 16-bit elements to other strides, padded with zeros: data, as a rung is."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ..gemm.rung import ceil_div
from ..gpus import Arch
from ..jit import CompiledKernel, Launch, compile_rung

_ARGS = struct.Struct("<2Q8q3i4x")  # cuda/copy/rows.cuh declares the same struct; a test holds them equal
_THREADS = 256


@dataclass(frozen=True)
class StridedRows:
    """[batch, heads, rows, columns] in memory; strides in elements."""

    batch_stride: int
    head_stride: int
    row_stride: int
    col_stride: int = 1


def compile_copy(arch: Arch) -> CompiledKernel:
    return compile_rung("copy/rows.cuh", {"threads": _THREADS}, "copy_rows", arch.name)


def plan_copy(
    source: int, given: StridedRows, target: int, wanted: StridedRows,
    batch: int, heads: int, rows: int, given_cols: int, wanted_cols: int,
) -> Launch:  # fmt: skip
    """The launch that makes `wanted_cols` columns at `target`, zeros from `given_cols` on."""
    params = _ARGS.pack(
        source, target, given.batch_stride, given.head_stride, given.row_stride, given.col_stride,
        wanted.batch_stride, wanted.head_stride, wanted.row_stride, wanted.col_stride, rows, given_cols, wanted_cols,
    )  # fmt: skip
    return Launch((ceil_div(rows * wanted_cols, _THREADS) * batch, heads, 1), (_THREADS, 1, 1), params)
