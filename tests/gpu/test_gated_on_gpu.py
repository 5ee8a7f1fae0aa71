"""The gated feed-forward on a GPU, against float64."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.gpu

import tilewright.torch as tt  # noqa: E402
from tilewright.gemm import gated as gates  # noqa: E402

F = torch.nn.functional
BY_TORCH = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
}
DTYPES = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def values(dtype, rows, features, hidden):
    def draw(*size, scale=1.0):
        x = scale * torch.randn(size, device="cuda", dtype=torch.float64)
        return x.to(dtype).requires_grad_()

    gate, up = (draw(hidden, features, scale=features**-0.5) for _ in range(2))
    return [draw(*rows, features), gate, up, draw(features, hidden, scale=hidden**-0.5)]


def by_torch(x, gate, up, down, activation):
    return F.linear(BY_TORCH[activation](F.linear(x, gate)) * F.linear(x, up), down)


def assert_near(found, right, dtype):
    error = (found.double() - right).abs().max() / right.abs().max()
    assert error <= DTYPES[dtype], f"off by {float(error):.3g} of the largest"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", BY_TORCH)
@pytest.mark.parametrize("sizes", [((64,), 128, 256), ((2, 33), 72, 136), ((5,), 33, 77)], ids=str)
def test_values_and_gradients_are_right_the_first_time_and_from_memory(sizes, activation, dtype):
    for _ in range(3):
        given = values(dtype, *sizes)
        exact = [one.detach().double().requires_grad_() for one in given]
        right = by_torch(*exact, activation)
        pull = torch.randn_like(right).to(dtype)
        with torch.no_grad():
            assert_near(tt.gated_mlp(*given, activation), right, dtype)
        result = tt.gated_mlp(*given, activation)
        assert_near(result, right, dtype)
        wanted = torch.autograd.grad(right, exact, pull.double())
        for found, one in zip(torch.autograd.grad(result, given, pull), wanted, strict=True):
            assert_near(found, one, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_bit_around_the_results_stays_and_odd_addresses_give_the_same(dtype):
    count = (1 << 20) + 3
    held = [torch.randn(count + 8, device="cuda").to(dtype) for _ in range(3)]
    apart = [one[1 : count + 1] for one in held]
    together = [one.clone() for one in apart]
    found, wanted = ((gates.gate(*x[1:], "silu"), *gates.gate_gradients(*x, "gelu")) for x in (apart, together))
    for left, right in zip(found, wanted, strict=True):
        assert torch.equal(left, right)


def test_a_step_is_replayed_from_a_graph_with_new_numbers():
    given = values(torch.bfloat16, (96,), 128, 192)
    pull = torch.randn(96, 128, device="cuda", dtype=torch.bfloat16)

    def step():
        result = tt.gated_mlp(*given)
        return (result, *torch.autograd.grad(result, given, pull))

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    for _ in range(2):
        with torch.no_grad():
            for one in given:
                one.copy_(torch.randn_like(one) / 8)
        graph.replay()
        for one, right in zip(found, step(), strict=True):
            torch.testing.assert_close(one, right)


def test_what_hooks_lay_out_otherwise_is_taken():
    given = values(torch.bfloat16, (40,), 64, 96)
    pull = torch.randn(40, 64, device="cuda", dtype=torch.bfloat16)
    wanted = torch.autograd.grad(tt.gated_mlp(*given), given, pull)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.t().contiguous().cpu(), lambda x: x.cuda().t()):
        result = tt.gated_mlp(*given)
    for one, right in zip(torch.autograd.grad(result, given, pull), wanted, strict=True):
        torch.testing.assert_close(one, right, rtol=0.02, atol=0.02)
