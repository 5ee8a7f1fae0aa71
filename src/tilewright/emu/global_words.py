"""The roles of instructions in global memory, for races between blocks; and where a stored value is from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from .ptx import Immediate, Instruction, Memory, Operand, Register, Symbol, Vector
from .uses import reaches, writers

if TYPE_CHECKING:
    from .program import Code

READ, WRITE, STRONG, POLL = range(4)
"""Plain read and write; strong write or atomic; strong read."""
AGAINST = {READ: (WRITE, STRONG), WRITE: (WRITE, READ, STRONG, POLL), STRONG: (READ, WRITE), POLL: (WRITE,)}
"""Kind -> the kinds of earlier access that it races with."""
_SIZE = {"8": 1, "16": 2, "32": 4, "64": 8, "128": 16, "16x2": 4}
_ELSEWHERE = {"shared", "shared::cta", "shared::cluster", "local", "param", "param::entry", "param::func", "const"}
_WEAK_BUT_COHERENT = {"cg", "cv", "wt"}
"""They pass the first-level cache by: old code tells other blocks something with them, and it works."""
COMPARING = ("setp", "set.", "slct", "min", "max", "call", "vote", "match", "st.local")
BACK = 200
"""Instructions looked through for where a value is from."""


@dataclass(frozen=True)
class Role:
    """One instruction's access. `narrow`: it is strong, for its own block only."""

    kinds: tuple[int, ...]
    nbytes: int
    head: str
    narrow: bool = False
    listens: bool = False
    """It may learn of what another block did."""
    releases: bool = False
    """It is a fence for what came before."""
    updates: bool = False
    """It stores what was read at the same place, changed, and is no atomic."""
    looks: bool = False
    """It stores where, and only if, a load has found something."""
    acquires: bool = False
    """It is a fence for what comes after."""
    relaxed: bool = False
    """It listens, and is no acquire: what is read next needs a fence before."""
    loose: bool = False
    """It says that it is relaxed: a barrier after it is no acquire either."""
    trusted: bool = False
    """A strong load whose value no comparison sees: it is what the reader says that it is because a flag told so."""
    uncached: bool = False
    """A weak load that passes the first-level cache by, and whose value no comparison sees: no flag that it polls."""
    fixed: bool = False
    """It reads what nothing may write during the kernel."""
    element: int = 0
    """Bytes that a strong access moves as one; 0: so few that compilers build it of wider ones."""

    @property
    def inside(self) -> tuple[int, ...]:
        """The kinds of access that it is to its own block."""
        if not self.narrow:
            return self.kinds
        return (POLL,) if self.head.startswith("ld") else (STRONG,)

    @property
    def changes(self) -> bool:
        """Return whether it writes."""
        return bool({WRITE, STRONG} & set(self.kinds))

    @property
    def tells(self) -> bool:
        """Return whether others may learn by it."""
        return STRONG in self.kinds

    def verb(self, kind: int) -> str:
        """The access in words."""
        atomic = self.head in ("atom", "red") or self.head.startswith("cp.reduce")
        if atomic:
            return "an atomic"
        return {READ: "a read", WRITE: "a write", STRONG: "a strong write", POLL: "a strong read"}[kind]


@lru_cache(maxsize=64)
def roles_of(program: Code) -> list[Role | None]:
    """Return what each instruction of a program does to global memory; None for nothing."""
    return [_role_of(instruction, program) for instruction in program.instructions]


