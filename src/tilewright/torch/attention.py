"""Attention for torch: at once in eager mode, else custom operators, both with one gradient; torch's own signature."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..arrays.eager import as_autocast_does, is_eager, is_out_of_the_way, is_watched, runs_here, wants_gradients
from ..arrays.scalar import flag
from ..attn.arguments import read_window
from ..attn.config import D_HEADS
from ..attn.cu_seqlens import check_length, host_starts
from ..attn.problem import check_layout
from ..errors import InvalidOperand
from ..run.warm import MISS
from . import attention_warm
from .attention_gradient import Call, Options, attend, attend_again, direct, forward, forward_with_lse
from .transforms import check_tensors, number, refuse_transforms, transforms_active

_torchs = functional.scaled_dot_product_attention
"""Torch's own, whatever stands in its place later."""


def attention(
    q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool = False, scale: float | None = None,
    window: tuple[int, int] | None = None, softcap: float = 0.0, bias: Tensor | None = None,
    score: Callable[..., Any] | None = None, sinks: Tensor | None = None, return_lse: bool = False,
) -> Any:  # fmt: skip
    """`tilewright.attention` of torch tensors [batch, heads, rows, d_head], which torch.compile takes in one graph.

    Gradients are made by kernels (`tilewright.attention_backward`), with the LSE's gradient. Torch's own operators make
    the gradient of a bias, and that of a gradient. With torch.use_deterministic_algorithms gradients are the same bits
    at every run. The result lies as q does: [batch, rows, heads, d_head] where q's rows lie outside its heads.

    sinks: [heads], a score per head that takes its share of every query's weights, and has no value (as in gpt-oss). It
    has a gradient, and counts in the LSE. The result is multiplied in a pass of its own, and rounded once more.

    A score function breaks torch.compile's graph. Raises as `tilewright.attention` does.
    """
    check_tensors("tilewright.torch.attention", q, k, v, optional=(bias, sinks))
    if q.dim() != 4:
        raise InvalidOperand(f"q has shape {tuple(q.shape)}; it must have the 4 axes [batch, heads, rows, d_head].")
    if sinks is not None:
        return_lse = flag(return_lse, "return_lse")
        out, lse = attention(
            q, k, v, is_causal=is_causal, scale=scale, window=window, softcap=softcap, bias=bias, score=score,
            return_lse=True,
        )  # fmt: skip
        return _with_sinks(out, lse, sinks, q.shape[1], return_lse)
    refuse_transforms("tilewright.torch.attention", q, k, v, *(() if bias is None else (bias,)))
    options = _options(q, is_causal, scale, window, softcap)
    simple = bias is score is None and return_lse is False and not is_watched()
    known = attention_warm.find(q, k, v, options) if simple else None
    if known is not None:
        if known.wanted:
            return attend_again(q, k, v, known)
        if (found := known.call.run((q.data_ptr(), k.data_ptr(), v.data_ptr()))) is not MISS:
            return found[0]
    return_lse = flag(return_lse, "return_lse")
    given = (q, k, v) if bias is None else (q, k, v, bias)
    if not is_eager(given):
        if score is not None:
            return _apart("attention")(
                q, k, v, is_causal=is_causal, scale=scale, window=window, softcap=softcap, bias=bias, score=score,
                return_lse=return_lse,
            )  # fmt: skip
        if return_lse or _wants_gradients(given):
            found = forward_with_lse(q, k, v, bias, None, None, -1, *options)
            return found if return_lse else found[0]
        return forward(q, k, v, bias, *options)
    wanted = wants_gradients(given)
    if wanted:
        out = attend(q, k, v, bias, Call(None, -1, options, score, return_lse))
    else:
        out = direct(q, k, v, bias, options, score=score, return_lse=return_lse)
    if simple:
        attention_warm.remember(q, k, v, out, options, options, wanted)
    return out


