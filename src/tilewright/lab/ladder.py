"""Climbing: each rung is checked, then counted on the emulator, or timed on a GPU (lab/climb_gpu.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import ceil, inf, isfinite
from typing import Any, Protocol

import numpy as np

from ..attn.problem import AttentionProblem
from ..errors import TilewrightError
from ..gemm.config import GemmConfig, SimtConfig
from ..gemm.problem import GemmProblem
from ..gemm.rung import Rung
from ..gemm.stages import program_for
from ..gpus import Arch, Gpu
from ..jit import CompiledKernel
from ..jit.launch import Executor
from ..plan.plan import Plan
from ..run.program import Program
from .bounds import bound, peak_tflops
from .check import CheckResult, Guarded, check, numpy_product, reference
from .emulation_time import emulation_seconds
from .numbers import from_stored, rounded, to_stored
from .record import provenance
from .resources import static_facts
from .traffic import SECTOR, sectors_of

Progress = Callable[["float | None", str], None]
"""Told how many steps are done (None: not known), and what runs now."""


def silent(done: float | None, text: str) -> None:
    """Progress that nobody watches."""


class AnyStep(Protocol):
    """The part of a step that climbing needs, of whatever ladder: see Step, and attention.AttentionStep."""

    @property
    def name(self) -> str: ...
    @property
    def problem(self) -> Any: ...
    @property
    def emulation_seconds(self) -> float: ...
    def compile(self, arch: Arch) -> CompiledKernel: ...
    def prepare(self) -> Any: ...
    def run_checked(self, kernel: CompiledKernel, executor: Executor, given: Any) -> CheckResult: ...
    def facts(self, kernel: CompiledKernel, gpu: Gpu) -> dict[str, Any]: ...
    def record(self, suite: str, result: dict[str, Any], origin: dict[str, Any]) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Step:
    """A rung, its config, and the problem to climb it with."""

    rung: Rung
    config: GemmConfig
    problem: GemmProblem

    @property
    def name(self) -> str:
        """The rung's id."""
        return self.rung.id

    @property
    def emulation_seconds(self) -> float:
        """About how long the emulator takes for it."""
        if isinstance(self.config, SimtConfig):
            return emulation_seconds("instruction", expected_instructions(self))
        return emulation_seconds("copied multiply-add" if self.rung.loaders else "multiply-add", _padded_products(self))

    @property
    def program(self) -> Program:
        """Its launches: the rung's own, and what goes with it."""
        return program_for(self.problem, Plan(self.rung, self.config, "the caller", "a step of a climb"))

    def compile(self, arch: Arch) -> CompiledKernel:
        """The rung's own kernel. Raises CompileError."""
        return self.program.product.compile(arch)

    def prepare(self) -> TrialOperands:
        """Operands, and what their product must be."""
        return prepare(self.problem)

    def run_checked(self, kernel: CompiledKernel, executor: Executor, given: TrialOperands) -> CheckResult:
        """See run_checked."""
        return run_checked(self, kernel, executor, given)

    def facts(self, kernel: CompiledKernel, gpu: Gpu) -> dict[str, Any]:
        """See resources.static_facts."""
        shared = self.rung.shared_bytes(self.config, self.problem) if self.rung.dynamic_shared else 0
        return static_facts(kernel, self.config.threads, shared, gpu)

    def record(self, suite: str, result: dict[str, Any], origin: dict[str, Any]) -> dict[str, Any]:
        """See as_record."""
        return as_record(suite, self, result, origin)


@dataclass(frozen=True)
class TrialOperands:
    """A [m, k] and B [k, n] as float32 values, their product in float64, and NumPy's in fp32."""

    a: np.ndarray
    b: np.ndarray
    expected: np.ndarray
    library: np.ndarray


def values_of(problem: GemmProblem) -> str:
    """The type whose values are multiplied: tf32 where operands are rounded to it first, else theirs."""
    return "tf32" if problem.precision == "tf32" else problem.dtype


