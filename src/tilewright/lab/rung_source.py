"""A rung's source as a lesson: which lines are new over the rung below, and the PTX and SASS that each line became."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from ..attn.rung import AttentionRung
from ..attn.rungs import EVERY_RUNG
from ..errors import ConfigRejected, InvalidOperand, suggests
from ..gemm.rungs import GEMM_RUNGS
from ..gpus import DEFAULT_GPU, find_gpu
from ..jit.source import CUDA_ROOT, gather
from .sass import listings
from .sass_facts import group_of
from .shown import Grid, Shown
from .subject import AnyConfig, AnyRung, every_rung, nearest_rung, of_rung, read_config

_COMMENT = re.compile(r"//.*$")
_WORD = re.compile(r"\b[A-Za-z_]\w{3,}\b")
_CONSTANT = re.compile(r"\bstatic constexpr \w+ (\w+) =")
_HEADING = re.compile(r"^(?=// ---- )", re.MULTILINE)


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
class RungSource(Shown):
    """A rung with its own source. `file` is below cuda/; `below`: the rung it is compared with, "" for the first."""

    rung: str
    types: tuple[str, ...]
    precision: str
    teaches: str
    config: str
    below: str
    below_config: str
    """The config of the rung below where this one's is its default: what differs may be the config alone."""
    file: str
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
        made_of = [Grid(f"{self.rung}: {self.teaches}", names, tuple(rows))]
        if self.uses:
            uses = tuple((use.name, f"{use.file}:{use.line}") for use in self.uses)
            made_of.append(Grid("What the new lines bring in", ("name", "defined in"), uses))
        if self.switches:
            places = tuple((each.name, f"{each.file}:{each.line}") for each in self.switches)
            made_of.append(Grid("What the new lines switch", ("constant", "read in"), places))
        return tuple(made_of)


def below(rung: AnyRung) -> AnyRung | None:
    """The rung that this one is compared with: the one before it in its ladder; None for the first."""
    ladder: tuple[AnyRung, ...] = EVERY_RUNG if isinstance(rung, AttentionRung) else GEMM_RUNGS
    before = [other for other in ladder[: ladder.index(rung)] if other.id[0] == rung.id[0]]
    return before[-1] if before else None


def own_part(rung: AnyRung) -> tuple[int, str]:
    """(first line's number, text) of a rung's own source: what is below its heading, or all of its file."""
    text = (CUDA_ROOT / rung.include).read_text(encoding="utf-8")
    at = 1
    for part in _HEADING.split(text):
        if part.startswith(f"// ---- {rung.id} "):
            return at, part
        at += part.count("\n")
    return 1, text


def _key(line: str) -> str:
    """Return what two lines are compared by: without comments and blanks."""
    return re.sub(r"\s+", "", _COMMENT.sub("", line))


def _texts(rung: AnyRung) -> dict[str, str]:
    """The texts of a rung by file: its own part, and what that includes. Attention's rungs share a file, of which those
    above a rung are no part of it."""
    first, own = own_part(rung)
    whole = dict(gather(f'#include "{rung.include}"\n', [CUDA_ROOT]))
    if first > 1:
        lines = whole[rung.include].splitlines(keepends=True)
        own = "".join(lines[: first - 1]) + own
    return whole | {rung.include: own}


def _marked(rung: AnyRung) -> tuple[list[SourceLine], AnyRung | None, tuple[Definition, ...]]:
    """Its lines, the rung below, and what the new lines bring in."""
    first, own = own_part(rung)
    lower = below(rung)
    texts = own.splitlines()
    if lower is None:
        return [SourceLine(first + n, text, False) for n, text in enumerate(texts)], None, ()
    before = list(_texts(lower).values())
    known = {_key(line) for text in before for line in text.splitlines()}
    if isinstance(rung, AttentionRung):  # each rung's structure has lines that say its name
        low, high = (each.id.split("_")[0].upper() for each in (lower, rung))
        known |= {key.replace(low, high) for key in known}
    lines = [
        SourceLine(first + n, text, len(key := _key(text)) > 2 and key not in known) for n, text in enumerate(texts)
    ]
    _, below_own = own_part(lower)
    own_files = [text for name, text in _texts(lower).items() if name.startswith(("gemm/", "attention/"))]
    old = set(_WORD.findall("\n".join([below_own, *own_files])))
    new = dict.fromkeys(word for line in lines if line.new for word in _WORD.findall(_COMMENT.sub("", line.text)))
    return lines, lower, tuple(_defined([word for word in new if word not in old], rung))


def _switched(lines: list[SourceLine], rung: AnyRung) -> list[Definition]:
    """Return where the code that rungs share reads the constants that a rung's new lines set, as Rung::NAME."""
    set_here = [match[1] for line in lines if line.new and (match := _CONSTANT.search(line.text))]
    if not set_here:
        return []
    reads = re.compile(rf"\bRung::({'|'.join(set_here)})\b")
    whole = gather(f'#include "{rung.include}"\n', [CUDA_ROOT])
    found = [
        Definition(match[1], file, number)
        for file, text in whole
        for number, line in enumerate(text.splitlines(), 1)
        if (match := reads.search(_COMMENT.sub("", line)))
    ]
    return sorted(found, key=lambda each: set_here.index(each.name))


