"""The common part of both families' classes: extents in buckets, and values read back from a table."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import Any

ATTENTION = "attention "
"""How classes of attention begin in words; those of products begin with a type."""


def bucket(extent: int) -> int:
    """`extent` rounded up to four significant bits: steps of 6 to 12 %. What is at most 16 stands for itself."""
    step = 1 << max(extent.bit_length() - 4, 0)
    return -(-extent // step) * step


def checked(values: dict[str, Any], kind: type) -> dict[str, Any]:
    """The values of the fields of `kind`, a dataclass of int, str and bool. Raises KeyError or TypeError."""
    types = _types(kind)
    for name, wanted in types:
        if name not in values:
            raise KeyError(name)
        if type(values[name]) is not wanted:
            raise TypeError(f"{name} is {values[name]!r}, not {wanted.__name__}")
    return {name: values[name] for name, _ in types}


@cache
def _types(kind: type) -> tuple[tuple[str, type], ...]:
    return tuple((f.name, {"int": int, "str": str, "bool": bool}[str(f.type)]) for f in fields(kind))
