"""The calls that cannot be carried out on what they are given: told as an error.

Torch's function transforms cannot see through a kernel, and a tangent would be lost without a word.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad

from ..arrays.dtypes import DTYPE_NAMES, parse_dtype
from ..arrays.scalar import scalar
from ..errors import InvalidOperand


def transforms_active() -> bool:
    """Return whether refuse_transforms might refuse: a transform or a level of dual numbers is active."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def check_tensors(name: str, *operands: Any, optional: tuple[Any, ...] = ()) -> None:
    """Raises InvalidOperand for an operand that is not a tensor; `optional` ones may be None."""
    for x in (*operands, *(one for one in optional if one is not None)):
        if not isinstance(x, torch.Tensor):
            raise InvalidOperand(
                f"{name} takes torch tensors, and one of its operands is of type {type(x).__name__}. Pass "
                "torch.as_tensor(x) on the device of the others."
            )


def refuse_learned(**scales: Any) -> None:
    """Raises InvalidOperand for numbers that require a gradient."""
    for name, number in scales.items():
        if isinstance(number, torch.Tensor) and number.requires_grad and torch.is_grad_enabled():
            raise InvalidOperand(f"{name} requires a gradient, and none would reach it. Pass {name}={name}.item().")


def number(value: Any, name: str) -> float:
    """A number as operators take it. Raises InvalidOperand for what is none, or requires a gradient."""
    if torch.compiler.is_compiling():
        refuse_learned(**{name: value})
    elif type(value) is not float:
        scalar(value, name)
    return float(value)


def torch_dtype(dtype: Any) -> torch.dtype | None:
    """An `out_dtype` as operators take it. Raises InvalidOperand for an unknown one."""
    if dtype is None or isinstance(dtype, torch.dtype):
        return dtype
    found: torch.dtype = getattr(torch, DTYPE_NAMES[parse_dtype(dtype)])
    return found


def refuse_transforms(name: str, *operands: Any) -> None:
    """Raises InvalidOperand inside torch.func's transforms, for operands with a forward-mode tangent, and as
    check_tensors does."""
    check_tensors(name, *operands)
    if torch._C._are_functorch_transforms_active():
        raise InvalidOperand(
            f"{name} is called inside one of torch.func's transforms (grad, vjp, jvp, jacrev, hessian, vmap), which "
            "cannot look into operators of other libraries. For gradients use backward() or torch.autograd.grad; "
            "instead of vmap pass batches, which broadcast."
        )
    if forward_ad._current_level < 0:  # no dual numbers anywhere
        return
    for x in operands:
        if torch.is_tensor(x) and forward_ad.unpack_dual(x).tangent is not None:
            raise InvalidOperand(
                f"{name} has no forward-mode derivative, and an operand of shape {tuple(x.shape)} has a tangent, which "
                "would be lost. Use torch.autograd.functional.jvp, which goes backward twice."
            )
