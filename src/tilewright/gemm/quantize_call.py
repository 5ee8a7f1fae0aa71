"""A call of quantize for arrays on a GPU or the emulator: its kernels, as a program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ..arrays.dlpack import dense_strides
from ..arrays.dtypes import CPP_TYPES, ITEM_BYTES, ceil_div
from ..arrays.float8 import LARGEST
from ..arrays.view import Operand, as_operand
from ..gpus import Arch, Gpu
from ..jit import CompiledKernel, Launch, compile_rung
from ..jit.params import Address, Place, pack
from ..jit.source import Constant
from ..run.program import Program, Stage, Workspace
from ..run.runner import Output, Unchecked
from .params import LAYOUTS
from .stages import clear_stage

THREADS = 256
HELD = 8
"""Chunks of a block that a thread may keep in registers."""
BLOCKS = 512
"""Blocks of a grid that keep a GPU busy."""
BY_TEAM, LARGEST_ONLY, ROUNDED_ONLY = range(3)


@dataclass(frozen=True)
class Quantizing:
    """[batch, rows, cols] to fp8, with a scale for each `high` x `wide` elements; all of them share one scale where
    `high` and `wide` are everything and batch is 1."""

    batch: int
    rows: int
    cols: int
    high: int
    wide: int
    dtype: str
    out_dtype: str
    strides: tuple[int, int, int]
    """From entry to entry, row to row and column to column, in elements."""
    aligned: bool
    """True where each row starts at a multiple of 16 bytes."""

    @property
    def down(self) -> int:
        return ceil_div(self.rows, self.high)

    @property
    def across(self) -> int:
        return ceil_div(self.cols, self.wide)

    @property
    def blocks(self) -> int:
        return self.batch * self.down * self.across

    @property
    def in_two(self) -> bool:
        """Return whether the largest numbers are found by a launch of their own: where a team would have all of the
        array, a column, or one of a few large blocks."""
        size = min(self.high, self.rows) * min(self.wide, self.cols)
        return (self.wide < 8 and self.high > 1) or size > (1 << 14 if self.blocks < BLOCKS else 1 << 20)

    # of a team

    @property
    def chunks(self) -> int:
        """Chunks of eight elements of a block's row."""
        return ceil_div(min(self.wide, self.cols), 8)

    @property
    def team(self) -> int:
        """Threads for a block."""
        chunks = min(self.high, self.rows) * self.chunks
        return next((size for size in (1, 2, 4, 8, 16, 32) if chunks <= size), THREADS)

    @property
    def held(self) -> int:
        """Chunks of a block that each thread keeps; 0: they are read twice."""
        chunks = ceil_div(min(self.high, self.rows) * self.chunks, self.team)
        return chunks if chunks <= HELD else 0

    @property
    def each(self) -> int:
        """Blocks under one another for each team."""
        small = self.high == 1 and self.held == 1 and self.team <= 32
        return 4 if small and self.blocks * self.team >= 4 * BLOCKS * THREADS else 1

    # of strips

    @property
    def span(self) -> int:
        """Threads side by side along a row."""
        most = THREADS // min(8, 1 << min(self.high, self.rows).bit_length() - 1)
        return min(most, 1 << (ceil_div(self.cols, 8) - 1).bit_length())

    def strips(self, strip: int) -> int:
        """Blocks of the grid that have `strip` rows each."""
        along = ceil_div(self.cols, 8 * self.span)
        return self.batch * self.down * along * ceil_div(min(self.high, self.rows), strip)

    @property
    def strip(self) -> int:
        """Rows of a block of the grid: as many as leave enough of these."""
        side_by_side = THREADS // self.span
        return next((side_by_side * rows for rows in (16, 8, 4, 2) if self.strips(side_by_side * rows) >= BLOCKS),
                    side_by_side)  # fmt: skip


