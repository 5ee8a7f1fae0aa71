"""A person's own kernel on a GPU: judged by what its file says, then timed, alone or in pairs with a rung or cuBLAS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..emu.api import decoded
from ..emu.arguments import as_numbers
from ..emu.own_kernel import in_order, load
from ..emu.parameters import pack
from ..errors import InvalidOperand, WrongResult, in_shell, suggests
from ..gemm.problem import GemmProblem
from ..gemm.rung import Rung
from ..gemm.rungs import GEMM_RUNGS
from ..jit import CompiledKernel, Launch, compile_source
from ..jit.launch import Executor
from ..jit.timing import Start
from .exercise_lines import Exercise, read_exercise
from .shown import Grid, Shown
from .subject import every_rung

MOST_SETS = 64
LIBRARY = "cublas"


@dataclass(frozen=True, repr=False)
class OwnTiming(Shown):
    """Times of a kernel that was right. `ratio`: the other's time over its own, pair by pair; above 1 it is faster."""

    file: str
    entry: str
    gpu: str
    sizes: dict[str, int]
    ms: float
    gb_s: float
    """Every buffer once, over the time."""
    buffer_sets: int
    against: str
    against_ms: float | None
    ratio: float | None
    ratio_p10: float | None
    ratio_p90: float | None
    conditions: dict[str, float]

    def grids(self) -> tuple[Grid, ...]:
        """The times."""
        sizes = ", ".join(f"{name} = {value}" for name, value in self.sizes.items())
        rows = [(self.entry, f"{self.ms:.4f}", f"{self.gb_s:.0f}", "", "")]
        if self.ratio is not None and self.against_ms is not None:
            spread = f"{self.ratio_p10:.3f}..{self.ratio_p90:.3f}"
            rows = [(self.entry, f"{self.ms:.4f}", f"{self.gb_s:.0f}", f"{self.ratio:.3f}", spread),
                    (self.against, f"{self.against_ms:.4f}", "", "", "")]  # fmt: skip
        title = f"{self.file} on {self.gpu}: right; {sizes}"
        return (Grid(title, ("", "ms", "GB/s", "times as fast", "p10..p90"), tuple(rows)),)


@dataclass(frozen=True)
class OwnLaunch:
    """A kernel with its buffers on a device."""

    kernel: CompiledKernel
    launch: Launch
    buffers: dict[str, tuple[int, np.ndarray]]
    """Name -> address, and the array that was put there."""

    def after(self, executor: Executor, kinds: Mapping[str, str]) -> dict[str, np.ndarray]:
        """The buffers as numbers, after what was launched."""
        return {
            name: as_numbers(
                executor.download(address, array.nbytes).view(array.dtype).reshape(array.shape), kinds.get(name, "")
            )
            for name, (address, array) in self.buffers.items()
        }


class _Memory:
    """The memory that packing puts buffers into: a device's memory."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor

    def reserve(self, nbytes: int) -> None:
        """Nothing: each buffer has a place of its own."""

    def add(self, array: np.ndarray, name: str = "", empty: bool = False) -> int:
        """The address of a copy of `array`; what is `empty` is copied too."""
        return self.executor.upload(np.ascontiguousarray(array).view(np.uint8).reshape(-1), name)


def place(exercise: Exercise, executor: Executor, arch: str, seed: int = 0) -> OwnLaunch:
    """Compile the exercise's kernel for `arch`, and put its arguments onto a device. Raises InvalidOperand."""
    gpu = executor.gpu.name if _listed(executor) else "H200"
    described = load(exercise.path, exercise.entry, gpu, exercise.include)
    given, _, _ = exercise.values(seed)
    args = in_order(given, described)
    if exercise.path.suffix == ".ptx":
        raise InvalidOperand(f"{exercise.path}: PTX cannot be timed; give its CUDA C++.")
    kernel = compile_source(
        exercise.text,
        entry=exercise.entry,
        arch=arch,
        name=str(exercise.path),
        include=[exercise.path.parent, *exercise.include],
    )
    declared = decoded(described.ptx, described.entry).entry.parameters
    packed = pack(args, declared, kernel.types, _Memory(executor), seed)  # type: ignore[arg-type]
    names = described.names
    x, y, z = (*exercise.grid, 1, 1)[:3]
    launch = Launch((x, y, z), _three(exercise.block), packed.params, exercise.shared_bytes)
    return OwnLaunch(kernel, launch, {names[b.number]: (b.address, b.array) for b in packed.buffers})


def _three(sizes: tuple[int, ...]) -> tuple[int, int, int]:
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def _listed(executor: Executor) -> bool:
    from ..gpus import GPUS

    return executor.gpu.name in GPUS


def judge(exercise: Exercise, own: OwnLaunch, executor: Executor, seed: int = 0) -> None:
    """Launch once and compare with what the file says. Raises WrongResult."""
    _, before, kinds = exercise.values(seed)
    executor.launch(own.kernel, own.launch)
    if wrong := exercise.wrong(before, own.after(executor, kinds)):
        raise WrongResult(
            f"{exercise.entry} is wrong, so it is not timed: {'; '.join(wrong)}. On the emulator: tilewright check "
            f"{exercise.path}"
        )


