"""A kernel's source, line by line: which lines are new over another's, and the PTX and SASS that each became."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from ..jit.entry import file_name
from .sass import Instruction, listings
from .sass_facts import group_of
from .shown import Grid, Shown
from .subject import Subject

_COMMENT = re.compile(r"//.*$")


@dataclass(frozen=True)
class SourceLine:
    """One line. `new`: neither the rung below nor what it includes has it. `ptx`, `sass`: what it became, in order."""

    number: int
    text: str
    new: bool
    ptx: tuple[str, ...] = ()
    sass: tuple[str, ...] = ()
    groups: tuple[tuple[str, int], ...] = ()
    """Its SASS instructions by what they do, the most first."""


@dataclass(frozen=True)
class Definition:
    """A name that a new line has, and one place of it in another part: where it is defined, or where it is read."""

    name: str
    file: str
    line: int


@dataclass(frozen=True, repr=False)
class KernelSource(Shown):
    """A rung with its own source, or a person's file. `below`: what it is compared with, "" for nothing."""

    name: str
    types: tuple[str, ...]
    precision: str
    teaches: str
    config: str
    below: str
    below_config: str
    """The config of the rung below where this one's is its default: what differs may be the config alone."""
    file: str
    """Of a rung: below cuda/."""
    lines: tuple[SourceLine, ...]
    uses: tuple[Definition, ...]
    """What its new lines bring in from files that rungs share."""
    switches: tuple[Definition, ...]
    """The constants that its new lines set, and each place where code that rungs share reads them."""
    by_file: tuple[tuple[str, int], ...] = ()
    """SASS instructions by the file of the line they were made from, the most first; () where it was not compiled."""

    @property
    def text(self) -> str:
        """The source as it lies in the file."""
        return "".join(f"{line.text}\n" for line in self.lines)

    def grids(self) -> tuple[Grid, ...]:
        """The lines, new ones marked, each with how many instructions it became."""
        compiled = bool(self.by_file)
        rows = []
        for line in self.lines:
            made = ", ".join(f"{group} {count}" for group, count in line.groups)
            rows.append(("+" if line.new else "", str(line.number), line.text, *([made] if compiled else [])))
        names = ("new", "line", "source", *(["SASS"] if compiled else []))
        made_of = [Grid(f"{self.name}: {self.teaches}".removesuffix(": "), names, tuple(rows))]
        if self.uses:
            uses = tuple((use.name, f"{use.file}:{use.line}") for use in self.uses)
            made_of.append(Grid("What the new lines bring in", ("name", "defined in"), uses))
        if self.switches:
            places = tuple((each.name, f"{each.file}:{each.line}") for each in self.switches)
            made_of.append(Grid("What the new lines switch", ("constant", "read in"), places))
        return tuple(made_of)


def key_of(line: str) -> str:
    """Return what two lines are compared by: without comments and blanks."""
    return re.sub(r"\s+", "", _COMMENT.sub("", line))


def is_new(line: str, known: set[str]) -> bool:
    """Return whether a line says something that none of `known` (by key_of) does."""
    return len(key := key_of(line)) > 2 and key not in known


def short_name(path: str) -> str:
    """A file's name with its folder, from what line information says of it."""
    return "/".join(path.rsplit("/", 2)[-2:])


def with_code(
    subject: Subject, lines: list[SourceLine], file: str, with_sass: bool
) -> tuple[list[SourceLine], tuple[tuple[str, int], ...]]:
    """The lines with their PTX and SASS: of each instruction the outermost line of `file` that it was made for."""
    assert subject.kernel is not None
    shown = range(lines[0].number, lines[-1].number + 1)
    sass: dict[int, list[str]] = {}
    groups: dict[int, Counter[str]] = {}
    files: Counter[str] = Counter()
    for instruction in listings(subject.cubin)[subject.entry] if with_sass else ():
        places = [(short_name(path), number) for path, number in instruction.places]
        if places:
            files[places[0][0]] += 1
        own = [number for path, number in places if path == file and number in shown]
        if own:
            sass.setdefault(own[-1], []).append(in_words(instruction))
            groups.setdefault(own[-1], Counter())[group_of(instruction.opcode)] += 1
    ptx = ptx_by_line(subject.kernel.ptx, subject.entry, file, shown)
    made = [
        SourceLine(
            line.number, line.text, line.new, tuple(ptx.get(line.number, ())), tuple(sass.get(line.number, ())),
            tuple(groups.get(line.number, Counter()).most_common()),
        )
        for line in lines
    ]  # fmt: skip
    return made, tuple(files.most_common())


def in_words(instruction: Instruction) -> str:
    """A SASS instruction with its address."""
    return f"{instruction.address:04x}  {instruction.guard}{instruction.opcode} {instruction.operands}".rstrip()


_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', re.MULTILINE)
_LOC = re.compile(r"^\s*\.loc\s+(\d+)\s+(\d+)\s+(\d+)(?:.*inlined_at\s+(\d+)\s+(\d+)\s+(\d+))?")
_Spot = tuple[int, int, int]


def ptx_by_line(ptx: str, entry: str, file: str, shown: range) -> dict[int, list[str]]:
    """The PTX instructions of an entry by the outermost line of `file`, of those `shown`, that they were made for."""
    names = {int(number): short_name(file_name(path)) for number, path in _FILE.findall(ptx)}
    start = ptx.index(f".entry {entry}(")
    body = ptx[ptx.index("{", start) :]
    called_at: dict[_Spot, _Spot] = {}
    found: dict[int, list[str]] = {}
    line: int | None = None
    for text in body.splitlines():
        if match := _LOC.match(text):
            numbers = [int(group) for group in match.groups() if group is not None]
            spot: _Spot | None = (numbers[0], numbers[1], numbers[2])
            if len(numbers) == 6:
                called_at[(numbers[0], numbers[1], numbers[2])] = (numbers[3], numbers[4], numbers[5])
            line, seen = None, set()
            while spot is not None and spot not in seen:
                seen.add(spot)
                if names.get(spot[0]) == file and spot[1] in shown:
                    line = spot[1]
                spot = called_at.get(spot)
        elif text.startswith("}"):
            break
        elif line is not None and (text := text.strip()) and text[0] not in "./${}" and not text.endswith(":"):
            found.setdefault(line, []).append(text)
    return found
