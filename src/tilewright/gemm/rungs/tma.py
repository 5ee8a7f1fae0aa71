"""The 16-bit rungs whose tiles Hopper's TMA copies: a thread that copies, and warpgroups that multiply by wgmma."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import product

from ...arrays.dtypes import CPP_TYPES
from ...jit.source import Constant
from ...jit.tensor_map import MOST_BOX
from ..config import WgmmaConfig, over
from ..problem import GemmProblem
from ..rung import Reading, Rung
from .hopper import sums_constants
from .tensor import HALVES, SHARED_OF_AN_SM, first_reason, power_of_two, stages_reason, tiles
from .tma_tensors import (
    addressable,
    b_extent,
    batched,
    beside_stages,
    k_inner,
    maps_of,
    operand_maps,
    out_matrices,
    stage_bytes,
    staged_of,
    unreadable,
    walks,
)

WARPGROUP = 128
WIDTHS = range(32, 257, 16)
"""How wide wgmma's products are here."""
MOST_BLOCKS = 8
"""Blocks of a cluster on every GPU that has clusters."""
_KEPT = 32
"""Registers of the main loop besides the sums."""
_OF_A_PRODUCT = 26
"""Registers that ptxas wants for a product besides its sums: before any are handed over (C7602)."""


# --- roles ------------------------------------------------------------------------------------------------------------


