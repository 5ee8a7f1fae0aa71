"""Which rung and config run a product, and why.

The choice is a pure function of the problem, the GPU and the tuning results: the same call runs the same kernel. A rung
named by the caller runs with its default config. Else tuning results decide: those of this machine, then those that
ship with the package, the problem's own class first, its neighbours if it was not tuned (tuning/choice.py). Where none
know anything near, the fast rung of the dtype runs with the config that a small cost model prefers (cost.py); the
model's only measured input is one figure a config (choices.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from ..errors import ConfigRejected
from ..gemm.problem import ITEM_BYTES, GemmProblem
from ..gemm.rung import GemmConfig, Rung, ceil_div
from ..gemm.rungs.simt import find_rung, rungs_for
from ..gemm.rungs.tensor import ragged
from ..gpus import GPUS, Arch, Gpu
from .choice import RUNNERS_UP, choose
from .cost import CLEARLY, Candidate, candidates, fp32_cost, fp32x3_us, narrow_operands, tiles_of
from .demands import NONE, Demands
from .entries import worded
from .fallback import CHOICES, Choice
from .tables import SHIPPED, generation_now, sources_for

_REASONS = 3
"""How many an error tells."""


@dataclass(frozen=True)
class Plan:
    """The rung and config that run a problem. `refused`: (rung, config, reason) of what was considered and cannot."""

    rung: Rung
    config: GemmConfig
    source: str
    """Who chose: "the caller", "the rung's default", "tuned here", "shipped with the package", "heuristic from what is"
    either of the two, or "cost model", with the figures behind it."""
    why: str
    refused: tuple[tuple[str, str, str], ...] = ()
    runners_up: tuple[tuple[str, str, str], ...] = ()
    """(rung, config, how it compares) of the next best that were measured or estimated."""
    packs: tuple[str, ...] = ()
    """The operands, "a" and "b", that are copied first to lines that wide accesses can read (program.py)."""
    ignored: str = ""
    """Tuning results that this version cannot use, in a line; "" where all were of use."""
    rows: int = 0
    """Where not 0: the product's kernel is the one that is compiled for so many rows; it takes any number."""


def plan_for(
    problem: GemmProblem, on: Gpu | Arch, rung: str | None = None, config: GemmConfig | None = None, *,
    demands: Demands = NONE,
) -> Plan:  # fmt: skip
    """The plan for a problem on a GPU (or on the first listed GPU of an architecture). Deterministic.

    A `config` without a rung is one of the highest that takes it. `demands` narrow what the plan may choose by itself.
    Raises ConfigRejected, with the numbers, when the rung or config named cannot run the problem, or no rung can.
    """
    if config is not None and not isinstance(config, GemmConfig):
        raise ConfigRejected(f"config is {config!r}; pass a tilewright.ladder.GemmConfig, or none.")
    if rung is not None and not isinstance(rung, str):
        raise ConfigRejected(f"rung is {rung!r}; pass the name of one, such as 'f12', or none.")
    gpu = on if isinstance(on, Gpu) else next(gpu for gpu in GPUS.values() if gpu.arch == on)
    return _plan(problem, gpu, rung, config, demands, generation_now())


@lru_cache(maxsize=4096)
def _plan(
    problem: GemmProblem, gpu: Gpu, rung_name: str | None, config: GemmConfig | None, demands: Demands, tuned: int
) -> Plan:
    """`tuned` counts the changes of tuning results in this process."""
    known = rungs_for(problem.dtype, problem.precision)
    if demands.batch_invariant and problem.precision == "fp32x3":
        raise ConfigRejected(
            "batch_invariant=True cannot be had with precision='fp32x3': which tiny results are done again in fp32 "
            "depends on the magnitudes of their whole tile. Leave one of the two away."
        )
    if rung_name is not None or config is not None:
        rung = find_rung(rung_name) if rung_name is not None else _rung_for(config, problem, known, gpu)
        if reason := rung.why_not(problem, config or rung.default, gpu.arch):
            if config is None and (other := _instead_of_default(rung, problem, gpu)) is not None:
                why = f"{rung} was named in the call; its default cannot run: {reason}"
                return Plan(rung, other.config, f"cost model ({other.source})", why)
            raise ConfigRejected(f"{reason}. Leave rung and config away to let the plan choose.")
        if config is not None:
            return Plan(rung, config, "the caller", "the config was named in the call")
        return Plan(rung, rung.default, "the rung's default", f"{rung} was named in the call")
    if problem.m and problem.n and problem.k and problem.batch:
        sources = [source for source in sources_for(gpu) if not demands.deterministic or source[0] == SHIPPED]
        ignored: list[str] = []
        found = choose(problem, gpu, sources, demands.batch_invariant, ignored)
        told = "; ".join(ignored)
        if found is not None:
            return Plan(
                found.rung, found.config, found.source, found.why, found.refused, found.runners_up, found.packs, told
            )
        return replace(_choose(problem, gpu, known, demands.batch_invariant), ignored=told)
    return _choose(problem, gpu, known, demands.batch_invariant)


