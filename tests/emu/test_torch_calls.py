"""tw.matmul and tw.attention on tensors that require a gradient, what is written behind torch's back, eager layers."""

from __future__ import annotations

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import tilewright as tw  # noqa: E402
import tilewright.torch as tt  # noqa: E402
from tilewright.errors import InvalidOperand  # noqa: E402
from tilewright.torch.layer import TilewrightLinear, new_layer  # noqa: E402

OPTIONS = (None, False, False, None, None, "ieee")


def leaves(*shapes, dtype=torch.float32):
    return [torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes]


def gradients_of(function, *tensors):
    for x in tensors:
        x.grad = None
    result = function(*tensors)
    (result.float() ** 2).sum().backward()
    return result.detach(), [x.grad.clone() for x in tensors]


def test_matmul_differentiates_by_our_kernels_as_it_is_called():
    a, b, bias = leaves((40, 33), (33, 50), (50,))
    with tw.emulator() as emulator:
        ours = gradients_of(lambda a, b, bias: tw.matmul(a, b, bias=bias, activation="silu"), a, b, bias)
        assert len(emulator.results) > 2, "forward and backward ran here"
    theirs = gradients_of(lambda a, b, bias: torch.nn.functional.silu(a @ b + bias), a, b, bias)
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-4, atol=1e-4)
    for mine, wanted in zip(ours[1], theirs[1], strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-3)


def test_matmul_inside_torch_compile_is_an_operator_of_one_graph():
    a, b, bias = leaves((9, 17), (17, 13), (13,))
    compiled = torch.compile(
        lambda a, b, bias: tw.matmul(a, b, bias=bias, activation="silu") * 2, backend="aot_eager", fullgraph=True
    )
    with tw.emulator():
        ours = gradients_of(compiled, a, b, bias)
    theirs = gradients_of(lambda a, b, bias: torch.nn.functional.silu(a @ b + bias) * 2, a, b, bias)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-3)


