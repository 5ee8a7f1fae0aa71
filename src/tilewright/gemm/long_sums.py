"""Sums in fp32: their error grows with the length of a chain, so chains are made shorter where that costs little.

Where cuBLAS has short chains, because it splits k among blocks or lanes, its errors are small; ours are to be at most
twice as large (benchmarks/fp32-sums.json). The constants are from what an H200 showed over the shapes of that suite.
"""

from __future__ import annotations

from dataclasses import replace

from ..arrays.dtypes import ceil_div
from ..plan.plan import Plan
from .config import SimtConfig
from .problem import GemmProblem
from .rungs.rows import FEWEST_ELEMENTS, ROW_DOTS, WIDE_SUMS, few_elements, wide_sums_of
from .rungs.simt import SUMMED_APART

SHORT_K, OF_SHORT_K = 64, 1 << 17
"""Up to so much k, a result of up to so many elements has its chains cut, however few parts there are."""
FEW = 16
"""Rows or columns up to which cuBLAS divides k among lanes."""
LONG_SUM, LONG_SUM_OF_LARGE = 64, 768
"""Products in a chain that is not cut yet, where there are few rows or columns, or k is split. The second: of tiles of
MOST_SUMS and more."""
LONGEST_SUM = 4096
"""The same wherever a thread has registers for another set."""
MOST_TIMES = 4
"""By how much at most k is split further: each part has a result of its own in memory."""
MOST_SUMS = 32
"""A thread's sums up to which it has registers for another set."""
FEWEST_WARPS = 16
"""Warps on an SM that a config with two sets of sums leaves registers for: 128 per thread."""
SHALLOW, DEPTH = 8, 5
"""tile_k, and stages, with which two sets of MOST_SUMS fit into those registers. A short k is faster with them too."""


def with_shorter_sums(problem: GemmProblem, found: Plan) -> Plan:
    """Return the plan with shorter chains of fp32 sums where their error would show.

    A result of few elements is summed in fp64. Small tiles get a second set of sums, large ones more parts of k. One
    chain (batch_invariant) has the same bits in every config.
    """
    rung, config = found.rung, found.config
    if not isinstance(config, SimtConfig):
        return found
    if few_elements(problem) and (rung is not ROW_DOTS or problem.m * problem.n <= FEWEST_ELEMENTS):
        why = f"v02, since sums in fp64 cost little where there are {problem.m} x {problem.n} of them"
        return replace(found, rung=WIDE_SUMS, config=wide_sums_of(problem), packs=(), why=f"{found.why}; {why}")
    sums = config.tile_m * config.tile_n // config.threads
    long = LONG_SUM if sums < MOST_SUMS else LONG_SUM_OF_LARGE
    if "sums" not in rung.levels or not _shows(problem, config, long):
        return found
    if sums <= MOST_SUMS:
        blocks = min(config.min_blocks, max(1, FEWEST_WARPS * 32 // config.threads))  # else the second set would spill
        shorter = replace(config, sums=2, min_blocks=blocks)
        if "split_k" in rung.levels and config.tile_k > SHALLOW and (sums == MOST_SUMS or problem.k <= SHORT_K):
            shorter = replace(shorter, tile_k=SHALLOW, stages=DEPTH)
        why = f"sums of {max(shorter.tile_k, SUMMED_APART)} products are added up apart, for accuracy"
    elif config.split_k > 1:
        times = min(MOST_TIMES, ceil_div(problem.k, config.split_k * long))
        shorter = replace(config, split_k=times * config.split_k)
        why = f"in {shorter.split_k} parts, not {config.split_k}, so that sums are shorter"
    else:
        return found
    return replace(found, config=shorter, why=f"{found.why}; {why}")


def _shows(problem: GemmProblem, config: SimtConfig, long: int) -> bool:
    """Return whether the error of a chain may be twice that of cuBLAS's."""
    chain = problem.k // config.split_k
    if problem.k <= SHORT_K:
        return chain > 2 * SUMMED_APART and problem.batch * problem.m * problem.n <= OF_SHORT_K
    return chain > long and (config.split_k > 1 or min(problem.m, problem.n) <= FEW or chain > LONGEST_SUM)
