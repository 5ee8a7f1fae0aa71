"""The tensor-core GEMM rungs, in climbing order, as data: bf16 or fp16 in, fp32 accumulators, any of the three out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import Any

from ...arrays.dtypes import CPP_TYPES, ITEM_BYTES
from ...jit.source import Constant
from ..config import GemmConfig, MmaConfig, SimtConfig, over
from ..problem import GemmProblem, Matrix
from ..rung import Reading, Rung

SHAPES = ((16, 16), (32, 8), (8, 32))
"""The shapes of one wmma product, m x n; k is 16."""
SHARED_OF_AN_SM = 228 * 1024
"""Bytes on GPUs whose grids can overlap (sm_90): whether two blocks of h11 to h13 fit next to each other."""
_STAGING = 1024
"""Bytes of shared memory through which a warp of a wmma rung stores its results."""


def wide(matrix: Matrix, rows: int, cols: int, dtype: str) -> bool:
    """Return whether 16-byte accesses suit the matrix: its lines contiguous and each at a multiple of 16 bytes."""
    return matrix.readable(rows, cols, ITEM_BYTES[dtype], 16)


def ragged(matrix: Matrix, sizes: tuple[int, int], tiles: tuple[int, int]) -> bool:
    """Return whether copies of whole tiles would read what is not the operand's."""
    return bool(sizes[0] % tiles[0] or sizes[1] % tiles[1]) and not matrix.padded


@lru_cache(maxsize=256)
def reads(problem: GemmProblem) -> Reading:
    """See Rung.reads."""
    a_wide, b_wide, a_sectors, b_sectors, _ = problem.lines
    return Reading(_unless(a_wide, b_wide), _unless(a_sectors, b_sectors))


def _unless(a: bool, b: bool) -> tuple[str, ...]:
    return tuple(name for name, suits in (("a", a), ("b", b)) if not suits)


def constants(config: GemmConfig, problem: GemmProblem) -> dict[str, Constant]:
    a_sizes, b_sizes = (problem.m, problem.k), (problem.k, problem.n)
    a_wide, b_wide, a_sectors, b_sectors, _ = problem.lines
    return {
        "a_edge": not a_wide or ragged(problem.a, a_sizes, (config.tile_m, config.tile_k)),
        "b_edge": not b_wide or ragged(problem.b, b_sizes, (config.tile_k, config.tile_n)),
        "in_type": CPP_TYPES[problem.dtype],
        "a_wide": a_wide,
        "b_wide": b_wide,
        "a_sectors": a_sectors,
        "b_sectors": b_sectors,
        "fragment_sets": config.fragment_sets,
        "slices_k": config.slices_k,
        "alone": 2 * _ring(config, problem) > SHARED_OF_AN_SM,
    }


# --- shared memory of a block, in bytes ------------------------------------------------------------------------------


def tiles(config: GemmConfig, problem: GemmProblem) -> int:
    return 2 * config.held


