"""The inputs of a product while it is tuned: A, B and an epilogue's operands in random numbers, many sets of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from ..arrays.dtypes import ITEM_BYTES
from ..gemm.params import fused_base
from ..gemm.problem import INDEX, GemmProblem, Matrix
from .race import Memory, rounded_up
from .verify import Pattern, pattern_of


def footprint(matrix: Matrix, rows: int, cols: int, batch: int, item: int) -> int:
    """Bytes from an operand's lowest element to the end of its highest."""
    return (sum(map(abs, _reaches(matrix, rows, cols, batch))) + 1) * item


def _reaches(matrix: Matrix, rows: int, cols: int, batch: int) -> tuple[int, int, int]:
    """Elements from the first to the last along each index."""
    return (rows - 1) * matrix.row_stride, (cols - 1) * matrix.col_stride, (batch - 1) * matrix.batch_stride


@dataclass(frozen=True)
class _Input:
    dtype: str
    row: str
    """Of inputs in memory: see Inputs."""
    lies: Matrix
    offset: int
    """Bytes from the start of a set's part of its row to the first element; of an index 0."""


class Inputs:
    """The inputs of a problem, laid out; in memory once `allocate` was called.

    Those of one dtype lie one after another in memory that repeats the dtype's pattern, set after set, but for B,
    which has a row and a pattern of its own:

        bf16   | A | residual | A | residual | ...      bf16 of b   | B | B | ...      f32   | bias | bias | ...

    so no two of a dtype hold the same numbers, and one that takes another's place is found. With one pattern for both
    operands lines of A met the very same numbers in B: a sum of squares, larger than all that the bound was made for.
    None is better aligned than the problem says.
    """

    def __init__(self, problem: GemmProblem, pattern: Pattern) -> None:
        m, n, k = problem.m, problem.n, problem.k
        b_dtype = problem.dtype_of("b")
        b_row = f"{b_dtype} of b"
        self._patterns = {problem.dtype: pattern, b_row: pattern_of(b_dtype, 1)}
        self._bytes: Counter[str] = Counter()
        self._inputs: dict[str, _Input] = {}
        self._starts: dict[str, int] = {}
        self._count = len(problem.epilogue.operands) if problem.epilogue else 0
        self._add("a", problem.dtype, problem.a, m, k, problem.batch)
        self._add("b", b_dtype, problem.b, k, n, problem.batch, b_row)
        for number, operand in enumerate(problem.epilogue.operands if problem.epilogue else ()):
            self._add(fused_base(number), operand.dtype, operand.matrix, m, n, problem.batch)

    def _add(self, name: str, dtype: str, lies: Matrix, rows: int, cols: int, batch: int, row: str = "") -> None:
        row = row or dtype
        if dtype == INDEX:
            self._inputs[name] = _Input(dtype, row, lies, 0)
            return
        item = ITEM_BYTES[dtype]
        before = -sum(min(reach, 0) for reach in _reaches(lies, rows, cols, batch)) * item
        self._inputs[name] = _Input(dtype, row, lies, self._bytes[row] + before + (lies.alignment - before) % 16)
        self._bytes[row] += rounded_up(footprint(lies, rows, cols, batch, item) + 16)
        if row not in self._patterns:
            self._patterns[row] = pattern_of(dtype)

    @property
    def bytes(self) -> int:
        """The bytes of one set."""
        return sum(self._bytes.values())

    def allocate(self, memory: Memory, count: int) -> None:
        """Raises DeviceError when `count` sets do not fit."""
        for row, nbytes in self._bytes.items():
            self._starts[row] = memory.filled(count * nbytes, self._patterns[row])

    def address(self, name: str, number: int) -> int:
        """The address of an input in set `number`; of an index where it starts, 0."""
        found = self._inputs[name]
        if found.dtype == INDEX:
            return 0
        return self._starts[found.row] + number * self._bytes[found.row] + found.offset

    def fused(self, number: int) -> tuple[int, ...]:
        """The addresses of the epilogue's operands in set `number`."""
        return tuple(self.address(fused_base(place), number) for place in range(self._count))

    def values(self, name: str, entry: int, rows: np.ndarray, cols: np.ndarray) -> np.ndarray:
        """[rows, cols] of a batch entry of the first set: float64, of an index whole numbers."""
        found = self._inputs[name]
        steps = rows[:, None] * found.lies.row_stride + cols[None, :] * found.lies.col_stride
        places = found.offset // ITEM_BYTES.get(found.dtype, 1) + entry * found.lies.batch_stride + steps
        return places if found.dtype == INDEX else self._patterns[found.row].values(places)
