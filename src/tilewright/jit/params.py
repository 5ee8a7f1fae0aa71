"""The parameters of a kernel as a template: bytes, and the places in them where addresses and scalars go."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from .tensor_map import TensorMap

WORK = "work"
"""The base of the memory that a program borrows while it runs."""


@dataclass(frozen=True)
class Place:
    """The target of an address: bytes from a base, which is an operand's name or WORK."""

    base: str
    offset: int = 0


Address = Any
"""An address as an integer, or a Place."""


@dataclass(frozen=True)
class Scalar:
    """A number of the call, by its name, which kernels take as a float32."""

    name: str


@dataclass(frozen=True)
class Template:
    """A kernel's parameters but for what each call brings. Positions are in bytes."""

    data: bytes
    addresses: tuple[tuple[int, Place], ...] = ()
    """Eight bytes each."""
    scalars: tuple[tuple[int, str], ...] = ()
    """A float32 each."""
    maps: tuple[tuple[int, TensorMap, Address], ...] = ()
    """Of tensor maps, 128 bytes each: the description without its address, and that."""

    def fill(self, bases: Mapping[str, int], scalars: Mapping[str, float]) -> bytes:
        """The parameters with each base at its address. What stands for tensor maps is left as it is: maps_at."""
        filled = bytearray(self.data)
        for at, place in self.addresses:
            _ADDRESS.pack_into(filled, at, bases[place.base] + place.offset)
        for at, name in self.scalars:
            _FLOAT.pack_into(filled, at, scalars[name])
        return bytes(filled)

    def maps_at(self, bases: Mapping[str, int]) -> tuple[tuple[int, TensorMap, int], ...]:
        """The tensor maps: their position, description and address."""
        return tuple(
            (at, description, bases[place.base] + place.offset if isinstance(place, Place) else place)
            for at, description, place in self.maps
        )

    def __add__(self, other: Template) -> Template:
        """The parameters of both, one after the other."""
        start = len(self.data)
        return Template(
            self.data + other.data,
            self.addresses + tuple((start + at, place) for at, place in other.addresses),
            self.scalars + tuple((start + at, name) for at, name in other.scalars),
            self.maps + tuple((start + at, description, place) for at, description, place in other.maps),
        )


MAP_BYTES = 128
"""Of a tensor map."""
_ADDRESS, _FLOAT = struct.Struct("<Q"), struct.Struct("<f")


@lru_cache(maxsize=256)
def _fields(layout: str) -> tuple[int, ...]:
    """The position of each field of a little-endian struct layout, in bytes."""
    found, at = [], 0
    for count, code in re.findall(r"(\d*)([a-zA-Z])", layout):
        size = struct.calcsize(f"<{code}")
        for _ in range(int(count or 1)):
            if code != "x":
                found.append(at)
            at += size
    return tuple(found)


def pack(layout: str, *values: Any) -> Template:
    """The template of a struct layout ("<4Q12q3i2f4x"). A value may be a Place or a Scalar instead of a number."""
    plain, addresses, scalars = [], [], []
    for at, value in zip(_fields(layout), values, strict=True):
        if isinstance(value, Place):
            addresses.append((at, value))
        elif isinstance(value, Scalar):
            scalars.append((at, value.name))
        plain.append(0 if isinstance(value, (Place, Scalar)) else value)
    return Template(struct.pack(layout, *plain), tuple(addresses), tuple(scalars))


def pack_maps(maps: Sequence[tuple[TensorMap | None, Address]]) -> Template:
    """The template of a struct of tensor maps, which comes first among the parameters: it is aligned to 64 bytes.

    None: a map that the kernel does not use, and for which there may be no address.
    """
    places = [(MAP_BYTES * number, found, at) for number, (found, at) in enumerate(maps) if found is not None]
    return Template(bytes(MAP_BYTES * len(maps)), maps=tuple(places))


def pack_numbers(numbers: Sequence[float | Scalar]) -> Template:
    """The template of float32s in a struct alignas(8): floats of a traced expression, as many as there are."""
    return pack(f"<{len(numbers)}f{'4x' if len(numbers) % 2 else ''}", *numbers)


def number_names(count: int) -> tuple[str, ...]:
    """The names that the numbers of a traced expression have among a call's scalars."""
    return tuple([f"number {place}" for place in range(count)])


def named_numbers(numbers: Sequence[float]) -> dict[str, float]:
    """The numbers as scalars of a call."""
    return dict(zip(number_names(len(numbers)), numbers, strict=True))
