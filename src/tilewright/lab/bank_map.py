"""The banks of shared memory that a warp's access meets, in how many wavefronts, before and after a swizzle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from ..emu.banks import BANKS, WARP, WORD, ideal, wavefronts
from ..errors import InvalidOperand, did_you_mean, suggests
from ..swizzle import Swizzle
from .shown import Grid, Shown

ACCESSES = ("load", "store", "matrix", "copy")
_LANES_A_LINE = 16


@dataclass(frozen=True)
class BankSide:
    """One layout. `banks`: of each lane's first word. `per_bank`: distinct words that each of the 32 banks serves."""

    addresses: tuple[int, ...]
    banks: tuple[int, ...]
    per_bank: tuple[int, ...]
    wavefronts: int
    """Passes that the access takes."""
    ideal: int
    """The fewest passes that could carry as many bytes."""

    @property
    def ways(self) -> float:
        """Return how many times the fewest possible passes."""
        return self.wavefronts / self.ideal


@dataclass(frozen=True, repr=False)
class BankReport(Shown):
    """A warp's access to shared memory. `after`: the same elements where a swizzle puts them; None without one."""

    access: str
    nbytes: int
    """Bytes per lane."""
    pattern: str
    before: BankSide
    after: BankSide | None
    swizzle: str

    def grids(self) -> tuple[Grid, ...]:
        """Each lane's bank, and how many wavefronts."""
        sides = [("as it lies" if self.after else "", self.before)]
        if self.after is not None:
            sides.append((f"with {self.swizzle}", self.after))
        made = []
        for name, side in sides:
            lines = [side.banks[at : at + _LANES_A_LINE] for at in range(0, WARP, _LANES_A_LINE)]
            rows = [(f"lanes {at}-{at + _LANES_A_LINE - 1}", " ".join(f"{bank:2d}" for bank in line))
                    for at, line in zip(range(0, WARP, _LANES_A_LINE), lines, strict=True)]  # fmt: skip
            busiest = max(range(BANKS), key=side.per_bank.__getitem__)
            most = side.per_bank[busiest]
            rows.append(("busiest", f"bank {busiest}: {most} word{'s' * (most != 1)}"))
            rows.append(("wavefronts", f"{side.wavefronts}, at best {side.ideal}"))
            made.append(Grid(name, ("", "bank of the first word"), tuple(rows)))
        title = f"{self.access}, {self.nbytes} B per lane, {self.pattern}"
        first = made[0]
        heading = f"{title}\n{first.title}".rstrip()
        return (Grid(heading, first.names, first.rows, first.note), *made[1:])


