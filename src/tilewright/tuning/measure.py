"""Candidates on a GPU: verified one by one, then timed side by side on rotated operands larger than the L2.

What differs between families, operands and a reference result, is a subclass: product_trial.py, attention_trial.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..arrays.dtypes import ITEM_BYTES
from ..jit import CompiledKernel, Launch
from ..jit.gpu_executor import executor_for
from ..jit.loaded import Prepared
from ..jit.timing import Start
from ..plan.space import Candidate
from .race import Memory, Race, rounded_up, sets_for
from .verify import RESULT_BYTES, Difference, Pattern, compare_kernel, compare_launch, read_difference

if TYPE_CHECKING:
    from typing_extensions import Self

GUARD = 1024
"""Bytes before and after every output that must stay as they were filled."""
FILL = 0xFF
"""Of outputs and guards: a NaN in every type."""

P = TypeVar("P")
"""A family's problems,"""
A = TypeVar("A", bound=Any)
"""and where the operands of one run lie, `out` among them."""
Run = list[tuple[CompiledKernel, Launch]]


class GpuTrial(Generic[P, A]):
    """Runs the candidates of one problem on one GPU. A context manager; frees what it holds.

    `operand_bytes`: of one set of operands. `elements`: of a result, dense. Raises DeviceError when the memory does not
    suffice, WrongResult when the reference is wrong.
    """

    def __init__(
        self, problem: P, ordinal: int, pattern: Pattern, operand_bytes: int, out_dtype: str, elements: int
    ) -> None:
        self.problem, self.ordinal, self.pattern = problem, ordinal, pattern
        self.executor = executor_for(ordinal)
        self.gpu = self.executor.gpu
        self.elements, self.out_bytes = elements, elements * ITEM_BYTES[out_dtype]
        with_guards = rounded_up(self.out_bytes + 2 * GUARD)
        count = sets_for(operand_bytes + with_guards, self.gpu.l2)
        self._stack = ExitStack()
        self._memory = Memory(ordinal, self._stack)
        try:
            self.place(count)
            outs = self._memory.allocate(count * with_guards)
            self.sets: list[A] = [self.addresses(i, outs + i * with_guards + GUARD) for i in range(count)]
            self.result = self._memory.allocate(RESULT_BYTES)
            self._race = Race(ordinal, self._stack)
            self.compare = compare_kernel(out_dtype, self.gpu.arch.name)
            self.expected = [self._memory.allocate(4 * elements), 0, 0]
            self.allowed = self.make_reference()
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # --- what a family gives -----------------------------------------------------------------------------------------

    def place(self, count: int) -> None:
        """Allocate and fill `count` sets of operands."""
        raise NotImplementedError

    def addresses(self, number: int, out: int) -> A:
        """Return where the operands of a set lie, its result at `out`."""
        raise NotImplementedError

    def make_reference(self) -> float:
        """Leave the first set's result as fp32 in expected[0]; return what a candidate's element may be off from it.

        Where addresses of two more results are left in expected[1:], an element may be as far off as those are.
        """
        raise NotImplementedError

    def runs(self, candidate: Candidate, kernel: CompiledKernel, sets: Sequence[A]) -> list[Run]:
        """The launches on each set of operands, with their kernels. `kernel` is the candidate's own."""
        raise NotImplementedError

    def judged(self) -> str:
        """Return what is wrong with elements of the first set's result that are known exactly; "" where nothing is."""
        return ""

    def beside(self, found: Difference) -> str:
        """Return what results were compared with, in a few words."""
        raise NotImplementedError

    # --- verification ------------------------------------------------------------------------------------------------

    def verify(self, candidate: Candidate, kernel: CompiledKernel) -> str:
        """Run the first set into poisoned memory and compare all of it; "" when right, else what is wrong.

        Raises DeviceError when it cannot be launched; after a fault the whole context is lost.
        """
        if reason := self.run_once(candidate, kernel):
            return reason
        self._memory.fill(self.result, 0, RESULT_BYTES)
        expected, *sides = self.expected
        launch = compare_launch(
            self.sets[0].out, expected, self.result, self.elements, self.allowed, (sides[0], sides[1])
        )
        self.executor.launch(self.compare, launch)
        found = read_difference(self.executor.download(self.result, RESULT_BYTES))
        if not found.wrong:
            return ""
        return f"{found.wrong} of {self.elements} elements are wrong or unwritten ({self.beside(found)})"

    def run_once(self, candidate: Candidate, kernel: CompiledKernel) -> str:
        """Run the first set into poisoned memory; what is wrong with the guards, or with elements known exactly."""
        out = self.sets[0].out
        self._memory.fill(out - GUARD, FILL, self.out_bytes + 2 * GUARD)
        for stage, launch in self.runs(candidate, kernel, self.sets[:1])[0]:
            self.executor.launch(stage, launch)
        self.executor.synchronize()
        for place in (out - GUARD, out + self.out_bytes):
            if (self.executor.download(place, GUARD) != FILL).any():
                return "it wrote outside its output"
        return self.judged()

    # --- times -------------------------------------------------------------------------------------------------------

    def prepare(self, candidate: Candidate, kernel: CompiledKernel) -> None:
        """Make ready to be timed."""
        runs = self.runs(candidate, kernel, self.sets)

        def starts() -> list[Start]:
            prepared = [Prepared(stage, launch, self.ordinal) for stage, launch in runs[0]]
            return [partial(_start, prepared, [launch for _, launch in run]) for run in runs]

        self._race.enter(candidate, starts)

    def one_pass(self, candidates: Sequence[Candidate], number: int) -> list[float]:
        """Milliseconds of each, side by side."""
        return self._race.one_pass(candidates, number)


def _start(prepared: Sequence[Prepared], launches: Sequence[Launch], stream: int) -> None:
    for stage, launch in zip(prepared, launches, strict=True):
        stage.launch(launch.params, stream, launch.maps)
