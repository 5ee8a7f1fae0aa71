"""The key of a function, by what it computes: two calls with equal keys trace to the same expression.

The key holds the function's code and, by value, all that the code can reach: its closure, its defaults, the globals it
names, and of each module the attributes it names. All of it is read again for each key, so a change is always seen.
Only what is listed in `_is_constant` counts as itself: its results depend on nothing but its arguments. Whatever else a
function reaches (an object, a list, a random generator) may change unseen, so the function has no key and is traced
at every call.
"""

from __future__ import annotations

import builtins
import dis
import math
import operator
import sys
import types
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from .functions import FUNCTIONS
from .ops import of_numpy
from .recorded import Recorded

_DEEPEST = 4
"""Functions, modules and tuples inside one another."""
_ABSENT = object()

_BUILTINS = frozenset(
    getattr(builtins, name)
    for name in ("abs", "all", "any", "chr", "divmod", "isinstance", "iter", "len", "max", "min", "next", "ord", "pow",
                 "repr", "round", "sorted", "sum")
)  # fmt: skip
"""Built-in functions whose results depend on their arguments alone. getattr, globals, open and the like fetch by name
what no list of names shows."""
_OF_NUMPY = frozenset((np.finfo, np.iinfo))


def function_key(function: Any) -> Any:
    """The key of what a function computes; None where something could change unseen."""
    kind = type(function)
    if kind is Recorded:
        return function.text
    if id(function) in _constants or (kind is not types.FunctionType and _is_constant(function)):
        return function
    try:
        return _function_key(function, 0)
    except (_Unkeyable, ValueError):  # ValueError: an empty closure cell
        return None


class _Unkeyable(Exception):
    pass


def _function_key(function: Any, depth: int) -> Any:
    """On the warm path: every microsecond counts."""
    if type(function) is not types.FunctionType or function.__dict__:
        raise _Unkeyable
    code = function.__code__
    read = _names(code)
    if read is None:
        raise _Unkeyable
    names, attributes, imports = read
    key: list[Any] = [code]
    if names:
        outer = function.__globals__
        for name in names:
            value = outer[name] if name in outer else getattr(builtins, name, _ABSENT)
            key.append(_constants.get(id(value)) or _frozen(value, depth, attributes))
    for name in imports:
        key.append(_frozen(sys.modules.get(name), depth, attributes))
    if function.__closure__:
        key.append(tuple([_frozen(cell.cell_contents, depth, attributes) for cell in function.__closure__]))
    if function.__defaults__:
        key.append((0, *[_frozen(value, depth, attributes) for value in function.__defaults__]))
    if function.__kwdefaults__:
        key.append((1, *[(name, _frozen(value, depth, attributes)) for name, value in function.__kwdefaults__.items()]))
    return tuple(key)


class _Names(NamedTuple):
    """The names that a code, and those inside it, fetch."""

    globals: tuple[str, ...]
    attributes: tuple[str, ...]
    imports: tuple[str, ...]


@lru_cache(maxsize=1024)
def _names(code: types.CodeType) -> _Names | None:
    """Return None for a code with a relative import: the code does not say which module that is."""
    outer: dict[str, None] = {}
    attributes: dict[str, None] = {}
    imports: dict[str, None] = {}
    steps = list(dis.get_instructions(code))
    for number, step in enumerate(steps):
        if step.opname == "IMPORT_NAME":
            if steps[number - 2].argval != 0:  # the level
                return None
            imports.update(dict.fromkeys((step.argval, step.argval.partition(".")[0])))
        elif step.opcode in dis.hasname:  # what is in neither list counts as both
            if step.opname not in ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM"):
                outer[step.argval] = None
            if step.opname not in ("LOAD_GLOBAL", "LOAD_NAME"):
                attributes[step.argval] = None
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inside = _names(constant)
            if inside is None:
                return None
            for names, more in zip((outer, attributes, imports), inside, strict=True):
                names.update(dict.fromkeys(more))
    return _Names(tuple(outer), tuple(attributes), tuple(imports))


def _frozen(value: Any, depth: int, attributes: tuple[str, ...]) -> Any:
    """A value as a part of a key. `attributes`: the names that may be fetched from it, if it is a module."""
    kind = type(value)
    if kind is float:
        # 0.0 equals -0.0, and NaN not even itself
        return (kind, value) if value and value == value else (kind, value.hex())
    if value is None or kind in (int, bool, str):
        return kind, value
    if id(value) in _constants:
        return value
    if kind is types.ModuleType:
        if depth >= _DEEPEST:
            raise _Unkeyable
        held = value.__dict__
        makes = "__getattr__" in held
        parts = [value]
        for name in attributes:
            one = held[name] if name in held else getattr(value, name, _ABSENT) if makes else _ABSENT
            parts.append(_constants.get(id(one)) or _frozen(one, depth + 1, attributes))
        return tuple(parts)
    if isinstance(value, np.generic):
        return kind, value.tobytes()
    if _is_constant(value):
        return value
    if depth >= _DEEPEST:
        raise _Unkeyable
    if kind is types.FunctionType:
        return _function_key(value, depth + 1)
    if kind is tuple:
        return kind, *[_frozen(one, depth + 1, attributes) for one in value]
    raise _Unkeyable


_constants: dict[int, Any] = {id(value): value for value in (_ABSENT, *FUNCTIONS.values())}
"""What _is_constant found, by id; being held, their ids stay theirs. They are as many as the lists it looks in."""


def _is_constant(value: Any) -> bool:
    """Return True for a function or a type of a known list, whose results depend on arguments alone."""
    kind = type(value)
    if kind is types.BuiltinFunctionType:
        constant = value in _BUILTINS or value.__self__ is math or value.__self__ is _OPERATOR
    elif kind is type:
        constant = value.__module__ == "builtins" or issubclass(value, np.generic) or value in _OF_NUMPY
    elif kind is np.ufunc:
        constant = getattr(np, value.__name__, None) is value
    else:
        constant = callable(value) and of_numpy(value) is not None
    if constant:
        _constants[id(value)] = value
    return constant


_OPERATOR = sys.modules[operator.add.__module__]
"""Where the functions of `operator` are at home: its C module."""
