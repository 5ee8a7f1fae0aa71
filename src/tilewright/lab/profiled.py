"""The launches that Nsight Compute watches: one launch of a rung's or of a library's kernel, in a process of its own.

python -m tilewright.lab.profiled SPEC, where SPEC is what Target.spec gives.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..attn.problem import AttentionProblem
from ..attn.rung import AttentionRung
from ..errors import InvalidOperand, MissingDependency, WrongResult
from ..gemm.problem import GemmProblem
from ..gemm.rung import Rung
from .subject import every_rung

PEERS = {"cublas": "gemm", "flash": "attention", "cudnn": "attention"}
"""Other libraries' kernels: cuBLAS's, and FlashAttention-2's and cuDNN's as torch has them."""


@dataclass(frozen=True)
class Target:
    """A kernel and its problem. `what`: a rung's id, or one of PEERS."""

    what: str
    problem: GemmProblem | AttentionProblem

    @property
    def spec(self) -> str:
        """All of it as one word."""
        p = self.problem
        if isinstance(p, GemmProblem):
            parts: tuple[Any, ...] = ("gemm", self.what, p.m, p.n, p.k, p.layout, p.dtype, p.precision)
        else:
            parts = ("attention", self.what, p.batch, p.heads_q, p.seq_q, p.d_head, p.dtype, int(p.is_causal))
        return ":".join(map(str, parts))


def read_target(spec: str) -> Target:
    """The target that `Target.spec` wrote."""
    kind, what, *rest = spec.split(":")
    if kind == "gemm":
        m, n, k = map(int, rest[:3])
        return Target(what, GemmProblem.dense(m, n, k, layout=rest[3], dtype=rest[4], precision=rest[5]))
    batch, heads, seq, d_head = map(int, rest[:4])
    return Target(what, AttentionProblem.dense(batch, heads, seq, seq, d_head, dtype=rest[4], is_causal=rest[5] == "1"))


def kind_of(what: str) -> tuple[str, str]:
    """("gemm" or "attention", the full name) of a rung or a peer. Raises InvalidOperand."""
    if what in PEERS:
        return PEERS[what], what
    rung = every_rung(what)
    if rung is None:
        raise InvalidOperand(f"{what!r} is neither a rung (tilewright rungs) nor one of {', '.join(PEERS)}.")
    return ("gemm" if isinstance(rung, Rung) else "attention"), rung.id


def launcher(target: Target) -> Callable[[int], Any]:
    """Return what starts the target's kernel on a stream, on random normal operands. Needs a GPU."""
    from ..jit.device import device

    where = device(0)
    if isinstance(target.problem, GemmProblem):
        return _product(target.what, target.problem, where)
    return _attention(target.what, target.problem, where)


def _product(what: str, problem: GemmProblem, where: Any) -> Callable[[int], Any]:
    from ..jit.device import executor_for
    from .ground import make_buffers, rung_launcher
    from .ladder import Step, values_of
    from .reference import needed_reference

    buffers = make_buffers(problem, executor_for(where.ordinal), 0)
    if what in PEERS:
        prepare = needed_reference(where.ordinal).for_values(values_of(problem))
        if prepare is None:
            raise MissingDependency(f"cuBLAS is not known to multiply {problem.kind} here.")
        return prepare(buffers.a, buffers.b, buffers.out, problem.layout)
    return rung_launcher(Step(_rung(what), _config(what, problem, where), problem), where)(buffers)


def _config(what: str, problem: GemmProblem, where: Any) -> Any:
    from ..gemm.family import plan_for

    return plan_for(problem, where.gpu, what).config


def _rung(what: str) -> Rung:
    rung = every_rung(what)
    assert isinstance(rung, Rung)
    return rung


def _attention(what: str, problem: AttentionProblem, where: Any) -> Callable[[int], Any]:
    from .attention import AttentionStep
    from .attention_gpu import find_sdpa, launches_of, make_buffers

    buffers = make_buffers(problem, where.ordinal, 0)
    if what in PEERS:
        references, why_not = find_sdpa(where.ordinal)
        if what not in references:
            raise MissingDependency(why_not)
        return references[what](problem, buffers)
    rung = every_rung(what)
    assert isinstance(rung, AttentionRung)
    step = AttentionStep(rung, rung.default(problem, where.arch), problem)
    (launch,) = launches_of(step, rung.compile(problem, step.config, where.arch), [buffers], where.ordinal)
    return launch


def small_step(target: Target, small: int, where: Any) -> Any:
    """The step of a climb that checks a rung, in the config that is profiled, on a problem near `small`."""
    from .attention import AttentionStep
    from .attention_gpu import small_problem
    from .ladder import Step

    p, rung = target.problem, every_rung(target.what)
    if isinstance(p, GemmProblem):
        cube = GemmProblem.dense(small, small, small, layout=p.layout, dtype=p.dtype, precision=p.precision)
        return Step(_rung(target.what), _config(target.what, p, where), cube)
    assert isinstance(rung, AttentionRung)
    config = rung.default(p, where.arch)
    return AttentionStep(rung, config, small_problem(p, config))


def judge(target: Target, small: int) -> bool | None:
    """Check a rung by float64 on a problem near `small`; None for a peer.

    Raises WrongResult: the counters of a wrong kernel mean nothing.
    """
    from ..jit.device import device, executor_for

    if target.what in PEERS:
        return None
    where = device(0)
    step = small_step(target, small, where)
    verdict = step.run_checked(step.compile(where.arch), executor_for(0), step.prepare())
    if not verdict.ok:
        raise WrongResult(f"{target.what} is wrong ({verdict.reason}), so it is not profiled.")
    return True


def main(specs: list[str]) -> None:
    """Launch each once before the profiler is started, and once after."""
    from ..jit.device import bound_to, check, driver, executor_for

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
