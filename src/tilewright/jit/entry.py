"""A kernel's name in the PTX, the types of its parameters and the names of files, as the compiler itself tells them.

NVRTC has name expressions for the first; its 13.5 dies on one for a template whose parameters do not compile. Lines at
the end of the source ask for both instead (cuda/host/entry.h), and are taken out of the PTX again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

HEADER = "tilewright/entry.h"
NAME_LINE = "tilewright/entry"
"""What diagnostics call the lines that ask."""
_ENTRY = re.compile(r"^.*\btilewright_entry = (\w+);\n", re.MULTILINE)
_TYPES = re.compile(r"^.*\btilewright_parameters\[\d+\] = \{([^}]*)\};\n", re.MULTILINE)


@dataclass(frozen=True)
class ParameterType:
    """The C++ type of a kernel's parameter. `kind`: f, b (bfloat16), i, u, B (bool), or "" for what is not a number."""

    kind: str
    bytes: int
    """Of the number, of a vector's parts, or of what a pointer points to; 0 for what is not a number."""
    pointers: int
    vector: bool

    @property
    def name(self) -> str:
        """In NumPy's terms: float32, int8."""
        plain = {"f": "float", "b": "bfloat", "i": "int", "u": "uint"}.get(self.kind, "")
        return "bool" if self.kind == "B" else f"{plain}{8 * self.bytes}"


def ask(text: str, expression: str) -> str:
    """A source that also tells the entry that `expression` names."""
    name = " ".join(expression.split())
    return f'{text}\n#line 1 "{NAME_LINE}"\n#define TILEWRIGHT_ENTRY {name}\n#include <{HEADER}>\n'


def answer(ptx: str) -> tuple[str, str, str]:
    """(the PTX without the answer, the entry's name or "" where the name is not a kernel's, its types as text)."""
    entry, types = _ENTRY.search(ptx), _TYPES.search(ptx)
    if entry is None or types is None or f".entry {entry[1]}(" not in ptx:
        return ptx, "", ""
    declared = re.compile(rf"^.*\.entry {re.escape(entry[1])}\s*\([^)]*\)\s*;\n", re.MULTILINE)  # for the address
    return declared.sub("", _TYPES.sub("", _ENTRY.sub("", ptx))), entry[1], types[1]


def types_of(text: str) -> tuple[ParameterType, ...]:
    """The types in an answer's text: little-endian bytes, the trailing zeros left out."""
    data = bytes(int(item) for item in text.split(","))
    data = data.ljust(-(-len(data) // 4) * 4, b"\0")
    codes = [int.from_bytes(data[k : k + 4], "little") for k in range(0, len(data), 4)]
    codes = codes[: codes.index(0xFFFFFFFF)]
    return tuple(
        ParameterType(chr(code >> 8 & 255).strip("\0"), code & 255, code >> 16 & 255, bool(code >> 24))
        for code in codes
    )


_OCTAL = re.compile(r"((?:\\[23][0-7]{2})+)(/[23][0-7]{2})?")


def file_name(written: str) -> str:
    """A file's name from PTX or a line table: NVRTC writes bytes beyond ASCII in octal. Line tables take a name's last
    backslash for the end of a folder: `\\303\\251.cu` becomes `\\303/251.cu`."""

    def meant(found: re.Match[str]) -> str:
        run, last = found[1], found[2] or ""
        codes = [int(octal, 8) for octal in run[1:].split("\\")]
        try:
            return bytes(codes).decode() + last
        except UnicodeDecodeError:  # a letter's last byte is beyond the slash
            return bytes([*codes, *([int(last[1:], 8)] if last else [])]).decode("utf-8", "surrogateescape")

    return _OCTAL.sub(meant, written)


_NOISE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)


@lru_cache(maxsize=512)
def parameter_names(text: str, expression: str) -> tuple[str, ...]:
    """The names that the source gives a kernel's parameters; () where its declaration is not found by its text."""
    base = expression.partition("<")[0].split("::")[-1].strip()
    plain = _NOISE.sub(" ", text)
    for found in re.finditer(rf"\b{re.escape(base)}\s*\(", plain):
        head = re.split(r"[;{}]", plain[max(0, found.start() - 500) : found.start()])[-1]
        if not base or "__global__" not in head:
            continue
        parts, depth, start = [], 0, found.end()
        for at in range(found.end(), len(plain)):
            letter = plain[at]
            if depth == 0 and letter in ",)":
                parts.append(plain[start:at])
                start = at + 1
                if letter == ")":
                    break
            depth += (letter in "([{<") - (letter in ")]}>")
        plain_parts = [re.sub(r"\[.*|=.*", "", part, flags=re.DOTALL) for part in parts if part.strip()]
        return tuple((re.findall(r"\w+", part) or [""])[-1] for part in plain_parts)
    return ()