def attention_varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None, *, is_causal: bool = False, scale: float | None = None,
    window: tuple[int, int] | None = None, softcap: float = 0.0, score: Callable[..., Any] | None = None,
    sinks: Tensor | None = None, return_lse: bool = False,
) -> Any:  # fmt: skip
    """`tilewright.attention_varlen` of torch tensors, with gradients and sinks, as `attention` has them.

    Gradients of rows that no entry has are 0.
    """
    check_tensors("tilewright.torch.attention_varlen", q, k, v, optional=(sinks,))
    return_lse = flag(return_lse, "return_lse")
    if sinks is not None:
        out, lse = attention_varlen(
            q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, is_causal=is_causal, scale=scale,
            window=window, softcap=softcap, score=score, return_lse=True,
        )  # fmt: skip
        rows = torch.arange(q.shape[0], device=q.device) < torch.as_tensor(cu_seqlens_q, device=q.device)[-1]
        out = torch.where(rows[:, None, None], out, 0)  # nobody wrote those after the last entry
        found = _with_sinks(out.transpose(0, 1), torch.where(rows, lse, -math.inf), sinks, q.shape[1], True)
        return (found[0].transpose(0, 1), found[1]) if return_lse else found[0].transpose(0, 1)
    refuse_transforms("tilewright.torch.attention_varlen", q, k, v)
    options = _options(q, is_causal, scale, window, softcap)
    starts = _starts(cu_seqlens_q, "cu_seqlens_q", "q", q), _starts(cu_seqlens_k, "cu_seqlens_k", "k", k)
    for name, most in (("max_seqlen_q", max_seqlen_q), ("max_seqlen_k", max_seqlen_k)):
        if most is not None:
            check_length(most, name)
    longest = -1 if max_seqlen_q is None else max_seqlen_q
    if not is_eager((q, k, v)):
        if score is not None:
            return _apart("attention_varlen")(
                q, k, v, *starts, max_seqlen_q, max_seqlen_k, is_causal=is_causal, scale=scale, window=window,
                softcap=softcap, score=score, return_lse=return_lse,
            )  # fmt: skip
        found = forward_with_lse(q, k, v, None, *starts, longest, *options)
        return found if return_lse else found[0]
    return attend(q, k, v, None, Call(starts, longest, options, score, return_lse))


def _starts(given: Any, name: str, of: str, x: Tensor) -> Tensor:
    """Starts of entries as a tensor next to operand `of`, which x is. Numbers of the host are checked here, before they
    become int32."""
    if isinstance(given, Tensor):
        return given
    if not torch.compiler.is_compiling():
        given = host_starts(given, name, of, len(x))
    made = torch.as_tensor(given, device=x.device)
    return made.to(torch.int32) if made.dtype in _INTEGERS else made


_INTEGERS = (torch.int8, torch.int16, torch.int64, torch.uint8)
_alone = {one.__name__: torch.compiler.disable(one) for one in (attention, attention_varlen)}


def _apart(name: str) -> Callable[..., Any]:
    """The function as torch.compile leaves it alone: the graph breaks. Raises InvalidOperand in a dispatch mode."""
    if not torch.compiler.is_dynamo_compiling():
        raise InvalidOperand(
            "score is not supported in a dispatch mode, nor where torch.jit.trace or make_fx records the call. Call "
            "attention outside."
        )
    return _alone[name]


def _with_sinks(out: Tensor, lse: Tensor, sinks: Tensor, heads: int, return_lse: bool) -> Any:
    """The result and LSE [..., heads, rows] of scores with one more of each head, whose value is 0."""
    if sinks.shape != (heads,) or not sinks.is_floating_point():
        raise InvalidOperand(
            f"sinks is {sinks.dtype} of shape {tuple(sinks.shape)}; q has {heads} heads: pass ({heads},) floats."
        )
    own = sinks.to(lse)[:, None]
    ahead = torch.where(lse == -math.inf, lse, lse - own)  # where a query sees no key, all weight is the sink's
    result = (out * torch.sigmoid(ahead)[..., None]).to(out.dtype)
    return (result, torch.logaddexp(lse, own)) if return_lse else result


def _options(q: Tensor, is_causal: bool, scale: float | None, window: Any, softcap: float) -> Options:
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else number(scale, "scale")
    return Options(flag(is_causal, "is_causal"), scale, *read_window(window), number(softcap, "softcap"))


def _wants_gradients(given: tuple[Tensor, ...]) -> bool:
    """Do as eager.wants_gradients, by what torch.compile can follow."""
    return torch.is_grad_enabled() and any(x.requires_grad for x in given)


