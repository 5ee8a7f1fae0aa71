"""Products that are measured: operands on a GPU, and a reference result that is itself checked in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..arrays.dtypes import FP8
from ..errors import InvalidOperand, WrongResult
from ..gemm.params import fused_base
from ..gemm.problem import GemmProblem
from ..gemm.rung import Addresses
from ..gemm.rungs import find_rung
from ..gemm.stages import program_for
from ..jit import CompiledKernel, Launch
from ..jit.params import named_numbers
from ..plan.plan import Plan
from ..plan.space import Candidate
from ..run.program import Program
from .fused import exact, in_fp32, moved
from .inputs import Inputs
from .measure import FILL, GpuTrial, Run
from .verify import Difference, Pattern, allowed_error, sample_places

_REFERENCE = {"f32": "f02", "bf16": "h01", "f16": "h01", "e4m3": "q01", "e5m2": "q01"}
"""A plain rung on the FP32 lanes, none of the machinery that candidates share; of fp8 one that sums as fp16 does."""
_ROWS, _COLUMNS = 16, 64
"""Of the reference's product, checked in float64."""


class ProductTrial(GpuTrial[GemmProblem, Addresses]):
    """See GpuTrial. The result must be dense, and C is not read; an epilogue is computed.

    Raises InvalidOperand for products that are not measured, InvalidEpilogue for an epilogue of which no result can be
    verified (fused.exact).
    """

    def __init__(self, problem: GemmProblem, ordinal: int, pattern: Pattern) -> None:
        if problem.out_dtype in FP8 or problem.scaled_blocks:
            raise InvalidOperand(
                "products with results in fp8 or with scales of blocks are not measured. Tune the same product "
                "without: its result is the nearest to theirs."
            )
        self._numbers = problem.epilogue.numbers if problem.epilogue is not None else ()
        self._work = self._work_bytes = 0
        self.inputs = Inputs(problem, pattern)
        elements = problem.batch * problem.m * problem.n
        super().__init__(problem, ordinal, pattern, self.inputs.bytes, problem.out_dtype, elements)

    def place(self, count: int) -> None:
        self.inputs.allocate(self._memory, count)

    def addresses(self, number: int, out: int) -> Addresses:
        return Addresses(
            self.inputs.address("a", number), self.inputs.address("b", number), out, fused=self.inputs.fused(number),
            numbers=self._numbers,
        )  # fmt: skip

    # --- the reference -----------------------------------------------------------------------------------------------

    def make_reference(self) -> float:
        """The product by a plain rung. With an epilogue: its results of the sum, and of the sum moved up and down by
        what a candidate's may be off; what is returned is what computing it may lose besides (fused.py).

        Raises WrongResult when the reference is not what float64 says: nothing could be verified then.
        """
        problem = self.problem
        sums = self._exact_sums()
        largest = max(float(np.abs(product).max()) for product in sums.values())
        allowed = allowed_error(problem.k, problem.kind, largest)
        if problem.epilogue is None:
            self._run_reference(self.expected[0])
            self._check_reference(self.expected[0], sums, allowed_error(problem.k, "f32", largest))
            return allowed
        self.expected[1:] = [self._memory.allocate(4 * self.elements) for _ in range(2)]
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
        self._memory.fill(out, FILL, 4 * self.elements)
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

    # --- candidates --------------------------------------------------------------------------------------------------

    def runs(self, candidate: Candidate, kernel: CompiledKernel, sets: Sequence[Addresses]) -> list[Run]:
        """Packing, the product and sums of parts. The workspace is shared by all candidates."""
        program = self._program(candidate)
        kernels = [kernel if stage is program.product else stage.compile(self.gpu.arch) for stage in program.stages]
        return [list(zip(kernels, self._launches_of(program, self._work, at), strict=True)) for at in sets]

    def _launches_of(self, program: Program, work: int, addresses: Addresses) -> list[Launch]:
        bases = {"a": addresses.a, "b": addresses.b, "c": 0, "out": addresses.out, "work": work}
        bases |= {fused_base(number): address for number, address in enumerate(addresses.fused)}
        scalars = {"alpha": 1.0, "beta": 0.0} | named_numbers(self._numbers)
        return [stage.launch(bases, scalars) for stage in program.stages]

    def _program(self, candidate: Candidate) -> Program:
        """Its launches; there is workspace for them then."""
        program = program_of(self.problem, candidate)
        if program.workspace_bytes > self._work_bytes:
            self._work, self._work_bytes = self._memory.allocate(program.workspace_bytes), program.workspace_bytes
        return program

    def run_once(self, candidate: Candidate, kernel: CompiledKernel) -> str:
        if nbytes := self._program(candidate).workspace_bytes:
            self._memory.fill(self._work, FILL, nbytes)
        return super().run_once(candidate, kernel)

    def beside(self, found: Difference) -> str:
        more = "" if self.problem.epilogue is None else " besides what its sum may be off"
        return f"largest difference {found.worst:.3g}, {self.allowed:.3g} allowed{more}"


def program_of(problem: GemmProblem, candidate: Candidate) -> Program:
    """The launches that a plan with the candidate would make."""
    return program_for(problem, Plan(candidate.rung, candidate.config, "tuning", "", packs=candidate.packs))
