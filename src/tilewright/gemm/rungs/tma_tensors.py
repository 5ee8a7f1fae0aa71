"""What Hopper's TMA copies for the 16-bit rungs: operands and results as tensors, and their room in shared memory."""

from __future__ import annotations

from functools import lru_cache

from ...arrays.dtypes import FP8, ITEM_BYTES
from ...jit.tensor_map import TensorMap
from ..config import WgmmaConfig
from ..problem import GemmProblem, Matrix
from ..rung import vector_out, walked
from ..shapes import GRID_BATCH
from .tensor import SHARED_OF_AN_SM

_FETCHED = 128
"""Bytes that L2 fetches at once, as wide as most boxes. Next to 256, of 40 products in pairs, it was 1% faster in the
mean, 4% with few rows, and 16% where lines start in the middle of 128 bytes."""
_BARRIERS = 16
"""Bytes of a stage's mbarriers."""


# --- operands as tensors ----------------------------------------------------------------------------------------------


def k_inner(name: str, problem: GemmProblem) -> bool:
    """Return whether the operand's lines run along k."""
    matrix, rows, cols = problem.side(name)
    return (matrix.unit(rows, cols) == "row") == (name == "b")


def panel_of(inner: int) -> int:
    """Elements of a box along the contiguous index (WgmmaTile in tile/wgmma_sums.cuh)."""
    return inner if inner < 64 else 32 if inner % 64 else 64


