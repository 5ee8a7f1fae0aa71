"""Products with one weight made ready for whatever numbers of rows come (rows.py)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from math import log2
from operator import index
from typing import Any

from ..arrays.dtypes import LARGEST_EXTENT
from ..arrays.result import empty_like
from ..arrays.view import as_operand
from ..errors import InvalidOperand
from .matmul import matmul
from .rows import ENOUGH


def representatives(rows: Iterable[int], most: int = ENOUGH) -> list[int]:
    """1, and at most `most` of the other numbers: the least, the largest, and others between, evenly in logarithms."""
    known = sorted({index(m) for m in rows if m >= 1})
    if len(known) > 1 and known[0] == 1:  # a row lies otherwise than rows do
        return [1, *representatives(known[1:], most)]
    if len(known) <= most:
        return known
    low, high = log2(known[0]), log2(known[-1])
    chosen = {min(known, key=lambda m: abs(log2(m) - low - step * (high - low) / (most - 1))) for step in range(most)}
    rest = (m for m in known if m not in chosen)
    while len(chosen) < most:
        chosen.add(next(rest))
    return sorted(chosen)


def prepare(
    b: Any, m: Iterable[int], *, progress: Callable[[int, int], None] | None = None, **options: Any
) -> tuple[int, ...]:
    """Compile the kernels that products with `b` need, so that a new number of rows compiles nothing later.

    b: an array [k, n] as `tilewright.matmul` takes it.
    m: the numbers of rows to expect, such as range(1, 4097). Up to 25 of them are planned, compiled and run once, on
        operands that are not initialised. After that a new number of rows takes one of their kernels.
    options: as for `matmul` (bias, activation, out_dtype, precision ...). For an array that depends on the number of
        rows, such as a residual, pass a function of it: residual=lambda m: torch.empty(m, n, ...).
    progress: called with (done, of how many). By default a line on standard error, where that is a terminal.

    Returns the numbers of rows that were run. Raises as `matmul` does, and InvalidOperand where `m` is empty or holds
    anything but whole numbers.
    """
    view = as_operand(b, "b")
    if len(view.shape) != 2:
        raise InvalidOperand(f"b has shape {view.shape}; prepare takes a matrix [k, n].")
    try:
        chosen = representatives(m)
    except (TypeError, ValueError) as error:  # of an array of arrays, whose comparison has no one truth
        raise InvalidOperand(f"m={m!r:.60} is not whole numbers of rows. Pass some, such as range(1, 4097).") from error
    if not chosen or chosen[-1] > LARGEST_EXTENT:
        held = "no number of rows" if not chosen else f"{chosen[-1]} rows; kernels take {LARGEST_EXTENT} at most"
        raise InvalidOperand(f"m holds {held}. Pass some, such as range(1, 4097).")
    say = progress or (_say if sys.stderr.isatty() else None)
    for done, rows in enumerate(chosen):
        if say is not None:
            say(done, len(chosen))
        given = {
            name: value(rows) if callable(value) and name != "epilogue" else value for name, value in options.items()
        }
        a = empty_like(view, (rows, view.shape[0]), view.dtype)
        matmul(a, b, **given)
    if say is not None:
        say(len(chosen), len(chosen))
    return tuple(chosen)


def _say(done: int, of: int) -> None:
    print(
        f"\rpreparing kernels: {done} of {of} numbers of rows",
        end="\n" if done == of else "",
        file=sys.stderr,
        flush=True,
    )
