"""Results that show themselves: as tables on a terminal, as HTML in a notebook, as plain data for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, is_dataclass
from html import escape
from typing import Any

from ..words import Told

_LINES = ' style="white-space: pre-wrap; text-align: left"'
"""Of titles and notes: their line breaks and indents count."""


@dataclass(frozen=True)
class Grid:
    """A table: column names, rows of cells as they are shown, a title above and a note below ("" for none)."""

    title: str
    names: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    def html(self) -> str:
        """Return the table as HTML, all cells escaped."""
        head = "".join(f"<th>{escape(name)}</th>" for name in self.names)
        body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in self.rows)
        title = f"<caption{_LINES}>{escape(self.title)}</caption>" if self.title else ""
        note = f"<p{_LINES}>{escape(self.note)}</p>" if self.note else ""
        return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{note}"

    def text(self) -> str:
        """Return the table as lines of text, columns aligned."""
        widths = [max(map(len, column)) for column in zip(self.names, *self.rows, strict=True)]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
                 for row in (self.names, *self.rows)]  # fmt: skip
        return "\n".join(filter(None, [self.title, *lines, self.note]))


class Shown(Told):
    """A result with `grids()`; a frozen dataclass. `str`, notebooks and `to_dict` follow from that."""

    def grids(self) -> Sequence[Grid]:
        """The tables that show it."""
        raise NotImplementedError

    def __str__(self) -> str:
        return "\n\n".join(grid.text() for grid in self.grids())

    def _repr_html_(self) -> str:
        return "".join(grid.html() for grid in self.grids())

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain data: dicts, lists, numbers and words."""
        assert is_dataclass(self)
        return asdict(self)
