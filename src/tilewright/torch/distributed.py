"""Tilewright's operators on tensors that several GPUs share: sharding strategies of torch's DTensor.

A strategy says which placements of the operands give which placement of the result without a word between GPUs. torch
picks the cheapest, moving operands where none fits as they lie.

    product       rows of a            rows of the result
                  columns of b         columns of the result
                  k of both            a sum over the GPUs (Partial), where nothing follows the sum
                  batch                batch
    attention     batch, or heads      the same: each GPU has whole heads of K and V with all heads of Q that read them
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..epilogue.recorded import parse
from ..epilogue.trace import FLOAT

AVAILABLE = torch.distributed.is_available()
if AVAILABLE:
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding

Placements = list[Any]
Strategy = tuple[Placements, Placements]
"""(placements of the results, those of the operands, None for what is not a tensor)."""


def product_strategies(
    a: Any, b: Any, c: Any, *, operands: Sequence[Any] = (), sums: bool, moves: bool
) -> list[Strategy]:  # fmt: skip
    """Strategies of f(alpha * (a @ b) + beta * c, operands), all of which have shapes alone. sums: f is the identity,
    so that a Partial result is right. moves: f does not look at where in the result it is."""
    rank_a, rank_b = len(a.shape), len(b.shape)
    others = [c, *operands]
    whole: Strategy = ([Replicate()], [Replicate(), Replicate(), *(x and Replicate() for x in others)])
    if rank_a < 2 or rank_b < 2:
        return [whole]
    rank = max(rank_a, rank_b)
    found = [whole]
    if moves:
        for axis in range(rank):
            in_a = axis - (rank - rank_a) if axis < rank - 1 else None
            in_b = axis - (rank - rank_b) if axis != rank - 2 else None
            shards = [_along(a, in_a), _along(b, in_b)]
            if all(isinstance(one, Replicate) for one in shards):
                continue
            found.append(([Shard(axis)], [*shards, *(x and _along(x, axis - (rank - len(x.shape))) for x in others)]))
    if sums and c is None:
        found.append(([Partial()], [Shard(rank_a - 1), Shard(rank_b - 2), *(None for _ in others)]))
    return found


def _along(operand: Any, axis: int | None) -> Any:
    """An operand's placement where the result is shared out along an axis that is `axis` here: whole where it has
    none, or broadcasts along it."""
    return Replicate() if axis is None or axis < 0 or operand.shape[axis] == 1 else Shard(axis)


def _of_product(a: Any, b: Any, c: Any, *rest: Any) -> list[Strategy]:
    return [(out, [*given, *(None for _ in rest)]) for out, given in product_strategies(a, b, c, sums=True, moves=True)]


def _of_fused(
    a: Any, b: Any, c: Any, alpha: float, beta: float, out_dtype: Any, expression: str, operands: Sequence[Any],
    *rest: Any,
) -> list[Strategy]:  # fmt: skip
    """An expression that counts rows or columns would count a shard's own."""
    counts = any(node.op == "input" and node.kind != FLOAT for node in parse(expression).nodes)
    found = product_strategies(a, b, c, operands=operands, sums=False, moves=not counts)
    return [(out, [*given[:3], *(None,) * 4, *given[3:], *(None for _ in rest)]) for out, given in found]


def attention_strategies(
    like_q: Sequence[Any], like_k: Sequence[Any], scores: Sequence[Any], rows: Sequence[Any], starts: Any, results: str
) -> list[Strategy]:
    """Strategies of attention and its gradient. like_q, like_k: operands of those shapes; scores: that broadcast to the
    scores' shape; rows: of an LSE's shape. results: a letter a result, "x" where it lies as Q or K, "l" for an LSE.
    With `starts` entries are packed: q is [rows, heads, d], an LSE [heads, rows].
    """
    heads, shared = 1, like_k[0].shape[1]
    gpus = like_q[0].mesh.size()
    axes = [heads] if shared % gpus == 0 else []
    if starts is None:
        axes.append(0)
    found: list[Strategy] = []
    for axis in (None, *axes):
        whole = Replicate() if axis is None else Shard(axis)
        of_rows = Replicate() if axis is None else Shard(axis if starts is None else 0)
        of_scores = [x and (Replicate() if axis is None else _along(x, axis - (4 - len(x.shape)))) for x in scores]
        given = [x and whole for x in (*like_q, *like_k)]
        found.append(([whole if kind == "x" else of_rows for kind in results],
                      [*given, *of_scores, *(x and of_rows for x in rows)]))  # fmt: skip
    return found


def _of_attention(q: Any, k: Any, v: Any, bias: Any, *rest: Any) -> list[Strategy]:
    return attention_strategies([q], [k, v], [bias], [], None, "x")


def _of_attention_with_lse(
    q: Any, k: Any, v: Any, bias: Any, starts_q: Any, starts_k: Any, *rest: Any
) -> list[Strategy]:  # fmt: skip
    found = attention_strategies([q], [k, v], [bias], [], starts_q, "xl")
    return [(out, [*given, *(x and Replicate() for x in (starts_q, starts_k))]) for out, given in found]


def _of_attention_backward(
    grad: Any, grad_lse: Any, q: Any, k: Any, v: Any, bias: Any, out: Any, lse: Any, starts_q: Any, starts_k: Any,
    *rest: Any,
) -> list[Strategy]:  # fmt: skip
    found = []
    starts = [x and Replicate() for x in (starts_q, starts_k)]
    for placed, given in attention_strategies([q, grad, out], [k, v], [bias], [lse, grad_lse], starts_q, "xxx"):
        of_q, of_grad, of_out, of_k, of_v, of_bias, of_lse, of_grad_lse = given
        found.append((placed, [of_grad, of_grad_lse, of_q, of_k, of_v, of_bias, of_out, of_lse, *starts]))
    return found


def sums_over_gpus(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether each GPU has its own part of k of both."""
    if not AVAILABLE or not isinstance(a, DTensor) or not isinstance(b, DTensor) or min(a.dim(), b.dim()) < 2:
        return False
    pairs = zip(a.placements, b.placements, strict=True)
    return any(of_a.is_shard(a.dim() - 1) and of_b.is_shard(b.dim() - 2) for of_a, of_b in pairs)


def register() -> None:
    """Tell DTensor how the operators share out. Does nothing where this torch has no place to be told."""
    if not AVAILABLE or not hasattr(getattr(DTensor, "_op_dispatcher", None), "sharding_propagator"):
        return
    _tell(torch.ops.tilewright.matmul.default, _of_product)
    _tell(torch.ops.tilewright.fused_matmul.default, _of_fused)
    _tell(torch.ops.tilewright.attention.default, _of_attention)
    _tell(torch.ops.tilewright.attention_with_lse.default, _of_attention_with_lse)
    _tell(torch.ops.tilewright.attention_backward.default, _of_attention_backward)


def _tell(operator: Any, strategies: Callable[..., list[Strategy]]) -> None:
    register_sharding(operator)(strategies)
    # What torch remembers of an operator is by its placements, and by all arguments from the first int on. Ours have
    # none, but the result's dtype and the expression count.
    propagator = DTensor._op_dispatcher.sharding_propagator
    known = propagator.op_to_schema_info[operator]
    first = next(n for n, argument in enumerate(operator._schema.arguments) if "Tensor" not in str(argument.type))
    propagator.op_to_schema_info[operator] = type(known)(first, known.static_kwargkey, needs_pytree=True)
