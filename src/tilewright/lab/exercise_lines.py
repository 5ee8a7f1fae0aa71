"""A kernel file that says in its comments how to run it and what it must compute.

Lines of the form `// check: WORD ...`:

    let n = 128                   a size; later lines may use it in +, -, *, / (whole), %, **
    entry transpose               the kernel, where the file has several
    grid n / 32, n / 32           blocks;  block 32, 8  threads;  cluster 2  blocks of a cluster
    shared 4 * n                  bytes of dynamic shared memory per block
    arg x = f32[n, n]=random      a parameter by name, as `tilewright emulate --arg` takes it; or a number: arg n = n
    reference y = x.T             what a buffer must hold, as --reference takes it; or FILE.py next to the file
    tolerance 1e-4                relative and absolute
    uses ldmatrix                 an instruction that must run, as PTX begins it; several in lines of their own
    include ../include            a folder of headers, from the file's own; several in lines of their own
    goal score 100                the least score that passes; without it, any right kernel does
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..emu.arguments import as_numbers, parse_argument
from ..emu.reference import Reference
from ..errors import InvalidOperand, in_shell
from .expression import whole

_LINE = re.compile(r"^\s*//\s*check:\s*(\w+)\s*(.*?)\s*$", re.MULTILINE)


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
    uses: tuple[str, ...]
    """Instructions of PTX that must be executed, each by how its name begins."""
    include: tuple[Path, ...]
    """Folders of headers, besides the file's own."""

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
    if path.is_dir():
        raise InvalidOperand(f"{path} is a folder. Name a .cu file in it.")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        made = f"Make one: tilewright new {in_shell(path.with_suffix('.cu'))}"
        advice = "Give a text file in UTF-8." if path.exists() else made
        raise InvalidOperand(f"{path} cannot be read ({error}). {advice}") from error
    said = _read(path, text, sizes or {})
    if entry is not None:
        said.once["entry"] = entry
    return said.exercise(text)


class LaunchSaid(NamedTuple):
    """What a file's `// check:` lines say of its kernel's launch and headers; 0 where they do not."""

    threads: int
    shared_bytes: int
    """Of dynamic shared memory."""
    include: tuple[Path, ...]


def launch_said(path: Path, text: str) -> LaunchSaid:
    """Read what its lines say of a launch. Raises InvalidOperand for a line that cannot be read."""
    said = _read(path, text, {})
    shared = whole(said.once.get("shared", "0"), said.sizes)
    return LaunchSaid(prod(said.shapes.get("block", (0,))), shared, tuple(said.include))


def _read(path: Path, text: str, sizes: Mapping[str, int]) -> _Said:
    said = _Said(path, dict(sizes))
    for match in _LINE.finditer(text):
        said.take(match[1], match[2], text.count("\n", 0, match.start()) + 1)
    return said


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
    uses: list[str] = field(default_factory=list)
    include: list[Path] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)

    def take(self, word: str, rest: str, line: int) -> None:
        """One line. Raises InvalidOperand with its place."""
        try:
            if word == "let":
                name, value = _assigned(rest)
                self._first(f"let {name}")
                self.sizes[name] = self.given[name] if name in self.given else whole(value, self.sizes)
            elif word == "arg":
                name, value = _assigned(rest)
                self._first(f"arg {name}")
                self.arguments[name] = self._argument(value)
            elif word == "uses":
                self.uses.append(rest)
            elif word == "include":
                self.include.append(self._folder(rest))
            elif word == "reference":
                self.references.append(self._reference(rest))
            elif word in ("grid", "block", "cluster"):
                self._first(word)
                self.shapes[word] = tuple(whole(part, self.sizes) for part in rest.split(","))
                if not 1 <= len(self.shapes[word]) <= 3 or min(self.shapes[word]) < 1:
                    raise InvalidOperand(f"{word} {rest} is {self.shapes[word]}: one to three sizes of at least 1")
            elif word in ("entry", "shared", "tolerance", "goal"):
                self._first(word)
                self.once[word] = rest
            else:
                words = "let, entry, grid, block, cluster, shared, arg, reference, tolerance, uses, include, goal"
                raise InvalidOperand(f"{word!r} is not one of {words}")
        except InvalidOperand as error:
            raise InvalidOperand(f"{self.path}:{line}: // check: {word} {rest}: {error}") from None

    def _first(self, what: str) -> None:
        """Raise InvalidOperand where an earlier line has said this."""
        if what in self.seen:
            raise InvalidOperand(f"an earlier line says {what} too: keep one of them")
        self.seen.add(what)

    def _argument(self, text: str) -> str:
        """An argument with its sizes worked out: f32[n, 2 * n]=random becomes f32[64,128]=random."""
        match = re.fullmatch(r"(\w+)\[([^\]]*)\]\s*(=.*)?", text)
        if match:
            shape = ",".join(str(whole(part, self.sizes)) for part in match[2].split(","))
            return f"{match[1]}[{shape}]{(match[3] or '').replace(' ', '')}"
        return str(whole(text, self.sizes)) if re.search(r"[A-Za-z_]", text) and "=" not in text else text

    def _folder(self, text: str) -> Path:
        folder = self.path.parent / text
        if not text or not folder.is_dir():
            raise InvalidOperand(f"there is no folder {folder}")
        return folder

    def _reference(self, text: str) -> str:
        return str(self.path.parent / text) if text.endswith(".py") else text

    def exercise(self, text: str) -> Exercise:
        """All of it. Raises InvalidOperand for what is missing."""
        if unknown := self.given.keys() - self.sizes.keys():
            known = ", ".join(self.sizes) or "none"
            raise InvalidOperand(f"{self.path} has no size {', '.join(sorted(unknown))}; its `let` lines have {known}.")
        entry = self.once.get("entry", "")
        if not entry:
            names = kernels_of(text) or re.findall(r"\.entry\s+([\w$]+)", text)
            if len(names) != 1:
                if not names:
                    raise InvalidOperand(f"{self.path} has no kernel. A whole example: tilewright new example.cu")
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
            int(goal[1]), tuple(self.uses), tuple(self.include),
        )  # fmt: skip


def _assigned(text: str) -> tuple[str, str]:
    match = re.fullmatch(r"(\w+)\s*=\s*(\S.*)", text)
    if match is None:
        raise InvalidOperand("write NAME = VALUE")
    return match[1], match[2]


def kernels_of(text: str) -> list[str]:
    """The names of the kernels that a CUDA C++ file defines, in order."""
    plain = re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL)
    plain = re.sub(r"__launch_bounds__\s*\([^)]*\)", "", plain)
    return list(dict.fromkeys(re.findall(r"__global__[^;{(]*?\b(\w+)\s*\(", plain)))
