"""Lengths that calls give as arrays: cu_seqlens, where each entry of a packed batch begins, and seqused."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..arrays.dtypes import LARGEST_EXTENT, ceil_div
from ..arrays.integers import Integers, Wanted, host_integers, read_integers
from ..arrays.view import Operand
from ..errors import InvalidOperand


@dataclass(frozen=True)
class Starts(Integers):
    """int32 [entries + 1]."""

    @property
    def entries(self) -> int:
        return self.shape[0] - 1


def read_starts(value: Any, name: str, of: str, view: Operand) -> Starts:
    """`value` as the starts of the entries of operand `of`, whose view is [1, heads, rows, d].

    Numbers on the host are checked: they begin with 0, do not fall, and end at or before the rows. Raises
    InvalidOperand.
    """
    found = read_integers(value, _wanted(name), of, view)
    if found.host is None:
        return Starts(found.shape, None, found.operand, found.lies)
    check_starts(found.host, name, of, view.shape[2])
    return Starts(found.shape, found.host.astype(np.int32), None, found.lies)


def read_used(value: Any, q: Operand, rows: int) -> Integers:
    """`value` as seqused, the keys of each entry that are there, at most `rows`. Numbers on the host are checked.
    Raises InvalidOperand."""
    found = read_integers(value, Wanted("seqused", ("batch",)), "q", q)
    if found.shape[0] != q.shape[0]:
        raise InvalidOperand(f"seqused holds {found.shape[0]} numbers and q {q.shape[0]} entries: one for each.")
    if found.host is None:
        return found
    low, high = found.host.min(initial=0), found.host.max(initial=0)
    if low < 0 or high > rows:
        raise InvalidOperand(f"seqused goes from {low} to {high}; an entry of k has {rows} rows.")
    return replace(found, host=found.host.astype(np.int32))


def read_table(value: Any, q: Operand) -> Integers:
    """`value` as block_table [batch, most pages of an entry]. Raises InvalidOperand."""
    found = read_integers(value, Wanted("block_table", ("batch", "pages")), "q", q)
    if found.shape[0] != q.shape[0]:
        raise InvalidOperand(f"block_table has shape {found.shape} and q {q.shape[0]} entries: a row for each.")
    return found


def held_table(table: Integers, used: Integers | None, k: Operand) -> Integers:
    """The table with numbers from 0 to k's pages - 1, to which the kernel holds those on a GPU.

    What no key needs may be anything. What used keys need is checked where the host knows. Raises InvalidOperand.
    """
    if table.host is None:
        return table
    (pages, _, page, _), last = k.shape, np.full(len(table.host), table.shape[1])
    if used is not None:
        last = np.zeros_like(last) if used.host is None else -(-used.host // page)
    wrong = ((table.host < 0) | (table.host >= pages)) & (np.arange(table.shape[1]) < last[:, None])
    if wrong.any():
        entry, place = np.argwhere(wrong)[0]
        raise InvalidOperand(
            f"block_table[{entry}, {place}] is {table.host[entry, place]}, and keys of entry {entry} lie there; k has "
            f"pages 0 to {pages - 1}."
        )
    return replace(table, host=np.clip(table.host, 0, max(pages - 1, 0)).astype(np.int32))


def _wanted(name: str) -> Wanted:
    return Wanted(name, ("entries + 1",), 1)


def host_starts(value: Any, name: str, of: str, rows: int) -> np.ndarray:
    """Starts that the host knows, checked, of any dtype of integers. Raises InvalidOperand."""
    numbers = host_integers(value, _wanted(name))
    check_starts(numbers, name, of, rows)
    return numbers


def check_starts(numbers: np.ndarray, name: str, of: str, rows: int) -> None:
    """Raise InvalidOperand unless the numbers begin with 0, do not fall, and stay within `rows`."""
    steps = np.diff(numbers.astype(np.int64))
    if numbers[0] != 0 or (steps < 0).any() or numbers[-1] > rows:
        raise InvalidOperand(
            f"{name} must begin with 0, never fall, and end at most at the {rows} rows of {of}; it begins with "
            f"{numbers[0]}, its steps are {steps.min() if len(steps) else 0} at least, and it ends with {numbers[-1]}."
        )


def check_length(given: Any, name: str) -> None:
    """Raise InvalidOperand for what is no number of rows."""
    if isinstance(given, bool) or not isinstance(given, (int, np.integer)) or not 0 <= given <= LARGEST_EXTENT:
        raise InvalidOperand(f"{name}={given!r} must be an integer from 0 to {LARGEST_EXTENT}.")


def length_of(starts: Starts, given: Any, name: str, rows: int) -> int:
    """The rows of an entry by which a kernel is chosen: of the longest, as given or from the numbers where the host has
    them; else of the average one, as a GPU is not waited for.

    A number given that is too small is refused where the starts are known to the host. Raises InvalidOperand.
    """
    known = int(np.diff(starts.host).max(initial=0)) if starts.host is not None else None
    if given is None:
        return known if known is not None else ceil_div(rows, max(starts.entries, 1))
    check_length(given, name)
    if known is not None and given < known:
        raise InvalidOperand(f"{name}={given} is less than the longest entry, {known}. Pass {known}, or omit it.")
    return int(given) if known is not None else max(int(given), 1)
