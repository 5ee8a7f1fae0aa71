"""Climbing: each rung is checked, then measured on a GPU, or executed and counted on the emulator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..arch import Gpu
from ..errors import TilewrightError
from ..jit import CompiledKernel
from ..jit.launch import Executor
from ..ladder.rung import Addresses, GemmConfig, Rung
from ..problems import GemmProblem
from .check import CheckResult, Guarded, check, reference
from .occupancy import occupancy
from .record import provenance
from .roofline import bound

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Step:
    """A rung, its config, and the problem to climb it with."""

    rung: Rung
    config: GemmConfig
    problem: GemmProblem


def operands(problem: GemmProblem, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Random normal A [m, k] and B [k, n], fp32, lying in memory as the problem says (n or t)."""
    rng = np.random.default_rng(seed)
    sides = []
    for letter, (rows, cols) in zip(problem.layout, ((problem.m, problem.k), (problem.k, problem.n)), strict=True):
        if letter == "t":
            sides.append(rng.standard_normal((cols, rows), dtype=np.float32).T)
        else:
            sides.append(rng.standard_normal((rows, cols), dtype=np.float32))
    return sides[0], sides[1]


def _bytes(array: np.ndarray) -> np.ndarray:
    return (array if array.flags.c_contiguous else array.T).view(np.uint8).reshape(-1)


def static_facts(kernel: CompiledKernel, step: Step, gpu: Gpu) -> dict[str, Any]:
    """What the compiler says: registers, spills and shared memory in bytes, occupancy on `gpu`."""
    shared = step.rung.shared_bytes(step.config, step.problem) if step.rung.dynamic_shared else 0
    fits = occupancy(kernel.resources, step.config.threads, shared, gpu.arch)
    resources = kernel.resources
    return {
        "registers": resources.registers,
        "spill_bytes": resources.spill_store_bytes + resources.spill_load_bytes,
        "shared_bytes": resources.shared_bytes + shared,
        "occupancy": fits.fraction,
        "blocks_per_sm": fits.blocks,
        "limited_by": fits.limiter,
    }


def run_checked(
    step: Step, kernel: CompiledKernel, executor: Executor, expected: np.ndarray, a: np.ndarray, b: np.ndarray
) -> CheckResult:
    """Run the rung once into a poisoned buffer between guard bands and judge what it wrote."""
    guarded = Guarded((step.problem.m, step.problem.n))
    held = [executor.upload(_bytes(a)), executor.upload(_bytes(b)), executor.upload(guarded.whole.view(np.uint8))]
    try:
        out = held[2] + 4 * guarded.band
        executor.launch(kernel, step.rung.plan(step.problem, step.config, Addresses(held[0], held[1], out)))
        guarded.whole[:] = executor.download(held[2], guarded.whole.nbytes).view(np.uint32)
    finally:
        for address in held:
            executor.release(address)
    if not guarded.intact():
        return CheckResult(False, float("inf"), 0.0, "it wrote outside its output")
    if missing := guarded.untouched():
        return CheckResult(False, float("inf"), 0.0, f"it left {missing} elements unwritten")
    return check(guarded.view, a, b, expected=expected)


def _record(suite: str, step: Step, result: dict[str, Any], origin: dict[str, Any]) -> dict[str, Any]:
    problem = step.problem
    case = {
        "rung": step.rung.id, "config": asdict(step.config), "config_text": str(step.config), "m": problem.m,
        "n": problem.n, "k": problem.k, "dtype": problem.dtype, "layout": problem.layout,
    }  # fmt: skip
    return {"suite": suite, "case": case, "result": result, "provenance": origin}


