"""Tuning problems: explore, compile, verify, time, store; what is known already is not measured again."""

from __future__ import annotations

import datetime
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple, Protocol

from ..attn.classes import AttentionClass
from ..epilogue.packing import fused_headers
from ..errors import ConfigRejected, DeviceError
from ..gemm.classes import ProblemClass, class_of
from ..gemm.family import PRODUCTS, plan_for
from ..gemm.problem import GemmProblem, row_major
from ..gemm.rung import Rung
from ..gemm.rungs.simt import rungs_of
from ..gemm.space import KEPT, Candidate, Space, explore
from ..gemm.stages import config_of
from ..gpus import Gpu
from ..jit import CompiledKernel
from ..jit.device import device
from ..jit.source import CUDA_ROOT, Constant, gather
from ..plan.entries import AnyEntry, Entry, Failure, Timed
from ..plan.family import Family as PlanFamily
from ..plan.plan import Plan
from ..plan.store import Store
from ..plan.tables import results_changed, store_of
from .build import NOTHING, Builder, Built, default_jobs
from .measure import GpuMeasurer, program_of
from .race import context_is_lost
from .search import Measurer, Ranked, successive_halving
from .verify import Pattern
from .worker import first_line

AHEAD = 4
"""Problems whose kernels compile while one is measured."""

Say = Callable[[int, str], None]
"""Told how many problems are done, and what runs now."""


def silent(done: int, text: str) -> None:
    """Progress that nobody watches."""


@dataclass(frozen=True)
class Tuned:
    """What tuning a problem gave. `space` is None when the store had the result already."""

    problem: Any
    """A GemmProblem or an AttentionProblem, as it was measured."""
    entry: AnyEntry
    space: Space[Any] | None
    stored: bool
    """Whether the result is in the store's file, for other processes too."""
    name: str
    """The problem in a few words."""

    def __str__(self) -> str:
        if not self.entry.timed:
            return f"{self.name}: no candidate could be measured"
        best, rest = self.entry.timed[0], self.entry.timed[1:]
        tflops = self.problem.flops / best.ms * 1e-9
        lead = f"; next {rest[0].ms / best.ms:.3f}" if rest else ""
        return f"{self.name}: {best}, {best.ms * 1e3:.4g} us, {tflops:.4g} TFLOP/s{lead}"


def hash_of(includes: Iterable[str]) -> str:
    """A short hash of files of device code and all that they include."""
    digest = hashlib.sha256()
    for include in includes:
        for name, text in gather(f'#include "{include}"\n', [CUDA_ROOT]):
            digest.update(f"{name}\0{text}\0".encode())
    return digest.hexdigest()[:12]


_OF_EPILOGUES = ("tile/fused.cuh", "tile/fused_math.cuh", "gemm/sum_parts.cuh")


@lru_cache(maxsize=16)
def kernel_set(kind: str, fused: bool = False) -> str:
    """Hash of the device code of all rungs for a GemmProblem.kind, and of what epilogues are made of where one is
    computed: results of other code are measured anew."""
    known = rungs_of(kind)
    splitting = ["gemm/split.cuh"] if any(rung.splits for rung in known) else []
    return hash_of([*(rung.include for rung in known), *splitting, *(_OF_EPILOGUES if fused else ())])


def name_of(problem: GemmProblem) -> str:
    """Such as bf16 nn 4096 x 4096 x 1024, silu(acc + bias); bf16 to f32 nt 512 x 512 x 64 x48."""
    out = f" to {problem.out_dtype}" if problem.out_dtype != problem.dtype else ""
    batch = f" x{problem.batch}" if problem.batch != 1 else ""
    fused = f", {problem.epilogue.description}" if problem.epilogue is not None else ""
    return f"{problem.kind}{out} {problem.layout} {problem.m} x {problem.n} x {problem.k}{batch}{fused}"


class Measures(Measurer[Any], Protocol):
    """Runs the candidates of one problem: measure.GpuMeasurer, attention_measure.AttentionMeasurer."""

    def verify(self, candidate: Any, kernel: CompiledKernel) -> str:
        """ "" when the candidate's result is right, else what is wrong."""
        ...

    def prepare(self, candidate: Any, kernel: CompiledKernel) -> None:
        """Make it ready to be timed."""
        ...

    def __exit__(self, *_: object) -> None: ...


class Job(NamedTuple):
    """A kernel to compile (jit.compile.compile_rung)."""

    include: str | tuple[str, ...]
    constants: Mapping[str, Constant]
    entry: str
    generated: Mapping[str, str] = NOTHING


