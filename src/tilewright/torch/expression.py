"""Recorded epilogues on torch tensors: their value, and their derivative, which is made of torch's own operations and
so has one too."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import torch
from torch.nn import functional

from ..ops.epilogue.recorded import Recorded
from ..ops.epilogue.trace import FLOAT, INT, Node

_FORWARD: dict[str, Callable[..., torch.Tensor]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv,
    "%": operator.mod, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq,
    "!=": operator.ne, "&": operator.and_, "|": operator.or_, "~": operator.invert, "negative": operator.neg,
    "abs": torch.abs, "where": torch.where, "exp": torch.exp, "log": torch.log, "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt, "tanh": torch.tanh, "erf": torch.erf, "sigmoid": torch.sigmoid, "silu": functional.silu,
    "relu": torch.relu, "gelu": functional.gelu, "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "maximum": torch.maximum, "minimum": torch.minimum,
}  # fmt: skip


class Evaluation:
    """One expression over tensors that broadcast to `shape`. Operations are computed when they are first asked for.

    `product` gives the sum, which may take a product to make; `batch`, `rows` and `cols` say which axes `shape` has.
    """

    def __init__(
        self, expression: Recorded, product: Callable[[], torch.Tensor], operands: Mapping[str, torch.Tensor],
        shape: tuple[Any, ...], has_rows: bool, has_cols: bool, like: torch.Tensor,
    ) -> None:  # fmt: skip
        self.nodes = expression.nodes
        self._product, self._operands = product, operands
        self._shape, self._axes = shape, {"row": has_rows, "col": has_cols}
        self.dtype, self.device = compute_dtype(like), like.device
        self._values: dict[int, torch.Tensor] = {}

    @property
    def result(self) -> torch.Tensor:
        return self.value(len(self.nodes) - 1).expand(self._shape)

    def value(self, number: int) -> torch.Tensor:
        if number not in self._values:
            self._values[number] = self._compute(self.nodes[number])
        return self._values[number]

    def _compute(self, node: Node) -> torch.Tensor:
        if node.op == "sum":
            return self._product()
        if node.op == "input":
            if node.kind == FLOAT:
                return self._operands[node.value].to(self.dtype)
            return self._index(node.value)
        if node.op == "constant":
            dtype = {FLOAT: self.dtype, INT: torch.int64}.get(node.kind, torch.bool)
            return torch.full((), node.value, dtype=dtype, device=self.device)
        args = [self.value(arg) for arg in node.args]
        return args[0].to(self.dtype) if node.op == "to_float" else _FORWARD[node.op](*args)

    def _index(self, name: str) -> torch.Tensor:
        """An index along its axes of the result, and of one element along all others."""
        rows, cols = self._axes["row"], self._axes["col"]
        axes = len(self._shape) - rows - cols
        if name == "batch":
            sizes = list(self._shape[:axes])
            lies = [*sizes, *(1 for _ in self._shape[axes:])]
        elif not self._axes[name]:
            return torch.zeros((), dtype=torch.int64, device=self.device)
        else:
            sizes = [self._shape[axes if name == "row" else -1]]
            lies = [*sizes, 1] if name == "row" and cols else sizes
        return torch.arange(math.prod(sizes), device=self.device).view(lies)

    def gradients(self, grad: torch.Tensor) -> tuple[torch.Tensor | None, dict[str, torch.Tensor]]:
        """Of the sum and of each operand, of the result's shape and in the dtype of computation; None and left out
        where the result does not depend on it."""
        found: dict[int, torch.Tensor] = {len(self.nodes) - 1: grad.to(self.dtype)}
        of_sum, of_operands = None, {}
        for number in reversed(range(len(self.nodes))):
            if number not in found:
                continue
            node, here = self.nodes[number], found.pop(number)
            if node.op == "sum":
                of_sum = here
            elif node.op == "input":
                of_operands[node.value] = here
            elif node.op in _BACKWARD:
                step = _Step(self, number, here)
                for arg, part in zip(node.args, _BACKWARD[node.op](step), strict=True):
                    if part is not None and self.nodes[arg].kind == FLOAT:
                        found[arg] = found[arg] + part if arg in found else part
        return of_sum, of_operands


def compute_dtype(like: torch.Tensor) -> torch.dtype:
    """float32, as kernels compute; float64 for float64, which only the CPU's own path takes."""
    return torch.float64 if like.dtype == torch.float64 else torch.float32


class _Step:
    """One operation as its derivative sees it: g, the gradient of its result z, and its arguments x and y."""

    def __init__(self, values: Evaluation, number: int, grad: torch.Tensor) -> None:
        self._values, self._number, self.g = values, number, grad

    def arg(self, place: int) -> torch.Tensor:
        return self._values.value(self._values.nodes[self._number].args[place])

    @cached_property
    def x(self) -> torch.Tensor:
        return self.arg(0)

    @cached_property
    def y(self) -> torch.Tensor:
        return self.arg(1)

    @cached_property
    def z(self) -> torch.Tensor:
        return self._values.value(self._number)


def _larger(step: _Step, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """To the one of x and y that is larger; halves where they are equal, as torch has it."""
    to_x = torch.where(x == y, step.g / 2, torch.where(x > y, step.g, 0))
    return to_x, step.g - to_x


def _of_silu(grad: torch.Tensor, x: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    return grad * share * (1 + x * (1 - share))


_BACKWARD: dict[str, Callable[[_Step], tuple[torch.Tensor | None, ...]]] = {
    "+": lambda s: (s.g, s.g),
    "-": lambda s: (s.g, -s.g),
    "*": lambda s: (s.g * s.y, s.g * s.x),
    "/": lambda s: (s.g / s.y, -s.g * s.z / s.y),
    "negative": lambda s: (-s.g,),
    "abs": lambda s: (s.g * torch.sign(s.x),),
    "where": lambda s: (None, torch.where(s.x, s.g, 0), torch.where(s.x, 0, s.g)),
    "exp": lambda s: (s.g * s.z,),
    "log": lambda s: (s.g / s.x,),
    "sqrt": lambda s: (s.g / (2 * s.z),),
    "rsqrt": lambda s: (-0.5 * s.g * s.z**3,),
    "tanh": lambda s: (s.g * (1 - s.z * s.z),),
    "erf": lambda s: (s.g * (2 / math.sqrt(math.pi)) * torch.exp(-s.x * s.x),),
    "sigmoid": lambda s: (s.g * s.z * (1 - s.z),),
    "silu": lambda s: (_of_silu(s.g, s.x, torch.sigmoid(s.x)),),  # aten's own has no second derivative
    "relu": lambda s: (torch.where(s.x <= 0, 0, s.g),),
    "gelu": lambda s: (torch.ops.aten.gelu_backward(s.g, s.x, approximate="none"),),
    "gelu_tanh": lambda s: (torch.ops.aten.gelu_backward(s.g, s.x, approximate="tanh"),),
    "maximum": lambda s: _larger(s, s.x, s.y),
    "minimum": lambda s: _larger(s, -s.x, -s.y),
}
"""The gradients of an operation's arguments. What is not here is of integers or truth values, and has none."""
