"""A kernel file that says in its comments how to run it and what it must compute; and its score on the emulator.

Lines of the form `// check: WORD ...`:

    let n = 128                   a size; later lines may use it in +, -, *, / (whole), %, **
    entry transpose               the kernel, where the file has several
    grid n / 32, n / 32           blocks;  block 32, 8  threads;  cluster 2  blocks of a cluster
    shared 4 * n                  bytes of dynamic shared memory per block
    arg x = f32[n, n]=random      a parameter by name, as `tilewright emulate --arg` takes it; or a number: arg n = n
    reference y = x.T             what a buffer must hold, as --reference takes it; or FILE.py next to the file
    tolerance 1e-4                relative and absolute
    goal score 100                the least score that passes; without it, any right kernel does
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..emu import emulate
from ..emu.arguments import as_numbers, parse_argument
from ..emu.own_kernel import EmulateResult
from ..emu.reference import Reference
from ..emu.trace import Counters, InstructionRow
from ..errors import EmulatorFault, InvalidOperand, suggests
from ..gpus import DEFAULT_GPU
from .expression import whole
from .shown import Grid, Shown
from .subject import kernels_of

RIGHT, CLEAN, COALESCING, REUSE, CONFLICTS = 60, 10, 10, 10, 10
"""What a score is made of."""
_LINE = re.compile(r"^\s*//\s*check:\s*(\w+)\s*(.*?)\s*$", re.MULTILINE)
_SHOWN = 5
"""Lines that cost most, so many of them."""


@dataclass(frozen=True)
class Exercise:
    """A kernel file with its launch, its arguments and what they must become."""

    path: Path
    text: str
    entry: str
    sizes: dict[str, int]
    grid: tuple[int, ...]
    block: tuple[int, ...]
    cluster: tuple[int, ...] | None
    shared_bytes: int
    arguments: dict[str, str]
    references: tuple[str, ...]
    tolerance: float | None
    least_score: int

    def values(self, seed: int = 0) -> tuple[dict[str, Any], dict[str, Any], dict[str, str]]:
        """(what `emulate` takes, numbers before the launch, types of buffers) by parameter name."""
        random = np.random.default_rng(seed)
        given: dict[str, Any] = {}
        before: dict[str, Any] = {}
        kinds: dict[str, str] = {}
        for name, text in self.arguments.items():
            argument = parse_argument(text, random)
            if argument.array is None:
                given[name], before[name] = text, argument.scalar
            else:
                given[name], kinds[name] = argument.array, argument.kind
                before[name] = as_numbers(argument.array, argument.kind)
        return given, before, kinds

    def wrong(self, before: Mapping[str, Any], after: Mapping[str, np.ndarray]) -> tuple[str, ...]:
        """Return which references do not hold."""
        found = (Reference.of(text).wrong(before, after, self.tolerance) for text in self.references)
        return tuple(filter(None, found))


def read_exercise(path: Path, sizes: Mapping[str, int] | None = None, entry: str | None = None) -> Exercise:
    """Read a kernel file's `// check:` lines; `sizes` replace its `let` lines, and `entry` its `entry` line.

    Raises InvalidOperand.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise InvalidOperand(f"{path} cannot be read ({error}). Make one: tilewright new {path}") from error
    said = _Said(path, dict(sizes or {}))
    for match in _LINE.finditer(text):
        said.take(match[1], match[2], text.count("\n", 0, match.start()) + 1)
    if entry is not None:
        said.once["entry"] = entry
    return said.exercise(text)


