"""The score of a kernel file on the emulator, by what its `// check:` lines say (exercise_lines.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..emu import emulate
from ..emu.arguments import as_numbers
from ..emu.hazards import Hazard
from ..emu.trace import Counters, InstructionRow
from ..errors import EmulatorFault, suggests
from ..gpus import DEFAULT_GPU
from .exercise_lines import Exercise, read_exercise
from .shown import Grid, Shown
from .traffic import SECTOR, fewest_sectors, is_store, opcode, sectors_of

RIGHT, CLEAN, COALESCING, REUSE, CONFLICTS = 60, 10, 10, 10, 10
"""What a score is made of."""
_SHOWN = 5
"""Lines that cost most, so many of them."""


@dataclass(frozen=True)
class Marks:
    """One part of a score."""

    what: str
    points: int
    of: int
    words: str


@dataclass(frozen=True, repr=False)
class CheckReport(Shown):
    """A kernel's score on the emulator. `passed`: right, no fault, and at least the score that its file asks for."""

    file: str
    entry: str
    passed: bool
    score: int
    least_score: int
    marks: tuple[Marks, ...]
    wrong: tuple[str, ...]
    """The results that differ from what the file asks for."""
    without: tuple[str, ...]
    """The instructions that the file asks for and that were not executed."""
    hazards: tuple[str, ...]
    """Faults and warnings, as reported."""
    costly: tuple[str, ...]
    """Lines that ask for more sectors or wavefronts than they need, the costliest first."""
    printed: str

    @property
    def reasons(self) -> tuple[str, ...]:
        """Return what keeps it from passing, in words."""
        if self.passed:
            return ()
        missing = (f"it executes no {name}, which the file asks for" for name in self.without)
        low = f"score {self.score} of 100; the file asks for {self.least_score}"
        return (*self.hazards, *self.wrong, *missing) or (low,)

    def grids(self) -> tuple[Grid, ...]:
        """The marks, and what costs them: faults, wrong results, lines."""
        rows = tuple((mark.what, f"{mark.points} of {mark.of}", mark.words) for mark in self.marks)
        goal = f", at least {self.least_score} asked for" if self.least_score else ""
        title = f"{self.entry}: {'passed' if self.passed else 'FAILED'}, {self.score} of 100{goal}"
        wrong = [f"WRONG: {said}" for said in self.wrong]
        return (Grid(title, ("", "points", ""), rows, "\n".join([*self.hazards, *wrong, *self.costly])),)


@suggests
def check_kernel(
    path: str | Path, *, sizes: Mapping[str, int] | None = None, gpu: str = DEFAULT_GPU, seed: int = 0
) -> CheckReport:
    """Run a kernel file on the emulator as its `// check:` lines say, and score it. Needs no GPU.

    sizes: replace what its `let` lines say. gpu: whose limits apply. Raises InvalidOperand for a file that does not say
    what to run, and CompileError.
    """
    exercise = read_exercise(Path(path), sizes)
    return scored(exercise, run_exercise(exercise, gpu, seed))


def scored(exercise: Exercise, ran: Ran) -> CheckReport:
    """Score a run of a kernel file."""
    marks = _marks(ran)
    score = sum(mark.points for mark in marks)
    said = tuple(f"{'FAULT' if hazard.level == 'error' else 'WARNING'}: {hazard}" for hazard in ran.hazards)
    costly = tuple(f"{_place(cost, exercise.path)}: {cost.words}" for cost in ran.costs)
    return CheckReport(
        str(exercise.path), exercise.entry, ran.is_as_asked and score >= exercise.least_score, score,
        exercise.least_score, marks, ran.wrong, ran.without, said, costly, ran.printed,
    )  # fmt: skip


@dataclass(frozen=True)
class Cost:
    """What an instruction of a line asks for beyond what it needs. `unit`: sectors or wavefronts."""

    file: str | None
    line: int | None
    unit: str
    words: str


@dataclass(frozen=True)
class Ran:
    """A run of a kernel file on the emulator. `wrong`: the references that do not hold. `without`: the instructions
    that it should execute and does not."""

    counters: Counters
    """Those of a launch that a fault ended are empty."""
    hazards: tuple[Hazard, ...]
    wrong: tuple[str, ...]
    without: tuple[str, ...]
    sectors_once: int
    """Sectors that move when each buffer is read once, and each that changed is written once."""
    ended: bool
    printed: str

    @property
    def faults(self) -> tuple[Hazard, ...]:
        """The hazards that are errors."""
        return tuple(hazard for hazard in self.hazards if hazard.level == "error")

    @property
    def is_right(self) -> bool:
        """It ended, without a fault, with the results that its file asks for."""
        return self.ended and not self.faults and not self.wrong

    @property
    def costs(self) -> tuple[Cost, ...]:
        """What lines of a right kernel ask for beyond what they need, the costliest first."""
        return _costs(self.counters.per_instruction) if self.is_right else ()

    @property
    def is_as_asked(self) -> bool:
        """It is right, by the instructions that its file asks for."""
        return self.is_right and not self.without


