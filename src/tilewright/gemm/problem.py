"""The problem of a product: what is computed, apart from how; frozen, validated, hashable."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from math import gcd
from typing import Any, NamedTuple

from ..arrays.dtypes import DTYPE_NAMES, FP8, ITEM_BYTES, LARGEST_EXTENT
from ..errors import InvalidOperand, did_you_mean
from ..gpus import HashedOnce

PRECISIONS = ("ieee", "tf32", "fp32x3", "fast")
"""How operands are multiplied. float32: fp32 arithmetic; rounded to tf32; as parts, as accurately as fp32. fp8: "fast"
leaves whole sums to the tensor cores, which keep 14 bits of them; else they keep the sums of 128 products at most."""
SCALE_BLOCK = 128
"""The elements along k, and of B also along n, that share a block's scale."""


def check_precision(precision: str, dtype: str) -> None:
    """Raise InvalidOperand for a precision that is not known, or that operands of `dtype` cannot have."""
    if not isinstance(precision, str) or precision not in PRECISIONS:  # an array has no truth value
        raise InvalidOperand(
            f"precision {precision!r} is not known.{did_you_mean(str(precision), PRECISIONS)} "
            f"Known: {', '.join(PRECISIONS)}."
        )
    of_fp8 = precision == "fast"
    if dtype not in FP8 if of_fp8 else precision != "ieee" and dtype != "f32":
        raise InvalidOperand(
            f"precision {precision!r} is a way to multiply {'fp8' if of_fp8 else 'float32'} operands; these are "
            f"{DTYPE_NAMES.get(dtype, dtype)}. Omit precision."
        )


@dataclass(frozen=True)
class Matrix:
    """The layout of one operand in memory: strides in elements, the base address's alignment in bytes (at most 16)."""

    row_stride: int
    col_stride: int
    batch_stride: int = 0
    alignment: int = 16
    padded: bool = False
    """True where zeros follow its last row and column up to whole tiles of the config it was packed for (stages.py)."""

    def unit(self, rows: int, cols: int) -> str:
        """Return which index walks memory one element at a time: "col" (a row lies contiguous), "row", or "none".

        An extent of 1 has a stride that no access uses, so it suits either: a single column whose elements are
        neighbours counts as a line of them; else "col" is preferred.
        """
        if cols <= 1 and rows > 1 and self.row_stride == 1:
            return "row"
        if self.col_stride == 1 or cols <= 1:
            return "col"
        if self.row_stride == 1 or rows <= 1:
            return "row"
        return "none"

    def vector_bytes(self, rows: int, cols: int, item_bytes: int) -> int:
        """The widest power of two up to 16 that divides the address of every line's start (bytes)."""
        return gcd(16, self.alignment, self._lines_apart(rows, cols, item_bytes))

    def whole_sectors(self, rows: int, cols: int, item_bytes: int) -> bool:
        """Return whether all lines start at multiples of 32 bytes, a sector, if the first one does."""
        return self._lines_apart(rows, cols, item_bytes) % 32 == 0

    def _lines_apart(self, rows: int, cols: int, item_bytes: int) -> int:
        """The largest number of bytes of which every line's distance from the first is a multiple; 0 of one line."""
        by_rows = self.unit(rows, cols) == "col"
        pitch, lines = (self.row_stride, rows) if by_rows else (self.col_stride, cols)
        return gcd(pitch * item_bytes if lines > 1 else 0, self.batch_stride * item_bytes)

    def readable(self, rows: int, cols: int, item_bytes: int, access_bytes: int) -> bool:
        """Return whether accesses so wide can read its lines: they lie contiguous, and each starts at a multiple of
        that."""
        return self.unit(rows, cols) != "none" and self.vector_bytes(rows, cols, item_bytes) >= access_bytes


def row_major(rows: int, cols: int, batch: int = 1) -> Matrix:
    """A dense matrix whose rows lie contiguous."""
    return Matrix(cols, 1, rows * cols if batch > 1 else 0)


def col_major(rows: int, cols: int, batch: int = 1) -> Matrix:
    """A dense matrix whose columns lie contiguous: the transpose of a row-major one."""
    return Matrix(1, rows, rows * cols if batch > 1 else 0)


INDEX = "index"
"""The dtype of an epilogue's operand that is an index of the result: its matrix's strides say how it counts."""


@dataclass(frozen=True)
class FusedOperand:
    """An operand that an epilogue reads besides the sum: an array broadcast over the result by strides of 0, or an
    index."""

    name: str
    dtype: str
    matrix: Matrix
    is_out: bool = False
    """True where the result is written to this very view, so that loads must stay before the stores."""
    scales: str = ""
    """ "a" or "b": these are the scales of that operand's blocks of SCALE_BLOCK along k (of B along n too). The
    products read them, by the matrix's rows and columns of blocks; the epilogue does not."""


