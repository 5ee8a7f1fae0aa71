"""One launch of a kernel, a rung's or a file's, on the emulator, with what it counted."""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm
from pathlib import Path
from typing import Any

from ..attn.problem import AttentionProblem
from ..attn.rung import AttentionRung
from ..emu import Emulator
from ..emu.trace import Counters
from ..errors import InvalidOperand, WrongResult
from ..gemm.problem import GemmProblem
from ..gpus import Gpu
from .attention import AttentionStep
from .exercise import run_exercise
from .exercise_lines import read_exercise
from .ladder import Step
from .subject import AnyConfig, AnyRung, named, nearest_rung, problem_of, read_config

_SIDE = 256


@dataclass(frozen=True)
class Counted:
    """A kernel that was right on the emulator. `problem`: what it computed, in words. `once`: of a file, the sectors
    that move when each buffer is read and written once; 0 for a rung, whose problem knows its bytes."""

    name: str
    config: str
    problem: str
    counters: Counters
    once: int = 0


def count(
    what: str | Path, gpu: Gpu, *, config: str | AnyConfig | None = None, dtype: str | None = None, d_head: int = 128,
    entry: str | None = None, seed: int = 0,
) -> Counted:  # fmt: skip
    """Run a rung on a small problem of whole tiles, or a .cu or .ptx file as its `// check:` lines say.

    Raises WrongResult for a kernel that is wrong or has a fault, InvalidOperand for a file that does not say how it is
    run, ConfigRejected, CompileError.
    """
    rung, words = named(what, config)
    if rung is not None:
        return _rung(rung, read_config(rung, words, gpu.arch, d_head), gpu, dtype, d_head)
    path = Path(what)
    if path.suffix == ".cubin":
        raise InvalidOperand(f"{path}: the emulator runs PTX, not machine code. Give the .cu or .ptx file.")
    if not path.is_file():
        raise InvalidOperand(f"{path} is neither a rung nor a file.{nearest_rung(str(path))} Files: .cu or .ptx.")

    exercise = read_exercise(path, None, entry)
    ran = run_exercise(exercise, gpu.name, seed)
    if not ran.is_right:
        what_went = "; ".join([*map(str, ran.faults), *ran.wrong])
        raise WrongResult(f"{path} is not right, so nothing is counted: {what_went}")
    sizes = ", ".join(f"{name} = {value}" for name, value in exercise.sizes.items())
    return Counted(path.name, exercise.entry, sizes, ran.counters, ran.sectors_once)


def _rung(rung: AnyRung, config: AnyConfig, gpu: Gpu, dtype: str | None, d_head: int) -> Counted:
    problem: Any = problem_of(rung, dtype, d_head)
    step: Any
    if isinstance(rung, AttentionRung):
        rows = lcm(_SIDE, config.b_r)  # type: ignore[union-attr]
        problem = AttentionProblem.dense(1, 1, rows, 2 * config.b_c, d_head, dtype=problem.dtype)  # type: ignore[union-attr]
        step = AttentionStep(rung, config, problem)
        told = f"attention {problem.dtype}, {rows} queries, {problem.seq_k} keys, d_head {d_head}"
    else:
        m, n = lcm(_SIDE, config.tile_m), lcm(_SIDE, config.tile_n)  # type: ignore[union-attr]
        k = lcm(128, config.tile_k or 1)  # type: ignore[union-attr]
        problem = GemmProblem.dense(m, n, k, dtype=problem.dtype, precision=problem.precision)
        step = Step(rung, config, problem)  # type: ignore[arg-type]
        told = f"{problem.kind} {m} x {n} x {k}"
    executor = Emulator(gpu.name)
    verdict = step.run_checked(step.compile(gpu.arch), executor, step.prepare())
    if not verdict.ok:
        raise WrongResult(f"{rung.id} is wrong ({verdict.reason}), so nothing is counted.")
    return Counted(rung.id, str(config), told, executor.last.counters)
