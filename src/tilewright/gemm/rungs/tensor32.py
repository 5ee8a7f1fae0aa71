"""Rungs that multiply fp32 operands on tensor cores: another precision than fp32's own, so no part of its ladder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

from ...arrays.dtypes import ceil_div
from ...jit.source import Constant
from ..config import MmaConfig, over
from ..problem import GemmProblem
from ..rung import Rung
from .tensor import first_reason, power_of_two, wide


def _constants(config: MmaConfig, problem: GemmProblem) -> dict[str, Constant]:
    return {
        "in_type": "float",
        "a_wide": wide(problem.a, problem.m, problem.k, problem.dtype),
        "b_wide": wide(problem.b, problem.k, problem.n, problem.dtype),
        "slices_k": 1,
    }


_CHAIN = 512
"""Elements of k after which accumulators of fp32x3 start anew; their sums lie after the buffers."""


def _sums(config: MmaConfig, problem: GemmProblem) -> int:
    """Bytes of the chains' sums; 0 where k, or a part of it, is one chain."""
    return 4 * config.tile_m * config.tile_n if ceil_div(problem.k, config.split_k) > _CHAIN else 0


def _fp32x3_constants(config: MmaConfig, problem: GemmProblem) -> dict[str, Constant]:
    return _constants(config, problem) | {"chain": _CHAIN if _sums(config, problem) else 0}


def _fp32x3_shared(config: MmaConfig, problem: GemmProblem) -> int:
    return _buffers(6)(config, problem) + _sums(config, problem)


def _parts(config: MmaConfig, problem: GemmProblem) -> str | None:
    """The reason against parts of k as products of a batch: they need a batch of their own, and whole tiles alike."""
    if config.split_k == 1:
        return None
    if problem.batch != 1:
        return f"split_k={config.split_k} of {problem.batch} products; here parts of k are a batch themselves"
    if problem.k % (config.split_k * config.tile_k) or problem.k == 0:
        return f"k={problem.k} is not {config.split_k} parts of whole tiles of {config.tile_k}"
    return None


def _buffers(element_bytes: int) -> Callable[[MmaConfig, GemmProblem], int]:
    """Two buffers of both operands' tiles."""
    return lambda config, problem: 2 * element_bytes * config.tile_k * (config.tile_m + config.tile_n)


def _ring(config: MmaConfig, problem: GemmProblem) -> int:
    """The stages of both operands' tiles, three parts an element, and the sums after them."""
    return 6 * config.held + _sums(config, problem)


MOST_BORROWED = 4 * 2**30
"""Bytes that a product may borrow for split operands, 1.5 times what they take themselves: two of 16384 x 16384 fit."""
RECORD_HEAD = 32
RECORD_SLOT = 256
RECORD: dict[str, Constant] = {"record_head": RECORD_HEAD, "record_slot": RECORD_SLOT}
"""How a split operand's record begins, in bytes, for the kernels that write and read it."""


def record_bytes(extent: int, tile_k: int, lines: int, k: int) -> int:
    """The bytes of one batch entry of a split operand (cuda/tile/split_operand.cuh): origin, extremes of its tiles, its
    tiles."""
    tiles = ceil_div(lines, extent) * ceil_div(k, tile_k)
    return ceil_div(RECORD_HEAD + 8 * tiles, RECORD_SLOT) * RECORD_SLOT + 6 * tiles * extent * tile_k


