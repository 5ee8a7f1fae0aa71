"""The warm path of grouped products: a call of a kind seen before, at little host time (run/warm.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..arrays.dlpack import dense_strides
from ..arrays.extents import byte_extent
from ..gemm.params import fused_base
from ..jit.launch import current_executor
from ..jit.params import WORK
from ..run import libraries
from ..run.runner import Ran
from ..run.warm import MISS, Calls, Remembered, remembered

if TYPE_CHECKING:
    from .call import GroupedCall

_BASES = ("a", "b", "out", "ends", WORK)
_NONE = (None, None)


@dataclass(frozen=True)
class WarmGrouped:
    """What is the same for every call with one key."""

    launches: Remembered
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """Of a new result, in elements."""
    dtype: Any
    extents: tuple[int, ...]
    """Bytes from the address of a, b, offs, the scales and out to their ends."""
    scales: tuple[int, ...]
    """Which of a_scale and b_scale each array of scales is, in the order of the kernel's."""


calls: Calls[WarmGrouped] = Calls()


def _key(
    library: libraries.Library, a: Any, b: Any, offs: Any, out: Any, options: tuple[Any, ...], scales: tuple[Any, Any]
) -> Any:
    whole = library.pair(a, b), library.signature(offs), out is not None and library.signature(out), options
    if scales[0] is scales[1] is None:
        return whole
    return (*whole, *[scale if scale is None else library.signature(scale) for scale in scales])


def warm_grouped(
    a: Any, b: Any, offs: Any, out: Any, options: tuple[Any, ...], scales: tuple[Any, Any] = _NONE, alpha: float = 1.0
) -> Any:
    """The result, or MISS. `options`: out_dtype, rung and config; `scales`: those that are arrays, of a and b; `alpha`:
    those that are numbers."""
    library = libraries.known.get(type(a))
    if library is None or type(b) not in library.types or type(offs) not in library.types:
        return MISS
    if any(scale is not None and type(scale) not in library.types for scale in scales):
        return MISS
    try:
        call = calls.get(_key(library, a, b, offs, out, options, scales))
    except (AttributeError, RuntimeError, TypeError):
        return MISS
    if call is None or current_executor() is not None:
        return MISS
    launches, address = call.launches, library.address
    if not library.is_plain(launches.ordinal):
        return MISS  # another GPU's context is current, say: the full path changes it for the launch
    inputs = address(a), address(b), address(offs), *[address(scales[which]) for which in call.scales]
    if out is None:
        result = library.new(call.shape, call.strides, call.dtype)
    else:
        result, at = out, address(out)
        end = at + call.extents[-1]
        if not all(end <= one or one + size <= at for one, size in zip(inputs, call.extents, strict=False)):
            return MISS  # the full path settles whether views overlap
        library.mark_written(out)
    held, work = library.scratch(launches.workspace_bytes) if launches.workspace_bytes else (None, 0)
    bases = (*inputs[:2], address(result), inputs[2], work, *inputs[3:])
    if not launches.start(bases, (alpha,), library.stream(launches.ordinal)):
        return MISS
    del held  # given back now: the library's pool keeps it apart until the stream has passed
    return result


def remember(call: GroupedCall, result: Any, ran: Ran, options: tuple[Any, ...]) -> None:
    """Let later calls of this kind take the warm path."""
    library, ends = libraries.learn(call.a.kind), call.ends.operand
    given = call.scales.views
    views = (call.a, call.b, ends, *given, call.out)
    if call.problem.product.k == 0:  # scales that are numbers do not count there
        return
    if library is None or ends is None or any(step < 0 for view in views if view for step in view.strides):
        return
    arrays = (call.a.owner, call.b.owner, ends.owner)
    scales = {view.name: view.owner for view in given}
    if any(type(x) not in library.types for x in (*arrays, *scales.values(), result)):
        return
    try:
        key = _key(library, *arrays, call.given_out, options, (scales.get("a_scale"), scales.get("b_scale")))
        hash(key)
    except (AttributeError, RuntimeError, TypeError):
        return
    shape = call.out.shape
    extents = tuple(high - low for low, high in (byte_extent(view) for view in views if view))
    bases = (*_BASES, *(fused_base(number) for number in range(len(given))))
    launches = remembered(ran.ready, ran.ordinal, bases, ("alpha",))
    order = tuple("ab".index(view.name[0]) for view in given)
    calls.put(key, WarmGrouped(launches, shape, dense_strides(shape), result.dtype, extents, order))
