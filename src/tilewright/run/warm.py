"""The warm path: a torch product of a kind seen before, at the least host time that Python allows.

Everything that decides the kernel, its grid and the layout of its parameters is in one key: shapes, strides, the low
bits of the addresses, dtypes, the GPU, whether C is read, rung and config. What is left for a call is one look-up, the
result's allocation, packing four addresses and two scalars, and the launch. What does not fit takes the full path,
which gives the same result or says why not.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..epilogue.keys import function_key
from ..errors import DeviceError
from ..jit.device_calls import enter_context
from ..jit.launch import current_executor
from ..plan.tables import generation

if TYPE_CHECKING:
    from ..epilogue.fusion import Request
    from ..jit.device import Prepared

MISS = object()
"""What `warm_matmul` returns for a call it does not know."""

_ADDRESSES = struct.Struct("<4Q")  # a, b, c, out: the head of GemmArgs
_SCALARS = struct.Struct("<2f4x")  # alpha, beta: its tail
_NUMBERS = (float, int)
_ZEROS = (b"\0\0\0\0", b"\0\0\0\x80")
_MOST_KEYS = 4096


@dataclass(frozen=True)
class Step:
    """One launch of a call."""

    prepared: Prepared
    places: tuple[tuple[int, int], ...]
    """For each of its four addresses: which of (a, b, c, out, workspace), and bytes from there."""
    scalars: slice | None
    """Where the call's alpha and beta are in its parameters, in bytes; None: it takes 1 and 0."""
    fused: tuple[tuple[int, str, int], ...] = ()
    """For each array of its epilogue: where its address is in the parameters, in words; the caller's name; bytes from
    its address."""


@dataclass(frozen=True)
class WarmCall:
    """What is the same for every call with one key. Extents are bytes from a tensor's address."""

    ordinal: int
    steps: tuple[Step, ...]
    workspace_bytes: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """Of a new result: dense, row-major, in elements."""
    dtype: Any
    a_extent: int
    b_extent: int
    c_extent: int
    out_extent: int
    c_has_outs_layout: bool
    fused: tuple[tuple[str, int, bool], ...] = ()
    """Of the epilogue's arrays: the caller's name, extent, and whether it may be out's very view."""


_calls: dict[Any, WarmCall] = {}
_tensor_types: tuple[type, ...] = ()
_torch: Any = None
_empty: Any = None
"""(shape, strides, dtype) -> a new tensor on the current GPU."""


def _signature(tensor: Any, grad_enabled: Any) -> tuple[Any, ...]:
    return (
        tensor.shape, tensor.stride(), tensor.data_ptr() & 15, tensor.dtype, tensor.get_device(),
        tensor.requires_grad and grad_enabled(), tensor.is_neg(),
    )  # fmt: skip


def key_of(
    torch: Any, a: Any, b: Any, c: Any, uses_c: bool, out: Any, options: tuple[Any, ...], asked: Request | None
) -> Any:
    """The key of a call on torch tensors; None when its epilogue can be told only by tracing it.

    Raises RuntimeError or AttributeError for what has no strides or memory.
    """
    grad = torch.is_grad_enabled
    # one flat tuple of what every call has: half the time of a signature each
    key = (
        a.shape, a.stride(), a.data_ptr() & 15, a.dtype, a.get_device(), a.is_neg(),
        b.shape, b.stride(), b.data_ptr() & 15, b.dtype, b.get_device(), b.is_neg(),
        (a.requires_grad or b.requires_grad) and grad(), options, uses_c,
        c is not None and _signature(c, grad), out is not None and _signature(out, grad), generation(),
    )  # fmt: skip
    if asked is None:
        return key
    function, activation, operands = asked
    told = activation if function is None else function_key(function)
    if told is None and function is not None:
        return None
    fused: list[Any] = [key, told]
    for name, value in operands.items():
        fused.append(name)
        # a number as text, which tells 1 from 1.0 and 0.0 from -0.0
        fused.append(repr(value) if type(value) in _NUMBERS else _signature(value, grad))
    return tuple(fused)


