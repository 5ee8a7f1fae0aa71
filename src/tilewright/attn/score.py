"""A caller's function of a score, traced once into device code."""

from __future__ import annotations

import inspect
import textwrap
import types
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from ..arrays.dtypes import LARGEST_EXTENT
from ..epilogue.codegen import live_part, statements
from ..epilogue.keys import function_key
from ..epilogue.numbers import parameters
from ..epilogue.trace import FLOAT, INT, PASS_OPERANDS, Graph, Node, as_float, as_traced
from ..errors import InvalidEpilogue
from ..jit.limits import Recent
from .problem import MOST_TRACED_ROWS

_INDICES = ("b", "h", "i", "j")
_BOUNDS = dict.fromkeys(("i", "j"), (0, MOST_TRACED_ROWS - 1)) | {"b": (0, LARGEST_EXTENT), "h": (0, 2**16 - 1)}
_MOST = 1024


class Modification(NamedTuple):
    """A function of a score as device code."""

    code: str = ""
    """C++ statements (see AttentionProblem.modify); "" changes nothing."""
    numbers: tuple[float, ...] = ()
    """The parameters of `code`."""


NO_CHANGE = Modification()
_traced: Recent[Any, Modification] = Recent(lambda: _MOST)


def modification_of(function: Callable[..., Any] | None) -> Modification:
    """Trace function(value, b, h, i, j), the new score; without a function return NO_CHANGE.

    Traced once for each function_key. Raises InvalidEpilogue for what cannot be traced.
    """
    if function is None:
        return NO_CHANGE
    key = function_key(function)
    known = _traced.get(key) if key is not None else None
    if known is not None:
        return known
    found = _trace(function)
    if key is not None:
        _traced.put(key, found)
    return found


def _trace(function: Callable[..., Any]) -> Modification:
    form, numbers = parameters(traced(function))
    return Modification(written(form), numbers)


def traced(function: Callable[..., Any]) -> tuple[Node, ...]:
    """The operations of function(value, b, h, i, j), the new score last. Raises InvalidEpilogue."""
    code = function.__code__ if type(function) is types.FunctionType else None
    if code is None or code.co_argcount != 1 + len(_INDICES) or code.co_kwonlyargcount:
        _check_signature(function)  # which takes longer than all else here
    graph = Graph()
    try:
        score = graph.add(Node("sum", FLOAT))
        result = function(score, *(graph.add(Node("input", INT, (), name)) for name in _INDICES))
        if result is None or isinstance(result, (tuple, list, dict)):
            kind = "None" if result is None else f"a {type(result).__name__}"
            raise InvalidEpilogue(f"epilogue: the function returned {kind}; it returns one value, the new score.")
        changed = as_float(as_traced(graph, result, "the result"), "the result")
        nodes = live_part(graph, changed)
        written(parameters(nodes)[0])
        return nodes
    except InvalidEpilogue as error:
        told = str(error).replace("epilogue: ", "score: ", 1)
        raise InvalidEpilogue(told.replace(PASS_OPERANDS, "An array of what is added comes in as bias.")) from error


def _check_signature(function: Callable[..., Any]) -> None:
    try:
        inspect.signature(function).bind(None, *_INDICES)
    except (TypeError, ValueError) as error:
        raise InvalidEpilogue(
            f"score={function!r} must be a function of five values, the score, the batch entry, the head, the query "
            f"and the key: lambda s, b, h, i, j: ... ({error})"
        ) from error


@lru_cache(maxsize=_MOST)
def written(form: tuple[Node, ...]) -> str:
    """The code of a form. Raises InvalidEpilogue where 64 bits may not hold an index."""
    lines = [f"const int in{n} = {name};" for n, name in enumerate(_INDICES)]
    code = statements(form, _INDICES, element="value", index="in{0}", bounds=_BOUNDS)
    return textwrap.indent("\n".join([*lines, code]), "    ")
