"""Tuning problems: explore, compile, verify, time, duel, store; what is known already is not measured again.

One path for every family; what a family must tell is Tunable.
"""

from __future__ import annotations

import datetime
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple, Protocol

from ..errors import DeviceError
from ..gpus import Gpu
from ..jit import CompiledKernel
from ..jit.device import device
from ..jit.source import CUDA_ROOT, Constant, gather
from ..plan.choose import plan
from ..plan.entries import AnyEntry, Entry, Failure, Timed
from ..plan.family import Family
from ..plan.plan import Plan
from ..plan.space import Space
from ..plan.store import Store
from ..plan.tables import results_changed, store_of
from ..words import Told
from .build import NOTHING, Builder, Built, default_jobs
from .duel import Duel, duel
from .race import context_is_lost
from .search import Measurer, Ranked, successive_halving
from .verify import Pattern, pattern_of
from .worker import first_line

AHEAD = 4
"""Problems whose kernels compile while one is measured."""

Say = Callable[[int, str], None]
"""Told how many problems are done, and what runs now."""


def silent(done: int, text: str) -> None:
    """Progress that nobody watches."""


@dataclass(frozen=True, repr=False)
class Tuned(Told):
    """The result of `tune`; `str()` tells the best kernel, its time and its rate."""

    problem: Any
    """A GemmProblem or an AttentionProblem, as it was measured."""
    entry: AnyEntry
    space: Space[Any] | None
    """The candidates and what was pruned; None when the store had the result already."""
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


class Measures(Measurer[Any], Protocol):
    """Runs the candidates of one problem: measure.GpuTrial."""

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


class Tunable(Protocol):
    """The interface of a kind of problem to tuning: tuning/products.py, tuning/attention.py."""

    @property
    def plans(self) -> Family[Any, Any, Any, Any]:
        """The plans as planning sees them."""
        ...

    def plain(self, problem: Any) -> Any:
        """The problem as it is measured: one for all problems of a class."""
        ...

    def explore(self, problem: Any, gpu: Gpu, also: Plan | None = None) -> Space[Any]:
        """The candidates worth compiling, `also` among them where its rung is tried."""
        ...

    def job(self, problem: Any, candidate: Any) -> Job:
        """Return what to compile for a candidate."""
        ...

    def kernels(self, problem: Any) -> str:
        """The hash of the device code for a problem."""
        ...

    def trial(self, problem: Any, ordinal: int, pattern: Pattern) -> Measures: ...

    def shape(self, problem: Any) -> tuple[int, ...]: ...

    def name(self, problem: Any) -> str:
        """The problem in a few words."""
        ...

    def fused(self, problem: Any) -> str:
        """Return what is computed with it, in words (entries.Entry.epilogue)."""
        ...


class Bench:
    """The GPU that candidates are measured on, and what compiles for it."""

    def __init__(self, ordinal: int) -> None:
        where = device(ordinal)
        self.ordinal, self.gpu, self.arch = ordinal, where.gpu, where.arch.name

    def builder(self, jobs: int) -> Builder:
        return Builder(jobs)

    def trial(self, family: Tunable, problem: Any) -> Measures:
        return family.trial(problem, self.ordinal, pattern_of(problem.dtype))

    @property
    def is_lost(self) -> bool:
        """Return whether a fault has made the GPU unusable for this process."""
        return context_is_lost(self.ordinal)


def _class_of(family: Tunable, problem: Any) -> Any:
    return family.plans.classes(problem)[0][0]


def _known(family: Tunable, problem: Any, store: Store) -> AnyEntry | None:
    """The store's finished result for the problem's class and today's kernels."""
    entry = store.of(family.plans).get(str(_class_of(family, problem)))
    current = entry is not None and entry.finished and entry.kernels == family.kernels(problem)
    return entry if current else None


