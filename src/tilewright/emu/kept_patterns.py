"""Address patterns of shared memory that a launch leaves to the next one, if that is of the same program and shape.

What a pattern says follows from its addresses and the shape alone: with them, a program that runs again and again looks
only whether its addresses are those of before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..jit.locks import lock
from .shared_memory import REMEMBERED, SharedPattern

if TYPE_CHECKING:
    from .machine import Machine
    from .program import Code

MOST_BYTES = 64 << 20
"""What is kept at most."""
_ARRAYS = ("lanes", "base", "offsets", "granules", "warps")
Kept = dict[tuple[int, str], Any]
"""(instruction, what of it) -> its patterns, as a list or by some key."""


class _Shelf:
    """The patterns of the launch that ended last. They are one launch's at a time."""

    def __init__(self) -> None:
        self.lock = lock()
        self.held: tuple[Code, tuple[int, ...], Kept] | None = None


_shelf = _Shelf()


def _shape(machine: Machine) -> tuple[int, ...]:
    shared = machine.shared
    return machine.lanes, machine.ctas, machine.cluster_size, shared.bytes, shared.stride, shared.granule


def take(machine: Machine) -> Kept:
    """Return what an earlier launch has left for this one, which has it alone from now on."""
    with _shelf.lock:
        held = _shelf.held
        if held is None or held[0] is not machine.program or held[1] != _shape(machine):
            return {}
        _shelf.held = None
        return held[2]


def leave(machine: Machine) -> None:
    """Leave the patterns of a launch that has ended, unless they are too many."""
    kept: Kept = {}
    arrays: dict[int, int] = {}
    for site, patterns in machine.trace.patterns.items():
        some = [*(patterns.values() if isinstance(patterns, dict) else patterns)]
        # one that has as many as can be may have had new ones each time
        if len(some) >= REMEMBERED or not all(isinstance(pattern, SharedPattern) for pattern in some):
            continue
        kept[site] = patterns
        for pattern in some:
            held = (getattr(pattern, name, None) for name in _ARRAYS)
            arrays |= {id(array): array.nbytes for array in held if array is not None}
    with _shelf.lock:
        _shelf.held = (machine.program, _shape(machine), kept) if sum(arrays.values()) <= MOST_BYTES else None


def forget() -> None:
    """Keep nothing."""
    with _shelf.lock:
        _shelf.held = None