@dataclass
class _Said:
    """A record of what the lines of a file have said so far."""

    path: Path
    given: dict[str, int]
    """Sizes from outside, which replace the file's."""
    sizes: dict[str, int] = field(default_factory=dict)
    once: dict[str, str] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    arguments: dict[str, str] = field(default_factory=dict)
    references: list[str] = field(default_factory=list)

    def take(self, word: str, rest: str, line: int) -> None:
        """One line. Raises InvalidOperand with its place."""
        try:
            if word == "let":
                name, value = _assigned(rest)
                self.sizes[name] = self.given[name] if name in self.given else whole(value, self.sizes)
            elif word == "arg":
                name, value = _assigned(rest)
                self.arguments[name] = self._argument(value)
            elif word == "reference":
                self.references.append(self._reference(rest))
            elif word in ("grid", "block", "cluster"):
                self.shapes[word] = tuple(whole(part, self.sizes) for part in rest.split(","))
                if not 1 <= len(self.shapes[word]) <= 3 or min(self.shapes[word]) < 1:
                    raise InvalidOperand(f"{word} {rest} is {self.shapes[word]}: one to three sizes of at least 1")
            elif word in ("entry", "shared", "tolerance", "goal"):
                self.once[word] = rest
            else:
                words = "let, entry, grid, block, cluster, shared, arg, reference, tolerance, goal"
                raise InvalidOperand(f"{word!r} is not one of {words}")
        except InvalidOperand as error:
            raise InvalidOperand(f"{self.path}:{line}: // check: {word} {rest}: {error}") from None

    def _argument(self, text: str) -> str:
        """An argument with its sizes worked out: f32[n, 2 * n]=random becomes f32[64,128]=random."""
        match = re.fullmatch(r"(\w+)\[([^\]]*)\]\s*(=.*)?", text)
        if match:
            shape = ",".join(str(whole(part, self.sizes)) for part in match[2].split(","))
            return f"{match[1]}[{shape}]{(match[3] or '').replace(' ', '')}"
        return str(whole(text, self.sizes)) if re.search(r"[A-Za-z_]", text) and "=" not in text else text

    def _reference(self, text: str) -> str:
        return str(self.path.parent / text) if text.endswith(".py") else text

    def exercise(self, text: str) -> Exercise:
        """All of it. Raises InvalidOperand for what is missing."""
        if unknown := self.given.keys() - self.sizes.keys():
            known = ", ".join(self.sizes) or "none"
            raise InvalidOperand(f"{self.path} has no size {', '.join(sorted(unknown))}; its `let` lines have {known}.")
        entry = self.once.get("entry", "")
        if not entry:
            names = kernels_of(text)
            if len(names) != 1:
                raise InvalidOperand(f"{self.path} has {len(names)} kernels: name one with // check: entry NAME.")
            entry = names[0]
        if missing := [word for word in ("grid", "block") if word not in self.shapes]:
            raise InvalidOperand(
                f"{self.path} does not say its {' and '.join(missing)}: // check: {missing[0]} 4. A whole example: "
                f"tilewright new example.cu"
            )
        if not self.references:
            raise InvalidOperand(f"{self.path} does not say what is right: // check: reference y = 2 * x, or FILE.py.")
        goal = re.fullmatch(r"score\s+(\d+)", self.once.get("goal", "score 0"))
        if goal is None or int(goal[1]) > 100:
            raise InvalidOperand(f"{self.path}: goal {self.once['goal']!r} is not `score N` with N up to 100.")
        try:
            tolerance = float(self.once["tolerance"]) if "tolerance" in self.once else None
        except ValueError:
            raise InvalidOperand(f"{self.path}: tolerance {self.once['tolerance']!r} is not a number.") from None
        return Exercise(
            self.path, text, entry, self.sizes, self.shapes["grid"], self.shapes["block"], self.shapes.get("cluster"),
            whole(self.once.get("shared", "0"), self.sizes), self.arguments, tuple(self.references), tolerance,
            int(goal[1]),
        )  # fmt: skip


def _assigned(text: str) -> tuple[str, str]:
    match = re.fullmatch(r"(\w+)\s*=\s*(\S.*)", text)
    if match is None:
        raise InvalidOperand("write NAME = VALUE")
    return match[1], match[2]


# --- the score --------------------------------------------------------------------------------------------------------


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
    hazards: tuple[str, ...]
    """Faults and warnings, as reported."""
    costly: tuple[str, ...]
    """Lines that ask for more sectors or wavefronts than they need, the costliest first."""
    printed: str

    def grids(self) -> tuple[Grid, ...]:
        """The marks, and what costs them."""
        rows = tuple((mark.what, f"{mark.points} of {mark.of}", mark.words) for mark in self.marks)
        goal = f", at least {self.least_score} asked for" if self.least_score else ""
        title = f"{self.entry}: {'passed' if self.passed else 'FAILED'}, {self.score} of 100{goal}"
        return (Grid(title, ("", "points", ""), rows, "\n".join(self.costly)),)


