"""The calls that cannot be carried out on what they are given: told as an error.

Torch's function transforms cannot see through a kernel, and a tangent would be lost without a word.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad

from ..arrays.dtypes import DTYPE_NAMES, parse_dtype
from ..errors import InvalidOperand


def transforms_active() -> bool:
    """Return whether refuse_transforms might refuse: a transform or a level of dual numbers is active."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def check_tensors(name: str, *operands: Any) -> None:
    """Raises InvalidOperand for an operand that is neither None nor a tensor."""
    for x in operands:
        if x is not None and not isinstance(x, torch.Tensor):
            raise InvalidOperand(
                f"{name} takes torch tensors, and one of its operands is of type {type(x).__name__}. Pass "
                "torch.as_tensor(x) on the device of the others."
            )


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