def _role_of(instruction: Instruction, program: Code) -> Role | None:
    parts = instruction.opcode.split(".")
    head = parts[0]
    if head == "cp":
        return _copy_role(instruction.opcode)
    if head in ("sust", "suld"):
        nbytes = _SIZE[parts[-2].lstrip("b")] * (int(parts[3][1:]) if parts[3] in ("v2", "v4") else 1)
        return Role((WRITE if head == "sust" else READ,), nbytes, head, fixed=head == "suld")
    if head == "wmma" and parts[1] in ("load", "store"):
        size = 1 if parts[-1] in ("u8", "s8") else 2 if parts[-1] in ("f16", "bf16") else 4
        return None if "shared" in parts else Role((READ if parts[1] == "load" else WRITE,), size, head)
    if head not in ("ld", "ldu", "st", "atom", "red") or _ELSEWHERE & set(parts) or parts[1] == "async":
        return None
    element = nbytes = _SIZE.get(parts[-1].lstrip("busf"), 4)
    element = 0 if element < 4 or parts[-1].endswith("x2") else element
    nbytes *= next((int(part[1:]) for part in parts if part in ("v2", "v4", "v8")), 1)
    scope = next((part for part in reversed(parts) if part in ("cta", "cluster", "gpu", "sys")), "")
    narrow = scope in ("cta", "cluster")
    strong = bool({"volatile", "mmio", "relaxed", "acquire", "release", "acq_rel"} & set(parts))
    releases = bool({"release", "acq_rel"} & set(parts)) and not narrow
    acquires = bool({"acquire", "acq_rel"} & set(parts)) and not narrow
    if head in ("atom", "red"):
        if narrow:
            return Role((READ, WRITE), nbytes, head, narrow=True)
        to = instruction.operands[:1] if head == "atom" else ()
        used = any(register in program.readers for operand in to for register in _registers(operand))
        updates = head == "atom" and own_load(program, instruction) is not None
        looks = "exch" in parts and not used and not updates and looks_first(program, instruction)
        return Role(
            (STRONG,), nbytes, head, listens=used, releases=releases, updates=updates, looks=looks, acquires=acquires,
            relaxed=used and not acquires, loose=used and "relaxed" in parts, element=element,
        )  # fmt: skip
    loads = head != "st"
    if not strong and "nc" not in parts and _WEAK_BUT_COHERENT & set(parts):
        if loads and not reaches(program, instruction.index, COMPARING):
            return Role((READ,), nbytes, head, uncached=True)
        strong, narrow, element = True, False, 0
    if strong and not narrow:
        updates = not loads and own_load(program, instruction) is not None
        looks = not loads and not updates and looks_first(program, instruction)
        return Role(
            (POLL if loads else STRONG,), nbytes, head, listens=loads, releases=releases, updates=updates, looks=looks,
            acquires=acquires, relaxed=loads and not acquires, loose=loads and "relaxed" in parts,
            trusted=loads and not acquires and not reaches(program, instruction.index, COMPARING), element=element,
        )  # fmt: skip
    if loads and not strong and "nc" not in parts and guesses(program, instruction):
        return Role((POLL,), nbytes, head, element=element)
    return Role((READ if loads else WRITE,), nbytes, head, narrow=strong, fixed="nc" in parts)


def _copy_role(opcode: str) -> Role | None:
    if opcode.startswith("cp.reduce.async.bulk"):
        return Role((STRONG,), 2, "cp.reduce") if ".global" in opcode else None
    if opcode.startswith("cp.async.bulk"):
        if ".prefetch" in opcode or ".global" not in opcode:
            return None
        stores = ".global.shared" in opcode
        return Role((WRITE if stores else READ,), 2, "cp.async.bulk")
    return Role((READ,), 4, "cp.async") if ".global" in opcode else None


def _registers(operand: Operand) -> list[Register]:
    items = operand.items if isinstance(operand, Vector) else (operand,)
    return [item for item in items if isinstance(item, Register)]


def _stored(instruction: Instruction, program: Code) -> tuple[Operand, Operand] | None:
    """The place and the value of a store, or of an atomic that changes nothing for sure: an exchange, which overwrites
    what others have stored, or a compare-and-swap whose answer is compared with nothing: nobody asks whether it has
    swapped."""
    parts, operands = instruction.opcode.split("."), instruction.operands
    if parts[0] == "st" and len(operands) > 1:
        return operands[0], operands[1]
    if parts[0] != "atom" or not {"exch", "cas"} & set(parts):
        return None
    asked = "cas" in parts and reaches(program, instruction.index, COMPARING, later=True)
    return None if asked else (operands[1], operands[-1])


