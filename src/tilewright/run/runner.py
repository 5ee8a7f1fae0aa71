"""The one way in which calls run: operands placed, streams ordered, templates filled in, launches made.

Arrays on a GPU are used where they are, in their library's stream, with memory of their library's pool. Host arrays
are copied to an executor (a GPU or the emulator), and results back. A family says what a call has (`Call`); everything
after that is written here once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..arrays.extents import byte_extent
from ..arrays.result import as_callers_kind, bits_in, empty_like, host_bits, host_bytes, result_operand
from ..arrays.streams import in_order
from ..arrays.view import Operand
from ..arrays.written import mark_written
from ..errors import DeviceError, InvalidOperand
from ..gpus import Gpu
from ..jit import device_calls
from ..jit.launch import Executor, Launch, current_executor
from ..jit.params import WORK
from .program import Program
from .ready import Ready, ready

if TYPE_CHECKING:
    from ..jit import CompiledKernel


@dataclass(frozen=True)
class Output:
    """A result of a call."""

    base: str
    view: Operand
    """Where it goes; of a new array only the layout counts."""
    shape: tuple[int, ...]
    """The shape of a new array, as the caller sees it: dense, row-major."""
    given: Any = None
    """The caller's array; None: a new one is made."""
    keeps: bool = False
    """True where elements of the caller's array that no launch writes must stay as they are."""


@dataclass(frozen=True)
class Site:
    """The place where checks of a call run. `hold` gives so many bytes there until the call is over."""

    gpu: Gpu
    hold: Callable[[int], int]
    run: Callable[[CompiledKernel, Launch], None]
    download: Callable[[int, int], np.ndarray]


@dataclass(frozen=True)
class Ran:
    """The launches that ran, for who remembers them (run/warm.py)."""

    ready: Ready
    ordinal: int


class Call(Protocol):
    """A checked call of a family."""

    @property
    def what(self) -> str:
        """Return what a message calls it: "this product (...)"."""
        ...

    @property
    def first(self) -> Operand:
        """The operand by which the call is placed."""
        ...

    @property
    def others(self) -> tuple[Operand, ...]:
        """The other arrays as the caller gave them: their streams and owners."""
        ...

    @property
    def inputs(self) -> tuple[tuple[str, Operand | np.ndarray | None], ...]:
        """Each base with its view, with numbers on the host that are copied, or None where nothing is read."""
        ...

    @property
    def outputs(self) -> tuple[Output, ...]: ...

    @property
    def scalars(self) -> Mapping[str, float]: ...

    @property
    def verify(self) -> bool:
        """Return whether the result is checked before it is given back."""
        ...

    def program(self, gpu: Gpu) -> Program | None:
        """The launches; None for an empty result. Raises ConfigRejected."""
        ...

    def checked(self, program: Program, bases: Mapping[str, int], site: Site) -> AbstractContextManager[None]:
        """Around the launches: raises WrongResult."""
        ...


class Unchecked:
    """A call of a family whose results have no check of their own."""

    verify = False

    def checked(self, program: Program, bases: Mapping[str, int], site: Site) -> AbstractContextManager[None]:
        raise NotImplementedError


def run(call: Call) -> tuple[tuple[Any, ...], Ran | None]:
    """Carry out a call: its results, in the order of its outputs, and what ran on the arrays' own GPU.

    Raises InvalidOperand for arrays that are not where they can run, DeviceError, ConfigRejected, CompileError and
    WrongResult as the families' functions document.
    """
    executor = executor_for_host(call.first, call.others)
    return _run_in_place(call) if executor is None else _run_staged(executor, call)


