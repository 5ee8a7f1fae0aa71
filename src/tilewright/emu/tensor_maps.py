"""Tensor maps on the emulator: 128 bytes that stand for a CUtensorMap, and where the elements of a box lie.

The bytes are the emulator's own: a kernel may copy them and change them by tensormap.replace, nothing else.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from ..errors import InvalidOperand
from ..jit.tensor_map import DTYPES, OOB_FILLS, SWIZZLES, TensorMap
from .global_rows import in_rows

if TYPE_CHECKING:
    from .machine import Machine
    from .ptx import Instruction

BYTES = 128
UNIT = 16
"""Bytes that a box is moved in."""
_MAGIC = b"twTMAP01"
_LAYOUT = struct.Struct("<8sQ5Q4Q5H5B4BB6h")
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
        SWIZZLES.index(description.swizzle), OOB_FILLS.index(description.oob_fill), description.corners is not None,
        *(value for corner in description.corners or ((), ()) for value in padded(corner, 3)),
    ).ljust(BYTES, b"\0")  # fmt: skip


@lru_cache(maxsize=256)
def unpack(data: bytes) -> TensorMap:
    """The description in such bytes. Raises InvalidOperand for bytes that are none, or against CUDA's rules."""
    if data[:8] != _MAGIC:
        raise InvalidOperand("these bytes are not a tensor map of the emulator")
    _, address, *rest = _LAYOUT.unpack(data[: _LAYOUT.size])
    shape, strides, box, steps = rest[:5], rest[5:9], rest[9:14], rest[14:19]
    rank, dtype, swizzle, fill, images, *corners = rest[19:]
    axes = rank - 2
    return TensorMap(
        address, DTYPES[dtype], tuple(shape[:rank]), tuple(strides[: rank - 1]), tuple(box[: 2 if images else rank]),
        tuple(steps[:rank]), SWIZZLES[swizzle], OOB_FILLS[fill],
        corners=(tuple(corners[:axes]), tuple(corners[3 : 3 + axes])) if images else None,
    )  # fmt: skip


def with_field(data: bytes, name: str, index: int, value: int) -> bytes:
    """The bytes after tensormap.replace of one field. Rules between fields are checked when the map is used."""
    if data[:8] != _MAGIC:
        raise InvalidOperand("these bytes are not a tensor map of the emulator")
    parts = list(_LAYOUT.unpack(data[: _LAYOUT.size]))
    if parts[25]:
        raise InvalidOperand("tensormap.replace.tile changes tiled maps, and this is one of images (im2col)")
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
    """The places of a box's pieces. They run with dimension 0 first, as they do in shared memory."""

    addresses: np.ndarray
    """Global address of each piece, int64."""
    inside: np.ndarray
    """Whether it lies within the tensor, bool."""
    size: int
    """Bytes of a piece."""
    rows: tuple[np.ndarray, int] | None = None
    """Of a box that lies within the tensor where its rows begin, int64, and their bytes (global_rows.py)."""


def locate(what: TensorMap, coordinates: tuple[int, ...], *, units: bool = False) -> Box:
    """The elements of the box that starts at `coordinates`, dimension 0 first; they may be negative or beyond.

    units: where the whole box is in the tensor, its units of 16 bytes instead.
    """
    assert what.address is not None
    counts, steps, size = list(what.copied), (1, *what.element_strides[1:]), what.itemsize
    strides = [step * stride for step, stride in zip(steps, (size, *what.strides), strict=True)]
    reach = zip(coordinates, counts, steps, what.shape, strict=True)
    whole = all(at >= 0 and at + (count - 1) * step < extent for at, count, step, extent in reach)
    start = what.address + sum(at * pitch for at, pitch in zip(coordinates, (size, *what.strides), strict=True))
    if units and whole:
        counts[0], strides[0], size = counts[0] * size // UNIT, UNIT, UNIT
    start = (start + (1 << 63)) % (1 << 64) - (1 << 63)  # far outside it may be anything
    offsets, everywhere, rows, nbytes = _offsets(tuple(counts), tuple(strides), size)
    addresses = offsets + np.int64(start)
    if whole:
        return Box(addresses, everywhere, size, (rows + np.int64(start), nbytes))
    inside = np.ones(1, bool)
    for k in reversed(range(what.rank)):
        at = coordinates[k] + np.arange(counts[k], dtype=np.int64) * steps[k]
        inside = (inside[:, None] & (at >= 0) & (at < what.shape[k])).reshape(-1)
    return Box(addresses, inside, size)


