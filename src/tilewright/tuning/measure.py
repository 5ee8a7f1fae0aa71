"""Candidates on a GPU: verified one by one, then timed side by side on rotated operands larger than the L2."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import numpy as np

from ..errors import WrongResult
from ..jit import CompiledKernel, Launch
from ..jit.device import Prepared, executor_for
from ..jit.timing import Launch as Start
from ..ladder import find_rung
from ..ladder.rung import Addresses
from ..plan import Plan
from ..problems import ITEM_BYTES, GemmProblem, Matrix
from ..program import Program, program_for
from .race import Memory, Race, rounded_up, sets_for
from .space import Candidate
from .verify import (
    RESULT_BYTES,
    Difference,
    Pattern,
    allowed_error,
    compare_kernel,
    compare_launch,
    read_difference,
    sample_places,
)

GUARD = 1024
"""Bytes before and behind every output that must stay as they were filled."""
FILL = 0xFF
"""Of outputs and guards: a NaN in every type."""
_REFERENCE = {"f32": "f02", "bf16": "h01", "f16": "h01"}
"""A plain rung on the FP32 lanes: none of the machinery that candidates share."""
_ROWS, _COLUMNS = 16, 64
"""Of the reference's product, checked in float64."""


def footprint(matrix: Matrix, rows: int, cols: int, batch: int, item: int) -> int:
    """Bytes from an operand's first element to behind its last."""
    last = (rows - 1) * matrix.row_stride + (cols - 1) * matrix.col_stride + (batch - 1) * matrix.batch_stride
    return (last + 1) * item


