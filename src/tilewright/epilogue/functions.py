"""The functions of epilogue expressions, made from the table; public in `tilewright.epilogue`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .ops import OPS, Op
from .trace import apply


def function_of(op: Op) -> Callable[..., Any]:
    """The function that puts the operation into a trace. Its parameters have names: callers may use them."""
    name = op.name

    def of_one(x: Any) -> Any:
        return apply(name, x)

    def of_two(a: Any, b: Any) -> Any:
        return apply(name, a, b)

    def of_three(condition: Any, a: Any, b: Any) -> Any:
        return apply(name, condition, a, b)

    function: Callable[..., Any] = (of_one, of_two, of_three)[op.arity - 1]
    function.__name__ = function.__qualname__ = name
    function.__doc__ = op.doc
    return function


FUNCTIONS: dict[str, Callable[..., Any]] = {op.name: function_of(op) for op in OPS.values() if op.doc}
"""The functions that users call, by name."""

ACTIVATIONS = {op.name: FUNCTIONS[op.name] for op in OPS.values() if op.activation}
"""The functions that matmul's `activation` may name."""
