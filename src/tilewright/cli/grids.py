"""Print a result's tables (lab/shown.py) so that no figure is cut."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .console import console, say

if TYPE_CHECKING:
    from ..lab.shown import Grid, Shown

_FIGURE = re.compile(r"[-+~]?[\d.,]+(?:e[-+]?\d+)?(?: ?[%x]| B)?|-|")


def show_result(found: Shown) -> None:
    """Print every table of a result, with a line between."""
    for number, grid in enumerate(found.grids()):
        if number:
            print()
        show_grid(grid)


def show_grid(grid: Grid) -> None:
    """Print one table: columns of figures end at the right, all others start at the left."""
    from ..report.terminal import tables

    out = console()
    for line in filter(None, grid.title.splitlines()):
        say(line)
    words = {name for name, *cells in zip(grid.names, *grid.rows, strict=True)
             if not all(_FIGURE.fullmatch(cell) for cell in cells)}  # fmt: skip
    if grid.rows:
        for table in tables(grid.names, grid.rows, out.width, text=words):
            out.print(table, markup=False)
    for line in filter(None, grid.note.splitlines()):
        say(line)


def numbers(option: str, text: str) -> list[int]:
    """Whole numbers with commas between. Raises InvalidOperand naming the option."""
    from ..errors import InvalidOperand

    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InvalidOperand(
            f"--{option} {text!r} is not whole numbers with commas between, such as 128,256."
        ) from None


def extents(option: str, text: str, count: int) -> tuple[int, ...]:
    """`count` whole numbers with x between, such as 4096x4096x64. Raises InvalidOperand naming the option."""
    from ..errors import InvalidOperand

    parts = text.lower().split("x")
    if len(parts) != count or not all(part.strip().isascii() and part.strip().isdigit() for part in parts):
        example = "x".join(["4096", "4096", "64"][:count])
        raise InvalidOperand(f"--{option} {text!r} is not {count} whole numbers with x between, such as {example}.")
    return tuple(int(part) for part in parts)
