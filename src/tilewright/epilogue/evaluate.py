"""A traced expression computed by NumPy in float64: what a kernel's result is held against."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .trace import Node

Array = np.ndarray[Any, Any]


def _sigmoid(x: Array) -> Array:
    less = np.exp(-np.abs(x))  # never above 1, whatever x is
    return np.where(x >= 0, 1.0, less) / (1 + less)


def _gelu(x: Array) -> Array:
    return x / 2 * (1 + _erf(x / math.sqrt(2)))


def _gelu_tanh(x: Array) -> Array:
    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


_erf = np.vectorize(math.erf, otypes=[np.float64])

_FORMS: dict[str, Callable[..., Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv,
    "%": operator.mod, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq,
    "!=": operator.ne, "&": np.logical_and, "|": np.logical_or, "~": np.logical_not, "negative": operator.neg,
    "abs": np.abs, "to_float": np.float64, "where": np.where, "exp": np.exp, "log": np.log, "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x), "tanh": np.tanh, "erf": _erf, "sigmoid": _sigmoid,
    "silu": lambda x: x * _sigmoid(x), "relu": lambda x: np.maximum(x, 0), "gelu": _gelu,
    "gelu_tanh": _gelu_tanh, "maximum": np.maximum, "minimum": np.minimum,
}  # fmt: skip


def evaluate(nodes: Sequence[Node], acc: Array, inputs: Mapping[str, Array]) -> tuple[Array, float]:
    """(the result, the largest finite magnitude of a number on the way that depends on the sum), both in float64.

    acc: the sums, float64. inputs: arrays that broadcast to them, by name: operands in float64, indices as integers.
    What is not finite comes out as it is, without a warning.
    """
    values: list[Any] = []
    depends: list[bool] = []
    largest = 0.0
    with np.errstate(all="ignore"):
        for op, _, args, value in nodes:
            if op == "sum":
                found: Any = acc
            elif op == "input":
                found = inputs[value]
            elif op == "constant":
                found = value
            else:
                found = _FORMS[op](*(values[arg] for arg in args))
            values.append(found)
            depends.append(op == "sum" or any(depends[arg] for arg in args))
            if depends[-1]:
                size = np.abs(np.asarray(found, np.float64))
                largest = max(largest, float(size.max(initial=0.0, where=np.isfinite(size))))
    return np.broadcast_to(np.asarray(values[-1], np.float64), acc.shape), largest
