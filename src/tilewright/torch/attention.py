"""Attention for torch: at once in eager mode, else a custom operator, both with one gradient; torch's own signature.

The gradient recomputes with torch's operators: by scaled_dot_product_attention where there is no soft cap, else step
by step in float32. It takes memory for rows of q x rows of k where the mask is more than a plain causal one. It has a
gradient itself where torch's operators have one.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..attn.attention import attention as run
from ..attn.call import read_window
from ..attn.rung import D_HEADS
from ..errors import InvalidOperand
from ..jit.launch import current_executor
from .eager import is_eager, wants_gradients
from .transforms import refuse_transforms


def _rows_outside_heads(q: Tensor) -> bool:
    """Whether [batch, heads, rows, d] lies as [batch, rows, heads, d]; the result then does too."""
    return q.shape[1] > 1 and q.shape[2] > 1 and q.stride(1) < q.stride(2)


def _empty(q: Tensor) -> Tensor:
    """A result: dense, in q's order of heads and rows. No view of another tensor, which torch would not let be changed
    in place where it has a gradient."""
    order = (0, 2, 1, 3) if _rows_outside_heads(q) else (0, 1, 2, 3)
    return torch.empty_permuted(q.shape, order, dtype=q.dtype, device=q.device)


def _direct(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, is_causal: bool, scale: float, left: int, right: int,
    softcap: float,
) -> Tensor:  # fmt: skip
    window = None if left < 0 and right < 0 else (left, right)
    options: dict[str, Any] = {"bias": bias, "is_causal": is_causal, "scale": scale, "window": window}
    if not _rows_outside_heads(q):
        return run(q, k, v, softcap=softcap, **options)
    result = _empty(q)
    turned, out = (x.transpose(1, 2) for x in (q, k, v)), result.transpose(1, 2)
    run(*turned, softcap=softcap, layout="bshd", out=out, **options)
    return result


def _operator(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, is_causal: bool, scale: float, left: int, right: int,
    softcap: float,
) -> Tensor:  # fmt: skip
    with torch.no_grad():
        return _direct(q, k, v, bias, is_causal, scale, left, right, softcap)


def recompute(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, is_causal: bool, scale: float, left: int, right: int,
    softcap: float,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """The same result by torch's operators, and, where rows may see no key, [..., rows, 1] of bool: which see one.

    Rows that see none hold anything finite.
    """
    sq, sk = q.shape[2], k.shape[2]
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = (x.repeat_interleave(groups, dim=1) for x in (k, v))
    right = 0 if is_causal else right
    if bias is None and softcap == 0 and left < 0 and (right < 0 or (right == 0 and sq == sk)):
        return functional.scaled_dot_product_attention(q, k, v, is_causal=right == 0, scale=scale), None
    place = torch.arange(sq, device=q.device)[:, None] + (sk - sq)
    key = torch.arange(sk, device=q.device)[None, :]
    seen = torch.ones((sq, sk), dtype=torch.bool, device=q.device)
    if left >= 0:
        seen &= key >= place - left
    if right >= 0:
        seen &= key <= place + right
    if bias is not None:
        seen = seen & (bias != -math.inf)
    rows = seen.any(-1, keepdim=True)
    seen = seen | ~rows  # an empty row's softmax is no number, and so would be its gradient
    added = torch.zeros((), dtype=q.dtype, device=q.device) if bias is None else bias.masked_fill(bias == -math.inf, 0)
    if softcap == 0:
        mask = torch.where(seen, added.to(q.dtype), torch.full((), -math.inf, dtype=q.dtype, device=q.device))
        mask = mask.expand(*q.shape[:3], sk)
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale), rows
    scores = softcap * torch.tanh((q.float() @ k.float().transpose(2, 3)) * (scale / softcap)) + added.float()
    weights = torch.softmax(scores.masked_fill(~seen, -math.inf), -1)
    return (weights @ v.float()).to(q.dtype), rows


_SCHEMA = (
    "(Tensor q, Tensor k, Tensor v, Tensor? bias, bool is_causal, float scale, int left, int right, float softcap)"
    " -> Tensor"
)
_forward: Any = torch.library.custom_op("tilewright::attention", _operator, mutates_args=(), schema=_SCHEMA)


@_forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, *options: Any) -> Tensor:
    return _empty(q)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:4])
    ctx.options = inputs[4:]


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    asked = [n for n in range(4) if ctx.needs_input_grad[n]]
    again = torch.is_grad_enabled()  # a gradient of the gradient is asked for
    # views, so that one tensor that is q and k gets the gradient of each
    given: list[Any] = [None if x is None else x.view_as(x) if again else x.detach() for x in ctx.saved_tensors]
    if not again:
        for n in asked:
            given[n].requires_grad_()
    with torch.enable_grad():
        out, seen = recompute(*given, *ctx.options)
    if seen is not None:
        grad = grad.masked_fill(~seen, 0)
    found = torch.autograd.grad(out, [given[n] for n in asked], grad, create_graph=again)
    by_input: list[Any] = [None] * 9
    for n, gradient in zip(asked, found, strict=True):
        by_input[n] = gradient
    return tuple(by_input)


_forward.register_autograd(_differentiate, setup_context=_save)


class TilewrightAttention(torch.autograd.Function):
    """Attention in eager mode: the operator's gradient at a part of its host time."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        result = _direct(*inputs)
        _save(ctx, inputs, result)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return _differentiate(ctx, grad)


