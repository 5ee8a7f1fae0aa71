"""Kernels on a GPU, through the CUDA driver. Works in each device's primary context, beside torch, CuPy and JAX."""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from ..errors import DeviceError
from ..gpus import GPUS, Arch, Gpu, arch_of
from .compile import CompiledKernel
from .launch import Launch


@lru_cache(maxsize=1)
def driver() -> Any:
    """cuda.bindings' driver module, initialised. Raises DeviceError when there is no driver or no GPU."""
    try:
        from cuda.bindings import driver as module

        (status,) = module.cuInit(0)
    except Exception as error:  # no libcuda: the bindings raise RuntimeError, ImportError or their own
        raise DeviceError(
            f"no CUDA driver could be loaded ({type(error).__name__}: {error}). Kernels run without a GPU on the "
            "emulator: with tilewright.emulator(): ..."
        ) from error
    if int(status):
        raise DeviceError(
            f"the CUDA driver does not start: {status.name}. `nvidia-smi` says more; kernels run without a GPU on the "
            "emulator: with tilewright.emulator(): ..."
        )
    return module


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


def gpu_available() -> bool:
    return gpu_count() > 0


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

    arch = arch_of((attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR")))
    known = [gpu for gpu in GPUS.values() if gpu.name.lower() in name.lower()]
    gpu = with_sms(known[0], attribute("MULTIPROCESSOR_COUNT")) if known else _unlisted(name, arch, attribute)
    context = check(api.cuDevicePrimaryCtxRetain(handle), f"opening a context on GPU {ordinal}")
    return Device(ordinal, name, handle, context, arch, gpu)


def with_sms(listed: Gpu, sm_count: int) -> Gpu:
    """A listed GPU as it was found: boards of one name differ in their SMs (an H100 PCIe has 114 of the SXM's 132, a
    MIG slice fewer), and blocks that stay are as many as there are SMs."""
    if sm_count == listed.sm_count:
        return listed
    return replace(listed, sm_count=sm_count, bf16_tflops=listed.bf16_tflops * sm_count / listed.sm_count)


def _unlisted(name: str, arch: Arch, attribute: Any) -> Gpu:
    """A GPU that arch.py does not list: rates from the driver's clocks and bus; no tensor peak is known."""
    bandwidth = 2 * attribute("MEMORY_CLOCK_RATE") * attribute("GLOBAL_MEMORY_BUS_WIDTH") / 8 * 1e-6
    mhz = attribute("CLOCK_RATE") // 1000
    return Gpu(
        name, arch, attribute("MULTIPROCESSOR_COUNT"), mhz, bandwidth, attribute("L2_CACHE_SIZE"), 0.0, "the driver"
    )


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


_functions: dict[tuple[str, int], Any] = {}
_load_lock = threading.Lock()


def load(kernel: CompiledKernel, ordinal: int, shared_bytes: int) -> Any:
    """The kernel's function on a GPU, allowed `shared_bytes` of dynamic shared memory. Loaded once a device."""
    key = (kernel.key, ordinal)
    with _load_lock:
        function = _functions.get(key)
        if function is None:
            api = driver()
            with bound_to(ordinal):
                module = check(api.cuModuleLoadData(kernel.cubin), f"loading {kernel.source.name}")
                function = check(
                    api.cuModuleGetFunction(module, kernel.entry.encode()), f"finding {kernel.entry} in the cubin"
                )
            _functions[key] = function
        if shared_bytes > 48 * 1024:
            which = driver().CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            check(
                driver().cuFuncSetAttribute(function, which, shared_bytes),
                f"asking for {shared_bytes} B of shared memory a block",
            )
    return function


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
        self.function = load(kernel, ordinal, launch.shared_bytes)
        grid = launch.grid_on(device(ordinal).gpu)
        self.shape = (*grid, *launch.block, launch.shared_bytes)
        size = len(launch.params)
        self._params = ctypes.create_string_buffer(launch.params, -(-size // 8) * 8)
        self._size = ctypes.c_size_t(size)
        self.bytes = memoryview(self._params).cast("B")
        """The parameters of the next launch. Whoever writes them holds `lock` until it has started."""
        self.words = self.bytes.cast("Q")
        # CU_LAUNCH_PARAM_BUFFER_POINTER = 1, _SIZE = 2, _END = 0: the whole packed buffer, whatever it declares
        address = ctypes.addressof
        self._extra = (ctypes.c_void_p * 5)(1, address(self._params), 2, address(self._size), 0)
        self._extra_address = address(self._extra)
        self._launch, self._launch_with = driver().cuLaunchKernel, driver().cuLaunchKernelEx
        self._config = (
            _overlapping(launch, grid) if launch.overlaps and device(ordinal).arch.can_overlap_grids else None
        )
        self._stream = -1
        self.lock = threading.Lock()

    def launch(self, params: bytes, stream: int) -> None:
        """Start the kernel on `stream` (a CUstream as an integer). The device's context must be current."""
        with self.lock:  # the driver reads the buffer during the call
            self.bytes[: len(params)] = params
            self.start(stream)

    def start(self, stream: int) -> None:
        """As `launch`, with the parameters that are there. The caller holds `lock`."""
        if self._config is None:
            (status,) = self._launch(self.function, *self.shape, stream, 0, self._extra_address)
        else:
            if stream != self._stream:
                self._config.hStream = self._stream = stream
            (status,) = self._launch_with(self._config, self.function, 0, self._extra_address)
        if status:
            self._explain(status)

    def _explain(self, status: Any) -> None:
        grid, block, shared = self.shape[:3], self.shape[3:6], self.shape[6]
        check(
            (status,),
            f"launching {self.kernel.source.name} (grid {grid}, block {block}, {shared} B of shared memory) "
            f"on GPU {self.ordinal}",
        )


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
        if data.nbytes:
            with bound_to(self.ordinal):
                check(
                    driver().cuMemcpyHtoD(address, data.ctypes.data, data.nbytes), f"copying {data.nbytes} B to the GPU"
                )

    def allocate(self, nbytes: int) -> int:
        """Device memory, not initialised. Raises DeviceError with the size when there is none left."""
        with bound_to(self.ordinal):
            return int(check(driver().cuMemAlloc(max(nbytes, 1)), f"allocating {nbytes} B on GPU {self.ordinal}"))

    def download(self, address: int, nbytes: int) -> np.ndarray:
        data = np.empty(nbytes, np.uint8)
        with bound_to(self.ordinal):
            self.synchronize()
            if nbytes:
                check(driver().cuMemcpyDtoH(data.ctypes.data, address, nbytes), f"copying {nbytes} B from the GPU")
        return data

    def release(self, address: int) -> None:
        with bound_to(self.ordinal):
            check(driver().cuMemFree(address), "freeing device memory")

    def launch(self, kernel: CompiledKernel, launch: Launch) -> None:
        if 0 in launch.grid:
            return
        with bound_to(self.ordinal):
            Prepared(kernel, launch, self.ordinal).launch(launch.params, self.stream)

    def synchronize(self) -> None:
        """Wait for the stream; a fault of a kernel on it is raised here."""
        with bound_to(self.ordinal):
            check(driver().cuStreamSynchronize(self.stream), "waiting for the GPU")


@lru_cache(maxsize=64)
def executor_for(ordinal: int = 0, stream: int = 0) -> GpuExecutor:
    """The executor of a GPU and a stream."""
    return GpuExecutor(ordinal, stream)
