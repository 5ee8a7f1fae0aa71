"""A linear layer by tilewright's kernels, and the surgery that puts it into a model."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional

from ..arrays.eager import as_autocast_does, runs_here
from ..arrays.scalar import flag
from ..errors import InvalidOperand
from ..gemm.problem import check_precision
from ..words import Activation, Precision
from .layer import DTYPES, again, at_once
from .matmul import matmul
from .transforms import check_tensors, transforms_active

_torchs = functional.linear
"""Torch's own, whatever stands in its place later."""
ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}
"""What tilewright fuses, as torch computes it."""


def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, activation: Activation | None = None,
    residual: torch.Tensor | None = None, *, out_dtype: torch.dtype | None = None, precision: Precision = "ieee",
    deterministic: bool = False, batch_invariant: bool = False,
) -> torch.Tensor:  # fmt: skip
    """activation(x @ weight.T + bias) + residual, in one kernel, with gradients.

    x [..., in_features]; weight [out_features, in_features]; bias [out_features]; activation: None, "relu", "gelu",
    "gelu_tanh", "silu", "sigmoid" or "tanh"; residual broadcasts to the result. Bias, activation and residual are
    computed inside the kernel, in float32, before the result is rounded to out_dtype, by default x's. precision,
    deterministic, batch_invariant: as tilewright.torch.matmul has them. Under torch.autocast operands are cast as
    torch.nn.functional.linear would. CPU tensors, nested ones, other dtypes and torch.func's transforms take torch's
    own, which knows nothing of these three; a warning says so once. Raises InvalidOperand for an unknown activation,
    and as tilewright.matmul does.
    """
    _check_activation(activation)
    check_tensors("tilewright.torch.linear", x, weight, optional=(bias, residual))
    here = runs_here(x)
    if here and torch.is_autocast_enabled(x.device.type):
        x, weight = as_autocast_does(x), as_autocast_does(weight)
        bias = None if bias is None else as_autocast_does(bias)
    if out_dtype is None and residual is None and not torch.compiler.is_compiling() and x.is_cuda:
        result = at_once(x, weight, bias, activation, (None, deterministic, batch_invariant, None, None, precision))
        if result is not None:
            return result
    if x.is_nested:
        why = "nested tensors"
    elif not torch.compiler.is_compiling() and transforms_active():
        why = "torch.func's transforms and forward-mode derivatives"
    elif here and x.dtype in DTYPES:
        return matmul(
            x, weight.t(), bias=bias, activation=activation, residual=residual, out_dtype=out_dtype,
            precision=precision, deterministic=deterministic, batch_invariant=batch_invariant,
        )  # fmt: skip
    else:
        why = f"{x.dtype} on {x.device.type}"
    if not torch.compiler.is_compiling():
        check_precision(precision, "f32")
        deterministic, batch_invariant = promised(deterministic, batch_invariant)
        unkept = {"precision": precision != "ieee", "deterministic": deterministic, "batch_invariant": batch_invariant}
        names = ", ".join(name for name, asked in unkept.items() if asked)
        warnings.warn(
            f"tilewright has no kernel for {why}; torch's own linear runs instead"
            f"{f', without {names}' if names else ''}.",
            stacklevel=2,
        )
    result = _torchs(x, weight, bias)
    if activation is not None:
        result = ACTIVATIONS[activation](result)
    result = result if residual is None else result + residual
    return result if out_dtype is None else result.to(out_dtype)


def _check_activation(activation: Any) -> None:
    if activation is not None and (not isinstance(activation, str) or activation not in ACTIVATIONS):
        raise InvalidOperand(f"activation {activation!r} is not known. There are: {', '.join(ACTIVATIONS)}.")


def promised(deterministic: bool, batch_invariant: bool) -> tuple[bool, bool]:
    """Both as True or False. Raises InvalidOperand for what is neither."""
    return flag(deterministic, "deterministic"), flag(batch_invariant, "batch_invariant")


OWN = ("activation", "precision", "deterministic", "batch_invariant")
"""What a `Linear` has besides what torch's has."""
torch.fx.wrap("linear")  # one node of what torch.fx.symbolic_trace makes of a model


