"""Facts that SASS instructions tell of a kernel: groups of work, address registers, distances from loads to uses."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from statistics import median

from .sass import Instruction

GROUPS: dict[str, tuple[str, ...]] = {
    "tensor": ("HMMA", "HGMMA", "IMMA", "IGMMA", "QGMMA", "DMMA", "BMMA", "BGMMA", "OMMA", "QMMA"),
    "fp32 and exp": ("FFMA", "FADD", "FMUL", "FMNMX", "FSEL", "FSETP", "FSET", "FCHK", "FRND", "MUFU", "FFMA2", "FADD2",
                     "FMUL2"),
    "fp16, fp64": ("HFMA2", "HADD2", "HMUL2", "HMNMX2", "HSETP2", "HSET2", "DFMA", "DADD", "DMUL", "DSETP", "DMNMX"),
    "conversions": ("F2F", "F2FP", "F2I", "I2F", "I2FP", "I2I", "F2IP", "I2IP"),
    "moves": ("MOV", "IMAD.MOV", "UMOV", "R2UR", "S2R", "S2UR", "CS2UR", "P2R", "R2P", "MOVM"),
    "zeroing": ("CS2R",),
    "logic and shifts": ("LOP3", "SHF", "IMAD.SHL", "PRMT", "ULOP3", "USHF", "UPRMT", "SGXT", "BMSK", "LOP", "SHL",
                         "SHR", "PLOP3", "UPLOP3", "POPC", "FLO", "BREV"),
    "integer": ("IADD3", "IADD", "VIADD", "IMAD", "LEA", "UIADD3", "UIMAD", "ULEA", "ISETP", "UISETP", "IABS", "IMNMX",
                "VIMNMX", "VIADDMNMX", "SEL", "USEL", "UVIADD", "IDP", "ISCADD", "USGXT", "UIADD3X"),
    "asynchronous copies": ("LDGSTS", "UTMALDG", "UTMASTG", "UTMAREDG", "UTMAPF", "UBLKCP", "UBLKRED", "UBLKPF"),
    "global loads": ("LDG", "LD", "TEX", "TLD", "TLD4", "SULD", "CCTL"),
    "global stores": ("STG", "ST", "RED", "ATOM", "ATOMG", "SUST", "SURED"),
    "shared loads": ("LDS", "LDSM"),
    "shared stores": ("STS", "STSM", "ATOMS"),
    "spills": ("LDL", "STL"),
    "parameters": ("LDC", "ULDC", "LDCU"),
    "barriers and waits": ("BAR", "DEPBAR", "LDGDEPBAR", "WARPSYNC", "MEMBAR", "FENCE", "ERRBAR", "SYNCS", "WARPGROUP",
                           "ARRIVES", "UCGABAR", "UTMACMDFLUSH", "ACQBULK", "ELECT", "USETMAXREG", "NANOSLEEP",
                           "WARPGROUPSET", "PREEXIT"),
    "shuffles and votes": ("SHFL", "VOTE", "VOTEU", "MATCH", "REDUX"),
    "control": ("BRA", "EXIT", "CALL", "RET", "JMP", "BRX", "NOP", "YIELD", "KILL", "BPT", "RPCMOV", "BRXU",
                "BSYNC", "BSSY", "BREAK", "BMOV"),
}  # fmt: skip
"""Opcodes that do the same kind of work. What the compiler saves in one of a group it may spend in another of it."""
OTHER = "other"
WATCHED = ("LDGSTS", "LDSM", "HMMA", "HGMMA", "UTMALDG", "UTMASTG")
"""Instructions whose presence says how a kernel copies and multiplies."""

_BY_OPCODE = {opcode: group for group, opcodes in GROUPS.items() for opcode in opcodes}


def group_of(opcode: str) -> str:
    """The group of an opcode: of `IMAD.MOV.U32` that of IMAD.MOV, else of the name before the first dot."""
    parts = opcode.split(".")
    return _BY_OPCODE.get(".".join(parts[:2])) or _BY_OPCODE.get(parts[0]) or OTHER


def by_group(instructions: Sequence[Instruction]) -> Counter[str]:
    """Return how many instructions of each group there are."""
    return Counter(group_of(instruction.opcode) for instruction in instructions)


_SPACE = re.compile(r"desc\[[^\]]*\]")
_ADDRESS = re.compile(r"\[(U?R\d+)")


def address_registers(instructions: Sequence[Instruction], opcode: str) -> Counter[str]:
    """Registers that hold the address of these instructions (of LDGSTS, the shared one), and how many use each."""
    found = (_ADDRESS.search(_SPACE.sub("", i.operands)) for i in instructions if i.opcode.split(".")[0] == opcode)
    return Counter(match[1] for match in found if match)


# --- from a load to its first use -------------------------------------------------------------------------------------

LOADS = ("LDG", "LDS", "LDSM")
_REGISTER = re.compile(r"(?<![\w.])R(\d+)")
_HMMA = {"16816": (4, 2, 4), "1688": (2, 1, 4), "884": (2, 2, 8), "16832": (4, 2, 4), "16864": (4, 2, 4)}
"""Registers of A, B and C."""


def _loaded(opcode: str) -> int:
    """Return how many registers a load fills."""
    parts = opcode.split(".")
    if parts[0] == "LDSM":
        return int(parts[-1]) if parts[-1] in ("2", "4") else 1
    return 4 if "128" in parts else 2 if "64" in parts else 1


def _widths(opcode: str, operands: int) -> list[int]:
    """Return how many registers each operand stands for; of the first, what it is written to."""
    parts = opcode.split(".")
    if parts[0] == "HMMA":
        a, b, c = _HMMA.get(parts[1], (4, 2, 4))
        half = 2 if "F32" not in parts else 1
        return [c // half, a, b, c // half][:operands] + [1] * max(operands - 4, 0)
    if parts[0] in ("STS", "STG", "STL", "ST"):
        return [2, _loaded(opcode)] + [1] * max(operands - 2, 0)
    if parts[0] in LOADS or parts[0] in ("LDL", "LD"):
        return [_loaded(opcode)] + [2] * max(operands - 1, 0)
    return [1] * operands


_WRITES_NOTHING = ("STS", "STG", "STL", "ST", "LDGSTS", "BAR", "RED", "BRA", "EXIT", "DEPBAR")


def reads_and_writes(instruction: Instruction) -> tuple[frozenset[int], frozenset[int]]:
    """The numbers of the registers that an instruction reads, and of those that it writes.

    Widths are known for HMMA, loads, stores and pairs marked `.64`; of others each operand is taken to be one register.
    """
    return _reads_and_writes(instruction.opcode, instruction.operands)


@lru_cache(maxsize=1 << 16)
def _reads_and_writes(opcode: str, operands: str) -> tuple[frozenset[int], frozenset[int]]:
    # Kept: an instruction is asked about once per loop that it is in and kind of load, in a24 30 times.
    parts = [part.strip() for part in _SPACE.sub("", operands).split(",")] if operands else []
    widths = _widths(opcode, len(parts))
    base = opcode.split(".")[0]
    read: set[int] = set()
    written: set[int] = set()
    for place, (part, width) in enumerate(zip(parts, widths, strict=True)):
        for match in _REGISTER.finditer(part):
            number = int(match[1])
            into = place == 0 and base not in _WRITES_NOTHING and "[" not in part
            span = width if "[" not in part or into else 2 if ".64" in part else 1
            (written if into else read).update(range(number, number + span))
    return frozenset(read), frozenset(written)


def distances(body: Sequence[Instruction], opcode: str, again: bool = True) -> list[int]:
    """For each such load in `body`, how many instructions later its first user is: 1 is the next instruction.

    again: what follows the last instruction is the first (a loop). A load that nothing in `body` uses is left out, and
    so is one whose registers are written anew before.
    """
    known = [reads_and_writes(instruction) for instruction in body]
    found = []
    count = len(body)
    for at, instruction in enumerate(body):
        if instruction.opcode.split(".")[0] != opcode:
            continue
        pending = set(known[at][1])
        reach = count if again else count - at
        for step in range(1, reach):
            read, written = known[(at + step) % count]
            if pending & read:
                found.append(step)
                break
            pending -= written
            if not pending:
                break
    return found


def spread_of(values: Sequence[int]) -> tuple[int, float, int] | None:
    """The least, the median and the most; None of none."""
    return (min(values), median(values), max(values)) if values else None
