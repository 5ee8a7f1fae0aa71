"""The launches that Nsight Compute watches: one of a rung's, a file's or a library's kernel, in a process of its own.

python -m tilewright.lab.profiled SPEC, where SPEC is what Target.spec gives.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ..attn.problem import AttentionProblem
from ..errors import InvalidOperand, MissingDependency, WrongResult
from ..gemm.problem import GemmProblem
from ..gemm.rung import Rung
from .exercise_lines import Exercise, read_exercise
from .subject import every_rung, named, nearest_rung, read_config

PEERS = {"cublas": "gemm", "flash": "attention", "cudnn": "attention"}
"""Other libraries' kernels: cuBLAS's, and FlashAttention-2's and cuDNN's as torch has them."""


Problem = GemmProblem | AttentionProblem | Exercise


@dataclass(frozen=True)
class Target:
    """A kernel and its problem. `what`: a rung's id, one of PEERS, or a file's path. `config`: of a rung, in words."""

    what: str
    problem: Problem
    config: str | None = None

    @property
    def spec(self) -> str:
        """All of it as one word."""
        p = self.problem
        parts: tuple[Any, ...]
        if isinstance(p, GemmProblem):
            parts = ("gemm", self.what, self.config, p.m, p.n, p.k, p.layout, p.dtype, p.precision)
        elif isinstance(p, AttentionProblem):
            parts = ("attention", self.what, self.config, p.batch, p.heads_q, p.seq_q, p.d_head, p.dtype, p.is_causal)
        else:
            parts = ("own", self.what, None, p.entry, p.sizes)
        return json.dumps(parts, separators=(",", ":"))


def read_target(spec: str) -> Target:
    """The target that `Target.spec` wrote."""
    kind, what, config, *rest = json.loads(spec)
    if kind == "gemm":
        m, n, k, layout, dtype, precision = rest
        return Target(what, GemmProblem.dense(m, n, k, layout=layout, dtype=dtype, precision=precision), config)
    if kind == "attention":
        batch, heads, seq, d_head, dtype, causal = rest
        problem = AttentionProblem.dense(batch, heads, seq, seq, d_head, dtype=dtype, is_causal=causal)
        return Target(what, problem, config)
    entry, sizes = rest
    return Target(what, read_exercise(Path(what), sizes, entry))


def kind_of(what: str) -> tuple[str, str, str | None]:
    """("gemm", "attention" or "own", the full name, the config's words) of a rung, a peer or a .cu file.

    Raises InvalidOperand.
    """
    if what in PEERS:
        return PEERS[what], what, None
    if what.endswith(".cu"):
        return "own", what, None
    rung, words = named(what)
    if rung is None:
        known = f"a rung (tilewright rungs), one of {', '.join(PEERS)}, or a .cu file"
        raise InvalidOperand(f"{what!r} is not {known}.{nearest_rung(what)}")
    return ("gemm" if isinstance(rung, Rung) else "attention"), rung.id, words if words is None else str(words)


def launcher(target: Target) -> Callable[[int], Any]:
    """Return what starts the target's kernel on a stream, on random normal operands. Needs a GPU."""
    from ..jit.device import device

    where = device(0)
    if isinstance(target.problem, GemmProblem):
        return _product(target, target.problem, where)
    if isinstance(target.problem, AttentionProblem):
        return _attention(target, target.problem, where)
    return _own(target.problem, where)


def _own(exercise: Exercise, where: Any) -> Callable[[int], Any]:
    from ..jit.device import bound_to
    from ..jit.gpu_executor import executor_for
    from ..jit.loaded import Prepared
    from .own_timing import place

    own = place(exercise, executor_for(where.ordinal), where.arch.name)
    with bound_to(where.ordinal):
        ready = Prepared(own.kernel, own.launch, where.ordinal)
    return partial(ready.launch, own.launch.params, maps=own.launch.maps)


def _product(target: Target, problem: GemmProblem, where: Any) -> Callable[[int], Any]:
    from ..jit.gpu_executor import executor_for
    from .ground import make_buffers, rung_launcher
    from .ladder import Step, values_of
    from .reference import needed_reference

    buffers = make_buffers(problem, executor_for(where.ordinal), 0)
    if target.what in PEERS:
        prepare = needed_reference(where.ordinal).for_values(values_of(problem))
        if prepare is None:
            raise MissingDependency(f"cuBLAS is not known to multiply {problem.kind} here.")
        return prepare(buffers.a, buffers.b, buffers.out, problem.layout)
    return rung_launcher(Step(_rung(target), _config(target, problem, where), problem), where)(buffers)


def _config(target: Target, problem: GemmProblem | AttentionProblem, where: Any) -> Any:
    """The config that the target names; else the plan's for a product, and attention's default."""
    from ..gemm.family import plan_for

    if target.config is not None:
        d_head = problem.d_head if isinstance(problem, AttentionProblem) else 128
        return read_config(_any_rung(target), target.config, where.arch, d_head)
    if isinstance(problem, GemmProblem):
        return plan_for(problem, where.gpu, target.what).config
    return _any_rung(target).default(problem, where.arch)


def _any_rung(target: Target) -> Any:
    rung = every_rung(target.what)
    assert rung is not None
    return rung


def _rung(target: Target) -> Rung:
    rung = _any_rung(target)
    assert isinstance(rung, Rung)
    return rung


def _attention(target: Target, problem: AttentionProblem, where: Any) -> Callable[[int], Any]:
    from .attention import AttentionStep
    from .attention_gpu import find_sdpa, launches_of, make_buffers

    buffers = make_buffers(problem, where.ordinal, 0)
    if target.what in PEERS:
        references, why_not = find_sdpa(where.ordinal)
        if target.what not in references:
            raise MissingDependency(why_not)
        return references[target.what](problem, buffers)
    rung = _any_rung(target)
    step = AttentionStep(rung, _config(target, problem, where), problem)
    (launch,) = launches_of(step, rung.compile(problem, step.config, where.arch), [buffers], where.ordinal)
    return launch


def small_step(target: Target, small: int, where: Any) -> Any:
    """The step of a climb that checks a rung, in the config that is profiled, on a problem near `small`."""
    from .attention import AttentionStep
    from .attention_gpu import small_problem
    from .ladder import Step

    p = target.problem
    assert not isinstance(p, Exercise)
    config = _config(target, p, where)
    if isinstance(p, GemmProblem):
        cube = GemmProblem.dense(small, small, small, layout=p.layout, dtype=p.dtype, precision=p.precision)
        return Step(_rung(target), config, cube)
    return AttentionStep(_any_rung(target), config, small_problem(p, config))


def judge_target(target: Target, small: int) -> bool | None:
    """Check a rung by float64 on a problem near `small`, a file by what it says; None for a peer.

    Raises WrongResult: the counters of a wrong kernel mean nothing.
    """
    from ..jit.device import device
    from ..jit.gpu_executor import executor_for
    from .own_timing import judge, place

    if target.what in PEERS:
        return None
    where, executor = device(0), executor_for(0)
    if isinstance(target.problem, Exercise):
        judge(target.problem, place(target.problem, executor, where.arch.name), executor)
        return True
    step = small_step(target, small, where)
    verdict = step.run_checked(step.compile(where.arch), executor, step.prepare())
    if not verdict.ok:
        raise WrongResult(f"{target.what} is wrong ({verdict.reason}), so it is not profiled.")
    return True


def main(specs: list[str]) -> None:
    """Launch each once before the profiler is started, and once after."""
    from ..jit.device import bound_to, check, driver
    from ..jit.gpu_executor import executor_for

    api, stream = driver(), executor_for(0).stream
    for spec in specs:
        launch = launcher(read_target(spec))
        with bound_to(0):
            for watched in (False, True):
                if watched:
                    check(api.cuProfilerStart(), "starting the profiler")
                launch(stream)
                check(api.cuCtxSynchronize(), "waiting for the GPU")
            check(api.cuProfilerStop(), "stopping the profiler")


if __name__ == "__main__":
    main(sys.argv[1:])
