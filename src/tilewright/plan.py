"""Which rung and config run a product, and why.

The choice is a pure function of the problem, the GPU and the tuning results: the same call runs the same kernel. A rung
named by the caller runs with its default config. Else tuning results decide: those of this machine, then those that
ship with the package, the problem's own class first, its neighbours if it was not tuned (tuning/choice.py). Where none
know anything near, the fast rung of the dtype runs with the config that a small cost model prefers; the model's only
measured input is one figure a config, in `FP32_CHOICES`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from .arch import GPUS, Arch, Gpu
from .errors import ConfigRejected
from .ladder import GEMM_RUNGS, GemmConfig, Rung, find_rung, rungs_for
from .ladder.rung import ceil_div
from .problems import GemmProblem
from .tuning.choice import choose
from .tuning.tables import generation, sources_for

if TYPE_CHECKING:
    from .explanation import Explanation


@dataclass(frozen=True)
class Choice:
    """A config that the plan considers. `efficiency`: share of the FFMA peak reached on a grid that fills the GPU."""

    config: GemmConfig
    efficiency: float
    source: str


def _f12(
    tile: tuple[int, int], warp: tuple[int, int], subtiles: tuple[int, int], tile_k: int, stages: int, blocks: int
) -> GemmConfig:
    return GemmConfig(*tile, tile_k, 4, 4, *warp, *subtiles, stages, "ca", group_m=8, min_blocks=blocks)


_SWEEP = "measured on an H200: benchmarks/results/fp32-f12-sweep-H200.json, mean over 4096 to 8192 cubed"
FP32_CHOICES: tuple[Choice, ...] = (
    Choice(_f12((128, 256), (64, 64), (4, 2), 16, 4, 1), 0.790, _SWEEP),
    Choice(_f12((128, 128), (64, 32), (2, 2), 32, 3, 2), 0.773, _SWEEP),
    Choice(_f12((64, 128), (32, 64), (2, 2), 16, 3, 4), 0.747, _SWEEP),
    Choice(_f12((128, 64), (64, 32), (2, 2), 16, 3, 4), 0.743, _SWEEP),
    Choice(_f12((64, 64), (32, 32), (1, 2), 32, 4, 4), 0.645, _SWEEP),
    Choice(_f12((32, 64), (16, 32), (1, 1), 32, 3, 8), 0.497, _SWEEP),
    Choice(_f12((64, 32), (16, 32), (1, 1), 32, 3, 8), 0.477, _SWEEP),
    Choice(_f12((32, 32), (16, 32), (1, 1), 32, 3, 8), 0.441, _SWEEP),
)
"""f12's candidates. Over 23 shapes of the sweep the model's choice takes 1.004 times the best config's time (geometric
mean; at most 1.022)."""

_FIXED_STEPS_OF_K = 32
"""What filling the pipeline and storing the result costs, as so many more steps along k; blocks beside hide it."""


@dataclass(frozen=True)
class Plan:
    """The rung and config that run a problem. `refused`: (rung, config, reason) of what was considered and cannot."""

    rung: Rung
    config: GemmConfig
    source: str
    """Who chose: "the caller", "the rung's default", or what the figures behind the cost model are."""
    why: str
    refused: tuple[tuple[str, str, str], ...] = ()
    runners_up: tuple[tuple[str, str, str], ...] = ()
    """(rung, config, how it compares) of the next best that were measured or estimated."""


def plan_for(problem: GemmProblem, on: Gpu | Arch, rung: str | None = None, config: GemmConfig | None = None) -> Plan:
    """The plan for a problem on a GPU (or on the first listed GPU of an architecture). Deterministic.

    A `config` without a rung is one of the dtype's fast rung. Raises ConfigRejected, with the numbers, when the rung
    or config named cannot run the problem, or no rung can.
    """
    if config is not None and not isinstance(config, GemmConfig):
        raise ConfigRejected(f"config is {config!r}; pass a tilewright.ladder.GemmConfig, or none.")
    gpu = on if isinstance(on, Gpu) else next(gpu for gpu in GPUS.values() if gpu.arch == on)
    return _plan(problem, gpu, rung, config, generation())


@lru_cache(maxsize=4096)
def _plan(problem: GemmProblem, gpu: Gpu, rung_name: str | None, config: GemmConfig | None, tuned: int) -> Plan:
    """`tuned` counts the changes of tuning results in this process."""
    known = rungs_for(problem.dtype)
    if not known:
        have = sorted({dtype for rung in GEMM_RUNGS for dtype in rung.dtypes})
        raise ConfigRejected(
            f"no rung multiplies {problem.dtype} yet; there are rungs for {', '.join(have)}. Convert the operands."
        )
    if rung_name is not None or config is not None:
        rung = find_rung(rung_name) if rung_name is not None else known[-1]
        if reason := rung.why_not(problem, config or rung.default, gpu.arch):
            raise ConfigRejected(f"{reason}. Leave rung and config away to let the plan choose.")
        if config is not None:
            return Plan(rung, config, "the caller", "the config was named in the call")
        return Plan(rung, rung.default, "the rung's default", f"{rung} was named in the call")
    if problem.m and problem.n and problem.k and problem.batch:
        found = choose(problem, gpu, sources_for(gpu))
        if found is not None:
            return Plan(found.rung, found.config, found.source, found.why, runners_up=found.runners_up)
    return _choose(problem, gpu, known)


def _choose(problem: GemmProblem, gpu: Gpu, known: tuple[Rung, ...]) -> Plan:
    top = known[-1]
    refused: list[tuple[str, str, str]] = []
    fits: list[Choice] = []
    if problem.dtype == "f32":
        for choice in FP32_CHOICES:
            if reason := top.why_not(problem, choice.config, gpu.arch):
                refused.append((top.id, str(choice.config), reason))
            else:
                fits.append(choice)
    if fits:
        best = min(fits, key=lambda choice: _cost(problem, choice, gpu))  # the first of equals: the table's order
        return Plan(top, best.config, best.source, _why(problem, best, gpu, len(fits)), tuple(refused))
    for rung in reversed(known):
        if reason := rung.why_not(problem, rung.default, gpu.arch):
            refused.append((rung.id, str(rung.default), reason))
        else:
            why = f"the highest rung for {problem.dtype} whose default config can run this problem"
            return Plan(rung, rung.default, "the rung's default", why, tuple(refused))
    reasons = "; ".join(reason for _, _, reason in refused)
    raise ConfigRejected(f"no rung can run this {problem.dtype} problem on {gpu.arch}: {reasons}.")


def _tiles(problem: GemmProblem, config: GemmConfig) -> int:
    return ceil_div(problem.m, config.tile_m) * ceil_div(problem.n, config.tile_n) * problem.batch


def _cost(problem: GemmProblem, choice: Choice, gpu: Gpu) -> float:
    """Model of the busiest SM's work, in products at full rate: its whole tiles.

    Whole tiles count, so a ragged edge and a last wave that few SMs share both cost what they cost.
    """
    config = choice.config
    tiles_of_busiest = max(1, ceil_div(_tiles(problem, config), gpu.sm_count))
    beside = min(tiles_of_busiest, config.min_blocks)
    steps = ceil_div(problem.k, config.tile_k) * config.tile_k + _FIXED_STEPS_OF_K / beside
    return tiles_of_busiest * config.tile_m * config.tile_n * steps / choice.efficiency


def _why(problem: GemmProblem, choice: Choice, gpu: Gpu, considered: int) -> str:
    config = choice.config
    tiles = _tiles(problem, config)
    busiest = ceil_div(tiles, gpu.sm_count)
    used = problem.m * problem.n * problem.batch / (tiles * config.tile_m * config.tile_n) if tiles else 1.0
    spread = tiles / (busiest * gpu.sm_count) if tiles else 1.0
    return (
        f"least modelled work of the busiest SM among {considered} configs: {tiles} tiles on {gpu.sm_count} SMs, at "
        f"most {busiest} an SM (SMs {spread:.0%} filled, tiles {used:.0%} used), {choice.efficiency:.2f} of the FFMA "
        "peak when full"
    )


def explain(
    a: Any, b: Any, *, c: Any = None, alpha: float = 1.0, beta: float | None = None, out: Any = None,
    out_dtype: Any = None, rung: str | None = None, config: GemmConfig | None = None, gpu: str | None = None,
    compile: bool = False,
) -> Explanation:  # fmt: skip
    """What `matmul` would run for the same arguments, and why; nothing is launched. Print the result.

    `gpu` names the GPU to explain for (see tilewright.arch.GPUS). Else it is the emulator's in force, the arrays' own,
    the first of this machine, or, with none, the default of the package, which the explanation then says.
    `compile=True` adds the compiler's figures: registers, spills, shared memory. Raises as `matmul` does.
    """
    from .explanation import explain_matmul

    return explain_matmul(a, b, c, alpha, beta, out, rung, config, gpu, compile, out_dtype)
