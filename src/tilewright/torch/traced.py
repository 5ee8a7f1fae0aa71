"""Epilogues under torch.compile: the compiler runs the function on symbols, as it runs all else that it compiles.

So it sees what the function reads, globals, closures and attributes, and compiles anew when one of them changes. Every
number is taken as it stands at that time: none becomes an input of the compiled code.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any

import torch

from ..epilogue.expression import INDICES, Parameter, call_with_symbols, read_parameters
from ..epilogue.recorded import Recorded, write
from ..epilogue.trace import FLOAT, Graph, Node, Traced, caller_line
from ..errors import InvalidEpilogue

torch.compiler.assume_constant_result(caller_line)  # it walks frames, which the compiler cannot follow

Number = float | int | bool
_KINDS = inspect.Parameter


class _Symbols(Graph):
    """A graph made of what torch.compile can follow. Floats are not rounded yet."""

    def constant(self, value: Number) -> Traced:
        value = _specialised(value)
        return self.add(Node("constant", FLOAT, (), value)) if type(value) is float else super().constant(value)


def _specialised(value: Any) -> Any:
    """The number itself. torch.compile makes a symbol of one that differed between calls, and of what is computed from
    it; keys of a dict it takes by value, and compiles anew for another one."""
    return next(iter({value: None}))


@torch.compiler.assume_constant_result
def _parameters(
    code: types.CodeType, has_defaults: bool, given: tuple[str, ...]
) -> tuple[tuple[tuple[str, str, bool], ...], str]:
    """Do as read_parameters, of a function with this code, which is never called; or what is wrong: errors raised here
    would reach the caller as the compiler's own.

    torch tells whether there are defaults, not for what: parameters neither given nor indices are then taken to have
    one, as those after a * are.
    """
    alike: Any = types.FunctionType(code, {}, None, None, tuple(types.CellType() for _ in code.co_freevars))
    told = inspect.signature(alike).parameters.values()
    for one in told:
        if one.name in INDICES and one.name not in given and (has_defaults or one.kind is _KINDS.KEYWORD_ONLY):
            return (), (
                f"epilogue: under torch.compile a function with the parameter {one.name}, an index, has no defaults, "
                "and no index after a *. Pass as operands what the defaults say."
            )
    may = (_KINDS.KEYWORD_ONLY, *((_KINDS.POSITIONAL_ONLY, _KINDS.POSITIONAL_OR_KEYWORD) if has_defaults else ()))
    bound = [one.replace(default=None) if one.kind in may and one.name not in INDICES else one for one in told]
    alike.__signature__ = inspect.Signature(bound, __validate_parameters__=False)
    try:
        return tuple((p.name, p.origin, p.by_position) for p in read_parameters(alike, given)), ""
    except InvalidEpilogue as error:
        return (), str(error)


@torch.compiler.assume_constant_result
def _text(nodes: tuple[tuple[Any, ...], ...], result: int) -> tuple[str, str]:
    """The graph's record, its floats rounded; or what is wrong."""
    graph = Graph()
    numbers: list[int] = []
    try:
        for op, kind, args, value in nodes:
            node = Node(op, kind, tuple(numbers[arg] for arg in args), value)
            numbers.append((graph.constant(value) if op == "constant" else graph.add(node)).number)
        return write(graph, Traced(graph, numbers[result])).text, ""
    except InvalidEpilogue as error:
        return "", str(error)


def traced_text(function: Callable[..., Any], given: dict[str, Number | None]) -> str:
    """The recorded expression of a function; torch.compile follows this while it compiles.

    Raises InvalidEpilogue as tilewright.epilogue.expression.record does.
    """
    if isinstance(function, Recorded):
        return function.text
    if not isinstance(function, types.FunctionType):
        raise InvalidEpilogue(
            "epilogue: torch.compile can follow functions and lambdas only, not methods, partials, NumPy's functions "
            "or objects that are called. Call it in a lambda: epilogue=lambda acc, x: f(acc, x)."
        )
    has_defaults = function.__defaults__ is not None
    parameters, wrong = _parameters(function.__code__, has_defaults, tuple(given))
    if wrong:
        raise InvalidEpilogue(wrong)
    graph = _Symbols()
    values = {name: None if value is None else _specialised(value) for name, value in given.items()}
    result = call_with_symbols(function, graph, [Parameter(*one) for one in parameters], values)
    nodes = tuple([(node.op, node.kind, node.args, node.value) for node in graph.nodes])
    text, wrong = _text(nodes, result.number)
    if wrong:
        raise InvalidEpilogue(wrong)
    return text
