"""Lengths that calls give as arrays: cu_seqlens, where each entry of a packed batch begins, and seqused."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ..arrays import dlpack
from ..arrays.dtypes import LARGEST_EXTENT, ceil_div
from ..arrays.view import Operand, torch_stream
from ..errors import InvalidOperand


@dataclass(frozen=True)
class Starts:
    """int32 numbers. On a GPU `operand` is where they lie (its dtype does not tell: it is read as int32)."""

    shape: tuple[int, ...]
    host: np.ndarray | None
    """The numbers, where they are known to the host."""
    operand: Operand | None

    @property
    def entries(self) -> int:
        """Of cu_seqlens: one fewer than numbers."""
        return self.shape[0] - 1


class _Wanted(NamedTuple):
    """What an argument is called, its axes, and the least length of the first."""

    name: str
    axes: tuple[str, ...]
    least: int = 0

    def __str__(self) -> str:
        return f"[{', '.join(self.axes)}]"


def read_starts(value: Any, name: str, of: str, view: Operand) -> Starts:
    """`value` as the starts of the entries of operand `of`, whose view is [1, heads, rows, d].

    Numbers on the host are checked: they begin with 0, do not fall, and end at or before the rows. Raises
    InvalidOperand.
    """
    found = _read(value, _Wanted(name, ("entries + 1",), 1), of, view)
    if found.host is not None:
        check_starts(found.host, name, of, view.shape[2])
    return found if found.host is None else replace(found, host=found.host.astype(np.int32))


def read_used(value: Any, q: Operand, rows: int) -> Starts:
    """`value` as seqused, the keys of each entry that are there, at most `rows`. Numbers on the host are checked.
    Raises InvalidOperand."""
    found = _read(value, _Wanted("seqused", ("batch",)), "q", q)
    if found.shape[0] != q.shape[0]:
        raise InvalidOperand(f"seqused holds {found.shape[0]} numbers and q {q.shape[0]} entries: one for each.")
    if found.host is None:
        return found
    low, high = found.host.min(initial=0), found.host.max(initial=0)
    if low < 0 or high > rows:
        raise InvalidOperand(f"seqused goes from {low} to {high}; an entry of k has {rows} rows.")
    return replace(found, host=found.host.astype(np.int32))


def read_table(value: Any, q: Operand, pages: int) -> Starts:
    """`value` as block_table [batch, most pages of an entry]. Raises InvalidOperand.

    Numbers are held to 0 .. pages - 1, on a GPU by the kernel: those that no key needs may be anything.
    """
    found = _read(value, _Wanted("block_table", ("batch", "pages")), "q", q)
    if found.shape[0] != q.shape[0]:
        raise InvalidOperand(f"block_table has shape {found.shape} and q {q.shape[0]} entries: a row for each.")
    if found.host is None:
        return found
    return replace(found, host=np.clip(found.host, 0, max(pages - 1, 0)).astype(np.int32))


def _read(value: Any, wanted: _Wanted, of: str, view: Operand) -> Starts:
    """A list of integers for operand `of`, whose view is given: on its GPU as int32, or on the host as any."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        if value.device.type == "cuda":
            ordinal = value.get_device()
            return _on_gpu(
                wanted, view, value.data_ptr(), tuple(value.shape), value.stride(), str(value.dtype), ordinal,
                torch_stream(torch, ordinal), value,
            )  # fmt: skip
        value = value.numpy()
    if not isinstance(value, (np.ndarray, list, tuple)) and hasattr(value, "__dlpack__"):
        tensor = dlpack.take(value, wanted.name, view.stream or 0)
        if tensor.device is not None:
            return _on_gpu(wanted, view, tensor.address, tensor.shape, tensor.strides, tensor.dtype, tensor.device,
                           None, (value, tensor))  # fmt: skip
        value = np.from_dlpack(value)
    numbers = np.asarray(value)
    wrong = numbers.ndim != len(wanted.axes) or len(numbers) < wanted.least
    if wrong or (numbers.size and numbers.dtype.kind not in "iu"):
        raise InvalidOperand(
            f"{wanted.name} must hold integers {wanted}; it has shape {numbers.shape} and dtype {numbers.dtype}."
        )
    if view.device is not None:
        raise InvalidOperand(f"{of} is on GPU {view.device} and {wanted.name} on the host. Move it there, as int32.")
    return Starts(numbers.shape, numbers, None)


def check_starts(numbers: np.ndarray, name: str, of: str, rows: int) -> None:
    """Raise InvalidOperand unless the numbers begin with 0, do not fall, and stay within `rows`."""
    steps = np.diff(numbers.astype(np.int64))
    if numbers[0] != 0 or (steps < 0).any() or numbers[-1] > rows:
        raise InvalidOperand(
            f"{name} must begin with 0, never fall, and end at most at the {rows} rows of {of}; it begins with "
            f"{numbers[0]}, its steps are {steps.min() if len(steps) else 0} at least, and it ends with {numbers[-1]}."
        )


def _on_gpu(
    wanted: _Wanted, view: Operand, address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str,
    device: int, stream: int | None, owner: Any,
) -> Starts:  # fmt: skip
    wrong = len(shape) != len(wanted.axes) or shape[0] < wanted.least
    apart = any(
        step != dense
        for extent, step, dense in zip(shape, strides, dlpack.dense_strides(shape), strict=False)
        if extent > 1
    )
    if dtype.removeprefix("torch.") != "int32" or wrong or apart:
        raise InvalidOperand(
            f"{wanted.name} must be a contiguous int32 {wanted}; it is {dtype} with shape {shape} and strides "
            f"{strides}."
        )
    if view.device != device:
        place = "the host" if view.device is None else f"GPU {view.device}"
        raise InvalidOperand(f"{view.name} is on {place} and {wanted.name} on GPU {device}. Move them to one device.")
    kind = "torch" if stream is not None else "dlpack"
    lies = dlpack.dense_strides(shape)
    return Starts(
        shape, None, Operand(wanted.name, kind, address, shape, lies, "f32", device, stream=stream, owner=owner)
    )


def length_of(starts: Starts, given: Any, name: str, rows: int) -> int:
    """The rows of an entry by which a kernel is chosen: of the longest, as given or from the numbers where the host has
    them; else of the average one, as a GPU is not waited for.

    A number given that is too small is refused where the starts are known to the host. Raises InvalidOperand.
    """
    known = int(np.diff(starts.host).max(initial=0)) if starts.host is not None else None
    if given is None:
        return known if known is not None else ceil_div(rows, max(starts.entries, 1))
    if isinstance(given, bool) or not isinstance(given, (int, np.integer)) or not 0 <= given <= LARGEST_EXTENT:
        raise InvalidOperand(f"{name}={given!r} must be an integer from 0 to {LARGEST_EXTENT}.")
    if known is not None and given < known:
        raise InvalidOperand(f"{name}={given} is less than the longest entry, {known}. Pass {known}, or omit it.")
    return int(given) if known is not None else max(int(given), 1)