def tune_family(
    family: Tunable, problems: Sequence[Any], *, ordinal: int = 0, seconds: float = 60.0, jobs: int | None = None,
    again: bool = False, store: Store | None = None, say: Say = silent,
    planned: Callable[[Any, Gpu], Plan] | None = None, bench: Bench | None = None,
) -> Iterator[Tuned]:  # fmt: skip
    """Tune each problem on a GPU, at most about `seconds` of measuring each, and store what was found.

    What would run now, by `planned`, is among the candidates, and the best of the others takes its place only where it
    wins a duel with it (duel.py). Kernels compile in `jobs` processes, those of the next problems while one is
    measured. A problem whose class the store has, for today's kernels, is not measured again unless `again`. Ctrl-C:
    what was measured of the problem under way is stored, and KeyboardInterrupt goes on its way. Raises DeviceError
    without a GPU, or when a kernel's fault has taken the GPU's context along.
    """
    bench = bench or Bench(ordinal)
    store = store or store_of(bench.gpu, ordinal)
    plain = [family.plain(problem) for problem in problems]
    problems = list({str(_class_of(family, problem)): problem for problem in reversed(plain)}.values())[::-1]
    spaces: dict[int, tuple[Space[Any], Plan]] = {}
    futures: dict[int, list[Future[Built]]] = {}
    with bench.builder(jobs or default_jobs()) as builder:

        def look_ahead(number: int) -> None:
            """Choose a problem's candidates and let them be compiled."""
            problem = problems[number]
            now = planned(problem, bench.gpu) if planned else plan(family.plans, problem, bench.gpu)
            space = family.explore(problem, bench.gpu, now)
            spaces[number] = space, now
            jobs_of = [family.job(problem, candidate) for candidate in space.kept]
            futures[number] = [
                builder.submit(job.include, job.constants, job.entry, bench.arch, job.generated) for job in jobs_of
            ]

        wanted = [n for n, problem in enumerate(problems) if again or _known(family, problem, store) is None]
        ahead = iter(wanted)
        for number in islice(ahead, AHEAD):
            look_ahead(number)
        for number, problem in enumerate(problems):
            name = family.name(problem)
            if number not in wanted:
                entry = _known(family, problem, store)
                assert entry is not None
                yield Tuned(problem, entry, None, True, name)
                continue
            for later in islice(ahead, 1):
                look_ahead(later)
            space, now = spaces[number]
            run = _Run(family, problem, space, now, futures[number], bench, seconds)
            try:
                run.measure(lambda text, done=number: say(done, text))  # type: ignore[misc]
            finally:
                entry = run.entry()
                stored = bool(entry.timed) and store.add([entry])
                results_changed()
                run.close()
            yield Tuned(problem, entry, space, stored, name)


class _Run:
    """Measuring one problem's candidates as they come from the compiler."""

    def __init__(
        self, family: Tunable, problem: Any, space: Space[Any], now: Plan, futures: Sequence[Future[Built]],
        bench: Bench, seconds: float,
    ) -> None:  # fmt: skip
        self.family, self.bench, self.seconds = family, bench, seconds
        self.problem, self.space, self.now, self.futures = problem, space, now, futures
        self.duel: Duel | None = None
        self.failed: list[Failure] = []
        self.ranking: list[Ranked[Any]] = []
        self.finished = False
        self.start = time.monotonic()
        self.measurer: Measures | None = None

    def close(self) -> None:
        """Free the operands, where the GPU still lets us."""
        if self.measurer is not None and not self.bench.is_lost:
            self.measurer.__exit__()

    def _fail(self, candidate: Any, kind: str, reason: str) -> None:
        self.failed.append(Failure(candidate.rung.id, candidate.text, kind, reason))

    def measure(self, say: Callable[[str], None]) -> None:
        name = self.family.name(self.problem)
        say(f"{name}: operands and reference")
        try:
            self.measurer = measurer = self.bench.trial(self.family, self.problem)
        except DeviceError as error:  # such as too little memory: the next problem may be smaller
            if self.bench.is_lost:
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
        incumbent = next((one for one in ready if self._runs_now(one)), None)
        best = self.ranking[0].candidate
        if incumbent is not None and best is not incumbent:
            say(f"{name}: {best} against {incumbent}, which runs now")
            self.duel = duel(measurer, incumbent, best, time.monotonic() + self.seconds)
            if not self.duel.is_won:  # what runs now stays
                self.ranking.sort(key=lambda ranked: ranked.candidate is not incumbent)
        self.finished = True

    def _runs_now(self, candidate: Any) -> bool:
        now = self.now
        return (candidate.rung, candidate.config, candidate.packs) == (now.rung, now.config, now.packs)

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
            if self.bench.is_lost:
                raise
        return False

    def entry(self) -> AnyEntry:
        """Return what is known by now."""
        timed: list[Timed[Any]] = [
            Timed(r.candidate.rung.id, r.candidate.config, float(f"{r.ms:.5g}"), r.candidate.packs)
            for r in self.ranking
        ]
        if timed:  # the first is the best, whatever a race of many had said
            timed[0] = replace(timed[0], ms=min(one.ms for one in timed[:2]))
        # who survived more rounds was measured better: an early loser is not faster than who stayed
        for place in range(1, len(timed)):
            if timed[place].ms < timed[place - 1].ms:
                timed[place] = replace(timed[place], ms=timed[place - 1].ms)
        return Entry(
            _class_of(self.family, self.problem), self.family.shape(self.problem), tuple(timed), tuple(self.failed),
            self.family.kernels(self.problem),
            datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds"), self.finished,
            round(time.monotonic() - self.start, 2), epilogue=self.family.fused(self.problem),
            duel=str(self.duel) if self.duel is not None else "",
        )  # fmt: skip
