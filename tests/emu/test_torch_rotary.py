"""Rotary positions in torch on the emulator: values, gradients, and models that say them as transformers do."""

from __future__ import annotations

import copy
import functools
import pickle
import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import tilewright as tw  # noqa: E402
import tilewright.torch as tt  # noqa: E402
from tilewright.lab.block_models import apply_rotary_pos_emb, rotate_half  # noqa: E402

module = sys.modules["tilewright.torch.rotary"]


def values(dtype=torch.float32, batch=2, rows=5, d=32, entries=1):
    q, k = (torch.randn(batch, rows, heads, d, dtype=dtype).transpose(1, 2).requires_grad_() for heads in (3, 1))
    cos, sin = (torch.randn(entries, rows, d, dtype=dtype) for _ in range(2))
    return q, k, cos, sin


@pytest.fixture
def turned(monkeypatch):
    """The turns that kernels made."""
    made = []
    whole = module.turn
    monkeypatch.setattr(module, "turn", lambda *given: made.append(1) or whole(*given))
    return made


@pytest.mark.parametrize("entries", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_values_and_gradients_are_torchs(turned, dtype, entries):
    q, k, cos, sin = values(dtype, entries=entries)
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 0.02, "atol": 0.03}
    with tw.emulator():
        found = tt.rotary(q, k, cos, sin)
        seeds = [torch.randn_like(one) for one in found]
        gradients = torch.autograd.grad(found, (q, k), seeds)
    assert len(turned) == 4
    right = apply_rotary_pos_emb(q, k, cos, sin)
    torch.testing.assert_close(found, right, **tolerance)
    assert found[0].stride() == right[0].stride()
    torch.testing.assert_close(gradients, torch.autograd.grad(right, (q, k), seeds), **tolerance)


def test_gradients_of_gradients_and_of_one_result_alone():
    q, k, cos, sin = values()
    with tw.emulator():
        (alone,) = torch.autograd.grad(tt.rotary(q, k, cos, sin)[1].sum(), k)
        torch.testing.assert_close(alone, torch.autograd.grad(apply_rotary_pos_emb(q, k, cos, sin)[1].sum(), k)[0])
        for f in (tt.rotary, apply_rotary_pos_emb):
            (first,) = torch.autograd.grad(f(q, k, cos, sin)[0].square().sum(), q, create_graph=True)
            (second,) = torch.autograd.grad(first.square().sum(), q)
            last = second if f is tt.rotary else last  # noqa: F821
        torch.testing.assert_close(last, second, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", ["float64", "another device's", "cos has gradients", "odd", "heads first"])
def test_what_no_kernel_takes_is_computed_by_torch(turned, case):
    q, k, cos, sin = values(torch.float64 if case == "float64" else torch.float32)
    if case == "cos has gradients":
        cos.requires_grad_()
    if case == "heads first":
        q, k = q.contiguous(), k.contiguous()
    if case == "odd":
        cos = cos.transpose(-1, -2).contiguous().transpose(-1, -2)  # kernels take it, by a copy
    if case == "another device's":
        found = tt.rotary(q, k, cos, sin)
    else:
        with tw.emulator():
            found = tt.rotary(q, k, cos, sin)
    assert bool(turned) == (case in ("odd", "heads first"))
    torch.testing.assert_close(found, apply_rotary_pos_emb(q, k, cos, sin))


class Attends(torch.nn.Module):
    def forward(self, q, k, cos, sin, scale=1.0):
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        return scale * q, k


def rotate_otherwise(x):
    return torch.cat((-x[..., 1::2], x[..., ::2]), -1)


def test_modules_that_say_what_transformers_say_are_turned_in_one_pass_and_given_back(turned):
    model = torch.nn.ModuleList([Attends(), torch.nn.Identity(), Attends()])
    changes = tt.accelerate(model)
    assert changes.turns == ["0", "2"]
    assert "rotary positions of 2 modules in one pass" in str(changes)
    q, k, cos, sin = values()
    right = Attends()(q, k, cos, sin, scale=2.0)
    with tw.emulator():
        torch.testing.assert_close(model[0](q, k, cos, sin, scale=2.0), right)
        assert len(turned) == 2
        torch.testing.assert_close(copy.deepcopy(model)[2](q, k, cos, sin, scale=2.0), right)
        assert len(turned) == 4
        torch.testing.assert_close(pickle.loads(pickle.dumps(model))[0](q, k, cos, sin, scale=2.0), right)
        half = model[0](q.bfloat16(), k.bfloat16(), cos, sin)
        assert [one.dtype for one in half] == [torch.float32] * 2, "as torch's operations have it"
        assert len(turned) == 4
        changes.undo()
        assert "forward" not in vars(model[0])
        model[0](q, k, cos, sin)
    assert len(turned) == 4


def test_modules_that_say_something_else_are_left(monkeypatch):
    monkeypatch.setitem(Attends.forward.__globals__, "rotate_half", rotate_otherwise)
    module._turned_forward.cache_clear()
    assert not tt.accelerate(Attends()).turns
    module._turned_forward.cache_clear()
    monkeypatch.setitem(Attends.forward.__globals__, "rotate_half", rotate_half)
    assert not tt.accelerate(torch.nn.Linear(2, 2)).turns


class Decorated(Attends):
    def decorated(forward):
        if forward is None:
            unbound = None  # never: a closure's cell that stays empty

        @functools.wraps(forward)
        def outer(self, *given):
            return forward(self, *given) if len(given) else unbound

        return outer

    forward = decorated(Attends.forward)


def test_a_decorator_with_a_name_that_nothing_is_bound_to_is_turned(turned):
    model = Decorated()
    assert tt.accelerate(model).turns == [""]
    q, k, cos, sin = values()
    with tw.emulator():
        torch.testing.assert_close(model(q, k, cos, sin), Attends()(q, k, cos, sin))
    assert len(turned) == 2


def test_a_model_of_transformers_is_turned():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    ids = torch.randint(0, 64, (2, 7))

    def step():
        model.zero_grad()
        loss = model(ids, labels=ids).loss
        loss.backward()
        return loss.detach(), {name: one.grad.clone() for name, one in model.named_parameters()}

    right = step()
    changes = tt.accelerate(model)
    assert changes.turns == [f"model.layers.{n}.self_attn" for n in range(2)]
    with tw.emulator():
        torch.testing.assert_close(step(), right, rtol=1e-3, atol=1e-4)
    changes.undo()
    torch.testing.assert_close(step(), right)
