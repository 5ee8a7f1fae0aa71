"""The rungs for fp8 operands, as data: e4m3 and e5m2 in any mixture, fp32 sums, results of any type.

Their kernels see two neighbours along k as one element of 16 bits (rung.in_pairs): lines, tiles, rings and copies are
those of 16-bit operands. k must be contiguous; an operand that lies otherwise is packed first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import product

from ...arrays.dtypes import FP8, ceil_div
from ...jit.source import Constant
from ...jit.tensor_map import TensorMap
from ..config import GemmConfig, MmaConfig, WgmmaConfig, over
from ..problem import SCALE_BLOCK, GemmProblem, Matrix
from ..rung import UNITS, Reading, Rung, in_pairs, vector_out
from . import tma
from .hopper import sums_constants
from .tensor import SHARED_OF_AN_SM, first_reason, power_of_two, ragged, stages_reason

Check = Callable[[WgmmaConfig, GemmProblem], str | None]


def _readable(matrix: Matrix, lines: int, k: int, line_stride: int, k_stride: int) -> bool:
    """Return whether k is contiguous, in pairs, and each of the lines starts at a multiple of 16 bytes."""
    if matrix.padded:
        return True
    aligned = matrix.alignment % 16 == 0 and matrix.batch_stride % 16 == 0 and (lines <= 1 or line_stride % 16 == 0)
    return k_stride == 1 and k % 2 == 0 and aligned


@lru_cache(maxsize=256)
def must_pack(problem: GemmProblem) -> tuple[str, ...]:
    """See Rung.must_pack."""
    a, b = problem.a, problem.b
    able = {
        "a": _readable(a, problem.m, problem.k, a.row_stride, a.col_stride),
        "b": _readable(b, problem.n, problem.k, b.col_stride, b.row_stride),
    }
    return tuple(name for name, readable in able.items() if not readable)


def tiles(config: GemmConfig, problem: GemmProblem) -> int:
    """Bytes of shared memory."""
    return config.held


@lru_cache(maxsize=256)
def reads(problem: GemmProblem) -> Reading:
    """See Rung.reads: what is not read by wide accesses is packed."""
    by_sectors = {
        "a": problem.a.whole_sectors(problem.m, problem.k, 1), "b": problem.b.whole_sectors(problem.k, problem.n, 1),
    }  # fmt: skip
    return Reading((), () if must_pack(problem) else tuple(name for name, whole in by_sectors.items() if not whole))


def constants(config: GemmConfig, problem: GemmProblem) -> dict[str, Constant]:
    a, b = problem.dtype, problem.dtype_of("b")
    blocks = problem.scaled_blocks
    narrow = problem.out_dtype in FP8
    return {
        "tile_k": config.tile_k // 2,
        "a_unit": UNITS["col"], "b_unit": UNITS["row"], "a_wide": True, "b_wide": True,
        "a_edge": ragged(problem.a, (problem.m, problem.k), (config.tile_m, config.tile_k)),
        "b_edge": ragged(problem.b, (problem.k, problem.n), (config.tile_k, config.tile_n)),
        "a_sectors": "a" not in reads(problem).halved, "b_sectors": "b" not in reads(problem).halved,
        "in_type": f"struct {a}_by_{b}",
        "a_type": f"struct {a}", "b_type": f"struct {b}",
        "a_blocks": blocks.get("a", -1), "b_blocks": blocks.get("b", -1),
        "alone": 2 * tiles(config, problem) > SHARED_OF_AN_SM,
        "whole_eights": vector_out(problem) and problem.n % 8 == 0 and not narrow,
    }  # fmt: skip


def _wgmma_constants(config: WgmmaConfig, problem: GemmProblem) -> dict[str, Constant]:
    registers = 65536 // (config.threads * config.min_blocks)
    return sums_constants(config, problem, registers, 90) | constants(config, problem) | {"part_n": config.part_n}


def _for_tma(config: WgmmaConfig, problem: GemmProblem) -> tuple[WgmmaConfig, GemmProblem]:
    """The same in pairs, as operands of 16 bits: what TMA copies."""
    staged = 0 if problem.out_dtype in FP8 else config.staged  # no buffer holds its rows
    in_words = _in_words(problem.packed(config.tile, must_pack(problem)))
    return replace(config, tile_k=config.tile_k // 2, staged=staged), in_words


@lru_cache(maxsize=256)
def _in_words(problem: GemmProblem) -> GemmProblem:
    return replace(in_pairs(problem), dtype="bf16", b_dtype="", precision="ieee")


def _tma_constants(config: WgmmaConfig, problem: GemmProblem) -> dict[str, Constant]:
    own = constants(config, problem) | {"part_n": config.part_n}
    found = tma.constants_of(*_for_tma(config, problem))
    own = {name: value for name, value in own.items() if name not in ("a_edge", "b_edge", "alone")}
    return found | own | {"a_scale_run": _scale_run(problem), "walks_batch": False}


_LONG = 4096
"""From so much k on L2 fetches 256 bytes of a line at once instead of 128. In pairs that was 1 to 3% faster at k = 7168
with 64 and 128 rows and 0.4% at 4096 x 7168 x 16384, and 1 to 3% slower at k = 512."""


def _tma_maps(config: WgmmaConfig, problem: GemmProblem) -> dict[str, TensorMap | None]:
    return _long_lines(tma.maps_of(*_for_tma(config, problem)), problem)


def _operand_maps(config: WgmmaConfig, problem: GemmProblem) -> dict[str, TensorMap | None]:
    return _long_lines(tma.operand_maps(*_for_tma(config, problem)), problem)


def _long_lines(found: dict[str, TensorMap | None], problem: GemmProblem) -> dict[str, TensorMap | None]:
    if problem.k < _LONG or problem.batch > 1:  # batches, and groups, were not measured
        return found
    return {name: one and replace(one, fetched=256) for name, one in found.items()}


def scale_bytes(config: GemmConfig, problem: GemmProblem) -> int:
    """The bytes of the scales of blocks in a stage (StageScales in tile/block_scales.cuh)."""
    scaled, columns = problem.scaled_blocks, config.tile_n
    whole = SCALE_BLOCK % columns == 0 or columns % SCALE_BLOCK == 0
    before = 0 if whole else SCALE_BLOCK // 2 if columns % 64 == 0 else 112  # of a block, ahead of the tile's columns
    numbers = ("a" in scaled) * config.tile_m + ("b" in scaled) * ceil_div(columns + before, SCALE_BLOCK)
    return ceil_div(4 * numbers, 16) * 16


def _scale_run(problem: GemmProblem) -> int:
    """Return how many scales of A's neighbouring rows one copy can bring: 4 or 1 where they lie by columns, and 0 where
    they do not."""
    number = problem.scaled_blocks.get("a")
    if number is None or problem.epilogue is None:
        return 0
    lies = problem.epilogue.operands[number].matrix
    if lies.row_stride != 1 and problem.m > 1:
        return 0
    return 4 if lies.alignment == 16 and not any(4 * step % 16 for step in (lies.col_stride, lies.batch_stride)) else 1


def _tma_shared(config: WgmmaConfig, problem: GemmProblem) -> int:
    return tma.shared_of(*_for_tma(config, problem)) + config.stages * scale_bytes(config, problem)


def _reasons(config: GemmConfig, problem: GemmProblem) -> Iterator[str | None]:
    yield power_of_two("tile_k", config.tile_k, 32)
    if config.tile_k > SCALE_BLOCK:
        yield f"tile_k={config.tile_k} is more than the {SCALE_BLOCK} products of a partial sum"
    for name, tile, warp in (("m", config.tile_m, config.warp_m), ("n", config.tile_n, config.warp_n)):
        if warp < 1 or tile % warp:
            yield f"tile_{name}={tile} is not a multiple of warp_{name}={warp}"
    if config.tile_n % 16 or config.warp_n % 16 or config.warp_m % 16:
        yield "tile_n, warp_m and warp_n must be multiples of 16"
    if "b" in problem.scaled_blocks and config.tile_n > SCALE_BLOCK and config.tile_n % (SCALE_BLOCK // 2):
        yield f"tile_n={config.tile_n} is not a multiple of half a block of {SCALE_BLOCK}"


def _copy_reasons(config: GemmConfig) -> Iterator[str | None]:
    """Refuse for rungs whose threads copy (tile/copy16.cuh)."""
    yield power_of_two("tile_m", config.tile_m, 16)
    yield power_of_two("a block's threads", config.threads, 32)
    for name, extent in (("A", config.tile_m), ("B", config.tile_n)):
        rows = config.threads // max(config.tile_k // 16, 1)
        if not rows or (extent % rows and rows < extent):
            yield f"{config.threads} threads do not divide the {extent} lines of {name}'s tile"


# --- mma.sync ---------------------------------------------------------------------------------------------------------


def _check_mma(config: MmaConfig, problem: GemmProblem) -> str | None:
    def reasons() -> Iterator[str | None]:
        yield from _reasons(config, problem)
        yield from _copy_reasons(config)
        yield power_of_two("tile_n", config.tile_n, 16)
        yield stages_reason(config, 2, 8)

    return first_reason(reasons())


_MMA = MmaConfig(128, 128, 64, warp_m=64, warp_n=32, stages=4, group_m=8, min_blocks=1)


def _mma_space() -> tuple[MmaConfig, ...]:
    """Block and warp tiles x depth x stages."""
    shapes = (
        # tile_m, tile_n, warp_m, warp_n, min_blocks
        (128, 128, 64, 32, 1), (128, 128, 32, 64, 1), (128, 64, 32, 32, 2), (64, 128, 32, 32, 2), (64, 64, 32, 32, 3),
        (64, 64, 32, 16, 2), (32, 64, 16, 32, 4), (64, 32, 32, 16, 4), (32, 32, 16, 16, 4), (16, 64, 16, 16, 4),
        (16, 128, 16, 32, 4), (64, 16, 16, 16, 4),
    )  # fmt: skip
    configs = over(MmaConfig, shapes, product((64, 128), (3, 4, 5)))
    return tuple(config for config in configs if config.held <= 224 * 1024)


# --- wgmma ------------------------------------------------------------------------------------------------------------


def _wgmma_reasons(config: WgmmaConfig, problem: GemmProblem) -> Iterator[str | None]:
    yield from _reasons(config, problem)
    yield stages_reason(config, 3 if config.min_blocks == 1 else 2, 8)
    if config.warp_m % 16 or config.tile_m % (4 * config.warp_m):
        yield f"tile_m={config.tile_m} is not a multiple of 4 x warp_m={config.warp_m}, or that not of 64"


def _with_copies(check: Check) -> Check:
    return lambda config, problem: check(config, problem) or first_reason(_copy_reasons(config))


PART_N = (32, 64, 96, 128, 192, 256)
"""How wide the products of partial sums are."""


def _check_promoted(config: WgmmaConfig, problem: GemmProblem) -> str | None:
    def reasons() -> Iterator[str | None]:
        yield from _wgmma_reasons(config, problem)
        if config.min_blocks > 1 and config.stages < 3:
            yield "two tiles are read at once: it needs 3 stages"
        if config.part_n not in PART_N:
            yield f"partial sums are one of {PART_N} columns wide; part_n is {config.part_n}"
        elif config.warp_n % config.part_n:
            yield f"warp_n={config.warp_n} is not a multiple of part_n={config.part_n}"

    return first_reason(reasons())


def _why_no_tma(check: Check, config: WgmmaConfig, problem: GemmProblem) -> str | None:
    if problem.n == 1 and 0 < problem.k <= 2:
        return f"TMA reads lines along k: a column of {problem.k} has none"
    return check(*_for_tma(config, problem))


def takes_turns(config: GemmConfig) -> bool:
    """Return whether two partial sums of the whole tile take turns (PromotedSums in tile/promoted.cuh)."""
    return config.warp_m == 16 and config.warp_n == config.part_n <= 128


def _check_tma(config: WgmmaConfig, problem: GemmProblem) -> str | None:
    sums = config.warp_m * config.warp_n // 32 + (1 + takes_turns(config)) * config.part_n // 2
    registers = tma.registers_of(config)[1]
    if sums + 24 > registers:
        return f"{sums} sums of a thread leave too little of its {registers} registers"
    return _check_promoted(config, problem) or _why_no_tma(tma.check_tiles, config, problem)


def _check_tma_cluster(config: WgmmaConfig, problem: GemmProblem) -> str | None:
    return _check_tma(config, problem) or _why_no_tma(tma.check_cluster, config, problem)


def _check_cluster_k(config: WgmmaConfig, problem: GemmProblem) -> str | None:
    return _check_tma(config, problem) or _why_no_tma(tma.check_cluster_k, config, problem)


def _check_fast(config: WgmmaConfig, problem: GemmProblem) -> str | None:
    if problem.scaled_blocks:
        return "the scales of blocks are applied every 128 of k: sums that the tensor cores keep are of all k"
    return first_reason(_reasons(config, problem)) or _why_no_tma(tma.check_tiles, config, problem)


def _check_fast_cluster(config: WgmmaConfig, problem: GemmProblem) -> str | None:
    return _check_fast(config, problem) or _why_no_tma(tma.check_cluster, config, problem)


def _promoted(
    tile_m: int, tile_n: int, warp_m: int, warp_n: int, part_n: int, stages: int, blocks: int = 1
) -> WgmmaConfig:
    return WgmmaConfig(
        tile_m, tile_n, 128, warp_m=warp_m, warp_n=warp_n, stages=stages, group_m=8, min_blocks=blocks, part_n=part_n
    )


_PROMOTED = _promoted(128, 128, 16, 128, 128, 6)
_FAST = WgmmaConfig(128, 256, 128, warp_m=16, warp_n=256, stages=4, group_m=8, staged=1)


def _promoted_space() -> tuple[WgmmaConfig, ...]:
    """Block and warpgroup tiles, parts, stages."""
    shapes = (
        # tile_m, tile_n, warp_m, warp_n, part_n, min_blocks
        (128, 128, 16, 128, 128, 1), (128, 192, 16, 192, 192, 1), (128, 192, 16, 192, 96, 1),
        (128, 256, 16, 256, 128, 1), (256, 128, 32, 128, 128, 1), (128, 64, 16, 64, 64, 1), (64, 128, 16, 128, 128, 1),
        (64, 128, 16, 128, 128, 2), (128, 64, 16, 64, 64, 2), (64, 64, 16, 64, 64, 1), (64, 64, 16, 64, 64, 2),
        (192, 128, 16, 128, 64, 1), (192, 192, 16, 192, 64, 1), (64, 64, 16, 64, 64, 3), (64, 256, 16, 128, 128, 1),
        (128, 128, 16, 64, 64, 1),
    )  # fmt: skip
    return tuple(
        _promoted(tile_m, tile_n, warp_m, warp_n, part_n, stages, blocks)
        for tile_m, tile_n, warp_m, warp_n, part_n, blocks in shapes
        for stages in (3, 4, 5, 6, 8)
        if (stages * 128 * (tile_m + tile_n) + 1024) * blocks <= SHARED_OF_AN_SM
    )


def _fast_space() -> tuple[WgmmaConfig, ...]:
    """Block and warpgroup tiles x depth x stages."""
    shapes = (
        # tile_m, tile_n, warp_m, warp_n, min_blocks
        (128, 256, 16, 256, 1), (256, 128, 32, 128, 1), (256, 128, 16, 128, 1), (128, 192, 16, 192, 1),
        (128, 128, 16, 128, 1), (128, 128, 16, 128, 2), (64, 256, 16, 256, 1), (64, 128, 16, 128, 2),
        (128, 64, 16, 64, 2), (64, 64, 16, 64, 2), (64, 64, 16, 64, 3),
    )  # fmt: skip
    configs = over(WgmmaConfig, shapes, product((64, 128), (3, 4, 5, 6, 8)))
    return tuple(config for config in configs if (config.held + 1024) * config.min_blocks <= SHARED_OF_AN_SM)


_ANY = GemmProblem.dense(128, 128, 128, layout="nt", dtype="e4m3")


def _cluster_k_space() -> tuple[WgmmaConfig, ...]:
    """Tiles of few rows, in clusters that share k."""
    shapes = (
        # tile_m, tile_n, warp_m, warp_n, part_n
        (64, 64, 16, 64, 64), (64, 96, 16, 96, 96), (64, 128, 16, 128, 128), (64, 192, 16, 192, 192),
        (128, 32, 16, 32, 32), (128, 64, 16, 64, 64), (128, 96, 16, 96, 96), (128, 128, 16, 128, 128),
    )  # fmt: skip
    configs = (
        replace(_promoted(*shape, stages), cluster_k=blocks)
        for shape in shapes
        for stages in (5, 6, 8)
        for blocks in (2, 3, 4)
        if blocks <= shape[1] // 32
    )
    return tuple(config for config in configs if _tma_shared(config, _ANY) + 1024 <= SHARED_OF_AN_SM)


def _staged(space: tuple[WgmmaConfig, ...]) -> tuple[WgmmaConfig, ...]:
    """The configs of a space, and the same with results through one or two buffers of a warp, where these fit."""
    return tuple(
        staged
        for config in space
        for staged in (config, *(replace(config, staged=buffers) for buffers in (1, 2)))
        if (_tma_shared(staged, _ANY) + 1024) * config.min_blocks <= SHARED_OF_AN_SM
    )


def _clusters(space: tuple[WgmmaConfig, ...]) -> tuple[WgmmaConfig, ...]:
    """The configs of a space by clusters of two blocks."""
    return tuple(
        replace(config, cluster_m=cluster_m, cluster_n=3 - cluster_m)
        for config in space
        for cluster_m in (1, 2)
        if config.tile_m * config.tile_n >= 64 * 128
    )


def _tma_rung(
    id: str, teaches: str, default: WgmmaConfig, space: Callable[[], tuple[WgmmaConfig, ...]], check: Check,
    precision: str = "ieee",
) -> Rung:  # fmt: skip
    return Rung(
        id, teaches, f"gemm/{id}.cuh", FP8, default, space, _tma_shared, check, vector_bytes=16, dynamic_shared=True,
        overlaps=True, own_constants=_tma_constants, reads=reads, levels=("split_k", "staged", "cluster_n"),
        only_on="sm_90a", warpgroups=True, stays=True, precision=precision, must_pack=must_pack,
        loaders=tma.WARPGROUP, maps=_tma_maps, walks=lambda config, problem: 1, one_chain=precision == "ieee",
    )  # fmt: skip


_CLUSTER_K = Rung(
    "q07_cluster_k", "a cluster shares k, as h19: few rows make wider tiles, which ask L2 for less",
    "gemm/q07_cluster_k.cuh", FP8, replace(_promoted(64, 64, 16, 64, 64, 8), cluster_k=2), _cluster_k_space,
    _tma_shared, _check_cluster_k, vector_bytes=16, dynamic_shared=True, overlaps=True, own_constants=_tma_constants,
    reads=reads, only_on="sm_90a", warpgroups=True, must_pack=must_pack, loaders=tma.WARPGROUP, maps=_operand_maps,
)  # fmt: skip


FP8_RUNGS: tuple[Rung, ...] = (
    Rung(
        "q01_convert", "fp8 through the ring of 16 bits: fragments become fp16, exactly, on their way to mma.sync",
        "gemm/q01_convert.cuh", FP8, _MMA, _mma_space, tiles, _check_mma, vector_bytes=16, dynamic_shared=True,
        overlaps=True, own_constants=constants, reads=reads, levels=("split_k",), must_pack=must_pack, one_chain=True,
        other_chain_on="sm_90a",
    ),
    Rung(
        "q02_promoted", "wgmma of fp8, which keeps 14 bits: the sums of 128 of k go to fp32 while the next are made",
        "gemm/q02_promoted.cuh", FP8, _PROMOTED, _promoted_space, tiles, _with_copies(_check_promoted), vector_bytes=16,
        dynamic_shared=True, overlaps=True, own_constants=_wgmma_constants, reads=reads,
        levels=("split_k",), only_on="sm_90a", warpgroups=True, stays=True, must_pack=must_pack,
        one_chain=True,
    ),
    _tma_rung("q03_tma", "TMA and roles: no barrier of all, so that one warpgroup adds up while another multiplies",
              replace(_PROMOTED, staged=1), lambda: _staged(_promoted_space()), _check_tma),
    _tma_rung("q04_cluster", "clusters of two blocks: the operand that both need is copied once, by halves, to both",
              replace(_PROMOTED, staged=1, cluster_m=2), lambda: _clusters(_staged(_promoted_space())),
              _check_tma_cluster),
    _tma_rung("q05_fast", "the tensor cores' own sums all along k, 14 bits of them: h15 with fp8",
              _FAST, lambda: _staged(_fast_space()), _check_fast, "fast"),
    _tma_rung("q06_fast_cluster", "the same by clusters, as h16", replace(_FAST, cluster_m=2),
              lambda: _clusters(_staged(_fast_space())), _check_fast_cluster, "fast"),
    _CLUSTER_K,
)  # fmt: skip