def _choose(problem: GemmProblem, gpu: Gpu, known: tuple[Rung, ...], batch_invariant: bool) -> Plan:
    refused: list[tuple[str, str, str]] = []
    fits: list[Choice] = []
    for choice in CHOICES.get(problem.kind, ()):
        rung = find_rung(choice.rung)
        if reason := rung.why_not(problem, choice.config, gpu.arch):
            if not any(name == rung.id and told == reason for name, _, told in refused):
                refused.append((rung.id, str(choice.config), reason))
        else:
            fits.append(choice)
    if fits and problem.precision != "ieee":
        return _of_a_precision(problem, gpu, fits, tuple(refused))
    if batch_invariant:
        fits = [choice for choice in fits if choice.config.slices_k == 1]
    if fits:
        return _modelled(problem, gpu, fits, tuple(refused), batch_invariant)
    for rung in reversed(known):
        if reason := rung.why_not(problem, rung.default, gpu.arch):
            refused.append((rung.id, str(rung.default), reason))
        else:
            why = f"the highest rung for {problem.dtype} whose default config can run this problem"
            return Plan(rung, rung.default, "the rung's default", why, tuple(refused))
    reasons = "; ".join(reason for _, _, reason in refused[:_REASONS])
    more = f"; and so {len(refused) - _REASONS} more" if len(refused) > _REASONS else ""
    raise ConfigRejected(f"no rung can run this {problem.kind} problem on {gpu.arch}: {reasons}{more}.")


def _rung_for(config: GemmConfig | None, problem: GemmProblem, known: tuple[Rung, ...], gpu: Gpu) -> Rung:
    """The highest that can take a config; if none can, the highest that the GPU has, which says why not."""
    here = [rung for rung in reversed(known) if rung.only_on in ("", gpu.arch.name)]
    return next((rung for rung in here if config and rung.why_not(problem, config, gpu.arch) is None), here[0])


def _instead_of_default(rung: Rung, problem: GemmProblem, gpu: Gpu) -> Choice | None:
    """The first of a rung's own choices that can run the problem."""
    own = (choice for choice in CHOICES.get(problem.kind, ()) if find_rung(choice.rung) is rung)
    return next((choice for choice in own if rung.why_not(problem, choice.config, gpu.arch) is None), None)


def _of_a_precision(
    problem: GemmProblem, gpu: Gpu, fits: list[Choice], refused: tuple[tuple[str, str, str], ...]
) -> Plan:
    """The quickest by the model in cost.py; the first of equals, in the table's order."""
    rungs = [find_rung(choice.rung) for choice in fits]
    costs = [
        fp32x3_us(problem, rung, choice, gpu)
        if problem.precision == "fp32x3"
        else fp32_cost(problem, choice, choice.config, gpu)
        for rung, choice in zip(rungs, fits, strict=True)
    ]
    order = sorted(range(len(fits)), key=costs.__getitem__)
    first, rest = order[0], order[1 : 1 + RUNNERS_UP]
    why = _why(problem, fits[first], gpu, len(fits))
    if problem.precision == "fp32x3":
        why = f"least modelled time among {len(fits)} plans, {_SPLIT_WORDS[rungs[first].splits]}: {why}"
    others = tuple(
        (rungs[i].id, str(fits[i].config), f"modelled at {costs[i] / costs[first]:.2f} of the choice's time")
        for i in rest
    )
    return Plan(rungs[first], fits[first].config, f"cost model ({fits[first].source})", why, refused, others)


