"""cu_seqlens: where each entry of a batch of different lengths begins, and where the last ends."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arrays import dlpack
from ..arrays.dtypes import LARGEST_EXTENT
from ..arrays.view import Operand, torch_stream
from ..errors import InvalidOperand


@dataclass(frozen=True)
class Starts:
    """int32 [entries + 1]. On a GPU `operand` is where they lie (its dtype does not tell: it is read as int32)."""

    entries: int
    host: np.ndarray | None
    """The numbers, where they are known to the host."""
    operand: Operand | None


def read_starts(value: Any, name: str, of: str, view: Operand) -> Starts:
    """`value` as the starts of the entries of operand `of`, whose view is [1, heads, rows, d].

    Numbers on the host are checked: they begin with 0, do not fall, and end at or before the rows. Raises
    InvalidOperand.
    """
    rows = view.shape[2]
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        if value.device.type == "cuda":
            ordinal = value.get_device()
            return _on_gpu(
                name, view, value.data_ptr(), tuple(value.shape), value.stride(), str(value.dtype), ordinal,
                torch_stream(torch, ordinal), value,
            )  # fmt: skip
        value = value.numpy()
    if not isinstance(value, (np.ndarray, list, tuple)) and hasattr(value, "__dlpack__"):
        tensor = dlpack.take(value, name, view.stream or 0)
        if tensor.device is not None:
            return _on_gpu(name, view, tensor.address, tensor.shape, tensor.strides, tensor.dtype, tensor.device,
                           None, (value, tensor))  # fmt: skip
        value = np.from_dlpack(value)
    numbers = np.asarray(value)
    if numbers.ndim != 1 or len(numbers) < 1 or numbers.dtype.kind not in "iu":
        raise InvalidOperand(
            f"{name} must hold integers [entries + 1]; it has shape {numbers.shape} and dtype {numbers.dtype}."
        )
    check_starts(numbers, name, of, rows)
    if view.device is not None:
        raise InvalidOperand(f"{of} is on GPU {view.device} and {name} on the host. Move it there, as int32.")
    return Starts(len(numbers) - 1, numbers.astype(np.int32), None)


def check_starts(numbers: np.ndarray, name: str, of: str, rows: int) -> None:
    """Raise InvalidOperand unless the numbers begin with 0, do not fall, and stay within `rows`."""
    steps = np.diff(numbers.astype(np.int64))
    if numbers[0] != 0 or (steps < 0).any() or numbers[-1] > rows:
        raise InvalidOperand(
            f"{name} must begin with 0, never fall, and end at most at the {rows} rows of {of}; it begins with "
            f"{numbers[0]}, its steps are {steps.min() if len(steps) else 0} at least, and it ends with {numbers[-1]}."
        )


def _on_gpu(
    name: str, view: Operand, address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str, device: int,
    stream: int | None, owner: Any,
) -> Starts:  # fmt: skip
    if dtype.removeprefix("torch.") != "int32" or len(shape) != 1 or shape[0] < 1 or strides[0] not in (0, 1):
        raise InvalidOperand(
            f"{name} must be a contiguous int32 [entries + 1]; it is {dtype} with shape {shape} and strides {strides}."
        )
    if view.device != device:
        place = "the host" if view.device is None else f"GPU {view.device}"
        raise InvalidOperand(f"{view.name} is on {place} and {name} on GPU {device}. Move them to one device.")
    kind = "torch" if stream is not None else "dlpack"
    return Starts(
        shape[0] - 1, None, Operand(name, kind, address, shape, (1,), "f32", device, stream=stream, owner=owner)
    )


def longest(starts: Starts, given: Any, name: str, view: Operand) -> int:
    """The rows of the longest entry: as given, or from the numbers, which a GPU is waited for to give.

    A number given that is too small is refused where the starts are known to the host; on a GPU it cannot be seen.
    """
    numbers = starts.host
    if given is None and numbers is None:
        from ..jit.device import executor_for
        from ..jit.device_calls import synchronize

        assert starts.operand is not None
        assert starts.operand.device is not None
        synchronize(view.stream or 0, starts.operand.device)
        raw = executor_for(starts.operand.device).download(starts.operand.address, 4 * (starts.entries + 1))
        numbers = raw.view(np.int32)
        check_starts(numbers, f"cu_seqlens_{name[-1]}", name[-1], view.shape[2])
    known = int(np.diff(numbers).max(initial=0)) if numbers is not None else None
    if given is None:
        assert known is not None
        return known
    if isinstance(given, bool) or not isinstance(given, (int, np.integer)) or not 0 <= given <= LARGEST_EXTENT:
        raise InvalidOperand(f"{name}={given!r} must be an integer from 0 to {LARGEST_EXTENT}.")
    if known is not None and given < known:
        raise InvalidOperand(f"{name}={given} is less than the longest entry, {known}. Pass {known}, or omit it.")
    return int(given)
