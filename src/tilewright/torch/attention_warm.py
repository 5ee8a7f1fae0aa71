"""Attention's eager calls like earlier ones: no option is read and no view is made, forward or backward.

What attn/warm.py remembers is kept a second time under what a caller of torch's signature says, and with results that
lie as q does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..attn import backward_warm, warm
from ..attn.backward_score import differentiable
from ..attn.backward_warm import WarmBackward
from ..attn.score import modification_of
from ..attn.warm import WarmAttention
from ..run import libraries
from ..run.warm import MISS, Calls

_CODE = modification_of(None).code
_SLOPE = differentiable(None).slope


class Known(NamedTuple):
    """A call that was made before."""

    options: Any
    """attention_gradient.Options."""
    call: WarmAttention
    """It gives the LSE too where a gradient is wanted."""


_forward: Calls[Known] = Calls()
_backward: Calls[WarmBackward] = Calls()


def _forward_key(q: Tensor, k: Tensor, v: Tensor, asked: tuple[Any, ...]) -> Any:
    library = libraries.known.get(type(q))
    if library is None or type(k) not in library.types or type(v) not in library.types:
        return None
    return library.pair(q, k), library.signature(v), asked


def find(q: Tensor, k: Tensor, v: Tensor, asked: tuple[Any, ...]) -> Known | None:
    """The call that was made with `asked` of tensors that lie so, if it is known. Whether a gradient is wanted is in
    the tensors' signatures."""
    try:
        key = _forward_key(q, k, v, asked)
        return None if key is None else _forward.get(key)
    except (RuntimeError, TypeError):  # no memory of its own; a number that is a tensor
        return None


def remember(q: Tensor, k: Tensor, v: Tensor, out: Tensor, asked: tuple[Any, ...], options: Any, lse: bool) -> None:
    """Let later calls like the one just made be found. `lse`: whether its gradient is wanted."""
    try:
        key = _forward_key(q, k, v, asked)
        outside = out.stride(1) < out.stride(2) and out.shape[1] > 1 and out.shape[2] > 1
        given, out_given = ((q, k, v), None) if not outside else ([x.transpose(1, 2) for x in (q, k, v)], out)
        words = options.words()
        with torch.no_grad():  # as it was called
            found = warm.find(
                (*given, None, None if out_given is None else out_given.transpose(1, 2), None, None, None, None),
                (
                    words["is_causal"], words["scale"], words["window"], words["softcap"],
                    "bshd" if outside else "bhsd", lse, None, None, None, None, _CODE, False,
                ),
            )  # fmt: skip
        if key is None or found is None:
            return
        _forward.put(key, Known(options, replace(found, shape=tuple(out.shape), strides=out.stride())))
    except (AttributeError, RuntimeError, TypeError):
        return


def _backward_key(given: tuple[Tensor, ...], options: Any, deterministic: bool) -> Any:
    library = libraries.known.get(type(given[0]))
    if library is None:
        return None
    for x in given:
        if type(x) not in library.types:
            return None
    signature = library.signature
    return tuple([signature(x) for x in given]), options, deterministic


def gradients(given: tuple[Tensor, ...], options: Any) -> Any:
    """(dq, dk, dv) of grad, q, k, v, out and the LSE, or MISS."""
    try:
        key = _backward_key(given, options, torch.are_deterministic_algorithms_enabled())
        call = None if key is None else _backward.get(key)
    except (RuntimeError, TypeError):
        return MISS
    return MISS if call is None else backward_warm.repeat(call, given)


def remember_gradients(given: tuple[Tensor, ...], options: Any, results: tuple[Tensor, ...]) -> None:
    """Let later gradients like those just made be found."""
    try:
        deterministic = torch.are_deterministic_algorithms_enabled()
        key = _backward_key(given, options, deterministic)
        grad, q, k, v, out, lse = given
        outside = q.stride(1) < q.stride(2) and q.shape[1] > 1 and q.shape[2] > 1
        if outside:
            grad, q, k, v, out = (x.transpose(1, 2) for x in (grad, q, k, v, out))
        words = options.words()
        found = backward_warm.find(
            (grad, q, k, v, out, lse, None, None, None, None),
            (
                words["is_causal"], words["scale"], words["window"], words["softcap"], "bshd" if outside else "bhsd",
                deterministic, None, None, _CODE, _SLOPE,
            ),
        )  # fmt: skip
        if key is None or found is None:
            return
        laid = tuple((tuple(x.shape), x.stride()) for x in results)
        _backward.put(key, replace(found, results=laid))
    except (AttributeError, RuntimeError, TypeError):
        return
