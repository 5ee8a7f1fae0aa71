"""A person's CUDA file with its host part blanked: main, launches, host functions, host headers.

nvcc compiles both parts of a file; run-time compilation reads device code alone. What is blanked keeps its lines, so
that messages still point at the right ones. A device function must say so (`__device__`, `__global__`, `constexpr`, or
a macro that does), so whatever says nothing is the host's. Text is scanned, not parsed: what macros hide stays.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_SKIPPED = re.compile(
    r"""//[^\n]* | /\*.*?\*/ | R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)" | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*'
      | ^[ \t]*\#(?:[^\n\\]|\\.)*""",
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
"""Comments, literals and preprocessor lines."""
_TRANSPARENT = re.compile(r'(?:\b(?:inline\s+)?namespace\b[^()=]*|\bextern\s*"C(?:\+\+)?")\s*$')
"""What a brace opens that holds declarations like the file itself."""
_NO_FUNCTION = re.compile(r"\s*(?:typedef|using|struct|class|union|enum|static_assert|friend|asm)\b")
_NAMED = re.compile(r"(?:[\w>\]]\s+|[&*]\s*)[&*]*(?:\w+\s*::\s*)*(?:~?\w+|operator\W+)\s*\(")
"""A type, then a name before parentheses: what a macro's use is not."""
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)((?:[^\n\\]|\\.)*)", re.MULTILINE | re.DOTALL)
_DEVICE = re.compile(r"\b(?:__device__|__global__|constexpr|consteval)\b")
_ENDS, _BRACES = re.compile(r"[;{}]"), re.compile(r"[{}]")
_OF_STD = re.compile(r"\busing\s+(?:namespace\s+std|std\s*::\s*\w+)\s*;")


def device_part(text: str, others: Iterable[str] = (), dropped: Iterable[str] = ()) -> str:
    """`text` without what only the host can use, in as many lines. `others`: texts whose macros it uses. `dropped`:
    headers whose includes are left out."""
    marks = {name for body in (text, *others) for name, meaning in _MACRO.findall(body) if _DEVICE.search(meaning)}
    device = re.compile("|".join([_DEVICE.pattern, *(rf"\b{re.escape(name)}\b" for name in marks)]))
    plain = _SKIPPED.sub(lambda found: _blank(found[0]), text)
    for start, stop in _host_spans(plain, device):
        text = text[:start] + _blank(text[start:stop]) + text[stop:]
    text = _OF_STD.sub(lambda found: _blank(found[0]), text)
    for name in dropped:
        line = re.compile(rf"""^[ \t]*#[ \t]*include[ \t]*[<"]{re.escape(name)}[>"][^\n]*""", re.MULTILINE)
        text = line.sub(lambda found: _blank(found[0]), text)
    return text


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


def _host_spans(plain: str, device: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    """The host's functions at file or namespace level, from their first word to behind their last brace.

    `plain`: a text without comments, literals and preprocessor lines.
    """
    start = at = 0  # of the declaration that is read, and of the scan
    while found := _ENDS.search(plain, at):
        head, mark, at = plain[start : found.start()], found[0], found.end()
        first = start + len(head) - len(head.lstrip())
        if mark == "{" and not _TRANSPARENT.search(head):
            at = _behind_brace(plain, at)
            if not _is_function(head):
                continue  # a type or an initializer: its declaration goes on until a semicolon
            if not device.search(head):
                yield first, at
        elif mark == ";" and _is_function(head) and _NAMED.search(head) and not device.search(head):
            yield first, at  # a declaration of one
        start = at


def _is_function(head: str) -> bool:
    if "(" not in head or _NO_FUNCTION.match(re.sub(r"^\s*template\s*<[^{}]*>(?=\s*\w)", "", head)):
        return False
    flat, before = head, ""
    while flat != before:  # what stands in parentheses may hold defaults
        flat, before = re.sub(r"\([^()]*\)", " ", flat), flat
    flat = re.sub(r"^\s*template\s*<.*>", "", flat, flags=re.DOTALL)
    return "=" not in flat or "operator" in flat


def _behind_brace(plain: str, at: int) -> int:
    """Behind the brace that closes the one before `at`; the end of the text where none does."""
    depth = 1
    while depth and (found := _BRACES.search(plain, at)):
        depth += 1 if found[0] == "{" else -1
        at = found.end()
    return at if depth == 0 else len(plain)
