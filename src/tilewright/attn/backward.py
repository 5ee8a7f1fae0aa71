"""attention_backward: the gradients of attention, of any arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import InvalidOperand, suggests
from ..run.gradients import breaks_graphs, recorded
from ..run.runner import run
from ..run.warm import MISS
from ..words import Array, HeadLayout
from .backward_call import read_backward
from .backward_config import BackwardConfig
from .backward_score import differentiable
from .masks import as_bias
from .warm import backward_calls, stays


@breaks_graphs
@suggests
def attention_backward(
    grad: Any,
    q: Array,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    window: tuple[int, int] | None = None,
    softcap: float = 0.0,
    bias: Any = None,
    score: Callable[..., Any] | None = None,
    layout: HeadLayout = "bhsd",
    grad_lse: Any = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    deterministic: bool = False,
    rung: str | None = None,
    config: BackwardConfig | str | None = None,
) -> tuple[Array, Array, Array]:
    """Return the gradients (dq, dk, dv) of `attention`, given grad, the gradient of its result.

    grad, out: of the result's shape, in q's dtype; out is the result.
    q, k, v and the options: as in the call of `attention`, or of `attention_varlen` where cu_seqlens_q and cu_seqlens_k
        are given. bias gets no gradient here.
    lse: float32, as `return_lse=True` gave it.
    grad_lse: the gradient of the LSE, of its shape; None where nothing depends on the LSE.
    deterministic: give the same bits at every call. The memory that is borrowed grows with the number of rows, not with
        its square, either way.
    rung, config: which kernels run: a rung's id or number ("b01"), a config or its text, "d128: keys 128x64/8, queries
        128x64/8". By default the plan chooses.

    The gradients are new arrays of q's kind, dense in q's layout, in q's dtype. Shared heads of keys and values get the
    sum over the query heads that share them. A query that sees no key has gradient 0; so have rows of a packed batch
    that belong to no entry. Sums are float32; weights and their gradients are rounded to q's dtype before they are
    multiplied. A score's derivative is taken operation by operation; comparisons, and the condition of `where`, have
    none.

    Where it runs, when it is complete and what it raises is as for `attention`.
    """
    if (cu_seqlens_q is None) != (cu_seqlens_k is None):
        raise InvalidOperand("cu_seqlens_q and cu_seqlens_k come together: pass both, or none.")
    varlen = cu_seqlens_q is not None
    if varlen and (bias is not None or layout != "bhsd"):
        raise InvalidOperand("bias and layout are for batches of one length: omit them where cu_seqlens_q is given.")
    if bias is not None:
        bias = as_bias(bias, q)
    modify, config = differentiable(score), None if config is None else str(config)
    given = (q, k, v, bias, cu_seqlens_q, cu_seqlens_k, grad, out, lse, grad_lse)
    options = (is_causal, scale, window, softcap, layout, deterministic, rung, config, modify.code, modify.slope)
    results = backward_calls.run(given, options, modify.numbers)
    if results is not MISS:
        return tuple(results)
    if recorded(q):
        raise InvalidOperand(
            "attention_backward is called where torch.jit.trace or make_fx records operators, and it is none. Take the "
            "gradients of tilewright.torch.attention there, by torch.autograd.grad."
        )
    call = read_backward(
        grad, q, k, v, out, lse, is_causal=is_causal, scale=scale, window=window, softcap=softcap, bias=bias,
        modify=modify, layout=layout, grad_lse=grad_lse, cu_seqlens=(cu_seqlens_q, cu_seqlens_k) if varlen else None,
        deterministic=deterministic, plan_with=(rung, config),
    )  # fmt: skip
    results, ran = run(call)
    if ran is not None and call.problem is not None and all(map(stays, options)):
        backward_calls.remember(call, results, ran, given, options)
    dq, dk, dv = results
    return dq, dk, dv
