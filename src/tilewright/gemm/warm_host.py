"""The warm path of host arrays: copied into one block of a GPU's memory, run there, copied back (gemm/warm.py)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..arrays.extents import byte_extent
from ..arrays.view import Operand
from ..errors import DeviceError
from ..jit import device, device_calls, gpu_executor, staging
from ..jit.launch import current_executor
from ..run.runner import Staging
from ..run.warm import MISS, Calls, Remembered

if TYPE_CHECKING:
    from .warm import WarmProduct

_APART = 256
"""Copies start at multiples of this many bytes, and then as far from one as on the host."""


class Copy(NamedTuple):
    """The bytes that are copied of an array, and their place in the block."""

    low: int
    """From the array's address to its lowest byte: 0, or negative where a stride is."""
    nbytes: int
    place: int
    """Of the lowest byte, in the block."""


class Copies(NamedTuple):
    """The places of a call's arrays in a block: all that its key decides but their addresses."""

    inputs: tuple[Copy | None, ...]
    """a, b, c and the epilogue's; None for what is not there."""
    out: Copy
    is_dense: bool
    """Whether the result has no gaps between its elements."""
    first: int
    """The byte of the block at which the inputs begin, after the workspace."""
    last: int
    """Where they end."""
    nbytes: int

    def bases(self, block: int) -> list[int]:
        """The addresses that launches take: a, b, c, out, the workspace and the epilogue's."""
        a, b, c, *fused = [0 if one is None else block + one.place - one.low for one in self.inputs]
        return [a, b, c, block + self.out.place - self.out.low, block, *fused]


def copies_of(inputs: Sequence[Operand | None], out: Operand, workspace_bytes: int) -> Copies:
    """`inputs`: as Copies has them."""
    used = first = -(-workspace_bytes // _APART) * _APART
    laid: list[Copy | None] = []
    for operand in (*inputs, out):
        if operand is None:
            laid.append(None)
            continue
        low, high = byte_extent(operand)
        place = used + low % 16
        laid.append(Copy(low - operand.address, high - low, place))
        used = -(-(place + high - low) // _APART) * _APART
    *given, of_out = laid
    assert of_out is not None
    last = max(one.place + one.nbytes for one in given if one is not None)
    return Copies(tuple(given), of_out, of_out.nbytes == out.size * out.item_bytes, first, last, used)


def run_copied(
    launches: Remembered, copies: Copies, addresses: Sequence[int], scalars: Sequence[float], out_at: int,
    out: Operand | None,
) -> bool:  # fmt: skip
    """Copy, launch, copy back and wait. False where nothing was launched. `addresses`: of the inputs; `out`: the view
    of a result with gaps."""
    ordinal = launches.ordinal
    with device.bound_to(ordinal):
        if copies.is_dense and copies.nbytes <= staging.SIZE:
            return _run_small(launches, copies, addresses, scalars, out_at)
        executor = gpu_executor.executor_for(ordinal)
        block = executor.borrow(copies.nbytes)
        try:
            for copy, address in zip(copies.inputs, addresses, strict=True):
                if copy is not None:
                    executor.copy_in(block + copy.place, address + copy.low, copy.nbytes)
            bases = copies.bases(block)
            if not launches.start(bases, scalars, 0):
                return False
            if copies.is_dense:
                executor.copy_out(out_at + copies.out.low, block + copies.out.place, copies.out.nbytes)
            elif out is not None:  # what lies between its elements stays
                Staging(executor).fetch(bases[3], out)
        except BaseException:
            with suppress(DeviceError):  # a launch may be at work on the block
                executor.synchronize()
            raise
        finally:
            executor.give_back(block)
    return True


def _run_small(
    launches: Remembered, copies: Copies, addresses: Sequence[int], scalars: Sequence[float], out_at: int
) -> bool:
    """The same through pinned memory: all inputs by one copy. The GPU's context must be current."""
    api, check = device.driver(), device.check
    block = staging.take(launches.ordinal)
    host, there = block
    try:
        for copy, address in zip(copies.inputs, addresses, strict=True):
            if copy is not None:
                ctypes.memmove(host + copy.place, address + copy.low, copy.nbytes)
        first, (low, nbytes, place) = copies.first, copies.out
        check(api.cuMemcpyHtoDAsync(there + first, host + first, copies.last - first, 0), "copying to the GPU")
        started = launches.start(copies.bases(there), scalars, 0)
        if started:
            check(api.cuMemcpyDtoHAsync(host + place, there + place, nbytes, 0), "copying from the GPU")
        device_calls.synchronize(0)
        if started:
            ctypes.memmove(out_at + low, host + place, nbytes)
        return started
    except BaseException:
        with suppress(DeviceError):  # a copy or a launch may be at work on the block
            device_calls.synchronize(0)
        raise
    finally:
        staging.give_back(launches.ordinal, block)


# --- a @ b of NumPy's arrays, whose views are not even made -----------------------------------------------------------

numpy_calls: Calls[WarmProduct] = Calls()
MOST_ALPHA = float(np.finfo(np.float32).max)


def _numpy_key(a: np.ndarray, b: np.ndarray, a_at: int, b_at: int, options: tuple[Any, ...]) -> Any:
    return a.shape, a.strides, a.dtype, a_at & 15, b.shape, b.strides, b.dtype, b_at & 15, options


def warm_numpy(a: Any, b: Any, alpha: float, options: tuple[Any, ...]) -> Any:
    """alpha * (a @ b), or MISS. `options`: as warm_matmul."""
    if type(a) is not np.ndarray or type(b) is not np.ndarray or type(alpha) is not float:
        return MISS
    if current_executor() is not None or not abs(alpha) <= MOST_ALPHA:
        return MISS
    a_at, b_at = a.ctypes.data, b.ctypes.data
    call = numpy_calls.get(_numpy_key(a, b, a_at, b_at, options))
    if call is None or call.copies is None:
        return MISS
    result = np.empty(call.shape, call.dtype)
    if not run_copied(call.launches, call.copies, (a_at, b_at, 0), (alpha, 0.0), result.ctypes.data, None):
        return MISS
    return result


def remember_numpy(a: Any, b: Any, result: Any, call: WarmProduct, options: tuple[Any, ...]) -> None:
    """Let later products of this kind take the warm path; `call`: as their views remember it."""
    if type(a) is type(b) is type(result) is np.ndarray:
        numpy_calls.put(_numpy_key(a, b, a.ctypes.data, b.ctypes.data, options), replace(call, dtype=result.dtype))