@dataclass(frozen=True)
class Family:
    """What tuning must know of a kind of problem. Problems are P, candidates what `explore` keeps."""

    plans: PlanFamily[Any, Any, Any, Any]
    """As planning sees it."""
    plain: Callable[[Any], Any]
    """The problem as it is measured: one for all problems of a class."""
    class_of: Callable[[Any], ProblemClass | AttentionClass]
    explore: Callable[[Any, Gpu], Space[Any]]
    job: Callable[[Any, Any], Job]
    """What to compile for a problem and a candidate."""
    kernels: Callable[[Any], str]
    """The hash of the device code for a problem."""
    measurer: Callable[[Any, int, Pattern], Measures]
    shape: Callable[[Any], tuple[int, ...]]
    name: Callable[[Any], str]
    fused: Callable[[Any], str] = lambda problem: ""
    """What is computed with it, in words (entries.Entry.epilogue)."""

    def known(self, problem: Any, store: Store) -> AnyEntry | None:
        """The store's finished result for the problem's class and today's kernels."""
        entry = store.of(self.plans).get(str(self.class_of(problem)))
        current = entry is not None and entry.finished and entry.kernels == self.kernels(problem)
        return entry if current else None


def choose_rungs(kind: str, rungs: Sequence[Rung] | None) -> tuple[Rung, ...]:
    """Those named, else all for a GemmProblem.kind. Raises ConfigRejected where there is none."""
    known = rungs_of(kind)
    chosen = tuple(rungs) if rungs else known
    fits = tuple(rung for rung in chosen if rung in known)
    if not fits:
        raise ConfigRejected(
            f"none of {', '.join(map(str, chosen)) or 'the rungs'} multiplies {kind}. Leave --rungs away."
        )
    return fits


def tune_problems(
    problems: Sequence[GemmProblem], *, ordinal: int = 0, rungs: Sequence[Rung] | None = None, seconds: float = 60.0,
    jobs: int | None = None, again: bool = False, kept: int = KEPT, store: Store | None = None, say: Say = silent,
    planned: Callable[[GemmProblem, Gpu], Plan] = plan_for,
) -> Iterator[Tuned]:  # fmt: skip
    """Tune each problem on a GPU, at most about `seconds` of measuring each, and store what was found.

    What would run now, by `planned`, is among the candidates. Results are taken to be dense; C is left out. A problem
    with an epilogue is measured with it, for the class of products that have one, whichever; with one that does not
    show (classes.shows), without it. Kernels compile in `jobs` processes, those of the next problems while one is
    measured. A problem whose class the store has, for today's kernels, is not measured again unless `again`. Ctrl-C:
    what was measured of the problem under way is stored, and KeyboardInterrupt goes on its way. Raises DeviceError
    without a GPU, or when a kernel's fault has taken the GPU's context along.
    """
    problems = [problem if class_of(problem).fused else replace(problem, epilogue=None) for problem in problems]
    chosen: dict[str, tuple[Rung, ...]] = {kind: choose_rungs(kind, rungs) for kind in {p.kind for p in problems}}

    def explored(problem: GemmProblem, gpu: Gpu) -> Space[Candidate]:
        tried = chosen[problem.kind]
        now = planned(problem, gpu)  # so that tuning never ends with less than there was
        return explore(problem, gpu, tried, kept, [(now.rung, now.config, now.packs)] if now.rung in tried else [])

    family = Family(
        PRODUCTS, lambda p: replace(p, out=row_major(p.m, p.n, p.batch), c=None), class_of, explored, _job,
        lambda p: kernel_set(p.kind, p.epilogue is not None), GpuMeasurer, lambda p: (p.m, p.n, p.k, p.batch), name_of,
        lambda p: p.epilogue.description if p.epilogue is not None else "",
    )  # fmt: skip
    return tune_family(family, problems, ordinal=ordinal, seconds=seconds, jobs=jobs, again=again, store=store, say=say)


def _job(problem: GemmProblem, candidate: Candidate) -> Job:
    """The product's own kernel, operands packed and k split as the candidate says."""
    rung, program = candidate.rung, program_of(problem, candidate)
    product = program.product
    constants = rung.constants(product.problem, config_of(program))
    return Job(rung.include, constants, rung.entry, fused_headers(product.problem))