def climb_on_emulator(
    steps: Sequence[Step], gpu: Gpu, suite: str = "emulator-ladder", say: Progress = lambda _: None
) -> list[dict[str, Any]]:
    """One record a step: the check, what the compiler says, what was executed. No times."""
    from ..emu import Emulator

    records = []
    cache: dict[GemmProblem, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
    for step in steps:
        say(step.rung.id)
        if step.problem not in cache:
            a, b = operands(step.problem)
            cache[step.problem] = (a, b, reference(a, b))
        a, b, expected = cache[step.problem]
        executor = Emulator(gpu.name)
        kernel = step.rung.compile(step.problem, step.config, gpu.arch)
        try:
            verdict = run_checked(step, kernel, executor, expected, a, b)
        except TilewrightError as error:
            verdict = CheckResult(False, float("inf"), 0.0, str(error))
        result: dict[str, Any] = {
            "right": verdict.ok,
            "max_error": verdict.max_error if np.isfinite(verdict.max_error) else None,
            "allowed_error": verdict.bound,
            "reason": verdict.reason,
            **static_facts(kernel, step, gpu),
        }
        if executor.results:
            result |= _counted(executor.last.counters, step, gpu)
        records.append(_record(suite, step, result, provenance(machine_kind="emulator", gpu=gpu.name)))
    return records


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _counted(counters: Any, step: Step, gpu: Gpu) -> dict[str, Any]:
    """The figures of a ladder's table, from the emulator's counters."""
    classes = counters.by_class
    fp32, integer = classes.get("fp32", 0), classes.get("int", 0)
    memory = sum(count for name, count in classes.items() if name.startswith("memory") or name == "async_copy")
    sectors = counters.global_load_sectors + counters.global_store_sectors + counters.async_copy_sectors
    intensity = step.problem.flops / (32 * sectors) if sectors else 0.0
    roof = bound(intensity, gpu)
    loads = counters.global_load_requests + counters.async_copy_requests
    return {
        "instructions_per_thread": {
            "fp32": fp32 / counters.threads,
            "int": integer / counters.threads,
            "memory": memory / counters.threads,
            "other": (counters.thread_instructions - fp32 - integer - memory) / counters.threads,
        },
        "sectors_per_request": _ratio(counters.global_load_sectors + counters.async_copy_sectors, loads),
        "wavefronts_per_request": _ratio(counters.shared_load_wavefronts, counters.shared_load_requests),
        "ideal_wavefronts_per_request": _ratio(counters.shared_load_ideal, counters.shared_load_requests),
        "flop_per_byte": intensity,
        "bound_share_of_peak": roof.tflops / gpu.ffma_tflops,
        "bound_by": roof.roof,
        "counters": {k: v for k, v in counters.to_dict().items() if k != "per_instruction"},
    }


def climb_on_gpu(
    steps: Sequence[Step],
    ordinal: int = 0,
    suite: str = "gpu-ladder",
    seconds: float = 1.0,
    say: Progress = lambda _: None,
) -> list[dict[str, Any]]:
    """One record a step: the check, then times, paired with cuBLAS where a library brings it. Wrong is not timed."""
    from ..jit.device import Prepared, bound_to, device, executor_for
    from ..ops.device_array import DeviceArray
    from .bench import time_pairs
    from .reference import find_reference

    where = device(ordinal)
    executor = executor_for(ordinal)
    library, no_library = find_reference(ordinal)
    origin = provenance(
        machine_kind="gpu", gpu=where.name, driver=driver_version(), reference=library.name if library else None,
        reference_version=library.version if library else None, no_reference=no_library or None,
    )  # fmt: skip
    records = []
    for problem in dict.fromkeys(step.problem for step in steps):
        a, b = operands(problem)
        say(f"float64 reference of {problem.m}x{problem.n}x{problem.k} {problem.layout}")
        expected = reference(a, b)
        need = problem.bytes
        sets = max(2, -(-3 * where.gpu.l2 // max(need, 1)) + 1) if need < 3 * where.gpu.l2 else 2
        sets = min(sets, 64)
        buffers = []
        for index in range(sets):
            left, right = operands(problem, seed=index)
            arrays = []
            for side in (left, right):
                stored = side if side.flags.c_contiguous else side.T
                array = DeviceArray(executor, stored.shape, "f32")
                executor.write(array.address, _bytes(side))
                arrays.append(array)
            buffers.append((arrays[0], arrays[1], DeviceArray(executor, (problem.m, problem.n), "f32")))
        references = [library.prepare(x, y, z, problem.layout) for x, y, z in buffers] if library else None
        for step in (step for step in steps if step.problem == problem):
            say(step.rung.id)
            kernel = step.rung.compile(problem, step.config, where.arch)
            verdict = run_checked(step, kernel, executor, expected, a, b)
            result: dict[str, Any] = {
                "right": verdict.ok,
                "max_error": verdict.max_error if np.isfinite(verdict.max_error) else None,
                "allowed_error": verdict.bound,
                "reason": verdict.reason,
                **static_facts(kernel, step, where.gpu),
            }
            if verdict.ok:
                launches = []
                with bound_to(ordinal):
                    for left_, right_, out in buffers:
                        launch = step.rung.plan(
                            problem, step.config, Addresses(left_.address, right_.address, out.address)
                        )
                        prepared = Prepared(kernel, launch, ordinal)
                        launches.append(
                            lambda stream, prepared=prepared, launch=launch: prepared.launch(launch.params, stream)
                        )
                timing, state = time_pairs(ordinal, launches, references, seconds=seconds)
                tflops = problem.flops / timing.ms * 1e-9
                result |= timing.to_dict()
                result |= {
                    "tflops": tflops,
                    "share_of_peak": tflops / where.gpu.ffma_tflops,
                    "buffer_sets": sets,
                    "conditions": state,
                }
            records.append(_record(suite, step, result, origin))
    return records


def driver_version() -> str:
    """The driver's own version where NVML's tool says it, else the CUDA version it serves."""
    import shutil
    import subprocess

    if tool := shutil.which("nvidia-smi"):
        done = subprocess.run(
            [tool, "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True, timeout=30,
            check=False,
        )  # fmt: skip
        if done.returncode == 0 and done.stdout.strip():
            return done.stdout.splitlines()[0].strip()
    from ..jit.device import check as check_call
    from ..jit.device import driver

    number = int(check_call(driver().cuDriverGetVersion(), "reading the driver's version"))
    return f"CUDA {number // 1000}.{number % 1000 // 10}"