def warm_matmul(
    a: Any, b: Any, c: Any, alpha: float, beta: float | None, out: Any, options: tuple[Any, ...],
    asked: Request | None = None,
) -> Any:  # fmt: skip
    """The result, or MISS. `options`: as call.Options, in its order; `asked`: what is to be fused."""
    kinds = _tensor_types
    if type(a) not in kinds or type(b) not in kinds or type(alpha) in kinds or type(beta) in kinds:
        return MISS
    try:
        scalars = _SCALARS.pack(alpha, (c is not None) if beta is None else beta)
        uses_c = scalars[4:8] not in _ZEROS  # as the kernel would see it, rounded to float32
        call = _calls.get(key_of(_torch, a, b, c, uses_c, out, options, asked))  # nothing is kept under None
    except (AttributeError, RuntimeError, TypeError, OverflowError, struct.error):
        return MISS
    if call is None or current_executor() is not None:
        return MISS
    torch = _torch
    if torch.autograd.forward_ad._current_level >= 0:
        return MISS  # an operand may have a tangent
    if torch._C._cuda_getDevice() != call.ordinal:
        return MISS  # another GPU's context is current: the full path changes it for the launch
    a_address, b_address = a.data_ptr(), b.data_ptr()
    c_address = c.data_ptr() if uses_c else 0
    if out is None:
        out = _empty(call.shape, call.strides, call.dtype)
        out_address = out.data_ptr()
    else:
        out_address = out.data_ptr()
        if not _is_apart(call, out_address, a_address, b_address, c_address):
            return MISS
        if call.fused and not _fused_is_apart(call, out, out_address, asked):
            return MISS
    stream = torch._C._cuda_getCurrentRawStream(call.ordinal)
    work = 0
    if call.workspace_bytes:
        held = _empty((call.workspace_bytes,), (1,), torch.uint8)
        work = held.data_ptr()  # given back on return: torch's pool keeps it apart until the stream has passed
    bases = (a_address, b_address, c_address, out_address, work)
    try:
        for step in call.steps:
            (a_in, da), (b_in, db), (c_in, dc), (out_in, dout) = step.places
            prepared = step.prepared
            with prepared.lock:  # all else is in its parameters from the first call on
                words = prepared.words
                words[0], words[1] = bases[a_in] + da, bases[b_in] + db
                words[2], words[3] = bases[c_in] + dc, bases[out_in] + dout
                for word, name, offset in step.fused:
                    words[word] = asked.operands[name].data_ptr() + offset  # type: ignore[union-attr]
                if step.scalars is not None:
                    prepared.bytes[step.scalars] = scalars
                prepared.start(stream)
    except DeviceError:
        if step is not call.steps[0]:
            raise
        enter_context(call.ordinal)  # a new thread has none yet
        return MISS  # the full path runs it, or fails with the same words
    return out


def _is_apart(call: WarmCall, out: int, a: int, b: int, c: int) -> bool:
    """Whether `out` surely overlaps no input in a way that matters."""
    end = out + call.out_extent
    return (
        (end <= a or a + call.a_extent <= out)
        and (end <= b or b + call.b_extent <= out)
        and (c == 0 or end <= c or c + call.c_extent <= out or (c == out and call.c_has_outs_layout))
    )


def _fused_is_apart(call: WarmCall, out: Any, out_address: int, asked: Request | None) -> bool:
    """The same of the epilogue's arrays, which may be out itself where their loads stay before the stores."""
    end = out_address + call.out_extent
    for name, extent, may_be_out in call.fused:
        array = asked.operands[name]  # type: ignore[union-attr]
        address = array.data_ptr()
        same = may_be_out and address == out_address and array.stride() == out.stride() and array.dtype == out.dtype
        if not (end <= address or address + extent <= out_address or (same and array.shape == out.shape)):
            return False
    return True


def remember(torch: Any, key: Any, call: WarmCall) -> None:
    """Let later calls with this key take the warm path."""
    global _tensor_types, _torch, _empty
    if len(_calls) >= _MOST_KEYS:
        _calls.clear()
    _torch, _tensor_types, _empty = torch, (torch.Tensor, torch.nn.Parameter), allocator(torch)
    _calls[key] = call


def allocator(torch: Any) -> Any:
    """What makes a new tensor on the current GPU from (shape, strides, dtype) at the least host time: what code that
    torch.compile writes calls, half that of torch.empty_strided, itself half that of torch.empty. Torches without it
    have the second."""
    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    quick = getattr(guards, "_empty_strided_cuda", None)
    return quick or (lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype, device="cuda"))


def layout_of(
    params: bytes, addresses: tuple[int, int, int, int], alpha: float, beta: float, fused: bytes = b""
) -> tuple[slice, int] | None:
    """Where alpha and beta are in a kernel's parameters, in bytes, and where the epilogue's part begins, in words.

    None when the parameters are not laid out as a warm call writes them: addresses, all else, scalars, that part.
    """
    head, scalars = _ADDRESSES.pack(*addresses), _SCALARS.pack(alpha, beta)
    start = len(params) - len(fused) - len(scalars)
    if not params.startswith(head) or params[start:] != scalars + fused or (start + len(scalars)) % 8:
        return None
    return slice(start, start + len(scalars)), (start + len(scalars)) // 8
