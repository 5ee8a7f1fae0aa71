"""Products of arrays that only their own library can make without a wait: who can do so registers itself here."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from . import frameworks
from .warm import MISS


class Repeater(NamedTuple):
    """A library's way to make a product that was made before. Both take (a, b, options, what is fused)."""

    repeat: Callable[..., Any]
    """Returns the result, or MISS for a product that was not noted."""
    note: Callable[..., None]


_by_array: dict[type, Repeater] = {}


def register(array: type, repeater: Repeater) -> None:
    """Let products of these arrays be repeated so."""
    _by_array[array] = repeater


def repeat(a: Any, b: Any, options: Any, asked: Any) -> Any:
    """The product of a library's arrays by that library's own call, or MISS."""
    found = _by_array.get(type(a))
    return MISS if found is None else found.repeat(a, b, options, asked)


def note(kind: str, a: Any, b: Any, options: Any, asked: Any) -> None:
    """Let the product that was just made of arrays on a GPU be repeated, where their library has a way."""
    if kind == "jax":
        with suppress(ImportError, AttributeError):  # a version of the library that has no such way
            frameworks.load(kind)
        if type(a) in _by_array:
            _by_array[type(a)].note(a, b, options, asked)
