"""attention: any arrays -> views -> one problem -> a plan -> launches -> a result of the caller's kind."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..arrays.dlpack import dense_strides
from ..arrays.extents import byte_extent
from ..arrays.result import as_callers_kind, empty_like, host_bits, host_bytes, result_operand
from ..arrays.streams import in_order
from ..arrays.view import Operand
from ..epilogue.keys import function_key
from ..errors import DeviceError
from ..gemm.call import executor_for_host
from ..gemm.problem import ITEM_BYTES
from ..gpus import Gpu
from ..jit.launch import Executor, Launch
from .call import AttentionCall, read_attention, read_attention_varlen
from .plan import plan_attention
from .problem import head_rows
from .rung import AttentionAddresses, AttentionConfig
from .score import modification_of
from .stages import StridedRows, compile_copy, plan_copy
from .warm import MISS, WarmAttention, remember, warm_attention

if TYPE_CHECKING:
    from ..jit.compile import CompiledKernel


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
    layout: str = "bhsd",
    return_lse: bool = False,
    out: Any = None,
    rung: str | None = None,
    config: AttentionConfig | str | None = None,
) -> Any:
    """softmax(scale q k^T) v for each batch entry and head, by a kernel of the attention ladder.

    q: [batch, heads, rows, d_head] (layout "bhsd") or [batch, rows, heads, d_head] ("bshd"), float16 or bfloat16.
    k, v: the same with their own number of rows, and of heads: q's heads are a multiple, and neighbours share one.
        Any strides but negative ones; NumPy arrays (bfloat16 as ml_dtypes has it), torch tensors, CuPy and JAX arrays,
        anything with DLPack or `__cuda_array_interface__`. d_head is 1 to 256. Kernels take 32, 64, 96, 128, 192 and
        256 in rows that begin at multiples of 16 bytes; other operands are copied first (`explain_attention` says so).
    is_causal: query i sees key j when j <= i + rows of k - rows of q: the last query sees the last key.
    scale: 1/sqrt(d_head) by default.
    window: (left, right): query i sees `left` keys before its own place i + rows of k - rows of q and `right` behind
        it; -1 does not limit.
    softcap: above 0, a scaled score s becomes softcap tanh(s / softcap).
    bias: added to the scores [batch, heads, rows of q, rows of k], to which it broadcasts; float32 or q's dtype. A
        pair whose bias is -inf is hidden.
    score: a function s, b, h, i, j -> score, of the score so far (scaled, capped, with its bias), the batch entry, the
        head, the query and the key: `lambda s, b, h, i, j: s - 0.1 * abs(i - j)`. It is traced once into the kernel, as
        `matmul`'s epilogues are, and may use the functions of `tilewright.epilogue`; `where(j % 2 == 0, s, -math.inf)`
        hides a pair. Indices are 32-bit integers; with entries of different lengths they count from an entry's start.
    return_lse: also give log(sum(exp(scores))), float32 [batch, heads, rows of q].
    out: an array of exactly q's shape to write to; it must not overlap the others.
    rung, config: which kernel: a rung's id or number ("a17"), a tilewright.ladder.AttentionConfig or its text,
        "(128, 128, 64, 4): load_2_2_2_fragments". By default the plan chooses.

    A query that sees no key gets 0, and -inf in the LSE. The values of keys that are hidden from some queries of a
    block and seen by others must be finite, as they are multiplied by 0; rows that do not exist are never read.

    The result is `out`, or a new array of q's kind, dense in q's layout; with `return_lse` it and the LSE. Where it
    runs, and when it is complete, is as for `matmul`. Sums are made in float32; weights are rounded to q's dtype.

    Raises InvalidOperand (shapes, dtypes, strides, devices, overlaps), ConfigRejected (rung or config), DeviceError
    (no GPU for host arrays, or the driver's word), CompileError.
    """
    key = None if score is None else function_key(score)
    options = (is_causal, scale, window, softcap, layout, return_lse, rung, config, None, None, key)
    if score is None or key is not None:
        result = warm_attention(q, k, v, bias, out, None, None, options)
        if result is not MISS:
            return result
    call = read_attention(
        q, k, v, is_causal=is_causal, scale=scale, window=window, softcap=softcap, bias=bias, layout=layout,
        return_lse=return_lse, out=out, modify="" if score is None else modification_of(score),
    )  # fmt: skip
    return _run(call, (q, k, v, bias, out, None, None), options, return_lse, rung, config)


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
    return_lse: bool = False,
    out: Any = None,
    rung: str | None = None,
    config: AttentionConfig | str | None = None,
) -> Any:
    """`attention` for a batch of entries of different lengths, packed one behind the other.

    q: [rows of all entries, heads, d_head]; k, v likewise with their own rows and heads.
    cu_seqlens_q, cu_seqlens_k: int32 [entries + 1], where each entry begins and the last one ends; they begin with 0.
        On a GPU they must lie there; their numbers are not checked, but cannot make a kernel leave the operands. For
        host arrays they may be any integers, and are checked.
    max_seqlen_q: at least the rows of the longest entry of q; rows of an entry beyond it are not computed. None asks
        the GPU and waits for it. max_seqlen_k is not needed.

    The LSE is [heads, rows of all entries]. Rows behind the end of the last entry are not written. All else as for
    `attention`, for each entry by itself.
    """
    key = None if score is None else function_key(score)
    options = (is_causal, scale, window, softcap, "varlen", return_lse, rung, config, max_seqlen_q, max_seqlen_k, key)
    if max_seqlen_q is not None and (score is None or key is not None):
        result = warm_attention(q, k, v, None, out, cu_seqlens_q, cu_seqlens_k, options)
        if result is not MISS:
            return result
    call = read_attention_varlen(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, is_causal=is_causal, scale=scale,
        window=window, softcap=softcap, return_lse=return_lse, out=out,
        modify="" if score is None else modification_of(score),
    )  # fmt: skip
    given = (q, k, v, None, out, cu_seqlens_q, cu_seqlens_k)
    return _run(call, given, options, return_lse, rung, config)


def _run(
    call: AttentionCall, given: tuple[Any, ...], options: tuple[Any, ...], return_lse: bool, rung: str | None,
    config: AttentionConfig | str | None,
) -> Any:  # fmt: skip
    executor = executor_for_host(call)
    if executor is not None:
        out, lse = _run_staged(executor, call, given[4], rung, config)
    else:
        out, lse = _run_in_place(call, given, options, rung, config)
    return (out, lse) if return_lse else out


# --- launches --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bases:
    """Device addresses of the call's operands, as they lie."""

    q: int
    k: int
    v: int
    out: int
    lse: int
    bias: int = 0
    starts_q: int = 0
    starts_k: int = 0


def _launches(
    call: AttentionCall, gpu: Gpu, rung: str | None, config: AttentionConfig | str | None, bases: Bases,
    allocate: Callable[[int], int],
) -> Iterator[tuple[CompiledKernel, Launch]]:  # fmt: skip
    """The kernels of a call in order: copies of what kernels cannot read, attention, the result's way back."""
    problem = call.problem
    if problem is None:
        return
    plan = plan_attention(problem, gpu, rung, config)
    kernel = plan.rung.compile(problem, plan.config, gpu.arch)
    places = {"q": bases.q, "k": bases.k, "v": bases.v, "out": bases.out}
    given = {"q": call.q, "k": call.k, "v": call.v, "out": call.out}
    for name, _ in call.copied:
        batch, heads, rows, _ = given[name].shape
        places[name] = allocate(ITEM_BYTES[problem.dtype] * batch * heads * rows * problem.d_head)
        if name != "out":
            yield _copy(gpu, given[name], getattr(bases, name), places[name], problem.d_head, back=False)
    addresses = AttentionAddresses(
        places["q"], places["k"], places["v"], places["out"], bases.lse, bases.bias, bases.starts_q, bases.starts_k
    )
    yield kernel, plan.rung.plan(problem, plan.config, addresses)
    if places["out"] != bases.out:
        yield _copy(gpu, call.out, bases.out, places["out"], problem.d_head, back=True)


def _copy(gpu: Gpu, view: Operand, lies: int, copy: int, d_head: int, back: bool) -> tuple[CompiledKernel, Launch]:
    """The view at `lies` to its dense, padded copy, or `back`."""
    batch, heads, rows, d = view.shape
    dense = head_rows(heads, rows, d_head)
    given, padded = StridedRows(*view.strides), StridedRows(dense.batch_stride, dense.head_stride, dense.row_stride)
    if back:
        return compile_copy(gpu.arch), plan_copy(copy, padded, lies, given, batch, heads, rows, d, d)
    return compile_copy(gpu.arch), plan_copy(lies, given, copy, padded, batch, heads, rows, d, d_head)


# --- host arrays: staged to an executor and back ----------------------------------------------------------------------


def _run_staged(
    executor: Executor, call: AttentionCall, out: Any, rung: str | None, config: AttentionConfig | str | None
) -> tuple[Any, Any]:
    """Copy what the views reach to the executor, run there, copy the results back."""
    held: list[int] = []

    def put(data: np.ndarray, name: str) -> int:
        held.append(executor.upload(data, name))
        return held[-1]

    def stage(operand: Operand | None, fill: bool = True) -> int:
        """The operand's bytes on the executor, at an address as aligned as on the host; its element 0's address."""
        if operand is None:
            return 0
        low, high = byte_extent(operand)
        pad = low % 16
        data = np.full(pad + high - low, 0xFF, np.uint8)  # a NaN where nothing is copied
        if fill:
            data[pad:] = host_bytes(operand)
        return put(data, operand.name) + pad

    problem = call.problem
    with_lse = problem is not None and problem.with_lse
    lse_bytes = 4 * int(np.prod(call.lse_shape)) if with_lse else 0
    keeps = call.out_is_given and call.starts is not None  # rows behind the last entry stay as they are
    try:
        names = ("cu_seqlens_q", "cu_seqlens_k")
        known = [s.host for s in call.starts or () if s.host is not None]
        starts = [put(s.view(np.uint8), name) for s, name in zip(known, names, strict=False)] or [0, 0]
        bases = Bases(
            stage(call.q), stage(call.k), stage(call.v), stage(call.out, fill=keeps),
            put(np.full(lse_bytes, 0xFF, np.uint8), "lse") if with_lse else 0, stage(call.bias), *starts,
        )  # fmt: skip
        for kernel, launch in _launches(
            call, executor.gpu, rung, config, bases, lambda nbytes: put(np.full(nbytes, 0xFF, np.uint8), "workspace")
        ):
            executor.launch(kernel, launch)
        low, high = byte_extent(call.out)
        raw = executor.download(bases.out, high - low)
        raw_lse = executor.download(bases.lse, lse_bytes) if with_lse else np.empty(0, np.uint8)
    finally:
        for address in held:
            executor.release(address)
    strides = tuple(step * call.out.item_bytes for step in call.out.strides)
    bits = np.ndarray(call.out.shape, "<u2", raw, strides=strides)
    result = out if call.out_is_given else empty_like(call.q, call.out_shape, call.q.dtype)
    if call.out.size:
        address = call.out.address if call.out_is_given else result_operand(result, call.q).address
        host_bits(replace(call.out, address=address))[...] = bits
    lse = empty_like(call.q, call.lse_shape, "f32")
    if with_lse:
        host_bits(result_operand(lse, call.q))[...] = raw_lse.view(np.uint32).reshape(call.lse_shape)
    return (result if call.out_is_given else as_callers_kind(result, call.q)), as_callers_kind(lse, call.q)


# --- arrays on a GPU: run where they are ------------------------------------------------------------------------------

_run_before: set[tuple[Any, ...]] = set()
"""What has run in this process: compiled and loaded, so that a capture may run it."""


def _run_in_place(
    call: AttentionCall, given: tuple[Any, ...], options: tuple[Any, ...], rung: str | None,
    config: AttentionConfig | str | None,
) -> tuple[Any, Any]:  # fmt: skip
    """Launch on the arrays' own GPU, in q's current stream, ordered with what the other arrays' streams hold."""
    from ..jit.device import Prepared, bound_to, executor_for
    from ..jit.device_calls import is_capturing

    ordinal = call.q.device
    assert ordinal is not None  # executor_for_host saw to it
    gpu, problem = executor_for(ordinal).gpu, call.problem
    with_lse = options[5]
    result = given[4] if call.out_is_given else empty_like(call.q, call.out_shape, call.q.dtype)
    at_out = call.out.address if call.out_is_given else result_operand(result, call.q).address
    lse = empty_like(call.q, call.lse_shape, "f32") if with_lse else None
    at_lse = result_operand(lse, call.q).address if with_lse else 0
    starts = [s.operand.address for s in call.starts or () if s.operand is not None] or [0, 0]
    bias = call.bias.address if call.bias is not None else 0
    bases = Bases(call.q.address, call.k.address, call.v.address, at_out, at_lse, bias, *starts)
    held: list[Any] = []

    def allocate(nbytes: int) -> int:
        held.append(empty_like(call.q, (nbytes // ITEM_BYTES[call.q.dtype],), call.q.dtype))
        return result_operand(held[-1], call.q).address

    prepared = None
    plan = plan_attention(problem, gpu, rung, config) if problem is not None else None
    known = (plan, problem, ordinal, bool(call.copied))
    if known not in _run_before and is_capturing(call.q.stream or 0, ordinal):
        raise DeviceError(
            f"a CUDA-graph capture is running, and this attention (q {call.q.shape}, k {call.k.shape}, {call.q.dtype}) "
            "has not run in this process yet: nothing is compiled or loaded inside a capture. Call it once before "
            "capturing, with arrays of the same shapes, strides, dtypes and alignment, and the same options."
        )
    with in_order(call.q, call.others) as stream, bound_to(ordinal):
        for kernel, launch in _launches(call, gpu, rung, config, bases, allocate):
            prepared = Prepared(kernel, launch, ordinal)
            prepared.launch(launch.params, stream)
    _run_before.add(known)
    torch_only = all(operand.kind == "torch" for operand in (call.q, *call.others))
    tellable = problem is None or not problem.modify or options[-1] is not None
    if torch_only and tellable and prepared is not None and problem is not None and not call.copied:
        extents = [byte_extent(x) for x in (call.q, call.k, call.v, call.bias, call.out) if x is not None]
        warm = WarmAttention(
            ordinal, prepared, launch.params, call.out_shape, dense_strides(call.out_shape), result.dtype,
            call.lse_shape if with_lse else None, call.out_is_given,
            tuple(high - low for low, high in extents),
        )  # fmt: skip
        remember(sys.modules["torch"], given, options, warm)
    if call.out_is_given:
        return result, as_callers_kind(lse, call.q) if with_lse else None
    return as_callers_kind(result, call.q), as_callers_kind(lse, call.q) if with_lse else None
