"""The gradients of what lies before an epilogue: which cost a product, which one pass, and which nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch

from ..epilogue.codegen import live_nodes
from ..epilogue.derivative import Derivative, differentiate
from ..epilogue.ops import OPS
from ..epilogue.recorded import Recorded, write
from ..epilogue.trace import FLOAT, Graph, Traced

MOST_PRODUCTS = 2
"""Of operands' gradients by themselves. More would cost more than the sum, made once in float32, and passes over it."""

KEPT_FROM = 1024
"""Sums of at least so many products are kept for the gradients of an activation, as torch does. On an H200 one
element's sum takes 3 ps for every 1000 products, to keep it and to pass over it again about 2.5 ps."""


@dataclass(frozen=True, eq=False)
class Backward:
    """The gradients that are asked for, as numbers of the derivative's operations. Equal ones are made once."""

    derivative: Derivative
    of_sum: int | None
    """None where none of a, b and c needs it, or the result does not depend on it."""
    of_operands: dict[str, int]
    """By operand, of those that need a gradient and have one."""
    by_product: dict[int, Recorded]
    """These depend on the sum: each is the epilogue of one more product, the result's gradient among its operands."""
    by_torch: tuple[int, ...]
    """These are computed by torch's operations; what is in neither is the result's gradient itself."""
    needs_sum: bool
    """Whether anything depends on the sum."""
    reads: tuple[bool, ...]
    """Of each of the expression's operands, whether it is read."""


@lru_cache(maxsize=4096)
def plan_backward(
    expression: Recorded, sum_asked: bool, operands_asked: tuple[bool, ...], by_products: bool = True
) -> Backward:
    """`operands_asked`: for each of expression.operands. by_products: whether an epilogue may take the gradient."""
    derivative = differentiate(expression)
    graph = derivative.graph
    of_sum = derivative.of_sum if sum_asked else None
    of_operands = {
        name: derivative.of_operands[name]
        for name, asked in zip(expression.operands, operands_asked, strict=True)
        if asked and name in derivative.of_operands
    }
    wanted = sorted({*of_operands.values(), *(() if of_sum is None else (of_sum,))})
    live = {number: live_nodes(graph, Traced(graph, number)) for number in wanted}
    used = {number: [graph.nodes[n] for n in live[number]] for number in wanted}
    on_sum = [number for number in wanted if any(node.op == "sum" for node in used[number])]
    given = [number for number in wanted if used[number][-1].op == "input"]
    few = sum(number != of_sum for number in on_sum) <= MOST_PRODUCTS
    by_product = on_sum if by_products and few else []
    inputs = {node.value for nodes in used.values() for node in nodes if node.op == "input" and node.kind == FLOAT}
    return Backward(
        derivative, of_sum, of_operands,
        by_product={number: derivative.recorded(number) for number in by_product},
        by_torch=tuple(number for number in wanted if number not in by_product and number not in given),
        needs_sum=bool(on_sum), reads=tuple(name in inputs for name in expression.operands),
    )  # fmt: skip


@lru_cache(maxsize=1024)
def before_relu(expression: Recorded) -> Recorded | None:
    """Return what stands inside a relu that comes last, if its own gradients need no sum: where that was above 0 the
    result is, so no product has to tell it. None for every other expression."""
    last = expression.nodes[-1]
    if last.op != "relu":
        return None
    graph = Graph()
    values = [graph.add(node) for node in expression.nodes]
    inside = write(graph, values[last.args[0]])
    needs_sum = plan_backward(inside, True, (True,) * len(inside.operands)).needs_sum
    return None if needs_sum else inside


def activate(activation: str, inside: torch.Tensor) -> torch.Tensor:
    """The activation by torch's operation, in the type of what it gets."""
    compute = OPS[activation].torch
    assert compute is not None
    value: torch.Tensor = compute(torch, inside)
    return value


@dataclass(frozen=True)
class Kept:
    """An expression cut at its activation: `inside` needs no sum for its gradients, and torch applies the rest."""

    inside: Recorded
    activation: str
    outer: tuple[str, str] | None
    """"*" or "+" and the operand that the activation's value meets last, if there is one."""

    def apply(self, inside: torch.Tensor, operands: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The expression's value; torch keeps what its gradients need."""
        value = activate(self.activation, inside)
        if self.outer is None:
            return value
        op, name = self.outer
        return (value * operands[name] if op == "*" else value + operands[name]).to(value.dtype)


@lru_cache(maxsize=1024)
def cut_at_activation(expression: Recorded) -> Kept | None:
    """The expression as torch would compute it after a product of its own; None where it is no activation, or one that
    an operand multiplies or is added to, or where a relu's result tells all (before_relu)."""
    nodes, last, outer = expression.nodes, expression.nodes[-1], None
    if last.op in ("*", "+"):
        op, (first, second) = last.op, (nodes[arg] for arg in last.args)
        last, other = (first, second) if first.op in OPS else (second, first)
        if other.op != "input" or other.kind != FLOAT:
            return None
        outer = op, str(other.value)
    if (last.op == "relu" and outer is None) or last.op not in OPS or not OPS[last.op].activation:
        return None
    graph = Graph()
    values = [graph.add(node) for node in nodes]
    inside = write(graph, values[last.args[0]])
    needs_sum = plan_backward(inside, True, (True,) * len(inside.operands)).needs_sum
    return None if needs_sum else Kept(inside, last.op, outer)
