"""Tests of a call on torch's tensors: can it go past torch's dispatcher, straight to a kernel, and has it gradients?"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from ..jit.launch import current_executor

PLAIN = (torch.Tensor, torch.nn.Parameter)
_dispatch_modes = torch._C._len_torch_dispatch_stack
_is_traced = torch._C._is_tracing
_is_followed = torch.compiler.is_dynamo_compiling
_is_graded = torch.is_grad_enabled
_autocasts: Callable[[], bool] = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)
_has_storage = torch._C._has_storage


def is_watched() -> bool:
    """Return whether torch compiles or records, or a dispatch mode is active (fake tensors, counters)."""
    return bool(torch.compiler.is_compiling() or _dispatch_modes() or is_recorded())


def is_recorded() -> bool:
    """Return whether torch.jit.trace or make_fx records operators: a launch would be missing from the record."""
    mode = getattr(sys.modules.get("torch.fx.experimental.proxy_tensor"), "get_proxy_mode", None)
    return bool(_is_traced() or (mode is not None and mode() is not None))


def is_out_of_the_way() -> bool:
    """Return whether a call may be one like those of late (run/lately.py): what guards do not see is not there.

    That is torch.compile, dispatch modes of torch's own, dual numbers, and autocast, for calls that would be cast.
    """
    return not (_is_followed() or _dispatch_modes() or _autocasts() or getattr(forward_ad, "_current_level", 0) >= 0)


def is_backward_seen() -> bool:
    """Return whether a backward pass is to be differentiated again, or is watched."""
    return bool(_is_graded() or _is_followed() or _dispatch_modes() or _is_traced())


def is_eager(tensors: Sequence[torch.Tensor]) -> bool:
    """Return whether nothing traces, watches or wraps these tensors, all of them in memory of GPUs or all of the
    host's.

    False while torch compiles or traces, inside a dispatch mode (fake tensors, make_fx, counters of operations), for
    subclasses, for tensors without memory (meta tensors, and those of torch.autograd.grad(is_grads_batched=True)), and
    for lazily negated views, such as a gradient that comes through a conjugate: the dispatcher writes them out.
    """
    if is_watched():
        return False
    on_gpu = tensors[0].is_cuda
    for x in tensors:
        if type(x) not in PLAIN or not (x.is_cuda if on_gpu else x.is_cpu) or not _has_storage(x) or x.is_neg():
            return False
    return True


def runs_here(x: torch.Tensor) -> bool:
    """Return whether kernels can take x: it is on a GPU, or an emulator is in force for the host's tensors. What
    torch.compile traces is for a GPU: it cannot ask for an emulator."""
    return x.is_cuda or (not torch.compiler.is_compiling() and x.is_cpu and current_executor() is not None)


def as_autocast_does(x: torch.Tensor) -> torch.Tensor:
    """x in the type of torch.autocast, which leaves float64 alone."""
    return x if x.dtype == torch.float64 else x.to(torch.get_autocast_dtype(x.device.type))


def wants_gradients(tensors: Sequence[torch.Tensor]) -> bool:
    """Return whether a result of these is to be differentiated."""
    return torch.is_grad_enabled() and torch._C._any_requires_grad(*tensors)


def past_transforms(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """`function.apply`, for callers who know that no transform of torch.func is active and no operand is one's.

    What is left out is apply's search for them: a third of its time.
    """
    found = getattr(super(torch.autograd.Function, function), "apply", None)
    return found if found is not None else function.apply


def call_backward_itself(function: type[torch.autograd.Function]) -> None:
    """Let the engine call `function.backward`, not a method of torch's that looks for it in two steps each time."""
    made = getattr(function, "_backward_cls", None)
    if callable(getattr(made, "apply", None)):
        made.apply = function.backward  # type: ignore[union-attr]


def is_batched(x: torch.Tensor) -> bool:
    """Return whether x is a batch in disguise, of torch.autograd.grad(is_grads_batched=True): torch then runs each
    operator once for each of it, but not those that take a list of tensors."""
    return type(x) is torch.Tensor and not _has_storage(x)
