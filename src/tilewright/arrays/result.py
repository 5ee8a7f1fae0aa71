"""The place of a result: an array of the caller's kind, on the caller's device, and its view."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np

from ..errors import InvalidOperand
from .device_array import DeviceArray
from .dtypes import DTYPE_NAMES, FP8, numpy_dtype
from .extents import byte_extent
from .view import Operand, as_operand

_BIT_TYPES = {1: np.uint8, 2: np.uint16, 4: np.uint32}


def host_bits(operand: Operand) -> np.ndarray:
    """A view of a host operand's elements as unsigned integers of their width, with its shape and strides."""
    item = operand.item_bytes
    if operand.size == 0:
        return np.empty(operand.shape, _BIT_TYPES[item])
    low, high = byte_extent(operand)
    memory = memoryview((ctypes.c_uint8 * (high - low)).from_address(low))
    return bits_in(memory, operand, operand.address - low)


def bits_in(memory: Any, operand: Operand, first: int) -> np.ndarray:
    """The same of a copy of the operand's bytes, `first` bytes into which its first element lies."""
    item = operand.item_bytes
    strides = tuple(step * item for step in operand.strides)
    return np.ndarray(operand.shape, _BIT_TYPES[item], memory, first, strides)


def host_bytes(operand: Operand) -> np.ndarray:
    """All bytes of host memory from the operand's lowest to its highest, gaps between elements too."""
    low, high = byte_extent(operand)
    if low == high:
        return np.empty(0, np.uint8)
    return np.frombuffer(memoryview((ctypes.c_uint8 * (high - low)).from_address(low)), np.uint8)


def empty_like(a: Operand, shape: tuple[int, ...], dtype: str) -> Any:
    """A new array of `a`'s kind on its device, not initialised.

    Raises DeviceError when memory is short, InvalidOperand for a dtype that a's library lacks.
    """
    if a.kind == "torch":
        torch = sys.modules["torch"]
        return torch.empty(shape, dtype=getattr(torch, DTYPE_NAMES[dtype]), device=a.owner.device)
    if a.kind == "cupy":
        cupy = sys.modules["cupy"]
        if dtype in FP8:
            raise InvalidOperand(
                f"CuPy has no {DTYPE_NAMES[dtype]} for the result. Pass out=tilewright.Float8Array(cupy.empty({shape}, "
                f"cupy.uint8), {dtype!r}), or ask for another out_dtype."
            )
        with cupy.cuda.Device(a.device):
            return cupy.empty(shape, dtype=numpy_dtype(dtype, a.owner))
    if a.device is not None:
        from ..jit.gpu_executor import executor_for

        return DeviceArray(executor_for(a.device), shape, dtype)
    return np.empty(shape, numpy_dtype(dtype, a.owner))


def result_operand(array: Any, a: Operand) -> Operand:
    """The view of what `empty_like` made."""
    if isinstance(array, DeviceArray):
        from .dlpack import dense_strides

        strides = tuple(0 if e <= 1 else s for e, s in zip(array.shape, dense_strides(array.shape), strict=True))
        return Operand(
            "out", a.kind, array.address, array.shape, strides, array.dtype, array.device, stream=None, owner=array
        )
    return as_operand(array, "out")


def as_callers_kind(array: Any, a: Operand) -> Any:
    """The finished array as the caller's library has it: JAX takes ours over through DLPack, or copies NumPy's."""
    if a.kind == "jax":
        jax = sys.modules["jax"]
        if a.device is None:
            return jax.device_put(array, jax.devices("cpu")[0])
        from jax import dlpack

        return dlpack.from_dlpack(array)
    if isinstance(array, np.ndarray) and array.ndim == 0:
        return array[()]  # a scalar, as numpy.matmul gives
    return array
