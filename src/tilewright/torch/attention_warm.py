"""Attention's eager calls like earlier ones: no option is read and no view is made, forward or backward.

What attn/warm.py remembers is kept a second time under what a caller of torch's signature says, and with results that
lie as q does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..attn import warm
from ..attn.backward_score import differentiable
from ..attn.score import modification_of
from ..run import libraries
from ..run.warm import MISS, Calls, WarmCall

_CODE = modification_of(None).code
_SLOPE = differentiable(None).slope


@dataclass(frozen=True, eq=False)
class Known:
    """A call that was made before. Equal to itself alone, so that it is a quick part of a key."""

    options: Any
    """attention_gradient.Options."""
    call: WarmCall
    """It gives the LSE too where a gradient is wanted."""
    laid: tuple[Any, ...]
    """How its operands, result and LSE lie (`_laid`); empty where no gradient is wanted."""


_forward: Calls[Known] = Calls()
_backward: Calls[WarmCall] = Calls()
_deterministic = torch.are_deterministic_algorithms_enabled


def find(q: Tensor, k: Tensor, v: Tensor, asked: tuple[Any, ...]) -> Known | None:
    """The call that was made with `asked` of tensors that lie so, if it is known. Whether a gradient is wanted is in
    the tensors' signatures."""
    library = libraries.known.get(type(q))
    if library is None or type(k) not in library.types or type(v) not in library.types:
        return None
    try:
        return _forward.get((library.pair(q, k), library.signature(v), asked))
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
        laid: tuple[Any, ...] = ()
        if len(call.results) == 2:  # both are new: at multiples of 16 bytes
            new = (one for shape, strides, dtype in call.results for one in (shape, strides, 0, dtype))
            laid = (*_laid(q), *_laid(k), *_laid(v), *new)
        _forward.put((library.pair(q, k), library.signature(v), asked), Known(options, call, laid))
    except (AttributeError, KeyError, RuntimeError, TypeError):
        return


def _laid(x: Tensor) -> tuple[Any, ...]:
    return x.shape, x.stride(), x.data_ptr() & 15, x.dtype


def _gradient_key(known: Known, grad: Tensor) -> Any:
    return known, grad.stride(), grad.data_ptr() & 15, grad.dtype, grad.is_neg(), _deterministic()


def gradients(known: Known, grad: Tensor, saved: tuple[Tensor, ...]) -> Any:
    """(dq, dk, dv) of q, k, v, out and the LSE, which were `saved`, or MISS."""
    q, k, v, out, lse = saved
    try:
        call = _backward.get(_gradient_key(known, grad))
        if call is None or (
            q.shape, q.stride(), q.data_ptr() & 15, q.dtype, k.shape, k.stride(), k.data_ptr() & 15, k.dtype,
            v.shape, v.stride(), v.data_ptr() & 15, v.dtype, out.shape, out.stride(), out.data_ptr() & 15, out.dtype,
            lse.shape, lse.stride(), lse.data_ptr() & 15, lse.dtype,
        ) != known.laid:  # fmt: skip
            return MISS  # what torch.autograd.graph.saved_tensors_hooks gave back may lie otherwise
    except RuntimeError:  # no memory: a batch of gradients in disguise, say
        return MISS
    library = libraries.known[type(grad)]
    return call.run(library, [library.address(one) for one in (q, k, v, grad, out, lse)])


def remember_gradients(known: Known, grad: Tensor, saved: tuple[Tensor, ...], results: tuple[Tensor, ...]) -> None:
    """Let later gradients like those just made be found."""
    try:
        key = _gradient_key(known, grad)
        q, k, v, out, lse = saved
        outside = q.stride(1) < q.stride(2) and q.shape[1] > 1 and q.shape[2] > 1
        if outside:
            grad, q, k, v, out = (x.transpose(1, 2) for x in (grad, q, k, v, out))
        words = known.options.words()
        found = warm.backward_calls.find(
            (q, k, v, None, None, None, grad, out, lse, None),
            (
                words["is_causal"], words["scale"], words["window"], words["softcap"], "bshd" if outside else "bhsd",
                _deterministic(), None, None, _CODE, _SLOPE,
            ),
        )  # fmt: skip
        if found is None or sum(map(_laid, saved), ()) != known.laid:
            return
        laid = tuple((tuple(x.shape), x.stride(), x.dtype) for x in results)
        _backward.put(key, replace(found, results=laid))
    except (AttributeError, RuntimeError, TypeError):
        return
