"""Tensor maps on the emulator: 128 bytes that stand for a CUtensorMap, and where the elements of a box lie.

The bytes are the emulator's own: a kernel may copy them and change them by tensormap.replace, nothing else.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ..errors import InvalidOperand
from ..jit.tensor_map import DTYPES, OOB_FILLS, SWIZZLES, TensorMap

BYTES = 128
UNIT = 16
"""Bytes that a box is moved in."""
_MAGIC = b"twTMAP01"
_LAYOUT = struct.Struct("<8sQ5Q4Q5H5B4B")
FIELDS = {
    "global_address": ("address", 0), "rank": ("rank", 0), "global_dim": ("shape", 5), "global_stride": ("strides", 4),
    "box_dim": ("box", 5), "element_stride": ("element_strides", 5), "elemtype": ("dtype", 0),
    "swizzle_mode": ("swizzle", 0), "fill_mode": ("oob_fill", 0), "interleave_layout": ("interleave", 0),
}  # fmt: skip
"""Field of tensormap.replace -> what it is here, and how many of it there are (0: one)."""
_REPLACED = (
    "u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f32_ftz", "f64", "bf16", "tf32", "tf32_ftz",
)  # fmt: skip
"""Element types as tensormap.replace counts them."""
NAN = {size: int.from_bytes(b"\xf7\x7f" * (size // 2), "little") for size in (2, 4, 8)}
"""Bytes of an element -> what an H200 fills it with out of bounds where NaN is asked for: 0x7ff7, again and again."""


def pack(description: TensorMap) -> bytes:
    """The description as the bytes of a kernel parameter. Raises InvalidOperand without an address."""
    if description.address is None:
        raise InvalidOperand("tensor map: no address; make it of a NumPy array (TensorMap.of), or pass one")
    rank = description.rank

    def padded(values: tuple[int, ...], count: int) -> tuple[int, ...]:
        return (*values, *(1,) * (count - len(values)))

    return _LAYOUT.pack(
        _MAGIC, description.address, *padded(description.shape, 5), *padded(description.strides, 4),
        *padded(description.box, 5), *padded(description.element_strides, 5), rank, DTYPES.index(description.dtype),
        SWIZZLES.index(description.swizzle), OOB_FILLS.index(description.oob_fill),
    ).ljust(BYTES, b"\0")  # fmt: skip


@lru_cache(maxsize=256)
def unpack(data: bytes) -> TensorMap:
    """The description in such bytes. Raises InvalidOperand for bytes that are none, or against CUDA's rules."""
    if data[:8] != _MAGIC:
        raise InvalidOperand("these bytes are no tensor map of the emulator")
    _, address, *rest = _LAYOUT.unpack(data[: _LAYOUT.size])
    shape, strides, box, steps = rest[:5], rest[5:9], rest[9:14], rest[14:19]
    rank, dtype, swizzle, fill = rest[19:]
    return TensorMap(
        address, DTYPES[dtype], tuple(shape[:rank]), tuple(strides[: rank - 1]), tuple(box[:rank]), tuple(steps[:rank]),
        SWIZZLES[swizzle], OOB_FILLS[fill],
    )  # fmt: skip


def with_field(data: bytes, name: str, index: int, value: int) -> bytes:
    """The bytes after tensormap.replace of one field. Rules between fields are checked when the map is used."""
    if data[:8] != _MAGIC:
        raise InvalidOperand("these bytes are no tensor map of the emulator")
    parts = list(_LAYOUT.unpack(data[: _LAYOUT.size]))
    first = {"address": 1, "shape": 2, "strides": 7, "box": 11, "element_strides": 16, "rank": 21, "dtype": 22,
             "swizzle": 23, "oob_fill": 24}  # fmt: skip
    what, count = FIELDS[name]
    if what == "interleave":
        if value:
            raise InvalidOperand("interleaved tensor maps are not emulated")
        return data
    if not 0 <= index < max(count, 1):
        raise InvalidOperand(f"{name} has no number {index}")
    if what == "rank":
        value += 1
    elif what == "dtype":
        if not 0 <= value < len(_REPLACED):
            raise InvalidOperand(f"element type {value} is not one of 0 to {len(_REPLACED) - 1}")
        value = DTYPES.index(_REPLACED[value])
    parts[first[what] + index] = value
    return _LAYOUT.pack(*parts).ljust(BYTES, b"\0")


@dataclass(frozen=True)
class Box:
    """The places of a box's elements. Elements run with dimension 0 first, as they do in shared memory."""

    addresses: np.ndarray
    """Global address of each element, int64."""
    inside: np.ndarray
    """Whether it lies within the tensor, bool."""


def locate(what: TensorMap, coordinates: tuple[int, ...]) -> Box:
    """The elements of the box that starts at `coordinates`, dimension 0 first; they may be negative or beyond."""
    assert what.address is not None
    steps = (1, *what.element_strides[1:])
    strides = (what.itemsize, *what.strides)
    addresses = np.full(1, what.address, np.int64)
    inside = np.ones(1, bool)
    for k in reversed(range(what.rank)):
        at = coordinates[k] + np.arange(what.copied[k], dtype=np.int64) * steps[k]
        addresses = (addresses[:, None] + at * strides[k]).reshape(-1)
        inside = (inside[:, None] & (at >= 0) & (at < what.shape[k])).reshape(-1)
    return Box(addresses, inside)


def swizzled(units: np.ndarray, width: int) -> np.ndarray:
    """Numbers of 16-byte units of shared memory -> where a swizzle of `width` bytes puts them: xor of address bits."""
    return units ^ (units >> 3 & width // UNIT - 1) if width else units
