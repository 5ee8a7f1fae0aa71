"""The derivative of a recorded epilogue, as expressions of the same kind.

So it can be what the epilogues are: part of a product's kernel, which then writes the gradient of the sum and nothing
else, and differentiable itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from .expression import INDICES
from .functions import erf, exp, minimum, sigmoid, where
from .recorded import Recorded, write
from .trace import FLOAT, Graph, Node, Traced


@dataclass(frozen=True, eq=False)
class Derivative:
    """What arrives at the sum and at each operand when `grad` arrives at the result."""

    grad: str
    """The name of the operand that is the result's gradient."""
    graph: Graph
    """The expression's operations and the derivative's."""
    of_sum: int | None
    """The number of an operation; None where the result does not depend on the sum."""
    of_operands: dict[str, int]
    """The same of each operand that the result depends on."""

    def recorded(self, number: int) -> Recorded:
        return write(self.graph, Traced(self.graph, number))


@lru_cache(maxsize=1024)
def differentiate(expression: Recorded) -> Derivative:
    graph = Graph()
    values = [graph.add(node) for node in expression.nodes]
    grad = "grad"
    while grad in (*expression.operands, *INDICES):
        grad += "_"
    found = {len(values) - 1: graph.add(Node("input", FLOAT, (), grad))}
    of_sum, of_operands = None, {}
    for number in reversed(range(len(values))):
        if number not in found:
            continue
        node, here = expression.nodes[number], found.pop(number)
        if node.op == "sum":
            of_sum = here.number
        elif node.op == "input":
            of_operands[node.value] = here.number
        elif node.op in _RULES:
            parts = _RULES[node.op](here, values[number], *(values[arg] for arg in node.args))
            for arg, part in zip(node.args, parts, strict=True):
                if part is not None and expression.nodes[arg].kind == FLOAT:
                    found[arg] = found[arg] + part if arg in found else part
    return Derivative(grad, graph, of_sum, of_operands)


def _exactly(like: Traced, value: float) -> Traced:
    """A constant that is not rounded to float32: kernels' compilers round it, and what computes in float64 does not."""
    return like.graph.add(Node("constant", FLOAT, (), value))


Parts = tuple[Traced | None, ...]

# Each rule: g, the gradient of an operation's result z, then z and the operation's arguments; gives their gradients.
# They are written so that nothing finite becomes infinite or NaN on the way, that no difference of near numbers is
# multiplied by a large one, and that no sum has two products, either of which a compiler could take into an FMA: then
# bits would depend on the kernel. At infinities they are NaN where torch's are.


def _larger(g: Traced, z: Traced, x: Traced, y: Traced) -> Parts:
    """To the one that is larger; halves where they are equal, as torch has it, and to y where one is NaN."""
    to_y = where(x == y, 0.5 * g, where(x > y, 0.0, g))
    return where(x == y, 0.5 * g, where(x > y, g, 0.0)), to_y


def _smaller(g: Traced, z: Traced, x: Traced, y: Traced) -> Parts:
    to_y = where(x == y, 0.5 * g, where(x < y, 0.0, g))
    return where(x == y, 0.5 * g, where(x < y, g, 0.0)), to_y


def _silu(g: Traced, z: Traced, x: Traced) -> Parts:
    share = sigmoid(x)
    return (g * (share * (1 + x * (1 - share))),)


def _gelu(g: Traced, z: Traced, x: Traced) -> Parts:
    """The normal distribution up to x, and x times its density there; both times 2, until the end."""
    density = exp(-0.5 * (x * x)) * _exactly(x, math.sqrt(2 / math.pi))
    return (g * (0.5 * ((1 + erf(x * _exactly(x, math.sqrt(0.5)))) + x * density)),)


def _gelu_tanh(g: Traced, z: Traced, x: Traced) -> Parts:
    """Of x sigmoid(v), v = c x + d x^3, which is gelu_tanh: share + x share (1 - share) (c + 3 d x^2). Where x^2 would
    be infinite share (1 - share) is 0, and any number does for it."""
    c = math.sqrt(8 / math.pi)
    d = 0.044715 * c
    share = sigmoid(x * (_exactly(x, c) + _exactly(x, d) * (x * x)))
    slope = _exactly(x, c) + _exactly(x, 3 * d) * minimum(x * x, 1e30)
    return (g * (share + x * (share * (1 - share)) * slope),)


_RULES: dict[str, Callable[..., Parts]] = {
    "+": lambda g, z, x, y: (g, g),
    "-": lambda g, z, x, y: (g, -g),
    "*": lambda g, z, x, y: (g * y, g * x),
    "/": lambda g, z, x, y: (g / y, -(g * z / y)),
    "negative": lambda g, z, x: (-g,),
    "abs": lambda g, z, x: (where(x > 0, g, where(x < 0, -g, 0.0)),),
    "where": lambda g, z, chosen, x, y: (None, where(chosen, g, 0.0), where(chosen, 0.0, g)),
    "exp": lambda g, z, x: (g * z,),
    "log": lambda g, z, x: (g / x,),
    "sqrt": lambda g, z, x: (g / (2 * z),),
    "rsqrt": lambda g, z, x: (g * (-0.5 * z * (z * z)),),
    "tanh": lambda g, z, x: (g * ((1 - z) * (1 + z)),),
    "erf": lambda g, z, x: (g * (_exactly(x, 2 / math.sqrt(math.pi)) * exp(-(x * x))),),
    "sigmoid": lambda g, z, x: (g * (z * sigmoid(-x)),),
    "silu": _silu,
    "relu": lambda g, z, x: (where(x <= 0, 0.0, g),),
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "maximum": _larger,
    "minimum": _smaller,
}
"""What is not here is of integers or truth values, and has no gradient."""