@dataclass(frozen=True)
class Epilogue:
    """The function applied to alpha * A @ B + beta * C, element by element in fp32, before it is rounded and stored.

    Equal ones share a kernel, and may stand for one another in anything that is kept: what does not count for equality
    is of the call that an epilogue was made for, and only valid there.
    """

    description: str = field(compare=False)
    """The expression as Python would write it."""
    code: str
    """C++ statements: they read value[i], operand j as in{j}[i] (an index: in{j}) and parameter k as args.number[k],
    and write value[i]."""
    operands: tuple[FusedOperand, ...] = ()
    nodes: tuple[Any, ...] = field(default=(), compare=False, repr=False)
    """The traced operations (epilogue.trace.Node), parameters by their places; () where only code is known. They are
    the same wherever the code is."""
    numbers: tuple[float, ...] = field(default=(), compare=False)
    """The parameters. Each launch is given its own call's."""


@dataclass(frozen=True)
class GemmProblem(HashedOnce):
    """out[b] = f(alpha * A[b] @ B[b] + beta * C[b]), with A m x k, B k x n, C and out m x n; f is `epilogue`, if any.

    `use_c` is False exactly when beta is 0: C is then never read. Raises InvalidOperand for values out of range.
    """

    m: int
    n: int
    k: int
    a: Matrix
    b: Matrix
    out: Matrix
    c: Matrix | None = None
    batch: int = 1
    dtype: str = "f32"
    out_dtype: str = "f32"
    epilogue: Epilogue | None = None
    precision: str = "ieee"
    """One of PRECISIONS; of 16-bit operands always "ieee"."""
    b_dtype: str = ""
    """B's dtype where it is not A's: both are of fp8."""

    __hash__ = HashedOnce.__hash__

    def __post_init__(self) -> None:
        for name, value in (("m", self.m), ("n", self.n), ("k", self.k), ("batch", self.batch)):
            if not 0 <= value <= LARGEST_EXTENT:
                raise InvalidOperand(f"{name}={value} is outside 0..{LARGEST_EXTENT}, the range of a kernel's sizes.")
        for name in (self.dtype, self.out_dtype, self.dtype_of("b")):
            if name not in ITEM_BYTES:
                raise InvalidOperand(f"dtype {name!r} is not supported. Supported: {', '.join(ITEM_BYTES)}.")
        check_precision(self.precision, self.dtype)

    @staticmethod
    def dense(
        m: int, n: int, k: int, *, layout: str = "nn", use_c: bool = False, batch: int = 1, dtype: str = "f32",
        out_dtype: str | None = None, precision: str = "ieee",
    ) -> GemmProblem:  # fmt: skip
        """Dense, aligned operands. `layout`: one letter for A, one for B; "n" row-major, "t" transposed in memory.
        `out_dtype`: by default dtype, of fp8 bf16.
        """
        if len(layout) != 2 or set(layout.lower()) - {"n", "t"}:
            raise InvalidOperand(f"layout {layout!r} is not one of nn, nt, tn, tt.")
        of = {"n": row_major, "t": col_major}
        out = row_major(m, n, batch)
        return GemmProblem(
            m, n, k, of[layout[0].lower()](m, k, batch), of[layout[1].lower()](k, n, batch), out,
            out if use_c else None, batch, dtype, out_dtype or ("bf16" if dtype in FP8 else dtype),
            precision=precision,
        )  # fmt: skip

    @cached_property
    def kind(self) -> str:
        """The way operands are multiplied: the operands' dtype ("fp8" for both of its), or the precision where one is
        named."""
        if self.precision != "ieee":
            return self.precision
        return "fp8" if self.dtype in FP8 else self.dtype

    @cached_property
    def lines(self) -> Lines:
        """Return how A's, B's and the result's lines suit wide accesses: asked for every config that a plan looks
        at."""
        item, out_item = ITEM_BYTES[self.dtype], ITEM_BYTES[self.out_dtype]
        stored = (self.out,) if self.c is None else (self.out, self.c)
        return Lines(
            self.a.readable(self.m, self.k, item, 16), self.b.readable(self.k, self.n, item, 16),
            self.a.whole_sectors(self.m, self.k, item), self.b.whole_sectors(self.k, self.n, item),
            self.n * out_item % 16 == 0
            and all(view.col_stride == 1 and view.vector_bytes(self.m, self.n, out_item) == 16 for view in stored),
        )  # fmt: skip

    def dtype_of(self, name: str) -> str:
        """The dtype of operand "a" or "b"."""
        return (self.b_dtype if name == "b" else "") or self.dtype

    @property
    def bare(self) -> GemmProblem:
        """The same without an epilogue; scales of blocks, which products read, stay."""
        if self.epilogue is None or (self.scaled_blocks and not self.epilogue.code):
            return self
        scales = tuple(operand for operand in self.epilogue.operands if operand.scales)
        return replace(self, epilogue=Epilogue("acc", "", self.epilogue.operands) if scales else None)

    @property
    def scaled_blocks(self) -> dict[str, int]:
        """The operands whose blocks have scales: the number of these among the epilogue's operands."""
        operands = self.epilogue.operands if self.epilogue else ()
        return {operand.scales: number for number, operand in enumerate(operands) if operand.scales}

    @property
    def use_c(self) -> bool:
        return self.c is not None

    @property
    def layout(self) -> str:
        """Two letters, A then B: n (row-major), t (column-major), s (strided)."""
        letters = {"col": "n", "row": "t", "none": "s"}
        return letters[self.a.unit(self.m, self.k)] + letters[self.b.unit(self.k, self.n)]

    def side(self, name: str) -> Side:
        """The operand "a" or "b": how it lies, its rows and columns."""
        return Side(self.a, self.m, self.k) if name == "a" else Side(self.b, self.k, self.n)

    def packing(self, name: str, tile: tuple[int, int, int]) -> Packing:
        """Return how operand `name` is copied to whole tiles of a `tile` of m x n x k elements.

        The contiguous index stays, or becomes, the one with the smaller stride (of fp8 it is k); a matrix that all
        products share is copied once.
        """
        source, rows, cols = self.side(name)
        tile_m, tile_n, tile_k = tile
        unit = source.unit(rows, cols)
        along_rows = unit == "row" or (unit == "none" and abs(source.row_stride) < abs(source.col_stride))
        if self.dtype in FP8:  # tensor cores read fp8 along k alone
            along_rows = name == "b"
        whole_rows, whole_cols = (
            max(-(-size // step), 1) * step
            for size, step in zip((rows, cols), (tile_m, tile_k) if name == "a" else (tile_k, tile_n), strict=True)
        )
        (length, lines), (pitch, padded) = (
            ((rows, cols), (whole_rows, whole_cols)) if along_rows else ((cols, rows), (whole_cols, whole_rows))
        )
        copies = self.batch if source.batch_stride else 1
        step = padded * pitch if copies > 1 else 0
        lies = Matrix(1, pitch, step, padded=True) if along_rows else Matrix(pitch, 1, step, padded=True)
        steps = source.row_stride, source.col_stride
        nbytes = copies * padded * pitch * ITEM_BYTES[self.dtype]
        return Packing(lies, steps[::-1] if along_rows else steps, lines, length, padded, pitch, copies, nbytes)

    def packed(self, tile: tuple[int, int, int], names: tuple[str, ...]) -> GemmProblem:
        """The problem as the product's kernel meets it once the operands named are copied to whole tiles."""
        return _packed(self, tile, names) if names else self

    @property
    def flops(self) -> int:
        """2 m n k a batch entry, the field's convention (alpha and beta not counted)."""
        return 2 * self.m * self.n * self.k * self.batch

    @cached_property
    def bytes(self) -> int:
        """The fewest bytes through device memory: each operand once, C and the epilogue's too, the result once."""
        item, out_item = ITEM_BYTES[self.dtype], ITEM_BYTES[self.out_dtype]
        operands = self.m * self.k + self.k * self.n
        beside = 0
        for operand in self.epilogue.operands if self.epilogue else ():
            lies = operand.matrix
            rows, cols = self.m if lies.row_stride else 1, self.n if lies.col_stride else 1
            copies = self.batch if lies.batch_stride else 1
            beside += rows * cols * copies * ITEM_BYTES.get(operand.dtype, 0)
        return self.batch * (operands * item + self.m * self.n * out_item * (2 if self.use_c else 1)) + beside

    @property
    def intensity(self) -> float:
        """FLOP per byte of compulsory traffic."""
        return self.flops / self.bytes if self.bytes else 0.0


class Lines(NamedTuple):
    """The answer of GemmProblem.lines. `wide`: 16-byte accesses read an operand's lines, each contiguous."""

    a_wide: bool
    b_wide: bool
    a_sectors: bool
    """True where A's lines start at multiples of 32 bytes, if the first one does."""
    b_sectors: bool
    vectors: bool
    """True where whole 16-byte vectors of C and out can be moved: rows contiguous and aligned, n whole vectors."""


class Side(NamedTuple):
    """One operand of a product, and its extents in elements."""

    matrix: Matrix
    rows: int
    cols: int


class Packing(NamedTuple):
    """A copy of an operand to whole tiles: `lines` runs of `length` elements become `padded` runs of `pitch`."""

    lies: Matrix
    """How the copy lies."""
    steps: tuple[int, int]
    """From one line to the next, and along a line, in elements of the source."""
    lines: int
    length: int
    padded: int
    pitch: int
    copies: int
    """Entries of the batch that are copied."""
    bytes: int
    """Of the whole copy."""


@lru_cache(maxsize=1024)
def _packed(problem: GemmProblem, tile: tuple[int, int, int], names: tuple[str, ...]) -> GemmProblem:
    lies = {name: problem.packing(name, tile).lies for name in names}
    return replace(problem, a=lies.get("a", problem.a), b=lies.get("b", problem.b))