def random_operands(problem: GemmProblem, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Random normal A and B, lying in memory as the problem says (n or t): float32 that values_of(problem) can hold."""
    rng, kind = np.random.default_rng(seed), values_of(problem)
    a, b = (
        rounded(rng.standard_normal((cols, rows), dtype=np.float32), kind).T
        if letter == "t"
        else rounded(rng.standard_normal((rows, cols), dtype=np.float32), kind)
        for letter, (rows, cols) in zip(problem.layout, ((problem.m, problem.k), (problem.k, problem.n)), strict=True)
    )
    return a, b


def prepare(problem: GemmProblem, seed: int = 0) -> TrialOperands:
    """Operands and what their product must be."""
    a, b = random_operands(problem, seed)
    return TrialOperands(a, b, reference(a, b), numpy_product(a, b))


def raw_bytes(values: np.ndarray, dtype: str) -> np.ndarray:
    """The bytes of a dense array in `dtype`, in the order in which they lie in memory."""
    stored = to_stored(values if values.flags.c_contiguous else values.T, dtype)
    return stored.view(np.uint8).reshape(-1)


def judged(stored: np.ndarray, problem: GemmProblem, given: TrialOperands) -> CheckResult:
    """Return whether a result, as it is stored, is the product of the operands given."""
    return check(
        from_stored(stored, problem.out_dtype),
        given.a,
        given.b,
        expected=given.expected,
        library=given.library,
        dtype=values_of(problem),
        out_dtype=problem.out_dtype,
    )


def run_checked(step: Step, kernel: CompiledKernel, executor: Executor, given: TrialOperands) -> CheckResult:
    """Run the rung once into a poisoned buffer between guard bands and judge what it wrote.

    Raises what the launch raises.
    """
    problem = step.problem
    guarded = Guarded((problem.m, problem.n), problem.out_dtype)
    held: list[int] = []
    try:
        arrays = {"a": raw_bytes(given.a, problem.dtype), "b": raw_bytes(given.b, problem.dtype), "out": guarded.whole}
        for name, array in arrays.items():
            held.append(executor.upload(array.view(np.uint8), name))
        bases = dict(zip(arrays, held, strict=True)) | {"c": 0, "work": 0}
        bases["out"] += guarded.band * guarded.whole.itemsize
        program = step.program
        if borrowed := program.workspace_bytes:
            bases["work"] = executor.upload(np.full(borrowed, 0xFF, np.uint8), "workspace")
            held.append(bases["work"])
        for stage in program.stages:
            launch = stage.launch(bases, {"alpha": 1.0, "beta": 0.0})
            executor.launch(kernel if stage is program.product else stage.compile(executor.arch), launch)
        guarded.whole[:] = executor.download(held[2], guarded.whole.nbytes).view(guarded.whole.dtype)
    finally:
        for address in held:
            executor.release(address)
    if not guarded.intact():
        return CheckResult(False, inf, 0.0, "it wrote outside its output")
    if missing := guarded.untouched():
        return CheckResult(False, inf, 0.0, f"it left {missing} elements unwritten")
    return judged(guarded.view, problem, given)


def verdict_dict(verdict: CheckResult) -> dict[str, Any]:
    """The part of a record's result that says whether it is right."""
    return {
        "right": verdict.ok,
        "max_error": verdict.max_error if isfinite(verdict.max_error) else None,
        "allowed_error": verdict.bound,
        "reason": verdict.reason,
    }


def as_record(suite: str, step: Step, result: dict[str, Any], origin: dict[str, Any]) -> dict[str, Any]:
    """A record of one step (see lab/record.py)."""
    problem = step.problem
    case = {
        "rung": step.rung.id, "config": asdict(step.config), "config_text": str(step.config), "m": problem.m,
        "n": problem.n, "k": problem.k, "dtype": problem.dtype, "out_dtype": problem.out_dtype,
        "precision": problem.precision, "layout": problem.layout,
    }  # fmt: skip
    return {"suite": suite, "case": case, "result": result, "provenance": origin}


def _by_blocks(say: Progress, number: int, text: str) -> Callable[[int, int], None]:
    """Return what a launch tells of its blocks, as a part of step `number`."""
    return lambda done, blocks: say(number + done / blocks, text)


def climb_on_emulator(
    steps: Sequence[AnyStep], gpu: Gpu, suite: str = "emulator-ladder", say: Progress = silent
) -> list[dict[str, Any]]:
    """One record a step: the check, what the compiler says, what was executed. No times.

    A rung that does what a GPU punishes is wrong, and its record says what it did; the climb goes on.
    """
    from ..emu import Emulator

    records = []
    operands: dict[Any, Any] = {}
    origin = provenance(machine_kind="emulator", gpu=gpu.name, arch=gpu.arch.name)
    for number, step in enumerate(steps):
        say(number, step.name)
        if step.problem not in operands:
            operands = {step.problem: step.prepare()}
        kernel = step.compile(gpu.arch)
        executor = Emulator(gpu.name, progress=_by_blocks(say, number, step.name))
        try:
            verdict = step.run_checked(kernel, executor, operands[step.problem])
        except TilewrightError as error:
            verdict = CheckResult(False, inf, 0.0, str(error))
        result = verdict_dict(verdict) | step.facts(kernel, gpu)
        if executor.results:
            result |= executed(executor.last.counters, step.problem, gpu)
        records.append(step.record(suite, result, origin))
    return records


def expected_instructions(step: Step) -> float:
    """About how many thread instructions a rung executes that multiplies without tensor cores."""
    config = step.config
    assert isinstance(config, SimtConfig)
    elements = config.thread_m * config.thread_n * config.subtiles_m * config.subtiles_n
    return _padded_products(step) * (1.1 + 5.4 / elements)  # the product itself; loads and addresses a thread shares


def _padded_products(step: Step) -> int:
    """Multiplications of whole tiles."""
    config, problem = step.config, step.problem
    return ceil(problem.m / config.tile_m) * config.tile_m * ceil(problem.n / config.tile_n) * config.tile_n * problem.k


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def executed(counters: Any, problem: GemmProblem | AttentionProblem, gpu: Gpu) -> dict[str, Any]:
    """The figures of a ladder's table, from the emulator's counters (emu.Counters).

    FLOP per byte counts the problem's operations against the sectors that all requests to global memory asked for,
    bulk copies too;
    the bound is the roofline's at that intensity, as if no cache helped, in shares of the peak of what multiplies.
    """
    classes = counters.by_class
    tensor, fp32, integer = (classes.get(name, 0) for name in ("tensor", "fp32", "int"))
    memory = sum(count for name, count in classes.items() if name.startswith("memory") or name == "async_copy")
    moved = SECTOR * sum(map(sectors_of, counters.per_instruction))
    intensity = problem.flops / moved if moved else 0.0
    peak = peak_tflops(gpu, problem.kind)
    roof = bound(intensity, gpu, peak)
    loads = counters.global_load_requests + counters.async_copy_requests
    return {
        "instructions_per_thread": {
            "tensor": tensor / counters.threads,
            "fp32": fp32 / counters.threads,
            "int": integer / counters.threads,
            "memory": memory / counters.threads,
            "other": (counters.thread_instructions - tensor - fp32 - integer - memory) / counters.threads,
        },
        "sectors_per_request": _ratio(counters.global_load_sectors + counters.async_copy_sectors, loads),
        "wavefronts_per_request": _ratio(counters.shared_load_wavefronts, counters.shared_load_requests),
        "ideal_wavefronts_per_request": _ratio(counters.shared_load_ideal, counters.shared_load_requests),
        "flop_per_byte": intensity,
        "bound_share_of_peak": roof.tflops / peak,
        "bound_by": roof.roof,
        "counters": {name: value for name, value in counters.to_dict().items() if name != "per_instruction"},
    }
