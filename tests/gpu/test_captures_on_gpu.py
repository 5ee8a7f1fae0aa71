"""CUDA graphs: what is given back during a capture leaves it whole, what is in a graph stays loaded, steps train."""

from __future__ import annotations

import gc

import numpy as np

import tilewright as tw
from tilewright.arrays.device_array import DeviceArray
from tilewright.jit import limits, loaded
from tilewright.jit.device import bound_to, check, driver
from tilewright.jit.gpu_executor import executor_for


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
        loaded._unload_retired()
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
    loaded._unload_retired()
    out.zero_()
    graph.replay()
    torch.testing.assert_close(out, a @ b, rtol=1e-3, atol=1e-3)


def _small_model(torch, layer, attend):
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v, self.o, self.up, self.down = (layer(64, 64) for _ in range(6))

        def forward(self, x):
            q, k, v = (one(x).view(2, 32, 2, 32).transpose(1, 2) for one in (self.q, self.k, self.v))
            x = x + self.o(attend(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape))
            return x + self.down(torch.nn.functional.silu(self.up(x)))

    return torch.nn.Sequential(Block(), Block()).to("cuda", torch.bfloat16)


def _models(torch):
    import tilewright.torch as tt

    functional = torch.nn.functional
    torch.manual_seed(0)
    ours = _small_model(torch, tt.Linear, tt.scaled_dot_product_attention)
    theirs = _small_model(torch, torch.nn.Linear, functional.scaled_dot_product_attention)
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs, torch.randn(2, 32, 64, device="cuda", dtype=torch.bfloat16)


def test_a_model_made_into_graphed_callables_has_torchs_gradients(gpu, torch):
    ours, theirs, x = _models(torch)
    graphed = torch.cuda.make_graphed_callables(ours, (x.clone().requires_grad_(),))
    for _ in range(2):
        found = []
        for model in (graphed, theirs):
            model.zero_grad()
            given = x.clone().requires_grad_()
            result = model(given)
            result.float().square().mean().backward()
            found.append([result.detach(), given.grad, *(one.grad.clone() for one in model.parameters())])
        for mine, its in zip(*found, strict=True):
            assert (mine.float() - its.float()).norm() <= 0.03 * its.float().norm() + 1e-6
        x = torch.randn_like(x)


def test_training_steps_replayed_as_one_graph_go_down_as_torchs_do(gpu, torch):
    *models, x = _models(torch)
    losses = []
    for model in models:
        optimizer = torch.optim.SGD(model.parameters(), 0.5)

        def step(model=model, optimizer=optimizer):
            optimizer.zero_grad(set_to_none=False)
            loss = (model(x).float() - 1).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = step()
        losses.append([])
        for _ in range(5):
            graph.replay()
            losses[-1].append(loss.item())
    assert losses[0][-1] < losses[0][0]
    np.testing.assert_allclose(*losses, rtol=0.02)
