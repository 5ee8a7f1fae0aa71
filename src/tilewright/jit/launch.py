"""A launch, and who carries it out: a GPU (jit/device.py) or the emulator (emu/session.py).

Both take the same compiled kernel and the same packed parameter bytes; only the addresses in them differ.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ..gpus import shared_to_spread

if TYPE_CHECKING:
    from ..gpus import Arch, Gpu, Resources
    from .compile import CompiledKernel
    from .tensor_map import TensorMap


@dataclass(frozen=True)
class Launch:
    """One launch. `params` is the packed parameter buffer, laid out as PTX declares it."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    params: bytes
    shared_bytes: int = 0
    """Dynamic shared memory, in bytes."""
    overlaps: bool = False
    """Whether its blocks may start before the launch ahead in the stream has ended, on GPUs that can (sm_90). Only for
    a kernel that waits itself before it touches global memory (cuda/ptx/grid_dependency.cuh)."""
    resident: int = 0
    """Where not 0: blocks walk the first axis of the grid by themselves, so that of it no more are started than this
    many an SM."""
    cluster: int = 1
    """Blocks of a cluster, neighbours along the first axis, which is whole clusters."""
    maps: tuple[tuple[int, TensorMap, int], ...] = ()
    """Tensor maps among the parameters: position, description, address. Who launches encodes them."""
    spreads: bool = False
    """Whether it starts while blocks of a launch ahead of it still run, and has enough to do that its own must lie
    evenly: they are placed wherever there is room, four on one SM and none on the next, unless no more fit."""

    def grid_on(self, gpu: Gpu) -> tuple[int, int, int]:
        """The blocks that are started on a GPU."""
        x, y, z = self.grid
        most = max(self.resident * gpu.sm_count // self.cluster, 1) * self.cluster
        return (min(x, most) if self.resident else x), y, z

    def shared_on(self, gpu: Gpu, resources: Callable[[], Resources]) -> int:
        """The dynamic shared memory that is asked for on a GPU."""
        if not (self.spreads and self.overlaps and gpu.arch.can_overlap_grids):
            return self.shared_bytes
        blocks, threads = prod(self.grid_on(gpu)), prod(self.block)
        return shared_to_spread(blocks, resources(), threads, self.shared_bytes, gpu)


class Executor(Protocol):
    """A runner of kernels. Addresses are plain integers, valid for this executor alone."""

    arch: Arch
    gpu: Gpu
    runs_ptx: bool
    """True where a kernel's PTX is all it needs."""

    def upload(self, data: np.ndarray, name: str = "") -> int:
        """Copy raw bytes (a one-dimensional uint8 array) to the device; their address, 256-byte aligned.

        `name`: what a report calls them, where there are reports.
        """
        ...

    def download(self, address: int, nbytes: int) -> np.ndarray:
        """The bytes at `address`, copied back: a uint8 array."""
        ...

    def release(self, address: int) -> None:
        """Give an upload back."""
        ...

    def place(self, data: np.ndarray | None, nbytes: int, pad: int, name: str = "") -> int:
        """The address of `pad` + `nbytes` bytes for a call's time, with `data` (uint8), if any, after the pad.

        What is not written is a NaN where the executor can tell.
        """
        ...

    def give_back(self, address: int) -> None:
        """Give back what was placed, when nothing uses it any more."""
        ...

    def read(self, address: int, into: np.ndarray) -> None:
        """Copy the bytes at `address` into a contiguous array on the host."""
        ...

    def launch(self, kernel: CompiledKernel, launch: Launch) -> None:
        """Run the kernel; on a GPU in the order of its current stream."""
        ...


_current: ContextVar[Executor | None] = ContextVar("tilewright_executor", default=None)


current_executor: Callable[[], Executor | None] = _current.get
"""Returns the executor installed by `use_executor` around the caller, or None: then the arrays' own device runs."""


@contextlib.contextmanager
def use_executor(executor: Executor) -> Iterator[Executor]:
    """Run every op inside on `executor`."""
    token = _current.set(executor)
    try:
        yield executor
    finally:
        _current.reset(token)
