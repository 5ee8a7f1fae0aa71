"""attention: any arrays -> views -> one problem -> a plan -> a program -> a result of the caller's kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, overload

from ..errors import unknown_keyword
from ..run import gradients
from ..run.runner import run
from ..run.warm import MISS
from ..words import Array, HeadLayout
from .call import AttentionCall, read_attention, read_attention_varlen
from .masks import as_bias, is_mask
from .rung import AttentionConfig
from .score import modification_of
from .warm import remember, warm_attention

if TYPE_CHECKING:
    from typing_extensions import TypedDict, Unpack

    class _Options(TypedDict, total=False):
        is_causal: bool
        scale: float | None
        window: tuple[int, int] | None
        softcap: float
        score: Callable[..., Any] | None
        batch_invariant: bool
        out: Any
        rung: str | None
        config: AttentionConfig | str | None

    class _DenseOptions(_Options, total=False):
        bias: Any
        layout: HeadLayout
        seqused: Any
        block_table: Any


_TORCH_NAMES = " torch's names (attn_mask, enable_gqa) are those of tilewright.torch.scaled_dot_product_attention."


@overload
def attention(
    q: Array, k: Any, v: Any, *, return_lse: Literal[False] = ..., **options: Unpack[_DenseOptions]
) -> Array: ...
@overload
def attention(
    q: Array, k: Any, v: Any, *, return_lse: Literal[True], **options: Unpack[_DenseOptions]
) -> tuple[Array, Array]: ...
@overload
def attention(q: Array, k: Any, v: Any, *, return_lse: bool, **options: Unpack[_DenseOptions]) -> Any: ...
def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    window: tuple[int, int] | None = None,
    softcap: float = 0.0,
    bias: Any = None,
    score: Callable[..., Any] | None = None,
    layout: HeadLayout = "bhsd",
    seqused: Any = None,
    block_table: Any = None,
    batch_invariant: bool = False,
    return_lse: bool = False,
    out: Any = None,
    rung: str | None = None,
    config: AttentionConfig | str | None = None,
    **unknown: Any,
) -> Any:
    """softmax(scale q k^T) v for each batch entry and head, by a kernel of the attention ladder.

    q: [batch, heads, rows, d_head] (layout "bhsd") or [batch, rows, heads, d_head] ("bshd"), float16 or bfloat16.
    k, v: the same with their own number of rows, and of heads: q's heads are a multiple, and neighbours share one.
        Any strides; NumPy arrays (bfloat16 as ml_dtypes has it), torch tensors, CuPy and JAX arrays,
        anything with DLPack or `__cuda_array_interface__`. d_head is 1 to 256, and v may have another than q and k.
        Kernels take one of 32, 64, 96, 128, 192 and 256, most of them one for all three, in rows that begin at
        multiples of 16 bytes; other operands are copied first (`explain_attention` says so).
    is_causal: query i sees key j when j <= i + rows of k - rows of q: the last query sees the last key.
    scale: 1/sqrt(d_head) by default.
    window: (left, right): query i sees `left` keys before its own place i + rows of k - rows of q and `right` after
        it; -1 does not limit.
    softcap: above 0, a scaled score s becomes softcap tanh(s / softcap).
    bias: added to the scores [batch, heads, rows of q, rows of k], to which it broadcasts; float32 or q's dtype. A
        pair whose bias is -inf is hidden. A boolean array is a mask, as torch has it: pairs where it is False are
        hidden.
    score: a function s, b, h, i, j -> score, of the score so far (scaled, capped, with its bias), the batch entry, the
        head, the query and the key: `lambda s, b, h, i, j: s - 0.1 * abs(i - j)`. It is traced once into the kernel, as
        `matmul`'s epilogues are, and may use the functions of `tilewright.epilogue`; `where(j % 2 == 0, s, -math.inf)`
        hides a pair. Indices are 32-bit integers; with entries of different lengths they count from an entry's start.
    seqused: int32 [batch], on q's GPU: how many rows of k and v each entry has. Rows after them are never used,
        whatever they hold; is_causal and window count from the last of the used ones. For host arrays any integers.
    block_table: int32 [batch, pages of an entry], on q's GPU: keys and values lie in pages of `page` keys, a power of
        two from 16 on. k and v are then [pages, heads, page, d_head] ("bhsd") or [pages, page, heads, d_head] ("bshd"),
        and key j of entry b is key j % page of page block_table[b, j // page]. Numbers that no used key needs may be
        anything.
    batch_invariant: an entry's bits depend on its own queries and keys alone: not on the other entries, not on how
        many there are, not on the rows of k after seqused.
    return_lse: also give log(sum(exp(scores))), float32 [batch, heads, rows of q].
    out: an array of q's shape, with v's d_head, to write to; it must not overlap the others.
    rung, config: which kernel: a rung's id or number ("a17"), a tilewright.ladder.AttentionConfig or its text,
        "(128, 128, 64, 4): load_2_2_2_fragments". By default the plan chooses.

    A query that sees no key gets 0, and -inf in the LSE. The values of keys that are hidden from some queries of a
    block and seen by others must be finite, as they are multiplied by 0; rows that do not exist are never read.

    The result is `out`, or a new array of q's kind, dense in q's layout; with `return_lse` it and the LSE. Where it
    runs, and when it is complete, is as for `matmul`. Sums are made in float32; weights are rounded to q's dtype.

    Torch tensors that require a gradient get one, as tilewright.torch.attention gives it; out, seqused, block_table,
    batch_invariant, rung and config are refused there.

    Raises InvalidOperand (shapes, dtypes, strides, devices, overlaps), ConfigRejected (rung or config), DeviceError
    (no GPU for host arrays, or the driver's word), CompileError.
    """
    if unknown:
        raise unknown_keyword(attention, unknown, _TORCH_NAMES)
    modify = modification_of(score)
    options = (
        is_causal, scale, window, softcap, layout, return_lse, rung, config, None, None, modify.code, batch_invariant,
    )  # fmt: skip
    if is_mask(bias):
        bias = as_bias(bias, q)
    given = (q, k, v, bias, None, None, seqused, block_table)
    result = warm_attention(given, options, modify.numbers, out)
    if result is not MISS:
        return result
    if gradients.wanted((q, k, v, bias, out)):
        differentiable = gradients.differentiable(
            "attention",
            {
                "out": out is not None, "seqused": seqused is not None, "block_table": block_table is not None,
                "batch_invariant": batch_invariant, "rung": rung is not None, "config": config is not None,
            },
        )  # fmt: skip
        return differentiable(
            q, k, v, is_causal=is_causal, scale=scale, window=window, softcap=softcap, bias=bias, score=score,
            layout=layout, return_lse=return_lse,
        )  # fmt: skip
    call = read_attention(
        q, k, v, is_causal=is_causal, scale=scale, window=window, softcap=softcap, bias=bias, layout=layout,
        seqused=seqused, block_table=block_table, return_lse=return_lse, out=out, modify=modify,
        plan_with=(rung, config), batch_invariant=batch_invariant,
    )  # fmt: skip
    return _run(call, given, options, out)


@overload
def attention_varlen(
    q: Array, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: int | None = ...,
    max_seqlen_k: int | None = ..., *, return_lse: Literal[False] = ..., **options: Unpack[_Options],
) -> Array: ...  # fmt: skip
@overload
def attention_varlen(
    q: Array, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: int | None = ...,
    max_seqlen_k: int | None = ..., *, return_lse: Literal[True], **options: Unpack[_Options],
) -> tuple[Array, Array]: ...  # fmt: skip
@overload
def attention_varlen(
    q: Array, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: int | None = ...,
    max_seqlen_k: int | None = ..., *, return_lse: bool, **options: Unpack[_Options],
) -> Any: ...  # fmt: skip
def attention_varlen(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    window: tuple[int, int] | None = None,
    softcap: float = 0.0,
    score: Callable[..., Any] | None = None,
    batch_invariant: bool = False,
    return_lse: bool = False,
    out: Any = None,
    rung: str | None = None,
    config: AttentionConfig | str | None = None,
    **unknown: Any,
) -> Any:
    """`attention` for a batch of entries of different lengths, packed one after the other.

    q: [rows of all entries, heads, d_head]; k, v likewise with their own rows and heads.
    cu_seqlens_q, cu_seqlens_k: int32 [entries + 1], where each entry begins and the last one ends; they begin with 0.
        On a GPU they must lie there; their numbers are not checked, but cannot make a kernel leave the operands. For
        host arrays they may be any integers, and are checked.
    max_seqlen_q, max_seqlen_k: the rows of the longest entries, by which the kernel is chosen; not needed. Numbers on a
        GPU are never waited for: blocks find their entries there, and a call can be captured in a CUDA graph.

    The LSE is [heads, rows of all entries]. Rows after the end of the last entry are not written. All else as for
    `attention`, for each entry by itself.
    """
    if unknown:
        raise unknown_keyword(attention_varlen, unknown)
    modify, most = modification_of(score), (max_seqlen_q, max_seqlen_k)
    options = (
        is_causal, scale, window, softcap, "varlen", return_lse, rung, config, *most, modify.code, batch_invariant,
    )  # fmt: skip
    given = (q, k, v, None, cu_seqlens_q, cu_seqlens_k, None, None)
    result = warm_attention(given, options, modify.numbers, out)
    if result is not MISS:
        return result
    if gradients.wanted((q, k, v, out)):
        differentiable = gradients.differentiable(
            "attention_varlen",
            {
                "out": out is not None, "batch_invariant": batch_invariant, "rung": rung is not None,
                "config": config is not None,
            },
        )  # fmt: skip
        return differentiable(
            q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, is_causal=is_causal, scale=scale,
            window=window, softcap=softcap, score=score, return_lse=return_lse,
        )  # fmt: skip
    call = read_attention_varlen(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, is_causal=is_causal, scale=scale,
        window=window, softcap=softcap, return_lse=return_lse, out=out, modify=modify,
        plan_with=(rung, config), batch_invariant=batch_invariant,
    )  # fmt: skip
    return _run(call, given, options, out)


def _run(call: AttentionCall, given: tuple[Any, ...], options: tuple[Any, ...], out: Any) -> Any:
    results, ran = run(call)
    if ran is not None and call.problem is not None:
        remember(call, results, ran, given, options, out)
    return results if call.with_lse else results[0]
