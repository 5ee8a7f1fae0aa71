"""The warm path of attention: a call of a kind seen before, at little host time (run/warm.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..arrays.dlpack import dense_strides
from ..arrays.extents import byte_extent
from ..jit.launch import current_executor
from ..jit.params import WORK, number_names
from ..run import libraries
from ..run.runner import Ran
from ..run.warm import MISS, Calls, Remembered, remembered
from .hopper import HopperConfig
from .rung import AttentionConfig
from .split import SplitConfig

if TYPE_CHECKING:
    from .call import AttentionCall

_BASES = ("q", "k", "v", "out", "lse", WORK, "bias", "starts_q", "starts_k", "used", "pages")


@dataclass(frozen=True)
class WarmAttention:
    """What is the same for every call with one key."""

    launches: Remembered
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """Of a new result, in elements."""
    dtype: Any
    lse: tuple[tuple[int, ...], tuple[int, ...], Any] | None
    """Shape, strides and dtype of the LSE."""
    extents: tuple[int, ...]
    """Bytes from the address of q, k, v, bias, both starts, seqused, block_table, if given, and out to their ends."""


calls: Calls[WarmAttention] = Calls()


def _key(library: libraries.Library, given: tuple[Any, ...], options: tuple[Any, ...]) -> Any:
    q, k, v, bias, out, starts_q, starts_k, used, table = given
    signature = library.signature
    return (
        library.pair(q, k), signature(v), options, bias is not None and signature(bias),
        out is not None and signature(out),
        starts_q is not None and (signature(starts_q), signature(starts_k)), used is not None and signature(used),
        table is not None and signature(table),
    )  # fmt: skip


def find(given: tuple[Any, ...], options: tuple[Any, ...]) -> WarmAttention | None:
    """The remembered call of arrays that lie so, if there is one. Arguments as of warm_attention."""
    library = libraries.known.get(type(given[0]))
    return None if library is None else calls.get(_key(library, given, options))


def repeat(call: WarmAttention, q: Any, k: Any, v: Any) -> Any:
    """The result, with the LSE where the call gives it, of operands that lie as the call's did and are all it reads;
    MISS where this thread cannot launch it at once."""
    library = libraries.known[type(q)]
    launches, address = call.launches, library.address
    if current_executor() is not None or not library.is_plain(launches.ordinal):
        return MISS
    result = library.new(call.shape, call.strides, call.dtype)
    lse = None if call.lse is None else library.new(*call.lse)
    held, work = library.scratch(launches.workspace_bytes) if launches.workspace_bytes else (None, 0)
    bases = (
        address(q), address(k), address(v), address(result), 0 if lse is None else address(lse), work, 0, 0, 0, 0, 0,
    )  # fmt: skip
    if not launches.start(bases, (), library.stream(launches.ordinal)):
        return MISS
    del held  # given back now: the library's pool keeps it apart until the stream has passed
    return result if lse is None else (result, lse)


def warm_attention(given: tuple[Any, ...], options: tuple[Any, ...], numbers: tuple[float, ...]) -> Any:
    """The result, with the LSE where it is asked for, or MISS. `given`: q, k, v, bias, out, both starts, seqused and
    block_table; `numbers`: those of the function of a score, whose code is among the options."""
    q, k, v, bias, out, starts_q, starts_k, used, table = given
    library = libraries.known.get(type(q))
    if library is None or type(k) not in library.types or type(v) not in library.types:
        return MISS
    try:
        call = calls.get(_key(library, given, options))
    except (AttributeError, RuntimeError, TypeError):
        return MISS
    if call is None or current_executor() is not None:
        return MISS
    launches, address = call.launches, library.address
    if not library.is_plain(launches.ordinal):
        return MISS  # another GPU's context is current, say: the full path changes it for the launch
    inputs = [address(q), address(k), address(v)]
    others = [0 if one is None else address(one) for one in (bias, starts_q, starts_k, used, table)]
    if out is None:
        result = library.new(call.shape, call.strides, call.dtype)
    else:
        result = out
        at = address(out)
        end = at + call.extents[-1]
        reads = (*inputs, *(one for one in others if one))
        if not all(end <= one or one + size <= at for one, size in zip(reads, call.extents, strict=False)):
            return MISS  # the full path settles whether views overlap
        library.mark_written(out)
    lse = None if call.lse is None else library.new(*call.lse)
    held, work = library.scratch(launches.workspace_bytes) if launches.workspace_bytes else (None, 0)
    bases = (*inputs, address(result), 0 if lse is None else address(lse), work, *others)
    if not launches.start(bases, numbers, library.stream(launches.ordinal)):
        return MISS
    del held  # given back now: the library's pool keeps it apart until the stream has passed
    return result if lse is None else (result, lse)


def _stays(option: Any) -> bool:
    """Whether a key that holds it decides its value. A tensor as the scale is equal to itself with another number."""
    if type(option) is tuple:
        return all(map(_stays, option))
    kinds = (int, float, str, np.generic, AttentionConfig, HopperConfig, SplitConfig)
    return option is None or isinstance(option, kinds)


def remember(
    call: AttentionCall, results: tuple[Any, ...], ran: Ran, given: tuple[Any, ...], options: tuple[Any, ...]
) -> None:
    """Let later calls of this kind take the warm path."""
    library = libraries.learn(call.q.kind)
    if library is None or any(x is not None and type(x) not in library.types for x in given):
        return
    if not all(map(_stays, options)):
        return
    try:
        key = _key(library, given, options)
        hash(key)
    except (AttributeError, RuntimeError, TypeError):  # a window that is a list
        return
    numbers = call.problem.numbers if call.problem is not None else ()
    extents = [byte_extent(x) for x in (call.q, call.k, call.v, call.bias, *call.lists, call.out) if x is not None]
    lse = (call.lse_shape, dense_strides(call.lse_shape), results[1].dtype) if call.with_lse else None
    calls.put(
        key,
        WarmAttention(
            remembered(ran.ready, ran.ordinal, _BASES, number_names(len(numbers))), call.out_shape,
            dense_strides(call.out_shape), results[0].dtype, lse, tuple(high - low for low, high in extents),
        ),
    )  # fmt: skip
