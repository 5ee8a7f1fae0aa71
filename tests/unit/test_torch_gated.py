"""The gated feed-forward in one step of autograd, on a GPU whose memory is the host's."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from test_torch_warm import board, runs  # noqa: E402, F401

import tilewright.torch as tt  # noqa: E402
from tilewright.errors import InvalidOperand  # noqa: E402
from tilewright.gemm import gated as gates  # noqa: E402
from tilewright.torch import gated  # noqa: E402
from tilewright.torch.linear import ACTIVATIONS  # noqa: E402

F = torch.nn.functional


@pytest.fixture(autouse=True)
def forgotten():
    gated._calls.forget()
    gates.calls.forget()


@pytest.fixture
def on_gpu(board, monkeypatch):  # noqa: F811
    monkeypatch.setattr(gated, "runs_here", lambda x: True)
    return board


def values(asked=(True,) * 4, shape=(2, 8, 16)):
    sizes = (shape, (24, 16), (24, 16), (12, 24))
    return [torch.randn(size).requires_grad_(wanted) for size, wanted in zip(sizes, asked, strict=True)]


def by_torch(x, gate, up, down, activation):
    return F.linear(ACTIVATIONS[activation](F.linear(x, gate)) * F.linear(x, up), down)


def check(given, activation="silu", create=False):
    wanted = [one for one in given if one.requires_grad]
    both = []
    for f in (gated.gated_mlp, by_torch):
        result = f(*given, activation)
        torch.manual_seed(1)
        first = torch.autograd.grad(result, wanted, torch.randn(result.shape), create_graph=create)
        again = torch.autograd.grad(sum(one.square().sum() for one in first), wanted) if create else ()
        both.append((result, *first, *again))
    torch.testing.assert_close(*both, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "relu"])
@pytest.mark.parametrize("shape", [(8, 16), (2, 8, 16)], ids=str)
def test_gradients_are_torchs_and_the_next_step_plans_nothing(on_gpu, runs, activation, shape):  # noqa: F811
    on_gpu.activation = activation
    check(values(shape=shape), activation)
    assert len(runs) == 9
    given = values(shape=shape)
    first = len(runs)
    for _ in range(2):
        before = on_gpu.launches
        check(given, activation)
    assert len(runs) == first
    assert on_gpu.launches == before + 11


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_second_pass_without_gradients_plans_nothing(on_gpu, runs, monkeypatch, mode):  # noqa: F811
    fused = []
    whole = gated.matmul
    monkeypatch.setattr(gated, "matmul", lambda *given, **more: fused.append(more) or whole(*given, **more))
    given = values()
    with mode():
        tt.gated_mlp(*given)
        assert len(runs) == 2
        assert [sorted(more) for more in fused] == [["epilogue", "shut"]]
        for _ in range(2):
            before = on_gpu.launches
            tt.gated_mlp(*given)
            assert on_gpu.launches == before + 3
    assert (len(runs), len(fused)) == (2, 1)


@pytest.mark.parametrize("asked", [(1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1), (0, 1, 1, 1), (1, 0, 0, 1)])
def test_only_what_is_asked_for_is_differentiated(on_gpu, asked):
    for _ in range(2):
        check(values([bool(one) for one in asked]))


def test_gradients_of_gradients_and_batches_of_gradients_come_by_three_layers(on_gpu):
    check(values(), create=True)
    given = values()
    pulls = torch.randn(3, 2, 8, 12)
    found = [
        torch.autograd.grad(f(*given, "silu"), given, pulls, is_grads_batched=True) for f in (gated.gated_mlp, by_torch)
    ]
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-4)


def test_what_does_not_fit_is_told(on_gpu):
    with pytest.raises(InvalidOperand, match="'tanh' cannot gate"):
        tt.gated_mlp(*values(), activation="tanh")
    x, gate, up, down = values()
    with pytest.raises(InvalidOperand, match=r"gate .* and up \(1, .*\) differ"):
        tt.gated_mlp(x, gate, up[:1], down)  # torch would broadcast it


def test_on_the_host_it_is_three_layers_also_where_a_gpu_was_used_before(board):  # noqa: F811
    given = values()
    with pytest.warns(UserWarning, match="torch's own linear runs instead"):
        torch.testing.assert_close(tt.gated_mlp(*given), by_torch(*given, "silu"))