_SPLIT_WORDS = {True: "operands split first", False: "operands split by each block that reads them"}


def _modelled(
    problem: GemmProblem, gpu: Gpu, fits: list[Choice], refused: tuple[tuple[str, str, str], ...],
    batch_invariant: bool,
) -> Plan:  # fmt: skip
    """The quickest by the model in cost.py; of equals the smallest tile."""

    def order(candidate: Candidate) -> tuple[float, int]:
        return candidate.us, candidate.config.tile_m * candidate.config.tile_n

    known = candidates(problem, fits, gpu, may_split=not batch_invariant)
    best = min(known, key=order)
    if problem.dtype == "f32":
        one_launch = min((one for one in known if not one.packs and one.config.split_k == 1), key=order)
        best = best if best.us * CLEARLY < one_launch.us else one_launch
    tiles, parts = tiles_of(problem, best.config), best.config.split_k
    why = [f"least modelled time among {len(known)} plans"]
    if problem.dtype == "f32" and parts == 1:
        why = [_why(problem, best.choice, gpu, len(fits))]
    if parts > 1:
        why.append(f"k in {parts} parts, since {tiles} tiles alone do not keep {gpu.sm_count} SMs busy")
    elif batch_invariant:
        why.append("k is never split, so that a row's bits do not depend on m")
    for name in narrow_operands(problem, best.rung, best.config):
        verb = "is packed first" if name in best.packs else "is read element by element, which costs less than packing"
        why.append(f"{name} {verb}: {_narrow_reason(problem, name, best.config)}")
    source = f"cost model ({best.choice.source})"
    return Plan(best.rung, best.config, source, "; ".join(why), refused, _others(known, best), best.packs)


def _others(known: list[Candidate], best: Candidate) -> tuple[tuple[str, str, str], ...]:
    """The next best by the model, of each tile only the quickest of its ways to run."""
    quickest: dict[tuple[int, int], Candidate] = {}
    for other in sorted(known, key=lambda candidate: candidate.us):
        if other.us >= best.us:  # what is not clearly quicker was passed over
            quickest.setdefault((other.config.tile_m, other.config.tile_n), other)
    quickest.pop((best.config.tile_m, best.config.tile_n), None)
    return tuple(
        (other.rung.id, worded(other.config, other.packs), f"modelled at {other.us / best.us:.2f} of the choice's time")
        for other in list(quickest.values())[:RUNNERS_UP]
    )


def _narrow_reason(problem: GemmProblem, name: str, config: GemmConfig) -> str:
    matrix, rows, cols, tiles = (
        (problem.a, problem.m, problem.k, (config.tile_m, config.tile_k)) if name == "a"
        else (problem.b, problem.k, problem.n, (config.tile_k, config.tile_n))
    )  # fmt: skip
    if matrix.unit(rows, cols) == "none":
        return f"no contiguous lines (strides {matrix.row_stride} and {matrix.col_stride} elements)"
    if problem.dtype == "f32" and ragged(matrix, (rows, cols), tiles):
        return f"{rows} x {cols} are no whole tiles of {tiles[0]} x {tiles[1]}"
    width = matrix.vector_bytes(rows, cols, ITEM_BYTES[problem.dtype])
    return f"its lines start at multiples of {width} B"


def _why(problem: GemmProblem, choice: Choice, gpu: Gpu, considered: int) -> str:
    config = choice.config
    tiles = tiles_of(problem, config)
    busiest = ceil_div(tiles, gpu.sm_count)
    used = problem.m * problem.n * problem.batch / (tiles * config.tile_m * config.tile_n) if tiles else 1.0
    spread = tiles / (busiest * gpu.sm_count) if tiles else 1.0
    lead = f"least modelled work of the busiest SM among {considered} configs: "
    return (
        f"{'' if problem.precision == 'fp32x3' else lead}{tiles} tiles on {gpu.sm_count} SMs, at "
        f"most {busiest} an SM (SMs {spread:.0%} filled, tiles {used:.0%} used), {choice.efficiency:.2f} of the "
        f"{'FFMA' if problem.kind == 'f32' else 'tensor-core'} peak when full"
    )