def tune_family(
    family: Family, problems: Sequence[Any], *, ordinal: int, seconds: float, jobs: int | None, again: bool,
    store: Store | None, say: Say,
) -> Iterator[Tuned]:  # fmt: skip
    """See tune_problems: the same for problems of any family."""
    where = device(ordinal)
    store = store or store_of(where.gpu, ordinal)
    plain = [family.plain(problem) for problem in problems]
    problems = list({str(family.class_of(problem)): problem for problem in reversed(plain)}.values())[::-1]
    spaces: dict[int, Space[Any]] = {}
    futures: dict[int, list[Future[Built]]] = {}
    patterns: dict[str, Pattern] = {}
    with Builder(jobs or default_jobs()) as builder:

        def look_ahead(number: int) -> None:
            """Choose a problem's candidates and let them be compiled."""
            spaces[number] = space = family.explore(problems[number], where.gpu)
            jobs_of = [family.job(problems[number], candidate) for candidate in space.kept]
            futures[number] = [
                builder.submit(job.include, job.constants, job.entry, where.arch.name, job.generated) for job in jobs_of
            ]

        wanted = [n for n, problem in enumerate(problems) if again or family.known(problem, store) is None]
        ahead = iter(wanted)
        for number in islice(ahead, AHEAD):
            look_ahead(number)
        for number, problem in enumerate(problems):
            name = family.name(problem)
            if number not in wanted:
                entry = family.known(problem, store)
                assert entry is not None
                yield Tuned(problem, entry, None, True, name)
                continue
            for later in islice(ahead, 1):
                look_ahead(later)
            if problem.dtype not in patterns:
                patterns = {problem.dtype: Pattern(problem.dtype)}
            run = _Run(family, problem, spaces[number], futures[number], ordinal, patterns[problem.dtype], seconds)
            try:
                run.measure(lambda text, done=number: say(done, text))  # type: ignore[misc]
            finally:
                entry = run.entry()
                stored = bool(entry.timed) and store.add([entry])
                results_changed()
                run.close()
            yield Tuned(problem, entry, spaces[number], stored, name)


class _Run:
    """Measuring one problem's candidates as they come from the compiler."""

    def __init__(
        self, family: Family, problem: Any, space: Space[Any], futures: Sequence[Future[Built]], ordinal: int,
        pattern: Pattern, seconds: float,
    ) -> None:  # fmt: skip
        self.family = family
        self.problem, self.space, self.futures, self.ordinal = problem, space, futures, ordinal
        self.pattern, self.seconds = pattern, seconds
        self.failed: list[Failure] = []
        self.ranking: list[Ranked[Any]] = []
        self.finished = False
        self.start = time.monotonic()
        self.measurer: Measures | None = None

    def close(self) -> None:
        """Free the operands, where the GPU still lets us."""
        if self.measurer is not None and not context_is_lost(self.ordinal):
            self.measurer.__exit__()

    def _fail(self, candidate: Any, kind: str, reason: str) -> None:
        self.failed.append(Failure(candidate.rung.id, candidate.text, kind, reason))

    def measure(self, say: Callable[[str], None]) -> None:
        name = self.family.name(self.problem)
        say(f"{name}: operands and reference")
        try:
            self.measurer = measurer = self.family.measurer(self.problem, self.ordinal, self.pattern)
        except DeviceError as error:  # such as too little memory: the next problem may be smaller
            if context_is_lost(self.ordinal):
                raise
            self.failed.append(Failure("all", "operands and reference", "launch", first_line(str(error), "")))
            return
        ready = []
        for done, (candidate, future) in enumerate(zip(self.space.kept, self.futures, strict=True)):
            say(f"{name}: {done} of {len(self.futures)} compiled and verified")
            built = future.result()
            if isinstance(built, tuple):
                self._fail(candidate, *built)
            elif self._verified(candidate, built):
                ready.append(candidate)
        if not ready:
            return

        def told(ranking: list[Ranked[Any]]) -> None:
            self.ranking = ranking
            best = ranking[0]
            tflops = self.problem.flops / best.ms * 1e-9
            say(f"{name}: best so far {best.candidate.text}, {tflops:.4g} TFLOP/s")

        deadline = time.monotonic() + self.seconds
        self.ranking = successive_halving(ready, measurer, deadline=deadline, told=told)
        self.finished = True

    def _verified(self, candidate: Any, kernel: CompiledKernel) -> bool:
        assert self.measurer is not None
        try:
            reason = self.measurer.verify(candidate, kernel)
            if not reason:
                self.measurer.prepare(candidate, kernel)
                return True
            self._fail(candidate, "wrong", reason)
        except DeviceError as error:
            self._fail(candidate, "launch", first_line(str(error), ""))
            if context_is_lost(self.ordinal):
                raise
        return False

    def entry(self) -> AnyEntry:
        """What is known by now."""
        timed: list[Timed[Any]] = [
            Timed(r.candidate.rung.id, r.candidate.config, float(f"{r.ms:.5g}"), r.candidate.packs)
            for r in self.ranking
        ]
        # who survived more rounds was measured better: an early loser is not faster than who stayed
        for place in range(1, len(timed)):
            if timed[place].ms < timed[place - 1].ms:
                timed[place] = replace(timed[place], ms=timed[place - 1].ms)
        return Entry(
            self.family.class_of(self.problem), self.family.shape(self.problem), tuple(timed), tuple(self.failed),
            self.family.kernels(self.problem),
            datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds"), self.finished,
            round(time.monotonic() - self.start, 2), epilogue=self.family.fused(self.problem),
        )  # fmt: skip