def executor_for_host(first: Operand, others: Sequence[Operand]) -> Executor | None:
    """Return who runs a call's launches from host memory; None when its arrays are on a GPU.

    Raises InvalidOperand for arrays that are not where they can run, DeviceError for NumPy arrays and no GPU.
    """
    executor = current_executor()
    if first.device is not None:
        if executor is not None:
            raise InvalidOperand(
                f"{first.name} is a {first.kind} array on GPU {first.device}, and the emulator in force runs host "
                "arrays. Copy it to the host, or leave the emulator's `with` block."
            )
        return None
    if executor is not None:
        return executor
    for operand in (first, *others):
        if operand.kind != "numpy":
            raise InvalidOperand(
                f"{operand.name} (shape {operand.shape}) is a {operand.kind} array on the CPU. Move it to a CUDA GPU, "
                "or run on the emulator: with tilewright.emulator(): ..."
            )
    from ..jit.device import gpu_available, why_no_gpu
    from ..jit.gpu_executor import executor_for

    if not gpu_available():
        raise DeviceError(
            f"NumPy arrays need a CUDA GPU or the emulator, and no usable GPU was found: {why_no_gpu()}. Run on the "
            "emulator: with tilewright.emulator(): ... in the thread that calls; `tilewright doctor` says what was "
            "looked for."
        )
    return executor_for(0, 0)


# --- arrays on a GPU --------------------------------------------------------------------------------------------------


def _run_in_place(call: Call) -> tuple[tuple[Any, ...], Ran | None]:
    """Launch on the arrays' own GPU, in the first one's current stream, ordered with what the others' streams hold."""
    from ..jit.device import bound_to
    from ..jit.gpu_executor import executor_for

    first = call.first
    ordinal = first.device
    assert ordinal is not None  # executor_for_host saw to it
    gpu = executor_for(ordinal).gpu
    program = call.program(gpu)
    made = ready(program, gpu.arch) if program is not None and _may_compile(call, program, gpu, ordinal) else None
    results: list[Any] = []
    bases = {base: view.address if isinstance(view, Operand) else 0 for base, view in call.inputs}
    for output in call.outputs:
        array = output.given
        if array is None:
            array = empty_like(first, output.shape, output.view.dtype)
            bases[output.base] = result_operand(array, first).address
        else:
            bases[output.base] = output.view.address
        results.append(array)
    if made is not None:
        with bound_to(ordinal), in_order(first, call.others) as stream:
            bases[WORK], give_back = _borrow(first, made.program.workspace_bytes)
            try:
                with _checking(call, made, bases, stream) if call.verify else nullcontext():
                    made.start(ordinal, stream, bases, call.scalars)
            finally:
                give_back()
    for output, array in zip(call.outputs, results, strict=True):
        if output.given is not None:
            mark_written(array)
    arrays = tuple(
        array if output.given is not None else as_callers_kind(array, first)
        for output, array in zip(call.outputs, results, strict=True)
    )
    return arrays, Ran(made, ordinal) if made is not None else None


def _may_compile(call: Call, program: Program, gpu: Gpu, ordinal: int) -> bool:
    """True. Raises DeviceError where a capture runs that the call cannot be part of."""
    from ..jit.device_calls import is_capturing
    from .ready import has_run

    if not call.verify and has_run(program, gpu.arch, ordinal):
        return True
    if is_capturing(call.first.stream or 0, ordinal):
        if call.verify:
            raise DeviceError(
                "verify=True waits for the GPU, and a CUDA-graph capture is running. Verify before capturing."
            )
        raise DeviceError(
            f"a CUDA-graph capture is running, and {call.what} has not run in this process yet: nothing is compiled or "
            "loaded inside a capture. Call it once before capturing, with arrays of the same shapes, strides, dtypes "
            "and alignment, and the same options."
        )
    return True


@contextmanager
def _checking(call: Call, made: Ready, bases: Mapping[str, int], stream: int) -> Iterator[None]:
    from ..jit.gpu_executor import executor_for

    executor = executor_for(call.first.device or 0, stream)
    held: list[Callable[[], None]] = []

    def hold(nbytes: int) -> int:
        address, give_back = _borrow(call.first, nbytes)
        held.append(give_back)
        return address

    try:
        with call.checked(made.program, bases, Site(executor.gpu, hold, executor.launch, executor.download)):
            yield
    finally:
        for give_back in held:
            give_back()


