"""The ends of groups: int32 on the device, which the host never waits for, or numbers that the host has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arrays.integers import Integers, Wanted, read_integers
from ..arrays.view import Operand
from ..errors import InvalidOperand


@dataclass(frozen=True)
class Ends(Integers):
    """int32 [groups]."""

    @property
    def groups(self) -> int:
        return self.shape[0]


def read_ends(value: Any, name: str, first: Operand, what: str, total: int) -> Ends:
    """`value` as the ends of groups along `total` of `what` ("rows of a"), for operands that lie where `first` does.

    Numbers on the host are checked: they begin at 0 or above, do not fall, and end at most with the total. Raises
    InvalidOperand.
    """
    found = read_integers(value, Wanted(name, ("groups",)), first.name, first)
    if found.host is None:
        return Ends(found.shape, None, found.operand, found.lies)
    steps = np.diff(found.host.astype(np.int64), prepend=0)
    if (steps < 0).any() or steps.sum() > total:
        raise InvalidOperand(
            f"{name} must not fall, from 0 to at most the {total} {what}; it ends with {found.host[-1]}, and its least "
            f"step is {steps.min()}."
        )
    return Ends(found.shape, found.host.astype(np.int32), None, found.lies)
