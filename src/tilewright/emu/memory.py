"""Global memory, and where each state space lies in the generic address space."""

from __future__ import annotations

import mmap
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from heapq import merge
from typing import Any

import numpy as np

from .compiled import address

ARENA_BASE = 0x10_0000_0000
"""Address of the first byte of the arena: above 32 bits, so that a pointer cut to 32 bits is caught."""
ALIGNMENT = 256
GUARD = 256
SPACING = 2 * GUARD + ALIGNMENT
"""Bytes that a buffer may take beyond its own."""
RESTING, RESTING_BYTES = 64, 4096
"""Buffers of at most so many bytes whose places are not given out again at once."""
SPARSE_BYTES = 1 << 20
"""Bytes of a table from which on the system's untouched pages are worth asking for."""
SHARED_WINDOW = 0x7F00_0000_0000
LOCAL_WINDOW = 0x7E00_0000_0000
PARAM_WINDOW = 0x7D00_0000_0000
WINDOW_BYTES = 1 << 32
LOCAL_SLOT = 1 << 19
"""Bytes of the local window for each thread of a block: a GPU gives all of them the same addresses, so that a pointer
from another thread is not seen to be one."""
POISON = 0xFF
"""What never written bytes hold: a NaN in every floating-point format, -1 in integers."""

# An element is moved as one item of these types; complex128 serves as "16 bytes", never as a number.
ELEMENT = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}


def aligned_bytes(count: int, fill: int | None = POISON) -> np.ndarray:
    """`count` bytes whose first lies at a multiple of 256 of the host; `fill` None: they hold anything."""
    raw = np.empty(count + ALIGNMENT, np.uint8) if fill is None else np.full(count + ALIGNMENT, fill, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + count]


def sparse_zeros(shape: tuple[int, ...], dtype: type) -> np.ndarray:
    """Zeros of which few will be written: what nobody writes takes neither memory nor time."""
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    if nbytes >= SPARSE_BYTES:
        with suppress(OSError):  # no room: NumPy says so by the error that everybody expects
            return np.frombuffer(mmap.mmap(-1, nbytes, access=mmap.ACCESS_COPY), dtype).reshape(shape)
    return np.zeros(shape, dtype)


def element_views(data: np.ndarray) -> dict[int, np.ndarray]:
    """The bytes seen as elements of 1, 2, 4, 8 and 16 bytes."""
    return {size: data.view(kind) for size, kind in ELEMENT.items()}


def _start(buffer: Buffer) -> int:
    return buffer.start


@dataclass
class Buffer:
    """One allocation. `start` and `bytes` bound what may be touched."""

    name: str
    start: int
    bytes: int
    read_only: bool
    track: Any = None
    """What global_races.py knows of it in the running launch."""

    @property
    def end(self) -> int:
        """One past the last byte."""
        return self.start + self.bytes


