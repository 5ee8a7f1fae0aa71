"""Kernels loaded on a GPU, and launches of them made ready: parameters, tensor maps and what graphs keep."""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Sequence
from ctypes import addressof
from functools import lru_cache
from typing import Any, ClassVar

from ..errors import DeviceError, InvalidOperand
from . import device, limits
from .compile import CompiledKernel
from .launch import Launch
from .limits import Recent
from .params import MAP_BYTES
from .tensor_map import DTYPES, OOB_FILLS, SWIZZLES, TensorMap


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
        api, self.ordinal = device.driver(), ordinal
        with device.bound_to(ordinal), device.outside_captures():  # other threads'
            try:
                self.handle = device.check(api.cuModuleLoadData(kernel.cubin), f"loading {kernel.source.name}")
            except DeviceError as error:
                raise DeviceError(f"{error} {device.driver_shortfall()}".rstrip()) from error
            self.in_a_graph = False
            self.shared_bytes = 48 * 1024
            """Dynamic shared memory that a block may have. It only grows: launches that were made ready rely on it."""
            self.function = device.check(
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
        status, offset, _ = device.driver().cuFuncGetParamInfo(function, 0)
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
            which = device.driver().CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            device.check(
                device.driver().cuFuncSetAttribute(module.function, which, shared_bytes),
                f"asking for {shared_bytes} B of shared memory per block",
            )
            module.shared_bytes = shared_bytes
    return module


def _unload_retired() -> None:
    while Module.retired:
        ordinal, handle = Module.retired.pop()
        with device.bound_to(ordinal), device.outside_captures():
            device.check(device.driver().cuModuleUnload(handle), "unloading a module")


@lru_cache(maxsize=1024)
def _encoding(description: TensorMap) -> tuple[tuple[Any, Any], tuple[Any, ...]]:
    """Return what the driver takes for a description, before the address and after it."""
    cuda = device.driver()
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

    Raises InvalidOperand for an address that is not a multiple of 16 and for a map of images, which is for the emulator
    only; DeviceError where the driver refuses.
    """
    if description.corners is not None:
        raise InvalidOperand("tensor map: maps of images (im2col) run on the emulator only; encode it by your own code")
    if address % 16:
        description.at(address)  # says so
    before, after = _encoding(description)
    with device.bound_to(ordinal):
        opaque = device.driver().cuTensorMapEncodeTiled(*before, address, *after)
        encoded = device.check(opaque, f"encoding {description}")
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


def _overlapping(launch: Launch, grid: tuple[int, int, int], shared: int) -> Any:
    """The driver's description of a launch whose blocks may start before the one ahead in the stream has ended."""
    api = device.driver()
    config = api.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid
    config.blockDimX, config.blockDimY, config.blockDimZ = launch.block
    config.sharedMemBytes = shared
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
        gpu = device.device(ordinal).gpu
        grid, shared = launch.grid_on(gpu), launch.shared_on(gpu, lambda: kernel.resources)
        self.module = load(kernel, ordinal, shared)
        self.function = self.module.function
        self.shape = (*grid, *launch.block, shared)
        first = self.module.first_parameter
        size = first + len(launch.params)
        self._params = ctypes.create_string_buffer(bytes(first) + launch.params, -(-size // 8) * 8)
        self._size = ctypes.c_size_t(size)
        self.bytes = memoryview(self._params).cast("B")[first:]
        """The parameters of the next launch. Whoever writes them holds `lock` until it has started."""
        self.words, self.floats = self.bytes.cast("Q"), self.bytes.cast("f")
        # CU_LAUNCH_PARAM_BUFFER_POINTER = 1, _SIZE = 2, _END = 0: the whole packed buffer, whatever it declares
        self._extra = (ctypes.c_void_p * 5)(1, addressof(self._params), 2, addressof(self._size), 0)
        overlaps = launch.overlaps and gpu.arch.can_overlap_grids
        self.start = self._starter(_overlapping(launch, grid, shared) if overlaps else None)
        """Do as `launch` on a stream, with the parameters that are there. The caller holds `lock`."""
        self.placed: dict[int, tuple[TensorMap, int]] = {}
        """The tensor map at each byte of the parameters, and its address. A loop over the same memory writes one."""
        self.lock = threading.Lock()

    def launch(self, params: bytes, stream: int, maps: Sequence[tuple[int, TensorMap, int]]) -> None:
        """Start the kernel on `stream` (a CUstream as an integer). The device's context must be current.

        `maps`: as Launch.maps. A kernel whose maps were left out ends as an illegal instruction.
        """
        with self.lock:  # the driver reads the buffer during the call
            self.bytes[: len(params)] = params
            self.placed.clear()
            for at, description, address in maps:
                self.put_map(at, description, address)
            self.start(stream)

    def put_map(self, at: int, description: TensorMap, address: int) -> None:
        """Write a tensor map into the parameters. The caller holds `lock`."""
        self.placed.pop(at, None)
        self.bytes[at : at + MAP_BYTES] = encoded(description, address, self.ordinal)
        self.placed[at] = description, address

    def _starter(self, config: Any) -> Callable[[int], None]:
        """`start`, with what it reads at hand (run.warm says why). It holds no reference to self, which holds it.

        `config`: as `_overlapping`; None: the launch does not overlap.
        """
        api, module, function, shape = device.driver(), self.module, self.function, self.shape
        extra, said = addressof(self._extra), (self.kernel.source.name, shape, self.ordinal)
        launch, launch_with, is_capturing = api.cuLaunchKernel, api.cuLaunchKernelEx, api.cuStreamIsCapturing
        current = -1

        def start(stream: int) -> None:
            nonlocal current
            # The default stream, 0, is never captured. Asking costs 0.8 us.
            if stream and not module.in_a_graph and stream not in private_captures and any(is_capturing(stream)):
                module.in_a_graph = True  # kept loaded for good
            if config is None:
                (status,) = launch(function, *shape, stream, 0, extra)
            else:
                if stream != current:
                    config.hStream = current = stream
                (status,) = launch_with(config, function, 0, extra)
            if status:
                _explain(status, *said)

        return start


def _explain(status: Any, name: str, shape: tuple[int, ...], ordinal: int) -> None:
    """Raises DeviceError for a launch that the driver refused."""
    grid, block, shared = shape[:3], shape[3:6], shape[6]
    device.check(
        (status,), f"launching {name} (grid {grid}, block {block}, {shared} B of shared memory) on GPU {ordinal}"
    )
