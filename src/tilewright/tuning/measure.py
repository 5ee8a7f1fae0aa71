"""Candidates on a GPU: verified one by one, then timed side by side on rotated operands larger than the L2."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import numpy as np

from ..arrays.dtypes import FP8, ITEM_BYTES
from ..errors import InvalidOperand, WrongResult
from ..gemm.params import fused_base
from ..gemm.problem import GemmProblem
from ..gemm.rung import Addresses
from ..gemm.rungs import find_rung
from ..gemm.stages import program_for
from ..jit import CompiledKernel, Launch
from ..jit.device import Prepared, executor_for
from ..jit.params import named_numbers
from ..jit.timing import Launch as Start
from ..plan.plan import Plan
from ..plan.space import Candidate
from ..run.program import Program
from .fused import exact, in_fp32, moved
from .inputs import Inputs
from .race import Memory, Race, rounded_up, sets_for
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
_REFERENCE = {"f32": "f02", "bf16": "h01", "f16": "h01", "e4m3": "q01", "e5m2": "q01"}
"""A plain rung on the FP32 lanes, none of the machinery that candidates share; of fp8 one that sums as fp16 does."""
_ROWS, _COLUMNS = 16, 64
"""Of the reference's product, checked in float64."""


class GpuMeasurer:
    """Runs the candidates of one problem on one GPU. A context manager; frees what it holds.

    `problem`'s result must be dense, and C is not read; an epilogue is computed. Raises DeviceError when the memory
    does not suffice, InvalidEpilogue for an epilogue of which no result can be verified (fused.exact).
    """

    def __init__(self, problem: GemmProblem, ordinal: int, pattern: Pattern) -> None:
        if problem.out_dtype in FP8 or problem.scaled_blocks:
            raise InvalidOperand(
                "products with results in fp8 or with scales of blocks are not measured. Tune the same product "
                "without: its result is the nearest to theirs."
            )
        self.problem = problem
        self._numbers = problem.epilogue.numbers if problem.epilogue is not None else ()
        self.executor, self.pattern = executor_for(ordinal), pattern
        self.ordinal, self.gpu = ordinal, self.executor.gpu
        self.out_bytes = problem.batch * problem.m * problem.n * ITEM_BYTES[problem.out_dtype]
        self.inputs = Inputs(problem, pattern)
        out_bytes = rounded_up(self.out_bytes + 2 * GUARD)
        self.count = sets_for(self.inputs.bytes + out_bytes, self.gpu.l2)
        self._stack = ExitStack()
        self._memory = Memory(ordinal, self._stack)
        try:
            self.inputs.allocate(self._memory, self.count)
            outs = self._memory.allocate(self.count * out_bytes)
            size = 4 * problem.batch * problem.m * problem.n
            self.expected = [self._memory.allocate(size), 0, 0]
            if problem.epilogue is not None:  # of the sum moved up and down, too
                self.expected[1:] = [self._memory.allocate(size) for _ in range(2)]
            self.result = self._memory.allocate(RESULT_BYTES)
            self.sets = [
                Addresses(
                    self.inputs.address("a", i), self.inputs.address("b", i), outs + i * out_bytes + GUARD,
                    fused=self.inputs.fused(i), numbers=self._numbers,
                )
                for i in range(self.count)
            ]  # fmt: skip
            self._race = Race(ordinal, self._stack)
            self.compare = compare_kernel(problem.out_dtype, self.gpu.arch.name)
            self.allowed = self._make_reference()
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
        """Leave the first set's product in self.expected, by a plain rung; what a candidate may be off from it.

        With an epilogue: its results of the sum, and of the sum moved up and down by what a candidate's may be off;
        what is given back is what computing it may lose beside that (fused.py). Raises WrongResult when the reference
        is not what float64 says: nothing could be verified then.
        """
        problem = self.problem
        sums = self._exact_sums()
        largest = max(float(np.abs(product).max()) for product in sums.values())
        allowed = allowed_error(problem.k, problem.kind, largest)
        if problem.epilogue is None:
            self._run_reference(self.expected[0])
            self._check_reference(self.expected[0], sums, allowed_error(problem.k, "f32", largest))
            return allowed
        shifts = np.array([0, allowed, -allowed], np.float32)
        place = self._memory.allocate(shifts.nbytes)
        self.executor.write(place, shifts.view(np.uint8))
        on_the_way = 0.0
        for number, (out, shift) in enumerate(zip(self.expected, shifts, strict=True)):
            self._run_reference(out, place + number * shifts.itemsize)
            on_the_way = max(on_the_way, self._check_fused(out, sums, float(shift), largest))
        return in_fp32(problem.out_dtype) * on_the_way

    def _exact_sums(self) -> dict[int, np.ndarray]:
        """Elements of A @ B in float64, by batch entry."""
        every = np.arange(self.problem.k)
        rows, cols = self._looked_at
        return {
            entry: self.inputs.values("a", entry, rows, every) @ self.inputs.values("b", entry, every, cols)
            for entry in {0, self.problem.batch - 1}
        }

    @property
    def _looked_at(self) -> tuple[np.ndarray, np.ndarray]:
        """The rows and columns that are checked in float64."""
        return sample_places(self.problem.m, _ROWS, 1), sample_places(self.problem.n, _COLUMNS, 2)

    def _run_reference(self, out: int, shift: int = 0) -> None:
        """The first set's product into fp32 at `out`; with an epilogue, of the sum plus the number at `shift`."""
        problem, rung = self.problem, find_rung(_REFERENCE[self.problem.dtype])
        plain = replace(problem, out_dtype="f32", precision="ieee")
        addresses = replace(self.sets[0], out=out)
        if problem.epilogue is not None:
            plain = replace(plain, epilogue=moved(problem.epilogue))
            addresses = replace(addresses, fused=(*addresses.fused, shift))
        program = program_for(plain, Plan(rung, rung.default, "", ""))  # fp8 may have to be packed first
        work = self._memory.allocate(program.workspace_bytes) if program.workspace_bytes else 0
        self._memory.fill(out, FILL, 4 * problem.batch * problem.m * problem.n)
        for stage, launch in zip(program.stages, self._launches_of(program, work, addresses), strict=True):
            self.executor.launch(stage.compile(self.gpu.arch), launch)
        self.executor.synchronize()

    def _check_reference(self, out: int, right: dict[int, np.ndarray], off: float | dict[int, np.ndarray]) -> None:
        """Raise WrongResult where what is at `out` is further `off` from `right` than that, or no number."""
        rows, cols = self._looked_at
        for entry, values in right.items():
            found = np.stack([self._expected_row(out, entry, int(row))[cols] for row in rows])
            error = np.abs(found - values)
            if not (error <= (off[entry] if isinstance(off, dict) else off)).all():
                problem, fused = self.problem, self.problem.epilogue
                what = f"{fused.description} of a product" if fused is not None else "product"
                raise WrongResult(
                    f"{find_rung(_REFERENCE[problem.dtype])} gives a wrong {what} at {problem.m} x {problem.n} x "
                    f"{problem.k}: off by {float(error.max()):.3g} from float64, so no candidate can be verified. Run "
                    "`pytest -m gpu` to see which kernels are right here."
                )

    def _check_fused(self, out: int, sums: dict[int, np.ndarray], shift: float, largest: float) -> float:
        """_check_reference of what an epilogue makes of moved sums; the largest of the numbers on the way."""
        epilogue, (rows, cols) = self.problem.epilogue, self._looked_at
        assert epilogue is not None
        fp32 = allowed_error(self.problem.k, "f32", largest)
        found = {}
        for entry, values in sums.items():
            inputs = {
                operand.name: self.inputs.values(fused_base(number), entry, rows, cols)
                for number, operand in enumerate(epilogue.operands)
            }
            found[entry] = exact(epilogue, values + shift, fp32, inputs)
        right = {entry: of.values for entry, of in found.items()}
        self._check_reference(out, right, {entry: of.off for entry, of in found.items()})
        return max(of.largest for of in found.values())

    def _expected_row(self, out: int, entry: int, row: int) -> np.ndarray:
        first = (entry * self.problem.m + row) * self.problem.n
        return self.executor.download(out + 4 * first, 4 * self.problem.n).view(np.float32).astype(np.float64)

    def _stages(self, candidate: Candidate, kernel: CompiledKernel) -> tuple[Program, list[CompiledKernel], int]:
        """(the launches of a product, their kernels, the workspace's address). The workspace is shared by all."""
        program = program_of(self.problem, candidate)
        kernels = [kernel if stage is program.product else stage.compile(self.gpu.arch) for stage in program.stages]
        if program.workspace_bytes > self._work_bytes:
            self._work, self._work_bytes = self._memory.allocate(program.workspace_bytes), program.workspace_bytes
        return program, kernels, self._work

    def _launches_of(self, program: Program, work: int, addresses: Addresses) -> list[Launch]:
        bases = {"a": addresses.a, "b": addresses.b, "c": 0, "out": addresses.out, "work": work}
        bases |= {fused_base(number): address for number, address in enumerate(addresses.fused)}
        scalars = {"alpha": 1.0, "beta": 0.0} | named_numbers(self._numbers)
        return [stage.launch(bases, scalars) for stage in program.stages]

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
        expected, above, below = self.expected
        launch = compare_launch(out, expected, self.result, elements, self.allowed, (above, below))
        self.executor.launch(self.compare, launch)
        found = read_difference(self.executor.download(self.result, RESULT_BYTES))
        for place in (out - GUARD, out + self.out_bytes):
            if (self.executor.download(place, GUARD) != FILL).any():
                return "it wrote outside its output"
        return self._words(found, elements)

    def _words(self, found: Difference, elements: int) -> str:
        if found.wrong == 0:
            return ""
        beside = "" if self.problem.epilogue is None else " beside what its sum may be off"
        return (
            f"{found.wrong} of {elements} elements are wrong or unwritten (largest difference {found.worst:.3g}, "
            f"{self.allowed:.3g} allowed{beside})"
        )

    # --- times -------------------------------------------------------------------------------------------------------

    def prepare(self, candidate: Candidate, kernel: CompiledKernel) -> None:
        """Make ready to be timed."""
        program, kernels, work = self._stages(candidate, kernel)
        launches = [self._launches_of(program, work, addresses) for addresses in self.sets]

        def starts() -> list[Start]:
            prepared = [Prepared(k, launch, self.ordinal) for k, launch in zip(kernels, launches[0], strict=True)]
            return [partial(_start, prepared, one) for one in launches]

        self._race.enter(candidate, starts)

    def one_pass(self, candidates: Sequence[Candidate], number: int) -> list[float]:
        """Milliseconds of each, side by side."""
        return self._race.one_pass(candidates, number)


def program_of(problem: GemmProblem, candidate: Candidate) -> Program:
    """The launches that a plan with the candidate would make."""
    return program_for(problem, Plan(candidate.rung, candidate.config, "tuning", "", packs=candidate.packs))


def _start(prepared: Sequence[Prepared], launches: Sequence[Launch], stream: int) -> None:
    for stage, launch in zip(prepared, launches, strict=True):
        stage.launch(launch.params, stream, launch.maps)
