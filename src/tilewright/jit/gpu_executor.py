"""Kernels run on a GPU and a stream, and its memory: what the emulator does without a GPU (jit.launch.Executor)."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from . import device
from .compile import CompiledKernel
from .launch import Launch
from .limits import Recent
from .loaded import Prepared
from .pool import Pool

_prepared: Recent[tuple[Any, ...], Prepared] = Recent(lambda: 256)
"""What executors launched: making one ready takes longer than launching it."""


class GpuExecutor:
    """Runs kernels on one GPU and one stream (0: the legacy default stream). See jit.launch.Executor."""

    runs_ptx = False

    def __init__(self, ordinal: int = 0, stream: int = 0) -> None:
        self.device = device.device(ordinal)
        self.ordinal, self.stream = ordinal, stream
        self.arch, self.gpu = self.device.arch, self.device.gpu

    def upload(self, data: np.ndarray, name: str = "") -> int:
        data = np.ascontiguousarray(data).view(np.uint8).reshape(-1)
        address = self.allocate(data.nbytes)
        self.write(address, data)
        return address

    def write(self, address: int, data: np.ndarray) -> None:
        """Copy raw bytes (a one-dimensional, contiguous uint8 array) to memory that is already there."""
        with device.bound_to(self.ordinal):
            self.copy_in(address, data.ctypes.data, data.nbytes)

    def copy_in(self, address: int, host: int, nbytes: int) -> None:
        """Copy bytes from an address on the host, in the order of the legacy default stream. The GPU's context must be
        current, here and for copy_out."""
        if nbytes:
            device.check(device.driver().cuMemcpyHtoD(address, host, nbytes), f"copying {nbytes} B to the GPU")

    def copy_out(self, host: int, address: int, nbytes: int) -> None:
        """Copy bytes to an address on the host, after what is in that stream; a fault of a kernel is raised here."""
        if nbytes:
            device.check(device.driver().cuMemcpyDtoH(host, address, nbytes), f"copying {nbytes} B from the GPU")

    def allocate(self, nbytes: int) -> int:
        """Device memory, not initialised. Raises DeviceError with the size when there is none left."""
        with device.bound_to(self.ordinal):
            allocated = device.driver().cuMemAlloc(max(nbytes, 1))
            return int(device.check(allocated, f"allocating {nbytes} B on GPU {self.ordinal}"))

    def borrow(self, nbytes: int) -> int:
        """Do as allocate, from memory that was given back."""
        return pool_of(self.ordinal).take(nbytes)

    def give_back(self, address: int) -> None:
        """Give back what was borrowed, when nothing on the GPU uses it any more."""
        pool_of(self.ordinal).give_back(address)

    def drop(self, address: int) -> None:
        """Free what was borrowed, although the GPU may still use it: the driver waits for that.

        For finalizers, which run in the middle of anything: it takes no lock and ends no capture. cuCtxSynchronize
        would: measured, it ends a capture in whichever mode the thread is.
        """
        pool_of(self.ordinal).forget(address)
        self.release(address)

    def place(self, data: np.ndarray | None, nbytes: int, pad: int, name: str = "") -> int:
        address = self.borrow(pad + nbytes)
        if data is not None:
            self.write(address + pad, data)
        return address

    def read(self, address: int, into: np.ndarray) -> None:
        with device.bound_to(self.ordinal):
            self.synchronize()
            self.copy_out(into.ctypes.data, address, into.nbytes)

    def download(self, address: int, nbytes: int) -> np.ndarray:
        data = np.empty(nbytes, np.uint8)
        self.read(address, data)
        return data

    def release(self, address: int) -> None:
        with device.bound_to(self.ordinal), device.outside_captures():
            device.check(device.driver().cuMemFree(address), "freeing device memory")

    def launch(self, kernel: CompiledKernel, launch: Launch) -> None:
        if 0 in launch.grid:
            return
        key = kernel.key, self.ordinal, replace(launch, params=b"", maps=()), len(launch.params)
        with device.bound_to(self.ordinal):
            prepared = _prepared.get(key)
            if prepared is None:
                prepared = Prepared(kernel, launch, self.ordinal)
                _prepared.put(key, prepared)
            prepared.launch(launch.params, self.stream, launch.maps)

    def synchronize(self) -> None:
        """Wait for the stream; a fault of a kernel on it is raised here."""
        with device.bound_to(self.ordinal):
            device.check(device.driver().cuStreamSynchronize(self.stream), "waiting for the GPU")


@lru_cache(maxsize=16)
def pool_of(ordinal: int) -> Pool:
    """The memory of a GPU that calls borrow."""
    executor = executor_for(ordinal)
    return Pool(executor.allocate, executor.release)


@lru_cache(maxsize=64)
def executor_for(ordinal: int = 0, stream: int = 0) -> GpuExecutor:
    """The executor of a GPU and a stream."""
    return GpuExecutor(ordinal, stream)
