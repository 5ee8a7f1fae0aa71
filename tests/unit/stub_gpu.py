"""An H200 whose memory is the host's and whose kernels do nothing: what calls cost the host, where there is no GPU.

`python tests/unit/stub_gpu.py [words of calls]` prints microseconds per call. The driver's own time is missing from
them: compare figures of one machine only, before a change and after it.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import struct
import sys
import time
import types
from collections.abc import Iterator
from unittest import mock

import numpy as np
from fake_driver import Board

from tilewright.epilogue.evaluate import evaluate
from tilewright.gemm import warm, warm_host, warm_layer
from tilewright.gemm.gated import expressions
from tilewright.gemm.params import LAYOUTS
from tilewright.jit import device as device_module
from tilewright.jit import device_calls, gpu_executor, loaded, staging
from tilewright.plan.tables import results_changed
from tilewright.run import libraries


class HostBoard(Board):
    """The driver. Launches are counted."""

    def __init__(self) -> None:
        super().__init__("NVIDIA H200", (9, 0), 132, 50 << 20, 3201000, 6144, 1980000, 13000)
        self.launches = 0
        self._memory: dict[int, object] = {}
        self._handles = itertools.count(1)
        self.names: dict[int, str] = {}
        """The entries of functions."""
        self.CUpointer_attribute = types.SimpleNamespace(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL=1)
        self.CUevent_flags = types.SimpleNamespace(CU_EVENT_DISABLE_TIMING=2)
        self.CUstreamCaptureMode = types.SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED=2)
        self.CUstreamCaptureStatus = types.SimpleNamespace(CU_STREAM_CAPTURE_STATUS_NONE=0)
        self.CUfunction_attribute = types.SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8)
        self.CUlaunchAttributeID = types.SimpleNamespace(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION=6)

    CUlaunchConfig = types.SimpleNamespace

    @staticmethod
    def CUlaunchAttribute():
        return types.SimpleNamespace(value=types.SimpleNamespace())

    def cuCtxGetCurrent(self):
        return 0, 1

    def cuModuleLoadData(self, cubin):
        return 0, next(self._handles)

    def cuModuleUnload(self, module):
        return (0,)

    def cuModuleGetFunction(self, module, name):
        self.names[handle := next(self._handles)] = name.decode()
        return 0, handle

    def cuFuncGetParamInfo(self, function, which):
        return 0, 0, 8

    def cuFuncSetAttribute(self, function, which, value):
        return (0,)

    def cuThreadExchangeStreamCaptureMode(self, mode):
        return 0, mode

    def cuStreamIsCapturing(self, stream):
        return 0, 0

    def cuStreamSynchronize(self, stream):
        return (0,)

    def cuLaunchKernel(self, function, *arguments):
        self.launches += 1
        return (0,)

    def cuLaunchKernelEx(self, config, function, parameters, extra):
        return self.cuLaunchKernel(function, extra)

    cuuint32_t = cuuint64_t = CUtensorMapDataType = CUtensorMapSwizzle = CUtensorMapFloatOOBfill = int
    CUtensorMapInterleave = types.SimpleNamespace(CU_TENSOR_MAP_INTERLEAVE_NONE=0)
    CUtensorMapL2promotion = types.SimpleNamespace(
        CU_TENSOR_MAP_L2_PROMOTION_L2_128B=2, CU_TENSOR_MAP_L2_PROMOTION_L2_256B=3
    )

    def cuTensorMapEncodeTiled(self, dtype, rank, address, *rest):
        return 0, types.SimpleNamespace(opaque=[address] + [0] * 15)

    def cuGetErrorString(self, status):
        return 0, b"of the stub"

    def cuMemAlloc(self, nbytes):
        held = ctypes.create_string_buffer(nbytes + 256)
        address = -(-ctypes.addressof(held) // 256) * 256
        self._memory[address] = held
        return 0, address

    def cuMemHostAlloc(self, nbytes, flags):
        return self.cuMemAlloc(nbytes)

    def cuMemFreeHost(self, address):
        return self.cuMemFree(address)

    def cuMemFree(self, address):
        del self._memory[address]
        return (0,)

    def cuMemcpyHtoD(self, to, source, nbytes):
        ctypes.memmove(to, source, nbytes)
        return (0,)

    cuMemcpyDtoH = cuMemcpyHtoD

    def cuMemcpyHtoDAsync(self, to, source, nbytes, stream):
        return self.cuMemcpyHtoD(to, source, nbytes)

    cuMemcpyDtoHAsync = cuMemcpyHtoDAsync

    def cuPointerGetAttribute(self, which, address):
        return 0, 0

    def cuEventCreate(self, flags):
        return 0, next(self._handles)

    def cuEventRecord(self, event, stream):
        return (0,)

    def cuEventDestroy(self, event):
        return (0,)

    def cuStreamWaitEvent(self, stream, event, flags):
        return (0,)


def _matrix(address, rows, cols, row_step, col_step, dtype=np.float32):
    item = np.dtype(dtype).itemsize
    strides = (item * row_step, item * col_step)
    low, high = (sum(f(0, (e - 1) * s) for e, s in zip((rows, cols), strides, strict=True)) for f in (min, max))
    memory = (ctypes.c_uint8 * (high - low + item)).from_address(address + low)
    return np.ndarray((rows, cols), dtype, memory, -low, strides)


def _signs(seed: int, count: int) -> np.ndarray:
    return np.random.default_rng(seed).choice([-1.0, 1.0], count)


class MultiplyingBoard(HostBoard):
    """Each launch of a rung is the product that GemmArgs describe, in fp32; the kernels of Freivalds' check run too."""

    activation = "silu"
    """Of a gate."""
    wrong = 0.0
    """What is added to a product's first element."""

    def cuLaunchKernel(self, function, *arguments):
        _, place, *_ = (ctypes.c_void_p * 5).from_address(arguments[-1])
        entry = self.names[function]
        layout = LAYOUTS[entry][1] if entry in LAYOUTS else "<4Q12q3i2f"
        numbers = struct.unpack(layout, ctypes.string_at(place, struct.calcsize(layout)))
        own = {"sign_rows": self._sign_rows, "check_rows": self._check_rows, "gated": self._gated}
        own.get(entry, self._product)(*numbers)
        return super().cuLaunchKernel(function)

    def _product(self, a, b, c, out, *rest):
        steps, (m, n, k, alpha, beta) = rest[4:12], rest[12:]
        product = alpha * (_matrix(a, m, k, *steps[:2]) @ _matrix(b, k, n, *steps[2:4]))
        if c:
            product += beta * _matrix(c, m, n, *steps[4:6])
        product[0, 0] += self.wrong
        _matrix(out, m, n, *steps[6:8])[...] = product

    def _gated(self, grad, inside, other, first, second, count):
        value, *gradients = expressions(self.activation)
        read = {name: _matrix(at, 1, count, count, 1) for name, at in (("grad", grad), ("other", other)) if at}
        acc = _matrix(inside, 1, count, count, 1).astype(np.float64)
        made = [(value, first)] if not grad else list(zip(gradients, (first, second), strict=True))
        for recorded, to in made:
            _matrix(to, 1, count, count, 1)[...] = evaluate(recorded.nodes, acc, read)[0]

    def _sign_rows(self, b, sums, _, __, row, col, k, n, seed):
        _matrix(sums, k, 2, 2, 1, np.float64)[:, 0] = _matrix(b, k, n, row, col) @ _signs(seed, n)

    def _check_rows(self, a, c, out, sums, multiples, *rest):
        (a_row, a_col, c_row, c_col, row, col), (m, n, k, seed, alpha, beta) = rest[4:10], rest[10:]
        signs, signed = _signs(seed, n), _matrix(sums, k, 2, 2, 1, np.float64)[:, 0]
        expected = alpha * (_matrix(a, m, k, a_row, a_col) @ signed)
        if c and beta:
            expected += beta * (_matrix(c, m, n, c_row, c_col) @ signs)
        off = np.abs(_matrix(out, m, n, row, col) @ signs - expected)
        _matrix(multiples, m, 1, 1, 1, np.float64)[:, 0] = off / 1e-2


