"""Whole numbers from expressions that people write: sizes of launches, elements of lanes. Nothing else is evaluated."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import InvalidOperand

_OPERATIONS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow, ast.BitXor: operator.xor,
    ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.LShift: operator.lshift, ast.RShift: operator.rshift,
}  # fmt: skip


def whole(text: str, names: Mapping[str, int]) -> int:
    """The whole number that an expression of names makes: `n / 32`, `i ^ (i >> 3)`. Raises InvalidOperand."""

    def value(node: ast.AST) -> int:
        if isinstance(node, ast.Expression):
            return value(node.body)
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.Name) and node.id in names:
            return names[node.id]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -value(node.operand)
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
            left, right = value(node.left), value(node.right)
            if isinstance(node.op, ast.Pow | ast.LShift) and not 0 <= right <= 64:
                raise InvalidOperand(f"{text.strip()!r}: {right} is not an exponent or a shift from 0 to 64")
            return int(_OPERATIONS[type(node.op)](left, right))
        raise InvalidOperand(f"{text.strip()!r} is not whole numbers and {', '.join(names) or 'sizes of let lines'}")

    try:
        return value(ast.parse(text.strip(), mode="eval"))
    except InvalidOperand:
        raise
    except (RecursionError, MemoryError):  # the second is what Python's parser says of too many levels
        raise InvalidOperand(f"{text.strip()[:60]!r}...: too many levels of an expression") from None
    except (SyntaxError, ZeroDivisionError, ValueError) as error:
        raise InvalidOperand(f"{text.strip()!r}: {error}") from None
