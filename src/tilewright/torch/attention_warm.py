"""Attention's eager calls like earlier ones: no option is read and no view is made, forward or backward.

What attn/warm.py remembers is kept a second time under what a caller of torch's signature says, and with results that
lie as q does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..attn import warm
from ..attn.backward_score import differentiable
from ..attn.score import modification_of
from ..run import libraries
from ..run.lately import MOST_WAYS, Lately
from ..run.warm import MISS, Calls, WarmCall

_CODE = modification_of(None).code
_SLOPE = differentiable(None).slope


class Gradients(NamedTuple):
    """The launches that made gradients of a known call before."""

    lie_so: Callable[..., bool]
    """Whether q, k, v, the gradient, the result and the LSE lie as theirs did (libraries.lying_as)."""
    low: list[int]
    """The low bits of their addresses."""
    deterministic: bool
    call: WarmCall


@dataclass(eq=False)
class Known:
    """A call that was made before."""

    options: Any
    """attention_gradient.Options."""
    call: WarmCall
    """It gives the LSE too where a gradient is wanted."""
    wanted: bool
    """Whether a gradient is."""
    gradients: tuple[Gradients, ...] = ()
    """For the ways in which gradients of its result lay of late. What it holds goes with it when tables change."""


_forward: Calls[Known] = Calls()
_lately: Lately[Known] = Lately()
_deterministic: Callable[[], bool] = getattr(
    torch._C, "_get_deterministic_algorithms", torch.are_deterministic_algorithms_enabled
)


def find(q: Any, k: Any, v: Any, asked: tuple[Any, ...], only_lately: bool = False) -> Known | None:
    """The call that was made with `asked` of tensors that lie so, if it is known. Whether a gradient is wanted is in
    the tensors' signatures. `only_lately`: of calls like those of late, which are told by guards."""
    library = libraries.known.get(type(q))
    if not isinstance(library, libraries.TorchArrays):
        return None
    if type(k) not in library.types or type(v) not in library.types:
        return None
    try:
        ways = _lately.of((q.numel(), k.numel(), library.is_graded(), asked))
        known = ways.find(q, k, v)
        if known is None and not only_lately:
            known = _forward.get((library.pair(q, k), library.signature(v), asked))
            ways.note(known, q, k, v)
        return known
    except (RuntimeError, TypeError):  # no memory of its own; a number that is a tensor
        return None


def remember(q: Tensor, k: Tensor, v: Tensor, out: Tensor, asked: tuple[Any, ...], options: Any, lse: bool) -> None:
    """Let later calls like the one just made be found. `lse`: whether its gradient is wanted."""
    try:
        library = libraries.known[type(q)]
        outside = out.stride(1) < out.stride(2) and out.shape[1] > 1 and out.shape[2] > 1
        given, out_given = ((q, k, v), None) if not outside else ([x.transpose(1, 2) for x in (q, k, v)], out)
        words = options.words()
        with torch.no_grad():  # as it was called
            found = warm.calls.find(
                (*given, None, None, None, None, None),
                (
                    words["is_causal"], words["scale"], words["window"], words["softcap"],
                    "bshd" if outside else "bhsd", lse, None, None, None, None, _CODE, False,
                ),
                None if out_given is None else out_given.transpose(1, 2),
            )  # fmt: skip
        if found is None or not {type(k), type(v)} <= {*library.types}:
            return
        like_out = (tuple(out.shape), out.stride(), out.dtype)
        call = replace(found, results=(like_out, *found.results[1:]))
        _forward.put((library.pair(q, k), library.signature(v), asked), Known(options, call, len(call.results) == 2))
    except (AttributeError, KeyError, RuntimeError, TypeError):
        return


def gradients(known: Known, grad: Tensor, saved: tuple[Tensor, ...]) -> Any:
    """(dq, dk, dv) of q, k, v, out and the LSE, which were `saved`, or MISS."""
    q, k, v, out, lse = saved
    try:
        given = [q.data_ptr(), k.data_ptr(), v.data_ptr(), grad.data_ptr(), out.data_ptr(), lse.data_ptr()]
    except RuntimeError:  # no memory: a batch of gradients in disguise, say
        return MISS
    deterministic, low = _deterministic(), [one & 15 for one in given]
    for way in known.gradients:
        # what torch.autograd.graph.saved_tensors_hooks gave back may lie otherwise than what was saved
        if way.low == low and way.deterministic is deterministic and way.lie_so(q, k, v, grad, out, lse):
            return way.call.run(given)
    return MISS


def remember_gradients(known: Known, grad: Tensor, saved: tuple[Tensor, ...], results: tuple[Tensor, ...]) -> None:
    """Let later gradients like those just made be found."""
    try:
        q, k, v, out, lse = saved
        given = (q, k, v, grad, out, lse)
        outside = q.stride(1) < q.stride(2) and q.shape[1] > 1 and q.shape[2] > 1
        q, k, v, turned, out = (x.transpose(1, 2) for x in (q, k, v, grad, out)) if outside else (q, k, v, grad, out)
        words = known.options.words()
        found = warm.backward_calls.find(
            (q, k, v, None, None, None, turned, out, lse, None),
            (
                words["is_causal"], words["scale"], words["window"], words["softcap"], "bshd" if outside else "bhsd",
                _deterministic(), None, None, _CODE, _SLOPE,
            ),
        )  # fmt: skip
        if found is None:
            return
        laid = tuple((tuple(x.shape), x.stride(), x.dtype) for x in results)
        low = [one.data_ptr() & 15 for one in given]
        way = Gradients(libraries.lying_as(*given), low, _deterministic(), replace(found, results=laid))
        known.gradients = (way, *known.gradients[: MOST_WAYS - 1])
    except (AttributeError, KeyError, RuntimeError, TypeError):
        return