class GpuMeasurer:
    """Runs the candidates of one problem on one GPU. A context manager; frees what it holds.

    `problem`'s result must be dense, and C is not read. Raises DeviceError when the memory does not suffice.
    """

    def __init__(self, problem: GemmProblem, ordinal: int, pattern: Pattern) -> None:
        self.problem = problem
        self.executor, self.pattern = executor_for(ordinal), pattern
        self.ordinal, self.gpu = ordinal, self.executor.gpu
        item = ITEM_BYTES[problem.dtype]
        self.out_bytes = problem.batch * problem.m * problem.n * ITEM_BYTES[problem.out_dtype]
        a_bytes = rounded_up(footprint(problem.a, problem.m, problem.k, problem.batch, item) + 16)
        b_bytes = rounded_up(footprint(problem.b, problem.k, problem.n, problem.batch, item) + 16)
        out_bytes = rounded_up(self.out_bytes + 2 * GUARD)
        one = a_bytes + b_bytes + out_bytes
        self.count = sets_for(one, self.gpu.l2)
        # operands that must not be better aligned than the problem's
        a_shift, b_shift = problem.a.alignment % 16, problem.b.alignment % 16
        self._stack = ExitStack()
        self._memory = Memory(ordinal, self._stack)
        try:
            operands = self._memory.filled(self.count * (a_bytes + b_bytes), pattern)
            outs = self._memory.allocate(self.count * out_bytes)
            self.expected = self._memory.allocate(4 * problem.batch * problem.m * problem.n)
            self.result = self._memory.allocate(RESULT_BYTES)
            self.sets = []
            for i in range(self.count):
                first = operands + i * (a_bytes + b_bytes)
                self.sets.append(Addresses(first + a_shift, first + a_bytes + b_shift, outs + i * out_bytes + GUARD))
            self.operands = operands
            self._race = Race(ordinal, self._stack)
            self.compare = compare_kernel(problem.out_dtype, self.gpu.arch.name)
            self.largest = self._make_reference()
        except BaseException:
            self._stack.close()
            raise
        self._work = self._work_bytes = 0

    def __enter__(self) -> GpuMeasurer:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # --- verification ------------------------------------------------------------------------------------------------

    def _make_reference(self) -> float:
        """Leave the first set's product in self.expected, by a plain rung; the largest of its checked elements.

        Raises WrongResult when the reference is not what float64 says: nothing could be verified then.
        """
        problem, rung = self.problem, find_rung(_REFERENCE[self.problem.dtype])
        plain = replace(problem, out_dtype="f32", precision="ieee")
        kernel = rung.compile(plain, rung.default, self.gpu.arch)
        self._memory.fill(self.expected, FILL, 4 * problem.batch * problem.m * problem.n)
        self.executor.launch(kernel, rung.plan(plain, rung.default, replace(self.sets[0], out=self.expected)))
        self.executor.synchronize()
        rows, cols = sample_places(problem.m, _ROWS, 1), sample_places(problem.n, _COLUMNS, 2)
        worst = largest = 0.0
        for entry in {0, problem.batch - 1}:
            right = self._values("b", entry, np.arange(problem.k), cols)
            product = self._values("a", entry, rows, np.arange(problem.k)) @ right
            found = np.stack([self._expected_row(entry, int(row))[cols] for row in rows])
            worst = float(np.maximum(worst, np.abs(found - product).max()))
            largest = max(largest, float(np.abs(product).max()))
        if not worst <= allowed_error(problem.k, "f32", largest):
            raise WrongResult(
                f"{rung} gives a wrong product at {problem.m} x {problem.n} x {problem.k}: off by {worst:.3g} from "
                f"float64, so no candidate can be verified. Run `pytest -m gpu` to see which kernels are right here."
            )
        return largest

    def _values(self, name: str, entry: int, rows: np.ndarray, cols: np.ndarray) -> np.ndarray:
        matrix, address = getattr(self.problem, name), getattr(self.sets[0], name)
        base = (address - self.operands) // self.pattern.item_bytes + entry * matrix.batch_stride
        return self.pattern.values(base + rows[:, None] * matrix.row_stride + cols[None, :] * matrix.col_stride)

    def _expected_row(self, entry: int, row: int) -> np.ndarray:
        first = (entry * self.problem.m + row) * self.problem.n
        data = self.executor.download(self.expected + 4 * first, 4 * self.problem.n)
        return data.view(np.float32).astype(np.float64)

    def _stages(self, candidate: Candidate, kernel: CompiledKernel) -> tuple[Program, list[CompiledKernel], int]:
        """(the launches of a product, their kernels, the workspace's address). The workspace is shared by all."""
        program = program_of(self.problem, candidate)
        kernels = [kernel if stage is program.product else stage.compile(self.gpu.arch) for stage in program.stages]
        if program.workspace_bytes > self._work_bytes:
            self._work, self._work_bytes = self._memory.allocate(program.workspace_bytes), program.workspace_bytes
        return program, kernels, self._work

    def _launches_of(self, program: Program, work: int, addresses: Addresses) -> list[Launch]:
        bases = {"a": addresses.a, "b": addresses.b, "c": 0, "out": addresses.out, "work": work}
        return [stage.launch(self.problem.batch, bases, 1.0, 0.0)[0] for stage in program.stages]

    def verify(self, candidate: Candidate, kernel: CompiledKernel) -> str:
        """Run the first product into poisoned memory and compare all of it; "" when right, else what is wrong.

        `kernel` is the product's own. Raises DeviceError when it cannot be launched; after a fault the whole context
        is lost.
        """
        program, kernels, work = self._stages(candidate, kernel)
        if program.workspace_bytes:
            self._memory.fill(work, FILL, program.workspace_bytes)
        out = self.sets[0].out
        self._memory.fill(out - GUARD, FILL, self.out_bytes + 2 * GUARD)
        self._memory.fill(self.result, 0, RESULT_BYTES)
        for stage, launch in zip(kernels, self._launches_of(program, work, self.sets[0]), strict=True):
            self.executor.launch(stage, launch)
        elements = self.problem.batch * self.problem.m * self.problem.n
        allowed = allowed_error(self.problem.k, self.problem.kind, self.largest)
        self.executor.launch(self.compare, compare_launch(out, self.expected, self.result, elements, allowed))
        found = read_difference(self.executor.download(self.result, RESULT_BYTES))
        for place in (out - GUARD, out + self.out_bytes):
            if (self.executor.download(place, GUARD) != FILL).any():
                return "it wrote outside its output"
        return _words(found, elements, allowed)

    # --- times -------------------------------------------------------------------------------------------------------

    def prepare(self, candidate: Candidate, kernel: CompiledKernel) -> None:
        """Make ready to be timed."""
        program, kernels, work = self._stages(candidate, kernel)
        launches = [self._launches_of(program, work, addresses) for addresses in self.sets]

        def starts() -> list[Start]:
            prepared = [Prepared(k, launch, self.ordinal) for k, launch in zip(kernels, launches[0], strict=True)]
            return [partial(_start, prepared, [launch.params for launch in one]) for one in launches]

        self._race.enter(candidate, starts)

    def one_pass(self, candidates: Sequence[Candidate], number: int) -> list[float]:
        """Milliseconds of each, side by side."""
        return self._race.one_pass(candidates, number)


def program_of(problem: GemmProblem, candidate: Candidate) -> Program:
    """The launches that a plan with the candidate would make."""
    return program_for(problem, Plan(candidate.rung, candidate.config, "tuning", "", packs=candidate.packs))


def _start(prepared: Sequence[Prepared], params: Sequence[bytes], stream: int) -> None:
    for stage, values in zip(prepared, params, strict=True):
        stage.launch(values, stream)


def _words(found: Difference, elements: int, allowed: float) -> str:
    if found.wrong == 0:
        return ""
    return (
        f"{found.wrong} of {elements} elements are wrong or unwritten (largest difference {found.worst:.3g}, "
        f"{allowed:.3g} allowed)"
    )