def of_layout(q: Tensor, k: Tensor, v: Tensor, *, layout: str, **options: Any) -> Any:
    """`attention` of tensors laid out as tilewright.attention's `layout` says."""
    check_layout(layout)
    if layout == "bhsd":
        return attention(q, k, v, **options)
    found = attention(*(x.transpose(1, 2) for x in (q, k, v)), **options)
    return (found[0].transpose(1, 2), found[1]) if options.get("return_lse") else found.transpose(1, 2)


_said: set[str] = set()


def _say_once(reason: str) -> None:
    if reason not in _said and not torch.compiler.is_compiling():
        _said.add(reason)
        warnings.warn(
            f"tilewright: scaled_dot_product_attention runs torch's own, since {reason}", RuntimeWarning, stacklevel=4
        )


def _why_torch(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout_p: float) -> str | None:
    """Return what this call has that no kernel here does; None if there is nothing."""
    if dropout_p:
        return "dropout is not done here"
    if query.is_nested or key.is_nested or value.is_nested:
        return "nested tensors are not taken here"
    if not torch.compiler.is_compiling() and transforms_active():
        return "torch.func's transforms and forward-mode derivatives are not taken here"
    if not runs_here(query):
        return f"tensors on {query.device.type} are not run here"
    if query.dtype not in (torch.float16, torch.bfloat16):
        return f"{query.dtype} is not taken here (float16 and bfloat16 are)"
    if not 3 <= query.dim() <= 4 or key.dim() != query.dim() or value.dim() != query.dim():
        return "tensors without exactly the axes [batch, heads, rows, d_head] are not taken here"
    if max(query.shape[-1], value.shape[-1]) > max(D_HEADS):
        return f"d_head is above {max(D_HEADS)}"
    if query.shape[:-3] != key.shape[:-3] or key.shape[:-1] != value.shape[:-1]:
        return "batches that broadcast are not taken here"
    if mask is not None and mask.dtype not in (torch.bool, torch.float32, query.dtype):
        return f"masks of {mask.dtype} are not taken here"
    return None


def _refused(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool, enable_gqa: bool) -> bool:
    """Return whether torch refuses these: it then says so in its own words."""
    if mask is None and query.shape == key.shape == value.shape and query.dtype == key.dtype == value.dtype:
        return False
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
    dtypes than float16 and bfloat16, tensors off the GPU, d_head above 256) torch's own does, and a RuntimeWarning says
    so once for each reason. Gradients: see this module.
    """
    asked = is_causal, scale, enable_gqa
    simple = (
        attn_mask is None and dropout_p == 0.0 and type(is_causal) is type(enable_gqa) is bool
        and (scale is None or type(scale) is float)
    )  # fmt: skip
    known = None
    if simple and is_out_of_the_way():
        # none was noted in torch.func's transforms
        known = attention_warm.find(query, key, value, asked, only_lately=True)
    if known is None:
        tensors = isinstance(query, Tensor) and isinstance(key, Tensor) and isinstance(value, Tensor)
        if not tensors or not (attn_mask is None or isinstance(attn_mask, Tensor)):
            return _torchs(query, key, value, attn_mask)  # says what it takes
        if torch.is_autocast_enabled("cuda" if query.is_cuda else "cpu") and runs_here(query):
            query, key, value = map(as_autocast_does, (query, key, value))
        simple = simple and not is_watched()
        if simple and not transforms_active():
            known = attention_warm.find(query, key, value, asked)
    if known is not None:
        if known.wanted:
            return attend_again(query, key, value, known)
        if (found := known.call.run((query.data_ptr(), key.data_ptr(), value.data_ptr()))) is not MISS:
            return found[0]
    is_causal, enable_gqa = flag(is_causal, "is_causal"), flag(enable_gqa, "enable_gqa")
    reason = _why_torch(query, key, value, attn_mask, dropout_p)
    if reason is not None or _refused(query, key, value, attn_mask, is_causal, enable_gqa):
        if reason is not None:
            _say_once(reason)
        return _torchs(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
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
    if simple and not unbatched and not (is_causal and more < 0) and is_eager((query, key, value)):
        options = _options(query, is_causal, scale, window, 0.0)
        attention_warm.remember(query, key, value, out, asked, options, wants_gradients((query, key, value)))
    return out.squeeze(0) if unbatched else out
