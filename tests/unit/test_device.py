"""The driver's side without a GPU: when modules and memory are given back, and what a driver that fails costs."""

from __future__ import annotations

import contextlib
import gc
import sys
import types
from contextlib import nullcontext
from functools import lru_cache

import numpy as np
import pytest
from fake_driver import board, old_board

import tilewright as tw
from tilewright.arrays.device_array import DeviceArray
from tilewright.cli import main
from tilewright.errors import DeviceError, InvalidOperand
from tilewright.gemm.family import plan_for
from tilewright.gemm.problem import GemmProblem
from tilewright.gpus import ARCHS, GPUS, arch_of
from tilewright.jit import device as device_module
from tilewright.jit import gpu_executor, limits, loaded, nvrtc
from tilewright.jit.gpu_executor import GpuExecutor
from tilewright.jit.launch import Launch
from tilewright.jit.loaded import Prepared

GLOBAL, THREAD_LOCAL, RELAXED = range(3)


class Status(int):
    name = "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"


class FakeDriver:
    """Answers what loading, launching and freeing ask; `given_back` names each thing with the thread's capture mode."""

    CUstreamCaptureMode = types.SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED=RELAXED)

    def __init__(self) -> None:
        self.mode = GLOBAL
        self.loaded = 0
        self.modes_of_loads: set[int] = set()
        self.capturing: set[int] = set()
        self.given_back: list[tuple[str, int, int]] = []
        self.refuses = False
        self.version = 13000

    def cuThreadExchangeStreamCaptureMode(self, mode):
        self.mode, before = mode, self.mode
        return 0, before

    def cuModuleLoadData(self, cubin):
        self.loaded += 1
        self.modes_of_loads.add(self.mode)
        return Status(222 if self.refuses else 0), self.loaded

    def cuModuleGetFunction(self, module, name):
        return 0, f"function {module}"

    def cuModuleUnload(self, module):
        self.given_back.append(("module", module, self.mode))
        return (0,)

    def cuMemAlloc(self, nbytes):
        return 0, 4096

    def cuMemFree(self, address):
        self.given_back.append(("memory", address, self.mode))
        return (0,)

    def cuStreamIsCapturing(self, stream):
        return 0, int(stream in self.capturing)

    def cuDriverGetVersion(self):
        return 0, self.version

    def cuGetErrorString(self, status):
        return 0, b"the words of the driver"

    def cuLaunchKernel(self, function, *arguments):
        return (0,)

    cuLaunchKernelEx = cuLaunchKernel


@pytest.fixture
def api(monkeypatch) -> FakeDriver:
    api = FakeDriver()
    where = types.SimpleNamespace(gpu=GPUS["H200"], arch=ARCHS["sm_90a"], context=1)
    monkeypatch.setattr(device_module, "driver", lambda: api)
    monkeypatch.setattr(device_module, "device", lambda ordinal: where)
    monkeypatch.setattr(device_module, "bound_to", lambda ordinal: nullcontext())
    monkeypatch.setattr(loaded, "_modules", limits.Recent(limits.kernels))
    monkeypatch.setattr(loaded.Module, "retired", [])
    monkeypatch.setattr(gpu_executor, "pool_of", lru_cache(gpu_executor.pool_of.__wrapped__))
    monkeypatch.setattr(gpu_executor, "executor_for", lru_cache(gpu_executor.executor_for.__wrapped__))
    return api


def prepared(number: int) -> Prepared:
    source = types.SimpleNamespace(name=f"kernel{number}.cu")
    kernel = types.SimpleNamespace(key=f"key{number}", cubin=b"", entry="kernel", source=source)
    return Prepared(kernel, Launch((1, 1, 1), (32, 1, 1), bytes(8)), 0)


def modules_unloaded(api: FakeDriver) -> list[int]:
    gc.collect()
    return sorted(module for kind, module, _ in api.given_back if kind == "module")


