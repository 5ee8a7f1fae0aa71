"""Kernels on a GPU, through the CUDA driver. Works in each device's primary context, next to torch, CuPy and JAX."""

from __future__ import annotations

import ctypes
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from ..errors import DeviceError, InvalidOperand, TilewrightError
from ..gpus import GPUS, Arch, Gpu, arch_of, as_found, is_named, unlisted
from . import limits, nvrtc
from .compile import CompiledKernel
from .launch import Launch
from .limits import Recent
from .params import MAP_BYTES
from .pool import Pool
from .tensor_map import DTYPES, OOB_FILLS, SWIZZLES, TensorMap

DRIVERS = {12: "525", 13: "580"}
"""The oldest driver, by the generation of CUDA that a compiler makes machine code for. Source: CUDA Compatibility
documentation, minimum driver versions for minor version compatibility."""

_RETRY_SECONDS = 10.0
_failed: tuple[float, str] = (-_RETRY_SECONDS, "")
"""When the driver last did not start, and why: asking it costs 0.1 ms, and every plan without a GPU asks."""


@lru_cache(maxsize=1)
def driver() -> Any:
    """cuda.bindings' driver module, initialised. Raises DeviceError when there is no driver or no GPU.

    A failure is remembered for ten seconds.
    """
    global _failed
    when, words = _failed
    if time.monotonic() - when < _RETRY_SECONDS:
        raise DeviceError(words)
    cause = None
    try:
        from cuda.bindings import driver as module

        (status,) = module.cuInit(0)
        if not int(status):
            return module
        words = f"the CUDA driver does not start: {status.name}. `nvidia-smi` says more; kernels"
    except Exception as error:  # no libcuda: the bindings raise RuntimeError, ImportError or their own
        words, cause = f"no CUDA driver could be loaded ({type(error).__name__}: {error}). Kernels", error
    words += " run without a GPU on the emulator: with tilewright.emulator(): ..."
    _failed = time.monotonic(), words
    raise DeviceError(words) from cause


def driver_shortfall() -> str:
    """Why the driver cannot load what the installed NVRTC makes, and what to do; "" where it can.

    Raises DeviceError without a driver, MissingDependency without NVRTC.
    """
    version = nvrtc.version()
    made_for = int(version.partition(".")[0])
    serves, minor = divmod(int(check(driver().cuDriverGetVersion(), "reading the driver's version")), 1000)
    if serves >= made_for:
        return ""
    newer = f"driver {DRIVERS[made_for]} or newer" if made_for in DRIVERS else "a newer driver"
    older = "" if serves < min(DRIVERS) else ", or the compiler of CUDA 12 (docs/install.md)"
    return (
        f"The driver serves CUDA {serves}.{minor // 10}; NVRTC {version} makes machine code for CUDA {made_for}. "
        f"Install {newer}{older}."
    )


def check(result: tuple[Any, ...], what: str) -> Any:
    """The value of a driver call, or DeviceError naming the call and the driver's word."""
    status, *values = result
    if int(status):
        _, text = driver().cuGetErrorString(status)
        words = text.decode() if isinstance(text, bytes) else "unknown error"
        raise DeviceError(f"{what} failed: {status.name} ({words}).")
    return values[0] if len(values) == 1 else tuple(values)


def gpu_count() -> int:
    """The number of CUDA GPUs; 0 when there is no driver."""
    try:
        return int(check(driver().cuDeviceGetCount(), "counting GPUs"))
    except DeviceError:
        return 0


def why_no_gpu() -> str:
    """Why the first GPU cannot run kernels, as a clause; "" when it can."""
    try:
        driver()
    except DeviceError:
        return "No CUDA GPU here"
    if gpu_count() == 0:
        return "The CUDA driver sees no GPU"
    try:
        device(0)
    except TilewrightError as error:
        return str(error).split(". ")[0]
    return ""


def need_gpu(for_what: str, instead: str) -> None:
    """Raise DeviceError where no GPU can be used, saying for what it is needed, why, and what to do instead."""
    if why := why_no_gpu():
        raise DeviceError(f"{for_what} on a GPU, and there is none to use: {why}. {instead}")


