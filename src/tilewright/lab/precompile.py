"""The kernels of a suite, compiled before its first case: a kernel per core, so that no case waits."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from ..arrays.dlpack import dense_strides
from ..arrays.view import Operand
from ..attn.backward_plan import plan_backward
from ..attn.backward_problem import BackwardProblem
from ..attn.backward_stages import backward_program
from ..attn.family import plan_attention
from ..attn.problem import AttentionProblem
from ..attn.stages import program_of
from ..gemm.problem import GemmProblem
from ..gemm.stages import program_for
from ..gpus import Arch, Gpu
from ..plan.plan import Plan
from ..run.program import Program
from .attention import AttentionStep

Compile = Callable[[], object]


def compile_together(kernels: Iterable[Compile]) -> None:
    """Run what compiles kernels, on every core. Errors are left to whoever needs the kernel.

    In another order: cases that follow one another share kernels, and whoever asks for one that is being made waits.
    """
    wanted = list(kernels)
    random.Random(0).shuffle(wanted)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for future in [pool.submit(one) for one in wanted]:
            future.exception()


def of_steps(
    steps: Sequence[AttentionStep], small: Callable[[AttentionProblem, Any], AttentionProblem], arch: Arch
) -> Iterator[Compile]:
    """Return what the steps launch, on their own problems and on the small ones by which they are judged."""
    for step in steps:
        for problem in (step.problem, small(step.problem, step.config)):
            yield partial(step.rung.compile, problem, step.config, arch)


def of_attention(problems: Iterable[AttentionProblem], gpu: Gpu, rung: str | None = None) -> Iterator[Compile]:
    """Return what calls of attention launch, as planned or by a rung."""
    for problem in problems:
        yield from _stages(program_of(problem, plan_attention(problem, gpu, rung)), gpu.arch)


def of_products(planned: Iterable[tuple[GemmProblem, Plan]], gpu: Gpu) -> Iterator[Compile]:
    """Return what products launch as planned."""
    for problem, plan in planned:
        yield from _stages(program_for(problem, plan), gpu.arch)


class Planned(Protocol):
    """A checked call."""

    def program(self, gpu: Gpu) -> Program | None: ...


def of_call(call: Planned, gpu: Gpu) -> Iterator[Compile]:
    """Return what a call launches as planned."""
    program = call.program(gpu)
    return _stages(program, gpu.arch) if program is not None else iter(())


_OPERANDS = ("a", "b", "out", "a_scale", "b_scale")


def absent(name: str, shape: tuple[int, ...], dtype: str, turned: bool = False) -> Operand:
    """A dense array as calls see it, without memory; `turned`: with its last two axes changed over in memory."""
    lies = dense_strides((*shape[:-2], shape[-1], shape[-2]) if turned else shape)
    steps = (*lies[:-2], lies[-1], lies[-2]) if turned else lies
    steps = tuple(0 if extent <= 1 else step for extent, step in zip(shape, steps, strict=True))
    return Operand(name, "torch", (1 + _OPERANDS.index(name)) << 48, shape, steps, dtype, None)


def of_gradients(
    problem: AttentionProblem, gpu: Gpu, rung: str | None = None, config: str | None = None, deterministic: bool = False
) -> Iterator[Compile]:
    """Return what a dense call with its LSE launches, and its gradients."""
    forward = replace(problem, with_lse=True)
    yield from of_attention([forward], gpu)
    rows = (forward.heads_q * forward.seq_q, forward.seq_q, 1)
    backward = BackwardProblem(forward, forward.out, forward.q, forward.k, forward.v, rows)
    yield from _stages(backward_program(backward, plan_backward(backward, gpu, deterministic, rung, config)), gpu.arch)


def _stages(program: Program, arch: Arch) -> Iterator[Compile]:
    return (partial(stage.compile, arch) for stage in program.stages)
