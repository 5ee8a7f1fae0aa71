"""Tuning products: what the tuner must know of them (run.Tunable)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from ..errors import ConfigRejected
from ..gemm.classes import class_of
from ..gemm.family import PRODUCTS
from ..gemm.fused import fused_headers
from ..gemm.problem import GemmProblem, row_major
from ..gemm.rung import Rung
from ..gemm.rungs import rungs_of
from ..gemm.space import explore
from ..gemm.stages import config_of
from ..gpus import Gpu
from ..plan.plan import Plan
from ..plan.space import KEPT, Candidate, Space
from .product_trial import ProductTrial, program_of
from .run import Job, Tuned, hash_of, tune_family
from .verify import Pattern

_OF_EPILOGUES = ("tile/fused.cuh", "tile/fused_math.cuh", "gemm/sum_parts.cuh")


@lru_cache(maxsize=16)
def kernel_set(kind: str, fused: bool = False) -> str:
    """Hash of the device code of all rungs for a GemmProblem.kind, and of what epilogues are made of where one is
    computed: results of other code are measured anew."""
    known = rungs_of(kind)
    splitting = {"gemm/halve.cuh" if rung.halves else "gemm/split.cuh": None for rung in known if rung.splits}
    return hash_of([*(rung.include for rung in known), *splitting, *(_OF_EPILOGUES if fused else ())])


def name_of(problem: GemmProblem) -> str:
    """Such as bf16 nn 4096 x 4096 x 1024, silu(acc + bias); bf16 to f32 nt 512 x 512 x 64 x48."""
    out = f" to {problem.out_dtype}" if problem.out_dtype != problem.dtype else ""
    batch = f" x{problem.batch}" if problem.batch != 1 else ""
    fused = f", {problem.epilogue.description}" if problem.epilogue is not None else ""
    return f"{problem.kind}{out} {problem.layout} {problem.m} x {problem.n} x {problem.k}{batch}{fused}"


def choose_rungs(kind: str, rungs: Sequence[Rung] | None) -> tuple[Rung, ...]:
    """Return the rungs named, else all for a GemmProblem.kind. Raises ConfigRejected where there is none."""
    known = rungs_of(kind)
    chosen = tuple(rungs) if rungs else known
    fits = tuple(rung for rung in chosen if rung in known)
    if not fits:
        raise ConfigRejected(f"none of {', '.join(map(str, chosen)) or 'the rungs'} multiplies {kind}. Omit --rungs.")
    return fits


@dataclass(frozen=True)
class TunableProducts:
    """See run.Tunable. `rungs`: those that are tried; by default all that multiply a problem's kind."""

    rungs: tuple[Rung, ...] = ()
    kept: int = KEPT
    plans = PRODUCTS

    def plain(self, problem: GemmProblem) -> GemmProblem:
        """Dense results, C left out, an epilogue only where it shows (classes.shows)."""
        problem = problem if class_of(problem).fused else replace(problem, epilogue=None)
        return replace(problem, out=row_major(problem.m, problem.n, problem.batch), c=None)

    def explore(self, problem: GemmProblem, gpu: Gpu, also: Plan | None = None) -> Space[Candidate]:
        tried = choose_rungs(problem.kind, self.rungs)
        ours = [(also.rung, also.config, also.packs)] if also is not None and also.rung in tried else []
        return explore(problem, gpu, tried, self.kept, ours)

    def job(self, problem: GemmProblem, candidate: Candidate) -> Job:
        """The product's own kernel, operands packed and k split as the candidate says."""
        rung, program = candidate.rung, program_of(problem, candidate)
        product = program.product
        constants = rung.constants(product.problem, config_of(program))
        return Job(rung.include, constants, rung.entry, fused_headers(product.problem))

    def kernels(self, problem: GemmProblem) -> str:
        return kernel_set(problem.kind, problem.epilogue is not None)

    def trial(self, problem: GemmProblem, ordinal: int, pattern: Pattern) -> ProductTrial:
        return ProductTrial(problem, ordinal, pattern)

    def shape(self, problem: GemmProblem) -> tuple[int, ...]:
        return problem.m, problem.n, problem.k, problem.batch

    def name(self, problem: GemmProblem) -> str:
        return name_of(problem)

    def fused(self, problem: GemmProblem) -> str:
        return problem.epilogue.description if problem.epilogue is not None else ""


def tune_problems(
    problems: Sequence[GemmProblem], *, rungs: Sequence[Rung] | None = None, kept: int = KEPT, **options: Any
) -> Iterator[Tuned]:
    """run.tune_family of products. Results are taken to be dense; C is left out. A problem with an epilogue is measured
    with it, for the class of products that have one, whichever; with one that does not show, without it.
    """
    for problem in problems:
        choose_rungs(problem.kind, rungs)  # before the work, not in the middle of it
    return tune_family(TunableProducts(tuple(rungs or ()), kept), problems, **options)