def _borrow(first: Operand, nbytes: int) -> tuple[int, Callable[[], None]]:
    """Memory for a program, and what gives it back once its launches are in the stream. The GPU's context must be
    current.

    torch's and CuPy's pools keep it apart until the stream has passed; before ours is given back the stream is
    waited for.
    """
    if nbytes == 0:
        return 0, lambda: None
    if first.kind == "torch":
        torch = sys.modules["torch"]
        held = [torch.empty(nbytes, dtype=torch.uint8, device=first.owner.device)]
        return held[0].data_ptr(), held.clear
    if first.kind == "cupy":
        cupy = sys.modules["cupy"]
        with cupy.cuda.Device(first.device):
            held = [cupy.cuda.alloc(nbytes)]
        return int(held[0].ptr), held.clear
    from ..jit.gpu_executor import executor_for

    executor = executor_for(first.device or 0)
    address = executor.borrow(nbytes)

    def free() -> None:
        device_calls.synchronize(first.stream or 0)
        executor.give_back(address)

    return address, free


# --- host arrays ------------------------------------------------------------------------------------------------------


def _run_staged(executor: Executor, call: Call) -> tuple[tuple[Any, ...], Ran | None]:
    """Copy what the views reach to the executor, run there, copy the results back."""
    program = call.program(executor.gpu)
    made = ready(program, executor.gpu.arch) if program is not None else None
    ran = None
    with Staging(executor) as staging:
        bases = {base: staging.place(base, view) for base, view in call.inputs}
        bases |= {output.base: staging.stage(output.view, output.keeps) for output in call.outputs}
        if made is not None:
            borrowed = made.program.workspace_bytes
            bases[WORK] = staging.hold(None, borrowed, 0, "workspace") if borrowed else 0
            site = Site(
                executor.gpu, lambda size: staging.hold(None, size, 0, "verification"), executor.launch,
                executor.download,
            )  # fmt: skip
            with call.checked(made.program, bases, site) if call.verify else nullcontext():
                ran = _launch_on(executor, made, bases, call.scalars)
        results = []
        for output in call.outputs:
            array, view = output.given, output.view
            if array is None:
                array = empty_like(call.first, output.shape, view.dtype)
                view = replace(view, address=result_operand(array, call.first).address)
            staging.fetch(bases[output.base], view)
            if output.given is not None:
                mark_written(array)
            results.append(array if output.given is not None else as_callers_kind(array, call.first))
    return tuple(results), ran


def _launch_on(executor: Executor, made: Ready, bases: Mapping[str, int], scalars: Mapping[str, float]) -> Ran | None:
    """Launch on an executor; what ran, if it is a GPU."""
    if executor.runs_ptx or not hasattr(executor, "ordinal"):
        for kernel, launch in made.launches(bases, scalars):
            executor.launch(kernel, launch)
        return None
    from ..jit.device import bound_to

    with bound_to(executor.ordinal):
        made.start(executor.ordinal, 0, bases, scalars)
    return Ran(made, executor.ordinal)


class Staging:
    """A call's copies on an executor, given back at the end."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._held: list[int] = []

    def __enter__(self) -> Staging:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and hasattr(self._executor, "synchronize"):
            with suppress(DeviceError):  # launches may be at work on what is given back
                self._executor.synchronize()
        for address in self._held:
            self._executor.give_back(address)

    def hold(self, data: np.ndarray | None, nbytes: int, pad: int, name: str) -> int:
        self._held.append(self._executor.place(data, nbytes, pad, name))
        return self._held[-1]

    def stage(self, operand: Operand, fill: bool) -> int:
        """The operand's bytes on the executor, at an address as aligned as on the host; its element 0's address."""
        low, high = byte_extent(operand)
        pad = low % 16
        address = self.hold(host_bytes(operand) if fill else None, high - low, pad, operand.name)
        return address + pad + operand.address - low

    def place(self, name: str, view: Operand | np.ndarray | None) -> int:
        if isinstance(view, np.ndarray):
            data = np.ascontiguousarray(view).view(np.uint8).reshape(-1)
            return self.hold(data, data.nbytes, 0, name)
        return 0 if view is None else self.stage(view, True)

    def fetch(self, address: int, view: Operand) -> None:
        """Copy a result back to the host's view of it, whose element 0 is at `address` on the executor."""
        if view.size == 0:
            return
        low, high = byte_extent(view)
        first = view.address - low
        if high - low == view.size * view.item_bytes:  # no gaps between elements
            self._executor.read(address - first, host_bytes(view))
        else:
            held = np.empty(high - low, np.uint8)
            self._executor.read(address - first, held)
            host_bits(view)[...] = bits_in(held, view, first)
