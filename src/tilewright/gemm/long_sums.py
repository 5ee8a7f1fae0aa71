"""Sums of long k in fp32: their error grows with the length of a chain, so long ones are made in shorter pieces.

Where cuBLAS splits k, its errors are those of the parts; ours are to be at most twice as large
(benchmarks/fp32-sums.json).
"""

from __future__ import annotations

from dataclasses import replace

from ..plan.plan import Plan
from .config import SimtConfig
from .problem import GemmProblem
from .rungs.simt import SUMMED_APART
from .space import SPLITS

LONG_SUM = 4096
"""Products in a chain of fp32 sums from which on its error is worth shortening it."""
LONG_SUM_OF_FEW = 128
"""The same where the result has at most FEW rows or columns: memory bounds such products, so that it costs little."""
FEW = 16
MOST_SUMS = 32
"""A thread's sums up to which it has registers for another set."""
FEWEST_WARPS = 16
"""Warps on an SM that a config with two sets of sums leaves registers for: 128 a thread."""


def with_shorter_sums(problem: GemmProblem, found: Plan) -> Plan:
    """The plan with shorter chains of fp32 sums where k is long: their error grows with their length. A second set of
    sums where registers allow it, else more parts where k is split. One chain (batch_invariant) has the same bits in
    every config."""
    rung, config = found.rung, found.config
    if not isinstance(config, SimtConfig) or "sums" not in rung.levels:
        return found
    chain = problem.k // config.split_k
    if chain < (LONG_SUM_OF_FEW if min(problem.m, problem.n) <= FEW else LONG_SUM):
        return found
    if config.tile_m * config.tile_n <= MOST_SUMS * config.threads:
        fewer = min(config.min_blocks, max(1, FEWEST_WARPS * 32 // config.threads))  # else the second set would spill
        shorter = replace(config, sums=2, min_blocks=fewer)
        why = f"sums of {SUMMED_APART} products are added up apart, since k is long"
    elif config.split_k > 1 and chain >= LONG_SUM:
        able = [parts for parts in SPLITS if parts <= 4 * config.split_k]  # each has a result of its own in memory
        shorter = replace(config, split_k=next((n for n in able if n * LONG_SUM // 2 > problem.k), able[-1]))
        why = f"in {shorter.split_k} parts, not {config.split_k}, so that sums are shorter"
    else:
        return found
    return replace(found, config=shorter, why=f"{found.why}; {why}")
