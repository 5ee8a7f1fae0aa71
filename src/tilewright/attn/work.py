"""What the model of time must know of an attention kernel (plan/estimate.py)."""

from __future__ import annotations

from functools import lru_cache

from ..arrays.dtypes import ITEM_BYTES, ceil_div
from ..plan.estimate import Work
from .problem import AttentionProblem
from .rung import AttentionConfig, AttentionRung

_SOFTMAX = 6.6
"""Instructions on the FP32 lanes per score: scaling, maximum, exponential, sum, rounding."""
_SLOWER = (("a01", 5.0), ("a07", 1.15), ("a16", 1.05))
"""Rungs up to the one named, over the last: a01's reads meet eight-way bank conflicts."""
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
def work_of(problem: AttentionProblem, rung: AttentionRung, config: AttentionConfig) -> Work:
    """What a candidate that why_not has let pass does. A step is a tile of b_c keys and values."""
    item, scores = ITEM_BYTES[problem.dtype], config.b_r * config.b_c
    longest = ceil_div(max(problem.seq_k, 1), config.b_c)
    # a block walks the keys that any of its rows sees, in whole tiles
    seen = problem.visible_pairs / problem.seq_q + (config.b_r + config.b_c) / 2
    brought = 2 * config.b_c * config.d_head * item
    reads = 1.0 * config.n_warps * brought  # each warp multiplies its rows with all of K and V
    if config.load_q:
        reads += _Q_READS * config.n_warps * brought
    return Work(
        "attention", problem.dtype, ceil_div(problem.seq_q, config.b_r) * problem.heads_q * problem.batch,
        min(longest, seen / config.b_c), 2 * scores * config.d_head, config.threads, registers_of(config),
        rung.shared_bytes(config), config.min_blocks, 2, brought, brought, brought, reads, problem.bytes, 0.0,
        longest=longest, others=_SOFTMAX * scores,
        slower=next((factor for last, factor in _SLOWER if rung.id[:3] <= last), 1.0),
    )  # fmt: skip