@suggests
def banks(
    stride: int | None = None,
    *,
    item: int = 4,
    width: int = 1,
    pitch: int | None = None,
    down: int = 1,
    access: str = "load",
    swizzle: Sequence[int] | Swizzle | None = None,
    offsets: Sequence[int] | None = None,
) -> BankReport:
    """Return which banks a warp's 32 lanes meet, and in how many wavefronts; with a swizzle, before and after it.

    Lane i takes element (i % down) * pitch + (i // down) * stride: `down` lanes go down lines that are `pitch` elements
    apart, the others along them. down=1: all lanes along one line. stride: by default the width. offsets: the 32
    elements themselves instead. item: bytes per element. width: elements per lane. access: load, store, matrix
    (ldmatrix, 16 bytes per lane) or copy (cp.async). swizzle: (bits, base, shift), applied to the element. Raises
    InvalidOperand.
    """
    if stride is not None and not isinstance(stride, int):
        raise InvalidOperand(f"stride={stride!r} is not a whole number. A kernel's accesses: banks_of({stride!r}).")
    if access not in ACCESSES:
        raise InvalidOperand(f"access={access!r} is not one of {', '.join(ACCESSES)}.{did_you_mean(access, ACCESSES)}")
    nbytes = item * width
    if nbytes not in (1, 2, 4, 8, 16) or (access == "matrix" and nbytes != 16):
        wanted = "16" if access == "matrix" else "1, 2, 4, 8 or 16"
        raise InvalidOperand(f"{width} elements of {item} B are {nbytes} B per lane; {access} moves {wanted}.")
    if stride is None:
        stride = width
    if offsets is None:
        if not 1 <= down <= WARP:
            raise InvalidOperand(f"down={down} is not from 1 to {WARP}.")
        if down > 1 and pitch is None:
            raise InvalidOperand(f"down={down} lanes go down lines: give pitch, the elements from line to line.")
        if down == 1 and pitch:
            raise InvalidOperand(
                f"pitch={pitch} is the way from line to line, and no lane goes down one: give down too."
            )
        places = [(i % down) * (pitch or 0) + (i // down) * stride for i in range(WARP)]
        times = "" if stride == 1 else f"{stride} * "
        pattern = f"lane i at element {times}i" if down == 1 else (
            f"lane i at line i % {down} of {pitch} elements, column {times}(i // {down})"
        )  # fmt: skip
    else:
        places, pattern = list(offsets), "at the given elements"
        if len(places) != WARP:
            raise InvalidOperand(f"{len(places)} offsets; a warp has {WARP} lanes.")
    for lane, place in enumerate(places):
        if not 0 <= place < 2**31:
            raise InvalidOperand(f"lane {lane} would take element {place}: elements count from 0 to 2^31 - 1.")
        if place * item % nbytes:
            raise InvalidOperand(
                f"lane {lane} would take {width} elements from element {place} on, byte {place * item}: not a multiple "
                f"of its {nbytes} B. Elements must be multiples of {width}."
            )
    turned = None if swizzle is None else swizzle if isinstance(swizzle, Swizzle) else _swizzle(swizzle)
    after = None
    if turned is not None:
        moved = [turned(place) for place in places]
        whole = all(turned(place + j) == to + j for place, to in zip(places, moved, strict=True) for j in range(width))
        if not whole or any(place * item % nbytes for place in moved):
            raise InvalidOperand(
                f"this swizzle takes the {width} elements of a lane apart: its base must be at least "
                f"{(width - 1).bit_length()}, so that 2^base elements stay together."
            )
        after = _side(moved, item, nbytes, access)
    name = "" if turned is None else f"Swizzle<{turned.bits},{turned.base},{turned.shift}>"
    return BankReport(access, nbytes, pattern, _side(places, item, nbytes, access), after, name)


def _swizzle(parts: Sequence[int]) -> Swizzle:
    found = tuple(parts)
    if len(found) != 3 or not all(isinstance(part, int) for part in found):
        raise InvalidOperand(f"swizzle={parts!r} is not (bits, base, shift), such as (3, 3, 3).")
    return Swizzle(*found)


def _side(places: Sequence[int], item: int, nbytes: int, access: str) -> BankSide:
    addresses = np.array([places], np.int64) * item
    words = np.unique(addresses[0][:, None] // WORD + np.arange(max(nbytes // WORD, 1)))
    per_bank = np.bincount(words % BANKS, minlength=BANKS)
    (taken,), (best,) = wavefronts(addresses, nbytes, access=access), ideal(addresses, nbytes)
    first = addresses[0] // WORD % BANKS
    return BankSide(
        tuple(map(int, addresses[0])), tuple(map(int, first)), tuple(map(int, per_bank)), int(taken), int(best)
    )


@dataclass(frozen=True)
class StrideRow:
    """One thread: where it starts, by how much each bit of the step moves it, and the columns that follow."""

    thread: int
    strides: tuple[int, ...]
    base: int
    columns: tuple[int, ...]


@dataclass(frozen=True, repr=False)
class StrideTable(Shown):
    """An xor swizzle of `size` columns written as signed strides."""

    size: int
    rows: tuple[StrideRow, ...]

    def grids(self) -> tuple[Grid, ...]:
        """One row per thread."""
        lines = tuple(
            (str(row.thread), str(row.strides), str(row.base), " ".join(map(str, row.columns))) for row in self.rows
        )
        title = f"Columns thread ^ step of a {self.size} x {self.size} tile, as strides of the bits of the step"
        return (Grid(title, ("thread", "strides", "base", "columns, step by step"), lines),)


@suggests
def swizzle_strides(size: int = 8) -> StrideTable:
    """Return thread ^ step for each thread and step below `size` (a power of two) as a base and signed strides.

    Bit i of the step adds 2^i where that bit of the thread is clear, and takes it away where it is set: addresses then
    need one register and constants instead of an xor per access. Raises InvalidOperand.
    """
    if size < 2 or size > 1024 or size & (size - 1):
        raise InvalidOperand(f"size={size} is not a power of two from 2 to 1024.")
    bits = [1 << i for i in reversed(range(size.bit_length() - 1))]
    rows = []
    for thread in range(size):
        strides = tuple(-bit if thread & bit else bit for bit in bits)
        steps = product((0, 1), repeat=len(bits))  # the bits of step 0, 1, 2 ...
        columns = tuple(thread + sum(s for s, one in zip(strides, step, strict=True) if one) for step in steps)
        rows.append(StrideRow(thread, strides, thread, columns))
    return StrideTable(size, tuple(rows))