class GlobalMemory:
    """Every buffer of device memory in one arena: 256-byte aligned, at least 256 guard bytes between two."""

    def __init__(self) -> None:
        self._hold(aligned_bytes(1 << 16))
        self.written: np.ndarray | None = None
        """Of each byte of the arena whether it holds a value (1); None: all do."""
        self.released = 0
        """Buffers that have been given back."""
        self._resting: deque[Buffer] = deque(maxlen=RESTING)
        """Some of those, whose places are not given out again yet."""
        self._buffers: list[Buffer] = []  # by start
        self._starts: list[int] = []
        self._tight = 0
        """How many of the first buffers have no room before or between them."""

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process needs for a copy."""
        end = self._used()
        buffers = [(buffer.name, buffer.start, buffer.bytes, buffer.read_only) for buffer in self._buffers]
        marks = None if self.written is None else self.written[:end]
        return {"data": self._data[:end], "marks": marks, "buffers": buffers}

    def __setstate__(self, state: dict[str, Any]) -> None:
        data, marks = state["data"], state["marks"]
        held = aligned_bytes(-(-len(data) // ALIGNMENT) * ALIGNMENT)
        held[: len(data)] = data
        self._hold(held)
        self.written = None
        if marks is not None:
            self.written = aligned_bytes(len(held), 1)
            self.written[: len(marks)] = marks
        self.released = 0
        self._resting = deque(maxlen=RESTING)
        self._buffers = [Buffer(*told) for told in state["buffers"]]
        self._starts = [buffer.start for buffer in self._buffers]
        self._tight = 0

    def _hold(self, data: np.ndarray) -> None:
        self._data = data
        self.views = element_views(data)
        self.host = address(data)
        """Where the arena's first byte lies in this process."""

    def add(self, data: bytes | np.ndarray, name: str = "", read_only: bool = False, *, empty: bool = False) -> int:
        """Copy raw bytes in; their address. `data`: bytes, or an array whose memory is taken in C order.

        empty: they hold nothing yet, and to read one before it is written is a fault.
        """
        if isinstance(data, np.ndarray):
            raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        else:
            raw = np.frombuffer(data, np.uint8)
        start = self._gap(len(raw))
        offset = start - ARENA_BASE
        need = -(-(offset + len(raw)) // ALIGNMENT) * ALIGNMENT + GUARD
        if need > len(self._data):
            self._grow(max(2 * len(self._data), need))
        self._data[offset : offset + len(raw)] = raw
        if empty or self.written is not None:
            self._mark(offset, len(raw), empty)
        place = bisect_right(self._starts, start)
        self._buffers.insert(place, Buffer(name or f"buffer{len(self._buffers)}", start, len(raw), read_only))
        self._starts.insert(place, start)
        return start

    def reserve(self, nbytes: int) -> None:
        """Make room for buffers of so many bytes, so that those that come need not be moved for the next one."""
        if nbytes > len(self._data):
            self._grow(nbytes)

    def _grow(self, nbytes: int) -> None:
        whole = -(-nbytes // ALIGNMENT) * ALIGNMENT  # else the views of wider elements would not fit
        grown, used = aligned_bytes(whole, None), self._used()
        grown[:used] = self._data[:used]
        self._hold(grown)

    def _used(self) -> int:
        """Bytes of the arena up to the last buffer's end and its guard."""
        return max((buffer.end for buffer in self._buffers), default=ARENA_BASE) - ARENA_BASE + GUARD

    def _mark(self, offset: int, nbytes: int, empty: bool) -> None:
        """Bytes of a new buffer hold a value, or none."""
        if self.written is None or len(self.written) < len(self._data):
            marks = aligned_bytes(len(self._data), 1)
            if self.written is not None:
                marks[: len(self.written)] = self.written
            self.written = marks
        self.written[offset : offset + nbytes] = not empty

    def _gap(self, nbytes: int) -> int:
        """The lowest address with room for `nbytes` and a guard on both sides."""
        if self._resting:
            return self._gap_beside_resting(nbytes)

        def after(place: int) -> int:
            return -(-(self._buffers[place].end + GUARD) // ALIGNMENT) * ALIGNMENT

        start = after(self._tight - 1) if self._tight else ARENA_BASE + GUARD
        for place in range(self._tight, len(self._buffers)):
            room = self._buffers[place].start - GUARD - start
            if room >= nbytes:
                return start
            if room < 0 and place == self._tight:
                self._tight += 1
            start = after(place)
        return start

    def _gap_beside_resting(self, nbytes: int) -> int:
        start = ARENA_BASE + GUARD
        for buffer in merge(self._buffers, sorted(self._resting, key=_start), key=_start):
            if start + nbytes + GUARD <= buffer.start:
                return start
            start = max(start, -(-(buffer.end + GUARD) // ALIGNMENT) * ALIGNMENT)
        return start

    def release(self, address: int, *, rest: bool = False) -> None:
        """Give a buffer back; later accesses to it are out of bounds. Raises KeyError if none starts there.

        rest: its place is not given out again at once, so that a pointer to it meets no other buffer.
        """
        buffer = self.find(address)
        if buffer is None or buffer.start != address:
            raise KeyError(f"no buffer starts at {address:#x}")
        place = bisect_right(self._starts, address) - 1
        self._tight = min(self._tight, place)
        del self._buffers[place], self._starts[place]
        offset = address - ARENA_BASE
        self._data[offset : offset + buffer.bytes] = POISON
        if rest and buffer.bytes <= RESTING_BYTES:
            self._resting.append(replace(buffer))
        buffer.bytes = 0  # whoever remembers it finds nothing in it
        self.released += 1

    def find(self, address: int) -> Buffer | None:
        """The buffer that holds the byte at `address` (or starts there, if empty)."""
        place = bisect_right(self._starts, address) - 1
        if place < 0:
            return None
        buffer = self._buffers[place]
        return buffer if address < buffer.end or address == buffer.start else None

    def buffers(self) -> dict[str, tuple[int, int]]:
        """Name -> (address, bytes) of every buffer."""
        return {buffer.name: (buffer.start, buffer.bytes) for buffer in self._buffers}

    def inside(self, addresses: np.ndarray, nbytes: int) -> np.ndarray:
        """Return which of the accesses [address, address + nbytes) lie within one buffer: bool, the shape of
        `addresses`."""
        if not self._buffers:
            return np.zeros(addresses.shape, bool)
        starts = np.array(self._starts, np.uint64)
        ends = np.array([b.end for b in self._buffers], np.uint64)
        place = np.searchsorted(starts, addresses, side="right")
        known = np.maximum(place, 1) - 1
        return (place > 0) & (addresses <= ends[known]) & (ends[known] - addresses >= np.uint64(nbytes))

    def numbers(self, addresses: np.ndarray) -> np.ndarray:
        """A number for each address, that of its buffer: equal ones for those in one buffer."""
        return np.searchsorted(np.array(self._starts, np.int64), addresses, side="right")

    def read_only(self, addresses: np.ndarray) -> np.ndarray:
        """Return which addresses lie in a read-only buffer: bool. Each must lie in some buffer or after one."""
        place = np.searchsorted(np.array(self._starts, np.uint64), addresses, side="right")
        return np.array([False, *(buffer.read_only for buffer in self._buffers)])[place]

    def describe(self, address: int) -> str:
        """Return where an address lies, in words."""
        if buffer := self.find(address):
            return f"byte {address - buffer.start} of {buffer.name!r} ({buffer.bytes} bytes)"
        for freed in self._resting:
            if freed.start <= address < freed.end:
                return f"byte {address - freed.start} of {freed.name!r} ({freed.bytes} bytes), which has been freed"
        if address < 4096:
            return "near null: is the pointer set?"
        if not self._buffers or not ARENA_BASE <= address < ARENA_BASE + len(self._data):
            return "in no buffer"
        place = bisect_right(self._starts, address) - 1
        around: Iterable[Buffer] = self._buffers[max(place, 0) : place + 2]
        near = min(around, key=lambda b: min(abs(address - b.start), abs(address - b.end)))
        if address >= near.end:
            beyond = address - near.end
            where = f"{beyond} bytes past" if beyond else "just past"
            return f"{where} the end of {near.name!r} ({near.bytes} bytes)"
        return f"{near.start - address} bytes before {near.name!r} ({near.bytes} bytes)"

    def holds(self, address: int) -> bool:
        """Return whether an address is stored anywhere in a buffer, 8 bytes at a multiple of 8."""
        for buffer in self._buffers:
            start, stop = buffer.start - ARENA_BASE, buffer.end - ARENA_BASE
            if (self._data[start : stop - (stop - start) % 8].view(np.uint64) == address).any():
                return True
        return False

    def read(self, address: int, nbytes: int) -> np.ndarray:
        """The bytes at `address`, copied: uint8 [nbytes]. Raises IndexError outside every buffer."""
        return self.held(address, nbytes).copy()

    def held(self, address: int, nbytes: int) -> np.ndarray:
        """The same, not copied."""
        offset = self._host(address, nbytes)
        return self._data[offset : offset + nbytes]

    def write(self, address: int, data: np.ndarray) -> None:
        """Overwrite bytes at `address` from the host. `data`: uint8, one dimension. Raises IndexError outside."""
        offset = self._host(address, len(data))
        self._data[offset : offset + len(data)] = data

    def _host(self, address: int, nbytes: int) -> int:
        buffer = self.find(address)
        if buffer is None or address + nbytes > buffer.end:
            raise IndexError(f"{nbytes} bytes at {address:#x} do not lie in one buffer: {self.describe(address)}")
        return address - ARENA_BASE
