"""The differentiator of calls on tensors that want gradients: tilewright.torch registers itself here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from ..errors import InvalidOperand
from ..jit.launch import current_executor

_differentiable: dict[str, Callable[..., Any]] = {}


def register(name: str, function: Callable[..., Any]) -> None:
    """Let `function` carry out calls of `name` on tensors that require a gradient."""
    _differentiable[name] = function


def wanted(arrays: Iterable[Any]) -> bool:
    """Return whether one of them is a torch tensor that requires a gradient, and gradients are on, where kernels
    run."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.is_grad_enabled():
        return False
    tensors = [x for x in arrays if isinstance(x, torch.Tensor)]
    return any(x.requires_grad for x in tensors) and (tensors[0].is_cuda or current_executor() is not None)


def differentiable(name: str, unsupported: dict[str, bool]) -> Callable[..., Any]:
    """Return what carries out calls of `name` with gradients. `unsupported`: options that have none, and whether they
    were asked for. Raises InvalidOperand for one that was."""
    for option, asked in unsupported.items():
        if asked:
            raise InvalidOperand(
                f"{option} is not supported where an operand requires a gradient. Omit it, or call {name} on detached "
                "tensors or under torch.no_grad()."
            )
    if name not in _differentiable:
        import_module("tilewright.torch")
    return _differentiable[name]
