"""Tuning problems: explore, compile, verify, time, store; what is known already is not measured again."""

from __future__ import annotations

import datetime
import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice

from ..arch import Gpu
from ..errors import ConfigRejected, DeviceError
from ..jit import CompiledKernel
from ..jit.device import device
from ..jit.source import CUDA_ROOT, Constant, gather
from ..ladder import rungs_for
from ..ladder.rung import Rung
from ..plan import Plan, plan_for
from ..problems import GemmProblem, row_major
from .build import Builder, Built, default_jobs
from .classes import class_of
from .entries import Entry, Failure, Timed
from .measure import GpuMeasurer, context_is_lost, program_of
from .search import Ranked, successive_halving
from .space import KEPT, Candidate, Space, explore
from .store import Store
from .tables import results_changed, store_of
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

    problem: GemmProblem
    entry: Entry
    space: Space | None
    stored: bool
    """Whether the result is in the store's file, for other processes too."""

    def __str__(self) -> str:
        m, n, k, _ = self.entry.shape
        if not self.entry.timed:
            return f"{self.problem.dtype} {m} x {n} x {k}: no candidate could be measured"
        best, rest = self.entry.timed[0], self.entry.timed[1:]
        tflops = self.problem.flops / best.ms * 1e-9
        lead = f"; next {rest[0].ms / best.ms:.3f}" if rest else ""
        return (
            f"{self.problem.dtype} {self.problem.layout} {m} x {n} x {k}: {best}, "
            f"{best.ms * 1e3:.4g} us, {tflops:.4g} TFLOP/s{lead}"
        )


@lru_cache(maxsize=8)
def kernel_set(dtype: str) -> str:
    """Hash of the device code of all rungs that multiply `dtype`: results of other code are measured anew."""
    digest = hashlib.sha256()
    for rung in rungs_for(dtype):
        for name, text in gather(f'#include "{rung.include}"\n', [CUDA_ROOT]):
            digest.update(f"{name}\0{text}\0".encode())
    return digest.hexdigest()[:12]


def known(problem: GemmProblem, store: Store) -> Entry | None:
    """The store's finished result for the problem's class and today's kernels."""
    entry = store.table.get(str(class_of(problem)))
    return entry if entry is not None and entry.finished and entry.kernels == kernel_set(problem.dtype) else None


def choose_rungs(dtype: str, rungs: Sequence[Rung] | None) -> tuple[Rung, ...]:
    """Those named, else all that multiply the type. Raises ConfigRejected where there is none."""
    chosen = tuple(rungs) if rungs else rungs_for(dtype)
    fits = tuple(rung for rung in chosen if dtype in rung.dtypes)
    if not fits:
        raise ConfigRejected(
            f"none of {', '.join(map(str, chosen)) or 'the rungs'} multiplies {dtype}. Leave --rungs away."
        )
    return fits


def tune_problems(
    problems: Sequence[GemmProblem], *, ordinal: int = 0, rungs: Sequence[Rung] | None = None, seconds: float = 60.0,
    jobs: int | None = None, again: bool = False, kept: int = KEPT, store: Store | None = None, say: Say = silent,
    planned: Callable[[GemmProblem, Gpu], Plan] = plan_for,
) -> Iterator[Tuned]:  # fmt: skip
    """Tune each problem on a GPU, at most about `seconds` of measuring each, and store what was found.

    What would run now, by `planned`, is among the candidates. Results are taken to be dense; C and epilogues are left
    out. Kernels compile in `jobs` processes, those of the next problems while one is measured. A problem whose class
    the store has, for today's kernels, is not measured again unless `again`. Ctrl-C: what was measured of the problem
    under way is stored, and KeyboardInterrupt goes on its way. Raises DeviceError without a GPU, or when a kernel's
    fault has taken the GPU's context along.
    """
    where = device(ordinal)
    store = store or store_of(where.gpu, ordinal)
    plain = [replace(p, out=row_major(p.m, p.n, p.batch), c=None, epilogue=None) for p in problems]
    problems = list({str(class_of(problem)): problem for problem in reversed(plain)}.values())[::-1]
    spaces: dict[int, Space] = {}
    futures: dict[int, list[Future[Built]]] = {}
    patterns: dict[str, Pattern] = {}
    with Builder(jobs or default_jobs()) as builder:

        def look_ahead(number: int) -> None:
            """Choose a problem's candidates and let them be compiled."""
            problem, tried = problems[number], choose_rungs(problems[number].dtype, rungs)
            now = planned(problem, where.gpu)  # so that tuning never ends with less than there was
            also = [(now.rung, now.config, now.packs)] if now.rung in tried else []
            spaces[number] = space = explore(problem, where.gpu, tried, kept, also)
            futures[number] = [
                builder.submit(c.rung.include, _constants(problem, c), c.rung.entry, where.arch.name)
                for c in space.kept
            ]

        wanted = [number for number, problem in enumerate(problems) if again or known(problem, store) is None]
        ahead = iter(wanted)
        for number in islice(ahead, AHEAD):
            look_ahead(number)
        for number, problem in enumerate(problems):
            if number not in wanted:
                entry = known(problem, store)
                assert entry is not None
                yield Tuned(problem, entry, None, True)
                continue
            for later in islice(ahead, 1):
                look_ahead(later)
            if problem.dtype not in patterns:
                patterns = {problem.dtype: Pattern(problem.dtype)}
            run = _Run(problem, spaces[number], futures[number], ordinal, patterns[problem.dtype], seconds)
            try:
                run.measure(lambda text, done=number: say(done, text))  # type: ignore[misc]
            finally:
                entry = run.entry()
                stored = bool(entry.timed) and store.add([entry])
                results_changed()
                run.close()
            yield Tuned(problem, entry, spaces[number], stored)


