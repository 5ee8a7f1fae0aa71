"""The emulator as an executor: every op inside `with emulator():` runs on it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ..arrays.scalar import flag
from ..errors import suggests
from ..gpus import DEFAULT_GPU, Arch, Gpu, find_gpu
from ..jit.launch import Launch, use_executor
from ..words import Hazards
from .api import EmuResult, run
from .arguments import whole_number
from .hazards import check_mode
from .memory import GlobalMemory
from .orders import Order
from .tensor_maps import BYTES, pack

if TYPE_CHECKING:
    from ..jit.compile import CompiledKernel
    from .recorder import Recorder


class Emulator:
    """Runs launches on the emulator. `results` holds one EmuResult a launch, in order.

    progress(done, all) is called with numbers of blocks while a launch runs. Threads may share one: its launches then
    run one after another. recorder: is told what one block of each launch does.
    """

    runs_ptx = True

    def __init__(
        self,
        gpu: str = DEFAULT_GPU,
        hazards: str = "raise",
        progress: Callable[[int, int], None] | None = None,
        order: int | None = None,
        seed: int = 0,
        strict: bool = False,
        recorder: Recorder | None = None,
        jobs: int = 1,
    ) -> None:
        self.gpu: Gpu = find_gpu(gpu)
        self.arch: Arch = self.gpu.arch
        check_mode(hazards)
        self.hazards = hazards
        self.progress = progress
        self.order = None if order is None else whole_number(order, "order", 1)
        self.seed, self.jobs = whole_number(seed, "seed", 0), whole_number(jobs, "jobs", 1)
        self.strict, self.recorder = flag(strict, "strict"), recorder
        self.memory = GlobalMemory()
        self._memory_in_use = threading.Lock()  # an upload may move all of it
        self.results: list[EmuResult] = []

    def __repr__(self) -> str:
        return f"Emulator({self.gpu.name}, {len(self.results)} launches)"

    @property
    def last(self) -> EmuResult:
        """The newest result. Raises IndexError before the first launch."""
        if not self.results:
            raise IndexError("nothing has been launched on this emulator yet")
        return self.results[-1]

    def upload(self, data: np.ndarray, name: str = "") -> int:
        """Copy raw bytes (uint8, one dimension) to the emulator; their address. Reports call them `name`."""
        with self._memory_in_use:
            return self.memory.add(data, name)

    def download(self, address: int, nbytes: int) -> np.ndarray:
        """The bytes at `address`, copied back: uint8."""
        with self._memory_in_use:
            return self.memory.read(address, nbytes)

    def release(self, address: int) -> None:
        """Give an upload back; a kernel that still uses it is out of bounds."""
        with self._memory_in_use:
            self.memory.release(address)

    def place(self, data: np.ndarray | None, nbytes: int, pad: int, name: str = "") -> int:
        """Memory for a call, a NaN in every type where `data` does not reach."""
        held = np.full(pad + nbytes, 0xFF, np.uint8)
        if data is not None:
            held[pad:] = data
        return self.upload(held, name)

    def give_back(self, address: int) -> None:
        self.release(address)

    def read(self, address: int, into: np.ndarray) -> None:
        """Copy the bytes at `address` into a contiguous array."""
        into.view(np.uint8).reshape(-1)[...] = self.download(address, into.nbytes)

    def launch(self, kernel: CompiledKernel, launch: Launch) -> None:
        """Run a kernel to its end; its result is then `last`."""
        params = bytearray(launch.params)
        for at, description, address in launch.maps:
            params[at : at + BYTES] = pack(description.at(address))
        sources = dict(kernel.source.headers)
        sources[kernel.source.name] = kernel.source.text
        with self._memory_in_use:
            result = run(
                kernel.ptx,
                kernel.entry,
                grid=launch.grid_on(self.gpu),
                block=launch.block,
                params=bytes(params),
                memory=self.memory,
                shared_bytes=launch.shared_bytes,
                gpu=self.gpu.name,
                hazards=self.hazards,
                limit=None,
                progress=self.progress,
                sources=sources,
                order=None if self.order is None else Order(self.seed, self.order),
                strict=self.strict,
                recorder=self.recorder,
                jobs=self.jobs,
            )
            self.results.append(result)


class Session(contextlib.ContextDecorator):
    """The session that `emulator` returns: `with` it, several times too, or decorate a function with it. Each gives
    `emulator`."""

    def __init__(self, emulator: Emulator) -> None:
        self.emulator = emulator
        self._open = threading.local()  # what this thread has entered

    def __repr__(self) -> str:
        return f"{self.emulator!r}, to be entered: with tilewright.emulator() as emu: ..."

    def __enter__(self) -> Emulator:
        if not hasattr(self._open, "entered"):
            self._open.entered = []
        entered = use_executor(self.emulator)
        entered.__enter__()
        self._open.entered.append(entered)
        return self.emulator

    def __exit__(self, *raised: object) -> None:
        self._open.entered.pop().__exit__(None, None, None)


@suggests
def emulator(
    gpu: str = DEFAULT_GPU,
    hazards: Hazards = "raise",
    progress: Callable[[int, int], None] | None = None,
    order: int | None = None,
    seed: int = 0,
    strict: bool = False,
    jobs: int = 1,
) -> Session:
    """Run every op inside `with emulator():` on the emulator, as on the GPU named.

    NumPy arrays in, NumPy arrays out. It is in force for this thread (and what copies its context), not for threads
    started inside, which may enter emulators of their own. progress(done, all) is called with numbers of blocks while a
    launch runs. order: run each launch in this other legal order of warps, blocks and completions, of `seed`, as
    `emulate` does. strict: warnings are errors. jobs: processes that may share the blocks of a launch.

    Raises InvalidOperand for an unknown GPU, way to treat hazards, order, seed or number of processes; a kernel that
    does what a GPU punishes raises EmulatorFault, unless `hazards` is "collect".
    """
    return Session(Emulator(gpu, hazards, progress, order, seed, strict, jobs=jobs))
