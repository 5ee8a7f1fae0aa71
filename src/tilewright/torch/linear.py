"""A linear layer by tilewright's kernels, and the surgery that puts it into a model."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch.nn import functional

from ..errors import InvalidOperand
from .matmul import matmul

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
}
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, activation: str | None = None
) -> torch.Tensor:
    """activation(x @ weight.T + bias), with gradients.

    x [..., in_features]; weight [out_features, in_features]; bias [out_features]; activation: None, "relu", "gelu",
    "gelu_tanh" or "silu". Bias is added inside the kernel, in float32. Under torch.autocast operands are cast as
    torch.nn.functional.linear would. CPU tensors and other dtypes take torch's own, said once by a warning.
    Raises InvalidOperand for an unknown activation, and as tilewright.matmul does.
    """
    if activation is not None and activation not in ACTIVATIONS:
        raise InvalidOperand(f"activation {activation!r} is not known. There are: {', '.join(ACTIVATIONS)}.")
    if x.is_cuda and torch.is_autocast_enabled("cuda"):
        dtype = torch.get_autocast_dtype("cuda")
        x, weight = x.to(dtype), weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
    if not x.is_cuda or x.dtype not in _DTYPES:
        if not torch.compiler.is_compiling():
            warnings.warn(
                f"tilewright has no kernel for {x.dtype} on {x.device.type}; torch's own linear runs instead.",
                stacklevel=2,
            )
        result = functional.linear(x, weight, bias)
    else:
        result = matmul(x, weight.t(), c=bias)
    return result if activation is None else ACTIVATIONS[activation](result)


class Linear(torch.nn.Linear):
    """torch.nn.Linear, multiplied by tilewright: the same parameters, state dict and representation."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """input [..., in_features] -> [..., out_features]."""
        return linear(input, self.weight, self.bias)


def replace_linears(model: torch.nn.Module, where: Callable[[str, torch.nn.Linear], bool] | None = None) -> int:
    """Make every torch.nn.Linear of `model`, itself included, a `Linear`, in place; returns how many there were.

    `where(name, module)` chooses. Parameters, tied weights, hooks, buffers, training mode and device stay what they
    are: only a module's class changes. Subclasses of nn.Linear are left alone, since they may compute something else.
    """
    count = 0
    for name, module in model.named_modules():
        if type(module) is torch.nn.Linear and (where is None or where(name, module)):
            module.__class__ = Linear
            count += 1
    return count
