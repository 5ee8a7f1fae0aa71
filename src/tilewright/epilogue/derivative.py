"""The derivative of a recorded epilogue, as expressions of the same kind.

It can therefore be the epilogue of a product, whose kernel writes the gradient of the sum and nothing else, and it is
differentiable itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

from .expression import INDICES
from .ops import OPS
from .recorded import Recorded, write
from .trace import FLOAT, Graph, Node, Traced, apply


class _Operations:
    """The operations by name, and constants, for the table's rules."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def __getattr__(self, name: str) -> Callable[..., Traced]:
        return partial(apply, name)

    def exactly(self, value: float) -> Traced:
        """A constant that is not rounded to float32: compilers of kernels round it, and float64 arithmetic does not."""
        return self._graph.add(Node("constant", FLOAT, (), value))


@dataclass(frozen=True, eq=False)
class Derivative:
    """The gradients of the sum and of each operand, given `grad`, the gradient of the result."""

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
        elif node.op in OPS and (rule := OPS[node.op].derivative) is not None:
            parts = rule(_Operations(graph), here, values[number], *(values[arg] for arg in node.args))
            for arg, part in zip(node.args, parts, strict=True):
                if part is not None and expression.nodes[arg].kind == FLOAT:
                    found[arg] = found[arg] + part if arg in found else part
    return Derivative(grad, graph, of_sum, of_operands)