def gpu_available() -> bool:
    return not why_no_gpu()


@dataclass(frozen=True)
class Device:
    """One GPU: its ordinal, what it is, and its primary context."""

    ordinal: int
    name: str
    handle: Any
    context: Any
    arch: Arch
    gpu: Gpu


@lru_cache(maxsize=16)
def device(ordinal: int) -> Device:
    """The GPU of this ordinal. Raises DeviceError when there is none, InvalidOperand for an unknown architecture."""
    api = driver()
    handle = check(api.cuDeviceGet(ordinal), f"opening GPU {ordinal}")
    name = check(api.cuDeviceGetName(100, handle), "reading the GPU's name").split(b"\0")[0].decode()

    def attribute(which: str) -> int:
        key = getattr(api.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{which}")
        return int(check(api.cuDeviceGetAttribute(key, handle), f"reading {which}"))

    try:
        arch = arch_of((attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR")))
    except InvalidOperand as error:
        raise InvalidOperand(f"GPU {ordinal} ({name}): {error}") from error
    gpu = _board(name, arch, attribute)
    context = check(api.cuDevicePrimaryCtxRetain(handle), f"opening a context on GPU {ordinal}")
    return Device(ordinal, name, handle, context, arch, gpu)


def _board(name: str, arch: Arch, attribute: Callable[[str], int]) -> Gpu:
    """The listed board of this name, else one made of what the driver says."""
    bandwidth = 2 * attribute("MEMORY_CLOCK_RATE") * attribute("GLOBAL_MEMORY_BUS_WIDTH") / 8 * 1e-6
    sm_count, l2 = attribute("MULTIPROCESSOR_COUNT"), attribute("L2_CACHE_SIZE")
    for gpu in GPUS.values():
        if gpu.arch is arch and is_named(gpu, name):
            return as_found(gpu, sm_count, bandwidth, l2)
    return unlisted(name, arch, sm_count, attribute("CLOCK_RATE") // 1000, bandwidth, l2)


class bound_to:
    """Make a device's context current inside; the caller's comes back afterwards."""

    def __init__(self, ordinal: int) -> None:
        self.context = device(ordinal).context
        self.pushed = False

    def __enter__(self) -> None:
        current = check(driver().cuCtxGetCurrent(), "reading the current context")
        if int(current) != int(self.context):
            check(driver().cuCtxPushCurrent(self.context), "entering the device's context")
            self.pushed = True

    def __exit__(self, *_: object) -> None:
        if self.pushed:
            driver().cuCtxPopCurrent()


class outside_captures:
    """Let this thread make calls inside that a running CUDA-graph capture, on whichever thread, would not survive.

    Memory and modules are given back when the last reference goes, which no caller times. Measured on an H100, driver
    580: cuMemFree and cuModuleUnload end a capture in global mode, from any thread, and in this mode they do not.
    """

    def __enter__(self) -> None:
        self.mode = self._exchange(driver().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)

    def __exit__(self, *_: object) -> None:
        self._exchange(self.mode)

    @staticmethod
    def _exchange(mode: Any) -> Any:
        return check(driver().cuThreadExchangeStreamCaptureMode(mode), "setting the thread's capture mode")


class Module:
    """A kernel's machine code on one GPU, and its function.

    It is unloaded some time after the last reference went, unless it was launched into a CUDA graph, which may run it
    at any later time. The driver waits for launches under way: measured, cuModuleUnload returns when all that was
    launched in the context before it has ended.
    """

    in_a_graph = True  # until it is loaded there is nothing to unload
    retired: ClassVar[list[tuple[int, Any]]] = []
    """(GPU, module) of those that nothing launches any more. No global: the interpreter's end clears those first."""

    def __init__(self, kernel: CompiledKernel, ordinal: int) -> None:
        api, self.ordinal = driver(), ordinal
        with bound_to(ordinal), outside_captures():  # another thread's: inside one of this stream's nothing is loaded
            try:
                self.handle = check(api.cuModuleLoadData(kernel.cubin), f"loading {kernel.source.name}")
            except DeviceError as error:
                raise DeviceError(f"{error} {driver_shortfall()}".rstrip()) from error
            self.in_a_graph = False
            self.shared_bytes = 48 * 1024
            """Dynamic shared memory that a block may have. It only grows: launches that were made ready rely on it."""
            self.function = check(
                api.cuModuleGetFunction(self.handle, kernel.entry.encode()), f"finding {kernel.entry} in the cubin"
            )
            self.first_parameter = _first_parameter(self.function)

    def __del__(self) -> None:
        if not self.in_a_graph:
            self.retired.append((self.ordinal, self.handle))


def _first_parameter(function: Any) -> int:
    """Return where a kernel's first parameter lies in its parameter buffer: not at 0 where one is aligned to 64 bytes.

    Parameters lie at an offset of a bank that is a multiple of 16 only, so a tensor map is moved up, and all with it.
    """
    try:
        status, offset, _ = driver().cuFuncGetParamInfo(function, 0)
    except (AttributeError, RuntimeError):  # drivers before CUDA 12.4
        return 0
    return 0 if int(status) else int(offset)  # without parameters it is an error


_modules: Recent[tuple[str, int], Module] = Recent(limits.kernels)
_load_lock = threading.Lock()
private_captures: set[int] = set()
"""Streams whose captured graphs end before the kernels in them do: jit.timing's."""


def load(kernel: CompiledKernel, ordinal: int, shared_bytes: int) -> Module:
    """The kernel on a GPU, allowed `shared_bytes` of dynamic shared memory. Loaded once per device while it is used."""
    key = (kernel.key, ordinal)
    with _load_lock:
        module = _modules.get(key)
        if module is None:
            if len(Module.retired) > limits.kernels() // 16:  # many at once, since each waits for the GPU
                _unload_retired()
            module = Module(kernel, ordinal)
            _modules.put(key, module)
        if shared_bytes > module.shared_bytes:
            which = driver().CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            check(
                driver().cuFuncSetAttribute(module.function, which, shared_bytes),
                f"asking for {shared_bytes} B of shared memory per block",
            )
            module.shared_bytes = shared_bytes
    return module


def _unload_retired() -> None:
    while Module.retired:
        ordinal, handle = Module.retired.pop()
        with bound_to(ordinal), outside_captures():
            check(driver().cuModuleUnload(handle), "unloading a module")


@lru_cache(maxsize=1024)
def _encoding(description: TensorMap) -> tuple[tuple[Any, Any], tuple[Any, ...]]:
    """Return what the driver takes for a description, before the address and after it."""
    cuda = driver()
    strides = description.strides or (16,)  # of one dimension none is read, but the driver wants an array
    return (
        (cuda.CUtensorMapDataType(DTYPES.index(description.dtype)), description.rank),
        (
            [cuda.cuuint64_t(size) for size in description.shape],
            [cuda.cuuint64_t(stride) for stride in strides],
            [cuda.cuuint32_t(size) for size in description.box],
            [cuda.cuuint32_t(step) for step in description.element_strides],
            cuda.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            cuda.CUtensorMapSwizzle(SWIZZLES.index(description.swizzle)),
            getattr(cuda.CUtensorMapL2promotion, f"CU_TENSOR_MAP_L2_PROMOTION_L2_{description.fetched}B"),
            cuda.CUtensorMapFloatOOBfill(OOB_FILLS.index(description.oob_fill)),
        ),
    )


def encode_for_driver(description: TensorMap, address: int, ordinal: int = 0) -> bytes:
    """Return the 128 bytes that the GPU of this ordinal takes for a tensor at an address.

    Raises InvalidOperand for an address that is not a multiple of 16, DeviceError where the driver refuses.
    """
    if address % 16:
        description.at(address)  # says so
    before, after = _encoding(description)
    with bound_to(ordinal):
        encoded = check(driver().cuTensorMapEncodeTiled(*before, address, *after), f"encoding {description}")
    return _WORDS.pack(*map(int, encoded.opaque))


_WORDS = struct.Struct("<16Q")
MOST_ENCODED = 4096
"""Tensor maps that are kept as GPUs take them, each of one address."""
_encoded: Recent[tuple[TensorMap, int, int], bytes] = Recent(lambda: MOST_ENCODED)


def encoded(description: TensorMap, address: int, ordinal: int) -> bytes:
    """See encode_for_driver, of the description at an address; the driver encodes what was not asked for of late."""
    key = (description, address, ordinal)
    data = _encoded.get(key)
    if data is None:
        data = encode_for_driver(description, address, ordinal)
        _encoded.put(key, data)
    return data


def _overlapping(launch: Launch, grid: tuple[int, int, int]) -> Any:
    """The driver's description of a launch whose blocks may start before the one ahead in the stream has ended."""
    api = driver()
    config = api.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid
    config.blockDimX, config.blockDimY, config.blockDimZ = launch.block
    config.sharedMemBytes = launch.shared_bytes
    allowed = api.CUlaunchAttribute()
    allowed.id = api.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    allowed.value.programmaticStreamSerializationAllowed = 1
    config.attrs, config.numAttrs = [allowed], 1
    return config


class Prepared:
    """A kernel loaded and shaped, ready for launches that differ in their parameter bytes alone."""

    def __init__(self, kernel: CompiledKernel, launch: Launch, ordinal: int) -> None:
        self.ordinal = ordinal
        self.kernel = kernel
        self.module = load(kernel, ordinal, launch.shared_bytes)
        self.function = self.module.function
        grid = launch.grid_on(device(ordinal).gpu)
        self.shape = (*grid, *launch.block, launch.shared_bytes)
        first = self.module.first_parameter
        size = first + len(launch.params)
        self._params = ctypes.create_string_buffer(bytes(first) + launch.params, -(-size // 8) * 8)
        self._size = ctypes.c_size_t(size)
        self.bytes = memoryview(self._params).cast("B")[first:]
        """The parameters of the next launch. Whoever writes them holds `lock` until it has started."""
        self.words, self.floats = self.bytes.cast("Q"), self.bytes.cast("f")
        # CU_LAUNCH_PARAM_BUFFER_POINTER = 1, _SIZE = 2, _END = 0: the whole packed buffer, whatever it declares
        address = ctypes.addressof
        self._extra = (ctypes.c_void_p * 5)(1, address(self._params), 2, address(self._size), 0)
        self._extra_address = address(self._extra)
        self._is_capturing = driver().cuStreamIsCapturing
        self._launch, self._launch_with = driver().cuLaunchKernel, driver().cuLaunchKernelEx
        self._config = (
            _overlapping(launch, grid) if launch.overlaps and device(ordinal).arch.can_overlap_grids else None
        )
        self._stream = -1
        self._placed: dict[int, tuple[TensorMap, int]] = {}
        """The tensor map at each byte of the parameters, and its address."""
        self.lock = threading.Lock()

    def launch(self, params: bytes, stream: int, maps: Sequence[tuple[int, TensorMap, int]]) -> None:
        """Start the kernel on `stream` (a CUstream as an integer). The device's context must be current.

        `maps`: as Launch.maps. A kernel whose maps were left out ends as an illegal instruction.
        """
        with self.lock:  # the driver reads the buffer during the call
            self.bytes[: len(params)] = params
            self._placed.clear()
            for at, description, address in maps:
                self.put_map(at, description, address)
            self.start(stream)

    def put_map(self, at: int, description: TensorMap, address: int) -> None:
        """Write a tensor map into the parameters. The caller holds `lock`."""
        asked = (description, address)
        if self._placed.get(at) != asked:  # a loop over the same memory writes it once
            self._placed.pop(at, None)
            self.bytes[at : at + MAP_BYTES] = encoded(description, address, self.ordinal)
            self._placed[at] = asked

    def start(self, stream: int) -> None:
        """Do as `launch`, with the parameters that are there. The caller holds `lock`."""
        if stream and not self.module.in_a_graph:  # the default stream, 0, is never captured
            self._note_capture(stream)
        if self._config is None:
            (status,) = self._launch(self.function, *self.shape, stream, 0, self._extra_address)
        else:
            if stream != self._stream:
                self._config.hStream = self._stream = stream
            (status,) = self._launch_with(self._config, self.function, 0, self._extra_address)
        if status:
            self._explain(status)

    def _note_capture(self, stream: int) -> None:
        """Keep the module loaded for good where the launch goes into a graph. Asking costs 0.8 us."""
        if stream not in private_captures and any(self._is_capturing(stream)):
            self.module.in_a_graph = True

    def _explain(self, status: Any) -> None:
        grid, block, shared = self.shape[:3], self.shape[3:6], self.shape[6]
        check(
            (status,),
            f"launching {self.kernel.source.name} (grid {grid}, block {block}, {shared} B of shared memory) "
            f"on GPU {self.ordinal}",
        )


_prepared: Recent[tuple[Any, ...], Prepared] = Recent(lambda: 256)
"""What executors launched: making one ready takes longer than launching it."""


class GpuExecutor:
    """Runs kernels on one GPU and one stream (0: the legacy default stream). See jit.launch.Executor."""

    runs_ptx = False

    def __init__(self, ordinal: int = 0, stream: int = 0) -> None:
        self.device = device(ordinal)
        self.ordinal, self.stream = ordinal, stream
        self.arch, self.gpu = self.device.arch, self.device.gpu

    def upload(self, data: np.ndarray, name: str = "") -> int:
        data = np.ascontiguousarray(data).view(np.uint8).reshape(-1)
        address = self.allocate(data.nbytes)
        self.write(address, data)
        return address

    def write(self, address: int, data: np.ndarray) -> None:
        """Copy raw bytes (a one-dimensional, contiguous uint8 array) to memory that is already there."""
        with bound_to(self.ordinal):
            self.copy_in(address, data.ctypes.data, data.nbytes)

    def copy_in(self, address: int, host: int, nbytes: int) -> None:
        """Copy bytes from an address on the host, in the order of the legacy default stream. The GPU's context must be
        current, here and for copy_out."""
        if nbytes:
            check(driver().cuMemcpyHtoD(address, host, nbytes), f"copying {nbytes} B to the GPU")

    def copy_out(self, host: int, address: int, nbytes: int) -> None:
        """Copy bytes to an address on the host, after what is in that stream; a fault of a kernel is raised here."""
        if nbytes:
            check(driver().cuMemcpyDtoH(host, address, nbytes), f"copying {nbytes} B from the GPU")

    def allocate(self, nbytes: int) -> int:
        """Device memory, not initialised. Raises DeviceError with the size when there is none left."""
        with bound_to(self.ordinal):
            return int(check(driver().cuMemAlloc(max(nbytes, 1)), f"allocating {nbytes} B on GPU {self.ordinal}"))

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
        with bound_to(self.ordinal):
            self.synchronize()
            self.copy_out(into.ctypes.data, address, into.nbytes)

    def download(self, address: int, nbytes: int) -> np.ndarray:
        data = np.empty(nbytes, np.uint8)
        self.read(address, data)
        return data

    def release(self, address: int) -> None:
        with bound_to(self.ordinal), outside_captures():
            check(driver().cuMemFree(address), "freeing device memory")

    def launch(self, kernel: CompiledKernel, launch: Launch) -> None:
        if 0 in launch.grid:
            return
        key = kernel.key, self.ordinal, replace(launch, params=b"", maps=()), len(launch.params)
        with bound_to(self.ordinal):
            prepared = _prepared.get(key)
            if prepared is None:
                prepared = Prepared(kernel, launch, self.ordinal)
                _prepared.put(key, prepared)
            prepared.launch(launch.params, self.stream, launch.maps)

    def synchronize(self) -> None:
        """Wait for the stream; a fault of a kernel on it is raised here."""
        with bound_to(self.ordinal):
            check(driver().cuStreamSynchronize(self.stream), "waiting for the GPU")


@lru_cache(maxsize=16)
def pool_of(ordinal: int) -> Pool:
    """The memory of a GPU that calls borrow."""
    executor = executor_for(ordinal)
    return Pool(executor.allocate, executor.release)


@lru_cache(maxsize=64)
def executor_for(ordinal: int = 0, stream: int = 0) -> GpuExecutor:
    """The executor of a GPU and a stream."""
    return GpuExecutor(ordinal, stream)
