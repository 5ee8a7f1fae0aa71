"""Tables for a terminal: a figure is never cut. What does not fit side by side goes into a second table below."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

GAP = 2
"""Blanks between columns."""
TEXT = frozenset({"#", "rung", "config", "check", "limited by", "roof", "bound by", "class", "suite", "why", "call",
                  "problem", "kernel", "warps wait most for"})  # fmt: skip
"""Columns that start at the left; figures end at the right."""
_NARROW = 12
"""The widest column that is repeated in each table to tell rows apart."""


def tables(
    names: Sequence[str], rows: Sequence[Sequence[str]], width: int, keys: int = 1, wrong: Sequence[bool] = (),
    text: Container[str] = TEXT,
) -> list[Any]:  # fmt: skip
    """One rich Table, or several where `width` characters do not hold all columns side by side.

    Each has the first `keys` columns, which say what a row is about, or more where rows would look the same, or the
    rows' numbers where that takes too much room; and as many of the others as fit. `wrong` marks rows that are shown as
    wrong; `text` names the columns that start at the left.
    """
    from rich.table import Table

    while len({tuple(row[:keys]) for row in rows}) < len(rows) and keys < len(names) - 1:
        if _width(keys, names, rows) > _NARROW:
            break
        keys += 1
    parts = _parts(names, rows, width, keys)
    if len(parts) > 1 and len({tuple(row[:keys]) for row in rows}) < len(rows):
        names, rows = ("#", *names), [(str(number), *row) for number, row in enumerate(rows, 1)]
        parts = _parts(names, rows, width, 1)
    made = []
    for chosen in parts:
        table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False)
        for place in chosen:
            left = names[place] in text
            table.add_column(
                names[place], justify="left" if left else "right", no_wrap=not left, overflow="fold",
                min_width=None if left else _width(place, names, rows),
            )  # fmt: skip
        for place, row in enumerate(rows):
            style = "bold red" if place < len(wrong) and wrong[place] else None
            table.add_row(*(row[column] for column in chosen), style=style)
        made.append(table)
    return made


def _width(place: int, names: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    return max(len(names[place]), *(len(row[place]) for row in rows), 0)


def _parts(names: Sequence[str], rows: Sequence[Sequence[str]], width: int, keys: int) -> list[list[int]]:
    """The columns of each table: the keys, and others in order until one does not fit."""
    start = list(range(keys))
    taken = sum(_width(place, names, rows) + GAP for place in start)
    parts, room = [start.copy()], width - taken
    for place in range(keys, len(names)):
        need = _width(place, names, rows) + GAP
        if need - GAP > room and len(parts[-1]) > keys:
            parts.append(start.copy())
            room = width - taken
        parts[-1].append(place)
        room -= need
    return parts


MEANINGS = {
    "max error": "largest difference from float64",
    "registers": "per thread",
    "regs": "registers per thread",
    "spill B": "bytes of registers spilled per thread",
    "shared B": "bytes of shared memory per block",
    "occupancy": "share of an SM's warps that fit at once",
    "occup.": "share of an SM's warps that fit at once",
    "limited by": "what limits occupancy",
    "of cuBLAS": "speed, as a share of cuBLAS's",
    "of FA2": "speed, as a share of FlashAttention-2's",
    "of cuDNN": "speed, as a share of cuDNN's",
    "of peak": "share of the peak of the unit that multiplies",
    "tensor": "instructions per thread, as the next four",
    "fp32": "instructions per thread, as the next three",
    "sectors": "32-byte sectors per global load of a warp",
    "wavefronts": "passes per shared load of a warp",
    "ideal": "the fewest possible passes",
    "FLOP/B": "operations per byte of global traffic",
    "bound": "roofline at that traffic, as a share of the peak",
    "roof": "what sets the bound",
    "per SM": "blocks that share an SM",
    "waves": "rounds of blocks until all have run",
    "bound by": "what limits the kernel, by the model",
}
"""What a column's short name means."""


def legend(names: Sequence[str]) -> str:
    """One line that says what the columns' names mean; "" where none needs it."""
    told = [f"{name}: {MEANINGS[name]}" for name in names if name in MEANINGS]
    if "tensor" in names:
        told = [text for text in told if not text.startswith("fp32:")]
    return "; ".join(told)