@contextlib.contextmanager
def stub_gpu(board: HostBoard | None = None) -> Iterator[HostBoard]:
    """Let this process find the GPU inside. What was made ready for it is forgotten afterwards."""
    found = board or HostBoard()

    def driver() -> HostBoard:
        return found

    with contextlib.ExitStack() as stack:
        for module in (device_module, device_calls, staging):
            stack.enter_context(mock.patch.object(module, "driver", driver))
        _forget()
        stack.callback(_forget)
        yield found


_REMEMBERED = (
    warm.calls, warm.view_calls, warm_host.numpy_calls, warm_layer.layer_calls, warm_layer.derivative_calls,
)  # fmt: skip


def _forget() -> None:
    from tilewright.gemm import rows
    from tilewright.jit.limits import Recent
    from tilewright.run import ready

    for cached in (device_module.device, gpu_executor.executor_for, gpu_executor.pool_of, loaded._encoding):
        cached.cache_clear()
    loaded._modules = Recent(loaded._modules._limit)
    gpu_executor._prepared = Recent(gpu_executor._prepared._limit)
    loaded.Module.retired.clear()
    staging._idle.clear()
    ready._kept = Recent(ready._kept._limit)
    rows._weights = Recent(rows._weights._limit)
    results_changed()  # what other modules remember goes at their next call
    for calls in _REMEMBERED:
        calls.forget()


