"""Machine code of a cubin, as a list of instructions. Needs a disassembler, which comes as a wheel."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import MissingDependency, TilewrightError
from ..jit.entry import file_name

_LINE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:\{\s*)?(@!?U?P\w+\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
_LABEL = re.compile(r"^(\.L_x_\d+):")
_NAMED = re.compile(r"`\((\.L_x_\d+)\)")
_PLACE = re.compile(r'//## File "([^"]*)", line (\d+)')
_FUNCTION = re.compile(r"^\s*\.section\s+\.text\.([^\s,]+)")

Place = tuple[str, int]
"""A file, as the compiler was given it, and a line."""


@dataclass(frozen=True)
class Instruction:
    """`address` in bytes from the kernel's start; `guard` as written ("@P0 ", "@!PT ") or "".

    A label among the operands is the address that it stands for. `places`: the line it was made from, then the lines
    that called what that line is in, outwards; () without line information.
    """

    address: int
    guard: str
    opcode: str
    operands: str
    places: tuple[Place, ...] = ()


def find_tool(name: str, package: str) -> Path:
    """A program of CUDA's, from its wheel or the PATH. Raises MissingDependency saying how to get it."""
    for folder in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for path in sorted(Path(folder).glob(f"nvidia/*/bin/{name}")):
            return path
    if found := shutil.which(name):
        return Path(found)
    raise MissingDependency(f"{name} is neither in a wheel nor on the PATH. Install it with: pip install {package}")


def find_disassembler() -> Path:
    """nvdisasm, from its wheel or the PATH. Raises MissingDependency saying how to get it."""
    return find_tool("nvdisasm", "nvidia-cuda-nvdisasm")


def parse(text: str) -> dict[str, list[Instruction]]:
    """The instructions in nvdisasm's listing, by function; under "" those before the first function's name."""
    functions: dict[str, list[Instruction]] = {}
    current = functions.setdefault("", [])
    labels: dict[str, int] = {}
    waiting: list[str] = []
    places: list[Place] = []
    fresh = False  # whether the lines of places that follow belong to those before
    for line in text.splitlines():
        if m := _LINE.match(line):
            address = int(m[1], 16)
            labels |= dict.fromkeys(waiting, address)
            waiting, fresh = [], True
            current.append(Instruction(address, m[2] or "", m[3], m[4], tuple(places)))
        elif m := _PLACE.search(line):
            places = [*([] if fresh else places), (file_name(m[1]), int(m[2]))]
            fresh = False
        elif m := _LABEL.match(line):
            waiting.append(m[1])
        elif m := _FUNCTION.match(line):
            current, places, fresh = functions.setdefault(m[1], []), [], True
    named = {name: [_resolved(one, labels) for one in found] for name, found in functions.items()}
    return {name: found for name, found in named.items() if found}


def _resolved(instruction: Instruction, labels: dict[str, int]) -> Instruction:
    """The same with the addresses of labels in their place; one that is not in the listing stays."""
    if "`" not in instruction.operands:
        return instruction
    text = _NAMED.sub(lambda m: hex(labels[m[1]]) if m[1] in labels else m[0], instruction.operands)
    return replace(instruction, operands=text)


def listings(cubin: bytes) -> dict[str, list[Instruction]]:
    """The instructions of each function of a cubin. Raises MissingDependency, TilewrightError."""
    told = run_tool(find_disassembler(), ("-gi", "-c"), cubin)
    return parse(told)


def run_tool(tool: Path, options: Sequence[str], cubin: bytes, suffix: str = ".cubin") -> str:
    """Return what a tool prints of a file with these bytes. Raises TilewrightError with its words."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"kernel{suffix}"
        path.write_bytes(cubin)
        done = subprocess.run(
            [str(tool), *options, str(path)], capture_output=True, text=True, timeout=120, check=False
        )
    if done.returncode:
        raise TilewrightError(
            f"{tool} failed with status {done.returncode}: {done.stderr.strip() or done.stdout.strip()}"
        )
    return done.stdout


def disassemble(cubin: bytes) -> list[Instruction]:
    """Every instruction of a cubin, function by function; see listings."""
    return [instruction for found in listings(cubin).values() for instruction in found]


def count(instructions: Sequence[Instruction]) -> Counter[str]:
    """Instructions by opcode without its modifiers."""
    return Counter(instruction.opcode.split(".")[0] for instruction in instructions)


_TARGET = re.compile(r"0x([0-9a-f]+)")


def loops(instructions: Sequence[Instruction]) -> list[list[Instruction]]:
    """The loops of one function, each from a backward branch's target to it; in the order of their starts.

    Branches to one target are one loop, up to the last of them. A branch to itself, which ends a function, is none.
    """
    ends: dict[int, int] = {}
    for branch in instructions:
        target = _TARGET.search(branch.operands) if branch.opcode.startswith("BRA") else None
        if target is not None and int(target[1], 16) < branch.address:
            start = int(target[1], 16)
            ends[start] = max(ends.get(start, 0), branch.address)
    return [[i for i in instructions if start <= i.address <= end] for start, end in sorted(ends.items())]


def main_loop(instructions: Sequence[Instruction], holding: str) -> list[Instruction]:
    """The shortest loop with the most instructions that begin with `holding`. Raises TilewrightError without one."""
    best: list[Instruction] = []
    most = 0
    for body in loops(instructions):
        held = sum(i.opcode.startswith(holding) for i in body)
        if held > most or (held == most and held and len(body) < len(best)):
            best, most = body, held
    if not best:
        raise TilewrightError(f"no loop among {len(instructions)} instructions holds {holding}.")
    return best
