"""Where each group ends: int32 on the device, which the host never waits for, or numbers that the host has."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arrays import dlpack
from ..arrays.view import Operand, torch_stream
from ..errors import InvalidOperand


@dataclass(frozen=True)
class Ends:
    """int32 [groups]. On a GPU `operand` is where they lie (its dtype does not tell: it is read as int32)."""

    groups: int
    host: np.ndarray | None
    """The numbers, where they are known to the host."""
    operand: Operand | None


def read_ends(value: Any, name: str, first: Operand, what: str, total: int) -> Ends:
    """`value` as the ends of groups along `total` of `what` ("rows of a"), for operands that lie where `first` does.

    Numbers on the host are checked: they begin at 0 or above, do not fall, and end at most with the total. Raises
    InvalidOperand.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        if value.device.type == "cuda":
            ordinal = value.get_device()
            return _on_gpu(
                name, first, "torch", value.data_ptr(), tuple(value.shape), value.stride(), str(value.dtype), ordinal,
                torch_stream(torch, ordinal), value,
            )  # fmt: skip
        value = value.numpy()
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(value, cupy.ndarray):
        ordinal = int(value.device.id)
        return _on_gpu(
            name, first, "cupy", int(value.data.ptr), value.shape, [step // value.itemsize for step in value.strides],
            value.dtype.name, ordinal, int(cupy.cuda.get_current_stream(ordinal).ptr), value,
        )  # fmt: skip
    if not isinstance(value, (np.ndarray, list, tuple)) and hasattr(value, "__dlpack__"):
        tensor = dlpack.take(value, name, first.stream or 0)
        if tensor.device is not None:
            return _on_gpu(name, first, "dlpack", tensor.address, tensor.shape, tensor.strides, tensor.dtype,
                           tensor.device, None, (value, tensor))  # fmt: skip
        value = np.from_dlpack(value)
    numbers = np.asarray(value)
    if numbers.ndim != 1 or (numbers.dtype.kind not in "iu" and len(numbers)):
        raise InvalidOperand(
            f"{name} must hold integers [groups]; it has shape {numbers.shape} and dtype {numbers.dtype}."
        )
    steps = np.diff(numbers.astype(np.int64), prepend=0)
    if (steps < 0).any() or steps.sum() > total:
        raise InvalidOperand(
            f"{name} must not fall, from 0 to at most the {total} {what}; it ends with {numbers[-1]}, and its least "
            f"step is {steps.min()}."
        )
    if first.device is not None:
        raise InvalidOperand(f"{first.name} is on GPU {first.device} and {name} on the host. Move it there, as int32.")
    return Ends(len(numbers), numbers.astype(np.int32), None)


def _on_gpu(
    name: str, first: Operand, kind: str, address: int, shape: tuple[int, ...], strides: Sequence[int], dtype: str,
    device: int, stream: int | None, owner: Any,
) -> Ends:  # fmt: skip
    if dtype.removeprefix("torch.") != "int32" or len(shape) != 1 or (shape[0] > 1 and strides[0] != 1):
        raise InvalidOperand(
            f"{name} must be a contiguous int32 [groups]; it is {dtype} with shape {shape} and strides {strides}."
        )
    if first.device != device:
        place = "the host" if first.device is None else f"GPU {first.device}"
        raise InvalidOperand(f"{first.name} is on {place} and {name} on GPU {device}. Move them to one device.")
    return Ends(shape[0], None, Operand(name, kind, address, shape, (1,), "f32", device, stream=stream, owner=owner))
