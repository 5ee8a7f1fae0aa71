"""A caller's function of a score with its derivative, traced once into device code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..epilogue.codegen import live_part
from ..epilogue.derivative import differentiate
from ..epilogue.keys import function_key
from ..epilogue.numbers import NUMBER, parameters
from ..epilogue.recorded import write
from ..epilogue.trace import FLOAT, Graph, Node, Traced
from ..jit.limits import Recent
from .score import traced, written


class Differentiable(NamedTuple):
    """A function of a score and its derivative as device code (AttentionProblem.modify)."""

    code: str = ""
    slope: str = ""
    """C++ statements that turn float value, a score, into the function's derivative there."""
    numbers: tuple[float, ...] = ()
    """The parameters of both."""


UNCHANGED = Differentiable()
_found: Recent[Any, Differentiable] = Recent(lambda: 1024)


def differentiable(function: Callable[..., Any] | None) -> Differentiable:
    """Trace function(value, b, h, i, j) and its derivative by value; without a function return UNCHANGED.

    Operations without a derivative (comparisons, rounding of indices) pass none on, as in the epilogues' gradients.
    Traced once for each function_key. Raises InvalidEpilogue for what cannot be traced.
    """
    if function is None:
        return UNCHANGED
    key = function_key(function)
    known = _found.get(key) if key is not None else None
    if known is None:
        nodes = traced(function)
        form, numbers = parameters(nodes)
        slope, more = parameters(_slope(nodes))
        moved = tuple(node._replace(value=node.value + len(numbers)) if node.op == NUMBER else node for node in slope)
        known = Differentiable(written(form), written(moved), (*numbers, *more))
        if key is not None:
            _found.put(key, known)
    return known


def _slope(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """The operations of the derivative by "sum", with a result's gradient of 1."""
    graph = Graph()
    values = [graph.add(node) for node in nodes]
    derivative = differentiate(write(graph, values[-1]))
    if derivative.of_sum is None:
        return (Node("constant", FLOAT, (), 0.0),)
    graph = Graph()  # anew: what the gradient is replaced by may meet a constant that is there already
    placed: list[Traced] = []
    for node in derivative.graph.nodes:
        if node.op == "input" and node.value == derivative.grad:
            placed.append(graph.constant(1.0))
        else:
            placed.append(graph.add(node._replace(args=tuple(placed[arg].number for arg in node.args))))
    return live_part(graph, placed[derivative.of_sum])
