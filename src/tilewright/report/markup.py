"""The HTML around what the page shows: the document, its sections, tables of figures."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from .. import __version__
from ..lab.shown import Grid

_STYLES = ("colours.css", "page.css")


def style() -> str:
    """The page's style sheet."""
    return "".join(Path(__file__).with_name(name).read_text(encoding="utf-8") for name in _STYLES)


def column(name: str) -> str:
    """The head of a table's column; an empty corner is no head, which a screen reader would announce."""
    return f'<th scope="col">{escape(name)}</th>' if name else "<td></td>"


def table_of(grid: Grid, caption: str) -> str:
    """A table that scrolls where it is too wide."""
    head = "".join(map(column, grid.names))
    rows = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in grid.rows)
    body = f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f'<div class="scroll" tabindex="0">{body}</div>'


def _anchor(title: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in title.lower())


def whole_page(parts: Sequence[tuple[str, str]], scripts: str) -> str:
    """The whole file from the title and content of each section."""
    links = "".join(f'<li><a href="#{_anchor(title)}">{escape(title)}</a></li>' for title, _ in parts)
    body = "".join(
        f'<section id="{_anchor(title)}"><h2>{escape(title)}</h2>{content}</section>' for title, content in parts
    )
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>tilewright: look inside</title><style>{style()}</style>"
    )
    intro = (
        f"<header><h1>tilewright: look inside</h1><p>Kernels step by step, and charts of the records of tilewright "
        f"{escape(__version__)}. Every figure is a ratio or a counter of one run. Pointing at a mark shows its figure; "
        "the table below a chart has them all.</p>"
        "<noscript><p>Charts and drawings need JavaScript; the tables do not.</p></noscript></header>"
    )
    nav = f'<nav aria-label="Sections"><ul>{links}</ul></nav>'
    return (
        f'<!doctype html><html lang="en"><head>{head}</head><body>{intro}{nav}<main>{body}</main>'
        f"{scripts}</body></html>\n"
    )
