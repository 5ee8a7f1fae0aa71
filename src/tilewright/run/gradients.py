"""The differentiator of calls on tensors that want gradients, which registers itself here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import partial, wraps
from typing import Any, TypeVar

from ..arrays.loaded import loaded
from ..errors import InvalidOperand
from ..jit.launch import current_executor
from . import frameworks

Function = TypeVar("Function", bound=Callable[..., Any])
_differentiable: dict[str, Callable[..., Any]] = {}
_untraced: dict[str, Callable[..., Any]] = {}


def register(name: str, function: Callable[..., Any]) -> None:
    """Let `function` carry out calls of `name` on tensors that require a gradient, and those that torch.compile
    follows."""
    _differentiable[name] = function


def register_untraced(name: str, function: Callable[..., Any]) -> None:
    """Let `function`, which is `name` as torch.compile leaves it alone, carry out calls that it cannot follow."""
    _untraced[name] = function


def breaks_graphs(function: Function) -> Function:
    """Let torch.compile leave calls of `function` alone."""

    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        if traced(args[0] if args else None):
            _load()
            return _untraced[function.__name__](*args, **options)
        return function(*args, **options)

    return call  # type: ignore[return-value]


def traced(array: Any) -> bool:
    """Return whether torch.compile follows a call on this tensor: it can follow the operators that give gradients, but
    no launches."""
    torch = sys.modules.get("torch")
    # while another thread imports torch, names are missing
    follows = getattr(getattr(torch, "compiler", None), "is_dynamo_compiling", None)
    return follows is not None and follows() and isinstance(array, torch.Tensor)  # type: ignore[union-attr]


def wanted(arrays: Iterable[Any]) -> bool:
    """Return whether one of them is a torch tensor that requires a gradient, and gradients are on, where kernels
    run."""
    torch = loaded("torch")
    if torch is None or not torch.is_grad_enabled():
        return False
    tensors = [x for x in arrays if isinstance(x, torch.Tensor)]
    return any(x.requires_grad for x in tensors) and (tensors[0].is_cuda or current_executor() is not None)


def recorded(array: Any) -> bool:
    """Return whether torch.jit.trace or make_fx records what is done with this tensor: operators, and no launches."""
    torch = loaded("torch")
    if torch is None or not isinstance(array, torch.Tensor):
        return False
    from ..arrays import eager  # it imports torch

    return eager.is_recorded()


def _load() -> None:
    """Let torch's room register itself."""
    if not _differentiable:
        frameworks.load("torch")


# What torch.compiler.assume_constant_result sets, without torch: torch.compile runs it, since it cannot follow imports.
_load._dynamo_marked_constant = True  # type: ignore[attr-defined]


def differentiable(name: str, unsupported: dict[str, Any], traced: bool) -> Callable[..., Any]:
    """Return what carries out calls of `name` with gradients, or as operators where they are `traced`.

    `unsupported`: the options that neither has, with their values. With one of them a traced call breaks the graph and
    runs as it would without torch.compile. Raises InvalidOperand where gradients are asked for, or torch records.
    """
    _load()
    asked = {option: value for option, value in unsupported.items() if value is not None and value is not False}
    if not asked:
        return _differentiable[name]
    if traced:
        return partial(_untraced[name], **asked)
    raise InvalidOperand(
        f"{next(iter(asked))} is not supported where an operand requires a gradient, or torch.jit.trace or make_fx "
        f"records the call. Omit it, or call {name} on detached tensors or under torch.no_grad(), outside of a record."
    )
