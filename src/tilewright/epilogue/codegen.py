"""A traced graph as C++, one statement per live operation in the order of the trace, and as a line for people."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from ..errors import InvalidEpilogue
from .numbers import NUMBER, exact_reciprocal, parameters
from .ops import OPS
from .trace import BOOL, FLOAT, INT, Graph, Node, Traced

_CPP_TYPES = {FLOAT: "float", INT: "long long", BOOL: "bool"}

_LONGEST = 160
"""Characters of a description; a part that grows longer is written as "..."."""


def literal(node: Node, suffix: str = "ll") -> str:
    """Return a constant's exact C++ literal. `suffix` ends an integer's."""
    if node.kind == BOOL:
        return "true" if node.value else "false"
    if node.kind == INT:
        return f"{node.value}{suffix}" if node.value >= 0 else f"({node.value}{suffix})"
    if math.isnan(node.value):
        return "__int_as_float(0x7fffffff)"
    if math.isinf(node.value):
        return f"__int_as_float({'0x7f800000' if node.value > 0 else '(int)0xff800000'})"
    text = f"{float(node.value).hex()}f"
    return f"({text})" if math.copysign(1, node.value) < 0 else text


def _division(divisor: Node, left: str, right: str) -> str:
    reciprocal = exact_reciprocal(divisor)
    if reciprocal is not None:
        return f"{left} * {literal(Node('constant', FLOAT, (), reciprocal))}"
    return f"fused_divide({left}, {right})"


def live_nodes(graph: Graph, result: Traced) -> list[int]:
    """Return the numbers of the operations that the result depends on, its own last."""
    live: set[int] = set()
    pending = [result.number]
    while pending:
        number = pending.pop()
        if number not in live:
            live.add(number)
            pending.extend(graph.nodes[number].args)
    return sorted(live)


def live_part(graph: Graph, result: Traced) -> tuple[Node, ...]:
    """Return the operations that the result depends on, numbered anew, the result last."""
    live = live_nodes(graph, result)
    if len(live) == live[-1] + 1:
        return tuple(graph.nodes[: len(live)])
    place = {number: index for index, number in enumerate(live)}
    nodes = [graph.nodes[number] for number in live]
    return tuple([Node(op, kind, tuple([place[arg] for arg in args]), value) for op, kind, args, value in nodes])


def _short(nodes: Sequence[Node], bounds: Mapping[str, tuple[int, int]]) -> set[int]:
    """The integers among the nodes that 32 bits hold, where `bounds` are the least and largest of each index.

    Raises InvalidEpilogue where 64 may not hold one.
    """
    ranges: dict[int, tuple[int, int]] = {}
    for number, node in enumerate(nodes):
        if node.kind != INT:
            continue
        parts = [ranges[arg] for arg in node.args if arg in ranges]
        if node.op == "constant":
            ends = [node.value]
        elif node.op == "input":
            ends = list(bounds[node.value])
        elif node.op == "%":
            ends = [0, parts[1][1] - 1]
        elif node.op in ("+", "-", "*", "//"):
            apply = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__, "//": int.__floordiv__}[node.op]
            ends = [apply(a, b) for a in parts[0] for b in parts[1]]
        else:
            ends = [end for part in parts for end in part]
        ranges[number] = min(ends), max(ends)
        if max(-min(ends), max(ends)) >= 2**63:
            raise InvalidEpilogue(
                "epilogue: integers grow beyond 64 bits where indices are large. Make floats of them earlier: 1.0 * i."
            )
    return {number for number, (low, high) in ranges.items() if low >= -(2**31) and high < 2**31}


def statements(
    nodes: Sequence[Node], inputs: tuple[str, ...], *, element: str = "value[i]",
    index: str = "in{0} + Order::along(i) * args.operand[{0}].col", bounds: Mapping[str, tuple[int, int]] | None = None,
) -> str:  # fmt: skip
    """C++ statements for element i: they read value[i], input j at in{j} and parameter k at args.number[k], and write
    value[i]. The result is the last of `nodes`.

    `element`, `index`: what the value and input j, an index, are called. `bounds`: the least and largest value of each
    index; where they are known, integers take 32 bits where these hold them.
    """
    short = _short(nodes, bounds) if bounds is not None else set()
    names: list[str] = []
    lines = []
    for number, node in enumerate(nodes):
        args = [names[arg] for arg in node.args]
        if node.op == "constant":
            names.append(literal(node, "" if number in short else "ll"))
            continue
        if node.op == NUMBER:
            names.append(parameter(node))
            continue
        if node.kind == INT and not short.issuperset((number, *node.args)):
            args = [
                f"static_cast<long long>({text})" if arg in short else text
                for arg, text in zip(node.args, args, strict=True)
            ]
        if node.op == "sum":
            text = element
        elif node.op == "input":
            place = inputs.index(node.value)
            text = f"in{place}[i]" if node.kind == FLOAT else index.format(place)
        elif node.op == "/":
            text = _division(nodes[node.args[1]], *args)
        else:
            text = OPS[node.op].cuda.format(*args)
        names.append(f"t{number}")
        kind = "int" if number in short else _CPP_TYPES[node.kind]
        lines.append(f"const {kind} t{number} = {text};")
    lines.append(f"{element} = {names[-1]};")
    return "\n".join(lines)


def parameter(node: Node) -> str:
    """A parameter's C++ (FusedArgs in gemm/fused.py)."""
    return f"args.number[{node.value}]"