def locate_pixels(
    what: TensorMap, coordinates: tuple[int, ...], offsets: tuple[int, ...], *, units: bool = False
) -> Box:
    """The pixels of a column of images, channels first: from the one at `coordinates` on along width, height and depth
    of the bounding box, then in the next image. Each is read `offsets` (a filter's tap) further. units: as `locate`.
    """
    assert what.address is not None
    assert what.corners is not None
    (channels, pixels), size = what.box, what.itemsize
    axes = tuple(zip(*what.corners, what.shape[1:-1], what.element_strides[1:-1], strict=True))
    at = np.array(_walk(coordinates[1:], axes, pixels), np.int64)  # [pixels, axes and number of the image]
    at[:, :-1] += offsets
    there: np.ndarray = np.all((at >= 0) & (at < np.array(what.shape[1:])), axis=1)
    first = np.where(there, at @ np.array(what.strides, np.int64), 0) + what.address + coordinates[0] * size
    inner = coordinates[0] + np.arange(channels)
    held = (inner >= 0) & (inner < what.shape[0])
    if units and there.all() and held.all():
        addresses = first[:, None] + np.arange(0, channels * size, UNIT)
        return Box(addresses.reshape(-1), np.ones(addresses.size, bool), UNIT)
    addresses = first[:, None] + np.arange(channels) * size
    return Box(addresses.reshape(-1), (there[:, None] & held).reshape(-1), size)


@lru_cache(maxsize=256)
def _walk(start: tuple[int, ...], axes: tuple[tuple[int, int, int, int], ...], pixels: int) -> list[tuple[int, ...]]:
    """The places of so many pixels from `start` (width first, then the number of the image) on. axes: of each, the
    corners of the bounding box, the extent, and the step."""
    at, found = list(start), []
    for _ in range(pixels):
        found.append(tuple(at))
        for axis, (lower, upper, extent, step) in enumerate(axes):
            at[axis] += step
            if at[axis] < extent + upper:
                break
            at[axis] = lower
        else:
            at[-1] += 1
    return found


@lru_cache(maxsize=64)
def _offsets(
    counts: tuple[int, ...], strides: tuple[int, ...], size: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """The places of so many pieces along each dimension, dimension 0 first, from the first piece on: int64. With them
    as many ones, and the rows that they make (global_rows.py)."""
    offsets = np.zeros(1, np.int64)
    for count, stride in zip(reversed(counts), reversed(strides), strict=True):
        offsets = (offsets[:, None] + np.arange(count, dtype=np.int64) * stride).reshape(-1)
    found = offsets, np.ones(len(offsets), bool), *in_rows(offsets, size)
    for table in found[:3]:
        table.flags.writeable = False
    return found


def swizzled(units: np.ndarray, width: int) -> np.ndarray:
    """Numbers of 16-byte units of shared memory -> where a swizzle of `width` bytes puts them: xor of address bits."""
    return units ^ (units >> 3 & width // UNIT - 1) if width else units


class ChangedMaps:
    """The tensor maps in global memory that a kernel changes, and what its blocks have seen of that.

    Copies may read a map from a cache that stores do not reach: the writer has to run
    fence.proxy.tensormap::generic.release (tensormap.cp_fenceproxy is one of the map it copies), the reader .acquire.
    Whoever of a block has run that, all of the block are taken to have; whoever has run the first, all maps are
    released.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.on = bool(machine.program.opcodes_begin("tensormap.replace.").any())
        self.changed: set[int] = set()
        """Addresses that an instruction for maps has changed."""
        self.acquired: dict[tuple[int, int], bytes] = {}
        """(block of the batch, address) -> the map at the block's last fence."""
        self.released = False
        """Whether a fence that releases any map has run."""
        self.published: dict[int, bytes] = {}
        """Address -> the map that tensormap.cp_fenceproxy wrote there."""

    def reset(self) -> None:
        """A new batch of blocks starts."""
        self.acquired.clear()

    def _bytes(self, address: int) -> bytes:
        return self.machine.memory.read(address, BYTES).tobytes()

    def publish(self, address: int) -> None:
        """tensormap.cp_fenceproxy has copied a map to global memory."""
        self.changed.add(address)
        self.published[address] = self._bytes(address)

    def acquire(self, instruction: Instruction, lane: int, address: int) -> None:
        """A lane runs the fence for a map."""
        if self.machine.memory.find(address) is None:
            return
        now = self.acquired[int(self.machine.cta_of_lane[lane]), address] = self._bytes(address)
        if self.on and not self.released and self.published.get(address) != now and self._changed(address):
            self.machine.report(
                "proxy_fence_missing",
                f"the tensor map at {address:#x} is acquired, which the kernel has changed, and no "
                "fence.proxy.tensormap::generic.release (or tensormap.cp_fenceproxy of it) followed the change",
                instruction, np.array([lane]), address,
            )  # fmt: skip

    def _changed(self, address: int) -> bool:
        """Return whether this launch has written a map."""
        buffer, races = self.machine.memory.find(address), self.machine.races
        if buffer is None or address in self.changed:
            return buffer is not None
        return bool(races and races.within and races.within.wrote(races.track(buffer), address, BYTES))

    def check(self, instruction: Instruction, lane: int, address: int) -> None:
        """A lane's copy uses a map."""
        buffer = self.machine.memory.find(address) if self.on else None
        if buffer is None or self.acquired.get((int(self.machine.cta_of_lane[lane]), address)) == self._bytes(address):
            return
        if self._changed(address):
            self.machine.report(
                "proxy_fence_missing",
                f"a copy by the tensor map at {address:#x}, which the kernel has changed, and no "
                "fence.proxy.tensormap::generic.acquire of the block lies between",
                instruction, np.array([lane]), address,
            )  # fmt: skip
