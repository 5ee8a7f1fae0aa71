"""A checked call as launches on one GPU, real or emulated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..gemm.call import Call
from ..gemm.problem import GemmProblem
from ..gemm.rung import Addresses
from ..gpus import Gpu
from ..jit import CompiledKernel
from ..jit.launch import Launch
from ..plan.plan import Plan, plan_for
from .program import Program, Stage, fused_base, program_for


@dataclass(frozen=True)
class Recipe:
    """What a call runs: its plan and the plan's launches. The plan is None for an empty result."""

    call: Call
    problem: GemmProblem
    """Of its largest launch."""
    plan: Plan | None
    program: Program

    @property
    def names(self) -> tuple[str, ...]:
        """The operands by their bases' names, in the order of their offsets."""
        fused = self.call.fusion.views if self.call.fusion is not None else ()
        return ("a", "b", "c", "out", *(fused_base(number) for number in range(len(fused))))

    def kernels(self, gpu: Gpu) -> list[CompiledKernel]:
        """Of each stage. Raises ConfigRejected and CompileError."""
        return [stage.compile(gpu.arch) for stage in self.program.stages]

    def launches(self, bases: dict[str, int]) -> Iterator[tuple[int, Stage, Launch, Addresses, tuple[int, ...]]]:
        """Each launch in order: its stage by number and itself, its parameters' addresses, and its operands' offsets.

        `bases`: as for `parts`.
        """
        for count, at, offsets in self.parts(bases):
            for number, stage in enumerate(self.program.stages):
                launch, addresses = stage.launch(count, at, self.alpha, self.call.beta)
                yield number, stage, launch, addresses, offsets

    def parts(self, bases: dict[str, int]) -> Iterator[tuple[int, dict[str, int], tuple[int, ...]]]:
        """Of each run of the program: how many products it makes, where its operands are, and their offsets.

        `bases`: where "a", "b", "c" (0 when it is not read), "out", the epilogue's operands (program.fused_base), and
        the workspace ("work") are.
        """
        if self.plan is None:
            return
        for count, offsets in self.call.product.launches():
            at = {name: bases[name] + offset for name, offset in zip(self.names, offsets, strict=True)}
            if self.call.c is None:
                at["c"] = 0
            at["work"] = bases["work"]
            yield count, at, offsets

    @property
    def alpha(self) -> float:
        """As launches have it: the empty sum is 0, also times infinity."""
        return self.call.alpha if self.call.product.problem.k else 0.0


def recipe_for(call: Call, gpu: Gpu) -> Recipe:
    """Raises ConfigRejected where no plan can run the call."""
    problem = call.product.problem
    if problem.m == 0 or problem.n == 0 or problem.batch == 0:
        return Recipe(call, problem, None, Program((), 0))
    options = call.options
    plan = plan_for(problem, gpu, options.rung, options.config, demands=options.demands)
    largest = replace(problem, batch=max(count for count, _ in call.product.launches()))
    return Recipe(call, largest, plan, program_for(largest, plan))
