"""A gated feed-forward, down(activation(gate(x)) * up(x)), in eager mode.

Without gradients the gate multiplies in the epilogue of `up`. In training it is one step of autograd: what lies between
the products is one pass each way (gemm/gated.py), and the host pays for one node, not for six. What has to be seen,
cast or recorded by torch runs as three layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from ..arrays.eager import PLAIN, is_eager, is_watched, past_transforms, runs_here, wants_gradients
from ..errors import InvalidOperand
from ..gemm import gated
from ..gemm.matmul import matmul
from ..gemm.warm_layer import Repeat, WarmLayer, fused_product_of
from ..run import libraries
from ..run.warm import MISS, Calls
from .layer import DTYPES, gradients_of, layer_of, new_layer
from .linear import Linear, has_hooks, linear, name_of
from .said import body, says
from .transforms import check_tensors, transforms_active

ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu")
"""Those that can gate."""
_OPTIONS = (None, False, False, None, None, "ieee")


@dataclass(eq=False)
class _Layers:
    """What a call launches, as far as it was found before."""

    activation: str
    gate: WarmLayer
    """Its activation is in it where no gradient is wanted."""
    up: WarmLayer
    down: WarmLayer | None = None
    gated_up: Repeat | None = None
    """The product by `up` that multiplies by what the gate lets through."""


_calls: Calls[_Layers] = Calls()


def gated_mlp(
    x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor, activation: str = "silu"
) -> torch.Tensor:
    """(activation(x @ gate.T) * (x @ up.T)) @ down.T, with gradients, as Llama's feed-forward computes it.

    x [..., in_features]; gate and up [features, in_features], down [out_features, features]: of x's dtype; activation:
    "silu", "gelu", "gelu_tanh" or "relu". Dtypes, devices, autocast and torch.compile: as `linear`. Raises
    InvalidOperand for another activation, gate and up of two shapes, and as `linear` does.
    """
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise InvalidOperand(f"activation {activation!r} cannot gate. Those that can: {', '.join(ACTIVATIONS)}.")
    check_tensors("tilewright.torch.gated_mlp", x, gate, up, down)
    layers = None if torch.compiler.is_compiling() else _layers(x, gate, up, down, activation)
    if layers is None:
        return _by_layers(x, gate, up, down, activation)
    if wants_gradients((x, gate, up, down)):
        return _differentiable(x, gate, up, down, layers)
    return _by_products(x, gate, up, down, layers)


def _by_layers(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor, activation: Any) -> Any:
    if gate.shape != up.shape:
        raise InvalidOperand(
            f"gate {tuple(gate.shape)} and up {tuple(up.shape)} differ: both are [features, in_features]."
        )
    return linear(linear(x, gate, activation=activation) * linear(x, up), down)


def _layers(x: torch.Tensor, *rest: Any) -> _Layers | None:
    """The layers of a call that nothing has to see, cast or record; None for any other."""
    gate, up, down, activation = rest
    if not runs_here(x) or torch.is_autocast_enabled(x.device.type) or is_watched() or transforms_active():
        return None
    if not all(type(one) in PLAIN for one in (gate, up, down)):
        return None
    wanted, library = wants_gradients((x, gate, up, down)), libraries.known.get(type(x))
    key: Any = None
    found = None
    if library is not None:  # on a GPU, where one was used before
        try:
            key = library.pair(x, gate), library.signature(up), library.signature(down), activation, wanted
        except RuntimeError:  # no memory of its own
            return None
        found = _calls.get(key)
    if found is None:
        given = (x, gate, up, down)
        fits = x.dtype in DTYPES and all(one.dtype == x.dtype and one.dim() == 2 for one in given[1:])
        if not fits or not is_eager(given) or not gate.shape == up.shape == (down.shape[1], x.shape[-1]):
            return None  # three layers then say what is wrong
        inside = None if wanted else activation
        found = _Layers(activation, new_layer(x, gate, None, inside, _OPTIONS), new_layer(x, up, None, None, _OPTIONS))
        if key is not None:
            _calls.put(key, found)
    return found


def _times(acc: Any, shut: Any) -> Any:
    return acc * shut


def _by_products(
    x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor, layers: _Layers
) -> torch.Tensor:
    """The result without gradients: the second product's epilogue multiplies by the first."""
    shut = layer_of(layers.gate, x, gate)
    both = MISS if layers.gated_up is None else layers.gated_up(x, up, shut)
    if both is MISS:
        both = matmul(x, up.t(), epilogue=_times, shut=shut)
        layers.gated_up = fused_product_of(x, up, _times, {"shut": shut}, _OPTIONS)
    if layers.down is None:
        layers.down = new_layer(both, down, None, None, _OPTIONS)
    return layer_of(layers.down, both, down)


