"""Textures and surfaces: what a cudaTextureObject_t or cudaSurfaceObject_t argument stands for, and how one is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..errors import InvalidOperand

HANDLES = 0x7B00_0000_0000
"""Where handles lie: in no state space, so that one that is used as a pointer is out of bounds."""
_FRACTION = 256
"""Steps of the weights of linear filtering: a GPU's have 8 bits after the point."""


@dataclass(frozen=True, eq=False)
class _Image:
    """Elements in up to three dimensions, the last but the channels is x."""

    array: np.ndarray
    channels: int = 1

    def __post_init__(self) -> None:
        axes = self.array.ndim - (self.channels > 1)
        if not isinstance(self.array, np.ndarray) or not 1 <= axes <= 3 or self.array.size == 0:
            raise InvalidOperand(f"{self.what} takes an array of 1 to 3 axes, x the last, and one of channels.")
        if self.channels not in (1, 2, 4) or (self.channels > 1 and self.array.shape[-1] != self.channels):
            raise InvalidOperand(f"{self.what}: channels is {self.channels}; it is 1, 2 or 4, the last axis.")
        if self.array.dtype.name not in (
            "float16", "float32", "int8", "uint8", "int16", "uint16", "int32", "uint32"
        ):  # fmt: skip
            raise InvalidOperand(f"{self.what}: {self.array.dtype.name} is not a type of its elements. Try float32.")

    @property
    def what(self) -> str:
        return type(self).__name__

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along x, y and z."""
        return tuple(reversed(self.array.shape[: self.array.ndim - (self.channels > 1)]))


@dataclass(frozen=True, eq=False)
class Texture(_Image):
    """A cudaTextureObject_t: `array` [z, y, x] or fewer axes, with `channels` of 2 or 4 as one axis more.

    filter: "point" or "linear". address: "clamp", "border", "wrap" or "mirror"; the last two need normalized
    coordinates. normalized: coordinates from 0 to 1. read: "element", or "normalized" for integers as floats.
    """

    filter: str = "point"
    address: str = "clamp"
    normalized: bool = False
    read: str = "element"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value, known in (
            ("filter", self.filter, ("point", "linear")),
            ("address", self.address, ("clamp", "border", "wrap", "mirror")),
            ("read", self.read, ("element", "normalized")),
        ):
            if value not in known:
                raise InvalidOperand(f"Texture: {name} is {value!r}; it is one of {', '.join(known)}.")
        if self.address in ("wrap", "mirror") and not self.normalized:
            raise InvalidOperand(f"Texture: address={self.address!r} needs normalized=True, as on a GPU.")
        if self.filter == "linear" and not self.floating:
            raise InvalidOperand("Texture: linear filtering needs floats: float32, float16, or read='normalized'.")

    @property
    def floating(self) -> bool:
        """Return whether it is read as floats."""
        return self.array.dtype.kind == "f" or self.read == "normalized"

    @cached_property
    def values(self) -> np.ndarray:
        """The elements as they are read: float32, int32 or uint32 [z, y, x, channels]."""
        array = self.array
        if array.dtype.kind != "f" and self.read == "normalized":
            array = np.maximum(array / np.float64(np.iinfo(array.dtype).max), -1).astype(np.float32)
        kind = {"f": np.float32, "i": np.int32, "u": np.uint32}[array.dtype.kind]
        return array.astype(kind).reshape(*([1] * (3 - len(self.shape))), *reversed(self.shape), self.channels)

    def at(self, coordinates: Sequence[np.ndarray]) -> np.ndarray:
        """The elements at coordinates (x, y, z; float32 or int32): [lanes, channels]."""
        values = self.values
        index: list[list[tuple[np.ndarray, np.ndarray, np.ndarray]]] = []  # of each axis: (place, inside, weight)
        for size, given in zip(self.shape, coordinates, strict=True):
            if given.dtype.kind == "i":
                index.append([(np.clip(given, 0, size - 1), (given >= 0) & (given < size), np.ones(len(given)))])
                continue
            x = np.nan_to_num(given.astype(np.float64), nan=0.0, posinf=2.0**40, neginf=-(2.0**40))
            x = x * size if self.normalized else x
            x = np.clip(x, -(2.0**60), 2.0**60)
            if self.filter == "point":
                index.append([(*self._place(np.floor(x), size), np.ones(len(x)))])
                continue
            low = np.floor(x - 0.5)
            weight = np.rint((x - 0.5 - low) * _FRACTION) / _FRACTION
            index.append([(*self._place(low, size), 1 - weight), (*self._place(low + 1, size), weight)])
        index += [[(np.zeros(len(coordinates[0]), np.int64), np.ones(len(coordinates[0]), bool),
                    np.ones(len(coordinates[0])))]] * (3 - len(index))  # fmt: skip
        sums = np.zeros((len(coordinates[0]), self.channels))
        for ix, in_x, wx in index[0]:
            for iy, in_y, wy in index[1]:
                for iz, in_z, wz in index[2]:
                    inside = (in_x & in_y & in_z)[:, None]
                    sums += np.where(inside, values[iz, iy, ix], 0) * (wx * wy * wz)[:, None]
        return sums.astype(values.dtype)

    def _place(self, whole: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
        """(index, whether it is inside) of whole coordinates."""
        inside = np.ones(len(whole), bool)
        if self.address == "wrap":
            return np.mod(whole, size).astype(np.int64), inside
        if self.address == "mirror":
            place = np.mod(whole, 2 * size)
            return np.where(place < size, place, 2 * size - 1 - place).astype(np.int64), inside
        if self.address == "border":
            inside = (whole >= 0) & (whole < size)
        return np.clip(whole, 0, size - 1).astype(np.int64), inside


@dataclass(frozen=True, eq=False)
class Surface(_Image):
    """A cudaSurfaceObject_t over `array` [z, y, x] or fewer axes; what kernels write comes back as of a buffer."""


@dataclass(frozen=True)
class BoundSurface:
    """A surface in the emulator's memory."""

    surface: Surface
    address: int

    @property
    def row_bytes(self) -> int:
        """Bytes of a row along x."""
        return self.surface.shape[0] * self.surface.channels * self.surface.array.itemsize