class Interface:
    """Host memory as an array on the GPU, by __cuda_array_interface__ alone."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.__cuda_array_interface__ = {
            "shape": array.shape, "typestr": array.dtype.str, "data": (array.ctypes.data, False), "strides": None,
            "version": 3,
        }  # fmt: skip


def aligned(*shape: int, dtype=np.float32) -> np.ndarray:
    """Zeros whose address is a multiple of 256, as a GPU's are."""
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    held = np.zeros(nbytes + 256, np.uint8)
    start = -held.ctypes.data % 256
    return held[start : start + nbytes].view(dtype).reshape(shape)


class OnGpu(np.ndarray):
    """An array of a library that has a warm path of its own: memory of the GPU, which here is the host's."""


class Library(libraries.Arrays):
    """As libraries.CupyArrays, of OnGpu."""

    kind = "cupy"
    types = (OnGpu,)

    def ordinal(self, x):
        return 0

    def address(self, x):
        return x.ctypes.data

    def stream(self, ordinal):
        return 0

    def device(self):
        return 0

    def signature(self, x):
        return x.shape, x.strides, x.ctypes.data & 15, x.dtype.char

    def pair(self, a, b):
        return self.signature(a) + self.signature(b)

    def rows(self, a, b):
        if a.ndim != 2 and not a.flags.c_contiguous:
            return None
        return a.shape[:-1], (a.ndim, a.shape[-1], a.strides[-2:], a.ctypes.data & 15, a.dtype.char, self.signature(b))

    def new(self, shape, strides, dtype):
        return empty_on_gpu(*shape)

    def mark_written(self, x):
        """It keeps no versions."""

    def scratch(self, nbytes):
        held = aligned(nbytes // 4 + 1)
        return held, held.ctypes.data


def empty_on_gpu(*shape: int) -> np.ndarray:
    return aligned(*shape).view(OnGpu)


def _calls():
    """What is timed, by name: each a function without arguments."""
    import tilewright as tw

    a, b, out = (Interface(aligned(64, 64)) for _ in range(3))
    x, y = (np.ones((64, 64), np.float32) for _ in range(2))
    weight = Interface(aligned(512, 512, dtype=np.float16))
    rows = [Interface(aligned(m, 512, dtype=np.float16)) for m in range(257, 257 + 7 * 200, 7)]
    results = [Interface(aligned(len(r.array), 512, dtype=np.float16)) for r in rows]
    new = iter(zip(rows, results, strict=True))

    def unseen():
        given, result = next(new)
        return tw.matmul(given, weight, out=result)

    return {
        "interface": lambda: tw.matmul(a, b, out=out),
        "interface, new result": lambda: tw.matmul(a, b),
        "numpy": lambda: tw.matmul(x, y),
        "new m": unseen,
    }


def _best(call, rounds: int = 7, calls: int = 200) -> float:
    """The least mean of a few rounds, by the process's own time: other processes count less."""
    found = []
    for _ in range(rounds):
        start = time.process_time()
        for _ in range(calls):
            call()
        found.append((time.process_time() - start) / calls)
    return min(found) * 1e6


def main(wanted: list[str]) -> None:
    with stub_gpu():
        for name, call in _calls().items():
            if wanted and not any(word in name for word in wanted):
                continue
            for _ in range(40 if name == "new m" else 3):
                call()
            print(f"{name:28} {_best(call, *((8, 20) if name == 'new m' else (7, 200))):8.1f} us", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
