"""Machine code of a cubin, as a list of instructions. Needs a disassembler, which comes as a wheel."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import MissingDependency, TilewrightError

_LINE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:\{\s*)?(@!?U?P\w+\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")


@dataclass(frozen=True)
class Instruction:
    """`address` in bytes from the kernel's start; `guard` as written ("@P0 ", "@!PT ") or ""."""

    address: int
    guard: str
    opcode: str
    operands: str


def find_disassembler() -> Path:
    """cuobjdump, from its wheel or the PATH. Raises MissingDependency saying how to get it."""
    for folder in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for path in sorted(Path(folder).glob("nvidia/*/bin/cuobjdump")):
            return path
    if found := shutil.which("cuobjdump"):
        return Path(found)
    raise MissingDependency(
        "no disassembler: cuobjdump is neither in a wheel nor on the PATH. Install it with: "
        "pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm"
    )


def parse(text: str) -> list[Instruction]:
    """The instructions in cuobjdump's listing."""
    found = (_LINE.match(line) for line in text.splitlines())
    return [Instruction(int(m[1], 16), m[2] or "", m[3], m[4]) for m in found if m]


def disassemble(cubin: bytes) -> list[Instruction]:
    """Every instruction of a cubin. Raises MissingDependency, or TilewrightError with the tool's words."""
    tool = find_disassembler()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        done = subprocess.run([str(tool), "-sass", str(path)], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise TilewrightError(
            f"{tool} failed with status {done.returncode}: {done.stderr.strip() or done.stdout.strip()}"
        )
    return parse(done.stdout)


def count(instructions: Sequence[Instruction]) -> Counter[str]:
    """Instructions by opcode without its modifiers."""
    return Counter(instruction.opcode.split(".")[0] for instruction in instructions)


_TARGET = re.compile(r"0x([0-9a-f]+)")


def main_loop(instructions: Sequence[Instruction], holding: str) -> list[Instruction]:
    """The shortest loop with the most instructions that begin with `holding`: from a backward branch's target to it.

    Raises TilewrightError when no loop holds one.
    """
    best: list[Instruction] = []
    most = 0
    for branch in instructions:
        target = _TARGET.search(branch.operands) if branch.opcode.startswith("BRA") else None
        if target is None or int(target[1], 16) > branch.address:
            continue
        body = [i for i in instructions if int(target[1], 16) <= i.address <= branch.address]
        held = sum(i.opcode.startswith(holding) for i in body)
        if held > most or (held == most and held and len(body) < len(best)):
            best, most = body, held
    if not best:
        raise TilewrightError(f"no loop among {len(instructions)} instructions holds {holding}.")
    return best
