"""A launch among other libraries' work: after what is under way on the operands, before what is done with them next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..jit import device_calls

ORDERED = frozenset({"torch", "cupy", "xla"})
"""Kinds of operands whose library takes memory back only after what is in its stream by then."""


class Placed(Protocol):
    """The part of an Operand that says where it is and what orders work on it."""

    @property
    def kind(self) -> str: ...

    @property
    def device(self) -> int | None: ...

    @property
    def stream(self) -> int | None: ...


class in_order:
    """The stream to launch on: the first operand's. Its GPU's context must be current.

    What the other operands' streams hold comes before, and what they get next comes after, also where a launch raises.
    Where an operand's library does not order by streams, the launches are waited for at the end: its producer may take
    memory back at once.
    """

    def __init__(self, first: Placed, others: Sequence[Placed]) -> None:
        assert first.device is not None
        self.device = first.device
        self.stream = first.stream or 0
        self.beside: set[int] = set()
        self.waits = first.kind not in ORDERED
        for other in others:
            if other.stream is not None and other.stream != self.stream:
                self.beside.add(other.stream)
            if other.kind not in ORDERED:
                self.waits = True

    def __enter__(self) -> int:
        for other in self.beside:
            device_calls.make_wait(self.stream, other, self.device)
        return self.stream

    def __exit__(self, *_: object) -> None:
        # also where a later launch raised: an earlier one may still be at work on the operands
        for other in self.beside:
            device_calls.make_wait(other, self.stream, self.device)
        if self.waits:
            device_calls.synchronize(self.stream)
