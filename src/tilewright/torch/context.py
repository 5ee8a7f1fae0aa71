"""Attention over a context whose rows are shared out between processes: keys and values go around in a ring.

Each process keeps its own rows of Q and sees every process's keys and values in turn, its own first, then those of the
process before, and so on. Parts are merged by their LSEs in that order, in fp32, so that results are the same bits at
every run. Going backward, the gradients of keys and values go around with them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..arrays.scalar import flag
from ..errors import InvalidOperand
from .attention_gradient import Options, _backward, direct
from .transforms import number, refuse_transforms


def context_rows(rows: int, ranks: int, rank: int, zigzag: bool = False) -> Tensor:
    """The rows of a context of `rows` that process `rank` of `ranks` has: int64, ascending.

    zigzag: of 2 ranks equal parts the process has number `rank` from the front and number `rank` from the end, so that
    under a causal mask all have the same to do. Raises InvalidOperand where the parts are not equal, for a rank that no
    process has, and for a zigzag that is not True or False.
    """
    zigzag = flag(zigzag, "zigzag")
    if not 0 <= rank < ranks:
        raise InvalidOperand(f"rank={rank} is not one of {ranks} processes, which count from 0.")
    parts = 2 * ranks if zigzag else ranks
    if rows % parts:
        raise InvalidOperand(f"{rows} rows are not {parts} equal parts, for {ranks} processes{' in zigzag' * zigzag}.")
    own = torch.arange(rows).view(parts, -1)
    return torch.cat((own[rank], own[parts - 1 - rank])) if zigzag else own[rank]


def ring_attention(
    q: Tensor, k: Tensor, v: Tensor, group: Any = None, *, is_causal: bool = False, scale: float | None = None,
    softcap: float = 0.0, zigzag: bool = False, return_lse: bool = False,
) -> Any:  # fmt: skip
    """`attention` over the rows of all processes of a group, of which each has the same number: its part of the result.

    q, k, v: this process's rows, [batch, heads, rows, d_head], in the order of `context_rows`. Every process of the
    group calls it, with the same shapes and options. group: torch's process group, the default one if None.
    zigzag: rows are shared out as context_rows(..., zigzag=True) says.

    Gradients go around the ring as well, for q, k and v; those of the LSE count. The process keeps its own rows and,
    for as long as a step takes, those of two others. Raises as `attention` does, and InvalidOperand for rows of keys
    that are not as many as rows of q.
    """
    refuse_transforms("tilewright.torch.ring_attention", q, k, v)
    if q.dim() != 4 or k.dim() != 4 or q.shape[2] != k.shape[2] or k.shape != v.shape:
        raise InvalidOperand(
            f"q is {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)}; they must be [batch, heads, rows, "
            "d_head] with the same rows."
        )
    zigzag, return_lse = flag(zigzag, "zigzag"), flag(return_lse, "return_lse")
    if zigzag and q.shape[2] % 2:
        raise InvalidOperand(f"{q.shape[2]} rows of a process are not two equal parts, as zigzag needs.")
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else number(scale, "scale")
    options = Options(flag(is_causal, "is_causal"), scale, -1, -1, number(softcap, "softcap"))
    out, lse = _Ring.apply(q, k, v, group, options, zigzag)
    return (out, lse) if return_lse else out


class _Exchange:
    """Tensors on their way to the next process of the ring, and from the one before."""

    def __init__(self, group: Any, sent: Sequence[Tensor]) -> None:
        ranks, rank = dist.get_world_size(group), dist.get_rank(group)
        after, before = ((rank + step) % ranks for step in (1, -1))
        if group is not None:
            after, before = (dist.get_global_rank(group, one) for one in (after, before))
        self._sent = [x.contiguous() for x in sent]  # kept until they have gone
        self._received = [torch.empty_like(x) for x in self._sent]
        # In this order at every process: gloo and NCCL pair messages by it.
        self._work = dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, x, after, group) for x in self._sent]
            + [dist.P2POp(dist.irecv, x, before, group) for x in self._received]
        )

    def result(self) -> list[Tensor]:
        for work in self._work:
            work.wait()
        return self._received


def _seen(source: int, rank: int, rows: int, is_causal: bool, zigzag: bool) -> tuple[slice, slice, bool] | None:
    """Return which of this process's rows of Q see which rows of the source's keys, and whether up to their own; None:
    none.

    In zigzag a later source's rows lie between this process's two parts, an earlier one's around them.
    """
    every = slice(0, rows)
    if not is_causal or source == rank:
        return every, every, is_causal
    if not zigzag:
        return (every, every, False) if source < rank else None
    half = rows // 2
    return (every, slice(0, half), False) if source < rank else (slice(half, rows), every, False)


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, group: Any, options: Options, zigzag: bool
    ) -> tuple[Tensor, Tensor]:
        ranks, rank = dist.get_world_size(group), dist.get_rank(group)
        rows = q.shape[2]
        total = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
        lse = torch.full(q.shape[:3], -math.inf, dtype=torch.float32, device=q.device)
        keys, values = k, v
        for step in range(ranks):
            moving = _Exchange(group, (keys, values)) if step + 1 < ranks else None
            seen = _seen((rank - step) % ranks, rank, rows, options.is_causal, zigzag)
            if seen is not None:
                of_q, of_k, causal = seen
                part, part_lse = direct(
                    q[:, :, of_q], keys[:, :, of_k], values[:, :, of_k], None, options._replace(is_causal=causal),
                    return_lse=True,
                )  # fmt: skip
                _merge(total[:, :, of_q], lse[:, :, of_q], part, part_lse)
            if moving is not None:
                keys, values = moving.result()
        out = total.to(q.dtype)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.given = group, options, zigzag
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_lse: Tensor | None) -> tuple[Any, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        group, options, zigzag = ctx.given
        ranks, rank = dist.get_world_size(group), dist.get_rank(group)
        rows = q.shape[2]
        grad = torch.zeros_like(out) if grad is None else grad
        deterministic = torch.are_deterministic_algorithms_enabled()
        dq = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
        shared = torch.zeros((2, *k.shape), dtype=torch.float32, device=q.device)  # of the keys and values at hand
        keys, values = k, v
        returning: _Exchange | None = None
        for step in range(ranks):
            moving = _Exchange(group, (keys, values)) if step + 1 < ranks else None
            seen = _seen((rank - step) % ranks, rank, rows, options.is_causal, zigzag)
            found = None
            if seen is not None:
                of_q, of_k, causal = seen
                found = _backward(
                    grad[:, :, of_q], None if grad_lse is None else grad_lse[:, :, of_q], q[:, :, of_q],
                    keys[:, :, of_k], values[:, :, of_k], None, out[:, :, of_q], lse[:, :, of_q], None,
                    options._replace(is_causal=causal), deterministic,
                )  # fmt: skip
                dq[:, :, of_q] += found[0]
            if returning is not None:
                (shared,) = returning.result()
            if seen is not None and found is not None:
                shared[0][:, :, seen[1]] += found[1]
                shared[1][:, :, seen[1]] += found[2]
            if ranks > 1:
                returning = _Exchange(group, (shared,))
            if moving is not None:
                keys, values = moving.result()
        if returning is not None:  # the last exchange brings each its own
            (shared,) = returning.result()
        return dq.to(q.dtype), shared[0].to(k.dtype), shared[1].to(v.dtype), None, None, None


def _merge(total: Tensor, lse: Tensor, part: Tensor, part_lse: Tensor) -> None:
    """Add a part of the keys' result, by its LSE. Rows that have seen no key yet have an LSE of -inf."""
    both = torch.logaddexp(lse, part_lse)
    weights = [torch.where(both == -math.inf, 0.0, torch.exp(x - both)).unsqueeze(-1) for x in (lse, part_lse)]
    total.mul_(weights[0]).add_(part * weights[1])
    lse.copy_(both)
