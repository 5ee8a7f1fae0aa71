"""The warm path of grouped products: a call of a kind seen before, at little host time (run/warm.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..arrays.dlpack import dense_strides
from ..arrays.extents import byte_extent
from ..jit.launch import current_executor
from ..jit.params import WORK
from ..run import libraries
from ..run.runner import Ran
from ..run.warm import MISS, Calls, Remembered, remembered

if TYPE_CHECKING:
    from .call import GroupedCall

_BASES = ("a", "b", "out", "ends", WORK)


@dataclass(frozen=True)
class WarmGrouped:
    """What is the same for every call with one key."""

    launches: Remembered
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """Of a new result, in elements."""
    dtype: Any
    extents: tuple[int, ...]
    """Bytes from the address of a, b, offs and out to their ends."""


calls: Calls[WarmGrouped] = Calls()


def _key(library: libraries.Library, a: Any, b: Any, offs: Any, out: Any, options: tuple[Any, ...]) -> Any:
    return library.pair(a, b), library.signature(offs), out is not None and library.signature(out), options


def warm_grouped(a: Any, b: Any, offs: Any, out: Any, options: tuple[Any, ...]) -> Any:
    """The result, or MISS. `options`: out_dtype, rung and config."""
    library = libraries.known.get(type(a))
    if library is None or type(b) not in library.types or type(offs) not in library.types:
        return MISS
    try:
        call = calls.get(_key(library, a, b, offs, out, options))
    except (AttributeError, RuntimeError, TypeError):
        return MISS
    if call is None or current_executor() is not None:
        return MISS
    launches, address = call.launches, library.address
    if not library.is_plain(launches.ordinal):
        return MISS  # another GPU's context is current, say: the full path changes it for the launch
    inputs = address(a), address(b), address(offs)
    if out is None:
        result = library.new(call.shape, call.strides, call.dtype)
    else:
        result, at = out, address(out)
        end = at + call.extents[-1]
        if not all(end <= one or one + size <= at for one, size in zip(inputs, call.extents, strict=False)):
            return MISS  # the full path settles whether views overlap
        library.mark_written(out)
    held, work = library.scratch(launches.workspace_bytes) if launches.workspace_bytes else (None, 0)
    if not launches.start((*inputs[:2], address(result), inputs[2], work), (), library.stream(launches.ordinal)):
        return MISS
    del held  # given back now: the library's pool keeps it apart until the stream has passed
    return result


def remember(call: GroupedCall, result: Any, ran: Ran, options: tuple[Any, ...]) -> None:
    """Let later calls of this kind take the warm path."""
    library, ends = libraries.learn(call.a.kind), call.ends.operand
    views = (call.a, call.b, ends, call.out)
    if library is None or ends is None or any(step < 0 for view in views if view for step in view.strides):
        return
    arrays = (call.a.owner, call.b.owner, ends.owner)
    if any(type(x) not in library.types for x in (*arrays, result)):
        return
    try:
        key = _key(library, *arrays, call.given_out, options)
        hash(key)
    except (AttributeError, RuntimeError, TypeError):
        return
    shape = call.out.shape
    extents = tuple(high - low for low, high in (byte_extent(view) for view in views if view))
    launches = remembered(ran.ready, ran.ordinal, _BASES)
    calls.put(key, WarmGrouped(launches, shape, dense_strides(shape), result.dtype, extents))