def product_of(exercise: Exercise) -> GemmProblem:
    """The product that a rung multiplies next to the kernel: m, n, k among its sizes (each n where it is missing), in
    the type of its first buffer. Raises InvalidOperand."""
    sizes = exercise.sizes
    if "n" not in sizes and not {"m", "n", "k"} <= sizes.keys():
        raise InvalidOperand(
            f"{exercise.path} has no size n: a product needs m, n and k, or n for all three, among its `let` lines."
        )
    n = sizes["n"]
    _, _, kinds = exercise.values()
    dtype = next(iter(kinds.values()), "f32")
    return GemmProblem.dense(sizes.get("m", n), n, sizes.get("k", n), dtype=dtype)


def find_opponent(text: str) -> Rung | None:
    """The rung that `--against` names; None for cuBLAS. Raises InvalidOperand."""
    if text.lower() == LIBRARY:
        return None
    rung = every_rung(text)
    if not isinstance(rung, Rung):
        known = ", ".join(each.id.split("_")[0] for each in GEMM_RUNGS)
        raise InvalidOperand(f"--against {text!r} is neither {LIBRARY} nor a rung of products: {known}.")
    return rung


@suggests
def time_own(
    path: str | Path, *, entry: str | None = None, sizes: Mapping[str, int] | None = None, against: str | None = None,
    seconds: float = 1.0, ordinal: int = 0, seed: int = 0,
) -> OwnTiming:  # fmt: skip
    """Judge a kernel file on a GPU by its `// check:` lines, then time it, in pairs with a rung or cuBLAS.

    entry: the kernel, where the file has several. sizes: replace what its `let` lines say. against: a rung ("f09") or
    "cublas", on a product of the same sizes. Raises DeviceError without a GPU, WrongResult for a kernel that is not
    right, InvalidOperand.
    """
    from ..jit.device import bound_to, device, need_gpu
    from ..jit.gpu_executor import executor_for
    from ..jit.loaded import Prepared
    from .bench import time_pairs

    exercise = read_exercise(Path(path), sizes, entry)
    rung = find_opponent(against) if against is not None else None
    problem = product_of(exercise) if against is not None else None
    need_gpu(f"{path} is timed", f"On the emulator: tilewright check {in_shell(path)}")
    where, executor = device(ordinal), executor_for(ordinal)
    first = place(exercise, executor, where.arch.name, seed)
    judge(exercise, first, executor, seed)
    moved = sum(array.nbytes for _, array in first.buffers.values())
    count = min(max(2, 3 * where.gpu.l2 // max(moved, 1) + 1), MOST_SETS)
    others: list[Start] | None = None
    if problem is not None:
        others = _opponents(rung, problem, where, count)
        count = len(others)
    owns = [first, *(place(exercise, executor, where.arch.name, seed + 1 + n) for n in range(count - 1))]
    try:
        with bound_to(ordinal):
            ready = [Prepared(own.kernel, own.launch, ordinal) for own in owns]
        starts: list[Start] = [
            partial(one.launch, own.launch.params, maps=own.launch.maps) for one, own in zip(ready, owns, strict=True)
        ]
        timing, conditions = time_pairs(ordinal, starts, others, seconds=seconds)
    finally:
        for address, _ in (buffer for own in owns for buffer in own.buffers.values()):
            executor.release(address)
    return OwnTiming(
        str(path), exercise.entry, where.name, exercise.sizes, timing.ms, moved / timing.ms * 1e-6, count,
        "" if against is None else rung.id if rung is not None else LIBRARY, timing.reference_ms, timing.ratio,
        timing.ratio_p10, timing.ratio_p90, conditions,
    )  # fmt: skip


def _opponents(rung: Rung | None, problem: GemmProblem, where: Any, count: int) -> list[Start]:
    """Launches of a rung, or of cuBLAS, on sets of operands of their own; each judged first. Raises WrongResult."""
    from ..gemm.family import plan_for
    from .ground import Ground, rung_launcher
    from .ladder import Step, run_checked
    from .reference import needed_reference

    ground = Ground(problem, where, None if rung is not None else needed_reference(where.ordinal))
    if rung is None:
        launches = ground.references
        if launches is None:
            raise InvalidOperand(f"cuBLAS is not known to multiply {problem.kind} here. Name a rung.")
        return list(launches[:count])
    step = Step(rung, plan_for(problem, where.gpu, rung.id).config, problem)
    verdict = run_checked(step, step.compile(where.arch), ground.executor, ground.given)
    if not verdict.ok:
        raise WrongResult(f"{rung.id} gives a wrong product ({verdict.reason}), so nothing is timed against it.")
    return [rung_launcher(step, where)(buffers) for buffers in ground.sets[:count]]