def _borrowed(config: MmaConfig, problem: GemmProblem) -> int:
    """Bytes of both split operands, in one launch."""
    batch, parts = min(problem.batch, 2**16 - 1), config.split_k
    return sum(
        record_bytes(extent, config.tile_k, lines, problem.k // parts) * parts * (batch if matrix.batch_stride else 1)
        for extent, lines, matrix in (
            (config.tile_m, problem.m, problem.a), (config.tile_n, problem.n, problem.b),
        )
    )  # fmt: skip


def _split_constants(config: MmaConfig, problem: GemmProblem) -> dict[str, Constant]:
    """Operands are whole tiles by then, whatever their layouts were."""
    return _fp32x3_constants(config, problem) | RECORD | {"a_unit": 0, "b_unit": 0, "a_wide": True, "b_wide": True}


def _shapes(config: MmaConfig, least_k: int) -> Iterator[str | None]:
    """Reasons of the readers of fragments in all rungs here, and of tile/mend.cuh."""
    yield power_of_two("tile_m", config.tile_m, 32)
    yield power_of_two("tile_n", config.tile_n, 32)
    yield power_of_two("tile_k", config.tile_k, least_k)
    yield power_of_two("warp_m", config.warp_m, 16)
    yield power_of_two("warp_n", config.warp_n, 16)
    for name, tile, warp in (("m", config.tile_m, config.warp_m), ("n", config.tile_n, config.warp_n)):
        if warp > tile:
            yield f"warp_{name}={warp} is larger than tile_{name}={tile}"
    if config.warp_n > 64:
        yield f"warp_n={config.warp_n}; a lane's results of 16 rows are at most 64 columns"


def _check_split(config: MmaConfig, problem: GemmProblem) -> str | None:
    """Return what splitting in patches of 4 x 4 and the copies of whole passes need (split.cuh,
    t03_fp32x3_split.cuh)."""

    def reasons() -> Iterator[str | None]:
        yield from _shapes(config, 32)
        yield _parts(config, problem)
        for tile in (config.tile_m, config.tile_n):
            if 6 * tile * config.tile_k % (16 * config.threads):
                yield f"{config.threads} threads do not copy {6 * tile * config.tile_k} B of a tile in whole passes"
        if not 2 <= config.stages <= 8:
            yield f"stages={config.stages}; 2 to 8 are possible"
        if (borrowed := _borrowed(config, problem)) > MOST_BORROWED:
            yield f"its split operands are {borrowed} B; at most {MOST_BORROWED} are borrowed"

    return first_reason(reasons())


def _split_space() -> tuple[MmaConfig, ...]:
    shapes = (
        # tile_m, tile_n, warp_m, warp_n, min_blocks
        (128, 128, 64, 32, 1), (128, 128, 32, 64, 1), (128, 64, 32, 32, 2), (64, 128, 32, 32, 2), (128, 64, 64, 32, 2),
        (64, 128, 32, 64, 2), (64, 64, 32, 32, 3), (64, 64, 32, 32, 2), (64, 32, 32, 16, 4), (32, 64, 16, 32, 4),
        (32, 32, 16, 16, 4),
    )  # fmt: skip
    return tuple(over(MmaConfig, shapes, product((32, 64), (2, 3, 4))))


def _check(step_k: int) -> Callable[[MmaConfig, GemmProblem], str | None]:
    """Reasons of Copy32 and the readers; `step_k`: of one tensor-core instruction."""

    def reasons(config: MmaConfig, problem: GemmProblem) -> Iterator[str | None]:
        yield from _shapes(config, 2 * step_k)
        yield _parts(config, problem)
        if config.stages != 2:
            yield f"stages={config.stages}; it has no such choice, 2 is its value"
        for name, extent, k_inner in (
            ("A", config.tile_m, problem.a.unit(problem.m, problem.k) != "row"),
            ("B", config.tile_n, problem.b.unit(problem.k, problem.n) == "row"),
        ):
            vectors = (config.tile_k if k_inner else extent) // 4
            if config.threads % vectors:
                yield f"{config.threads} threads do not divide a line of {vectors} vectors of {name}'s tile"

    return lambda config, problem: first_reason(reasons(config, problem))


def _space(depths: tuple[int, ...]) -> Callable[[], tuple[MmaConfig, ...]]:
    shapes = (
        # tile_m, tile_n, warp_m, warp_n, min_blocks
        (128, 128, 64, 32, 1), (128, 128, 64, 64, 2), (128, 128, 32, 64, 1), (128, 256, 64, 64, 1),
        (256, 128, 64, 64, 1), (64, 128, 64, 32, 2), (64, 128, 32, 64, 2), (128, 64, 64, 32, 2), (64, 64, 32, 32, 3),
        (64, 32, 32, 16, 4), (32, 64, 16, 32, 4), (32, 32, 16, 16, 4),
    )  # fmt: skip
    return lambda: tuple(over(MmaConfig, shapes, product(depths, (2,))))


_TF32 = MmaConfig(128, 128, 32, warp_m=64, warp_n=64, stages=2, group_m=8, min_blocks=2)
_FP32X3 = MmaConfig(128, 128, 32, warp_m=64, warp_n=32, stages=2, group_m=8)
_SPLIT = MmaConfig(128, 128, 32, warp_m=64, warp_n=32, stages=3, group_m=8)

TENSOR32_RUNGS: tuple[Rung, ...] = (
    Rung(
        "t01_tf32", "operands rounded to tf32 on their way to shared memory: 11 bits, tensor cores at half bf16's rate",
        "gemm/t01_tf32.cuh", ("f32",), _TF32, _space((16, 32, 64)), _buffers(4), _check(8), vector_bytes=16,
        dynamic_shared=True, overlaps=True, own_constants=_constants, precision="tf32",
        one_chain=True,
    ),
    Rung(
        "t02_fp32x3", "every operand as three bf16 numbers, six products of them: fp32's accuracy on tensor cores",
        "gemm/t02_fp32x3.cuh", ("f32",), _FP32X3, _space((32, 64)), _fp32x3_shared, _check(16), vector_bytes=16,
        dynamic_shared=True, overlaps=True, own_constants=_fp32x3_constants, precision="fp32x3",
        levels=("split_k",), parts_as_batch=True,
    ),
    Rung(
        "t03_fp32x3_split", "operands split once, in a pass of their own: the main loop copies and multiplies parts",
        "gemm/t03_fp32x3_split.cuh", ("f32",), _SPLIT, _split_space, _ring, _check_split, vector_bytes=16,
        dynamic_shared=True, overlaps=True, own_constants=_split_constants, precision="fp32x3", splits=True,
        levels=("split_k",), parts_as_batch=True,
    ),
)  # fmt: skip
