"""The roofline: what a GPU can give at an arithmetic intensity (Williams, Waterman, Patterson, CACM 52(4), 2009)."""

from __future__ import annotations

from dataclasses import dataclass

from ..arrays.dtypes import ITEM_BYTES
from ..gemm.problem import GemmProblem
from ..gpus import Gpu


@dataclass(frozen=True)
class Bound:
    """`tflops`: no kernel of this intensity (FLOP per byte of device memory) runs faster. `roof`: memory or compute."""

    intensity: float
    tflops: float
    roof: str


def peak_tflops(gpu: Gpu, dtype: str) -> float:
    """Dense peak of what multiplies `dtype`, or what GemmProblem.kind says (arch.Gpu.peak_tflops)."""
    return gpu.peak_tflops(dtype)


def bound(intensity: float, gpu: Gpu, peak_tflops: float | None = None) -> Bound:
    """min(peak, bandwidth x intensity). `peak_tflops` is the FFMA peak unless given."""
    peak = gpu.ffma_tflops if peak_tflops is None else peak_tflops
    memory = gpu.dram_gb_s * 1e-3 * intensity
    return Bound(intensity, min(peak, memory), "memory" if memory < peak else "compute")


def tiled_bytes(problem: GemmProblem, tile_m: int, tile_n: int) -> int:
    """Bytes that blocks of tile_m x tile_n ask of global memory: A once per column of tiles, B once per row, C, out.

    In fp32, with one element per block (tile 1 x 1) and C read this is GEMM-A's 0.25 FLOP/B, with 32 x 32 its 7.94.
    """
    columns, rows = -(-problem.n // tile_n), -(-problem.m // tile_m)
    moved = problem.m * problem.k * columns + problem.k * problem.n * rows
    moved *= ITEM_BYTES[problem.dtype]
    moved += problem.m * problem.n * (2 if problem.use_c else 1) * ITEM_BYTES[problem.out_dtype]
    return moved * problem.batch
