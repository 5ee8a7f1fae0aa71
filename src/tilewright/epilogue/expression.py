"""From a Python function to an expression: its parameters matched with operands, traced once, kept by what it means."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ..errors import InvalidEpilogue
from ..jit.limits import Recent
from .codegen import Expression, finish
from .functions import ACTIVATIONS, function_of
from .keys import function_key
from .ops import OPS, of_numpy
from .recorded import Recorded, write
from .trace import FLOAT, INT, Graph, Node, Traced, as_float, as_traced

INDICES = ("row", "col", "batch")
"""Parameters that are indices of the result when no operand has their name."""
_MATMULS_OWN = frozenset(
    ("a", "b", "c", "alpha", "beta", "out", "out_dtype", "activation", "epilogue", "deterministic", "batch_invariant",
     "verify", "rung", "config", "precision", "gpu", "compile", "a_scale", "b_scale")
)  # fmt: skip
"""Keywords of matmul and explain that never reach an epilogue."""

SCALES = ("a_scale", "b_scale")
"""Operands that the sum is multiplied by before anything else sees it."""

Number = float | int | bool


# --- any function -----------------------------------------------------------------------------------------------------


def trace(function: Callable[..., Any], given: Mapping[str, Number | None]) -> Expression:
    """Call `function` once with symbols. `given`: operands by name; None stands for an array.

    Raises InvalidEpilogue where its parameters and the operands do not match, and for what cannot be traced.
    """
    return finish(*trace_graph(function, given))


def trace_graph(function: Callable[..., Any], given: Mapping[str, Number | None]) -> tuple[Graph, Traced]:
    """The operations that `trace` notes, and the result among them."""
    if isinstance(function, np.ufunc):  # np.exp for lambda acc: np.exp(acc)
        function = _as_function(function)
    graph = Graph()
    parameters = read_parameters(function, tuple(name for name in given if name not in _OF_THE_SUM))
    return graph, call_with_symbols(function, graph, parameters, given)


class Parameter(NamedTuple):
    """A parameter of an epilogue, except the first, which is the sum."""

    name: str
    origin: str
    """ "operand", which the call passes; "index"; "default"."""
    by_position: bool
    """True where the parameter cannot be named."""


def read_parameters(function: Callable[..., Any], given: tuple[str, ...]) -> tuple[Parameter, ...]:
    """Raises InvalidEpilogue where parameters and the names of the operands given do not match."""
    if type(function) is not types.FunctionType or function.__dict__:  # else its code says all that a signature does
        return _read_parameters(function, given)
    key = function.__code__, len(function.__defaults__ or ()), tuple(function.__kwdefaults__ or ()), given
    found = _signatures.get(key)
    if found is None:
        found = _read_parameters(function, given)
        _signatures.put(key, found)
    return found


_MOST = 1024
_signatures: Recent[Any, tuple[Parameter, ...]] = Recent(lambda: _MOST)


def _read_parameters(function: Callable[..., Any], given: tuple[str, ...]) -> tuple[Parameter, ...]:
    parameters = _parameters(function)
    first, rest = parameters[0], parameters[1:]
    names = [parameter.name for parameter in rest]
    if first.name in given:
        raise InvalidEpilogue(
            f"epilogue: {first.name!r} is both its first parameter, which is the sum, and an operand. Name the first "
            "parameter acc."
        )
    unknown = [name for name in given if name not in names]
    if unknown:
        raise InvalidEpilogue(
            f"epilogue: the operand{'s' * (len(unknown) > 1)} {', '.join(unknown)} "
            f"{'are' if len(unknown) > 1 else 'is'} not a parameter of {_title(function)}, whose parameters are "
            f"({', '.join(p.name for p in parameters)}). Name it there, or omit it."
        )
    found = tuple(
        Parameter(p.name, _origin(p, given, function), p.kind is inspect.Parameter.POSITIONAL_ONLY) for p in rest
    )
    unnamed = [parameter for parameter in found if parameter.by_position]
    for before, after in pairwise(unnamed):
        if before.origin == "default" and after.origin != "default":
            raise InvalidEpilogue(
                f"epilogue: {_title(function)} takes {after.name} by position only, after {before.name}, which the "
                f"call does not pass. Pass {before.name}=..., or take the slash out of the parameters."
            )
    return found


def call_with_symbols(
    function: Callable[..., Any], graph: Graph, parameters: Sequence[Parameter], given: Mapping[str, Number | None]
) -> Traced:
    """Call the function with symbols and note its operations in `graph`. torch.compile traces this too."""
    by_position: list[Any] = []
    by_name: dict[str, Any] = {}
    for name, origin, no_name in parameters:
        if origin == "default":
            continue
        value: Any = given[name] if origin == "operand" else None
        if value is None:
            value = graph.add(Node("input", FLOAT if origin == "operand" else INT, (), name))
        if no_name:
            by_position.append(value)
        else:
            by_name[name] = value
    result = function(whole_sum(graph, given), *by_position, **by_name)
    if isinstance(result, (tuple, list, dict)) or result is None:
        raise InvalidEpilogue(
            f"epilogue: {_title(function)} returned {'None' if result is None else 'a ' + type(result).__name__}; it "
            "returns one value, the result's element."
        )
    return as_float(as_traced(graph, result, "the result"), "the result")


_OF_THE_SUM = (*SCALES, "c", "beta")


def whole_sum(graph: Graph, given: Mapping[str, Number | None]) -> Traced:
    """The sum times its scales, plus beta c where c is among the operands: what an epilogue starts from."""
    value: Any = graph.add(Node("sum", FLOAT))
    for name in SCALES:
        if name in given:
            value = value * graph.add(Node("input", FLOAT, (), name))
    if "c" in given:
        value = value + graph.add(Node("input", FLOAT, (), "c")) * given["beta"]
    return as_traced(graph, value, "the sum")


def _as_function(ufunc: np.ufunc) -> Callable[..., Any]:
    """Return the function to trace for one of NumPy's. Raises InvalidEpilogue where there is none."""
    name = of_numpy(ufunc)
    if name is None:
        raise InvalidEpilogue(
            f"epilogue: np.{ufunc.__name__} cannot be traced. Use the functions of tilewright.epilogue."
        )
    return function_of(OPS[name])


