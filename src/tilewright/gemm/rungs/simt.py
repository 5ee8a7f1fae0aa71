"""The GEMM rungs, in climbing order, as data. Adding one is one .cuh file and one entry here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

from ...arrays.dtypes import ceil_div
from ...jit.source import Constant
from ..config import SimtConfig
from ..problem import GemmProblem, Matrix
from ..rung import Rung
from .tensor import first_reason, one, ragged, wide

Check = Callable[[SimtConfig, GemmProblem], "str | None"]
SUMMED_APART = 8
"""Products that a config with two sets of sums adds up by themselves, or those of a tile where it has more."""


# --- shared memory of a block, in bytes: the arrays of the .cuh files ------------------------------------------------


def _no_shared(config: SimtConfig, problem: GemmProblem) -> int:
    return 0


def _plain_tiles(config: SimtConfig, problem: GemmProblem) -> int:
    return 4 * config.tile_k * (config.tile_m + config.tile_n)


def _padded_a(config: SimtConfig, problem: GemmProblem) -> int:
    """f03 to f05: a line of A is one element longer."""
    return _plain_tiles(config, problem) + 4 * config.tile_m


def _transposed_tiles(config: SimtConfig, problem: GemmProblem) -> int:
    """TransposedTiles in tile/simt.cuh: a pad of 4 floats per line where an operand is transposed on its way."""
    a_pitch = config.tile_m + (0 if problem.a.unit(problem.m, problem.k) == "row" else 4)
    b_pitch = config.tile_n + (4 if problem.b.unit(problem.k, problem.n) == "row" else 0)
    return 4 * config.stages * config.tile_k * (a_pitch + b_pitch)


# --- what f11 and f12 are compiled for besides what all are -----------------------------------------------------------


def _async_constants(config: SimtConfig, problem: GemmProblem) -> dict[str, Constant]:
    """Each operand's edge (tile/copy.cuh): its tiles reach out of it, or its accesses do not suit its lines."""

    def tested(matrix: Matrix, sizes: tuple[int, int], tiles: tuple[int, int], direct: str) -> bool:
        unit = matrix.unit(*sizes)
        narrow = unit == "none" or (unit == direct and not wide(matrix, *sizes, problem.dtype))
        return narrow or ragged(matrix, sizes, tiles)

    return {
        "a_edge": tested(problem.a, (problem.m, problem.k), (config.tile_m, config.tile_k), "row"),
        "b_edge": tested(problem.b, (problem.k, problem.n), (config.tile_k, config.tile_n), "col"),
        "cache_all": config.cache == "ca",
        "sum_every": ceil_div(SUMMED_APART, config.tile_k) if config.sums > 1 else 0,
    }


# --- what a config must satisfy --------------------------------------------------------------------------------------


def _divides(what: str, whole: int, part: int) -> str | None:
    return None if part and whole % part == 0 else f"{what} must divide: {whole} is not a multiple of {part}"


def _copies(config: SimtConfig, problem: GemmProblem, *, wide: bool) -> str | None:
    """The block's threads must divide a line of either operand's copy evenly (TileCopy in tile/copy.cuh).

    Asked for the aligned path's vectors and the edge path's elements alike: a config serves both.
    """
    for name, extent, along_k in (
        ("A", config.tile_m, problem.a.unit(problem.m, problem.k) != "row"),
        ("B", config.tile_n, problem.b.unit(problem.k, problem.n) == "row"),
    ):
        for vector in (1, 4) if wide else (1,):
            line = (config.tile_k if along_k else extent) // vector
            run = min(line, config.threads)
            if line == 0 or line % run or config.threads % run:
                return f"{config.threads} threads do not divide a line of {line} accesses of {name}'s tile evenly"
    return None


def _check_block(config: SimtConfig, problem: GemmProblem) -> str | None:
    return None if config.threads % 32 == 0 else f"{config.threads} threads are not a whole number of warps"


