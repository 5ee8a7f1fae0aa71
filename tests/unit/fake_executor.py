"""An executor that multiplies with NumPy what a launch's parameters describe: it tests ops apart from kernels."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from unittest import mock

import numpy as np

from tilewright.gemm import rung as rung_module
from tilewright.gemm.rung import Rung
from tilewright.gpus import GPUS
from tilewright.jit import limits
from tilewright.jit.launch import Launch, use_executor
from tilewright.jit.limits import Recent
from tilewright.run import ready

_BASE = 1 << 40


class FakeExecutor:
    """Buffers are NumPy arrays 1 MiB apart. Every access is checked to lie within one."""

    runs_ptx = False

    def __init__(self) -> None:
        self.gpu = GPUS["H200"]
        self.arch = self.gpu.arch
        self.buffers: dict[int, np.ndarray] = {}
        self.launches: list[Launch] = []
        self._next = _BASE

    def upload(self, data: np.ndarray, name: str = "") -> int:
        assert data.dtype == np.uint8
        assert data.ndim == 1
        address, self._next = self._next, self._next + (len(data) // (1 << 20) + 2 << 20)
        self.buffers[address] = data.copy()
        return address

    def download(self, address: int, nbytes: int) -> np.ndarray:
        base = max((b for b in self.buffers if b <= address), default=0)
        return self.buffers[base][address - base :][:nbytes].copy()

    def release(self, address: int) -> None:
        del self.buffers[address]

    def place(self, data: np.ndarray | None, nbytes: int, pad: int, name: str = "") -> int:
        held = np.full(pad + nbytes, 0xFF, np.uint8)
        if data is not None:
            held[pad:] = data
        return self.upload(held, name)

    def give_back(self, address: int) -> None:
        self.release(address)

    def read(self, address: int, into: np.ndarray) -> None:
        into.view(np.uint8).reshape(-1)[...] = self.download(address, into.nbytes)

    def _view(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
        base = max(b for b in self.buffers if b <= address)
        return np.ndarray(shape, np.float32, self.buffers[base], address - base, tuple(4 * s for s in strides))

    def launch(self, kernel: object, launch: Launch) -> None:
        self.launches.append(launch)
        assert launch.grid[1] <= 65535
        values = struct.unpack(rung_module._ARGS, launch.params)
        a, b, c, out = values[:4]
        a_batch, b_batch, c_batch, out_batch, a_row, a_col, b_row, b_col, c_row, c_col, out_row, out_col = values[4:16]
        m, n, k, alpha, beta = values[16:]
        batch = launch.grid[1]
        result = self._view(out, (batch, m, n), (out_batch, out_row, out_col))
        total = np.zeros((batch, m, n))
        if k:
            left = self._view(a, (batch, m, k), (a_batch, a_row, a_col)).astype(np.float64)
            total = left @ self._view(b, (batch, k, n), (b_batch, b_row, b_col)).astype(np.float64)
        total = alpha * total
        if c:
            total = total + beta * self._view(c, (batch, m, n), (c_batch, c_row, c_col)).astype(np.float64)
        result[...] = total


@contextlib.contextmanager
def fake_gpu() -> Iterator[FakeExecutor]:
    """Run ops on a FakeExecutor, with nothing compiled."""
    executor = FakeExecutor()
    uncompiled = mock.patch.object(Rung, "compile", return_value=None)
    with use_executor(executor), uncompiled, mock.patch.object(ready, "_kept", Recent(limits.programs)):
        yield executor