def _loads(instruction: Instruction) -> bool:
    """Return whether an instruction reads and leaves what is there: what an exchange reads, nobody else finds."""
    parts = instruction.opcode.split(".")
    return parts[0] == "ld" or (parts[0] == "atom" and "exch" not in parts)


def own_load(program: Code, store: Instruction) -> Instruction | None:
    """The load of the very place whose value, changed, a store writes back; None if there is none."""
    stored = _stored(store, program)
    if stored is None or not isinstance(stored[0], Memory):
        return None
    wanted = set(_registers(stored[1]))
    if store.opcode.startswith("atom") and "cas" in store.opcode.split("."):
        wanted |= set(_registers(store.operands[2]))  # what it expects to find
    for index in range(store.index - 1, max(store.index - BACK, -1), -1):
        instruction = program.instructions[index]
        reads, writes, _ = program.effects(index)
        if not wanted & set(writes):
            continue
        if _loads(instruction):
            if is_one_place(program, index, instruction.operands[1], store.index, stored[0]):
                return instruction
            wanted -= set(writes)
            continue
        wanted -= set(writes)
        wanted |= set(reads)
    return None


def guesses(program: Code, load: Instruction) -> bool:
    """Return whether what a plain load has read is what an `atomicCAS` in a loop expects to find at the same place: if
    it is wrong the loop goes round again. That of one which is stored somewhere too is no guess."""
    if not load.opcode.startswith("ld.") or len(load.operands) < 2:
        return False
    held, seen = _registers(load.operands[0]), set[Register]()
    while held:
        register = held.pop()
        seen.add(register)
        for index in program.readers.get(register, ()):
            reader = program.instructions[index]
            swaps = reader.opcode.startswith("atom.") and ".cas." in reader.opcode and register in reader.operands[2:3]
            if reader.opcode.startswith("mov."):
                held += [to for to in program.effects(index).writes if to not in seen]
            elif swaps and is_one_place(program, index, reader.operands[1], load.index, load.operands[1]):
                return reaches(program, index, COMPARING, later=True) and not kept(program, load)
    return False


@lru_cache(maxsize=64)
def guessing(program: Code) -> np.ndarray:
    """Return of each instruction whether it is such a load."""
    return np.array([guesses(program, instruction) for instruction in program.instructions], bool)


_STEPS = 16
"""From register to register; some PTX that nobody compiled goes in circles."""


@lru_cache(maxsize=1 << 14)
def place_of(program: Code, operand: Operand) -> Operand:
    """The place that an instruction names, by what its register was made from: another register, which is written once
    too, or a symbol, and bytes from there. NVRTC writes `[%rd1+8]` for a load, and for an atomic a register that an
    `add` has made."""
    for _ in range(_STEPS):
        if not isinstance(operand, Memory) or not isinstance(operand.base, Register):
            break
        made = [program.instructions[index] for index in writers(program).get(operand.base, [])]
        if len(made) != 1 or made[0].guard is not None:
            break
        parts, given, offset = made[0].opcode.split("."), made[0].operands[1:], operand.offset
        if parts[0] == "add" and len(given) == 2 and isinstance(given[1], Immediate):
            bits = int(parts[-1][1:])
            offset += (given[1].bits + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)
        elif parts[0] != "mov" or len(given) != 1:
            break
        base = given[0]
        if not isinstance(base, (Register, Symbol)) or len(writers(program).get(base, [])) > 1:  # type: ignore[arg-type]
            break
        operand = Memory(base, offset)
    return operand


