"""Rungs for products of few rows, of fp32 and of 16 bits, whose time is that of reading the other operand."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from ...arrays.dtypes import CPP_TYPES, ITEM_BYTES
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
_STEP = 512
"""Bytes of a line that a warp reads in one access."""


def row_dots(rows: int, columns: int, tile_k: int) -> SimtConfig:
    """The config whose warps make `columns` of `rows`, `tile_k` elements of a line under way."""
    fewer = 2 if rows * columns > 8 else 4  # blocks an SM
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


_DEFAULT = row_dots(1, 1, 1024)


def _space() -> tuple[SimtConfig, ...]:
    """Rows x columns of a warp x elements of a line that are under way."""
    return tuple(
        row_dots(rows, columns, tile_k) for rows, columns, tile_k in product((1, 2, 4), (1, 2, 4), (512, 1024, 2048))
    )


ROW_RUNGS: tuple[Rung, ...] = (
    Rung(
        "v01_row_dots", "few rows: each element is a dot product of two lines, and B's are read once, by whole warps",
        "gemm/v01_row_dots.cuh", ("f32", *HALVES), _DEFAULT, _space, _no_shared, _check, vector_bytes=16, overlaps=True,
        own_constants=_constants,
    ),
)  # fmt: skip