def _check_shared(config: SimtConfig, problem: GemmProblem) -> str | None:
    return _check_block(config, problem) or _copies(config, problem, wide=False)


def _check_threads(config: SimtConfig, problem: GemmProblem) -> str | None:
    return first_reason(
        iter((
            _divides("tile_m by thread_m", config.tile_m, config.thread_m),
            _divides("tile_n by thread_n", config.tile_n, config.thread_n),
            _check_block(config, problem),
            _copies(config, problem, wide=False),
        ))
    )  # fmt: skip


def _check_vectors(config: SimtConfig, problem: GemmProblem) -> str | None:
    return first_reason(
        iter((
            _divides("thread_n by 4", config.thread_n, 4),
            _divides("tile_k by 4", config.tile_k, 4),
            _check_threads(config, problem),
            _copies(config, problem, wide=True),
        ))
    )  # fmt: skip


def _check_warps(config: SimtConfig, problem: GemmProblem) -> str | None:
    lanes_m = config.warp_m // config.subtiles_m // config.thread_m if config.warp_m else 0
    lanes_n = config.warp_n // config.subtiles_n // config.thread_n if config.warp_n else 0
    return first_reason(
        iter((
            _divides("tile_m by warp_m", config.tile_m, config.warp_m),
            _divides("tile_n by warp_n", config.tile_n, config.warp_n),
            _divides("warp_m by subtiles_m * thread_m", config.warp_m, config.subtiles_m * config.thread_m),
            _divides("warp_n by subtiles_n * thread_n", config.warp_n, config.subtiles_n * config.thread_n),
            None if lanes_m * lanes_n == 32 and lanes_m > 1 else f"a subtile takes {lanes_m} x {lanes_n} lanes: not 32 "
            "in two rows or more",
            _divides("thread_n by 4", config.thread_n, 4),
            _divides("tile_k by 4", config.tile_k, 4),
            _copies(config, problem, wide=True),
        ))
    )  # fmt: skip


def _check_transposed(config: SimtConfig, problem: GemmProblem) -> str | None:
    return _divides("thread_m by 4", config.thread_m, 4) or _check_warps(config, problem)


def _check_stages(config: SimtConfig, problem: GemmProblem) -> str | None:
    if config.stages < 2:
        return f"a ring needs at least 2 stages; it has {config.stages}"
    if config.cache not in ("cg", "ca"):
        return f"cache must be cg or ca; it is {config.cache!r}"
    return _check_transposed(config, problem)


# --- spaces and defaults: the shapes come from sweeps on an H200 at 4096 x 4096 x 4096 (benchmarks/results) ----------

_NAIVE = SimtConfig(32, 32, min_blocks=2)
# From f03 on, which brings tiles, all walk them in groups of 8 rows: the order is no rung's own.
_SHARED = SimtConfig(32, 32, 32, group_m=8, min_blocks=2)
_TILE1D = SimtConfig(64, 64, 8, 8, 1, group_m=8, min_blocks=2)
# f05 to f08 keep one block tile, so that each shows its own idea; f09 to f12 take what suits them best.
_TILE2D = SimtConfig(64, 128, 32, 8, 8, group_m=8, min_blocks=2)
_VECTORS = replace(_TILE2D, min_blocks=3)
_WARPS = SimtConfig(64, 128, 32, 8, 8, warp_m=32, warp_n=64, group_m=8, min_blocks=3)
_SUBTILES = SimtConfig(64, 128, 32, 8, 4, 1, 2, warp_m=32, warp_n=64, group_m=8, min_blocks=4)
_TRANSPOSED = SimtConfig(64, 128, 16, 4, 4, 2, 2, warp_m=32, warp_n=64, group_m=8, min_blocks=4)
_DOUBLE_BUFFER = SimtConfig(64, 128, 8, 8, 8, 2, 1, warp_m=64, warp_n=64, stages=2, group_m=8, min_blocks=4)
_CP_ASYNC = SimtConfig(64, 128, 16, 4, 4, 2, 2, "ca", warp_m=64, warp_n=32, stages=2, group_m=8, min_blocks=4)
_MULTISTAGE = SimtConfig(128, 256, 16, 4, 4, 4, 2, "ca", warp_m=64, warp_n=64, stages=4, group_m=8)


