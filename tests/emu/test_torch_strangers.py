"""Layers and attention in the hands of torch's other tools: transforms, tracers, odd tensors, patched functions."""

from __future__ import annotations

import copy
import io
import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.nn import functional  # noqa: E402

import tilewright as tw  # noqa: E402
import tilewright.torch as tt  # noqa: E402
from tilewright.errors import InvalidOperand  # noqa: E402

close = torch.testing.assert_close


@pytest.fixture(autouse=True)
def emulator():
    with tw.emulator():
        yield


def rows(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


@pytest.mark.filterwarnings("ignore:tilewright")
def test_tensors_without_memory_give_shapes():
    meta = {"device": "meta", "dtype": torch.float16}
    assert tt.Linear(16, 8, **meta)(torch.empty(3, 16, **meta)).shape == (3, 8)
    q = torch.empty(1, 2, 8, 16, **meta)
    assert tt.scaled_dot_product_attention(q, q, q).shape == (1, 2, 8, 16)


def test_functions_put_in_the_place_of_torchs_do_not_call_themselves(monkeypatch):
    attend, linear = functional.scaled_dot_product_attention, functional.linear
    monkeypatch.setattr(functional, "scaled_dot_product_attention", tt.scaled_dot_product_attention)
    monkeypatch.setattr(functional, "linear", tt.linear)
    q, x = rows(1, 2, 8, 16), rows(4, 16).double()
    monkeypatch.setattr(sys.modules["tilewright.torch.attention"], "_said", set())
    with pytest.warns(RuntimeWarning, match="torch.float32 is not taken here"):
        close(functional.scaled_dot_product_attention(q, q, q), attend(q, q, q))
    with pytest.warns(UserWarning, match="no kernel for torch.float64"):
        close(functional.linear(x, x), linear(x, x))


@pytest.mark.filterwarnings("ignore:tilewright")
def test_transforms_of_layers_and_of_attention_run_torchs_own():
    layer, x, q = tt.Linear(16, 8, activation="silu"), rows(4, 16), rows(1, 2, 8, 16, dtype=torch.float16)
    right = functional.silu(functional.linear(x, layer.weight, layer.bias))
    close(torch.func.vmap(layer)(x), right)
    found = torch.func.grad(lambda p: torch.func.functional_call(layer, p, (x,)).sum())(dict(layer.named_parameters()))
    close(found["weight"], torch.autograd.grad(right.sum(), layer.weight)[0])
    seen = torch.func.vmap(lambda q: tt.scaled_dot_product_attention(q, q, q))(q[None])
    close(seen[0], functional.scaled_dot_product_attention(q, q, q))
    weight, bias, ones = layer.weight, layer.bias, torch.ones_like(x)
    _, tangent = torch.func.jvp(layer, (x,), (ones,))
    close(tangent, torch.func.jvp(lambda x: functional.silu(functional.linear(x, weight, bias)), (x,), (ones,))[1])


def test_a_traced_model_keeps_the_layer_as_one_node():
    model = torch.nn.Sequential(tt.Linear(16, 8, activation="relu"), torch.nn.ReLU())
    traced = torch.fx.symbolic_trace(model)
    assert [node.target for node in traced.graph.nodes if node.op == "call_function"] == [tt.linear]
    close(traced(rows(4, 16)), model(rows(4, 16)))


@pytest.mark.filterwarnings("ignore:tilewright", "ignore:The PyTorch API of nested tensors")
def test_nested_rows_take_torchs_own():
    layer = tt.Linear(16, 8)
    nested = torch.nested.nested_tensor([rows(3, 16), rows(5, 16)], layout=torch.jagged)
    close(layer(nested).unbind()[1], functional.linear(rows(5, 16), layer.weight, layer.bias))


def test_autocast_takes_attention_of_float32_to_a_kernel():
    q = rows(1, 2, 8, 16)
    with torch.autocast("cpu", torch.bfloat16):
        found = tt.scaled_dot_product_attention(q, q, q)
        half = q.bfloat16()
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, tw.attention(half, half, half))


def test_a_copied_pickled_or_saved_layer_keeps_what_it_promises():
    layer = tt.Linear(16, 8, activation="gelu", precision="tf32", deterministic=True)
    saved = io.BytesIO()
    torch.save(layer, saved)
    saved.seek(0)
    for other in (copy.deepcopy(layer), torch.load(saved, weights_only=False)):
        assert repr(other) == repr(layer)
        assert torch.equal(other(rows(4, 16)), layer(rows(4, 16)))
    torch.nn.Linear(16, 8).load_state_dict(layer.state_dict())


def test_a_call_inside_vmap_is_refused_in_words():
    b = rows(8, 5)
    with pytest.raises(InvalidOperand, match="instead of vmap pass batches"):
        torch.func.vmap(lambda x: tw.matmul(x, b))(rows(2, 4, 8))