def test_modules_used_longest_ago_are_unloaded_once_nothing_launches_them(api, monkeypatch):
    monkeypatch.setenv(limits.KERNELS_VARIABLE, "2")
    held = prepared(1)
    for number in range(2, 8):
        prepared(number).launch(b"", 0, ())
    unloaded = modules_unloaded(api)
    assert {2, 3, 4} <= set(unloaded)
    assert held.module.handle not in unloaded, "it may still be launched"
    assert api.loaded - len(unloaded) <= 2 + 1 + 1, "the bound, the one that is held, the one that waits for the next"
    assert prepared(7).module.handle == 7, "still loaded"
    assert all(mode == RELAXED for _, _, mode in api.given_back), "so that no capture ends"
    assert api.mode == GLOBAL, "the thread's mode is as it was"


def test_loading_a_kernel_ends_no_other_threads_capture(api):
    prepared(1)
    assert api.modes_of_loads == {RELAXED}
    assert api.mode == GLOBAL


def test_a_module_that_was_launched_into_a_graph_stays_loaded(api, monkeypatch):
    monkeypatch.setenv(limits.KERNELS_VARIABLE, "1")
    api.capturing = {7}
    prepared(1).launch(b"", 7, ())
    prepared(2).launch(b"", 8, ())
    for number in range(3, 8):
        prepared(number).launch(b"", 0, ())
    unloaded = modules_unloaded(api)
    assert 1 not in unloaded, "the graph may be replayed at any time"
    assert 2 in unloaded


def test_graphs_of_the_stopwatch_do_not_keep_modules(api, monkeypatch):
    monkeypatch.setenv(limits.KERNELS_VARIABLE, "1")
    api.capturing = {7}
    monkeypatch.setattr(loaded, "private_captures", {7})
    for number in range(1, 5):
        prepared(number).launch(b"", 7, ())
    assert 1 in modules_unloaded(api)


def test_memory_that_the_garbage_collector_frees_ends_no_capture(api):
    executor = GpuExecutor()
    array = DeviceArray(executor, (4, 4), "f32")
    del array
    gc.collect()
    assert api.given_back == [("memory", 4096, RELAXED)]  # the driver, not the array, waits for whoever still reads it
    assert api.mode == GLOBAL


def test_an_array_may_go_while_another_is_given_memory(api):
    first = DeviceArray(GpuExecutor(), (4, 4), "f32")
    pool = gpu_executor.pool_of(0)
    with pool._guard:  # as when the garbage collector runs in the middle of Pool.take
        del first
        gc.collect()
    assert api.given_back == [("memory", 4096, RELAXED)]
    assert pool._sizes == {}


@pytest.mark.parametrize(
    ("version", "said"),
    [(12080, ["serves CUDA 12.8", "driver 580 or newer", "CUDA 12 "]), (11080, ["serves CUDA 11.8"]), (13000, [])],
)
def test_a_driver_that_is_too_old_for_the_compiler_is_named_where_loading_fails(api, monkeypatch, version, said):
    monkeypatch.setattr(device_module.nvrtc, "version", lambda: "13.0")
    api.refuses, api.version = True, version
    with pytest.raises(DeviceError, match=r"loading kernel1\.cu failed: CUDA_ERROR_UNSUPPORTED_PTX_VERSION") as raised:
        prepared(1)
    assert all(words in str(raised.value) for words in said)
    assert ("The driver serves" in str(raised.value)) == bool(said)
    assert ("CUDA 12 (" in str(raised.value)) == (version == 12080), "only where the driver can run it"


def test_a_driver_that_does_not_start_is_not_asked_again_at_once(monkeypatch):
    asked = []

    class Bindings:
        @staticmethod
        def cuInit(flags):
            asked.append(flags)
            return (Status(100),)

    now = [1000.0]
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", Bindings)
    monkeypatch.setattr("cuda.bindings.driver", Bindings, raising=False)
    monkeypatch.setattr(device_module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(device_module, "_failed", (-1e9, ""))
    start = device_module.driver.__wrapped__
    for _ in range(3):
        with pytest.raises(DeviceError, match="the CUDA driver does not start"):
            start()
    assert len(asked) == 1
    now[0] += 60
    with pytest.raises(DeviceError):
        start()
    assert len(asked) == 2, "it may have been installed meanwhile"


# --- which architecture, which board ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("capability", "target"),
    [((8, 0), "sm_80"), ((8, 7), "sm_87"), ((8, 9), "sm_89"), ((9, 0), "sm_90a"), ((10, 0), "sm_100"),
     ((10, 1), "sm_100"), ((10, 3), "sm_103"), ((11, 0), "sm_110"), ((12, 0), "sm_120"), ((12, 1), "sm_121")],
)  # fmt: skip
def test_each_compute_capability_gets_the_newest_target_whose_machine_code_it_runs(capability, target):
    assert arch_of(capability).name == target