def _defined(names: list[str], rung: AnyRung) -> list[Definition]:
    """Return where functions and types of these names are defined in the files that a rung includes."""
    found = []
    texts = {name: text for name, text in _texts(rung).items() if name != rung.include}
    for name in names:
        pattern = re.compile(
            rf"^[^\n/]*(?:\b(?:struct|class|using)\s+{name}\b|__device__[^\n;]*\b{name}\s*\()", re.MULTILINE
        )
        for file, text in texts.items():
            match = pattern.search(text)
            if match:
                found.append(Definition(name, file, text.count("\n", 0, match.start()) + 1))
                break
    return found


def _file_of(path: str) -> str:
    """A file's name below cuda/, from what line information says of it."""
    return "/".join(path.rsplit("/", 2)[-2:])


@suggests
def show(
    name: str,
    *,
    config: str | AnyConfig | None = None,
    gpu: str = DEFAULT_GPU,
    compiled: bool = False,
    sass: bool = True,
    file: str | None = None,
) -> RungSource:
    """Return a rung's source, with the lines that are new over the rung below, and what they bring in.

    compiled: also the PTX and SASS of each line, counting what it calls. SASS needs a disassembler; sass=False omits
    it. config, gpu: what it is compiled with and for. file: show this file that the rung includes
    ("gemm/warp_tiled.cuh") instead of its own; every line then has what was made from it and what it calls.

    Raises ConfigRejected, InvalidOperand, CompileError.
    """
    rung = every_rung(name)
    if rung is None:
        raise ConfigRejected(f"rung {name!r} is not known.{nearest_rung(name)}")
    board = find_gpu(gpu)
    chosen = read_config(rung, config, board.arch)
    lines, lower, uses = _marked(rung)
    switches = tuple(_switched(lines, rung))
    place = rung.include
    if file is not None and file != place:
        lines, place = _shared_file(rung, lower, file), file
    by_file: tuple[tuple[str, int], ...] = ()
    if compiled:
        lines, by_file = _with_code(rung, chosen, board, lines, place, sass)
    lower_config = str(read_config(lower, None, board.arch)) if lower is not None and config is None else ""
    return RungSource(
        rung.id, tuple(rung.dtypes), getattr(rung, "precision", "ieee"), rung.teaches, str(chosen),
        lower.id if lower is not None else "", lower_config, place, tuple(lines),
        *((uses, switches) if file is None else ((), ())), by_file,
    )  # fmt: skip


def _shared_file(rung: AnyRung, lower: AnyRung | None, file: str) -> list[SourceLine]:
    """The lines of a file that the rung includes; all are new where the rung below does not include it."""
    texts = _texts(rung)
    if file not in texts:
        raise InvalidOperand(f"{rung.id} does not include {file!r}. It includes {', '.join(texts)}.")
    known = {_key(line) for text in _texts(lower).values() for line in text.splitlines()} if lower else None
    return [
        SourceLine(n, text, known is not None and len(key := _key(text)) > 2 and key not in known)
        for n, text in enumerate(texts[file].splitlines(), 1)
    ]


def _with_code(
    rung: AnyRung, config: Any, board: Any, lines: list[SourceLine], file: str, with_sass: bool
) -> tuple[list[SourceLine], tuple[tuple[str, int], ...]]:
    """The lines with their PTX and SASS: of each instruction the outermost line of `file` that it was made for."""
    subject = of_rung(rung, config, board)
    assert subject.kernel is not None
    shown = range(lines[0].number, lines[-1].number + 1)
    sass: dict[int, list[str]] = {}
    groups: dict[int, Counter[str]] = {}
    files: Counter[str] = Counter()
    for instruction in listings(subject.cubin)[subject.entry] if with_sass else ():
        places = [(_file_of(path), number) for path, number in instruction.places]
        if places:
            files[places[0][0]] += 1
        own = [number for path, number in places if path == file and number in shown]
        if own:
            text = f"{instruction.address:04x}  {instruction.guard}{instruction.opcode} {instruction.operands}".rstrip()
            sass.setdefault(own[-1], []).append(text)
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


_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', re.MULTILINE)
_LOC = re.compile(r"^\s*\.loc\s+(\d+)\s+(\d+)\s+(\d+)(?:.*inlined_at\s+(\d+)\s+(\d+)\s+(\d+))?")
_Spot = tuple[int, int, int]


def ptx_by_line(ptx: str, entry: str, file: str, shown: range) -> dict[int, list[str]]:
    """The PTX instructions of an entry by the outermost line of `file`, of those `shown`, that they were made for."""
    names = {int(number): _file_of(path) for number, path in _FILE.findall(ptx)}
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
