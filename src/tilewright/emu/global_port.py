"""The batch's way to global memory: addresses -> checked places in the arena, with the sectors that belong to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from . import coalesce
from .access import count_sectors, judged, only_writes, same, unfilled
from .compiled import address
from .memory import ARENA_BASE, ELEMENT, Buffer
from .ptx import Instruction
from .trace import Site

if TYPE_CHECKING:
    from .global_races import GlobalRaces
    from .machine import Machine

REMEMBERED = 8
"""Patterns kept at one instruction."""
HOPELESS = 32
"""Accesses in a row with addresses of their own, after which only the last pattern is kept, for thrice as many."""
LATELY = 4
"""Patterns of any instruction that new ones are compared with: a thread's elements often lie in one pattern."""
MOST_BUFFERS = 64
"""Races between blocks are judged of an access that reaches so many buffers at once."""


class GlobalPattern:
    """Addresses of one instruction in global memory, relative to those of its first active lane."""

    __slots__ = (
        "_unique",
        "aligned",
        "buffer",
        "cells",
        "high",
        "lanes",
        "low",
        "nbytes",
        "pairs",
        "relative",
        "requests",
        "sectors",
    )  # fmt: skip

    def __init__(self, machine: Machine, lanes: np.ndarray | None, relative: np.ndarray, nbytes: int) -> None:
        self.lanes = lanes
        self.relative = relative
        self.nbytes = nbytes
        self.cells: np.ndarray | None = None
        """Granules that each lane touches, from the first address on."""
        self._unique: bool | None = None
        self.pairs: np.ndarray | None = None
        """What `at_one_place` says of it, where somebody has asked."""
        signed = relative.view(np.int64)
        if machine.compiled is not None:
            self.low, last, bits, self.requests = machine.compiled.extent(signed, lanes)
        else:
            self.low, last, bits = int(signed.min()), int(signed.max()), int(np.bitwise_or.reduce(signed))
            self.requests = machine.lanes // 32 if lanes is None else int(np.count_nonzero(np.diff(lanes >> 5))) + 1
        self.high = last + nbytes
        self.aligned = not bits & (nbytes - 1)
        self.buffer: Buffer | None = None
        self.sectors: dict[int, int] = {}
        """First address modulo 32 -> sectors of all warps."""

    def again(self) -> GlobalPattern:
        """Return a pattern of another instruction, which has the same addresses and lanes."""
        other = GlobalPattern.__new__(GlobalPattern)
        for name in self.__slots__:
            setattr(other, name, getattr(self, name))
        other.buffer = None
        return other

    @property
    def unique(self) -> bool:
        """Return whether no two lanes touch the same granule."""
        if self._unique is None:
            assert self.cells is not None
            first = np.sort(self.cells[:, 0])
            self._unique = bool((first[1:] != first[:-1]).all())
        return self._unique


