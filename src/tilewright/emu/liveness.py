"""The registers that live at each place of a program, and rows for them: those that never live at once share one.

A lane writes only its own column of a row, so lanes at different places of the program cannot disturb each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .isa import registry
from .ptx import Instruction, Memory, Register, registers_of

if TYPE_CHECKING:
    from .program import Block


class Effects(NamedTuple):
    """The registers that an instruction reads and writes, and whether the write replaces the old value for sure."""

    reads: tuple[Register, ...]
    writes: tuple[Register, ...]
    replaces: bool


def effects(instruction: Instruction, handler: registry.Handler) -> Effects:
    """Return what an instruction does to registers."""
    operands = instruction.operands
    writes: list[Register] = []
    reads: list[Register] = [instruction.guard] if instruction.guard else []
    first = 0
    if handler.destination != "none" and operands and not isinstance(operands[0], Memory):
        writes = registers_of(operands[0])
        first = 1 if handler.destination == "write" else 0
    for operand in operands[first:]:
        if isinstance(operand, Register):  # most are
            reads.append(operand)
        else:
            reads += registers_of(operand)
    return Effects(tuple(reads), tuple(writes), instruction.guard is None)


@dataclass(frozen=True)
class Ranges:
    """The registers of a program, and the places between which each lives: 2 i before instruction i, 2 i + 1 after."""

    registers: list[Register]
    first: list[int]
    last: list[int]
    live_out: list[int]
    """The registers that live after each block, as bits."""

    def after(self, block: int) -> list[Register]:
        """The registers that live after a block."""
        return [self.registers[k] for k in _members(self.live_out[block])]

    def rows(self) -> tuple[dict[Register, int], dict[int, int]]:
        """A row for each register among those of its width, and the rows of each width in bytes. By linear scan."""
        rows: dict[Register, int] = {}
        counts: dict[int, int] = {}
        free: dict[int, list[int]] = {}
        active: dict[int, list[tuple[int, int]]] = {}
        for k in sorted(range(len(self.registers)), key=lambda k: self.first[k]):
            width = self.registers[k].width
            pool, living = free.setdefault(width, []), active.setdefault(width, [])
            while living and living[0][0] < self.first[k]:
                pool.append(heappop(living)[1])
            row = pool.pop() if pool else counts.get(width, 0)
            counts[width] = max(counts.get(width, 0), row + 1)
            rows[self.registers[k]] = row
            heappush(living, (self.last[k], row))
        return rows, counts


def live_ranges(every: Sequence[Effects], blocks: Sequence[Block], successors: Sequence[Sequence[int]]) -> Ranges:
    """Follow the registers through the blocks. every: the effects of each instruction; successors: of each block."""
    number: dict[Register, int] = {}
    first: list[int] = []
    last: list[int] = []

    uses: list[int] = []
    kills: list[int] = []
    for block in blocks:
        used: set[int] = set()
        killed: set[int] = set()
        for i in range(block.start, block.end):
            reads, writes, replaces = every[i]
            for register in reads if replaces else (*reads, *writes):
                k = number.setdefault(register, len(number))
                if k == len(first):
                    first.append(2 * i)
                    last.append(0)
                last[k] = 2 * i  # positions only grow
                if k not in killed:
                    used.add(k)
            for register in writes:
                k = number.setdefault(register, len(number))
                if k == len(first):
                    first.append(2 * i + 1)
                    last.append(0)
                last[k] = 2 * i + 1
                if replaces:
                    killed.add(k)
        uses.append(_as_bits(used))
        kills.append(_as_bits(killed))
    live_in, live_out = _flow(uses, kills, successors)
    starts, ends = np.array(first), np.array(last)
    for block in blocks:
        for bits, position in ((live_in[block.index], 2 * block.start), (live_out[block.index], 2 * block.end - 1)):
            alive = _members(bits)
            starts[alive] = np.minimum(starts[alive], position)
            ends[alive] = np.maximum(ends[alive], position)
    return Ranges(list(number), starts.tolist(), ends.tolist(), live_out)


def _flow(uses: list[int], kills: list[int], successors: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    """The sets of registers that live before and after each block, as bits."""
    live_in, live_out = list(uses), [0] * len(uses)
    changed = True
    while changed:
        changed = False
        for k in range(len(uses) - 1, -1, -1):
            out = 0
            for s in successors[k]:
                out |= live_in[s]
            if out != live_out[k]:
                live_out[k] = out
                live_in[k] = uses[k] | (out & ~kills[k])
                changed = True
    return live_in, live_out


def _as_bits(numbers: set[int]) -> int:
    """The set as an integer that has a bit for each number."""
    out = bytearray(max(numbers, default=0) // 8 + 1)
    for k in numbers:
        out[k >> 3] |= 1 << (k & 7)
    return int.from_bytes(out, "little")


def _members(bits: int) -> np.ndarray:
    """The numbers of a set of _as_bits, ascending."""
    whole = np.frombuffer(bits.to_bytes(bits.bit_length() // 8 + 1, "little"), np.uint8)
    return np.unpackbits(whole, bitorder="little").nonzero()[0]