def run_exercise(
    exercise: Exercise, gpu: str, seed: int = 0, progress: Callable[[int, int], None] | None = None
) -> Ran:
    """Run it once on the emulator, on random operands of `seed`. `progress` hears of blocks done, and of how many.
    Raises CompileError."""
    given, before, kinds = exercise.values(seed)
    try:
        result = emulate(
            exercise.path, exercise.entry, exercise.grid, exercise.block, given, gpu=gpu, seed=seed,
            shared_bytes=exercise.shared_bytes, cluster=exercise.cluster, include=exercise.include, hazards="collect",
            progress=progress,
        )  # fmt: skip
    except EmulatorFault as fault:
        return Ran(Counters(), (fault.hazard,), (), (), 0, False, "")
    after = {name: as_numbers(array, kinds.get(name, "")) for name, array in result.named.items()}
    rows = result.counters.per_instruction
    without = tuple(
        name for name in exercise.uses if not any(row.warps and opcode(row).startswith(name) for row in rows)
    )
    once = _sectors_once(given, result.named, rows)
    wrong = exercise.wrong(before, after)
    return Ran(result.counters, tuple(result.hazards), wrong, without, once, True, result.printed)


def _sectors_once(before: Mapping[str, Any], after: Mapping[str, np.ndarray], rows: Sequence[InstructionRow]) -> int:
    """The sectors that move when each buffer is read once, and each that changed is written once; no more than were
    asked for. A buffer that held nothing but NaN need not be read."""
    reads = writes = 0
    for name, array in before.items():
        if isinstance(array, np.ndarray):
            sectors = -(-array.nbytes // SECTOR)
            changed = name in after and after[name].tobytes() != array.tobytes()
            empty = array.dtype.kind == "f" and bool(np.isnan(array).all())
            reads += 0 if empty else sectors
            writes += sectors if changed else 0
    stored = sum(sectors_of(row) for row in rows if is_store(row))
    loaded = sum(map(sectors_of, rows)) - stored
    return min(reads, loaded) + min(writes, stored)


def _marks(ran: Ran) -> tuple[Marks, ...]:
    rows, once, counts = ran.counters.per_instruction, ran.sectors_once, ran.is_as_asked
    warnings = len(ran.hazards) - len(ran.faults)
    asked, needed = sum(map(sectors_of, rows)), sum(map(fewest_sectors, rows))
    waves, ideal = sum(row.wavefronts for row in rows), sum(row.ideal for row in rows)

    def share(what: str, most: int, part: int, whole: int, words: str) -> Marks:
        points = int(most * min(part / whole, 1.0)) if whole else most
        return Marks(what, points if counts else 0, most, words)

    return (
        Marks("right", RIGHT if counts else 0, RIGHT, _why_not(ran)),
        Marks("clean", CLEAN if counts and not warnings else 0, CLEAN, f"{warnings} warnings"),
        share("coalescing", COALESCING, needed, asked, f"{asked} sectors; {needed} hold the bytes that lanes ask for"),
        share("reuse", REUSE, once, asked, f"{asked} sectors; {once} read and write each buffer once"),
        share("conflicts", CONFLICTS, ideal, waves, f"{waves} wavefronts of shared memory, {ideal} would do"),
    )


def _why_not(ran: Ran) -> str:
    """Return why a run scores nothing, in words; "" where it counts."""
    if ran.is_right and ran.without:
        return f"right, but the file asks for {' and '.join(ran.without)}"
    return "" if ran.is_right else "nothing counts before it is right"


def _place(cost: Cost, file: Path) -> str:
    """Return where a cost is: of a line of another file its name too."""
    other = cost.file is not None and Path(cost.file).name != file.name
    return f"{Path(str(cost.file)).name}:{cost.line}" if other else f"line {cost.line}"


def _costs(rows: Sequence[InstructionRow]) -> tuple[Cost, ...]:
    found = []
    for row in rows:
        sectors = ("sectors", sectors_of(row), fewest_sectors(row))
        for unit, asked, needed in (sectors, ("wavefronts", row.wavefronts, row.ideal)):
            if asked > needed:
                each = f"{asked / row.requests:.3g} {unit} per request, {needed / row.requests:.3g} would do"
                found.append((asked - needed, Cost(row.file, row.line, unit, f"{opcode(row)}: {each}")))
    return tuple(dict.fromkeys(cost for _, cost in sorted(found, key=lambda each: -each[0])[:_SHOWN]))
