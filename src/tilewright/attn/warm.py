"""The warm path of attention on torch tensors: a call of a kind seen before, at little host time (see run/warm.py)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..arrays.dlpack import dense_strides
from ..errors import DeviceError
from ..jit.device_calls import enter_context
from ..jit.launch import current_executor
from ..plan.tables import generation
from ..run.warm import MISS, _signature, allocator

if TYPE_CHECKING:
    from ..jit.device import Prepared

_HEAD = struct.Struct("<5Q")  # q, k, v, out, lse: the head of AttentionArgs
_TAIL = struct.Struct("<3Q")  # bias and both starts: its tail
_MOST_KEYS = 4096


@dataclass(frozen=True)
class WarmAttention:
    """What is the same for every call with one key."""

    ordinal: int
    prepared: Prepared
    params: bytes
    """Of the first call; the addresses at both ends are replaced."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """Of a new result, in elements."""
    dtype: Any
    lse_shape: tuple[int, ...] | None
    out_is_given: bool
    extents: tuple[int, ...]
    """Bytes from the address of q, k, v, bias if given, and out to their ends."""


_calls: dict[Any, tuple[WarmAttention, bytes]] = {}
_tensor_types: tuple[type, ...] = ()
_torch: Any = None
_empty: Any = None


def _key(torch: Any, given: tuple[Any, ...], options: tuple[Any, ...]) -> Any:
    grad = torch.is_grad_enabled
    q, k, v, bias, out, starts_q, starts_k = given
    return (
        _signature(q, grad), _signature(k, grad), _signature(v, grad), options,
        bias is not None and _signature(bias, grad), out is not None and _signature(out, grad),
        starts_q is not None and (_signature(starts_q, grad), _signature(starts_k, grad)), generation(),
    )  # fmt: skip


def warm_attention(
    q: Any, k: Any, v: Any, bias: Any, out: Any, starts_q: Any, starts_k: Any, options: tuple[Any, ...]
) -> Any:
    """The result, with the LSE where it is asked for, or MISS."""
    kinds = _tensor_types
    if type(q) not in kinds or type(k) not in kinds or type(v) not in kinds:
        return MISS
    torch = _torch
    try:
        known = _calls.get(_key(torch, (q, k, v, bias, out, starts_q, starts_k), options))
    except (AttributeError, RuntimeError, TypeError):
        return MISS
    if known is None or current_executor() is not None or torch.autograd.forward_ad._current_level >= 0:
        return MISS  # in a dual level an operand may have a tangent
    call, middle = known
    if torch._C._cuda_getDevice() != call.ordinal:
        return MISS  # another GPU's context is current: the full path changes it for the launch
    bias_address = 0 if bias is None else bias.data_ptr()
    addresses = (q.data_ptr(), k.data_ptr(), v.data_ptr())
    if out is None:
        out = _empty(call.shape, call.strides, call.dtype)
        out_address = out.data_ptr()
    else:
        out_address = out.data_ptr()
        end = out_address + call.extents[-1]
        inputs = addresses if bias is None else (*addresses, bias_address)
        if not all(end <= at or at + size <= out_address for at, size in zip(inputs, call.extents, strict=False)):
            return MISS  # the full path settles whether views overlap
    lse = None
    lse_address = 0
    if call.lse_shape is not None:
        lse = _empty(call.lse_shape, dense_strides(call.lse_shape), torch.float32)
        lse_address = lse.data_ptr()
    starts = (0, 0) if starts_q is None else (starts_q.data_ptr(), starts_k.data_ptr())
    params = _HEAD.pack(*addresses, out_address, lse_address) + middle + _TAIL.pack(bias_address, *starts)
    try:
        call.prepared.launch(params, torch._C._cuda_getCurrentRawStream(call.ordinal))
    except DeviceError:
        enter_context(call.ordinal)  # a new thread has none yet
        return MISS  # the full path runs it, or fails with the same words
    return out if lse is None else (out, lse)


def remember(torch: Any, given: tuple[Any, ...], options: tuple[Any, ...], call: WarmAttention) -> None:
    """Let later calls with this key take the warm path."""
    global _tensor_types, _torch, _empty
    try:
        key = _key(torch, given, options)
        hash(key)
    except (AttributeError, RuntimeError, TypeError):  # starts that are no tensors, a window that is a list
        return
    if len(_calls) >= _MOST_KEYS:
        _calls.clear()
    _torch, _tensor_types, _empty = torch, (torch.Tensor, torch.nn.Parameter), allocator(torch)
    _calls[key] = call, call.params[_HEAD.size : -_TAIL.size]
