"""The wavefronts of each access to shared memory that a kernel makes, by source line, as the emulator counts them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..emu.trace import InstructionRow
from ..errors import suggests
from ..gpus import DEFAULT_GPU, find_gpu
from .emulated import count
from .shown import Grid, Shown
from .traffic import opcode


@dataclass(frozen=True)
class BankLine:
    """One kind of access of one source line. Counts of the whole launch; requests: by warp."""

    file: str
    line: int | None
    access: str
    requests: int
    wavefronts: int
    ideal: int
    """The fewest wavefronts that could carry as many bytes."""


@dataclass(frozen=True, repr=False)
class BankTable(Shown):
    """A kernel's accesses to shared memory; those with the most wavefronts beyond the fewest come first."""

    kernel: str
    problem: str
    """What the emulator ran, in words."""
    lines: tuple[BankLine, ...]

    @property
    def wavefronts(self) -> int:
        """Wavefronts of the launch."""
        return sum(line.wavefronts for line in self.lines)

    @property
    def ideal(self) -> int:
        """The fewest that could carry as many bytes."""
        return sum(line.ideal for line in self.lines)

    def grids(self) -> tuple[Grid, ...]:
        """One row per line and kind of access."""
        counted = f"{self.wavefronts} wavefronts of shared memory, {self.ideal} would do"
        title = f"{self.kernel}\n{f'{self.problem}: ' if self.problem else ''}{counted}"
        rows = tuple(
            (f"{each.file}:{each.line}", each.access, str(each.requests), f"{each.wavefronts / each.requests:.2f}",
             f"{each.ideal / each.requests:.2f}") for each in self.lines
        )  # fmt: skip
        note = "requests: of warps; wavefronts and fewest: per request" if rows else "It does not use shared memory."
        return (Grid(title, ("line", "access", "requests", "wavefronts", "fewest"), rows, note),)


@suggests
def banks_of(what: str | Path, *, gpu: str = DEFAULT_GPU, **options: Any) -> BankTable:
    """Return the wavefronts of a kernel's accesses to shared memory, line by line. Needs no GPU.

    what: a rung ("f09", "f09:tile_k=8"), which runs on a small problem, or a .cu or .ptx file, which runs as its
    `// check:` lines say. gpu: what it is compiled for. options: config, dtype, d_head of a rung; entry of a file.
    Raises WrongResult, InvalidOperand, ConfigRejected, CompileError.
    """
    found = count(what, find_gpu(gpu), **options)
    rows: dict[tuple[str, int | None, str], list[InstructionRow]] = {}
    for row in found.counters.per_instruction:
        if row.wavefronts:
            rows.setdefault((_short(row.file), row.line, opcode(row)), []).append(row)
    lines = [
        BankLine(*place, *(sum(getattr(row, name) for row in same) for name in ("requests", "wavefronts", "ideal")))
        for place, same in rows.items()
    ]
    lines.sort(key=lambda each: (each.ideal - each.wavefronts, each.file, each.line or 0))
    return BankTable(f"{found.name}: {found.config}", found.problem, tuple(lines))


def _short(file: str | None) -> str:
    """A file's name with its folder, as the sources of rungs are named."""
    return "/".join((file or "PTX").rsplit("/", 2)[-2:])