def attention(
    q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool = False, scale: float | None = None,
    window: tuple[int, int] | None = None, softcap: float = 0.0, bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """`tilewright.attention` of torch tensors [batch, heads, rows, d_head], which torch.compile takes in one graph.

    It is differentiated by torch's own operators (see this module). The result lies as q does: [batch, rows, heads,
    d_head] where q's rows lie outside its heads. Raises as `tilewright.attention` does.
    """
    if q.dim() != 4:
        raise InvalidOperand(f"q has shape {tuple(q.shape)}; it must have the 4 axes [batch, heads, rows, d_head].")
    refuse_transforms("tilewright.torch.attention", q, k, v, bias)
    left, right = read_window(window)
    scale = 1 / math.sqrt(q.shape[3]) if scale is None else float(scale)
    arguments = (q, k, v, bias, is_causal, scale, left, right, float(softcap))
    given = (q, k, v) if bias is None else (q, k, v, bias)
    if not is_eager(given):
        return _forward(*arguments)
    return TilewrightAttention.apply(*arguments) if wants_gradients(given) else _direct(*arguments)


def of_layout(q: Tensor, k: Tensor, v: Tensor, *, layout: str, **options: Any) -> Tensor:
    """`attention` of tensors laid out as tilewright.attention's `layout` says."""
    if layout == "bhsd":
        return attention(q, k, v, **options)
    if layout != "bshd":
        raise InvalidOperand(f"layout={layout!r} is not one of 'bhsd', 'bshd'.")
    return attention(*(x.transpose(1, 2) for x in (q, k, v)), **options).transpose(1, 2)


_said: set[str] = set()


def _say_once(reason: str) -> None:
    if reason not in _said and not torch.compiler.is_compiling():
        _said.add(reason)
        warnings.warn(
            f"tilewright: scaled_dot_product_attention runs torch's own, since {reason}", RuntimeWarning, stacklevel=4
        )


def _why_torch(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout_p: float) -> str | None:
    """What this call has that no kernel here does; None if there is nothing."""
    if dropout_p:
        return "dropout is not done here"
    if any(x.is_nested for x in (query, key, value)):
        return "nested tensors are not taken here"
    on_gpu = query.is_cuda or (not torch.compiler.is_compiling() and current_executor() is not None)
    if not on_gpu:
        return f"tensors on {query.device.type} are not run here"
    if query.dtype not in (torch.float16, torch.bfloat16):
        return f"{query.dtype} is not taken here (float16 and bfloat16 are)"
    if not 3 <= query.dim() <= 4 or key.dim() != query.dim() or value.dim() != query.dim():
        return "tensors without exactly the axes [batch, heads, rows, d_head] are not taken here"
    if value.shape[-1] != query.shape[-1]:
        return "values of another d_head than keys are not taken here"
    if query.shape[-1] > max(D_HEADS):
        return f"d_head is above {max(D_HEADS)}"
    if query.shape[:-3] != key.shape[:-3] or key.shape[:-1] != value.shape[:-1]:
        return "batches that broadcast are not taken here"
    if mask is not None and mask.dtype not in (torch.bool, torch.float32, query.dtype):
        return f"masks of {mask.dtype} are not taken here"
    return None


def _refused(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool, enable_gqa: bool) -> bool:
    """Whether torch refuses these: it then says so in its own words."""
    own, shared = (x.shape[-3] if x.dim() > 2 else 1 for x in (query, key))
    if own != shared and (not enable_gqa or shared == 0 or own % shared):
        return True
    if len({query.dtype, key.dtype, value.dtype}) > 1 or query.shape[-1] != key.shape[-1]:
        return True
    if mask is None:
        return False
    scores = (*query.shape[:-1], key.shape[-2])
    extents = zip(reversed(mask.shape), reversed(scores), strict=False)
    return is_causal or not 2 <= mask.dim() <= len(scores) or any(m not in (1, s) for m, s in extents)


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """torch.nn.functional.scaled_dot_product_attention by a kernel of the attention ladder.

    Same arguments, same meaning: `is_causal` lets query i see key j when j <= i (torch counts from the first row), a
    mask of bool is True where a pair is seen. A query that sees no key gets 0. What is not done here (dropout, other
    dtypes than float16 and bfloat16, tensors off the GPU, d_head above 256, values of another d_head) torch's own
    does, and a RuntimeWarning says so once for each reason. Gradients: see this module.
    """
    reason = _why_torch(query, key, value, attn_mask, dropout_p)
    if reason is not None or _refused(query, key, value, attn_mask, is_causal, enable_gqa):
        if reason is not None:
            _say_once(reason)
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    unbatched = query.dim() == 3
    if unbatched:
        query, key, value = (x.unsqueeze(0) for x in (query, key, value))
        if attn_mask is not None and attn_mask.dim() == 3:
            attn_mask = attn_mask.unsqueeze(0)
    bias = attn_mask
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        bias = torch.zeros(attn_mask.shape, dtype=query.dtype, device=query.device)
        bias = bias.masked_fill(~attn_mask, -math.inf)
    window = None
    more = query.shape[2] - key.shape[2]
    if is_causal and more < 0:
        key, value = key[:, :, : query.shape[2]], value[:, :, : query.shape[2]]
    elif is_causal and more > 0:
        window, is_causal = (-1, more), False
    out = attention(query, key, value, is_causal=is_causal, scale=scale, window=window, bias=bias)
    return out.squeeze(0) if unbatched else out
