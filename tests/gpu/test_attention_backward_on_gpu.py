"""attention_backward on a GPU: options and sizes against float64, warm calls, captures, gradients of torch tensors."""

from __future__ import annotations

import math

import pytest

import tilewright as tw
from tilewright.attn.backward_rungs import BACKWARD_RUNGS, find_backward_rung
from tilewright.attn.warm import backward_calls
from tilewright.lab.backward_check import backward_reference, check_backward

pytestmark = pytest.mark.gpu

APART = find_backward_rung("b06")
NAMES = {"bf16": "bfloat16", "f16": "float16"}
CASES = {
    "full": ((2, 4, 4, 300, 300), {}),
    "causal": ((1, 4, 2, 513, 513), {"is_causal": True}),
    "more keys": ((1, 4, 1, 130, 700), {"is_causal": True}),
    "more queries": ((1, 2, 2, 700, 130), {"is_causal": True}),
    "window": ((1, 2, 1, 500, 520), {"window": (100, 30)}),
    "softcap": ((1, 2, 1, 300, 300), {"softcap": 2.0, "is_causal": True}),
    "one query": ((2, 4, 2, 1, 400), {}),
    "many heads on few of keys": ((1, 16, 2, 700, 500), {"is_causal": True}),
}


def operands(torch, b, h, hk, sq, sk, d, dtype):
    kind = getattr(torch, NAMES[dtype])
    shapes = [(b, h, sq, d), (b, hk, sk, d), (b, hk, sk, d), (b, h, sq, d)]
    return [torch.randn(shape, device="cuda").to(kind) for shape in shapes]


def judge(found, q, k, v, grad, dtype, **options):
    given = [x.float().cpu().numpy() for x in (grad, q, k, v)]
    options = {name: x.float().cpu().numpy() if hasattr(x, "cpu") else x for name, x in options.items()}
    result = check_backward(tuple(x.float().cpu().numpy() for x in found), backward_reference(*given, **options), dtype)
    assert result.ok, result.reason


@pytest.mark.parametrize("rung", BACKWARD_RUNGS, ids=str)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("d", "dtype"), [(64, "bf16"), (96, "bf16"), (128, "f16"), (192, "f16"), (256, "bf16"), (80, "f16")]
)
def test_gradients_are_those_of_the_formula(torch, rung, case, d, dtype):
    held = {config.d_head: config.keys.rows for config in rung.defaults}
    width = 96 if d == 80 else d
    if (rung.wgmma and d not in held) or width not in held:
        pytest.skip(f"{rung} has no config for it")
    shape, options = CASES[case]
    if rung.alone:
        shape = (*shape[:4], min(shape[4], held[width]))
    q, k, v, grad = operands(torch, *shape, d, dtype)
    out, lse = tw.attention(q, k, v, return_lse=True, **options)
    found = tw.attention_backward(grad, q, k, v, out, lse, rung=rung.id, **options)
    judge(found, q, k, v, grad, dtype, **options)
    if rung.sums is False or rung.alone:
        again = tw.attention_backward(grad, q, k, v, out, lse, rung=rung.id, **options)
        assert all(torch.equal(x, y) for x, y in zip(found, again, strict=True))


@pytest.mark.parametrize(("d", "dv"), [(192, 128), (128, 192), (256, 64), (64, 256), (256, 192), (160, 96), (128, 64)])
@pytest.mark.parametrize("case", CASES)
def test_gradients_of_values_of_another_width(torch, case, d, dv):
    shape, options = CASES[case]
    q, k, _, _ = operands(torch, *shape, d, "bf16")
    _, _, v, grad = operands(torch, *shape, dv, "bf16")
    out, lse = tw.attention(q, k, v, return_lse=True, **options)
    found = tw.attention_backward(grad, q, k, v, out, lse, **options)
    judge(found, q, k, v, grad, "bf16", **options)


@pytest.mark.parametrize(("d", "dv"), [(192, 128), (128, 192), (256, 64), (64, 256), (128, 128)])
def test_one_walk_makes_dk_and_dv(torch, d, dv):
    shape, options = CASES["causal"]
    q, k, _, _ = operands(torch, *shape, d, "bf16")
    _, _, v, grad = operands(torch, *shape, dv, "bf16")
    out, lse = tw.attention(q, k, v, return_lse=True, **options)
    named = {"rung": "b06", "config": f"d{d}: keys 128x64/8, queries 128x64/8"}
    found, again = (tw.attention_backward(grad, q, k, v, out, lse, **named, **options) for _ in range(2))
    judge(found, q, k, v, grad, "bf16", **options)
    assert all(torch.equal(x, y) for x, y in zip(found, again, strict=True))


