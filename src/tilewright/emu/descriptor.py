"""The places of an operand's elements by a matrix descriptor of wgmma: a pure function of its bits.

An operand is mn x k: A is m x k, B is n x k, and k is 32 bytes. It is made of units of 16 bytes; those of a *row* (of W
bytes) lie next to one another, eight rows make a *brick*, and the two offsets of the descriptor say how bricks follow:

    major  row        along k                       along m or n
    k      16 B       two units, `leading` apart    brick of 8 x 16 B, then `stride`
    k      W = 32...  two units of one row          brick of 8 x W, then `stride`
    mn     16 B       brick of 8 x 16 B, `leading`  one unit (8 elements), then `stride`
    mn     W = 32...  brick of 8 x W, `stride`      W / 16 units of one row, then `leading`

W is 128, 64 or 32, and rows that wide are swizzled: the number of the 16-byte unit within the row is xored with bits 7
and up of the address. It is the address itself that counts, start of the operand included, so that a kernel steps along
k by adding to the start. (PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout"; CUTLASS's
cute/atom/mma_traits_sm90_gmma.hpp has the same as CuTe layouts.)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

UNIT = 16
_ROW = {0: 16, 1: 128, 2: 64, 3: 32}
_OFFSET = 0x3FFF
_USED = _OFFSET | _OFFSET << 16 | _OFFSET << 32 | 3 << 62


@dataclass(frozen=True)
class Descriptor:
    """The fields of the 64 bits, in bytes."""

    start: int
    leading: int
    stride: int
    row: int
    """Bytes of a row: 128, 64 or 32 with the swizzle of that width, 16 without."""

    @staticmethod
    def of(bits: int) -> Descriptor:
        """Take the fields apart."""
        leading, stride = ((bits >> at & _OFFSET) * UNIT for at in (16, 32))
        return Descriptor((bits & _OFFSET) * UNIT, leading, stride, _ROW[bits >> 62])


def why_wrong(bits: int) -> str | None:
    """Return what in a descriptor cannot be meant, or None."""
    if bits >> 49 & 7:
        return f"has the base offset {bits >> 49 & 7}, which is not modelled"
    if bits & ~_USED:
        return f"has bits set that mean nothing ({bits & ~_USED:#x})"
    return None


MEASURED = 128
"""Bytes of a swizzle's rows that may start anywhere."""


def begins_askew(bits: int) -> int | None:
    """The multiple of bytes at which a swizzled operand's rows have to start if they do not, else None.

    A step along k within the first row is fine. Rows of 128 bytes may start anywhere: an H200 swizzles them by the bits
    of their addresses, with a base offset of 0 (each of the 8 rows was tried). Of narrower ones nothing was measured.
    """
    what = Descriptor.of(bits)
    pattern = 8 * what.row
    return pattern if UNIT < what.row < MEASURED and what.start % pattern >= what.row else None


@lru_cache(maxsize=256)
def addresses(bits: int, mn: int, size: int, across: bool) -> np.ndarray:
    """The shared address of every element, int64 [mn * k] with k innermost and k * size = 32 bytes.

    `size`: bytes of an element; `across`: whether rows run along m or n ("transposed"), else along k.
    """
    what = Descriptor.of(bits)
    line, k = np.arange(mn)[:, None], np.arange(32 // size)[None, :]
    per_unit = UNIT // size
    if not across:
        units = UNIT if what.row > UNIT else what.leading
        offset = line % 8 * what.row + line // 8 * what.stride + k // per_unit * units + k % per_unit * size
    else:
        unit, within = line // per_unit, line % per_unit * size
        wide = what.row // UNIT
        next_row, next_brick = (what.stride, what.leading) if wide == 1 else (what.leading, what.stride)
        offset = within + unit % wide * UNIT + unit // wide * next_row + k % 8 * what.row + k // 8 * next_brick
    found = what.start + offset
    if what.row > UNIT:
        found = found ^ (found >> 7 & what.row // UNIT - 1) << 4
    found = np.ascontiguousarray(found.reshape(-1))
    found.flags.writeable = False
    return found


@lru_cache(maxsize=256)
def end(bits: int, mn: int, size: int, across: bool) -> int:
    """The end of the last one of `addresses`."""
    return int(addresses(bits, mn, size, across).max()) + size


FOURS = np.array([0, 2, 4, 6, 1, 3, 5, 7])
"""The order of 8 columns in which the compiled sums take B: first those with even numbers."""


@lru_cache(maxsize=256)
def places(bits: int, mn: int, size: int, across: bool, fours: bool) -> np.ndarray:
    """The shared address of every element as the compiled sums take them, int32 [k, mn]; `fours`: in that order."""
    found = addresses(bits, mn, size, across).reshape(mn, -1).T
    if fours:
        found = found.reshape(len(found), -1, 8)[:, :, FOURS]
    found = np.ascontiguousarray(found.reshape(-1), np.int32)
    found.flags.writeable = False
    return found


@lru_cache(maxsize=256)
def pieces(bits: int, mn: int, size: int, across: bool, piece: int, *, once: bool = False) -> np.ndarray:
    """The piece of so many bytes of shared memory that each element of `addresses` lies in; once: each one once."""
    found = addresses(bits, mn, size, across) // piece
    found = np.unique(found) if once else found
    found.flags.writeable = False
    return found
