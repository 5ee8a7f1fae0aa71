"""Climbing on a GPU: each rung is checked, then timed in pairs with cuBLAS."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import WrongResult
from ..jit import CompiledKernel
from ..jit.device import Device, GpuExecutor, Prepared, bound_to, device, driver, executor_for
from ..jit.device import check as check_call
from ..jit.timing import Launch
from ..ladder.rung import Addresses
from ..ops.device_array import DeviceArray
from ..problems import GemmProblem
from .bench import time_pairs
from .check import Guarded
from .ladder import (
    Operands,
    Progress,
    Step,
    as_record,
    judged,
    prepare,
    random_operands,
    raw_bytes,
    run_checked,
    silent,
    verdict_dict,
)
from .record import provenance
from .reference import Reference, find_reference
from .roofline import peak_tflops

MOST_SETS = 256
"""Buffer sets at most. Below some 100 x 100 x 100 they no longer fill three times the L2; the record says so."""


@dataclass(frozen=True)
class Buffers:
    """One set of operands on the GPU, random normal; `out` is written."""

    a: DeviceArray
    b: DeviceArray
    out: DeviceArray


def sets_for(problem: GemmProblem, l2: int) -> int:
    """How many buffer sets hold more than three times the L2 (bytes): at least 2, at most MOST_SETS."""
    return min(max(2, 3 * l2 // max(problem.bytes, 1) + 1), MOST_SETS)


def make_buffers(problem: GemmProblem, executor: GpuExecutor, seed: int) -> Buffers:
    """A set of its own random operands, lying as the problem says."""

    def on_gpu(side: np.ndarray) -> DeviceArray:
        array = DeviceArray(executor, side.shape if side.flags.c_contiguous else side.shape[::-1], problem.dtype)
        executor.write(array.address, raw_bytes(side, problem.dtype))
        return array

    a, b = random_operands(problem, seed)
    return Buffers(on_gpu(a), on_gpu(b), DeviceArray(executor, (problem.m, problem.n), problem.out_dtype))


def launches_of(step: Step, kernel: CompiledKernel, sets: Sequence[Buffers], ordinal: int) -> list[Launch]:
    """One launch of the rung for each set."""

    def one(buffers: Buffers) -> Launch:
        addresses = Addresses(buffers.a.address, buffers.b.address, buffers.out.address)
        launch = step.rung.plan(step.problem, step.config, addresses)
        with bound_to(ordinal):
            prepared = Prepared(kernel, launch, ordinal)
        return lambda stream: prepared.launch(launch.params, stream)

    return [one(buffers) for buffers in sets]


def verify_reference(
    name: str, launch: Launch, out: int, executor: GpuExecutor, problem: GemmProblem, given: Operands
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
            "Uninstall that library, or install another: pip install 'tilewright[bench]'"
        )


def climb_on_gpu(
    steps: Sequence[Step], ordinal: int = 0, suite: str = "gpu-ladder", seconds: float = 1.0, say: Progress = silent
) -> list[dict[str, Any]]:
    """One record a step: the check, then times, paired with cuBLAS where a library brings it. Wrong is not timed.

    Raises DeviceError without a GPU, or when a kernel faults: the context is then lost, and the climb with it.
    """
    where = device(ordinal)
    library, no_library = find_reference(ordinal)
    origin = provenance(
        machine_kind="gpu", gpu=where.name, arch=where.arch.name, driver=driver_version(),
        reference=library.name if library else None, reference_version=library.version if library else None,
        no_reference=no_library or None,
    )  # fmt: skip
    records: list[dict[str, Any]] = []
    for problem in dict.fromkeys(step.problem for step in steps):
        same = [step for step in steps if step.problem == problem]
        records += _climb_problem(problem, same, where, library, suite, seconds, origin, say, len(records))
    return records


def _climb_problem(
    problem: GemmProblem, steps: Sequence[Step], where: Device, library: Reference | None, suite: str, seconds: float,
    origin: dict[str, Any], say: Progress, done: int,
) -> list[dict[str, Any]]:  # fmt: skip
    executor, ordinal = executor_for(where.ordinal), where.ordinal
    say(done, f"reference of {problem.m} x {problem.n} x {problem.k} {problem.layout}")
    given = prepare(problem)
    count, peak = sets_for(problem, where.gpu.l2), peak_tflops(where.gpu, problem.dtype)
    sets: list[Buffers] = []
    references: list[Launch] | None = None
    records = []
    for number, step in enumerate(steps):
        say(done + number, step.rung.id)
        kernel = step.rung.compile(problem, step.config, where.arch)
        verdict = run_checked(step, kernel, executor, given)
        result = verdict_dict(verdict) | step.facts(kernel, where.gpu)
        if verdict.ok:
            if not sets:
                sets = [make_buffers(problem, executor, seed) for seed in range(count)]
                if library is not None and problem.dtype in library.dtypes:
                    references = [library.prepare(s.a, s.b, s.out, problem.layout) for s in sets]
                    verify_reference(library.name, references[0], sets[0].out.address, executor, problem, given)
            timing, conditions = time_pairs(
                ordinal, launches_of(step, kernel, sets, ordinal), references, seconds=seconds
            )
            tflops = problem.flops / timing.ms * 1e-9
            result |= timing.to_dict() | {
                "tflops": tflops,
                "share_of_peak": tflops / peak if peak else None,
                "buffer_sets": count,
                "rotated_over_l2": count * problem.bytes / where.gpu.l2,
                "conditions": conditions,
            }
        records.append(as_record(suite, step, result, origin))
    return records


def driver_version() -> str:
    """The driver's own version where nvidia-smi says it, else the CUDA version it serves. Raises DeviceError."""
    if tool := shutil.which("nvidia-smi"):
        done = subprocess.run(
            [tool, "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True, timeout=30,
            check=False,
        )  # fmt: skip
        if done.returncode == 0 and done.stdout.strip():
            return done.stdout.splitlines()[0].strip()
    number = int(check_call(driver().cuDriverGetVersion(), "reading the driver's version"))
    return f"CUDA {number // 1000}.{number % 1000 // 10}"
