"""Calls that torch.jit.trace and make_fx record: what was recorded computes anew, of other operands too."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

import tilewright as tw  # noqa: E402
import tilewright.torch as tt  # noqa: E402
from tilewright.errors import InvalidOperand  # noqa: E402

B, BIAS = torch.randn(8, 8), torch.randn(8)
K, V = (torch.randn(1, 2, 16, 64).bfloat16() for _ in range(2))
GROUPS, ENDS = torch.randn(2, 8, 8).bfloat16(), torch.tensor([3, 8], dtype=torch.int32)
STARTS = torch.tensor([0, 16], dtype=torch.int32)


def rows(x):
    return x[0].transpose(0, 1)


CALLS = {
    "matmul": lambda x: tw.matmul(x, B),
    "fused": lambda x: tw.matmul(x, B, bias=BIAS, activation="silu", residual=x),
    "function": lambda x: tw.matmul(x, B, epilogue=lambda acc, r: acc * 2 + r, r=B),
    "numbers": lambda x: tw.matmul(x, B, c=B, alpha=2.0, beta=-1.0),
    "batch": lambda x: tw.matmul(x[None], B),
    "Linear": tt.Linear(8, 8, activation="silu").requires_grad_(False),
    "grouped": lambda x: tw.grouped_matmul(x.bfloat16(), GROUPS, ENDS),
    "quantize": lambda x: tw.quantize(x, "e4m3")[1],
    "attention": lambda q: tw.attention(q, K, V, is_causal=True, return_lse=True)[0],
    "varlen": lambda q: tw.attention_varlen(rows(q), rows(K), rows(V), STARTS, STARTS),
    "sdpa": lambda q: tt.scaled_dot_product_attention(q, K, V),
}


def record(how, function, x):
    if how == "jit":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of extents that are read, and of torch.jit itself
            return torch.jit.trace(function, (x,), check_trace=False)
    return make_fx(function, pre_dispatch=how == "before dispatch")(x)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: tw.matmul(x, B), lambda x: tw.matmul(B, x), lambda x: tw.attention(x, K, V),
        lambda x: tw.attention(K, x, V), lambda x: tw.grouped_matmul(x, GROUPS, ENDS), lambda x: tw.quantize(x, "e4m3"),
        lambda x: tw.attention_varlen(x, rows(K), rows(V), STARTS, STARTS),
    ],
)  # fmt: skip
def test_a_proxy_of_torch_fx_is_named_as_such(function):
    with tw.emulator(), pytest.raises(InvalidOperand, match=r"is a value that torch.fx traces \(Proxy\)"):
        torch.fx.symbolic_trace(function)


def operands(name):
    attends = name in ("attention", "varlen", "sdpa")
    return [torch.randn(1, 2, 16, 64).bfloat16() if attends else torch.randn(8, 8) for _ in range(2)]


@pytest.mark.parametrize("how", ["jit", "fx", "before dispatch"])
@pytest.mark.parametrize("name", CALLS)
def test_a_record_computes_what_was_recorded_of_other_operands(name, how):
    x, other = operands(name)
    with tw.emulator(), torch.no_grad():
        recorded = record(how, CALLS[name], x)
        torch.testing.assert_close(recorded(other), CALLS[name](other), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("how", ["jit", "fx", "before dispatch"])
@pytest.mark.parametrize(
    ("named", "function"),
    [
        ("out", lambda x: tw.matmul(x, B, out=torch.empty(8, 8))),
        ("verify", lambda x: tw.matmul(x, B, verify=True)),
        ("score", lambda x: tw.attention(x, K, V, score=lambda s, b, h, i, j: s - i)),
        ("attention_backward", lambda x: tw.attention_backward(x, x, K, V, x, torch.randn(1, 2, 16))[0]),
    ],
)
def test_what_cannot_be_recorded_is_named(how, named, function):
    x = operands("attention" if named in ("score", "attention_backward") else "matmul")[0]
    with tw.emulator(), pytest.raises(InvalidOperand, match=named):
        record(how, function, x)
