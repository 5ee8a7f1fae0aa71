"""What is given back while a CUDA graph is captured leaves the capture whole; what is in a graph stays loaded."""

from __future__ import annotations

import gc

import numpy as np

import tilewright as tw
from tilewright.arrays.device_array import DeviceArray
from tilewright.jit import device as device_module
from tilewright.jit import limits
from tilewright.jit.device import bound_to, check, driver, executor_for


def test_memory_and_modules_given_back_during_a_capture_leave_it_whole(gpu, monkeypatch):
    monkeypatch.setenv(limits.KERNELS_VARIABLE, "1")
    small = np.ones((8, 8), np.float32)
    for number in (1, 2, 3):  # their modules: nothing launches them any more
        tw.matmul(small, np.ones((8, 8), np.float32), rung=f"f{number:02}")
    array = DeviceArray(executor_for(0), (1024,), "f32")
    api = driver()
    with bound_to(0):
        stream = check(api.cuStreamCreate(int(api.CUstream_flags.CU_STREAM_NON_BLOCKING)), "making a stream")
        mode = api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
        check(api.cuStreamBeginCapture(stream, mode), "starting a capture")
        del array
        gc.collect()
        device_module._unload_retired()
        graph = check(api.cuStreamEndCapture(stream), "ending a capture")
        check(api.cuGraphDestroy(graph), "closing a graph")
        check(api.cuStreamDestroy(stream), "closing a stream")


def test_a_graph_is_replayed_right_after_its_kernel_was_dropped_from_memory(gpu, torch, monkeypatch):
    monkeypatch.setenv(limits.KERNELS_VARIABLE, "1")
    a, b = (torch.randn(256, 256, device="cuda") for _ in range(2))
    out = torch.empty_like(a)
    tw.matmul(a, b, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tw.matmul(a, b, out=out)
    for number in range(1, 10):
        tw.matmul(a, b, rung=f"f{number:02}")
    device_module._unload_retired()
    out.zero_()
    graph.replay()
    torch.testing.assert_close(out, a @ b, rtol=1e-3, atol=1e-3)
