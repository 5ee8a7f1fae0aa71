"""The calls that torch's function transforms cannot see through: told as an error, since a tangent would be lost
without one."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad

from ..errors import InvalidOperand


def transforms_active() -> bool:
    """Return whether refuse_transforms might refuse: a transform or a level of dual numbers is active."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def refuse_transforms(name: str, *operands: Any) -> None:
    """Raises InvalidOperand inside torch.func's transforms, and for operands with a forward-mode tangent."""
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
