"""Traced expressions as text: a form that an operator of another library can take, compare and keep."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property, lru_cache

from .codegen import Expression, express, live_part
from .trace import FLOAT, Graph, Node, Traced


@dataclass(frozen=True)
class Recorded:
    """An expression that is traced already: matmul takes it as `epilogue`, with arrays for `operands`."""

    text: str
    """All of it, as JSON: operations in the order of the trace as [op, kind, args, value], the result last."""

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(Node(op, kind, tuple(args), value) for op, kind, args, value in json.loads(self.text))

    @cached_property
    def operands(self) -> tuple[str, ...]:
        """The arrays that the result depends on, in order; indices are not among them."""
        return tuple(node.value for node in self.nodes if node.op == "input" and node.kind == FLOAT)

    @cached_property
    def expression(self) -> Expression:
        return express(self.nodes)


def write(graph: Graph, result: Traced) -> Recorded:
    """Record the operations that the result depends on."""
    return parse(json.dumps([[op, kind, list(args), value] for op, kind, args, value in live_part(graph, result)]))


@lru_cache(maxsize=1024)
def parse(text: str) -> Recorded:
    """The expression that `text` says; one object a text."""
    return Recorded(text)
