"""A translation unit and everything it includes, gathered before the compiler sees it.

The texts are handed to NVRTC in memory, so that a key is a hash of contents and the machine code holds no path of
this installation. `#include <...>` is left to the compiler's own search, but for a person's own folders.
"""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from ..errors import CompileError

CUDA_ROOT = Path(__file__).resolve().parent.parent / "cuda"
"""The package's own device code."""

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)
_IN_BRACKETS = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<([^>]+)>", re.MULTILINE)

Constant = bool | int | float | str


@dataclass(frozen=True)
class Source:
    """A translation unit: its text, the name diagnostics give it, its entry, and its includes by name."""

    text: str
    name: str
    entry: str
    headers: tuple[tuple[str, str], ...] = ()
    expression: str = ""
    """The kernel as C++ names it (`scale`, `ns::scale<float>`): the compiler then says its name in the PTX. Without one
    the entry is that name."""
    apart: bool = False
    """It is a stranger's, which NVRTC may die of: it is compiled in another process."""


@dataclass(frozen=True)
class Library:
    """Headers of an installed package, which the compiler finds for itself by `#include <...>`.

    A key holds no path: `identity` stands in it for what the files under `folders` say.
    """

    folders: tuple[Path, ...]
    identity: str


@lru_cache(maxsize=512)
def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8-sig", errors="surrogateescape")


@lru_cache(maxsize=512)
def _found(what: re.Pattern[str], text: str) -> tuple[str, ...]:
    return tuple(what.findall(text))


def gather(
    text: str,
    folders: Sequence[Path],
    generated: Mapping[str, str] = MappingProxyType({}),
    leave: bool = False,
    not_in_brackets: Sequence[str] | None = None,
) -> tuple[tuple[str, str], ...]:
    """(name, text) of every quoted include reachable from `text`, in order of first use.

    A name is looked for in `folders`. `generated` texts take the place of files by these names. A file that is nowhere
    raises CompileError, or is left to the compiler's own search (`leave`). `#include <...>` is left to that search too,
    unless `not_in_brackets` is given: then files in `folders` but those are gathered for it as well.
    With `leave` a name is first looked for next to the file that includes it. A file found there is called by its place
    among the folders ("mma.h" in lib/arch/wmma.h is "lib/arch/mma.h"), since CUDA or another folder may have the name.
    A file has one name, since `#pragma once` goes by names, and no two files have the same.
    """
    found: dict[str, str] = {}
    called: dict[Path, str] = {}
    pending: list[tuple[str, Path | None]] = []

    def name_of(path: Path, wanted: str) -> str:
        """Return what a file is called: as it was first, and as no other is."""
        if path.resolve() not in called:
            while wanted in called.values():
                wanted = f"other/{wanted}"
            called[path.resolve()] = wanted
        return called[path.resolve()]

    def follow(body: str, name: str, beside: Path | None) -> str:
        """The text of a file with the names that its includes have here; these are looked for next."""
        for own in dict.fromkeys(_found(_INCLUDE, body)):
            path, here = None, own
            if leave and own not in generated:
                places = folders if beside is None else (beside, *folders)
                path = next((place / own for place in places if (place / own).is_file()), None)
            if path is not None:
                near = beside is not None and path == beside / own
                here = name_of(path, posixpath.normpath(posixpath.join(posixpath.dirname(name), own)) if near else own)
                line = re.compile(rf'(^[ \t]*#[ \t]*include[ \t]*"){re.escape(own)}"', re.MULTILINE)
                body = line.sub(rf'\g<1>{here}"', body)
            pending.append((here, path))
        if not_in_brackets is not None:
            others = (name for name in _found(_IN_BRACKETS, body) if name not in not_in_brackets)
            pending.extend((name, None) for name in others if any((folder / name).is_file() for folder in folders))
        return body

    follow(text, "", None)
    while pending:
        name, path = pending.pop(0)
        if name in found:
            continue
        if name in generated:
            found[name] = follow(generated[name], name, None)
            continue
        path = path or next((folder / name for folder in folders if (folder / name).is_file()), None)
        if path is not None and leave and (known := name_of(path, name)) != name:
            found[name] = f'#include "{known}"\n'
            pending.append((known, path))
        elif path is not None:
            found[name] = follow(_read(path), name, path.parent if leave else None)
        elif not leave:
            places = ", ".join(str(folder) for folder in folders)
            raise CompileError(f'#include "{name}" was not found in {places}. Name its folder with include=.')
    return tuple(found.items())


def literal(value: Constant) -> tuple[str, str]:
    """(C++ type, C++ literal) of a constant. A str is a C++ type name and has the type "type".

    Raises ValueError for a float that has no literal: infinity or NaN.
    """
    if isinstance(value, bool):
        return "bool", "true" if value else "false"
    if isinstance(value, int):
        return "int", str(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} has no C++ literal")
        return "float", f"{value!r}f"
    return "type", value


def render(
    include: str | Sequence[str], constants: Mapping[str, Constant], entry: str,
    generated: Mapping[str, str] = MappingProxyType({}),
) -> Source:  # fmt: skip
    """The unit of one rung: `struct Cfg` with the named constants, then its file or files; the first names it.

    `generated` texts take the place of files that are included (see gather).
    """
    includes = (include,) if isinstance(include, str) else tuple(include)
    lines = ["struct Cfg {"]
    for name, value in constants.items():
        kind, text = literal(value)
        lines.append(f"  using {name} = {text};" if kind == "type" else f"  static constexpr {kind} {name} = {text};")
    lines += ["};", *(f'#include "{name}"' for name in includes), ""]
    text = "\n".join(lines)
    name = Path(includes[0]).name.replace(".cuh", ".cu")
    return Source(text, name, entry, gather(text, (CUDA_ROOT,), generated))
