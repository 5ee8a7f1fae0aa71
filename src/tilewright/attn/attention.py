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
from .config import AttentionConfig
from .masks import as_bias
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


_TORCH_NAMES = (
    " torch's names (attn_mask, enable_gqa) are those of tilewright.torch.scaled_dot_product_attention, which leaves "
    "dropout to torch; no kernel here has it. sinks are tilewright.torch.attention's, and for other arrays "
    "docs/attention.md makes them of the LSE. A bias or a score adds ALiBi's slopes."
)


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
    """Return softmax(scale q k^T) v for each batch entry and head, by a kernel of the attention ladder.

    q: [batch, heads, rows, d_head] (layout "bhsd") or [batch, rows, heads, d_head] ("bshd"), float16 or bfloat16.
    k, v: of the same layout and dtype, with a number of rows of their own. q's heads are a multiple of theirs, and
        neighbouring heads share one. d_head is 1 to 256; v's may differ from q's and k's. Any strides. NumPy arrays
        (bfloat16 from ml_dtypes), torch tensors, CuPy and JAX arrays, anything with DLPack or
        `__cuda_array_interface__`. Kernels take d_head 32, 64, 96, 128, 192 or 256, most of them one for all three, in
        rows that begin at multiples of 16 bytes. Other operands are copied first; `explain_attention` says so.
    is_causal: let query i see key j only when j <= i + rows of k - rows of q. The last query sees the last key.
    scale: the factor of the scores; by default 1/sqrt(d_head).
    window: (left, right): query i sees `left` keys before its own place, i + rows of k - rows of q, and `right` keys
        after it. -1 means no limit.
    softcap: if above 0, a scaled score s becomes softcap tanh(s / softcap).
    bias: added to the scores [batch, heads, rows of q, rows of k], to which it broadcasts; float32 or q's dtype. -inf
        hides a pair. A boolean array is a mask with torch's meaning: pairs where it is False are hidden. A `score` sees
        -inf there, and decides.
    score: a function s, b, h, i, j -> score: of the score so far (scaled, capped, with its bias), the batch entry, the
        head, the query and the key, such as `lambda s, b, h, i, j: s - 0.1 * abs(i - j)`. Like `matmul`'s epilogues it
        is traced once into the kernel, and may use the functions of `tilewright.epilogue`. The indices are 32-bit
        integers; for packed entries they count from the entry's start. `where(j % 2 == 0, s, -math.inf)` hides pairs.
    seqused: int32 [batch], on q's GPU: the number of rows of k and v that each entry has. Later rows are never used,
        whatever they hold. is_causal and window count from the last used row. For host arrays any integers.
    block_table: int32 [batch, pages of an entry], on q's GPU: keys and values lie in pages of `page` keys, a power of
        two from 16 on. k and v are then [pages, heads, page, d_head] ("bhsd") or [pages, page, heads, d_head] ("bshd"),
        and key j of entry b is key j % page of page block_table[b, j // page]. Entries of the table that no used key
        needs may hold anything.
    batch_invariant: make an entry's bits depend on its own queries and keys alone: not on the other entries, their
        number, or the rows of k after seqused.
    return_lse: also return log(sum(exp(scores))), float32 [batch, heads, rows of q].
    out: an array to write to, of q's shape with v's d_head. It must not overlap the other arrays.
    rung, config: which kernel runs: a rung's id or number ("a17"), a tilewright.ladder.AttentionConfig or its text,
        "(128, 128, 64, 4): load_2_2_2_fragments". By default the plan chooses.

    A query that sees no key gets 0, and -inf in the LSE. Where a block of queries sees a key only in part, the key's
    values must be finite, because the hidden pairs multiply them by 0. Rows that do not exist are never read.

    The result is `out`, or a new array of q's kind, dense in q's layout; with `return_lse` a tuple of it and the LSE.
    Where it runs, and when it is complete, is as for `matmul`. Sums are float32; weights are rounded to q's dtype.

    Torch tensors that require a gradient get one, as tilewright.torch.attention gives it; out, seqused, block_table,
    batch_invariant, rung and config are refused there.

    Raises InvalidOperand (shapes, dtypes, strides, devices, overlaps), ConfigRejected (rung or config), DeviceError
    (no GPU for host arrays, or an error of the driver), CompileError.
    """
    if unknown:
        raise unknown_keyword(attention, unknown, _TORCH_NAMES)
    traced = gradients.traced(q)
    modify = modification_of(None if traced else score)
    options = (
        is_causal, scale, window, softcap, layout, return_lse, rung, config, None, None, modify.code, batch_invariant,
    )  # fmt: skip
    if bias is not None:
        bias = as_bias(bias, q)
    given = (q, k, v, bias, None, None, seqused, block_table)
    result = MISS if traced else warm_attention(given, options, modify.numbers, out)
    if result is not MISS:
        return result
    if traced or gradients.recorded(q) or gradients.wanted((q, k, v, bias, out)):
        differentiable = gradients.differentiable(
            "attention",
            {
                "out": out, "seqused": seqused, "block_table": block_table, "batch_invariant": batch_invariant,
                "rung": rung, "config": config,
            },
            traced,
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
    """Do as `attention` for entries of different lengths, packed one after the other.

    q: [rows of all entries, heads, d_head]; k, v likewise with their own rows and heads.
    cu_seqlens_q, cu_seqlens_k: int32 [entries + 1]: 0, then where each entry ends. For arrays on a GPU they lie there;
        their numbers are not checked, but cannot make a kernel leave the operands. For host arrays they may be any
        integers, and are checked.
    max_seqlen_q, max_seqlen_k: the rows of the longest entries, by which the kernel is chosen; optional. Numbers on a
        GPU are never waited for: blocks find their entries there, and a CUDA graph can capture the call.

    The LSE is [heads, rows of all entries]. Rows after the end of the last entry are not written. Everything else is as
    for `attention`, for each entry by itself.
    """
    if unknown:
        raise unknown_keyword(attention_varlen, unknown)
    traced = gradients.traced(q)
    modify, most = modification_of(None if traced else score), (max_seqlen_q, max_seqlen_k)
    options = (
        is_causal, scale, window, softcap, "varlen", return_lse, rung, config, *most, modify.code, batch_invariant,
    )  # fmt: skip
    given = (q, k, v, None, cu_seqlens_q, cu_seqlens_k, None, None)
    result = MISS if traced else warm_attention(given, options, modify.numbers, out)
    if result is not MISS:
        return result
    if traced or gradients.recorded(q) or gradients.wanted((q, k, v, out)):
        differentiable = gradients.differentiable(
            "attention_varlen",
            {"out": out, "batch_invariant": batch_invariant, "rung": rung, "config": config},
            traced,
        )
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