def _tile2d_space() -> tuple[SimtConfig, ...]:
    """Thread tiles (GEMM-A's sweep) x block tiles x depth."""
    return tuple(
        SimtConfig(tile_m, tile_n, tile_k, thread_m, thread_n, group_m=8, min_blocks=blocks)
        for (tile_m, tile_n), tile_k in product(((128, 128), (64, 128), (64, 64)), (8, 16, 32))
        for thread_m, thread_n in product((4, 8, 16), (4, 8, 16))
        for blocks in (1, 2, 3)
        if 64 <= (tile_m // thread_m) * (tile_n // thread_n) <= 512
    )


_WARP_SHAPES = (
    # warp_m, warp_n, subtiles_m, subtiles_n, thread_m, thread_n: always 32 lanes
    (32, 64, 2, 2, 4, 4), (64, 32, 2, 2, 4, 4), (32, 64, 1, 2, 8, 4), (64, 32, 1, 2, 8, 4), (32, 64, 2, 1, 4, 8),
    (64, 32, 2, 1, 4, 8), (64, 64, 4, 2, 4, 4), (64, 64, 2, 4, 4, 4), (64, 64, 2, 1, 8, 8), (32, 32, 1, 2, 4, 4),
)  # fmt: skip


def _subtile_space(stages: int = 1, caches: tuple[str, ...] = ("",)) -> Callable[[], tuple[SimtConfig, ...]]:
    """Block tiles x depth x warp shapes x blocks per SM."""
    return lambda: tuple(
        SimtConfig(tile_m, tile_n, tile_k, thread_m, thread_n, subtiles_m, subtiles_n, cache, warp_m=warp_m,
                   warp_n=warp_n, stages=stages, group_m=8, min_blocks=blocks)
        for (tile_m, tile_n), tile_k in product(((128, 128), (64, 128), (128, 64), (64, 64)), (8, 16, 32))
        for warp_m, warp_n, subtiles_m, subtiles_n, thread_m, thread_n in _WARP_SHAPES
        for cache, blocks in product(caches, (2, 3, 4))
        if blocks * (tile_m * tile_n) // (warp_m * warp_n) <= 16
    )  # fmt: skip


def _multistage_space() -> tuple[SimtConfig, ...]:
    """Block and warp tiles x depth x stages; thread pieces of 4 x 4, so that every shared load is 128 bits."""
    shapes = (
        # tile_m, tile_n, warp_m, warp_n, subtiles_m, subtiles_n, min_blocks
        (128, 256, 64, 64, 4, 2, 1), (256, 128, 64, 64, 4, 2, 1), (128, 256, 64, 64, 2, 4, 1),
        (128, 128, 64, 32, 2, 2, 2), (128, 128, 32, 64, 2, 2, 2), (128, 256, 64, 32, 2, 2, 1),
        (256, 128, 64, 32, 2, 2, 1), (128, 64, 64, 32, 2, 2, 4), (64, 128, 32, 64, 2, 2, 4),
        (64, 64, 32, 32, 1, 2, 4), (64, 64, 32, 32, 2, 1, 4), (64, 32, 16, 32, 1, 1, 8), (32, 64, 16, 32, 1, 1, 8),
        (32, 32, 16, 32, 1, 1, 8), (16, 64, 16, 32, 1, 1, 8),
    )  # fmt: skip
    return tuple(
        SimtConfig(tile_m, tile_n, tile_k, 4, 4, subtiles_m, subtiles_n, cache, warp_m=warp_m, warp_n=warp_n,
                   stages=stages, group_m=8, min_blocks=blocks)
        for tile_m, tile_n, warp_m, warp_n, subtiles_m, subtiles_n, blocks in shapes
        for tile_k, stages, cache in product((8, 16, 32), (2, 3, 4, 5), ("cg", "ca"))
    )  # fmt: skip


# --- the rungs -------------------------------------------------------------------------------------------------------

FP32_RUNGS: tuple[Rung, ...] = (
    Rung(
        "f01_naive", "one thread, one element; a warp walks down a column: 32 sectors per request, 4 bytes of each",
        "gemm/f01_naive.cuh", ("f32",), _NAIVE, one(_NAIVE), _no_shared, _check_block,
    ),
    Rung(
        "f02_coalesced", "neighbouring threads take neighbouring columns: sectors per request fall from 32 to 4",
        "gemm/f02_coalesced.cuh", ("f32",), _NAIVE, one(_NAIVE), _no_shared, _check_block,
    ),
    Rung(
        "f03_shared", "tiles through shared memory: global loads fall by the tile's width",
        "gemm/f03_shared.cuh", ("f32",), _SHARED, one(_SHARED), _padded_a, _check_shared,
    ),
    Rung(
        "f04_tile1d", "thread_m elements per thread, B's in a register: shared loads per product nearly halve",
        "gemm/f04_tile1d.cuh", ("f32",), _TILE1D, one(_TILE1D), _padded_a, _check_threads,
    ),
    Rung(
        "f05_tile2d", "thread_m x thread_n outer products in registers: a quarter of a shared load per product",
        "gemm/f05_tile2d.cuh", ("f32",), _TILE2D, _tile2d_space, _padded_a, _check_threads,
    ),
    Rung(
        "f06_vectorized", "128 bits an access: a quarter of the load and store instructions",
        "gemm/f06_vectorized.cuh", ("f32",), _VECTORS, _tile2d_space, _plain_tiles, _check_vectors, vector_bytes=16,
    ),
    Rung(
        "f07_warptile", "block, warp and thread tiles: a warp reads compact pieces that shared memory broadcasts",
        "gemm/f07_warptile.cuh", ("f32",), _WARPS, one(_WARPS), _plain_tiles, _check_warps, vector_bytes=16,
    ),
    Rung(
        "f08_warptile_sub", "warp subtiles: loads of neighbouring lanes are neighbours, products independent chains",
        "gemm/f08_warptile_sub.cuh", ("f32",), _SUBTILES, _subtile_space(), _plain_tiles, _check_warps,
        vector_bytes=16,
    ),
    Rung(
        "f09_transposed", "A transposed in shared memory: 128-bit shared loads of both operands",
        "gemm/f09_transposed.cuh", ("f32",), _TRANSPOSED, _subtile_space(), _transposed_tiles,
        _check_transposed, vector_bytes=16,
    ),
    Rung(
        "f10_double_buffer", "two buffers, loads through registers while the other is multiplied: fewer warps fit",
        "gemm/f10_double_buffer.cuh", ("f32",), _DOUBLE_BUFFER, _subtile_space(stages=2),
        _transposed_tiles, _check_transposed, vector_bytes=16,
    ),
    Rung(
        "f11_cp_async", "cp.async fills the other buffer with no register in between (LDGSTS)",
        "gemm/f11_cp_async.cuh", ("f32",), _CP_ASYNC, _subtile_space(stages=2, caches=("cg", "ca")),
        _transposed_tiles, _check_stages, vector_bytes=16, own_constants=_async_constants,
        levels=("sums",),
    ),
    Rung(
        "f12_multistage", "a ring of stages, fragments loaded ahead across tiles: several copies always under way",
        "gemm/f12_multistage.cuh", ("f32",), _MULTISTAGE, _multistage_space, _transposed_tiles, _check_stages,
        vector_bytes=16, dynamic_shared=True, overlaps=True, own_constants=_async_constants,
        levels=("split_k", "sums"), one_chain=True,
    ),
)  # fmt: skip
