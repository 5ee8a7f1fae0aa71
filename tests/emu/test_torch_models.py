"""Models of transformers, and of torch, by tilewright and back, on the emulator."""

from __future__ import annotations

import copy
import pickle
import sys

import pytest

import tilewright as tw
from tilewright.errors import InvalidOperand, MissingDependency

torch = pytest.importorskip("torch", reason="torch is not installed")
import tilewright.torch as tt  # noqa: E402
from tilewright.torch.models import transformers_attention  # noqa: E402


@pytest.fixture
def llama():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()


def tokens(rows: int = 2, length: int = 9):
    return torch.randint(0, 64, (rows, length), generator=torch.Generator().manual_seed(1))


def test_a_model_of_transformers_gives_the_same_by_tilewright_and_is_given_back(llama):
    ids, padding = tokens(), torch.ones(2, 9, dtype=torch.long)
    padding[0, :3] = 0
    with torch.no_grad():
        expected = [llama(ids, attention_mask=mask).logits for mask in (None, padding)]
    state = {name: value.data_ptr() for name, value in llama.state_dict().items()}
    changes = tt.accelerate(llama)
    assert len(changes.layers) == 15
    assert changes.attention == "sdpa"
    assert not changes.left
    assert str(changes) == (
        "15 linear layers by tilewright\n2 gated feed-forwards fused\nrotary positions of 2 modules in one pass\n"
        "5 norms by torch's fused kernel\nattention by tilewright, 'sdpa' before"
    )
    with torch.no_grad(), tw.emulator() as emulator:
        found = [llama(ids, attention_mask=mask).logits for mask in (None, padding)]
        assert len(emulator.results) >= 2 * (15 + 2)
    for out, right in zip(found, expected, strict=True):
        torch.testing.assert_close(out, right, rtol=0.02, atol=0.01)
    changes.undo()
    changes.undo()
    assert llama.config._attn_implementation == "sdpa"
    assert not any(isinstance(module, tt.Linear) for module in llama.modules())
    assert "precision" not in vars(llama.lm_head)
    assert state == {name: value.data_ptr() for name, value in llama.state_dict().items()}


def test_generation_with_a_cache_gives_the_same_tokens(llama):
    ids = tokens(1, 6)
    options = {"max_new_tokens": 3, "do_sample": False, "pad_token_id": 0}
    expected = llama.generate(ids, attention_mask=torch.ones_like(ids), **options)
    changes = tt.accelerate(llama)
    with tw.emulator():
        found = llama.generate(ids, attention_mask=torch.ones_like(ids), **options)
    assert torch.equal(found, expected)
    changes.undo()


def test_a_window_and_a_soft_cap_of_transformers_are_kept():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    config = transformers.Gemma2Config(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=32, sliding_window=4, attn_logit_softcapping=3.0,
        attn_implementation="eager",
    )  # fmt: skip
    model = transformers.Gemma2ForCausalLM(config).to(torch.bfloat16).eval()
    ids = tokens(1, 11)
    with torch.no_grad():
        expected = model(ids).logits
        tt.accelerate(model, where=lambda name, module: False)
        with tw.emulator() as emulator:
            found = model(ids).logits
            assert emulator.results
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)


def test_sinks_of_transformers_take_their_share_or_are_refused():
    """transformers' sdpa, where calls without a kernel go, leaves them out."""
    module, s_aux = torch.nn.Module(), torch.tensor([0.5, -1.0])
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, 2, rows, 32) for rows in (3, 5, 5))
    scores = torch.cat([query @ key.mT / 32**0.5, s_aux[None, :, None, None].expand(1, 2, 3, 1)], -1)
    expected = torch.softmax(scores, -1)[..., :-1] @ value
    with tw.emulator():
        given = [x.bfloat16() for x in (query, key, value)]
        found, _ = transformers_attention(module, *given, None, is_causal=False, s_aux=s_aux.bfloat16())
    torch.testing.assert_close(found.transpose(1, 2).float(), expected, rtol=0.03, atol=0.02)
    with pytest.raises(InvalidOperand, match=r"no kernel for torch\.float32, and transformers' sdpa leaves sinks out"):
        transformers_attention(module, query, key, value, None, is_causal=False, s_aux=s_aux)


def test_what_has_no_kernel_goes_to_transformers_own(llama):
    ids = tokens()
    with torch.no_grad():
        expected = llama.float()(ids).logits
        changes = tt.accelerate(llama)
        found = llama(ids).logits  # float32, and no GPU
    torch.testing.assert_close(found, expected)
    changes.undo()


def test_what_is_left_alone_is_told_with_its_reason():
    model = torch.nn.ModuleDict({
        "one": torch.nn.Linear(8, 8), "two": torch.nn.Linear(8, 8).double(), "three": torch.nn.Linear(8, 8),
        "many": torch.nn.MultiheadAttention(8, 2),
    })  # fmt: skip
    changes = tt.accelerate(model, where=lambda name, module: name != "three")
    assert changes.layers == ["one"]
    assert dict(changes.left) == {
        "two": "there is no kernel for torch.float64",
        "three": "`where` says no",
        "many": "nn.MultiheadAttention computes with its weights without calling a layer",
        "many.out_proj": "NonDynamicallyQuantizableLinear may compute something else than nn.Linear",
    }
    assert "left alone: two: there is no kernel for torch.float64" in str(changes)
    assert tt.accelerate(model, where=lambda name, module: name == "one").layers == []
    changes.undo()
    assert type(model["one"]) is torch.nn.Linear


