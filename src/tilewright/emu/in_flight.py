"""The registers that wgmma may still be working on at each instruction, found once a program.

A register is in flight from the wgmma.mma_async that names it, as accumulator or as A, to the wgmma.wait_group that
covers it, and so is each copy that `mov` makes of it: compilers copy accumulators where paths meet. What is found here
is what *may* be, along any path; whether it is so is seen when the instruction runs (products.py), and only these
instructions are looked at then. Found here, too: the products that work on registers which something else has written
since the last wgmma.fence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from .ptx import Immediate, Instruction, Operand, Register, registers_of

if TYPE_CHECKING:
    from .liveness import Effects
    from .program import Block

MULTIPLY, COMMIT, WAIT = "wgmma.mma_async", "wgmma.commit_group", "wgmma.wait_group"
FENCE = "wgmma.fence"
RELOADS = ("ld.local", "ld.param", "ld.const")


@dataclass
class InFlight:
    """`number`: the registers that wgmma works on and their copies, counted from 0. `suspects`: instruction index ->
    those of its registers that may be in flight there. `unfenced`: product -> what may have written its registers since
    the last wgmma.fence.
    """

    number: dict[Register, int] = field(default_factory=dict)
    suspects: dict[int, list[Register]] = field(default_factory=dict)
    unfenced: dict[int, frozenset[int]] = field(default_factory=dict)
    _given: dict[int, np.ndarray] = field(default_factory=dict)

    def given(self, product: Instruction) -> np.ndarray:
        """The numbers of the registers that a product works on, int64."""
        if product.index not in self._given:
            self._given[product.index] = np.array([self.number[register] for register in given_to(product)])
        return self._given[product.index]


def is_copy(instruction: Instruction) -> bool:
    """Return whether it moves one whole register to another."""
    operands = instruction.operands
    return (
        instruction.opcode.startswith("mov.")
        and len(operands) == 2
        and all(isinstance(operand, Register) and operand.width == 4 for operand in operands)
    )


def given_to(instruction: Instruction) -> list[Register]:
    """The registers that a wgmma.mma_async works on: its accumulators, and those of A where A is not in memory."""
    found = list(registers_of(instruction.operands[0]))
    a = list(registers_of(instruction.operands[1]))
    return found + [register for register in a if register.width == 4]


def find_in_flight(
    instructions: Sequence[Instruction], effects: Sequence[Effects], blocks: Sequence[Block],
    successors: Sequence[Sequence[int]],
) -> InFlight | None:  # fmt: skip
    """Follow the registers through the program; None when it has no wgmma. effects: of each instruction.

    Two sets of registers pass from instruction to instruction: of products not yet committed to a group, and of
    committed ones. `wgmma.wait_group 0` ends the second set; waits that leave groups pending end nothing here.
    """
    products = [i for i in instructions if i.opcode.startswith(MULTIPLY)]
    if not products:
        return None
    number: dict[Register, int] = {}
    for instruction in products:
        for register in given_to(instruction):
            number.setdefault(register, len(number))
    copies = [i for i in instructions if is_copy(i)]
    before = -1
    while len(number) != before:
        before = len(number)
        for copy in copies:
            to, source = copy.operands
            if source in number:
                number.setdefault(to, len(number))  # type: ignore[arg-type]
    names = list(number)

    def bits(registers: Sequence[Register]) -> int:
        return sum(1 << k for k in {number[register] for register in registers})

    touched = {
        i.index: bits([r for r in (*effects[i.index].reads, *effects[i.index].writes) if r in number])
        for i in instructions
        if not i.opcode.startswith("wgmma.")
    }
    given = {i.index: bits(given_to(i)) for i in products}
    suspects: dict[int, list[Register]] = {}

    def through(block: Block, fresh: int, committed: int, found: bool) -> tuple[int, int]:
        for instruction in instructions[block.start : block.end]:
            index, opcode = instruction.index, instruction.opcode
            if index in given:
                fresh |= given[index]
            elif opcode.startswith(COMMIT):
                fresh, committed = 0, committed | fresh
            elif opcode.startswith(WAIT):
                n = instruction.operands[0]
                committed = 0 if isinstance(n, Immediate) and n.bits == 0 else committed
            elif touched.get(index):
                late = touched[index] & (fresh | committed)
                if found and late:
                    suspects[index] = [names[k] for k in range(late.bit_length()) if late >> k & 1]
                if late and is_copy(instruction):
                    to, source = (1 << number[r] if r in number else 0 for r in instruction.operands)
                    fresh = fresh | to if fresh & source else fresh & ~to
                    committed = committed | to if committed & source else committed & ~to
        return fresh, committed

    entering = [(0, 0)] * len(blocks)
    waiting = set(range(len(blocks)))
    while waiting:
        k = min(waiting)
        waiting.remove(k)
        after = through(blocks[k], *entering[k], False)
        for following in successors[k]:
            joined = entering[following][0] | after[0], entering[following][1] | after[1]
            if joined != entering[following]:
                entering[following] = joined
                waiting.add(following)
    for block in blocks:
        through(block, *entering[block.index], True)
    return InFlight(number, suspects, find_unfenced(instructions, effects, blocks, successors))


def find_unfenced(
    instructions: Sequence[Instruction], effects: Sequence[Effects], blocks: Sequence[Block],
    successors: Sequence[Sequence[int]],
) -> dict[int, frozenset[int]]:  # fmt: skip
    """Return the products that work on registers which something but wgmma may have written since the last wgmma.fence,
    with the instructions that may have.

    Constants and reloads do not count, since compilers move them past the fence; a copy counts as what it copies does.
    """
    products = {i.index: given_to(i) for i in instructions if i.opcode.startswith(MULTIPLY)}
    followed: set[Operand] = {register for given in products.values() for register in given}
    copies = [i for i in instructions if is_copy(i)]
    before = -1
    while len(followed) != before:
        before = len(followed)
        followed |= {copy.operands[1] for copy in copies if copy.operands[0] in followed}
    nothing = frozenset[int]()
    found: dict[int, frozenset[int]] = {}

    def through(block: Block, entering: Mapping[Operand, frozenset[int]]) -> dict[Operand, frozenset[int]]:
        written = dict(entering)
        for instruction in instructions[block.start : block.end]:
            index = instruction.index
            if instruction.opcode.startswith(FENCE):
                written.clear()
            elif index in products:
                late = nothing.union(*(written.get(register, nothing) for register in products[index]))
                if late:
                    found[index] = found.get(index, nothing) | late
            else:
                by = frozenset({index})
                constant = instruction.opcode.startswith("mov.") and isinstance(instruction.operands[1], Immediate)
                if constant or instruction.opcode.startswith(RELOADS):
                    by = nothing
                elif is_copy(instruction):
                    by = written.get(instruction.operands[1], nothing)
                for register in effects[index].writes:
                    if register in followed:
                        written[register] = by if effects[index].replaces else by | written.get(register, nothing)
        return written

    entering: list[dict[Operand, frozenset[int]]] = [{} for _ in blocks]
    waiting = set(range(len(blocks)))
    while waiting:
        k = min(waiting)
        waiting.remove(k)
        for register, by in through(blocks[k], entering[k]).items():
            for following in successors[k]:
                known = entering[following].get(register, nothing)
                if not by <= known:
                    entering[following][register] = known | by
                    waiting.add(following)
    return found
