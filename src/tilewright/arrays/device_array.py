"""An array of ours on a GPU, for callers whose arrays have no library that could make the result."""

from __future__ import annotations

import weakref
from math import prod
from typing import Any

from ..errors import InvalidOperand
from ..jit.gpu_executor import GpuExecutor
from . import dlpack
from .dtypes import ITEM_BYTES

_TYPE_STRINGS = {"f32": "<f4", "f16": "<f2"}


class DeviceArray:
    """A dense row-major array on one GPU, readable through DLPack and, but for bf16, `__cuda_array_interface__`.

    Its memory is given back when the array and everything made from it are gone. What it holds is complete: the op
    that made it waited for the GPU.
    """

    def __init__(self, executor: GpuExecutor, shape: tuple[int, ...], dtype: str) -> None:
        self.shape, self.dtype, self.device = shape, dtype, executor.ordinal
        self.nbytes = prod(shape) * ITEM_BYTES[dtype]
        self.address: int = executor.borrow(self.nbytes)
        weakref.finalize(self, executor.drop, self.address).atexit = False

    def __repr__(self) -> str:
        return f"DeviceArray(shape={self.shape}, dtype={self.dtype!r}, device={self.device})"

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.dtype not in _TYPE_STRINGS:
            raise AttributeError(f"__cuda_array_interface__ has no type for {self.dtype}; use DLPack")
        return {
            "shape": self.shape,
            "typestr": _TYPE_STRINGS[self.dtype],
            "data": (self.address if self.nbytes else 0, False),
            "strides": None,
            "version": 3,
            "stream": None,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, self.device

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A capsule around this memory; no stream has to wait, since what the array holds is complete."""
        if copy:
            raise BufferError("a DeviceArray is exported without a copy only: pass copy=False or None")
        if dl_device is not None and tuple(map(int, dl_device)) != self.__dlpack_device__():
            raise BufferError(f"a DeviceArray on GPU {self.device} is not exported to device {dl_device}")
        versioned = max_version is not None and max_version[0] >= 1
        return dlpack.give(self.address, self.shape, self.dtype, self.__dlpack_device__(), self, versioned=versioned)

    def numpy(self) -> Any:
        """A copy on the host: numpy.ndarray of this shape. Raises InvalidOperand for bf16, which NumPy lacks."""
        import numpy as np

        from ..jit.gpu_executor import executor_for

        if self.dtype not in _TYPE_STRINGS:
            raise InvalidOperand(f"NumPy has no type for {self.dtype}; read the array through DLPack.")
        data = executor_for(self.device).download(self.address, self.nbytes)
        return data.view(np.dtype(_TYPE_STRINGS[self.dtype])).reshape(self.shape)
