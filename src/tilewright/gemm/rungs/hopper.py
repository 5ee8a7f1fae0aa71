"""The 16-bit rungs that multiply by Hopper's wgmma: four warps as one, both operands from shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from ...arrays.dtypes import FP8
from ...jit.source import Constant
from ..config import WgmmaConfig, over
from ..problem import GemmProblem
from ..rung import Rung, vector_out
from .tensor import (
    HALVES,
    SHARED_OF_AN_SM,
    constants,
    copy_reasons,
    first_reason,
    power_of_two,
    reads,
    stages_reason,
    tiles,
)

WGMMA_N = (64, 128, 192, 256)
"""How wide wgmma's products are here; they are 64 rows high, and 16 deep."""


def sums_constants(config: WgmmaConfig, problem: GemmProblem, registers: int, kept: int) -> dict[str, Constant]:
    """Return what tile/wgmma_sums.cuh is compiled for. `registers`: of a thread; `kept`: what of them the main loop
    needs."""
    sums = config.warp_m * config.warp_n // 32
    return {
        "whole_eights": vector_out(problem) and problem.n % 8 == 0 and problem.out_dtype not in FP8,
        "free_registers": min(registers, 255) - sums - kept,
    }


def _wgmma_constants(config: WgmmaConfig, problem: GemmProblem) -> dict[str, Constant]:
    found = constants(config, problem)
    edge = found["a_edge"] or found["b_edge"] or problem.m % config.tile_m or problem.n % config.tile_n
    registers = 65536 // (config.threads * config.min_blocks)
    return found | sums_constants(config, problem, registers, 90 if edge else 28)


def _check_wgmma(config: WgmmaConfig, problem: GemmProblem) -> str | None:
    def reasons() -> Iterator[str | None]:
        yield from copy_reasons(config, problem, panel=8)
        yield stages_reason(config, 3 if config.min_blocks == 1 else 2, 8)
        if config.warp_n not in WGMMA_N:
            yield f"a product is one of {WGMMA_N} columns wide; warp_n is {config.warp_n}"
        if config.tile_n % config.warp_n:
            yield f"tile_n={config.tile_n} is not a multiple of warp_n={config.warp_n}"
        if config.warp_m % 16 or config.tile_m % (4 * config.warp_m):
            yield f"tile_m={config.tile_m} is not a multiple of 4 x warp_m={config.warp_m}, or that not of 64"
        yield power_of_two("a block's threads", config.threads, 128)

    return first_reason(reasons())


_WGMMA = WgmmaConfig(128, 256, 64, warp_m=16, warp_n=256, stages=4, group_m=8)


def _wgmma_space() -> tuple[WgmmaConfig, ...]:
    """Block and warpgroup tiles x depth x stages, largest first."""
    shapes = (
        # tile_m, tile_n, warp_m, warp_n, min_blocks
        (128, 256, 16, 256, 1), (256, 128, 16, 128, 1), (256, 128, 32, 128, 1), (128, 192, 16, 192, 1),
        (128, 128, 16, 128, 1), (128, 128, 16, 128, 2), (128, 128, 32, 128, 2), (64, 256, 16, 256, 1),
        (64, 256, 16, 128, 2), (256, 64, 16, 64, 2), (64, 192, 16, 192, 1), (64, 192, 16, 192, 2),
        (64, 128, 16, 128, 1), (128, 64, 16, 64, 1), (64, 128, 16, 128, 2), (128, 64, 16, 64, 2),
        (128, 64, 16, 64, 3), (64, 128, 16, 128, 3), (64, 64, 16, 64, 1), (64, 64, 16, 64, 2), (64, 64, 16, 64, 4),
    )  # fmt: skip
    return tuple(
        config
        for config in over(WgmmaConfig, shapes, product((32, 64, 128), (3, 4, 5, 6, 8)))
        if (2 * config.held + 1024) * config.min_blocks <= SHARED_OF_AN_SM
    )


def _rung(id: str, teaches: str, stays: bool = False) -> Rung:
    return Rung(
        id, teaches, f"gemm/{id}.cuh", HALVES, _WGMMA, _wgmma_space, tiles, _check_wgmma, vector_bytes=16,
        dynamic_shared=True, overlaps=True, own_constants=_wgmma_constants, reads=reads, levels=("split_k",),
        only_on="sm_90a", warpgroups=True, stays=stays, one_chain=True,
    )  # fmt: skip


HOPPER_RUNGS: tuple[Rung, ...] = (
    _rung("h12_wgmma", "wgmma: warpgroups multiply straight from shared memory, asynchronously: no fragments"),
    _rung("h13_persistent", "blocks stay: the first copies of the next tile run during this one's stores", stays=True),
)
