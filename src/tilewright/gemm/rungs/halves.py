"""Rungs that multiply fp32 operands as scaled fp16 numbers on Hopper: one per element for tf32, two for fp32x3.

A launch of its own makes them (cuda/gemm/halve.cuh); the products are those of rungs/tma.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from ...arrays.dtypes import ceil_div
from ...jit.source import Constant
from ...jit.tensor_map import TensorMap
from ..config import WgmmaConfig
from ..problem import GemmProblem, Matrix
from ..rung import UNITS, Rung
from . import tma, tma_tensors
from .tensor import SHARED_OF_AN_SM, first_reason, tiles
from .tensor32 import MOST_BORROWED

STRETCH = 32
"""Elements of k whose sum is made by tensor cores alone, before it is added with its rounding's error kept."""
_HEAD = 256
"""Bytes of Halved's origin (cuda/tile/halved.cuh)."""
_LINE = 8
"""Bytes of a HalvedLine."""


def pitch_of(k: int) -> int:
    """Elements from one line of parts to the next: whole 16 bytes."""
    return ceil_div(k, 8) * 8


def halved_bytes(parts: int, lines: int, k: int, copies: int) -> int:
    """The bytes of an operand as scaled halves, all entries of the batch (cuda/tile/halved.cuh)."""
    slots = ceil_div(2 * copies * parts * lines * pitch_of(k), _HEAD) * _HEAD
    return slots + _HEAD + _LINE * copies * lines


def halved_matrix(name: str, parts: int, lines: int, k: int, batched: bool) -> Matrix:
    """Return how the first part of operand `name` lies, in halves."""
    pitch = pitch_of(k)
    step = parts * lines * pitch if batched else 0
    return Matrix(pitch, 1, step, padded=True) if name == "a" else Matrix(1, pitch, step, padded=True)


def _as_halves(parts: int, problem: GemmProblem) -> GemmProblem:
    """The product as the kernels of TMA meet it, whether its operands are halves yet or not."""
    a, b = problem.a.batch_stride != 0, problem.b.batch_stride != 0
    return replace(
        problem, dtype="f16", precision="ieee", a=halved_matrix("a", parts, problem.m, problem.k, a),
        b=halved_matrix("b", parts, problem.n, problem.k, b),
    )  # fmt: skip


def _operand_map(name: str, parts: int, config: WgmmaConfig, problem: GemmProblem) -> TensorMap | None:
    """Boxes of one panel of a tile's lines; the third index is the part, of each entry of a batch."""
    if problem.k == 0:
        return None
    lines, extent, sharing = (
        (problem.m, config.tile_m, config.cluster_n) if name == "a" else (problem.n, config.tile_n, config.cluster_m)
    )
    pitch, panel = 2 * pitch_of(problem.k), tma_tensors.panel_of(config.tile_k)
    shape: tuple[int, ...] = (problem.k, lines)
    strides: tuple[int, ...] = (pitch,)
    box: tuple[int, ...] = (panel, extent // sharing)
    if (planes := parts * (problem.batch if tma_tensors.batched(name, problem) else 1)) > 1:
        shape, strides, box = (*shape, planes), (*strides, lines * pitch), (*box, 1)
    return TensorMap(None, "f16", shape, strides, box, swizzle=2 * panel)


def _of(parts: int) -> Rung:
    """The rung whose elements have so many parts."""

    def shared(config: WgmmaConfig, problem: GemmProblem) -> int:
        return tma.shared_of(config, problem) + (parts - 1) * tiles(config, problem)

    def constants(config: WgmmaConfig, problem: GemmProblem) -> dict[str, Constant]:
        found = tma.constants_of(config, _as_halves(parts, problem))
        found |= {"alone": 2 * shared(config, problem) > SHARED_OF_AN_SM}
        found |= {f"{name}_batched": tma_tensors.batched(name, problem) for name in "ab"}
        if parts == 2:
            free = int(found["free_registers"]) - 2 * config.warp_m * config.warp_n // 32
            found |= {"stretch": min(STRETCH, config.tile_k), "free_registers": free}
        return found | {"a_unit": UNITS["col"], "b_unit": UNITS["row"], "walks_batch": False}

    def maps(config: WgmmaConfig, problem: GemmProblem) -> dict[str, TensorMap | None]:
        found = {name: _operand_map(name, parts, config, problem) for name in "ab"}
        return found | {"out": tma_tensors.out_map(config, problem)}

    def check(config: WgmmaConfig, problem: GemmProblem) -> str | None:
        def reasons() -> Iterator[str | None]:
            yield tma.check_tiles(config, _as_halves(parts, problem))
            if config.cluster > 2:
                yield f"a cluster is at most two blocks; the config has {config.cluster_m} x {config.cluster_n}"
            if parts == 2 and (config.warp_m != 16 or config.warp_n > 128):
                of_group = f"{4 * config.warp_m} x {config.warp_n}"
                yield f"a warpgroup holds three sums of 64 x 128 or less; the config has {of_group}"
            borrowed = sum(
                halved_bytes(parts, lines, problem.k, problem.batch if tma_tensors.batched(name, problem) else 1)
                for name, lines in (("a", problem.m), ("b", problem.n))
            )
            if borrowed > MOST_BORROWED:
                yield f"its operands as halves are {borrowed} B; at most {MOST_BORROWED} are borrowed"

        return first_reason(reasons())

    def space() -> tuple[WgmmaConfig, ...]:
        default = _DEFAULTS[parts]
        return tuple(
            config
            for (tile_m, tile_n), tile_k, stages, staged, (cluster_m, cluster_n) in product(
                _TILES[parts], (32, 64) if parts == 2 else (64,), (2, 3, 4, 5, 6), (1, 2), ((1, 1), (2, 1), (1, 2))
            )
            if shared(
                config := replace(default, tile_m=tile_m, tile_n=tile_n, tile_k=tile_k, warp_n=tile_n, stages=stages,
                                  staged=staged, cluster_m=cluster_m, cluster_n=cluster_n),
                _ANY,
            ) + 1024 <= SHARED_OF_AN_SM
        )  # fmt: skip

    id, teaches = _TAUGHT[parts]
    return Rung(
        id, teaches, f"gemm/{id}.cuh", ("f32",), _DEFAULTS[parts], space, shared, check, vector_bytes=16,
        dynamic_shared=True, overlaps=True, own_constants=constants, precision="tf32" if parts == 1 else "fp32x3",
        splits=True, halves=parts, levels=("cluster_m", "cluster_n"), only_on="sm_90a", warpgroups=True, stays=True,
        loaders=tma.WARPGROUP, maps=maps, walks=lambda config, problem: 1,
    )  # fmt: skip


_ANY = GemmProblem.dense(64, 64, 64)
_DEFAULTS = {
    1: WgmmaConfig(128, 256, 64, warp_m=16, warp_n=256, stages=4, group_m=8, staged=2),
    2: WgmmaConfig(128, 128, 64, warp_m=16, warp_n=128, stages=3, group_m=8, staged=2),
}
_TILES = {
    1: ((128, 256), (128, 192), (128, 128), (128, 64)),
    2: ((128, 128), (128, 96), (128, 64), (64, 128)),
}
_TAUGHT = {
    1: (
        "t04_tf32_halves",
        "rows and columns scaled to fp16, which has tf32's bits: wgmma and TMA, at twice the rate of tf32",
    ),
    2: (
        "t05_fp32x3_pairs",
        "two scaled fp16 numbers an element: three products by wgmma, not six, and sums that keep their error",
    ),
}

HALVES_RUNGS: tuple[Rung, ...] = (_of(1), _of(2))
