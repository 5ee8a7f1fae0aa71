"""A traced expression computed by NumPy in float64: the reference for a kernel's result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .numbers import NUMBER
from .ops import OPS
from .trace import Node

Array = np.ndarray[Any, Any]


def evaluate(
    nodes: Sequence[Node], acc: Array, inputs: Mapping[str, Array], numbers: Sequence[float] = ()
) -> tuple[Array, float]:
    """Return the result, and the largest finite magnitude among the values that depend on the sum; both in float64.

    acc: the sums, float64. inputs: arrays that broadcast to them, by name: operands in float64, indices as integers.
    numbers: the expression's.
    Values that are not finite stay as they are, without a warning.
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
            elif op == NUMBER:
                found = numbers[value]
            else:
                found = OPS[op].numpy(*(values[arg] for arg in args))
            values.append(found)
            depends.append(op == "sum" or any(depends[arg] for arg in args))
            if depends[-1]:
                size = np.abs(np.asarray(found, np.float64))
                largest = max(largest, float(size.max(initial=0.0, where=np.isfinite(size))))
    return np.broadcast_to(np.asarray(values[-1], np.float64), acc.shape), largest
