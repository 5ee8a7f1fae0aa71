"""The fate of what a load has read: which bytes are computed with for sure, and which are only passed on.

Structs have padding, and tiles a rest that nobody fills: to load such bytes is no fault until they are used.
"""

from __future__ import annotations

from functools import lru_cache

from .program import Code
from .ptx import Immediate, Instruction, Memory, Operand, Register, Special, Symbol, Vector, registers_of

Parts = tuple[tuple[int, int], ...]
"""(offset, size) in bytes."""
_FLOATS = {"f16": 2, "bf16": 2, "f16x2": 4, "bf16x2": 4, "f32": 4, "f64": 8}
_INTEGERS = ("add", "sub", "mul", "mad", "min", "max", "popc", "div", "rem")
"""With what lies in any byte of an operand they make another result ..."""
_CUTTING = ("and.", "lop3.", "bfe.", "shr.", "prmt.", "cvt.", "selp.")
"""... of which these may take the part that others had no share in: compilers cut a field out late."""
_PASSED_ON = ("mov", "ld", "ldu", "st", "selp", "shfl", "prmt", "atom", "red", "mma", "wmma", "wgmma", "call")


def _items(operand: Operand) -> tuple[Operand, ...]:
    return operand.items if isinstance(operand, Vector) else (operand,)


def used_parts(program: Code) -> dict[int, Parts]:
    """The bytes of each load that instructions of its own basic block compute with.

    Left out are loads of whole floats, what a `selp` may drop, and integers of whose results a part may be taken.
    """
    ends = {block.start: block.end for block in program.blocks}
    end, result = 0, {}
    for index, instruction in enumerate(program.instructions):
        end = ends.get(index, end)
        kind = instruction.fields.get("type", "")
        if instruction.opcode.startswith("ld.") and kind[:1] != "f" and kind[1:].isdigit():
            size, found = int(kind[1:]) // 8, list[tuple[int, int]]()
            for k, item in enumerate(_items(instruction.operands[0])):
                found += _used(program, item, index, end, size, k * size)
            if found:
                result[index] = tuple(dict.fromkeys(found))
    return result


def _used(program: Code, item: Operand, after: int, end: int, size: int, offset: int) -> list[tuple[int, int]]:
    """The bytes of a register of `size`, found at `offset` of its load, that are computed with."""
    found: list[tuple[int, int]] = []
    for index in program.readers.get(item, ()) if isinstance(item, Register) else ():
        instruction = program.instructions[index]
        parts = instruction.opcode.split(".")
        if not after < index < end or instruction.guard is not None:
            continue
        to = instruction.operands[0]
        if parts[0] == "mov" and isinstance(to, Vector):
            each = size // len(to.items)
            for k, part in enumerate(to.items):
                found += _used(program, part, index, end, each, offset + k * each)
        elif _computes(program, instruction, parts, size):
            found.append((offset, size))
    return found


def _computes(program: Code, instruction: Instruction, parts: list[str], size: int) -> bool:
    """Return whether an instruction computes with all `size` bytes of an operand."""
    kind = parts[-1]
    if parts[0] not in _PASSED_ON and _FLOATS.get(kind) == size:
        return not reaches(program, instruction.index, "selp.")
    if kind[1:] != str(8 * size):
        return False
    if parts[0] == "setp":
        return parts[1] in ("eq", "ne")
    return parts[0] in _INTEGERS and not reaches(program, instruction.index, _CUTTING)


def reaches(program: Code, index: int, heads: str | tuple[str, ...], *, later: bool = False) -> bool:
    """Return whether the result of an instruction, or what is made of it, may come to an instruction whose opcode
    starts so: wherever it goes, in loops too. `later`: to one that can be run after it."""
    held, seen = list(program.effects(index).writes), set[int]()
    first = _first_after(program, index) if later else 0
    while held:
        for reader in program.readers.get(held.pop(), ()):
            if reader < first:
                continue
            if program.instructions[reader].opcode.startswith(heads):
                return True
            if reader not in seen:
                seen.add(reader)
                held += program.effects(reader).writes
    return False


def _first_after(program: Code, index: int) -> int:
    """The first instruction that may be run after one: the next, or where a loop around it begins."""
    entry, first = program.entry, index + 1
    for instruction in program.instructions[index:]:
        targets = [entry.labels.get(op.name, first) for op in instruction.operands if isinstance(op, Symbol)]
        if instruction.opcode.startswith("brx"):
            targets.append(0)
        if instruction.opcode.startswith("br"):
            first = min([first, *targets])
    return first


def passed_on(program: Code, load: Instruction) -> bool:
    """Return whether what a load has read is only stored elsewhere, or taken apart."""
    for item in registers_of(load.operands[0]):
        for index in program.readers.get(item, ()):
            instruction = program.instructions[index]
            to = instruction.operands[0]
            apart = instruction.opcode.startswith("mov.") and isinstance(to, Vector)
            if not apart and (not instruction.opcode.startswith("st.") or item in registers_of(to)):
                return False
    return True


def matters(program: Code, operand: Operand) -> bool:
    """Return whether anything a kernel does follows from a register: a branch, a store, not registers alone."""
    held, seen = list(registers_of(operand)), set[int]()
    while held:
        register = held.pop()
        for reader in program.readers.get(register, ()):
            writes = program.effects(reader).writes
            if program.instructions[reader].guard == register or not writes:
                return True
            if reader not in seen:
                seen.add(reader)
                held += writes
    return False


_OF_EACH_THREAD = ("%tid", "%laneid", "%warpid", "%lanemask", "%clock", "%globaltimer", "%smid")
_KNOWN_TO_ALL = ("mov.", "cvt.", "add.", "sub.", "mul.", "mad.", "shl.", "shr.", "and.", "or.", "ld.param.")


@lru_cache(maxsize=64)
def writers(program: Code) -> dict[Register, list[int]]:
    """The instructions that write each register."""
    found: dict[Register, list[int]] = {}
    for index in range(len(program.instructions)):
        for register in program.effects(index).writes:
            found.setdefault(register, []).append(index)
    return found


@lru_cache(maxsize=4096)
def one_value(program: Code, index: int) -> tuple[str, int] | None:
    """Return what tells the value of a store that is the same whichever thread of a block runs it, made of constants,
    parameters and block numbers; None for other instructions. Stores that tell the same store the same."""
    instruction = program.instructions[index]
    operands = instruction.operands
    if not instruction.opcode.startswith("st.") or len(operands) < 2 or isinstance(operands[1], Vector):
        return None
    held: list[Operand] = [operands[1]]
    seen: set[Operand] = set()
    constant: Operand = operands[1]
    alone = True
    while held:
        item = held.pop()
        if isinstance(item, Special) and item.name.startswith(_OF_EACH_THREAD):
            return None
        constant = item
        if item in seen or isinstance(item, (Immediate, Special, Symbol)):
            continue
        seen.add(item)
        if not isinstance(item, Register) or len(made := writers(program).get(item, [])) != 1:
            return None
        by = program.instructions[made[0]]
        if by.guard is not None or not by.opcode.startswith(_KNOWN_TO_ALL):
            return None
        held += [part for part in by.operands[1:] if not isinstance(part, Memory) or isinstance(part.base, Register)]
        alone = alone and by.opcode.startswith("mov.")
    if alone and isinstance(constant, Immediate):
        return f"constant {instruction.opcode.split('.')[-1]}", constant.bits
    return "instruction", index
