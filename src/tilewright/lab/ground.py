"""The ground where all who make one product on a GPU meet: the same operands, the same cuBLAS, the same pairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..arrays.device_array import DeviceArray
from ..arrays.dtypes import ITEM_BYTES
from ..errors import WrongResult, install
from ..gemm.problem import GemmProblem
from ..jit import CompiledKernel
from ..jit.device import Device, bound_to
from ..jit.gpu_executor import GpuExecutor, executor_for
from ..jit.loaded import Prepared
from ..jit.timing import Start
from ..run.program import Program
from .bench import time_pairs
from .bounds import peak_tflops
from .check import CheckResult, Guarded
from .ladder import Step, TrialOperands, judged, prepare, random_operands, raw_bytes, values_of
from .reference import Reference

MOST_SETS = 256
"""Buffer sets at most. Below some 100 x 100 x 100 they no longer fill three times the L2; the record says so."""


@dataclass(frozen=True)
class Buffers:
    """One set of operands on the GPU, random normal; `out` is written."""

    a: DeviceArray
    b: DeviceArray
    out: DeviceArray


def sets_for(problem: GemmProblem, l2: int) -> int:
    """Return how many buffer sets hold more than three times the L2 (bytes): at least 2, at most MOST_SETS."""
    return min(max(2, 3 * l2 // max(problem.bytes, 1) + 1), MOST_SETS)


def make_buffers(problem: GemmProblem, executor: GpuExecutor, seed: int) -> Buffers:
    """A set of its own random operands, lying as the problem says; those of seed 0 are what `prepare` gives."""
    return buffers_of(problem, executor, *random_operands(problem, seed))


def buffers_of(problem: GemmProblem, executor: GpuExecutor, a: np.ndarray, b: np.ndarray) -> Buffers:
    """These operands on the GPU, lying as they do, and room for their product."""

    def on_gpu(side: np.ndarray) -> DeviceArray:
        array = DeviceArray(executor, side.shape if side.flags.c_contiguous else side.shape[::-1], problem.dtype)
        executor.write(array.address, raw_bytes(side, problem.dtype))
        return array

    return Buffers(on_gpu(a), on_gpu(b), DeviceArray(executor, (problem.m, problem.n), problem.out_dtype))


def program_launch(program: Program, kernels: Sequence[CompiledKernel], buffers: Buffers, ordinal: int) -> Start:
    """One launch of all stages of a program, whose kernels are given, on one set; set and workspace live as long."""
    size, item = program.workspace_bytes, ITEM_BYTES["f32"]
    work = DeviceArray(executor_for(ordinal), (size // item,), "f32") if size else None
    bases = {
        "a": buffers.a.address, "b": buffers.b.address, "c": 0, "out": buffers.out.address,
        "work": work.address if work is not None else 0,
    }  # fmt: skip
    steps = []
    for stage, kernel in zip(program.stages, kernels, strict=True):
        launch = stage.launch(bases, {"alpha": 1.0, "beta": 0.0})
        with bound_to(ordinal):
            steps.append((Prepared(kernel, launch, ordinal), launch))

    def run(stream: int, _held: tuple[Buffers, DeviceArray | None] = (buffers, work)) -> None:
        for prepared, launch in steps:
            prepared.launch(launch.params, stream, launch.maps)

    return run


def rung_launcher(step: Step, where: Device) -> Callable[[Buffers], Start]:
    """Return what makes the launch of a rung, and of what goes with it, on a set: compiled once for all sets."""
    program = step.program
    kernels = [stage.compile(where.arch) for stage in program.stages]
    return lambda buffers: program_launch(program, kernels, buffers, where.ordinal)


def verify_reference(
    name: str, launch: Start, out: int, executor: GpuExecutor, problem: GemmProblem, given: TrialOperands
) -> None:
    """Run the reference's first product, which is that of `given`, and judge it like a rung's.

    Raises WrongResult: a ratio to another product than ours would mean nothing.
    """
    kept = Guarded((problem.m, problem.n), problem.out_dtype, band=0)
    executor.write(out, kept.whole.view(np.uint8))
    launch(executor.stream)
    kept.whole[:] = executor.download(out, kept.whole.nbytes).view(kept.whole.dtype)
    verdict = judged(kept.view, problem, given)
    if kept.untouched() or not verdict.ok:
        raise WrongResult(
            f"{name} gives a wrong product at {problem.m} x {problem.n} x {problem.k} {problem.layout} in "
            f"{problem.dtype} ({verdict.reason or 'elements left unwritten'}), so nothing can be timed against it. "
            f"Uninstall that library, or install another: {install('bench')}"
        )


class Ground:
    """One problem on one GPU. Operands, buffers and the reference are made when first asked for.

    `last_judged`: the last whole result of a peer that was judged, as stored, and the verdict. Kernels that add in the
    same order give the same bits, and those need no second judgement.
    """

    def __init__(self, problem: GemmProblem, where: Device, library: Reference | None) -> None:
        self.problem, self.where, self.library = problem, where, library
        self.executor = executor_for(where.ordinal)
        self.last_judged: tuple[np.ndarray, CheckResult] | None = None

    @cached_property
    def given(self) -> TrialOperands:
        """The operands on which everybody is judged."""
        return prepare(self.problem)

    @cached_property
    def sets(self) -> list[Buffers]:
        """The buffers that are rotated through; the first holds `given`."""
        count = sets_for(self.problem, self.where.gpu.l2)
        return [make_buffers(self.problem, self.executor, seed) for seed in range(count)]

    @cached_property
    def references(self) -> list[Start] | None:
        """cuBLAS's launches, one a set, the first found right; None without a library for this type.

        Raises WrongResult.
        """
        problem, library, sets = self.problem, self.library, self.sets
        if library is None or (prepared := library.for_values(values_of(problem))) is None:
            return None
        launches = [prepared(s.a, s.b, s.out, problem.layout) for s in sets]
        verify_reference(library.name, launches[0], sets[0].out.address, self.executor, problem, self.given)
        return launches

    def timed(
        self, launches: Sequence[Start], seconds: float, against: Sequence[Start] | None = None
    ) -> dict[str, Any]:
        """The part of a record's result that holds times: of one launch a set, in pairs with `against`, else cuBLAS."""
        opponents = self.references if against is None else against
        timing, conditions = time_pairs(self.where.ordinal, launches, opponents, seconds=seconds)
        tflops, peak = self.problem.flops / timing.ms * 1e-9, peak_tflops(self.where.gpu, self.problem.kind)
        return timing.to_dict() | {
            "tflops": tflops,
            "share_of_peak": tflops / peak if peak else None,
            "buffer_sets": len(self.sets),
            "rotated_over_l2": len(self.sets) * self.problem.bytes / self.where.gpu.l2,
            "conditions": conditions,
        }