class GlobalPort:
    """The batch's way to global memory."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.memory = machine.memory
        self.races = machine.races
        self._relative = np.empty(machine.lanes, np.uint64)
        self._index = np.empty(machine.lanes, np.int64)
        self._lately: list[GlobalPattern] = []
        self.pattern: GlobalPattern | None = None
        """The last one that was found, if all of its lanes may do what they want to."""

    def locate(
        self, site: Site, instruction: Instruction, base: np.ndarray, offset: int, nbytes: int, write: bool
    ) -> tuple[np.ndarray | None, np.ndarray] | None:
        """Check and count one access; (active lanes or None for all, element indices), or None if no lane is left.

        The indices are valid until the next call. `base`: uint64, one per lane of the batch, or of length 1 for all.
        """
        found = self.find(site, instruction, base, offset, nbytes, write)
        if found is None:
            return None
        lanes, relative, start = found
        out = self._index[: len(relative)]
        np.add(relative, start, out=out)
        return lanes, np.right_shift(out, nbytes.bit_length() - 1, out=out)

    def find(
        self, site: Site, instruction: Instruction, base: np.ndarray, offset: int, nbytes: int, write: bool
    ) -> tuple[np.ndarray | None, np.ndarray, int] | None:
        """Do as `locate`: (lanes, bytes, start), the lanes' places in the arena being `bytes` from `start` on."""
        machine = self.machine
        lanes = machine.lane_list()
        count = machine.lanes if lanes is None else len(lanes)
        if not count:
            return None
        self.pattern = None
        first = int(base[0 if lanes is None or len(base) == 1 else lanes[0]])
        pattern = self._known(site.patterns, base, lanes, count)
        site.fresh = 0 if pattern is not None else site.fresh + 1
        if pattern is None:
            pattern = self._new(base, lanes, count, nbytes, lonely=site.fresh > HOPELESS)
            site.patterns.insert(0, pattern)
            del site.patterns[1 if site.fresh % (4 * HOPELESS) > HOPELESS else REMEMBERED :]
        start = first + offset
        buffer = pattern.buffer
        if buffer is None or start + pattern.low < buffer.start or start + pattern.high > buffer.end:
            buffer = self.memory.find(start + pattern.low)
            if buffer is not None and start + pattern.high > buffer.end:
                buffer = None
            pattern.buffer = buffer
        if buffer is None or not pattern.aligned or start % nbytes or (write and buffer.read_only):
            good = self._check(instruction, pattern, start, nbytes, write)
            if good is not None:
                lanes, addresses = machine.some(lanes, good), pattern.relative[good] + np.uint64(start % 2**64)
                if not len(lanes):
                    return None
                site.requests += machine.lanes // 32 if lanes is None else len(np.unique(lanes >> 5))
                site.sectors += count_sectors(machine, lanes, addresses.view(np.int64), nbytes, 0)
                site.bytes += nbytes * len(lanes)
                return lanes, (addresses - np.uint64(ARENA_BASE)).view(np.int64), 0
        phase = start % coalesce.SECTOR
        if phase not in pattern.sectors:
            pattern.sectors[phase] = count_sectors(machine, lanes, pattern.relative.view(np.int64), nbytes, start)
        if self.memory.written is not None:
            self._follow(instruction, pattern, start, self.memory.written, write)
        if self.races is not None:
            self._judge(self.races, instruction.index, pattern, start, buffer)
        site.requests += pattern.requests
        site.sectors += pattern.sectors[phase]
        site.bytes += nbytes * count
        self.pattern = pattern
        return lanes, pattern.relative.view(np.int64), start - ARENA_BASE

    def _new(
        self, base: np.ndarray, lanes: np.ndarray | None, count: int, nbytes: int, *, lonely: bool
    ) -> GlobalPattern:
        """A pattern of the lanes' addresses for an instruction that has not had it. `lonely`: nor has any other."""
        lately = [] if lonely else self._lately
        known = self._known([one for one in lately if one.nbytes == nbytes], base, lanes, count)
        if known is not None:
            return known.again()
        seen = base if lanes is None or len(base) == 1 else base[lanes]
        relative = np.subtract(seen, seen[0], out=np.empty(count, np.uint64))
        pattern = GlobalPattern(self.machine, lanes, relative, nbytes)
        lately.insert(0, pattern)
        del lately[LATELY:]
        return pattern

    def _known(
        self, patterns: list[GlobalPattern], base: np.ndarray, lanes: np.ndarray | None, count: int
    ) -> GlobalPattern | None:
        """The pattern of these that the lanes' addresses have."""
        compiled = self.machine.compiled
        if compiled is None or len(base) == 1 or base.strides != (8,):
            seen = base if lanes is None or len(base) == 1 else base[lanes]
            relative = np.subtract(seen, seen[0], out=self._relative[:count])
            for known in patterns:
                if same(known.lanes, lanes) and same(known.relative, relative):
                    return known
            return None
        if not patterns:
            return None
        at, places = address(base), 0 if lanes is None else address(lanes)
        for known in patterns:
            if same(known.lanes, lanes) and compiled.apart(at, places, count, address(known.relative)):
                return known
        return None

    def _follow(
        self, instruction: Instruction, pattern: GlobalPattern, start: int, written: np.ndarray, write: bool
    ) -> None:
        """Follow a buffer that held nothing at first: mark what is written, report a read of what has not been."""
        nbytes = pattern.nbytes
        index = (pattern.relative.view(np.int64) + (start - ARENA_BASE)) // nbytes
        if (not write or instruction.opcode.startswith(("atom", "red"))) and not only_writes(self.machine, instruction):
            each = judged(instruction, nbytes)
            marks: np.ndarray = written.view(ELEMENT[each])
            missing = (marks[index[:, None] * (nbytes // each) + np.arange(nbytes // each)] == 0).any(axis=1)
            if used := self.machine.used_parts.get(instruction.index):
                missing |= unfilled(used, written, index * nbytes)
            if missing.any():
                at = start + int(pattern.relative.view(np.int64)[missing][0])
                self.machine.report(
                    "uninitialised_read",
                    f"read of {nbytes} bytes at {at:#x}, {self.memory.describe(at)}, which nobody has written",
                    instruction, self.machine.some(pattern.lanes, missing), at,
                )  # fmt: skip
        if write:
            written.reshape(-1, nbytes)[index] = 1

    def _judge(self, races: GlobalRaces, index: int, pattern: GlobalPattern, start: int, buffer: Buffer | None) -> None:
        """Note an access for races between blocks; of one that reaches several buffers each part."""
        if buffer is not None:
            races.note(index, pattern, start, buffer)
            return
        addresses = pattern.relative.view(np.int64) + start
        which = self.memory.numbers(addresses)
        numbers = np.unique(which)
        races.missed |= len(numbers) > MOST_BUFFERS
        for number in numbers.tolist() if len(numbers) <= MOST_BUFFERS else ():
            chosen = which == number
            some = addresses[chosen]
            relative = (some - some[0]).view(np.uint64)
            part = GlobalPattern(self.machine, self.machine.some(pattern.lanes, chosen), relative, pattern.nbytes)
            found = self.memory.find(int(some[0]))
            assert found is not None
            before = len(races.waiting)
            races.note(index, part, int(some[0]), found)
            for _, clash in races.waiting[before:]:
                rows = np.zeros(len(chosen), bool)
                rows[chosen] = clash.rows
                clash.rows = rows

    def _check(
        self, instruction: Instruction, pattern: GlobalPattern, start: int, nbytes: int, write: bool
    ) -> np.ndarray | None:
        """Lane by lane: report what is wrong. None if all is well, else which of the pattern's lanes are good."""
        machine, memory = self.machine, self.memory
        addresses = pattern.relative + np.uint64(start % 2**64)
        inside = memory.inside(addresses, nbytes)
        skewed = addresses % np.uint64(nbytes) != 0
        kind = "write" if write else "read"
        if not inside.all():
            at = int(addresses[~inside][0])
            machine.report(
                "out_of_bounds",
                f"{kind} of {nbytes} bytes at {at:#x}: {memory.describe(at)}",
                instruction, machine.some(pattern.lanes, ~inside), at,
            )  # fmt: skip
        elif skewed.any():
            at = int(addresses[skewed][0])
            machine.report(
                "misaligned",
                f"{kind} of {nbytes} bytes at {at:#x}, which is not a multiple of {nbytes}: {memory.describe(at)}",
                instruction, machine.some(pattern.lanes, skewed), at,
            )  # fmt: skip
        good = inside & ~skewed
        if write:
            fixed = good & memory.read_only(addresses)
            good &= ~fixed
            if fixed.any():
                at = int(addresses[fixed][0])
                machine.report(
                    "write_to_read_only",
                    f"write of {nbytes} bytes at {at:#x}: {memory.describe(at)}",
                    instruction, machine.some(pattern.lanes, fixed), at,
                )  # fmt: skip
        return None if good.all() else good

    def load(self, index: np.ndarray, nbytes: int, out: np.ndarray) -> None:
        """Gather elements."""
        self.memory.views[nbytes].take(index, out=out, mode="clip")

    def store(self, index: np.ndarray, nbytes: int, values: np.ndarray) -> None:
        """Scatter elements; of two lanes at one address the higher lane's stays."""
        view = self.memory.views[nbytes]
        if self.races is None or not self.races.waiting:
            view[index] = values
            return
        before = view[index]
        view[index] = values
        self.races.stored(before, view[index], values)
