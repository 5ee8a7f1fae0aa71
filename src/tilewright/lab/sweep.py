"""Many configs of one product, each checked and then timed in pairs with the library's; the model chooses which."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random
from typing import Any

from ..errors import WrongResult
from ..gemm.problem import GemmProblem
from ..gemm.space import explore
from ..gemm.stages import program_for
from ..gpus import Gpu
from ..jit.device import device
from ..jit.timing import Start
from ..plan.plan import Plan
from ..plan.space import Candidate
from ..run.program import Program
from .climb_gpu import origin_of
from .ground import Buffers, Ground, program_launch
from .ladder import Progress, silent
from .peers.entrant import Entrant, judge
from .reference import needed_reference
from .select import select_rungs

KEEP = 12
"""Configs of a case, if it does not say how many."""
ALL = 1 << 20


def problem_of(case: dict[str, Any]) -> GemmProblem:
    """The product of a case {"m", "n", "k"} with its "layout", "dtype" and "precision"."""
    return GemmProblem.dense(
        case["m"], case["n"], case["k"], layout=case.get("layout", "nn"), dtype=case.get("dtype", "f32"),
        precision=case.get("precision", "ieee"),
    )  # fmt: skip


def candidates(case: dict[str, Any], gpu: Gpu) -> list[Candidate]:
    """The first `keep` configs of each of a case's rungs, in the model's order; or of the first `tiles` tiles the first
    config, with others of the same tile drawn at random where a case wants `of_a_tile`."""
    problem = problem_of(case)
    found: list[Candidate] = []
    for rung in select_rungs(case.get("rungs"), problem.dtype, problem.precision):
        if "tiles" not in case:
            found += explore(problem, gpu, [rung], case.get("keep", KEEP)).kept
            continue
        by_tile: dict[tuple[int, int], list[Candidate]] = {}
        for candidate in explore(problem, gpu, [rung], ALL).kept:
            by_tile.setdefault((candidate.config.tile_m, candidate.config.tile_n), []).append(candidate)
        for first, *others in list(by_tile.values())[: case["tiles"]]:
            drawn = Random(0).sample(others, min(case.get("of_a_tile", 1) - 1, len(others)))
            found += [first, *drawn]
    return found


def kernels(cases: Sequence[dict[str, Any]], gpu: Gpu) -> Iterator[Callable[[], object]]:
    """Return what the cases launch, for precompile."""
    for case in cases:
        for candidate in candidates(case, gpu):
            yield from (partial(stage.compile, gpu.arch) for stage in _program(problem_of(case), candidate).stages)


def _program(problem: GemmProblem, candidate: Candidate) -> Program:
    """The launches of a candidate."""
    plan = Plan(candidate.rung, candidate.config, "the suite", "a config of a sweep", packs=candidate.packs)
    return program_for(problem, plan)


def sweep_records(
    suite: str, cases: Sequence[dict[str, Any]], seconds: float = 1.0, say: Progress = silent, each: bool = False
) -> list[dict[str, Any]]:
    """One record a case: its right configs, the fastest first, and those that were wrong. With `each` one a config.

    Raises TilewrightError without a library to compare with.
    """
    where = device(0)
    library = needed_reference(0)
    origin = origin_of(where, library.name, library.version)
    records = []
    for number, case in enumerate(cases):
        problem = problem_of(case)
        ground = Ground(problem, where, library)
        timed: list[dict[str, Any]] = []
        wrong: list[str] = []
        for candidate in candidates(case, where.gpu):
            say(number, f"{problem.m} x {problem.n} x {problem.k} {problem.layout}: {candidate}")
            try:
                timed.append(_timed(candidate, ground, seconds))
            except WrongResult as error:
                wrong.append(str(error))
        sizes = {"m": problem.m, "n": problem.n, "k": problem.k, "layout": problem.layout, "dtype": problem.dtype,
                 "precision": problem.precision, "out_dtype": problem.out_dtype}  # fmt: skip
        reason = {"right": not wrong, "reason": "; ".join(wrong)}
        if each:
            named = ("rung", "config_text", "min_blocks")
            results = [(sizes | {name: config[name] for name in named}, reason | config) for config in timed]
        else:
            rung = {"rung": timed[0]["rung"]} if len({config["rung"] for config in timed}) == 1 else {}
            fastest = sorted(timed, key=lambda config: config["us"])
            torch_us = {"torch_us": fastest[0]["reference_ms"] * 1e3} if fastest else {}
            results = [(sizes | rung, reason | torch_us | {"configs": fastest})]
        records += [{"suite": suite, "case": c, "result": r, "provenance": origin} for c, r in results]
    return records


def _timed(candidate: Candidate, ground: Ground, seconds: float) -> dict[str, Any]:
    """A config's figures. Raises WrongResult."""
    where, program = ground.where, _program(ground.problem, candidate)
    compiled = [stage.compile(where.arch) for stage in program.stages]

    def prepare(buffers: Buffers) -> Start:
        return program_launch(program, compiled, buffers, where.ordinal)

    verdict = judge(Entrant(str(candidate), prepare), ground)
    if not verdict.ok:
        raise WrongResult(f"{candidate}: {verdict.reason}")
    times = ground.timed(list(map(prepare, ground.sets)), seconds)
    return times | {
        "rung": candidate.rung.id, "config_text": str(candidate.config), "min_blocks": candidate.config.min_blocks,
        "packs": list(candidate.packs), "us": times["ms"] * 1e3, "ratio_to_torch": times["ratio"],
        "ratio_to_cublas": times["ratio"],
    }  # fmt: skip
