"""Norms of transformers' models by torch's own fused kernel: they are written as eight operations, most of them in
fp32."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import nn

from .said import body, says

_BODY = body("""
input_dtype = hidden_states.dtype
hidden_states = hidden_states.to(torch.float32)
variance = hidden_states.pow(2).mean(-1, keepdim=True)
hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
return self.weight * hidden_states.to(input_dtype)
""")
"""What Llama's norm and its kin say."""


@lru_cache(maxsize=256)
def _is_rms(forward: Any) -> bool:
    return says(forward, [["self", "hidden_states"]], [_BODY])


def forward(self: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    """The forward method of such a norm, rounded once. What torch compiles or casts runs as it is written."""
    weight, x = self.weight, hidden_states
    if torch.compiler.is_compiling() or torch.is_autocast_enabled(x.device.type) or weight.dtype != x.dtype:
        result: torch.Tensor = type(self).forward(self, x)
        return result
    return nn.functional.rms_norm(x, weight.shape, weight, self.variance_epsilon)


def fused_norm(module: nn.Module) -> Any:
    """`forward`, for a module that says what it computes; None for any other."""
    weight = getattr(module, "weight", None)
    fits = isinstance(weight, torch.Tensor) and weight.dim() == 1 and _is_rms(type(module).forward)
    return forward if fits else None