def registers_of(config: WgmmaConfig) -> tuple[int, int]:
    """Registers per thread that (copies, multiplies) once they are shared out; what is compiled in where none is
    handed over is the second."""
    warpgroups, sums = config.threads // WARPGROUP, config.warp_m * config.warp_n // 32
    copying = 24 if warpgroups > 2 or sums > 160 else 40
    return copying, min(240, (_at_launch(config) * (warpgroups + 1) - copying) // warpgroups // 8 * 8)


def _at_launch(config: WgmmaConfig) -> int:
    """Registers per thread of a block as it starts."""
    return min(248, 65536 // ((config.threads + WARPGROUP) * config.min_blocks) // 8 * 8)


@lru_cache(maxsize=256)
def _of_operands(problem: GemmProblem) -> dict[str, Constant]:
    found: dict[str, Constant] = {"a_sectors": problem.lines.a_sectors, "b_sectors": problem.lines.b_sectors}
    for name in "ab":
        fits = addressable(name, problem)
        found |= {f"{name}_wide": fits, f"{name}_edge": not fits, f"{name}_batched": batched(name, problem)}
    return found


@lru_cache(maxsize=256)
def _reads(problem: GemmProblem) -> Reading:
    return Reading.of(_of_operands(problem))


def constants_of(config: WgmmaConfig, problem: GemmProblem) -> dict[str, Constant]:
    copying, multiplying = registers_of(config)
    hands_over = _at_launch(config) < multiplying
    found: dict[str, Constant] = {
        "edge": bool(problem.m % (config.cluster_m * config.tile_m) or problem.n % (config.cluster_n * config.tile_n)),
        "cluster_m": config.cluster_m,
        "cluster_n": config.cluster_n,
        "cluster_k": config.cluster_k,
        "b_extent": b_extent(config, problem),
        "turns": config.turns,
        "in_type": CPP_TYPES[problem.dtype],
        "hands_over": hands_over,
        "producer_registers": copying,
        "consumer_registers": multiplying,
        "alone": 2 * shared_of(config, problem) > SHARED_OF_AN_SM,
        "staged": staged_of(config, problem),
        "out_batched": out_matrices(config, problem) > 1,
    }
    found |= _of_operands(problem)
    return found | sums_constants(config, problem, multiplying if hands_over else _at_launch(config), _KEPT)


def _walking_constants(config: WgmmaConfig, problem: GemmProblem) -> dict[str, Constant]:
    """The constants of kernels that walk by ClusterTiles."""
    return constants_of(config, problem) | {"walks_batch": walks(config, problem) > 1}


def shared_of(config: WgmmaConfig, problem: GemmProblem) -> int:
    sums = 4 * config.tile_m * config.tile_n if config.cluster_k > 1 else 0  # in the stages' place
    return max(stage_bytes(config, b_extent(config, problem)), sums) + beside_stages(config, problem)


# --- what a config must satisfy ---------------------------------------------------------------------------------------


def check_tiles(config: WgmmaConfig, problem: GemmProblem) -> str | None:
    def reasons() -> Iterator[str | None]:
        yield power_of_two("tile_k", config.tile_k, 16)
        yield stages_reason(config, 2, 12)
        if config.warp_n not in WIDTHS:
            yield f"a product is 32 to 256 columns wide, a multiple of 16; warp_n is {config.warp_n}"
            return
        if config.warp_n % 32 and config.staged:
            yield f"buffers of results hold multiples of 32 columns; warp_n is {config.warp_n}: omit staged"
        if (columns := b_extent(config, problem)) % 32 and not k_inner("b", problem):
            yield f"B's lines come in panels of 32 or 64 columns; there is no room for whole ones of {columns}"
        if config.tile_n % config.warp_n:
            yield f"tile_n={config.tile_n} is not a multiple of warp_n={config.warp_n}"
        if config.warp_m % 16 or config.tile_m % (4 * config.warp_m):
            yield f"tile_m={config.tile_m} is not a multiple of 4 x warp_m={config.warp_m}, or that not of 64"
        if max(config.tile_m, config.tile_n, config.tile_k) > MOST_BOX:
            yield f"a box has at most {MOST_BOX} lines"
        if (need := config.warp_n // 2 + _OF_A_PRODUCT) > (have := _at_launch(config)):
            yield f"a product {config.warp_n} columns wide needs {need} registers; a block starts with {have}"
        sums, (_, registers) = config.warp_m * config.warp_n // 32, registers_of(config)
        if sums + 24 > registers:
            yield f"{sums} sums of a thread leave too little of its {registers} registers"
        for name in "ab" if problem.k else "":
            if reason := unreadable(name, problem):
                yield f"TMA cannot read {name}: {reason}. Copy it to aligned rows, or let the plan choose"

    return first_reason(reasons())


_ANY = GemmProblem.dense(64, 64, 64, dtype="bf16")
_DEFAULT = WgmmaConfig(128, 256, 64, warp_m=16, warp_n=256, stages=4, group_m=8)


def _space() -> tuple[WgmmaConfig, ...]:
    """Block and warpgroup tiles x depth x stages, largest first."""
    shapes = (
        # tile_m, tile_n, warp_m, warp_n, min_blocks
        (256, 192, 32, 192, 1), (256, 160, 32, 160, 1), (128, 256, 16, 256, 1),
        (256, 128, 32, 128, 1), (192, 192, 16, 192, 1), (128, 224, 16, 224, 1), (128, 192, 16, 192, 1),
        (128, 160, 16, 160, 1), (192, 128, 16, 128, 1), (128, 128, 16, 128, 1), (128, 128, 16, 128, 2),
        (64, 256, 16, 256, 1), (128, 96, 16, 96, 1), (64, 192, 16, 192, 1), (128, 64, 16, 64, 1), (128, 64, 16, 64, 2),
        (64, 128, 16, 128, 1), (64, 128, 16, 128, 2), (64, 96, 16, 96, 2), (64, 64, 16, 64, 1), (64, 64, 16, 64, 2),
        (64, 32, 16, 32, 2),
    )  # fmt: skip
    return tuple(
        config
        for config in over(WgmmaConfig, shapes, product((64, 128), (2, 3, 4, 5, 6, 8)))
        if (2 * config.held + 2048) * config.min_blocks <= SHARED_OF_AN_SM
        if config.stages > 2 or config.tile_k == 128
    )


def _staged_space() -> tuple[WgmmaConfig, ...]:
    """The same with results through two or more buffers of a warp."""
    return tuple(
        replace(config, staged=staged)
        for config in _space()
        for staged in (1, 2, 4, 8)
        if staged <= max(1, config.warp_m // 16 * config.warp_n // 64)
        if (shared_of(replace(config, staged=staged), _ANY) + 1024) * config.min_blocks <= SHARED_OF_AN_SM
    )


def check_cluster(config: WgmmaConfig, problem: GemmProblem) -> str | None:
    if config.cluster != 2:
        return f"a cluster is two blocks; the config has {config.cluster_m} x {config.cluster_n}"
    return check_tiles(config, problem)


def _cluster_space() -> tuple[WgmmaConfig, ...]:
    """The same by clusters of two blocks."""
    return tuple(
        replace(config, cluster_m=cluster_m, cluster_n=3 - cluster_m)
        for config in _staged_space()
        for cluster_m in (1, 2)
        if config.tile_m * config.tile_n >= 64 * 128
    )


_TURNS = WgmmaConfig(128, 192, 64, warp_m=32, warp_n=192, stages=4, group_m=8, staged=2, turns=2)


def _check_turns(config: WgmmaConfig, problem: GemmProblem) -> str | None:
    if config.turns != 2 or config.cluster > 2:
        return f"two sets take turns in clusters of at most two blocks; the config has {config}"
    return check_tiles(config, problem)


def _turns_space() -> tuple[WgmmaConfig, ...]:
    """Tiles of one warpgroup x stages x buffers of results, alone and in clusters of two."""
    return tuple(
        replace(_TURNS, tile_m=tile_m, tile_n=tile_n, warp_m=tile_m // 4, warp_n=tile_n, stages=stages, staged=staged,
                cluster_m=cluster_m, cluster_n=cluster_n)
        for tile_m, tile_n in ((128, 192), (128, 160), (128, 128), (64, 256), (64, 192), (128, 96), (64, 128))
        for stages, staged in product((3, 4, 5, 6, 8), (1, 2, 4))
        for cluster_m, cluster_n in ((1, 1), (2, 1), (1, 2))
        if tiles(replace(_TURNS, tile_m=tile_m, tile_n=tile_n, stages=stages), _ANY) + 8 * 2048 * staged < 225 * 1024
    )  # fmt: skip


_STREAM = replace(_DEFAULT, staged=2, stream_k=132)


def _stream_grid(config: WgmmaConfig, problem: GemmProblem) -> tuple[int, int, int]:
    return config.stream_k, problem.batch, 1


def _passed_bytes(config: WgmmaConfig, problem: GemmProblem) -> tuple[int, int]:
    """The sums of one tile for each block, and a word for each of its warpgroups."""
    blocks = config.stream_k * problem.batch
    return 4 * config.tile_m * config.tile_n * blocks, 4 * config.threads // WARPGROUP * blocks


def _check_stream(config: WgmmaConfig, problem: GemmProblem) -> str | None:
    if config.stream_k < 1 or config.stream_k % config.cluster or config.cluster > 2:
        return f"{config.stream_k} blocks in clusters of {config.cluster}: they form none, or pairs of an even number"
    if 2 * config.stream_k * (problem.k // max(config.tile_k, 1) + 1) >= 1 << 31:
        return f"k={problem.k} makes 2^31 steps or more of {config.stream_k} blocks' tiles"
    if reason := check_tiles(config, problem):
        return reason
    if config.threads > 2 * WARPGROUP:
        return f"{config.threads // WARPGROUP} warpgroups leave no registers for keeping account of pieces; 2 do"
    return None


def _stream_space() -> tuple[WgmmaConfig, ...]:
    """Large tiles, alone and in clusters of two, on as many blocks as GPUs have SMs."""
    return tuple(
        replace(config, stream_k=blocks, cluster_m=cluster_m, cluster_n=cluster_n)
        for config in _staged_space()
        if config.tile_m * config.tile_n >= 128 * 128 and config.min_blocks == 1 and config.threads <= 2 * WARPGROUP
        for cluster_m, cluster_n in ((1, 1), (2, 1), (1, 2))
        for blocks in (132, 114)
    )


_CLUSTER_K = WgmmaConfig(128, 128, 64, warp_m=16, warp_n=128, stages=6, group_m=8, cluster_k=4)


def check_cluster_k(config: WgmmaConfig, problem: GemmProblem) -> str | None:
    if not 2 <= config.cluster_k <= MOST_BLOCKS:
        return f"a cluster is 2 to {MOST_BLOCKS} blocks; cluster_k is {config.cluster_k}"
    return check_tiles(config, problem)


def _cluster_k_space() -> tuple[WgmmaConfig, ...]:
    """Tiles of one or two warpgroups, in clusters that share k."""
    return tuple(
        replace(config, cluster_k=blocks)
        for config in _space()
        for blocks in (2, 3, 4, 6, 8)
        if config.min_blocks == 1 and config.threads <= 2 * WARPGROUP and config.tile_k * config.stages >= 256
        if blocks <= config.warp_m // 16 * config.warp_n // 32
    )


TMA_RUNGS: tuple[Rung, ...] = (
    Rung(
        "h14_tma", "TMA and roles: one thread copies whole tiles, warpgroups only multiply and take its registers",
        "gemm/h14_tma.cuh", HALVES, _DEFAULT, _space, shared_of, check_tiles, vector_bytes=16, dynamic_shared=True,
        overlaps=True, own_constants=constants_of, reads=_reads, levels=("split_k",), only_on="sm_90a", warpgroups=True,
        stays=True, loaders=WARPGROUP, maps=operand_maps,
    ),
    Rung(
        "h15_tma_store", "results leave by TMA, from shared memory: under the next tile's products, and no lane waits",
        "gemm/h15_tma_store.cuh", HALVES, replace(_DEFAULT, staged=2), _staged_space, shared_of, check_tiles,
        vector_bytes=16, dynamic_shared=True, overlaps=True, own_constants=_walking_constants, reads=_reads,
        levels=("split_k",), only_on="sm_90a", warpgroups=True, stays=True, loaders=WARPGROUP, maps=maps_of,
        walks=walks,
    ),
    Rung(
        "h16_cluster", "clusters of two blocks: the operand that both need is copied once, by halves, to both",
        "gemm/h16_cluster.cuh", HALVES, replace(_DEFAULT, staged=2, cluster_m=2), _cluster_space, shared_of,
        check_cluster, vector_bytes=16, dynamic_shared=True, overlaps=True, own_constants=_walking_constants,
        reads=_reads, levels=("split_k", "cluster_n"), only_on="sm_90a", warpgroups=True, stays=True,
        loaders=WARPGROUP, maps=maps_of, walks=walks,
    ),
    Rung(
        "h17_ping_pong", "two sets of warpgroups take turns: one has the tensor cores while the other stores its tile",
        "gemm/h17_ping_pong.cuh", HALVES, _TURNS, _turns_space, shared_of, _check_turns, vector_bytes=16,
        dynamic_shared=True, overlaps=True, own_constants=_walking_constants, reads=_reads,
        levels=("split_k", "cluster_m", "cluster_n"), only_on="sm_90a", warpgroups=True, stays=True, loaders=WARPGROUP,
        maps=maps_of, walks=walks,
    ),
    Rung(
        "h18_stream_k", "blocks take equal parts of all tiles' steps: the last tiles keep every SM busy",
        "gemm/h18_stream_k.cuh", HALVES, _STREAM, _stream_space, shared_of, _check_stream, vector_bytes=16,
        dynamic_shared=True, overlaps=True, own_constants=_walking_constants, reads=_reads,
        levels=("cluster_m", "cluster_n"), only_on="sm_90a", warpgroups=True, grid=_stream_grid, loaders=WARPGROUP,
        maps=maps_of, passes_sums=_passed_bytes,
    ),
    Rung(
        "h19_cluster_k", "a cluster shares k: its blocks add their sums up through each other's shared memory",
        "gemm/h19_cluster_k.cuh", HALVES, _CLUSTER_K, _cluster_k_space, shared_of, check_cluster_k, vector_bytes=16,
        dynamic_shared=True, overlaps=True, own_constants=constants_of, reads=_reads, only_on="sm_90a", warpgroups=True,
        loaders=WARPGROUP, maps=operand_maps,
    ),
)  # fmt: skip