@pytest.mark.parametrize("rung", BACKWARD_RUNGS, ids=str)
def test_a_bias_and_a_gradient_of_the_lse(torch, rung):
    keys = 100 if rung.alone else 300
    q, k, v, grad = operands(torch, 1, 4, 2, 200, keys, 64, "f16")
    bias = torch.randn(4, 1, keys, device="cuda")
    bias[..., ::5] = -math.inf
    grad_lse = torch.randn(1, 4, 200, device="cuda")
    out, lse = tw.attention(q, k, v, bias=bias, return_lse=True)
    found = tw.attention_backward(grad, q, k, v, out, lse, bias=bias, grad_lse=grad_lse, rung=rung.id)
    judge(found, q, k, v, grad, "f16", bias=bias, grad_lse=grad_lse)


@pytest.mark.parametrize(
    ("rung", "d", "dv", "config"),
    [
        *((rung, 64, 64, None) for rung in BACKWARD_RUNGS if not rung.alone), (APART, 192, 128, None),
        (APART, 192, 128, "d192: keys 128x64/8, queries 128x64/8"),
    ],
)  # fmt: skip
def test_packed_batches_are_their_entries(torch, rung, d, dv, config):
    lengths, after = [300, 0, 1, 129, 500], 10
    starts = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32, device="cuda")
    rows = sum(lengths) + after
    q, grad = (torch.randn(rows, 4, columns, device="cuda").half() for columns in (d, dv))
    k, v = (torch.randn(rows, 2, columns, device="cuda").half() for columns in (d, dv))
    out, lse = tw.attention_varlen(q, k, v, starts, starts, 500, is_causal=True, return_lse=True)
    found = tw.attention_backward(
        grad, q, k, v, out, lse, cu_seqlens_q=starts, cu_seqlens_k=starts, is_causal=True, rung=rung.id, config=config
    )
    at = 0
    for length in lengths:
        part = slice(at, at + length)
        one = [x[part].transpose(0, 1)[None] for x in (*found, q, k, v, grad)]
        if length:
            judge(one[:3], *one[3:], "f16", is_causal=True)
        at += length
    assert all(not x[at:].any() for x in found)


@pytest.mark.parametrize("d", [32, 64, 96, 128, 192, 256])
@pytest.mark.parametrize("case", ["full", "causal", "more keys", "more queries", "window", "many heads on few of keys"])
def test_deterministic_gradients_are_right_and_the_same_bits(torch, d, case):
    shape, options = CASES[case]
    heads = (2, 8, 4) if shape[1] < 16 else (1, 16, 2)
    q, k, v, grad = operands(torch, *heads, *(4 * n + 1 for n in shape[3:]), d, "bf16")
    out, lse = tw.attention(q, k, v, return_lse=True, **options)
    found = [tw.attention_backward(grad, q, k, v, out, lse, deterministic=True, **options) for _ in range(4)]
    judge(found[0], q, k, v, grad, "bf16", **options)
    assert all(torch.equal(x, y) for other in found[1:] for x, y in zip(found[0], other, strict=True))


def test_warm_calls_take_other_numbers_and_strides_anew(torch):
    q, k, v, grad = operands(torch, 1, 2, 2, 130, 130, 64, "bf16")  # f16 would lose the last bits of small gradients
    for score in (None, lambda s, b, h, i, j: s - 0.25 * abs(i - j)):
        out, lse = tw.attention(q, k, v, score=score, return_lse=True)
        first = tw.attention_backward(grad, q, k, v, out, lse, score=score, deterministic=True)
        known = len(backward_calls)
        again = tw.attention_backward(grad, q, k, v, out, lse, score=score, deterministic=True)
        assert len(backward_calls) == known
        assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))
        other = tw.attention_backward(2 * grad, q, k, v, out, lse, score=score, deterministic=True)
        assert torch.equal(other[2], 2 * first[2])


def test_a_captured_call_replays(torch):
    q, k, v, grad = operands(torch, 1, 2, 2, 130, 130, 64, "f16")
    out, lse = tw.attention(q, k, v, return_lse=True)
    want = tw.attention_backward(grad, q, k, v, out, lse, rung="b01")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = tw.attention_backward(grad, q, k, v, out, lse, rung="b01")
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(x, y) for x, y in zip(found, want, strict=True))


def test_tensors_that_require_a_gradient_get_it(torch):
    q, k, v, grad = (x.requires_grad_() for x in operands(torch, 2, 8, 2, 200, 200, 64, "bf16"))
    for _ in range(2):
        mine = torch.autograd.grad(tw.attention(q, k, v, is_causal=True), (q, k, v), grad.detach())
    judge(mine, *(x.detach() for x in (q, k, v, grad)), "bf16", is_causal=True)


def test_cupys_arrays(cupy):
    q, k, v, grad = (cupy.random.standard_normal((1, 2, 70, 64)).astype(cupy.float16) for _ in range(4))
    out, lse = tw.attention(q, k, v, return_lse=True)
    found = tw.attention_backward(grad, q, k, v, out, lse)
    assert all(isinstance(x, cupy.ndarray) for x in found)
    given = [cupy.asnumpy(x) for x in (grad, q, k, v)]
    result = check_backward(tuple(cupy.asnumpy(x).astype("f4") for x in found), backward_reference(*given), "f16")
    assert result.ok, result.reason