def is_one_place(program: Code, first: int, one: Operand, second: int, other: Operand) -> bool:
    """Return whether two instructions, given by their numbers and what they name, name one place: no register that both
    count from is written between them."""
    place = place_of(program, one)
    if place != place_of(program, other):
        return False
    changed = writers(program).get(place.base, ()) if isinstance(place, Memory) else ()  # type: ignore[arg-type]
    low, high = sorted((first, second))
    return not any(low <= index < high for index in changed)


def looks_first(program: Code, store: Instruction) -> bool:
    """Return whether a branch lies between a load of the very place and a store, by what the load has found."""
    held: set[Register] = set()
    place = store.operands[store.opcode.startswith("atom")]
    for index in range(max(store.index - BACK, 0), store.index + 1):
        instruction = program.instructions[index]
        if instruction.guard in held:
            return True
        reads, writes, _ = program.effects(index)
        looks = instruction.opcode.startswith("ld.") and is_one_place(
            program, index, instruction.operands[1], store.index, place
        )
        if looks or (held & set(reads) and not instruction.opcode.startswith(("ld.", "atom."))):
            held |= set(writes)
        else:
            held -= set(writes)
    return False


def stored_back(program: Code, load: Instruction) -> bool:
    """Return whether what a load has read is changed and stored at the same place."""
    if not load.opcode.startswith("ld"):
        return False
    for instruction in program.instructions[load.index + 1 : load.index + BACK]:
        stored = _stored(instruction, program)
        if stored is not None and own_load(program, instruction) is load:
            return True
    return False


def kept(program: Code, load: Instruction) -> bool:
    """Return whether what a load read ends in a plain store to global memory, not in comparisons and atomics alone."""
    held = set(_registers(load.operands[0])) if load.opcode.startswith("ld") else set()
    for index in range(load.index + 1, min(load.index + BACK, len(program.instructions))):
        instruction = program.instructions[index]
        parts = instruction.opcode.split(".")
        if parts[0] == "st" and held & set(_registers(instruction.operands[1])) and not _ELSEWHERE & set(parts):
            return True
        reads, writes, _ = program.effects(index)
        if held & set(reads) and parts[0] not in ("setp", "ld", "atom"):
            held |= set(writes)
        else:
            held -= set(writes)
    return False


def counts(program: Code, instruction: Instruction) -> bool:
    """Return whether an atomic adds something to what it finds; to add 0 is to look."""
    parts = instruction.opcode.split(".")
    if parts[0] not in ("atom", "red") or not {"add", "inc", "dec", "xor"} & set(parts):
        return False
    by = instruction.operands[-1]
    if isinstance(by, Register) and len(made := writers(program).get(by, [])) == 1:
        mov = program.instructions[made[0]]
        by = mov.operands[1] if mov.opcode.startswith("mov.") else by
    return not isinstance(by, Immediate) or bool(by.bits)


def looks_before_an_atomic(program: Code, load: Instruction) -> bool:
    """Return whether an atomic follows at the very place that a load has looked at."""
    if not load.opcode.startswith("ld"):
        return False
    for instruction in program.instructions:
        if instruction.opcode.startswith(("atom", "red")) and any(
            is_one_place(program, load.index, load.operands[-1], instruction.index, operand)
            for operand in instruction.operands[:2]
            if isinstance(operand, Memory)
        ):
            return True
    return False


def constant_stored(program: Code, store: Instruction) -> bool:
    """Return whether a store writes a constant other than 0, as one that sets a flag does; or one of several."""
    if store.opcode.split(".")[0] != "st" or len(store.operands) < 2:
        return False
    held, seen = [store.operands[1]], set[Operand]()
    while held:
        value = held.pop()
        if value in seen:
            continue
        seen.add(value)
        if isinstance(value, Register):
            made = [program.instructions[index] for index in writers(program).get(value, [])]
            if not made or not all(by.opcode.startswith("mov.") and len(by.operands) == 2 for by in made):
                return False
            held += [by.operands[1] for by in made]
        elif not isinstance(value, Immediate) or not value.bits:
            return False
    return True
