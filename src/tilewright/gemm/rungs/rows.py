"""Rungs for products of few rows, of fp32 and of 16 bits, whose time is that of reading the other operand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from ...arrays.dtypes import CPP_TYPES, ITEM_BYTES, ceil_div
from ...jit.source import Constant
from ..config import SimtConfig
from ..problem import GemmProblem
from ..rung import Rung
from .tensor import HALVES, first_reason

WARPS = 8
"""Of a block."""
MOST_ROWS = 8
"""Rows up to which plans take v01: it was faster with four and, of fp32, in one of two products with eight."""
MOST_SUMS = 64
"""Of a thread."""
FEW_ELEMENTS, FEWEST_ELEMENTS = 1024, 32
"""Elements of a result up to which plans take v02: on an H200 it was 2.6 times as fast as f12 in the mean. The
second, whatever k."""
_READ_BY_BLOCKS = 1 << 21
"""Elements of both operands up to which they do where there are more: lines across k are read 32 bytes at a time."""
_FEWEST_PRODUCTS = 16
"""Of a sum up to which f12's is as right. A batch fills a GPU without v02."""
_PART, _PARTS = 1 << 14, 128
"""Of a long k, the products of a part; and the blocks that keep a GPU busy."""
_STEP = 512
"""Bytes of a line that a warp reads in one access."""


def row_dots(rows: int, columns: int, tile_k: int) -> SimtConfig:
    """The config whose warps make `columns` of `rows`, `tile_k` elements of a line under way."""
    fewer = 2 if rows * columns > 8 else 4  # blocks per SM
    return SimtConfig(rows, WARPS * columns, tile_k, warp_m=rows, warp_n=columns, min_blocks=fewer)


def _no_shared(config: SimtConfig, problem: GemmProblem) -> int:
    return 0


def _constants(config: SimtConfig, problem: GemmProblem) -> dict[str, Constant]:
    return {"in_type": CPP_TYPES[problem.dtype], "along_k": _along_k(problem)}


def dots_pay(problem: GemmProblem) -> bool:
    """Return whether v01 reads by wide accesses, and few enough rows that it reads B about once."""
    return problem.m <= MOST_ROWS and _along_k(problem)


def _along_k(problem: GemmProblem) -> bool:
    lies = problem.a.unit(problem.m, problem.k), problem.b.unit(problem.k, problem.n)
    return lies == ("col", "row") and problem.lines.a_wide and problem.lines.b_wide


def _check(config: SimtConfig, problem: GemmProblem) -> str | None:
    step = _STEP // ITEM_BYTES[problem.dtype]

    def reasons() -> Iterator[str | None]:
        if config.warp_m != config.tile_m or config.tile_n % max(config.warp_n, 1):
            tiles = f"{config.warp_m} x {config.warp_n} of {config.tile_m} x {config.tile_n}"
            yield f"a warp makes all rows of a tile and a part of its columns; the config has {tiles}"
        if config.tile_k < step or config.tile_k % step:
            yield f"tile_k is a multiple of {step}, which a warp reads of a line at once; it is {config.tile_k}"
        if (sums := config.warp_m * config.warp_n) > MOST_SUMS:
            yield f"a thread holds at most {MOST_SUMS} sums; {config.warp_m} x {config.warp_n} are {sums}"

    return first_reason(reasons())


def wide_sums(rows: int, columns: int) -> SimtConfig:
    """The config whose blocks make `rows` x `columns` elements of few."""
    return SimtConfig(rows, columns, warp_m=1, warp_n=1, min_blocks=2)


def few_elements(problem: GemmProblem) -> bool:
    """Return whether plans take v02: a product of fp32 with few elements, each a sum of its own."""
    elements, read = problem.m * problem.n, (problem.m + problem.n) * problem.k
    fits = elements <= FEWEST_ELEMENTS or (elements <= FEW_ELEMENTS and read <= _READ_BY_BLOCKS)
    return problem.kind == "f32" and problem.batch == 1 and problem.k > _FEWEST_PRODUCTS and fits


def wide_sums_of(problem: GemmProblem) -> SimtConfig:
    """The config of v02 for a result of few elements: tiles as it is shaped, a long k in parts."""
    m, n = problem.m, problem.n
    config = wide_sums(1, 8) if m == 1 else wide_sums(8, 1) if n == 1 else wide_sums(2, 4) if m < n else wide_sums(4, 2)
    tiles = ceil_div(m, config.tile_m) * ceil_div(n, config.tile_n)
    return replace(config, split_k=max(1, min(ceil_div(problem.k, _PART), _PARTS // max(tiles, 1))))


def _warp_sums(config: SimtConfig, problem: GemmProblem) -> int:
    return 8 * (config.tile_m * config.tile_n) ** 2


def _one_each(config: SimtConfig, problem: GemmProblem) -> str | None:
    elements = config.tile_m * config.tile_n
    if config.warp_m * config.warp_n != 1:
        return f"a warp makes one element; the config has {config.warp_m} x {config.warp_n}"
    return None if elements in (8, 16) else f"a block makes 8 or 16 elements; the config has {elements}"


def _wide_space() -> tuple[SimtConfig, ...]:
    return tuple(wide_sums(*tile) for tile in ((1, 8), (2, 4), (4, 2), (8, 1), (4, 4)))


_DEFAULT = row_dots(1, 1, 1024)


def _space() -> tuple[SimtConfig, ...]:
    """Rows x columns of a warp x elements of a line that are under way."""
    return tuple(
        row_dots(rows, columns, tile_k) for rows, columns, tile_k in product((1, 2, 4), (1, 2, 4), (512, 1024, 2048))
    )


ROW_DOTS, WIDE_SUMS = ROW_RUNGS = (
    Rung(
        "v01_row_dots", "few rows: each element is a dot product of two lines, and B's are read once, by whole warps",
        "gemm/v01_row_dots.cuh", ("f32", *HALVES), _DEFAULT, _space, _no_shared, _check, vector_bytes=16, overlaps=True,
        own_constants=_constants,
    ),
    Rung(
        "v02_wide_sums", "few elements: a block's threads walk along k side by side, and add up in fp64",
        "gemm/v02_wide_sums.cuh", ("f32",), wide_sums(1, 8), _wide_space, _warp_sums, _one_each, overlaps=True,
        levels=("split_k",),
    ),
)  # fmt: skip