def test_attention_and_groups_inside_torch_compile_are_operators_of_one_graph():
    q, (a, b) = torch.randn(1, 2, 16, 32).half(), leaves((8, 16), (2, 16, 8))
    offs = torch.tensor([3, 8], dtype=torch.int32)
    compiled = torch.compile(
        lambda q, a, b, offs: (tw.attention(q, q, q, is_causal=True) * 2, tw.grouped_matmul(a, b, offs) * 2),
        backend="aot_eager", fullgraph=True,
    )  # fmt: skip
    with tw.emulator():
        seen, groups = compiled(q, a, b, offs)
    theirs = torch.nn.functional.scaled_dot_product_attention(*[q.float()] * 3, is_causal=True) * 2
    torch.testing.assert_close(seen.float(), theirs, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(groups, torch.cat([a[:3] @ b[0], a[3:] @ b[1]]) * 2, rtol=1e-4, atol=1e-4)


def test_options_that_no_operator_has_break_the_graph_and_give_the_same():
    a, b, q = torch.randn(9, 17), torch.randn(17, 13), torch.randn(1, 2, 16, 32).half()
    used = torch.tensor([5], dtype=torch.int32)
    calls = (
        lambda: tw.matmul(a, b, out=torch.empty(9, 13), verify=True),
        lambda: tw.attention(q, q, q, seqused=used, score=lambda s, b, h, i, j: s - abs(i - j)),
        lambda: tw.attention_backward(q, q, q, q, *tw.attention(q, q, q, return_lse=True))[1],
    )
    with tw.emulator():
        for call in calls:
            torch.testing.assert_close(torch.compile(call, backend="eager")() * 2, call() * 2, rtol=0, atol=0)


def test_a_process_that_never_named_tilewright_torch_can_compile_a_product_whole():
    code = (
        "import torch, tilewright as tw\n"
        "product = torch.compile(lambda a, b: tw.matmul(a, b), backend='eager', fullgraph=True)\n"
        "print(tuple(product(torch.ones(3, 4), torch.ones(4, 5)).shape))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "(3, 5)\n"


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_attention_differentiates_as_it_is_called(layout):
    q, k, v = leaves(*[(1, 2, 16, 32)] * 3, dtype=torch.float16)
    turn = (lambda x: x) if layout == "bhsd" else (lambda x: x.transpose(1, 2))
    with tw.emulator():
        ours = gradients_of(lambda *x: tw.attention(*x, is_causal=True, layout=layout), q, k, v)
    theirs = gradients_of(
        lambda *x: turn(torch.nn.functional.scaled_dot_product_attention(*map(turn, x), is_causal=True)),
        q, k, v,
    )  # fmt: skip
    torch.testing.assert_close(ours[0], theirs[0], rtol=2e-3, atol=2e-3)
    for mine, wanted in zip(ours[1], theirs[1], strict=True):
        torch.testing.assert_close(mine, wanted, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("option", [{"rung": "f01"}, {"verify": True}, {"out": torch.zeros(8, 8)}])
def test_options_without_a_gradient_are_refused_with_one(option):
    a, b = leaves((8, 8), (8, 8))
    with tw.emulator():
        with pytest.raises(InvalidOperand, match=rf"{next(iter(option))} is not supported where an operand requires"):
            tw.matmul(a, b, **option)
        with torch.no_grad():
            tw.matmul(a, b, **option)


@pytest.mark.parametrize("how", ["out", "out is c", "out is an operand"])
def test_a_backward_pass_that_saved_what_out_overwrites_raises(how):
    a, b, w = torch.randn(16, 8), torch.randn(8, 12), torch.ones(16, 12, requires_grad=True)
    x = torch.zeros(16, 12)
    y = (w * x).sum()
    options = {"out": {}, "out is c": {"c": x}, "out is an operand": {"residual": x}}[how]
    with tw.emulator():
        tw.matmul(a, b, out=x, **options)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_a_backward_pass_that_saved_what_attention_overwrites_raises():
    q, w = torch.randn(1, 2, 16, 32).half(), torch.ones(1, 2, 16, 32, dtype=torch.float16, requires_grad=True)
    x = torch.zeros(1, 2, 16, 32, dtype=torch.float16)
    y = (w * x).sum()
    with tw.emulator():
        tw.attention(q, q, q, out=x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_out_may_be_an_inference_tensor():
    with torch.inference_mode():
        a, out = torch.randn(8, 8), torch.empty(8, 8)
    with tw.emulator():
        tw.matmul(a, a, out=out)
    torch.testing.assert_close(out, a @ a, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(24,), (5, 24), (2, 3, 24), (0, 24)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_an_eager_layer_gives_torchs_result_gradients_and_their_gradients(shape, with_bias):
    x, weight = leaves(shape, (10, 24))
    bias = leaves((10,))[0] if with_bias else None
    tensors = [x, weight] + ([bias] if with_bias else [])
    found = []
    for layer in (
        lambda *t: TilewrightLinear.apply(t[0], t[1], bias, new_layer(t[0], t[1], bias, None, OPTIONS)),
        lambda *t: torch.nn.functional.linear(t[0], t[1], bias),
    ):
        with tw.emulator():
            y = layer(*tensors)
            first = torch.autograd.grad((y**2).sum(), tensors, create_graph=True)
            again = torch.autograd.grad(sum((g**2).sum() for g in first), tensors, allow_unused=True)
        found.append((y, *first, *again))
    for mine, wanted in zip(*found, strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-3, atol=1e-2)


def test_a_linear_layer_runs_its_kernels_on_an_emulator():
    layer, x = tt.Linear(24, 10), torch.randn(6, 24)
    with tw.emulator() as emulator:
        y = layer(x)
        assert emulator.results
    torch.testing.assert_close(y, torch.nn.functional.linear(x, layer.weight, layer.bias), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_boolean_mask_hides_the_pairs_where_it_is_false(dtype):
    kind = getattr(torch, dtype)
    q, k, v = (torch.randn(2, 4, 20, 32).to(kind) for _ in range(3))
    mask = torch.rand(2, 1, 20, 20) > 0.4
    mask[..., 0] = True
    with tw.emulator():
        ours = tw.attention(q, k, v, bias=mask)
        numbers = tw.attention(
            q.float().numpy().astype("float16"), k.half().numpy(), v.half().numpy(), bias=mask.numpy()
        )
    wanted = torch.nn.functional.scaled_dot_product_attention(q.float(), k.float(), v.float(), mask)
    torch.testing.assert_close(ours.float(), wanted, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(torch.from_numpy(numbers).float(), wanted, rtol=2e-2, atol=2e-2)
