"""Numbers of a call, as kernels take them."""

from __future__ import annotations

import struct
from numbers import Real
from typing import Any

import numpy as np

from ..errors import InvalidOperand
from .loaded import loaded


def flag(value: Any, name: str) -> bool:
    """`value` as True or False; 1 and 0 are those. Raises InvalidOperand for anything else: "no" would be True."""
    if isinstance(value, (bool, np.bool_)) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise InvalidOperand(f"{name}={value!r} is not True or False.")


def scalar(value: Any, name: str) -> float:
    """`value` rounded to float32, as kernels take it. Raises InvalidOperand for what is not a real number in range."""
    torch = loaded("torch")
    if getattr(value, "requires_grad", False) and (torch is None or torch.is_grad_enabled()):
        raise InvalidOperand(f"{name} requires a gradient, and none would reach it. Pass {name}={name}.item().")
    if getattr(getattr(value, "dtype", None), "kind", "") == "c":  # NumPy would discard the imaginary part
        raise InvalidOperand(f"{name}={value!r} is not a number that float32 can hold: it is complex.")
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except (struct.error, TypeError, ValueError, OverflowError, RuntimeError) as error:
        why = "it is too large" if isinstance(value, Real) else str(error).removeprefix("required argument ")
        raise InvalidOperand(f"{name}={value!r:.60} is not a number that float32 can hold: {why}.") from error
