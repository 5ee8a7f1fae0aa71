"""An attention kernel as the model of time sees it (plan/estimate.py)."""

from __future__ import annotations

from functools import lru_cache

from ..arrays.dtypes import ITEM_BYTES, ceil_div
from ..plan.estimate import AnyWork, Work
from .config import AttentionConfig
from .hopper import HopperConfig
from .problem import AttentionProblem
from .rung import AttentionRung
from .split import SplitConfig
from .split_plan import SplitWork

_SOFTMAX = 6.6
"""Instructions on the FP32 lanes per score: scaling, maximum, exponential, sum, rounding."""
_SLOWER = (("a01", 5.0), ("a07", 1.15), ("a16", 1.05))
"""Rungs up to the one named, over the last: a01's reads meet eight-way bank conflicts."""
_EXPONENTIAL = 3.5
"""Instructions on the FP32 lanes that take as long as what a weight costs besides the products, up to d_head 64; in
wider heads more of it runs under them. Fitted, with "wgmma attention" in plan/fits.json, to a sweep of 153 problems on
an H200, where the choice by it took 0.5% longer than the best on average."""
_WIDER = 1.9
_ALONE = 0.66
"""The same for a block's only warpgroup."""
_NEXT_Q, _SEVERAL = 30.0, 512
"""Keys of a query whose time is saved where Q of the next tile comes early: 1.2 of the speed at 128 keys or fewer.
So many tiles are several a block."""
_SLOWER_HOPPER = {"a18": 1.3, "a19": 1.15, "a20": 1.05}
"""Those of Hopper over its last: guesses, until a record tells."""
_Q_READS = 0.14
"""The share of Q's tile that a step reads anew where Q is loaded in slices."""


def registers_of(config: AttentionConfig) -> int:
    """Registers per thread, estimated: rows of out and of scores, Q where it is held, addresses and fragments."""
    out = config.b_r * config.d_head / config.threads
    scores = config.b_r * config.b_c / config.threads
    held = 0.0 if config.load_q else out / 2
    whole = 0.0 if config.load_k else 0.1 * config.b_c * config.d_head / 32
    return round(52 + 1.2 * out + 1.1 * scores + 0.8 * held + whole)


@lru_cache(maxsize=1 << 14)
def work_of(
    problem: AttentionProblem, rung: AttentionRung, config: AttentionConfig | HopperConfig | SplitConfig
) -> AnyWork:
    """Return what a candidate that why_not has let pass does. A step is a tile of b_c keys and values."""
    if isinstance(config, SplitConfig):
        return SplitWork(problem, config)
    if isinstance(config, HopperConfig):
        return _work_on_hopper(problem, rung, config)
    item, scores = ITEM_BYTES[problem.dtype], config.b_r * config.b_c
    steps, longest = _steps(problem, config)
    brought = 2 * config.b_c * config.d_head * item
    reads = 1.0 * config.n_warps * brought  # each warp multiplies its rows with all of K and V
    if config.load_q:
        reads += _Q_READS * config.n_warps * brought
    return Work(
        "attention", problem.dtype, ceil_div(problem.seq_q, config.b_r) * problem.heads_q * problem.batch,
        steps, 2 * scores * config.d_head, config.threads, registers_of(config),
        rung.shared_bytes(config), config.min_blocks, 2, brought, brought, brought, reads, problem.bytes, 0.0,
        longest=longest, others=_SOFTMAX * scores,
        slower=next((factor for last, factor in _SLOWER if rung.id[:3] <= last), 1.0),
    )  # fmt: skip


def _steps(problem: AttentionProblem, config: AttentionConfig | HopperConfig) -> tuple[float, int]:
    """Tiles of keys that a block walks, on average and at most: those that any of its rows sees, whole."""
    longest = ceil_div(max(problem.seq_k, 1), config.b_c)
    seen = problem.visible_pairs / problem.seq_q + (config.b_r + config.b_c) / 2
    return min(longest, seen / config.b_c), longest


def ends_with_the_last_rows(problem: AttentionProblem) -> bool:
    """Return whether tiles that are not full come first on Hopper, where they are short."""
    return problem.right == 0 and problem.window[0] < 0 and problem.totals is None and problem.seq_k >= problem.seq_q


def _work_on_hopper(problem: AttentionProblem, rung: AttentionRung, config: HopperConfig) -> Work:
    item, scores = ITEM_BYTES[problem.dtype], config.b_r * config.b_c
    steps, longest = _steps(problem, config)
    row_tiles = ceil_div(problem.seq_q, config.b_r)
    if ends_with_the_last_rows(problem):
        steps = min(longest, (problem.seq_k - config.b_r * (row_tiles - 1) / 2) / config.b_c + 0.5)
    columns = config.d_head + config.columns  # of keys and of values
    brought = config.b_c * columns * item
    reads = config.groups * (brought + 64.0 * config.d_head * item)  # each warpgroup multiplies its Q with all of K, V
    registers = 65536 // config.threads // 8 * 8  # at the start, before roles share them out
    weights = _EXPONENTIAL * scores * min(1.0, 128 / columns) ** _WIDER * (_ALONE if config.groups == 1 else 1.0)
    slower = _SLOWER_HOPPER.get(rung.id[:3], 1.0)
    if config.q_buffers > 1 and row_tiles * problem.heads_q * problem.batch >= _SEVERAL:
        slower /= 1 + _NEXT_Q / max(problem.visible_pairs / problem.seq_q, 128)
    return Work(
        "wgmma attention", problem.dtype, row_tiles * problem.heads_q * problem.batch, steps,
        scores * columns, config.threads, registers, rung.shared_bytes(config), 1, config.stages,
        config.stages * brought, brought, brought, reads, problem.bytes, 0.0, longest=longest, others=weights,
        slower=slower,
    )  # fmt: skip
