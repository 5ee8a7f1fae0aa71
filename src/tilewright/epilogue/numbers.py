"""The numbers of an expression that are parameters of its kernel, and those that stay in its text.

Floats are parameters, wherever they come from: a closure, a global, an attribute, a default, a number among the
operands, the source itself. Calls that differ in nothing else share one kernel, so a learning rate that changes at
every step compiles once. What decides the form of the code stays in the text:

    0, 1, -1, infinities, NaN           identities and masks, which compilers fold
    a power of two that divides         its reciprocal is exact, so the division becomes a product
    whole numbers that meet an index    they decide how many bits indices take, and make // and % products
    truth values
    exponents                           x ** 3 is two products, in which no number is left

Equal numbers are one parameter. An expression may so have a few forms, each a kernel of its own (a rate that passes 0,
or that equals another number for a step); every call gets the form and the numbers that its own trace found.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .trace import FLOAT, Node

NUMBER = "number"
"""The op of a node that is a parameter; its value is its place among the numbers."""


def parameters(nodes: Sequence[Node]) -> tuple[tuple[Node, ...], tuple[float, ...]]:
    """The nodes with each parameter in the place of its constant, and the numbers in the order of their places."""
    kept = {node.args[1] for node in nodes if node.op == "/" and exact_reciprocal(nodes[node.args[1]]) is not None}
    numbers: list[float] = []
    form = []
    for place, node in enumerate(nodes):
        if node.op == "constant" and node.kind == FLOAT and place not in kept and not _is_structural(node.value):
            node = Node(NUMBER, FLOAT, (), len(numbers))
            numbers.append(nodes[place].value)
        form.append(node)
    return tuple(form), tuple(numbers)


def _is_structural(value: float) -> bool:
    """-0.0 is not: it equals 0.0, and forms are found by what is equal."""
    return value in (1.0, -1.0) or not math.isfinite(value) or (value == 0 and math.copysign(1, value) > 0)


def exact_reciprocal(divisor: Node) -> float | None:
    """1 / divisor where that is a constant and a power of two, so that multiplying by it is the same; else None."""
    if divisor.op != "constant" or not divisor.value or not math.isfinite(divisor.value):
        return None
    fraction, exponent = math.frexp(divisor.value)
    return 1 / divisor.value if abs(fraction) == 0.5 and abs(exponent) < 120 else None