class Linear(nn.Linear):
    """torch.nn.Linear, multiplied by tilewright: the same parameters, state dict and representation.

    `activation`, None or a name that `linear` knows, is computed in the same kernel. `precision`, `deterministic` and
    `batch_invariant` are what `linear` takes.
    """

    activation: Activation | None = None
    precision: Precision = "ieee"
    deterministic: bool = False
    batch_invariant: bool = False

    def __init__(
        self, *args: Any, activation: Activation | None = None, precision: Precision = "ieee",
        deterministic: bool = False, batch_invariant: bool = False, **kwargs: Any,
    ) -> None:  # fmt: skip
        """See torch.nn.Linear. Raises InvalidOperand for an unknown activation or precision."""
        super().__init__(*args, **kwargs)
        _check_activation(activation)
        self.activation = activation
        self._promise(precision, deterministic, batch_invariant)

    def _promise(self, precision: Precision, deterministic: bool, batch_invariant: bool) -> None:
        check_precision(precision, "f32")
        self.precision = precision
        self.deterministic, self.batch_invariant = promised(deterministic, batch_invariant)

    def promises_nothing(self) -> bool:
        """Return whether it is a bare product: no bias, activation, precision or order of its own."""
        return self.bias is None and all(getattr(self, name) == getattr(Linear, name) for name in OWN)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """input [..., in_features] -> [..., out_features]."""
        options = (None, self.deterministic, self.batch_invariant, None, None, self.precision)
        result = again(input, self.weight, self.bias, self.activation, options)
        if result is not None:
            return result
        return linear(
            input, self.weight, self.bias, self.activation, precision=self.precision,
            deterministic=self.deterministic, batch_invariant=self.batch_invariant,
        )  # fmt: skip

    def extra_repr(self) -> str:
        own = {name: getattr(self, name) for name in OWN}
        told = (f"{name}={value}" for name, value in own.items() if value != getattr(Linear, name))
        return ", ".join((super().extra_repr(), *told))


def replace_linears(
    model: nn.Module, where: Callable[[str, nn.Linear], bool] | None = None, *, fuse: bool = False,
    precision: Precision = "ieee", deterministic: bool = False, batch_invariant: bool = False,
) -> int:  # fmt: skip
    """Make every torch.nn.Linear of `model`, itself included, a `Linear`, in place; returns how many there were.

    `where(name, module)` chooses. Parameters, tied weights, hooks, buffers, training mode and device stay what they
    are: only a module's class changes. Subclasses of nn.Linear are left alone, since they may compute something else.

    fuse: where an nn.Sequential has ReLU, GELU, SiLU, Sigmoid or Tanh after such a layer, the layer computes it too
    and an nn.Identity takes its place. Left alone are layers that the model holds more than once, and layers and
    activations with hooks, which would see other values. What forward methods call themselves is not looked into.

    precision, deterministic, batch_invariant: what the replaced layers have of them. Raises InvalidOperand for an
    unknown precision, for a flag that is not True or False and for a model that is not a torch.nn.Module, before any
    layer is replaced.
    """
    if not isinstance(model, nn.Module):
        raise InvalidOperand(f"model is a {type(model).__name__}; replace_linears takes a torch.nn.Module.")
    check_precision(precision, "f32")
    deterministic, batch_invariant = promised(deterministic, batch_invariant)
    fuse, count = flag(fuse, "fuse"), 0
    for name, module in model.named_modules():
        if type(module) is nn.Linear and (where is None or where(name, module)):
            module.__class__ = Linear
            cast(Linear, module)._promise(precision, deterministic, batch_invariant)
            count += 1
    if fuse:
        times = Counter(id(module) for _, module in model.named_modules(remove_duplicate=False))
        for module in model.modules():
            if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
                _fuse_into(module, times)
    return count


def _fuse_into(layers: nn.Sequential, times: Counter[int]) -> None:
    """Give each Linear the activation after it."""
    for place in range(len(layers) - 1):
        first, second = layers[place], layers[place + 1]
        name = name_of(second)
        if type(first) is not Linear or first.activation is not None or name is None:
            continue
        if times[id(first)] == 1 and not has_hooks(first) and not has_hooks(second):
            first.activation = name
            layers[place + 1] = nn.Identity()


def name_of(module: nn.Module) -> Activation | None:
    """The name of an activation that `linear` knows."""
    if type(module) is nn.GELU:
        return "gelu_tanh" if module.approximate == "tanh" else "gelu"
    names: dict[type, Activation] = {nn.ReLU: "relu", nn.SiLU: "silu", nn.Sigmoid: "sigmoid", nn.Tanh: "tanh"}
    return names.get(type(module))


def has_hooks(module: nn.Module) -> bool:
    """Return whether something looks at what goes in or comes out of a module."""
    return any(held for name, held in vars(module).items() if name.endswith("_hooks") and "state_dict" not in name)