class TilewrightGated(torch.autograd.Function):
    """The feed-forward with gradients."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor, layers: _Layers
    ) -> torch.Tensor:
        inside, other = layer_of(layers.gate, x, gate), layer_of(layers.up, x, up)
        both = gated.gate(inside, other, layers.activation)
        if layers.down is None:
            layers.down = new_layer(both, down, None, None, _OPTIONS)
        ctx.save_for_backward(x, gate, up, down, inside, other, both)
        ctx.layers = layers
        return layer_of(layers.down, both, down)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        x, gate, up, down, inside, other, both = ctx.saved_tensors
        layers, needs = ctx.layers, ctx.needs_input_grad
        if torch.is_grad_enabled() or is_watched() or not is_eager((grad,)):
            return *_again(ctx, grad, (x, gate, up, down)), None
        to_x, to_gate, to_up, to_down = needs[:4]
        through = to_x or to_gate or to_up
        of_both, of_down = gradients_of(layers.down, grad, both if to_down else None, down if through else None)
        of_x = of_gate = of_up = None
        if through:
            of_inside, of_other = gated.gate_gradients(
                of_both, inside.contiguous(), other.contiguous(), layers.activation
            )  # saved_tensors_hooks may have laid them out otherwise
            of_x, of_gate = gradients_of(layers.gate, of_inside, x if to_gate else None, gate if to_x else None)
            more, of_up = gradients_of(layers.up, of_other, x if to_up else None, up if to_x else None)
            of_x = of_x.add_(more) if to_x else None
        return of_x, of_gate, of_up, of_down, None


_differentiable = past_transforms(TilewrightGated)


def _again(ctx: Any, grad: torch.Tensor, given: tuple[torch.Tensor, ...]) -> list[Any]:
    """The gradients by way of three layers, to be differentiated again, or to be seen."""
    asked = [n for n in range(4) if ctx.needs_input_grad[n]]
    create = torch.is_grad_enabled()
    leaves: list[torch.Tensor] = [one.view_as(one) if create else one.detach().requires_grad_() for one in given]
    with torch.enable_grad():
        result = _by_layers(leaves[0], leaves[1], leaves[2], leaves[3], ctx.layers.activation)
    found = iter(torch.autograd.grad(result, [leaves[n] for n in asked], grad, create_graph=create))
    return [next(found) if n in asked else None for n in range(4)]


# --- a model's modules ------------------------------------------------------------------------------------------------

_NAMES = {"SiLUActivation": "silu", "GELUTanh": "gelu_tanh", "PytorchGELUTanh": "gelu_tanh"}
"""Activations of transformers by their classes."""
_VALUE = "self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))"
_BODIES = [body(f"return {_VALUE}"), body(f"down_proj = {_VALUE}\nreturn down_proj")]
"""What Llama's feed-forward and its kin say."""


@lru_cache(maxsize=256)
def _is_gated(kind: Any) -> bool:
    return says(kind.forward, [["self", "x"]], _BODIES)


def fused_feed(module: nn.Module) -> Any:
    """A forward method by `gated_mlp`, for a module that is a gated feed-forward of three `Linear`s without biases or
    promises; None for any other."""
    kind: Any = type(module)
    if not _is_gated(kind):
        return None
    layers = [getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    inner = getattr(module, "act_fn", None)
    if not all(type(one) is Linear and one.promises_nothing() for one in layers) or not isinstance(inner, nn.Module):
        return None
    name = _NAMES.get(type(inner).__name__, name_of(inner))
    return _forward(name) if name in ACTIVATIONS and not has_hooks(inner) else None


@lru_cache(maxsize=len(ACTIVATIONS))
def _forward(activation: str) -> Any:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        layers = self.gate_proj, self.up_proj, self.down_proj
        if not torch.compiler.is_compiling():
            for one in layers:
                if (
                    type(one) is not Linear or one._forward_hooks or one._forward_pre_hooks or one._backward_hooks
                    or one._backward_pre_hooks
                ):  # fmt: skip
                    break
            else:
                return gated_mlp(x, layers[0].weight, layers[1].weight, layers[2].weight, activation)
        result: torch.Tensor = type(self).forward(self, x)
        return result

    return forward