@suggests
def check_kernel(
    path: str | Path, *, sizes: Mapping[str, int] | None = None, gpu: str = DEFAULT_GPU, seed: int = 0
) -> CheckReport:
    """Run a kernel file on the emulator as its `// check:` lines say, and score it. Needs no GPU.

    sizes: replace what its `let` lines say. gpu: whose limits apply. Raises InvalidOperand for a file that does not say
    what to run, and CompileError.
    """
    exercise = read_exercise(Path(path), sizes)
    given, before, kinds = exercise.values(seed)
    result: EmulateResult | None = None
    try:
        result = emulate(
            exercise.path, exercise.entry, exercise.grid, exercise.block, given, gpu=gpu, seed=seed,
            shared_bytes=exercise.shared_bytes, cluster=exercise.cluster, hazards="collect",
        )  # fmt: skip
        hazards = list(result.hazards)
    except EmulatorFault as fault:
        hazards = [fault.hazard]
    faults = [hazard for hazard in hazards if hazard.level == "error"]
    wrong: tuple[str, ...] = ()
    if result is not None:
        after = {name: as_numbers(array, kinds.get(name, "")) for name, array in result.named.items()}
        wrong = exercise.wrong(before, after)
    counters = Counters() if result is None else result.counters
    is_right = result is not None and not faults and not wrong
    once = _once(given, {} if result is None else result.named, counters.per_instruction)
    marks = _marks(is_right, len(hazards) - len(faults), counters, once)
    score = sum(mark.points for mark in marks)
    said = tuple(f"{'FAULT' if hazard.level == 'error' else 'WARNING'}: {hazard}" for hazard in hazards)
    costly = _costly(counters.per_instruction) if is_right else ()
    return CheckReport(
        str(path), exercise.entry, is_right and score >= exercise.least_score, score, exercise.least_score, marks,
        wrong, said, costly, "" if result is None else result.printed,
    )  # fmt: skip


def fewest_sectors(row: InstructionRow) -> int:
    """The sectors that would hold the bytes that an instruction's lanes move, each once; at most those that it asked
    for (lanes that read one address together need fewer than their bytes fill)."""
    return min(row.sectors, -(-row.bytes // 32))


def _opcode(row: InstructionRow) -> str:
    """The instruction's name, without its guard."""
    return next(part for part in row.ptx.split() if not part.startswith("@"))


_STORES = ("st.", "red.", "atom.")


def _once(before: Mapping[str, Any], after: Mapping[str, np.ndarray], rows: Sequence[InstructionRow]) -> int:
    """The sectors that move when each buffer is read once, and each that changed is written once; no more than were
    asked for. A buffer that held nothing but NaN need not be read."""
    reads = writes = 0
    for name, array in before.items():
        if isinstance(array, np.ndarray):
            sectors = -(-array.nbytes // 32)
            changed = name in after and after[name].tobytes() != array.tobytes()
            empty = array.dtype.kind == "f" and bool(np.isnan(array).all())
            reads += 0 if empty else sectors
            writes += sectors if changed else 0
    stored = sum(row.sectors for row in rows if _opcode(row).startswith(_STORES))
    loaded = sum(row.sectors for row in rows) - stored
    return min(reads, loaded) + min(writes, stored)


def _marks(is_right: bool, warnings: int, counters: Counters, once: int) -> tuple[Marks, ...]:
    """`once`: see _once."""
    rows = counters.per_instruction
    asked, needed = sum(row.sectors for row in rows), sum(map(fewest_sectors, rows))
    waves, ideal = sum(row.wavefronts for row in rows), sum(row.ideal for row in rows)

    def share(what: str, most: int, part: int, whole: int, words: str) -> Marks:
        points = int(most * min(part / whole, 1.0)) if whole else most
        return Marks(what, points if is_right else 0, most, words)

    return (
        Marks("right", RIGHT if is_right else 0, RIGHT, "" if is_right else "nothing counts before it is right"),
        Marks("clean", CLEAN if is_right and not warnings else 0, CLEAN, f"{warnings} warnings"),
        share("coalescing", COALESCING, needed, asked, f"{asked} sectors; {needed} hold the bytes that lanes ask for"),
        share("reuse", REUSE, once, asked, f"{asked} sectors; {once} read and write each buffer once"),
        share("conflicts", CONFLICTS, ideal, waves, f"{waves} wavefronts of shared memory, {ideal} would do"),
    )


def _costly(rows: Sequence[InstructionRow]) -> tuple[str, ...]:
    """Return what lines ask for beyond what they need."""
    found = []
    for row in rows:
        sectors = ("sectors", row.sectors, fewest_sectors(row))
        for unit, asked, needed in (sectors, ("wavefronts", row.wavefronts, row.ideal)):
            if asked > needed:
                each = f"{asked / row.requests:.3g} {unit} per request, {needed / row.requests:.3g} would do"
                found.append((asked - needed, f"line {row.line}: {_opcode(row)}: {each}"))
    return tuple(dict.fromkeys(text for _, text in sorted(found, key=lambda each: -each[0])[:_SHOWN]))