def _tiles_or_staging(config: GemmConfig, problem: GemmProblem) -> int:
    """The results go where the tiles were."""
    return max(tiles(config, problem), config.threads // 32 * _STAGING)


def _ring(config: GemmConfig, problem: GemmProblem) -> int:
    """The sums of all slices but the first pass where the tiles were."""
    return max(tiles(config, problem), 4 * (config.slices_k - 1) * config.tile_m * config.tile_n)


def _staging(config: GemmConfig, problem: GemmProblem) -> int:
    return config.threads // 32 * _STAGING


# --- what a config must satisfy --------------------------------------------------------------------------------------


def first_reason(reasons: Iterator[str | None]) -> str | None:
    return next((reason for reason in reasons if reason), None)


def power_of_two(what: str, value: int, least: int) -> str | None:
    fits = value >= least and value & (value - 1) == 0
    return None if fits else f"{what} must be a power of two and at least {least}; it is {value}"


def _tile_reasons(config: GemmConfig, problem: GemmProblem) -> Iterator[str | None]:
    """Reasons of the copies (Copy16 in tile/copy16.cuh), whose steps from an address are sums of distinct bits."""
    yield power_of_two("tile_n", config.tile_n, 16)
    yield power_of_two("warp_n", config.warp_n, 8)
    yield from copy_reasons(config, problem)


def copy_reasons(config: GemmConfig, problem: GemmProblem, panel: int = 0) -> Iterator[str | None]:
    """The same, whatever tile_n is. `panel`: chunks of a line's part, where lines are cut into such."""
    yield power_of_two("tile_m", config.tile_m, 16)
    yield power_of_two("tile_k", config.tile_k, 16)
    yield power_of_two("warp_m", config.warp_m, 8)
    for name, tile, warp in (("m", config.tile_m, config.warp_m), ("n", config.tile_n, config.warp_n)):
        if warp > tile:
            yield f"warp_{name}={warp} is larger than tile_{name}={tile}"
    for name, extent, k_inner in (
        ("A", config.tile_m, problem.a.unit(problem.m, problem.k) != "row"),
        ("B", config.tile_n, problem.b.unit(problem.k, problem.n) == "row"),
    ):
        chunks = max((config.tile_k if k_inner else extent) // 8, 1)
        by_panel = panel and config.threads % panel == 0 and config.tile_k % (config.threads // panel) == 0
        if config.threads % chunks and not by_panel:
            yield f"{config.threads} threads do not divide a line of {chunks} 16-byte chunks of {name}'s tile"


def stages_reason(config: GemmConfig, least: int, most: int) -> str | None:
    if least <= config.stages <= most:
        return None
    wanted = f"{least} to {most} stages" if most > least else f"exactly {least}"
    return f"it needs {wanted}; the config has {config.stages}"


def _wmma(stages: int = 1, most: int = 0, sets: int = 1) -> Callable[[MmaConfig, GemmProblem], str | None]:
    def check(config: MmaConfig, problem: GemmProblem) -> str | None:
        shape = (config.warp_m // max(config.subtiles_m, 1), config.warp_n // max(config.subtiles_n, 1))
        return first_reason(
            iter((
                *_tile_reasons(config, problem),
                None if shape in SHAPES else f"a product of {shape[0]} x {shape[1]} is not one of wmma's: {SHAPES}",
                stages_reason(config, stages, most or stages),
                None if 1 <= config.fragment_sets <= sets else f"fragment_sets={config.fragment_sets}; 1 to {sets} fit",
            ))
        )  # fmt: skip

    return check


def _check_simt(config: SimtConfig, problem: GemmProblem) -> str | None:
    lanes_m = config.warp_m // (config.subtiles_m * config.thread_m)
    lanes_n = config.warp_n // (config.subtiles_n * config.thread_n)
    return first_reason(
        iter((
            *_tile_reasons(config, problem),
            None if lanes_m * lanes_n == 32 and lanes_m > 1 else f"a subtile takes {lanes_m} x {lanes_n} lanes, not 32",
            None if config.thread_m % 4 == 0 == config.thread_n % 4 else "thread_m and thread_n must be multiples of 4",
            stages_reason(config, 1, 1),
        ))
    )  # fmt: skip


def _check_naive(config: MmaConfig, problem: GemmProblem) -> str | None:
    if (config.warp_m, config.warp_n, config.tile_k) != (16, 16, 16):
        return f"a warp makes 16 x 16 in steps of 16; the config says {config}"
    return _wmma()(config, problem)


def _mma_reasons(config: MmaConfig, problem: GemmProblem, stages: tuple[int, int]) -> Iterator[str | None]:
    yield from _tile_reasons(config, problem)
    yield power_of_two("warp_m", config.warp_m, 16)
    yield power_of_two("warp_n", config.warp_n, 16)
    yield stages_reason(config, *stages)


def _mma(stages: int) -> Callable[[MmaConfig, GemmProblem], str | None]:
    def check(config: MmaConfig, problem: GemmProblem) -> str | None:
        return first_reason(_mma_reasons(config, problem, (stages, stages)))

    return check


def _check_multistage(config: MmaConfig, problem: GemmProblem) -> str | None:
    def reasons() -> Iterator[str | None]:
        yield from _mma_reasons(config, problem, (3, 5))
        yield power_of_two("slices_k", config.slices_k, 1)
        steps, slices = config.tile_k // 16, config.slices_k
        if steps % (2 * slices):
            yield f"tile_k={config.tile_k} is {steps} steps of 16; {slices} slices need a multiple of {2 * slices}"

    return first_reason(reasons())


# --- configs: from sweeps on an H200 at 4096 x 4096 x 4096 (benchmarks/results) ---------------------------------------


# h03 to h10 keep one tile of 128 x 128, four warps of 64 x 64, so that each shows its own idea; its depth and the shape
# of wmma's products are what suited each best.
def _wmma_config(tile_k: int, product: tuple[int, int], stages: int = 1, min_blocks: int = 2) -> MmaConfig:
    return MmaConfig(128, 128, tile_k, warp_m=64, warp_n=64, subtiles_m=64 // product[0], subtiles_n=64 // product[1],
                      stages=stages, min_blocks=min_blocks)  # fmt: skip


def _mma_config(tile_k: int, stages: int) -> MmaConfig:
    return MmaConfig(128, 128, tile_k, warp_m=64, warp_n=64, stages=stages, min_blocks=2)


_SIMT = SimtConfig(128, 128, 16, 4, 4, 2, 2, warp_m=64, warp_n=32, min_blocks=2)
_NAIVE = MmaConfig(64, 64, 16, warp_m=16, warp_n=16, min_blocks=2)
_MULTISTAGE = MmaConfig(128, 256, 32, warp_m=64, warp_n=64, stages=4, group_m=8)


def one(config: GemmConfig) -> Callable[[], tuple[GemmConfig, ...]]:
    return lambda: (config,)


def _wmma_space(stages: int = 1, sets: tuple[int, ...] = (1,)) -> Callable[[], tuple[MmaConfig, ...]]:
    """Block tiles x depth x wmma's shapes."""
    return lambda: tuple(
        MmaConfig(tile_m, tile_n, tile_k, warp_m=warp_m, warp_n=warp_n, subtiles_m=warp_m // m, subtiles_n=warp_n // n,
                   stages=stages, min_blocks=blocks, fragment_sets=count)
        for tile_m, tile_n, warp_m, warp_n, blocks in (
            (128, 128, 64, 64, 2), (128, 128, 64, 32, 2), (128, 128, 32, 64, 2), (64, 128, 32, 64, 3),
            (128, 256, 64, 64, 1), (64, 64, 32, 32, 4),
        )
        for tile_k, (m, n), count in product((16, 32, 64), SHAPES, sets)
    )  # fmt: skip


def _mma_space(stages: int) -> Callable[[], tuple[MmaConfig, ...]]:
    """Block tiles x depth."""
    return lambda: tuple(
        MmaConfig(tile_m, tile_n, tile_k, warp_m=warp_m, warp_n=warp_n, stages=stages, min_blocks=blocks)
        for tile_m, tile_n, warp_m, warp_n, blocks in (
            (128, 128, 64, 64, 2), (128, 128, 64, 32, 2), (128, 128, 32, 64, 2), (64, 128, 32, 64, 3),
            (128, 256, 64, 64, 1), (64, 64, 32, 32, 4),
        )
        for tile_k in (16, 32, 64)
    )  # fmt: skip


def _multistage_space() -> tuple[MmaConfig, ...]:
    """Block and warp tiles x depth x stages x slices, largest first."""
    shapes = (
        # tile_m, tile_n, warp_m, warp_n, min_blocks
        (128, 256, 64, 64, 1), (256, 128, 64, 64, 1), (128, 128, 64, 64, 2),
        (128, 128, 64, 32, 1), (128, 128, 32, 64, 1), (64, 256, 32, 64, 1), (256, 64, 64, 32, 1),
        (128, 64, 64, 32, 2), (64, 128, 32, 64, 2), (64, 64, 32, 32, 4), (64, 64, 32, 16, 2),
        (128, 64, 32, 32, 2), (64, 128, 32, 32, 2), (64, 32, 32, 16, 4), (32, 64, 16, 32, 4), (32, 32, 16, 16, 4),
        (16, 128, 16, 32, 4), (128, 16, 32, 16, 4), (16, 64, 16, 16, 4), (64, 16, 16, 16, 4), (16, 32, 16, 16, 8),
        (32, 16, 16, 16, 8),
    )  # fmt: skip
    return tuple(
        config if slices == 1 else replace(config, slices_k=slices, min_blocks=max(1, config.min_blocks // slices))
        for config in over(MmaConfig, shapes, product((32, 64, 128), (3, 4, 5)))
        for slices in (1, 2)
        if 2 * config.held <= 224 * 1024
        if slices == 1 or (config.tile_k >= 64 and config.tile_m * config.tile_n <= 64 * 64)  # of few warps
    )


# --- the rungs -------------------------------------------------------------------------------------------------------

HALVES = ("bf16", "f16")


def rung(id: str, teaches: str, default: GemmConfig, space: Callable[[], tuple[GemmConfig, ...]],
          shared_bytes: Callable[[Any, GemmProblem], int],
          check: Callable[[Any, GemmProblem], str | None], dynamic_shared: bool = True,
          overlaps: bool = False, levels: tuple[str, ...] = (), one_chain: bool = False) -> Rung:  # fmt: skip
    return Rung(
        id, teaches, f"gemm/{id}.cuh", HALVES, default, space, shared_bytes, check, vector_bytes=16,
        dynamic_shared=dynamic_shared, overlaps=overlaps, own_constants=constants, reads=reads, levels=levels,
        one_chain=one_chain,
    )  # fmt: skip


TENSOR_RUNGS: tuple[Rung, ...] = (
    rung(
        "h01_simt", "the fp32 warp tiling on 16-bit inputs: half the bytes, the same FFMA ceiling",
        _SIMT, one(_SIMT), tiles, _check_simt,
    ),
    rung(
        "h02_wmma_naive", "one 16x16x16 fragment per warp, straight from global memory: tensor cores that wait",
        _NAIVE, one(_NAIVE), _staging, _check_naive, dynamic_shared=False,
    ),
    rung(
        "h03_wmma_warptile", "wmma inside block and warp tiles: a fragment serves a row or a column of products",
        _wmma_config(32, (8, 32), min_blocks=1), _wmma_space(), _tiles_or_staging, _wmma(),
    ),
    rung(
        "h04_wmma_async", "cp.async fills shared memory, waited for at once: no register holds a tile on its way",
        _wmma_config(32, (8, 32), min_blocks=1), _wmma_space(), _tiles_or_staging, _wmma(),
    ),
    rung(
        "h05_wmma_double_buffer", "two buffers: the next tile's copy runs during this one's products",
        _wmma_config(16, (16, 16), 2, 3), _wmma_space(2), _tiles_or_staging, _wmma(2),
    ),
    rung(
        "h06_wmma_pipeline", "the same through cuda::pipeline's interface: two barriers per tile instead of one",
        _wmma_config(32, (32, 8), 2), _wmma_space(2), _tiles_or_staging, _wmma(2, 4),
    ),
    rung(
        "h07_wmma_three_stage", "copy, fragments and products of three tiles overlap; one fragment set, refilled",
        _wmma_config(16, (16, 16), 3), _wmma_space(3, (1, 2)), _tiles_or_staging, _wmma(3, sets=2),
        levels=("fragment_sets",),
    ),
    rung(
        "h08_mma", "ldmatrix and mma.sync: a known layout, results straight from the accumulators; 8-way conflicts",
        _mma_config(32, 2), _mma_space(2), tiles, _mma(2),
    ),
    rung(
        "h09_mma_swizzled", "Swizzle<3,3,3> on B in shared memory: 8 rows in a bank become 2",
        _mma_config(32, 2), _mma_space(2), tiles, _mma(2),
    ),
    rung(
        "h10_mma_three_stage", "h09 with h07's overlap: copies, fragments and products of different tiles",
        _mma_config(16, 3), _mma_space(3), tiles, _mma(3),
    ),
    rung(
        "h11_mma_multistage", "a ring of 3 to 5 tiles, fragments a step ahead, no bank conflicts, L2 raster, split k",
        _MULTISTAGE, _multistage_space, _ring, _check_multistage, overlaps=True,
        levels=("split_k", "slices_k"), one_chain=True,
    ),
)  # fmt: skip