def _constants(problem: GemmProblem, candidate: Candidate) -> dict[str, Constant]:
    """What the product's own kernel is compiled for, operands packed and k split as the candidate says."""
    return candidate.rung.constants(program_of(problem, candidate).product.problem, candidate.config)


class _Run:
    """Measuring one problem's candidates as they come from the compiler."""

    def __init__(
        self, problem: GemmProblem, space: Space, futures: Sequence[Future[Built]], ordinal: int, pattern: Pattern,
        seconds: float,
    ) -> None:  # fmt: skip
        self.problem, self.space, self.futures, self.ordinal = problem, space, futures, ordinal
        self.pattern, self.seconds = pattern, seconds
        self.failed: list[Failure] = []
        self.ranking: list[Ranked[Candidate]] = []
        self.finished = False
        self.start = time.monotonic()
        self.measurer: GpuMeasurer | None = None

    def close(self) -> None:
        """Free the operands, where the GPU still lets us."""
        if self.measurer is not None and not context_is_lost(self.ordinal):
            self.measurer.__exit__()

    def _fail(self, candidate: Candidate, kind: str, reason: str) -> None:
        self.failed.append(Failure(candidate.rung.id, candidate.text, kind, reason))

    def measure(self, say: Callable[[str], None]) -> None:
        m, n, k = self.problem.m, self.problem.n, self.problem.k
        name = f"{self.problem.dtype} {self.problem.layout} {m} x {n} x {k}"
        say(f"{name}: operands and reference")
        try:
            self.measurer = measurer = GpuMeasurer(self.problem, self.ordinal, self.pattern)
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

        def told(ranking: list[Ranked[Candidate]]) -> None:
            self.ranking = ranking
            best = ranking[0]
            tflops = self.problem.flops / best.ms * 1e-9
            say(f"{name}: best so far {best.candidate.text}, {tflops:.4g} TFLOP/s")

        deadline = time.monotonic() + self.seconds
        self.ranking = successive_halving(ready, measurer, deadline=deadline, told=told)
        self.finished = True

    def _verified(self, candidate: Candidate, kernel: CompiledKernel) -> bool:
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

    def entry(self) -> Entry:
        """What is known by now."""
        m, n, k, batch = self.problem.m, self.problem.n, self.problem.k, self.problem.batch
        timed = [
            Timed(r.candidate.rung.id, r.candidate.config, float(f"{r.ms:.5g}"), r.candidate.packs)
            for r in self.ranking
        ]
        # who survived more rounds was measured better: an early loser is not faster than who stayed
        for place in range(1, len(timed)):
            if timed[place].ms < timed[place - 1].ms:
                timed[place] = replace(timed[place], ms=timed[place - 1].ms)
        return Entry(
            class_of(self.problem), (m, n, k, batch), tuple(timed), tuple(self.failed),
            kernel_set(self.problem.dtype),
            datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds"), self.finished,
            round(time.monotonic() - self.start, 2),
        )  # fmt: skip
