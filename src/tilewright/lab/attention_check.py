"""Is an attention result right? Reference in float64; the bound follows from the two roundings to 16 bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..attn.problem import AttentionProblem
from .check import CheckResult
from .numbers import half_spacing

ROUNDOFF = {"bf16": 2.0**-8, "f16": 2.0**-11}
"""Largest relative error of one rounding to nearest."""


@dataclass(frozen=True)
class AttentionReference:
    """`out` [b, h, sq, d] and `lse` [b, h, sq] in float64; `size`: the same weights times |V|."""

    out: np.ndarray
    lse: np.ndarray
    size: np.ndarray


def visible(problem: AttentionProblem) -> np.ndarray | None:
    """[seq_q, seq_k] of bool: which pairs the mask leaves; None for all."""
    left, right = problem.window[0], problem.right
    if left < 0 and right < 0:
        return None
    place = np.arange(problem.seq_q)[:, None] + problem.seq_k - problem.seq_q
    key = np.arange(problem.seq_k)[None, :]
    seen = np.ones((problem.seq_q, problem.seq_k), bool)
    if left >= 0:
        seen &= key >= place - left
    if right >= 0:
        seen &= key <= place + right
    return seen


def attention_reference(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, problem: AttentionProblem, *, bias: np.ndarray | None = None,
    score: Callable[..., np.ndarray] | None = None,
) -> AttentionReference:  # fmt: skip
    """Attention in float64, head by head. q [b, h, sq, d], k [b, hk, sk, d], v [b, hk, sk, any]; rows with no key
    give 0 and -inf.

    `bias` broadcasts to [b, h, sq, sk]; `score` is a function of the scores [sq, sk], b, h, and the indices of query
    and key. Scale, mask and softcap are the problem's, which is of one length (no totals).
    """
    out = np.zeros((*q.shape[:3], v.shape[3]), np.float64)
    size, lse = np.zeros_like(out), np.zeros(q.shape[:3], np.float64)
    seen = visible(problem)
    added = None if bias is None else np.broadcast_to(bias, (*q.shape[:3], k.shape[2]))
    queries, keys_at = np.arange(q.shape[2])[:, None], np.arange(k.shape[2])[None, :]
    for b, h in np.ndindex(q.shape[:2]):
        keys, values = (x[b, h // problem.group].astype(np.float64) for x in (k, v))
        scores = problem.scale * (q[b, h].astype(np.float64) @ keys.T)
        if problem.softcap:
            scores = problem.softcap * np.tanh(scores / problem.softcap)
        if added is not None:
            scores = scores + added[b, h].astype(np.float64)
        if score is not None:
            scores = score(scores, b, h, queries, keys_at)
        if seen is not None:
            scores = np.where(seen, scores, -np.inf)
        largest = scores.max(-1, keepdims=True, initial=-np.inf)
        largest = np.where(np.isneginf(largest), 0.0, largest)
        weights = np.exp(scores - largest)
        total = weights.sum(-1, keepdims=True)
        with np.errstate(divide="ignore"):
            lse[b, h] = (np.log(total) + largest)[:, 0]
        weights /= np.where(total == 0, 1.0, total)
        out[b, h], size[b, h] = weights @ values, weights @ np.abs(values)
    return AttentionReference(out, lse, size)


def check_attention(
    out: np.ndarray, expected: AttentionReference, dtype: str, lse: np.ndarray | None = None
) -> CheckResult:
    """Judge `out` (float32 values) and `lse` by the reference, up to what 16-bit weights and results round away.

    |out - ref| <= (u + 2^-14) sum w |v| + h: each weight w is rounded to `dtype` once (u), exponents and sums are fp32
    (2^-14 holds them for any length up to 16384), and the result is rounded once (h, half a step). LSE: 1e-3 absolute
    and -inf exactly where no key is seen. A NaN never passes.
    """
    if out.shape != expected.out.shape:
        return CheckResult(False, np.inf, 0.0, f"shape {out.shape} instead of {expected.out.shape}")
    if not np.isfinite(out).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(out))[0])
        return CheckResult(False, np.inf, 0.0, f"{(~np.isfinite(out)).sum()} results not finite, first at {where}")
    allowed = (ROUNDOFF[dtype] + 2.0**-14) * expected.size + 1e-7
    allowed += half_spacing(np.abs(expected.out) + allowed, dtype)
    error = np.abs(out - expected.out)
    where = tuple(int(i) for i in np.unravel_index(int((error - allowed).argmax()), error.shape))
    if not (error <= allowed).all():
        return CheckResult(
            False, float(error.max()), float(allowed[where]),
            f"at {where} it is {out[where]:.7g} and should be {expected.out[where]:.7g}: off by {error[where]:.3g}, "
            f"allowed {allowed[where]:.3g}",
        )  # fmt: skip
    if lse is not None:
        seen = np.isfinite(expected.lse)
        right = np.where(seen, np.abs(lse - np.where(seen, expected.lse, 0.0)) <= 1e-3, np.isneginf(lse))
        if not right.all():
            where = tuple(int(i) for i in np.argwhere(~right)[0])
            return CheckResult(
                False, np.inf, 1e-3, f"the LSE at {where} is {lse[where]} and should be {expected.lse[where]}"
            )
    return CheckResult(True, float(error.max()), float(allowed.max()))
