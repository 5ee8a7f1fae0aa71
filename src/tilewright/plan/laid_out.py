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
        self._data = data
        head, end = data.find(CONFIGS.encode()), len(data) - len(END)
        first = head + len(CONFIGS)
        entries = self._place(CLASS_FIRST[:1], first, end)  # lines before these start with a quote
        middle = entries - len(ENTRIES)
        if head < 0 or middle < first or data[middle:entries] != ENTRIES.encode() or data[end:] != END.encode():
            raise ValueError("a table's text lacks a part")
        self.head: dict[str, Any] = json.loads(data[:head] + b"}")
        self._configs, self._entries = (first, middle), (entries, end)

    def row(self, of_class: Mapping[str, Any]) -> str | None:
        """The entry of a class, as text; None where there is none."""
        first, end = self._entries
        at = self._data.find(f'\n{{"class":{line(of_class)}'.encode(), first - 1, end)
        return None if at < 0 else self._row(at + 1, end)

    def config(self, name: str) -> str | None:
        """The config of a name, as text; None where there is none."""
        key, (first, end) = f"{line(name)}:", self._configs
        row = self._row(self._place(key, first, end), end)
        return row.removeprefix(key) if row.startswith(key) else None

    def rows(self) -> tuple[Any, ...]:
        """All entries: text still, or parsed where the layout is another."""
        text = self._data[slice(*self._entries)].decode()
        found = _rows_of(CLASS_FIRST, text)
        return tuple(json.loads(f"[{text}]") if found is None else found)

    def configs(self) -> dict[str, Any]:
        """All configs by name, in the same way."""
        return dict(by_rows(self._data[:].decode())["configs"])

    def _row(self, at: int, end: int) -> str:
        """The row that starts there, of those up to `end`."""
        after = self._data.find(b",\n", at, end)
        return self._data[at : end if after < 0 else after].decode()

    def _place(self, start: str, low: int, high: int) -> int:
        """Return where the first line starts that does not come before `start`, of lines in order. They are halved
        until it is found: of a file that is mapped most is then not read."""
        data, wanted = self._data, start.encode()
        while low < high:
            middle = (low + high) // 2
            at = max(data.rfind(b"\n", low, middle) + 1, low)
            if data[at : at + len(wanted)] < wanted:
                low = data.find(b"\n", middle, high) + 1 or high
            else:
                high = at
        return low


def by_rows(text: str) -> dict[str, Any]:
    """A table's JSON with each config and entry still as text, where it is laid out as `encode` does; else all parsed.

    JSON's own text holds no line ends, so a row ends where its line does. Parsing all takes three times as long.
    """
    head, _, rest = text.partition(CONFIGS)
    configs, _, entries = rest.partition(ENTRIES)
    known, found = _rows_of('"', configs), _rows_of(CLASS_FIRST, entries.removesuffix(END))
    if not entries.endswith(END) or known is None or found is None:
        return dict(json.loads(text))
    rows = (row.partition('":') for row in known)
    return json.loads(head + "}") | {
        "configs": {key[1:]: row for key, _, row in rows},  # names are hashes (_id): nothing is escaped in them
        "entries": found,
    }


def _rows_of(start: str, text: str) -> list[str] | None:
    """The rows of a text, each of which starts so and ends with a brace; None where it is laid out otherwise."""
    rows = text.split(",\n") if text else []
    last = len(rows) - 1
    laid_out = text.startswith(start) and text.count(f"}},\n{start}") == text.count(",\n") == last and text[-1] == "}"
    return rows if laid_out or not text else None
