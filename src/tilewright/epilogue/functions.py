"""The functions of epilogue expressions, public as `tilewright.epilogue`. Errors are those of float32 results."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from .trace import BOOL, INT, Node, Traced, as_float, as_traced, operation, refuse


def exp(x: Any) -> Any:
    """e to the x: within 2 ulp."""
    return operation("exp", x)


def log(x: Any) -> Any:
    """Natural logarithm: within 1 ulp. -inf at 0, NaN below."""
    return operation("log", x)


def sqrt(x: Any) -> Any:
    """Square root, correctly rounded."""
    return operation("sqrt", x)


def rsqrt(x: Any) -> Any:
    """1 / sqrt(x): within 2 ulp."""
    return operation("rsqrt", x)


def tanh(x: Any) -> Any:
    """Hyperbolic tangent: within 2 ulp."""
    return operation("tanh", x)


def erf(x: Any) -> Any:
    """Error function: within 2 ulp."""
    return operation("erf", x)


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x)): within 4 ulp; 0 below 2^-126."""
    return operation("sigmoid", x)


def silu(x: Any) -> Any:
    """x * sigmoid(x): within 5 ulp; 0 below x = -87.3, where it is above -1.2e-36. NaN at -inf, as torch has it."""
    return operation("silu", x)


def relu(x: Any) -> Any:
    """The larger of x and 0; NaN stays NaN."""
    return operation("relu", x)


def gelu(x: Any) -> Any:
    """x/2 (1 + erf(x / sqrt 2)): within 2^-22 |x|. Its relative error grows for x < -2, where 1 + erf cancels. NaN at
    -inf, as torch has it."""
    return operation("gelu", x)


def gelu_tanh(x: Any) -> Any:
    """The usual approximation of gelu by tanh, computed as x sigmoid(2 u): within (8 + 4 |u|) ulp, u being its tanh's
    argument, sqrt(2/pi) (x + 0.044715 x^3). NaN at -inf, as torch has it."""
    return operation("gelu_tanh", x)


def maximum(a: Any, b: Any) -> Any:
    """The larger; NaN where either is, as numpy.maximum."""
    return operation("maximum", a, b)


def minimum(a: Any, b: Any) -> Any:
    """The smaller; NaN where either is, as numpy.minimum."""
    return operation("minimum", a, b)


def where(condition: Any, a: Any, b: Any) -> Any:
    """a where the condition (a comparison, or several joined by & | ~) holds, else b. Both are computed."""
    graph = next((value.graph for value in (condition, a, b) if isinstance(value, Traced)), None)
    if graph is None:
        raise refuse("where got no traced value", "Outside an epilogue use the functions of your array library.")
    chosen = as_traced(graph, condition, "where")
    if chosen.kind != BOOL:
        raise refuse("where's first argument is not a condition", "Compare: where(x != 0, a, b).")
    yes, no = as_traced(graph, a, "where"), as_traced(graph, b, "where")
    kind = INT if yes.kind == no.kind == INT else "float"
    if kind != INT:
        yes, no = as_float(yes, "where"), as_float(no, "where")
    return graph.add(Node("where", kind, (chosen.number, yes.number, no.number)))


ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "relu": relu, "gelu": gelu, "gelu_tanh": gelu_tanh, "silu": silu, "sigmoid": sigmoid, "tanh": tanh,
}  # fmt: skip
"""What matmul's `activation` names."""

UFUNCS: dict[str, Callable[..., Any]] = {
    "exp": exp, "log": log, "sqrt": sqrt, "tanh": tanh, "maximum": maximum, "minimum": minimum, "absolute": abs,
    "negative": operator.neg, "add": operator.add, "subtract": operator.sub, "multiply": operator.mul,
    "true_divide": operator.truediv, "divide": operator.truediv, "power": operator.pow, "less": operator.lt,
    "less_equal": operator.le, "greater": operator.gt, "greater_equal": operator.ge, "equal": operator.eq,
    "not_equal": operator.ne,
}  # fmt: skip
"""NumPy's functions that mean the same: its scalars call them in `np.float32(2) * acc`, callers in `np.exp(acc)`."""