def b_extent(config: WgmmaConfig, problem: GemmProblem) -> int:
    """Return how many columns of B a stage holds.

    Where lines run along n, tiles of an odd width come in panels of 64 columns, if there is room for the whole of the
    last one.
    """
    even = config.tile_n % 32 == 0 or config.warp_n != config.tile_n
    if even or k_inner("b", problem):
        return config.tile_n
    whole = -(-config.tile_n // 64) * 64
    need = beside_stages(config, problem) + stage_bytes(config, whole)
    return whole if (need + 1024) * config.min_blocks <= SHARED_OF_AN_SM else config.tile_n


def not_for_tma(matrix: Matrix, rows: int, cols: int, item: int) -> str | None:
    """Return why TMA cannot read the matrix, or None."""
    unit = matrix.unit(rows, cols)
    if unit == "none":
        return "none of its lines lies contiguous"
    length, lines, pitch = (cols, rows, matrix.row_stride) if unit == "col" else (rows, cols, matrix.col_stride)
    if matrix.vector_bytes(rows, cols, item) < 16:
        return "its lines do not start at multiples of 16 bytes"
    if (lines > 1 and pitch < length) or matrix.batch_stride < 0:
        return "its lines overlap or run backwards"
    if max(pitch if lines > 1 else 0, matrix.batch_stride) * item >= 1 << 40:
        return "its lines are 2^40 bytes apart or more"
    return None


@lru_cache(maxsize=256)
def unreadable(name: str, problem: GemmProblem) -> str | None:
    """Return why TMA cannot read operand "a" or "b" as it lies, or None. A plan asks for each config."""
    return not_for_tma(*problem.side(name), ITEM_BYTES[problem.dtype])


def addressable(name: str, problem: GemmProblem) -> bool:
    """Return whether TMA can read operand "a" or "b" as it lies."""
    return unreadable(name, problem) is None


def batched(name: str, problem: GemmProblem) -> bool:
    """Return whether each product of a batch has an operand of its own."""
    return problem.batch > 1 and problem.side(name).matrix.batch_stride != 0


def _map_of(name: str, config: WgmmaConfig, problem: GemmProblem) -> TensorMap:
    """Operand `name` with boxes of one panel of a tile: all of its lines, or rows of it along k."""
    matrix, rows, cols = problem.side(name)
    item = ITEM_BYTES[problem.dtype]
    by_rows = matrix.unit(rows, cols) == "col"
    length, lines, pitch = (cols, rows, matrix.row_stride) if by_rows else (rows, cols, matrix.col_stride)
    extent = config.tile_m if name == "a" else b_extent(config, problem)
    inner, high = (config.tile_k, extent) if k_inner(name, problem) else (extent, config.tile_k)
    panel = panel_of(inner)
    if lines == 1:
        pitch = -(-length * item // 16) * 16 // item
    shape: tuple[int, ...] = (length, lines)
    strides: tuple[int, ...] = (pitch * item,)
    box: tuple[int, ...] = (panel, high // (config.cluster_n if name == "a" else config.cluster_m))
    if batched(name, problem):
        shape, strides, box = (*shape, problem.batch), (*strides, matrix.batch_stride * item), (*box, 1)
    return TensorMap(None, problem.dtype, shape, strides, box, swizzle=panel * item, fetched=_FETCHED)


def operand_maps(config: WgmmaConfig, problem: GemmProblem) -> dict[str, TensorMap | None]:
    return {name: _map_of(name, config, problem) if problem.k else None for name in "ab"}


# --- results by way of shared memory ----------------------------------------------------------------------------------


def out_matrices(config: WgmmaConfig, problem: GemmProblem) -> int:
    """The matrices of the result: of a batch, each with its parts of k."""
    return problem.batch * config.split_k


@lru_cache(maxsize=256)
def stored_by_tma(problem: GemmProblem) -> bool:
    """Return whether TMA can store the result: rows that lie apart, each of whole 16 bytes."""
    lies_well = vector_out(problem) and problem.n % 8 == 0
    return lies_well and not_for_tma(problem.out, problem.m, problem.n, ITEM_BYTES[problem.out_dtype]) is None


def staged_of(config: WgmmaConfig, problem: GemmProblem) -> int:
    """Return the buffers of a warp for results that TMA can store; none holds fp8."""
    one = out_matrices(config, problem) == 1
    if problem.out_dtype in FP8:
        return 0
    return config.staged if stored_by_tma(problem) and (one or problem.out.batch_stride > 0) else 0


def _row_bytes(config: WgmmaConfig, problem: GemmProblem) -> int:
    """Bytes of a buffer's row (StagedRows in tile/store_staged.cuh). Parts of k leave as fp32."""
    item = ITEM_BYTES["f32" if config.split_k > 1 else problem.out_dtype]
    return 64 if config.warp_n * item % 128 else 128


def staging_bytes(config: WgmmaConfig, problem: GemmProblem) -> int:
    return config.threads // 32 * config.staged * 16 * _row_bytes(config, problem)


def out_map(config: WgmmaConfig, problem: GemmProblem) -> TensorMap | None:
    if not staged_of(config, problem):
        return None
    out, item, row_bytes = problem.out, ITEM_BYTES[problem.out_dtype], _row_bytes(config, problem)
    pitch = out.row_stride if problem.m > 1 else problem.n
    shape: tuple[int, ...] = (problem.n, problem.m)
    strides: tuple[int, ...] = (pitch * item,)
    box: tuple[int, ...] = (row_bytes // item, 16)
    if (entries := out_matrices(config, problem)) > 1:
        shape, strides, box = (*shape, entries), (*strides, out.batch_stride * item), (*box, 1)
    return TensorMap(None, problem.out_dtype, shape, strides, box, swizzle=row_bytes)


def maps_of(config: WgmmaConfig, problem: GemmProblem) -> dict[str, TensorMap | None]:
    return operand_maps(config, problem) | {"out": out_map(config, problem)}


def may_be_walked(problem: GemmProblem) -> bool:
    """Return whether tensor maps alone tell the products of a batch apart, and one launch takes all of them.

    Of several launches the last has fewer products, and they share their parameters.
    """
    reads_others = problem.use_c or (problem.epilogue is not None and problem.epilogue.operands)
    return stored_by_tma(problem) and problem.out.batch_stride > 0 and not reads_others and problem.batch < GRID_BATCH


def walks(config: WgmmaConfig, problem: GemmProblem) -> int:
    """Return how many products of a batch blocks walk as one row of tiles (cuda/tile/cluster_tiles.cuh)."""
    if config.split_k > 1 or config.stream_k or not config.staged or not may_be_walked(problem):
        return 1
    return problem.batch if walked(config, problem)[0] * problem.batch < 1 << 31 else 1


# --- what lies in shared memory ---------------------------------------------------------------------------------------


def stage_bytes(config: WgmmaConfig, columns: int) -> int:
    return 2 * config.stages * config.tile_k * (config.tile_m + columns)


def beside_stages(config: WgmmaConfig, problem: GemmProblem) -> int:
    return staging_bytes(config, problem) + _BARRIERS * config.stages
