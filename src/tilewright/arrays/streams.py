"""A launch among other libraries' work: after what is under way on the operands, before what is done with them next."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from .view import Operand


@contextlib.contextmanager
def in_order(first: Operand, others: Sequence[Operand]) -> Iterator[int]:
    """The stream to launch on: the first operand's.

    What the other operands' streams hold comes before, and what they get next comes after, also where a launch raises.
    Where an operand's library does not order by streams, the launches are waited for at the end: its producer may take
    memory back at once.
    """
    from ..jit.device_calls import make_wait, synchronize

    assert first.device is not None
    stream = first.stream or 0
    beside = {other.stream for other in others if other.stream is not None} - {stream}
    for other in beside:
        make_wait(stream, other, first.device)
    try:
        yield stream
    finally:  # also where a later launch raised: an earlier one may still be at work on the operands
        for other in beside:
            make_wait(other, stream, first.device)
        if any(operand.kind not in ("torch", "cupy") for operand in (first, *others)):
            synchronize(stream, first.device)
