"""The CUDA driver and its GPUs. Works in each device's primary context, next to torch, CuPy and JAX."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..errors import DeviceError, InvalidOperand, TilewrightError
from ..gpus import GPUS, Arch, Gpu, arch_of, as_found, is_named, unlisted
from . import nvrtc

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


_FORKED = "CUDA does not survive a fork, and this process was forked from one that used it"


def _refuse_after_fork(loaded: Any = driver) -> None:
    global _failed
    if loaded.cache_info().currsize:
        loaded.cache_clear()
        _failed = math.inf, f"{_FORKED}. Start it with multiprocessing.get_context('spawn'), or before the first call."


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_refuse_after_fork)


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
    except DeviceError as error:
        return _FORKED if str(error).startswith(_FORKED) else "No CUDA GPU here"
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
