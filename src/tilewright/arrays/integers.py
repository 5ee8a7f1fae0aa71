"""Numbers that calls give as arrays: int32 on the operands' GPU, which nobody waits for, or known to the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..errors import InvalidOperand
from . import dlpack
from .loaded import loaded
from .view import Operand, refuse_masked, torch_stream


@dataclass(frozen=True)
class Integers:
    """int32 numbers. On a GPU `operand` is where they lie (its dtype does not tell: it is read as int32)."""

    shape: tuple[int, ...]
    host: np.ndarray | None
    """The numbers, where they are known to the host."""
    operand: Operand | None
    lies: Operand | None = None
    """The caller's array, on the host as bytes: what a result must not overlap. None for a list."""


class Wanted(NamedTuple):
    """The name of an argument, its axes, and the least length of the first."""

    name: str
    axes: tuple[str, ...]
    least: int = 0

    def __str__(self) -> str:
        return f"[{', '.join(self.axes)}]"

    def has(self, shape: tuple[int, ...]) -> bool:
        """Return whether an array of this shape has those axes."""
        return len(shape) == len(self.axes) and shape[0] >= self.least


def read_integers(value: Any, wanted: Wanted, of: str, view: Operand) -> Integers:
    """`value` as integers for operand `of`, whose view is given: on its GPU as int32, or on the host as any, which
    become int32 once they are checked. Raises InvalidOperand."""
    torch = loaded("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        if value.device.type == "cuda":
            ordinal = value.get_device()
            return _on_gpu(
                wanted, view, "torch", value.data_ptr(), tuple(value.shape), value.stride(), str(value.dtype), ordinal,
                torch_stream(torch, ordinal), value,
            )  # fmt: skip
        try:
            value = value.numpy(force=True)
        except (TypeError, RuntimeError) as error:  # of a dtype that NumPy lacks, or without memory of its own
            raise InvalidOperand(f"{wanted.name} must hold integers {wanted}: {error}") from error
    cupy = loaded("cupy")
    if cupy is not None and isinstance(value, cupy.ndarray):
        ordinal = int(value.device.id)
        return _on_gpu(
            wanted, view, "cupy", int(value.data.ptr), value.shape, [step // value.itemsize for step in value.strides],
            value.dtype.name, ordinal, int(cupy.cuda.get_current_stream(ordinal).ptr), value,
        )  # fmt: skip
    if not isinstance(value, (np.ndarray, list, tuple)) and hasattr(value, "__dlpack__"):
        tensor = dlpack.take(value, wanted.name, view.stream or 0)
        if tensor.device is not None:
            return _on_gpu(
                wanted, view, "dlpack", tensor.address, tensor.shape, tensor.strides, tensor.dtype, tensor.device, None,
                (value, tensor),
            )  # fmt: skip
        value = np.from_dlpack(value)
    numbers = host_integers(value, wanted)
    if view.device is not None:
        raise InvalidOperand(f"{of} is on GPU {view.device} and {wanted.name} on the host. Move it there, as int32.")
    lies = None
    if isinstance(value, np.ndarray):
        shape, strides = (*value.shape, value.itemsize), (*value.strides, 1)
        lies = Operand(wanted.name, "numpy", value.ctypes.data, shape, strides, "e4m3", None, owner=value)
    return Integers(numbers.shape, numbers, None, lies)


def host_integers(value: Any, wanted: Wanted) -> np.ndarray:
    """Numbers of the host, of any dtype of integers. Raises InvalidOperand."""
    refuse_masked(value, wanted.name)
    try:
        numbers = np.asarray(value)
    except ValueError as error:
        raise InvalidOperand(f"{wanted.name} must hold integers {wanted}: {error}") from error
    if not wanted.has(numbers.shape) or (numbers.size and numbers.dtype.kind not in "iu"):
        raise InvalidOperand(
            f"{wanted.name} must hold integers {wanted}; it has shape {numbers.shape} and dtype {numbers.dtype}."
        )
    return numbers


def _on_gpu(
    wanted: Wanted, view: Operand, kind: str, address: int, shape: tuple[int, ...], strides: Sequence[int], dtype: str,
    device: int, stream: int | None, owner: Any,
) -> Integers:  # fmt: skip
    lies = dlpack.dense_strides(shape)
    apart = any(step != dense for extent, step, dense in zip(shape, strides, lies, strict=False) if extent > 1)
    if dtype.removeprefix("torch.") != "int32" or not wanted.has(shape) or apart:
        raise InvalidOperand(
            f"{wanted.name} must be a contiguous int32 {wanted}; it is {dtype} with shape {shape} and strides "
            f"{strides}."
        )
    if view.device != device:
        place = "the host" if view.device is None else f"GPU {view.device}"
        raise InvalidOperand(f"{view.name} is on {place} and {wanted.name} on GPU {device}. Move them to one device.")
    operand = Operand(wanted.name, kind, address, shape, lies, "f32", device, stream=stream, owner=owner)
    return Integers(shape, None, operand, operand)