@pytest.mark.parametrize("capability", [(7, 5), (9, 5), (13, 0)])
def test_a_compute_capability_without_a_target_is_refused_with_those_that_are_supported(capability):
    with pytest.raises(InvalidOperand, match=r"is not supported\. Supported: sm_80, .*sm_121\. The emulator"):
        arch_of(capability)


def test_every_target_of_the_compiler_from_8_0_on_is_known():
    _, targets = nvrtc.bindings().nvrtcGetSupportedArchs()
    known = {10 * arch.compute_capability[0] + arch.compute_capability[1] for arch in ARCHS.values()}
    assert {target for target in targets if target >= 80} <= known


def test_a_listed_board_is_taken_with_what_its_driver_says(monkeypatch):
    board(monkeypatch, "NVIDIA H200", (9, 0), 132, 60 << 20, 3201000, 6144, 1980000)
    assert device_module.device(0).gpu == GPUS["H200"]
    board(monkeypatch, "NVIDIA A100-SXM4-80GB", (8, 0), 108, 40 << 20, 1593000, 5120, 1410000)
    found = device_module.device(0).gpu
    assert found.name == "A100"
    assert found.dram_gb_s == pytest.approx(2039, abs=1), "that of 40 GB has 1555"
    board(monkeypatch, "NVIDIA H100 PCIe", (9, 0), 114, 50 << 20, 1593000, 5120, 1755000)
    found = device_module.device(0).gpu
    assert (found.sm_count, round(found.dram_gb_s)) == (114, 2039)


def test_a_board_that_is_not_listed_is_what_its_driver_says(monkeypatch):
    board(monkeypatch, "NVIDIA B200", (10, 0), 148, 126 << 20, 3996000, 8192, 1965000)
    found = device_module.device(0)
    assert found.arch is ARCHS["sm_100"]
    assert (found.gpu.name, found.gpu.sm_count, found.gpu.boost_mhz, found.gpu.l2) == (
        "NVIDIA B200",
        148,
        1965,
        126 << 20,
    )
    assert found.gpu.dram_gb_s == pytest.approx(8184, abs=1)
    assert found.gpu.peak_tflops("bf16") == 0, "not known: never quoted"


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_a_product_is_planned_where_the_driver_knows_no_memory_clock(monkeypatch, dtype):
    board(monkeypatch, "NVIDIA GB10", (12, 1), 48, 0, 0, 0, 0)
    gpu = device_module.device(0).gpu
    assert gpu.arch is ARCHS["sm_121"]
    assert plan_for(GemmProblem.dense(1024, 512, 768, dtype=dtype), gpu).config is not None


def test_a_gpu_that_is_too_old_is_no_usable_gpu_and_python_says_what_is_supported(monkeypatch):
    old_board(monkeypatch)
    assert device_module.why_no_gpu() == "GPU 0 (Tesla T4): compute capability 7.5 is not supported"
    assert not device_module.gpu_available()
    with pytest.raises(InvalidOperand, match=r"GPU 0 \(Tesla T4\).* 7\.5 is not supported\. Supported: sm_80"):
        device_module.device(0)
    with pytest.raises(DeviceError, match=r"Tesla T4.*with tilewright\.emulator"):
        tw.matmul(np.ones((4, 4), np.float32), np.ones((4, 4), np.float32))


@pytest.mark.parametrize("ladder", ["gemm", "attention"])
def test_the_ladders_fall_back_to_the_emulator_on_a_gpu_that_is_too_old_and_say_so(ladder, monkeypatch, capsys):
    old_board(monkeypatch)
    size = ["--size", "32"] if ladder == "gemm" else ["--seqlen", "32"]
    monkeypatch.setattr(
        sys, "argv", ["tilewright", "ladder", ladder, "--rungs", ladder[:1].replace("g", "f") + "01", *size]
    )
    with contextlib.suppress(SystemExit):
        main()
    said = " ".join("".join(capsys.readouterr()).split())
    assert "GPU 0 (Tesla T4): compute capability 7.5 is not supported: every rung runs on the emulator" in said
