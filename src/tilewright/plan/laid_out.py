"""A table's text: one config per line, then one entry per line, so that a row can be found without parsing the others.

JSON's own text holds no line ends, so a row ends where its line does. Parsing all takes ten times as long as splitting.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from mmap import mmap
from typing import Any

CONFIGS, ENTRIES, END = ',\n"configs":{\n', '},\n"entries":[\n', "]}\n"
CLASS_FIRST = '{"class":{'


_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def line(value: Any) -> str:
    """JSON as rows have it."""
    return _ENCODER.encode(value)


class LaidOut:
    """The text of a table as `encode` writes it. Raises ValueError for another layout, as far as a glance tells."""

    def __init__(self, data: bytes | mmap) -> None:
        head, end = data.find(CONFIGS.encode()), len(data) - len(END)
        first = head + len(CONFIGS)
        entries = _first_entry(data, first, end)
        middle = entries - len(ENTRIES)
        if head < 0 or middle < first or data[middle:entries] != ENTRIES.encode() or data[end:] != END.encode():
            raise ValueError("a table's text lacks a part")
        self.head: dict[str, Any] = json.loads(data[:head] + b"}")
        self._data = data
        # each from the line's end before the first row to the end of the last row
        self._configs = first - 1, middle
        self._entries = entries - 1, end

    def row(self, of_class: Mapping[str, Any]) -> str | None:
        """The entry of a class, as text; None where there is none."""
        return self._find(f'{{"class":{line(of_class)}', self._entries)

    def config(self, name: str) -> str | None:
        """The config of a name, as text; None where there is none."""
        key = f"{line(name)}:"
        found = self._find(key, self._configs)
        return None if found is None else found[len(key) :]

    def split(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """All rows, and the configs by name: text still, or parsed where the layout is another."""
        found = by_rows(self._data[:].decode())
        return tuple(found["entries"]), dict(found["configs"])

    def _find(self, start: str, region: tuple[int, int]) -> str | None:
        """The row that starts so."""
        at = self._data.find(b"\n" + start.encode(), *region)
        if at < 0:
            return None
        end = self._data.find(b",\n", at, region[1])
        return self._data[at + 1 : region[1] if end < 0 else end].decode()


def _first_entry(data: bytes | mmap, low: int, high: int) -> int:
    """Return where the first entry starts, by halves: most of a file that is mapped need not be read for that. Lines of
    configs, and the one after them, start with other letters than entries."""
    while low < high:
        middle = (low + high) // 2
        line_start = max(data.rfind(b"\n", low, middle) + 1, low)
        if data[line_start : line_start + 1] != CLASS_FIRST[:1].encode():
            low = data.find(b"\n", middle, high) + 1 or high
        else:
            high = line_start
    return low


def by_rows(text: str) -> dict[str, Any]:
    """A table's JSON with each config and entry still as text, where it is laid out as `encode` does; else all parsed.

    JSON's own text holds no line ends, so a row ends where its line does. Parsing all takes three times as long.
    """
    head, _, rest = text.partition(CONFIGS)
    configs, _, entries = rest.partition(ENTRIES)
    listed = entries.removesuffix(END)
    known, found = (part.split(",\n") if part else [] for part in (configs, listed))
    if not entries.endswith(END) or not _are_rows('"', configs, known) or not _are_rows(CLASS_FIRST, listed, found):
        return dict(json.loads(text))
    rows = (row.partition('":') for row in known)
    return json.loads(head + "}") | {
        "configs": {key[1:]: row for key, _, row in rows},  # names are hashes (_id): nothing is escaped in them
        "entries": found,
    }


def _are_rows(start: str, text: str, rows: list[str]) -> bool:
    """Return whether each of the rows that a text was split into starts so, and ends with a brace."""
    count = len(rows)
    if not count:
        return not text
    return text.startswith(start) and text.count(f"}},\n{start}") == text.count(",\n") == count - 1 and text[-1] == "}"