@dataclass(frozen=True)
class Quantizer:
    """One of the kernels."""

    part: int

    def compile(self, problem: Quantizing, arch: Arch) -> CompiledKernel:
        """Raises CompileError with the log."""
        vector = problem.aligned and problem.strides[2] == 1 and _in_eights(problem)
        vector_out = problem.cols % 8 == 0 and _in_eights(problem)
        constants: dict[str, Constant] = {
            "threads": THREADS, "part": self.part,
            "index": "unsigned" if self._blocks(problem) * THREADS < 2**32 else "unsigned long long",
            "in_type": CPP_TYPES[problem.dtype], "out_type": CPP_TYPES[problem.out_dtype],
            "most": LARGEST[problem.out_dtype], "infinities": problem.out_dtype == "e5m2",
            "vector": vector, "vector_out": vector_out, "whole": vector and vector_out,
            "one_block": problem.blocks == 1, "span": problem.span,
            "team": problem.team if self.part == BY_TEAM else THREADS, "one_line": problem.high == 1,
            "chunks": problem.chunks if problem.held else 0, "held": problem.held, "each": problem.each,
            "batched": problem.batch > 1,
        }  # fmt: skip
        return compile_rung("gemm/quantize.cuh", constants, "quantize", arch.name)

    def shape(self, problem: Quantizing) -> Launch:
        """See Rung.shape."""
        return Launch((self._blocks(problem), 1, 1), (THREADS, 1, 1), b"", overlaps=True)

    def _blocks(self, problem: Quantizing) -> int:
        """The blocks of the grid."""
        if self.part == BY_TEAM:
            teams = problem.batch * ceil_div(problem.down, problem.each) * problem.across
            return ceil_div(teams * problem.team, THREADS)
        return problem.strips(problem.strip)


def _in_eights(problem: Quantizing) -> bool:
    """Return whether blocks begin at multiples of eight columns, so that no chunk of eight lies across two teams."""
    return problem.wide % 8 == 0 or problem.wide >= problem.cols or problem.in_two


@dataclass(frozen=True)
class QuantizeCall(Unchecked):
    """A call for `x` [batch, rows, cols]."""

    x: Operand
    high: int
    wide: int
    out_dtype: str
    given: Any = None
    """An array for the rounded numbers, where the library has no dtype for them."""

    @property
    def problem(self) -> Quantizing:
        x, size = self.x, self.x.item_bytes
        starts = [x.address, *(step * size for extent, step in zip(x.shape[:2], x.strides, strict=False) if extent > 1)]
        batch, rows, cols = x.shape
        strides = (x.strides[0], x.strides[1], x.strides[2] if cols > 1 else 1)
        return Quantizing(batch, rows, cols, self.high, self.wide, x.dtype, self.out_dtype, strides,
                          not any(start % 16 for start in starts))  # fmt: skip

    @property
    def what(self) -> str:
        return f"this quantize of {self.x.shape} {self.x.dtype}"

    @property
    def first(self) -> Operand:
        return self.x

    @property
    def others(self) -> tuple[Operand, ...]:
        return ()

    @property
    def inputs(self) -> tuple[tuple[str, Operand | np.ndarray | None], ...]:
        return (("x", self.x),)

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The bytes, and the scales: by columns where blocks are of one row (quantize)."""
        one = self.problem
        scales = (one.batch, one.across, one.down) if self.high == 1 else (one.batch, one.down, one.across)
        return self._output("x8", self.x.shape, self.out_dtype, self.given), self._output("scale", scales, "f32")

    def _output(self, base: str, shape: tuple[int, ...], dtype: str, given: Any = None) -> Output:
        x = self.x
        if given is not None:
            return Output(base, as_operand(given, base, x.stream or 0), shape, given)
        return Output(base, Operand(base, x.kind, 0, shape, dense_strides(shape), dtype, x.device, stream=x.stream),
                      shape)  # fmt: skip

    @property
    def scalars(self) -> Mapping[str, float]:
        return {}

    def program(self, gpu: Gpu) -> Program | None:
        """The launches; None for an empty array."""
        return program_of(self.problem) if self.x.size else None


@lru_cache(maxsize=1024)
def program_of(problem: Quantizing) -> Program:
    """The launches for a problem. Pure."""
    workspace = Workspace()
    largest: Address = 0
    stages: list[Stage] = []
    parts = [BY_TEAM]
    if problem.in_two:
        size = problem.blocks * ITEM_BYTES["f32"]
        largest = workspace.room(size)
        stages.append(clear_stage(largest, size))
        parts = [LARGEST_ONLY, ROUNDED_ONLY]
    down, across = problem.down, problem.across
    scales = (down * across, 1, down) if problem.high == 1 else (down * across, across, 1)
    params = pack(
        LAYOUTS["quantize"][1], Place("x"), Place("x8"), Place("scale"), largest, *problem.strides, *scales,
        problem.batch, problem.rows, problem.cols, problem.high, problem.wide, down, across, problem.strip,
    )  # fmt: skip
    for part in parts:
        kernel = Quantizer(part)
        stages.append(Stage("quantize", kernel, problem, kernel.shape(problem), params))
    return Program(tuple(stages), workspace.bytes, len(stages) - 1)