def _title(function: Callable[..., Any]) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    code = getattr(function, "__code__", None)
    called = "the lambda" if name == "<lambda>" else f"{name}()"
    return f"{called} at line {code.co_firstlineno}" if code is not None else called


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    if not callable(function):
        raise InvalidEpilogue(
            f"epilogue={function!r} is not a function. Pass one of the sum and operands: lambda acc, bias: acc + bias."
        )
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise InvalidEpilogue(f"epilogue: the parameters of {function!r} cannot be read: {error}") from error
    loose = [p for p in parameters if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if loose:
        raise InvalidEpilogue(f"epilogue: {_title(function)} takes {loose[0]}. Name each operand as a parameter.")
    if not parameters or parameters[0].kind is inspect.Parameter.KEYWORD_ONLY:
        raise InvalidEpilogue(f"epilogue: {_title(function)} has no first parameter for the sum: lambda acc: ...")
    return parameters


def _origin(parameter: inspect.Parameter, given: tuple[str, ...], function: Callable[..., Any]) -> str:
    name = parameter.name
    if name in given:
        return "operand"
    if parameter.default is not parameter.empty:
        return "default"
    if name in INDICES:
        return "index"
    if name in _MATMULS_OWN:
        raise InvalidEpilogue(
            f"epilogue: {_title(function)} names an operand {name!r}, which is an argument of the product itself. Give "
            f"the parameter another name: epilogue=lambda acc, {name}_: ..., {name}_=..."
        )
    raise InvalidEpilogue(
        f"epilogue: {_title(function)} names the operand {name!r}, and the call does not pass it. Pass {name}=..., or "
        f"give it a default. ({', '.join(INDICES)} are indices of the result.)"
    )


# --- the usual ones ---------------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def standard(names: frozenset[str], activation: str | None) -> Expression:
    """activation(whole sum * row_scale * col_scale + bias) + residual, of what is named."""
    return finish(*standard_graph(names, activation))


def standard_graph(names: frozenset[str], activation: str | None, beta: float | None = None) -> tuple[Graph, Traced]:
    """The operations of `standard`, and the result among them. `beta`: that of c, where c is an operand."""
    graph = Graph()
    given: dict[str, Number | None] = dict.fromkeys(names)
    value: Any = whole_sum(graph, given if beta is None else {**given, "beta": beta})

    def read(name: str) -> Traced:
        return graph.add(Node("input", FLOAT, (), name))

    for name in ("row_scale", "col_scale"):
        if name in names:
            value = value * read(name)
    if "bias" in names:
        value = value + read("bias")
    if activation is not None:
        value = ACTIVATIONS[activation](value)
    if "residual" in names:
        value = value + read("residual")
    return graph, value


# --- what is written down ---------------------------------------------------------------------------------------------


def record(function: Callable[..., Any], given: Mapping[str, Number | None]) -> Recorded:
    """Record what `trace` notes; return a record as it is."""
    return function if isinstance(function, Recorded) else write(*trace_graph(function, given))


@lru_cache(maxsize=256)
def record_standard(names: frozenset[str], activation: str | None) -> Recorded:
    """Record what `standard` notes."""
    return write(*standard_graph(names, activation))


# --- what is traced once ----------------------------------------------------------------------------------------------

_traced: Recent[Any, Expression] = Recent(lambda: _MOST)
_recorded: Recent[Any, Recorded] = Recent(lambda: _MOST)


def expression_of(function: Any, given: Mapping[str, Number | None]) -> Expression:
    """`trace`, once for each key."""
    if isinstance(function, Recorded):
        if set(function.operands) - given.keys():
            raise InvalidEpilogue(f"epilogue: {function.expression.description} needs {', '.join(function.operands)}.")
        return function.expression
    return _once(trace, _traced, function, given)


def recorded_of(function: Any, given: Mapping[str, Number | None]) -> Recorded:
    """`record`, once for each key."""
    return function if isinstance(function, Recorded) else _once(record, _recorded, function, given)


_Kept = TypeVar("_Kept")


def _once(
    make: Callable[[Any, Mapping[str, Number | None]], _Kept], kept: Recent[Any, _Kept], function: Any,
    given: Mapping[str, Number | None],
) -> _Kept:  # fmt: skip
    key = function_key(function)
    if key is None:
        return make(function, given)
    # numbers as text, which tells 1 from 1.0 and 0.0 from -0.0
    key = (key, tuple([(name, type(value), repr(value)) for name, value in given.items()]))
    found = kept.get(key)
    if found is None:
        found = make(function, given)
        kept.put(key, found)
    return found
