"""One launch of a rung on the emulator, as the tests of rungs want it: any strides, poisoned, guarded, judged.

Operands lie in buffers that end where they end, so that a read beyond is out of bounds; what lies between their
elements is NaN, so that a read of it shows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd

import numpy as np

from tilewright.arrays.dtypes import ITEM_BYTES
from tilewright.emu import Emulator, EmuResult
from tilewright.errors import ConfigRejected
from tilewright.gemm.problem import GemmProblem, Matrix
from tilewright.gemm.rung import Addresses, GemmConfig, Rung
from tilewright.gemm.stages import program_for
from tilewright.jit import CompiledKernel, use_executor
from tilewright.lab.check import CheckResult, check, reference
from tilewright.lab.numbers import POISON, STORED, from_stored, rounded, to_stored, to_tf32
from tilewright.plan.plan import Plan

BAND = 256
"""Elements of poison before and behind a result."""


@dataclass(frozen=True)
class Case:
    """A product. Layouts of each matrix: n row-major, t transposed, p rows padded by 8 elements, q by 5, o from one
    element on, u both t and o, s every other element of every other row, r one row repeated, c one column repeated.
    `beta` None: no C. `shared_b`: one B for the whole batch."""

    m: int
    n: int
    k: int
    layouts: str = "nn"
    out: str = "n"
    dtype: str = "bf16"
    out_dtype: str = "f32"
    alpha: float = 1.0
    beta: float | None = None
    c: str = "n"
    batch: int = 1
    shared_b: bool = False
    precision: str = "ieee"

    def __str__(self) -> str:
        text = f"{self.m}x{self.n}x{self.k}-{self.layouts}{self.out}-{self.dtype}-{self.out_dtype}"
        text += f"-batch{self.batch}" if self.batch > 1 else ""
        return text + (f"-beta{self.c}" if self.beta is not None else "")


def strides(layout: str, rows: int, cols: int) -> tuple[int, int, int, int]:
    """(row stride, column stride, first element, elements a matrix takes)."""
    padded = {"p": cols + 8, "q": cols + 5}
    if layout in padded:
        return padded[layout], 1, 0, rows * padded[layout]
    if layout == "s":
        pitch = 2 * cols + 3
        return 2 * pitch, 2, pitch + 3, (2 * rows + 1) * pitch
    steps = {"n": (cols, 1), "o": (cols, 1), "t": (1, rows), "u": (1, rows), "r": (0, 1), "c": (1, 0)}[layout]
    return *steps, 1 if layout in "ou" else 0, rows * cols


class Placed:
    """Matrices [batch, rows, cols] in one buffer of poison: how they lie, and a view of their elements as stored."""

    def __init__(self, layout: str, batch: int, rows: int, cols: int, dtype: str, band: int = 0, alone: bool = False):
        row_stride, col_stride, first, each = strides(layout, rows, cols)
        batch_stride = 0 if alone or batch == 1 else each
        reach = (batch - 1) * batch_stride + max(rows - 1, 0) * row_stride + max(cols - 1, 0) * col_stride + 1
        self.offset = band + first
        used = reach if rows and cols else 0
        self.bits = np.full(self.offset + used + band, POISON[dtype])
        self.dtype = dtype
        item = ITEM_BYTES[dtype]
        self.matrix = Matrix(row_stride, col_stride, batch_stride, gcd(16, self.offset * item))
        self.byte_offset = self.offset * item
        self._shape = (batch, rows, cols)
        self._strides = (batch_stride * item, row_stride * item, col_stride * item)

    def _of(self, whole: np.ndarray) -> np.ndarray:
        return np.ndarray(self._shape, whole.dtype, whole.data, self.byte_offset, self._strides)

    @property
    def view(self) -> np.ndarray:
        """The elements as numbers.STORED holds them."""
        return self._of(self.bits.view(STORED[self.dtype]))

    def fill(self, rng: np.random.Generator) -> np.ndarray:
        """Random normal elements; their values as float32."""
        values = rounded(rng.standard_normal(self._shape, dtype=np.float32), self.dtype)
        if self.bits.size:
            self.view[...] = to_stored(values, self.dtype)
        return from_stored(np.ascontiguousarray(self.view), self.dtype)

    def unwritten(self) -> int:
        """Elements that still hold poison."""
        return int((self._of(self.bits) == POISON[self.dtype]).sum())

    def intact_around(self) -> bool:
        """Whether everything but the elements still holds poison."""
        rest = self.bits.copy()
        self._of(rest)[...] = POISON[self.dtype]
        return bool((rest == POISON[self.dtype]).all())


@dataclass
class Product:
    """What a launch left."""

    verdict: CheckResult
    unwritten: int
    intact_around: bool
    result: EmuResult
    before: tuple[EmuResult, ...] = ()
    """Of the launches before it."""

    def assert_right(self) -> None:
        assert self.verdict.ok, self.verdict.reason
        assert self.unwritten == 0
        assert self.intact_around, "written beside the result"


class Bench:
    """A case with its operands, ready for a launch of any rung."""

    def __init__(self, case: Case, parts: int = 1) -> None:
        """`parts`: partial sums that a launch with split_k writes, one behind the other."""
        rng = np.random.default_rng(case.m * 7 + case.n * 5 + case.k)
        self.case, self.parts = case, parts
        a = Placed(case.layouts[0], case.batch, case.m, case.k, case.dtype)
        b = Placed(case.layouts[1], case.batch, case.k, case.n, case.dtype, alone=case.shared_b)
        c = Placed(case.c, case.batch, case.m, case.n, case.out_dtype) if case.beta is not None else None
        self.out = Placed(case.out, case.batch * parts, case.m, case.n, case.out_dtype, BAND)
        self.operands = [a, b, c]
        self.values = [placed.fill(rng) if placed is not None else None for placed in self.operands]
        if case.precision == "tf32":  # numbers that tf32 holds: the products are exact then
            for i in range(2):
                self.put(i, to_tf32(self.values[i]))
        self.problem = GemmProblem(
            case.m, case.n, case.k, a.matrix, b.matrix, self.out.matrix, c.matrix if c and case.beta else None,
            case.batch, case.dtype, case.out_dtype, precision=case.precision,
        )  # fmt: skip

    def put(self, index: int, values: np.ndarray) -> None:
        """Give operand `index` (0: a, 1: b, 2: c) other values, float32 [batch, rows, cols]."""
        placed = self.operands[index]
        if placed.bits.size:
            placed.view[...] = to_stored(values, placed.dtype)
        self.values[index] = from_stored(np.ascontiguousarray(placed.view), placed.dtype)

    def expected_bits(self) -> np.ndarray:
        """The result as stored if it is rounded once from float64's."""
        case, (a, b, c) = self.case, self.values
        exact = reference(a, b, c, case.alpha, case.beta or 0.0)
        return to_stored(exact.astype(np.float32), case.out_dtype)

    def run(
        self, rung: Rung, config: GemmConfig, kernel: CompiledKernel | None = None, sms: int | None = None
    ) -> Product:
        """Compile (unless a kernel is given) and launch, what splits its operands first where the rung wants that. On a
        GPU of `sms` SMs, where that is given.

        Raises ConfigRejected, CompileError, EmulatorFault.
        """
        emulator = Emulator()
        emulator.gpu = replace(emulator.gpu, sm_count=sms or emulator.gpu.sm_count)
        a, b, c = (
            emulator.upload(placed.bits.view(np.uint8), name) + placed.byte_offset if placed is not None else 0
            for name, placed in zip("abc", self.operands, strict=True)
        )
        out = emulator.upload(self.out.bits.view(np.uint8), "out")
        c, scalars = c if self.problem.use_c else 0, (self.case.alpha, self.case.beta or 0.0)
        with use_executor(emulator):  # kernels are compiled to PTX only, which is all that it runs
            if rung.splits or rung.passes_sums is not None:
                program = program_for(self.problem, Plan(rung, config, "", ""))
                if reason := rung.why_not(self.problem, config, emulator.arch):
                    raise ConfigRejected(reason)
                work = emulator.upload(np.full(program.workspace_bytes, 0xFF, np.uint8), "workspace")
                bases = {"a": a, "b": b, "c": c, "out": out + self.out.byte_offset, "work": work}
                for stage in program.stages:
                    own = kernel if stage is program.product else None
                    launch = stage.launch(bases, dict(zip(("alpha", "beta"), scalars, strict=True)))
                    emulator.launch(own or stage.compile(emulator.arch), launch)
            else:
                at = Addresses(a, b, out + self.out.byte_offset, c)
                kernel = kernel or rung.compile(self.problem, config, emulator.arch)
                emulator.launch(kernel, rung.launch(self.problem, config, at, *scalars))
        self.out.bits[:] = emulator.download(out, self.out.bits.nbytes).view(self.out.bits.dtype)
        *before, last = emulator.results
        return Product(self._judge(), self.out.unwritten(), self.out.intact_around(), last, tuple(before))

    def _judge(self) -> CheckResult:
        case, (a, b, c) = self.case, self.values
        out = from_stored(np.ascontiguousarray(self.out.view), case.out_dtype)
        if self.parts > 1:
            out = out.reshape(self.parts, case.batch, case.m, case.n).sum(axis=0)
        return check(
            out, a, b, c=c, alpha=case.alpha, beta=case.beta or 0.0, out_dtype=case.out_dtype,
            dtype="tf32" if case.precision == "tf32" else case.dtype,
        )  # fmt: skip
