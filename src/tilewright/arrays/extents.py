"""The bytes that a view touches, and whether two views touch the same ones."""

from __future__ import annotations

import numpy as np

from ..errors import InvalidOperand
from .view import Operand

_MAX_WORK = 10_000
"""Steps that NumPy's exact overlap search may take, before the answer is "perhaps"."""

_Exhausted = getattr(np, "exceptions", np).TooHardError  # its home moved in NumPy 1.25


def byte_extent(operand: Operand) -> tuple[int, int]:
    """The half-open interval of addresses that the view's elements lie in; empty at 0 for an empty view."""
    first = last = 0
    for extent, step in zip(operand.shape, operand.strides, strict=True):
        if extent == 0:
            return 0, 0
        if step < 0:
            first += (extent - 1) * step
        else:
            last += (extent - 1) * step
    item = operand.item_bytes
    return operand.address + first * item, operand.address + (last + 1) * item


class _Addresses:
    """A view as NumPy's array interface: NumPy computes with its addresses and never reads them."""

    def __init__(self, operand: Operand) -> None:
        item = operand.item_bytes
        self.__array_interface__ = {
            "data": (operand.address, True),
            "shape": operand.shape,
            "strides": tuple(step * item for step in operand.strides),
            "typestr": f"<u{item}",
            "version": 3,
        }


def may_overlap(one: Operand, other: Operand) -> bool:
    """Return whether two views share a byte: exact for views that a short search settles, True in doubt."""
    if one.device != other.device or one.size == 0 or other.size == 0:
        return False
    (low, high), (other_low, other_high) = byte_extent(one), byte_extent(other)
    if high <= other_low or other_high <= low:
        return False
    try:
        return bool(np.shares_memory(np.asarray(_Addresses(one)), np.asarray(_Addresses(other)), max_work=_MAX_WORK))  # type: ignore[arg-type]
    except _Exhausted:
        return True


def may_overlap_itself(operand: Operand) -> bool:
    """Return whether two elements of a view may share memory: False is certain, True may be overcautious."""
    if operand.size == 0:
        return False
    reach = 0
    for step, extent in sorted((abs(s), e) for s, e in zip(operand.strides, operand.shape, strict=True) if e > 1):
        if step <= reach:  # a step must clear all that the smaller steps reach
            return True
        reach += (extent - 1) * step
    return False


def same_view(one: Operand, other: Operand) -> bool:
    """Return whether two views have the same element at the same index, everywhere."""
    return (one.device, one.address, one.shape, one.strides, one.dtype) == (
        other.device, other.address, other.shape, other.strides, other.dtype,
    )  # fmt: skip


def check_out(out: Operand, inputs: list[Operand], c: Operand | None) -> None:
    """Refuse an `out` that cannot be written safely while the inputs are read.

    `c`, as broadcast to out's shape, may be exactly out's view: each of its elements is read only by the thread that
    then writes it. Raises InvalidOperand for any other overlap, in doubt too, and for read-only memory.
    """
    if out.read_only:
        raise InvalidOperand(f"{out} is read-only. Pass an array that can be written, or no out.")
    if may_overlap_itself(out):
        raise InvalidOperand(
            f"{out}: several of its elements lie at one address, so what they hold afterwards would depend on order. "
            "Pass an array of its own, or no out."
        )
    for other in inputs:
        if may_overlap(out, other):
            raise InvalidOperand(
                f"{out} overlaps {other}, which is read while out is written. Pass a separate out, or {other.name} "
                "as a copy."
            )
    if c is not None and not same_view(out, c) and may_overlap(out, c):
        raise InvalidOperand(
            f"{out} overlaps {c} without being the same view, so elements would be written before they are read. "
            "Pass the same array as c and out, or a separate out."
        )
