"""Are gradients of attention right? Reference in float64; the bound follows from the roundings to 16 bits."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .attention_check import ROUNDOFF
from .check import CheckResult
from .numbers import half_spacing

_STEP = 1e-5
"""Of the central difference that stands for a score function's derivative; its error is below 1e-8."""


@dataclass(frozen=True)
class BackwardReference:
    """(dq, dk, dv) in float64, and what each is a sum of: the products' magnitudes."""

    gradients: tuple[np.ndarray, np.ndarray, np.ndarray]
    sizes: tuple[np.ndarray, np.ndarray, np.ndarray]


def backward_reference(
    grad: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray, *, is_causal: bool = False,
    scale: float | None = None, window: tuple[int, int] | None = None, softcap: float = 0.0,
    bias: np.ndarray | None = None, score: Callable[..., np.ndarray] | None = None, grad_lse: np.ndarray | None = None,
) -> BackwardReference:  # fmt: skip
    """The gradients of attention in float64, head by head: grad and q [b, h, sq, d], k and v [b, hk, sk, d].

    Options as tilewright.attention has them, on NumPy arrays. A row without keys adds nothing.
    """
    grad, q, k, v = (x.astype(np.float64) for x in (grad, q, k, v))
    scale = 1 / math.sqrt(q.shape[3]) if scale is None else scale
    group = q.shape[1] // max(k.shape[1], 1)
    found = [np.zeros_like(x) for x in (q, k, v)]
    sizes = [np.zeros_like(x) for x in (q, k, v)]
    sq, sk = q.shape[2], k.shape[2]
    i, j = np.arange(sq)[:, None], np.arange(sk)[None, :]
    left, right = window or (-1, -1)
    seen = np.ones((sq, sk), bool)
    if left >= 0:
        seen &= j >= i + sk - sq - left
    if is_causal or right >= 0:
        seen &= j <= i + sk - sq + (0 if is_causal else right)
    added = None if bias is None else np.broadcast_to(bias, (*q.shape[:3], sk)).astype(np.float64)
    for b, h in np.ndindex(q.shape[:2]):
        at = b, h // group
        s, slope = scale * (q[b, h] @ k[at].T), np.full((sq, sk), scale)
        if softcap:
            s = softcap * np.tanh(s / softcap)
            slope = slope * (1 - (s / softcap) ** 2)
        if added is not None:
            s = s + added[b, h]
        if score is not None:
            with np.errstate(invalid="ignore"):
                near = (score(s + _STEP, b, h, i, j) - score(s - _STEP, b, h, i, j)) / (2 * _STEP)
            slope = slope * np.where(np.isfinite(near), near, 0.0)
            s = np.broadcast_to(score(s, b, h, i, j), s.shape)
        s = np.where(seen, s, -np.inf)
        most = s.max(-1, keepdims=True, initial=-np.inf)
        p = np.exp(s - np.where(np.isneginf(most), 0.0, most))
        total = p.sum(-1, keepdims=True)
        p = p / np.where(total == 0, 1.0, total)
        out = p @ v[at]
        dp = grad[b, h] @ v[at].T
        delta = (grad[b, h] * out).sum(-1, keepdims=True)
        if grad_lse is not None:
            delta = delta - grad_lse[b, h].astype(np.float64)[:, None]
        ds = p * (dp - delta) * slope
        found[0][b, h] = ds @ k[at]
        found[1][at] += ds.T @ q[b, h]
        found[2][at] += p.T @ grad[b, h]
        # out is rounded where delta is made of it; dp is a sum of products of the operands
        around = (np.abs(grad[b, h]) * np.abs(out)).sum(-1, keepdims=True)
        size = np.abs(ds) + p * np.abs(slope) * (around + np.abs(delta))
        sizes[0][b, h] = size @ np.abs(k[at])
        sizes[1][at] += size.T @ np.abs(q[b, h])
        sizes[2][at] += p.T @ np.abs(grad[b, h])
    return BackwardReference(tuple(found), tuple(sizes))  # type: ignore[arg-type]


def check_backward(gradients: tuple[np.ndarray, ...], expected: BackwardReference, dtype: str) -> CheckResult:
    """Judge (dq, dk, dv), float32 values of `dtype`, by the reference. A NaN never passes.

    |x - ref| <= (2 u + 2^-12) size + h: weights, their gradients and out are rounded once each (u); exponents, the LSE
    and sums are fp32 (2^-12 holds them for any length up to 16384); the result is rounded once (h, half a step).
    """
    worst, largest = 0.0, 0.0
    for name, found, right, size in zip(("dq", "dk", "dv"), gradients, expected.gradients, expected.sizes, strict=True):
        if found.shape != right.shape:
            return CheckResult(False, np.inf, 0.0, f"{name}: shape {found.shape} instead of {right.shape}")
        if not right.size:
            continue
        if not np.isfinite(found).all():
            where = tuple(int(n) for n in np.argwhere(~np.isfinite(found))[0])
            count = (~np.isfinite(found)).sum()
            return CheckResult(False, np.inf, 0.0, f"{name}: {count} results not finite, first at {where}")
        allowed = (2 * ROUNDOFF[dtype] + 2.0**-12) * size + 1e-7
        allowed += half_spacing(np.abs(right) + allowed, dtype)
        error = np.abs(found - right)
        where = tuple(int(n) for n in np.unravel_index(int((error - allowed).argmax()), error.shape))
        if not (error <= allowed).all():
            return CheckResult(
                False, float(error.max()), float(allowed[where]),
                f"{name} at {where} is {found[where]:.7g} and should be {right[where]:.7g}: off by {error[where]:.3g}, "
                f"allowed {allowed[where]:.3g}",
            )  # fmt: skip
        worst, largest = max(worst, float(error.max())), max(largest, float(allowed.max()))
    return CheckResult(True, worst, largest)
