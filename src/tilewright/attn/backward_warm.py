"""The warm path of attention's gradients: a call of a kind seen before, at little host time (run/warm.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..arrays.dlpack import dense_strides
from ..jit.launch import current_executor
from ..jit.params import WORK, number_names
from ..run import libraries
from ..run.runner import Ran
from ..run.warm import MISS, Calls, Remembered, remembered
from .warm import _stays

if TYPE_CHECKING:
    from .backward_call import BackwardCall

_INPUTS = ("grad", "q", "k", "v", "out", "lse", "grad_lse", "bias", "starts_q", "starts_k")
_BASES = (*_INPUTS, "dq", "dk", "dv", WORK)


@dataclass(frozen=True)
class WarmBackward:
    """What is the same for every call with one key."""

    launches: Remembered
    results: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    """Shape and strides of dq, dk and dv, in elements."""
    dtype: Any


calls: Calls[WarmBackward] = Calls()


def _key(library: libraries.Library, given: tuple[Any, ...], options: tuple[Any, ...]) -> Any:
    grad, q, k, *rest = given
    signature = library.signature
    return library.pair(q, k), signature(grad), tuple([x is not None and signature(x) for x in rest]), options


def find(given: tuple[Any, ...], options: tuple[Any, ...]) -> WarmBackward | None:
    """The remembered call of arrays that lie so, if there is one. Arguments as of warm_backward."""
    library = libraries.known.get(type(given[1]))
    return None if library is None else calls.get(_key(library, given, options))


def repeat(call: WarmBackward, given: tuple[Any, ...]) -> Any:
    """(dq, dk, dv) of grad, q, k, v, out and the LSE that lie as the call's did and are all it reads; MISS where this
    thread cannot launch it at once."""
    library = libraries.known[type(given[0])]
    address, launches = library.address, call.launches
    if current_executor() is not None or not library.is_plain(launches.ordinal):
        return MISS
    results = [library.new(shape, strides, call.dtype) for shape, strides in call.results]
    held, work = library.scratch(launches.workspace_bytes)
    bases = (*map(address, given), 0, 0, 0, 0, *map(address, results), work)
    if not launches.start(bases, (), library.stream(launches.ordinal)):
        return MISS
    del held  # given back now: the library's pool keeps it apart until the stream has passed
    return results


def warm_backward(given: tuple[Any, ...], options: tuple[Any, ...], numbers: tuple[float, ...]) -> Any:
    """(dq, dk, dv), or MISS. `given`: the arrays of _INPUTS, None for those that are not there; `numbers`: those of the
    function of a score, whose code is among the options."""
    library = libraries.known.get(type(given[1]))
    if library is None:
        return MISS
    types = library.types
    if not all(x is None or type(x) in types for x in given):
        return MISS
    try:
        call = calls.get(_key(library, given, options))
    except (AttributeError, RuntimeError, TypeError):
        return MISS
    if call is None or current_executor() is not None or not library.is_plain(call.launches.ordinal):
        return MISS
    address, launches = library.address, call.launches
    results = tuple([library.new(shape, strides, call.dtype) for shape, strides in call.results])
    held, work = library.scratch(launches.workspace_bytes)
    bases = (*[0 if x is None else address(x) for x in given], *map(address, results), work)
    if not launches.start(bases, numbers, library.stream(launches.ordinal)):
        return MISS
    del held  # given back now: the library's pool keeps it apart until the stream has passed
    return results


def remember(
    call: BackwardCall, results: tuple[Any, ...], ran: Ran, given: tuple[Any, ...], options: tuple[Any, ...]
) -> None:
    """Let later calls of this kind take the warm path."""
    library = libraries.learn(call.first.kind)
    if library is None or not all(x is None or type(x) in library.types for x in given):
        return
    if call.problem is None or not all(map(_stays, options)):
        return
    try:
        key = _key(library, given, options)
        hash(key)
    except (AttributeError, RuntimeError, TypeError):  # a window that is a list
        return
    numbers = number_names(len(call.problem.forward.numbers))
    calls.put(
        key,
        WarmBackward(
            remembered(ran.ready, ran.ordinal, _BASES, numbers),
            tuple((shape, dense_strides(shape)) for shape in call.shapes), results[0].dtype,
        ),
    )  # fmt: skip