def test_errors_say_what_was_given_and_what_is_missing(monkeypatch):
    with pytest.raises(InvalidOperand, match="model is a int; accelerate takes"):
        tt.accelerate(3)
    with pytest.raises(InvalidOperand, match="precision"):
        tt.accelerate(torch.nn.Linear(2, 2), precision="fp99")
    monkeypatch.setitem(sys.modules, "transformers.masking_utils", None)
    with pytest.raises(MissingDependency, match="needs transformers 4"):
        tt.register_with_transformers()


def test_a_layer_whose_weight_lies_turned_round_is_left_and_told():
    class Conv1D(torch.nn.Module):  # as transformers calls GPT-2's layers
        pass

    changes = tt.accelerate(torch.nn.Sequential(Conv1D()))
    assert changes.left == [("0", "Conv1D keeps its weight turned round, and is no nn.Linear")]


class Feed(torch.nn.Module):
    """As transformers' LlamaMLP."""

    def __init__(self, bias: bool = False) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (torch.nn.Linear(16, 24, bias=bias) for _ in range(2))
        self.down_proj, self.act_fn = torch.nn.Linear(24, 16, bias=bias), torch.nn.SiLU()

    def forward(self, x):
        down_proj = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))
        return down_proj


class Otherwise(Feed):
    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) + self.up_proj(x))


def test_feeds_that_say_what_llamas_says_are_fused_and_given_back(monkeypatch):
    from tilewright.torch import gated

    taken = []
    whole = gated.gated_mlp
    monkeypatch.setattr(gated, "gated_mlp", lambda *given: taken.append(given[4]) or whole(*given))
    model = torch.nn.Sequential(Feed(), Otherwise(), Feed(bias=True), Feed())
    x = torch.randn(4, 16)
    right = model(x)
    changes = tt.accelerate(model)
    assert changes.feeds == ["0", "3"]
    with tw.emulator():
        torch.testing.assert_close(model(x), right, rtol=1e-4, atol=1e-5)
        assert taken == ["silu", "silu"]
        other = copy.deepcopy(model)
        with torch.no_grad():
            other[0].down_proj.weight.zero_()
            other(x)
            torch.testing.assert_close(model(x), right, rtol=1e-4, atol=1e-5)
        assert taken == ["silu"] * 6
        assert not other[0](x).any(), "a copy computes with its own weights"
        torch.testing.assert_close(pickle.loads(pickle.dumps(model))(x), right, rtol=1e-4, atol=1e-5)
        del taken[:]
        seen = []
        model[3].up_proj.register_forward_hook(lambda *given: seen.append(1))
        model(x).sum().backward()
    assert taken == ["silu"]
    assert seen == [1]
    changes.undo()
    assert "forward" not in vars(model[0])
    torch.testing.assert_close(model(x), right)


class Norm(torch.nn.Module):
    """As transformers' models have it."""

    def __init__(self, size=32):
        super().__init__()
        self.weight, self.variance_epsilon = torch.nn.Parameter(torch.randn(size)), 1e-5

    def forward(self, hidden_states):
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * hidden_states.to(input_dtype)


class OnePlus(Norm):
    def forward(self, hidden_states):
        return (1.0 + self.weight) * super().forward(hidden_states)


def test_norms_that_say_what_llamas_say_are_torchs_fused_one(monkeypatch):
    taken = []
    whole = torch.nn.functional.rms_norm
    monkeypatch.setattr(torch.nn.functional, "rms_norm", lambda *given: taken.append(1) or whole(*given))
    model = torch.nn.ModuleList([Norm(), OnePlus(), torch.nn.RMSNorm(32)])
    changes = tt.accelerate(model)
    assert changes.norms == ["0"]
    assert "1 norms by torch's fused kernel" in str(changes)
    x = torch.randn(3, 32, requires_grad=True)
    right = Norm.forward(model[0], x)
    torch.testing.assert_close(model[0](x), right)
    seed = torch.randn(3, 32)
    given = (x, model[0].weight)
    torch.testing.assert_close(
        torch.autograd.grad(model[0](x), given, seed), torch.autograd.grad(right, given, seed), rtol=1e-4, atol=1e-5
    )
    assert len(taken) == 2
    assert model[0](x.bfloat16()).dtype == torch.float32, "two dtypes: as it is written"
    with torch.autocast("cpu", torch.bfloat16):
        model[0](x)
    assert len(taken) == 2
    changes.undo()
    model[0](x)
    assert len(taken) == 2
    model[0].to(torch.bfloat16)
    tt.accelerate(model)
    half = x.detach().bfloat16()
    torch.testing.assert_close(model[0](half), Norm.forward(model[0], half), rtol=0.02, atol=0.02)
    assert model[0](half).dtype == torch.bfloat16