def describe(nodes: Sequence[Node], numbers: Sequence[float]) -> str:
    """The expression as Python would write it; long parts are omitted."""
    texts: list[str] = []
    for node in nodes:
        args = [texts[arg] for arg in node.args]
        if node.op == "constant":
            text = f"{node.value:.7g}" if node.kind == FLOAT else str(node.value)
        elif node.op == NUMBER:
            text = f"{numbers[node.value]:.7g}"
        elif node.op == "sum":
            text = "acc"
        elif node.op == "input":
            text = node.value
        elif node.op == "to_float":
            text = args[0]
        elif len(args) == 2 and not node.op.isidentifier():
            text = f"({args[0]} {node.op} {args[1]})"
        elif node.op in ("negative", "~"):
            text = f"{'-' if node.op == 'negative' else '~'}{args[0]}"
        else:
            text = f"{node.op}({', '.join(_bare(arg) for arg in args)})"
        texts.append(text if len(text) <= _LONGEST else "...")
    return _bare(texts[-1])


def _bare(text: str) -> str:
    """Remove the parentheses around the whole."""
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0 and (letter != ")" or place < len(text) - 1):
            return text
    return text[1:-1]


@dataclass(frozen=True)
class Expression:
    """The computation of a function, whatever its operands' shapes and dtypes."""

    code: str
    """C++ statements (gemm.problem.Epilogue.code)."""
    inputs: tuple[str, ...]
    """The operands and indices that the result depends on, in the order of `code`."""
    numbers: tuple[float, ...] = ()
    """The parameters of `code`: not a part of it, so that expressions which differ only in them share a kernel."""
    nodes: tuple[Node, ...] = field(default=(), compare=False, repr=False)
    """The operations in the order of the trace, the result last; parameters by their places (numbers.py)."""

    @cached_property
    def description(self) -> str:
        """The expression as Python would write it, with its numbers."""
        return describe(self.nodes, self.numbers)


def express(nodes: Sequence[Node]) -> Expression:
    """The expression whose result is the last of `nodes`, on which nothing else hangs."""
    form, numbers = parameters(nodes)
    return Expression(*_written(form), numbers, form)


@lru_cache(maxsize=1024)
def _written(form: tuple[Node, ...]) -> tuple[str, tuple[str, ...]]:
    """The code and the inputs of a form."""
    inputs = tuple([node.value for node in form if node.op == "input"])
    return statements(form, inputs), inputs


def finish(graph: Graph, result: Traced) -> Expression:
    return express(live_part(graph, result))
