"""Gradients of attention on torch tensors, by kernels: options, packed batches, compiling, checkpoints, determinism."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")

import tilewright as tw  # noqa: E402
from tilewright.epilogue import tanh  # noqa: E402
from tilewright.errors import InvalidOperand  # noqa: E402

F = torch.nn.functional


def tensors(b=1, h=4, hk=2, sq=20, sk=30, d=32, dtype=torch.float16):
    torch.manual_seed(0)
    shapes = [(b, h, sq, d), (b, hk, sk, d), (b, hk, sk, d)]
    return [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes]


def plain(q, k, v, score=lambda s, i, j: s, is_causal=False, sinks=None):
    """The result and the LSE in float64. A sink is one more key, whose value is 0."""
    q, k, v = (x.double() for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    sq, sk = q.shape[2], k.shape[2]
    i, j = torch.arange(sq)[:, None], torch.arange(sk)[None, :]
    scores = score(q @ k.transpose(2, 3) / math.sqrt(q.shape[3]), i, j)
    if is_causal:
        scores = scores.masked_fill(j > i + sk - sq, -math.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.double()[:, None, None].expand_as(scores[..., :1])], -1)
        v = F.pad(v, (0, 0, 0, 1))
    return torch.softmax(scores, -1) @ v, torch.logsumexp(scores, -1)


def agree(mine, theirs, tolerance=1e-2):
    for x, y in zip(mine, theirs, strict=True):
        assert torch.isfinite(x).all()
        assert (x.double() - y.double()).abs().max() <= tolerance * max(1.0, y.abs().max().item())


def kernels(emulator):
    """The entries that were launched."""
    return [result.kernel for result in emulator.results] if hasattr(emulator.results[0], "kernel") else None


@pytest.mark.parametrize("function", [tw.attention, tw.torch.attention])
def test_both_functions_differentiate_by_kernels(function):
    given = tensors()
    with tw.emulator() as emulator:
        out = function(*given, is_causal=True)
        before = len(emulator.results)
        weight = torch.randn_like(out)
        mine = torch.autograd.grad(out, given, weight)
        assert len(emulator.results) > before
    agree(mine, torch.autograd.grad(plain(*given, is_causal=True)[0], given, weight.double()))


def test_a_score_function_and_the_lse_are_differentiated():
    given = tensors()
    with tw.emulator():
        out, lse = tw.attention(
            *given, score=lambda s, b, h, i, j: 2.0 * tanh(0.5 * s) - 0.1 * abs(i - j), return_lse=True
        )
        weights = torch.randn_like(out), torch.randn_like(lse)
        mine = torch.autograd.grad((out, lse), given, weights)
        only_lse = torch.autograd.grad(tw.attention(*given, return_lse=True)[1], given, weights[1], allow_unused=True)
    right = plain(*given, score=lambda s, i, j: 2 * torch.tanh(s / 2) - 0.1 * (i - j).abs())
    agree(mine, torch.autograd.grad(right, given, [x.double() for x in weights]))
    theirs = torch.autograd.grad(plain(*given)[1], given, weights[1].double(), allow_unused=True)
    agree(only_lse[:2], theirs[:2])
    assert not only_lse[2].any()


def test_batches_of_gradients_are_each_computed():
    given = tensors()
    with tw.emulator():
        out, lse = tw.torch.attention(*given, is_causal=True, return_lse=True)
        pulls = torch.randn(2, *out.shape).half(), torch.randn(2, *lse.shape)
        for results, chosen in (((out, lse), pulls), ((out,), pulls[:1]), ((lse,), pulls[1:])):
            batched = torch.autograd.grad(results, given, chosen, is_grads_batched=True, retain_graph=True)
            for place in range(2):
                alone = torch.autograd.grad(results, given, [x[place] for x in chosen], retain_graph=True)
                torch.testing.assert_close(tuple(x[place] for x in batched), alone, rtol=0, atol=0)


def test_packed_batches_have_gradients():
    torch.manual_seed(1)
    q, k, v = (torch.randn(17, heads, 32).half().requires_grad_() for heads in (4, 2, 2))
    starts = torch.tensor([0, 5, 5, 15], dtype=torch.int32)
    with tw.emulator():
        out = tw.attention_varlen(q, k, v, starts, starts, 10, is_causal=True)
        weight = torch.randn_like(out)
        mine = torch.autograd.grad(out, (q, k, v), weight)
    total = sum(
        (plain(*(x[a:b].transpose(0, 1)[None] for x in (q, k, v)), is_causal=True)[0][0].transpose(0, 1)
         * weight[a:b].double()).sum()
        for a, b in ((0, 5), (5, 15))
    )  # fmt: skip
    agree(mine, torch.autograd.grad(total, (q, k, v)))
    assert all(not x[15:].any() for x in mine)


@pytest.mark.parametrize("packed", [False, True])
def test_sinks_take_their_share_of_weights_and_have_gradients(packed):
    """A query that sees no key gives them everything."""
    given, sinks = tensors(sq=9, sk=7), torch.tensor([0.5, -2.0, 3.0, 40.0], requires_grad=True)
    q, k, v = (x[0].transpose(0, 1) for x in given)
    with tw.emulator():
        if packed:
            starts = [torch.tensor([0, n], dtype=torch.int32) for n in (9, 7)]
            tail = torch.cat([q, torch.full((2, 4, 32), math.nan, dtype=q.dtype)])
            out, lse = tw.torch.attention_varlen(tail, k, v, *starts, is_causal=True, sinks=sinks, return_lse=True)
            out, lse = out[:9].transpose(0, 1)[None], lse[None, :, :9]
        else:
            out, lse = tw.torch.attention(*given, is_causal=True, sinks=sinks, return_lse=True)
        weights = torch.randn(out.shape).to(out.dtype), torch.randn_like(lse)
        mine = torch.autograd.grad((out, lse), (*given, sinks), weights)
    right = plain(*given, is_causal=True, sinks=sinks)
    agree((out, lse), right)
    assert not out[:, :, :2].any()
    agree(mine, torch.autograd.grad(right, (*given, sinks), [x.double() for x in weights]))


def test_sinks_that_do_not_fit_the_heads_are_refused():
    with pytest.raises(InvalidOperand, match=r"sinks is torch.float32 of shape \(3,\); q has 4 heads"), tw.emulator():
        tw.torch.attention(*tensors(), sinks=torch.zeros(3))


def test_gradients_lie_as_q_does():
    given = [x.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in tensors(b=2)]
    with tw.emulator():
        mine = torch.autograd.grad(tw.torch.attention(*given).sum(), given)
    assert all(x.stride() == y.stride() for x, y in zip(mine, given, strict=True))
    agree(mine, torch.autograd.grad(plain(*given)[0].sum(), given))


OPTIONS = (True, 0.2, -1, -1, 0.0)


def test_the_operators_keep_torchs_contract():
    q, k, v = tensors(sq=9, sk=9)
    check = torch.library.opcheck
    with tw.emulator():
        packed = [x.detach()[0].transpose(0, 1).contiguous().requires_grad_() for x in (q, k, v)]
        starts = torch.tensor([0, 4, 9], dtype=torch.int32)
        operator = torch.ops.tilewright.attention_with_lse.default
        check(operator, (q, k, v, None, None, None, -1, *OPTIONS), atol=2e-3, rtol=2e-3)
        check(operator, (*packed, None, starts, starts, 5, *OPTIONS), atol=2e-3, rtol=2e-3)
        given = [x.detach() for x in (q, k, v)]
        out, lse = operator(*given, None, None, None, -1, *OPTIONS)
        check(
            torch.ops.tilewright.attention_backward.default,
            (out, None, *given, None, out, lse, None, None, True, *OPTIONS),
        )


def test_one_graph_when_compiled_also_of_packed_batches():
    starts = torch.tensor([0, 4, 9], dtype=torch.int32)

    def step(q, k, v, starts):
        return tw.torch.attention_varlen(2 * q, k, v, starts, starts, 5, is_causal=True).sum()

    torch.manual_seed(2)
    given = [torch.randn(9, 2, 32).half().requires_grad_() for _ in range(3)]
    with tw.emulator():
        compiled = torch.compile(step, fullgraph=True, backend="aot_eager")(*given, starts)
        mine = torch.autograd.grad(compiled, given)
        theirs = torch.autograd.grad(step(*given, starts), given)
    agree(mine, theirs, 1e-3)


def test_a_checkpointed_layer_has_the_same_gradients():
    from torch.utils.checkpoint import checkpoint

    given = tensors()

    def layer(q, k, v):
        return tw.torch.attention(q, k, v, is_causal=True)

    with tw.emulator():
        mine = torch.autograd.grad(checkpoint(layer, *given, use_reentrant=False).sum(), given)
        theirs = torch.autograd.grad(layer(*given).sum(), given)
    for x, y in zip(mine, theirs, strict=True):
        torch.testing.assert_close(x, y, atol=1e-3, rtol=1e-3)


def test_torchs_flag_asks_for_deterministic_gradients(monkeypatch):
    from tilewright.torch import attention_gradient

    asked = []
    actual = attention_gradient.run_backward
    monkeypatch.setattr(
        attention_gradient, "run_backward", lambda *x, **options: asked.append(options) or actual(*x, **options)
    )
    given = tensors()
    with tw.emulator():
        for flag in (True, False):
            torch.use_deterministic_algorithms(flag)
            try:
                tw.torch.attention(*given).sum().backward()
            finally:
                torch.use_deterministic_algorithms(False)
    assert [options["deterministic"] for options in asked] == [True, False]


def changed(s, b, h, i, j):
    return tw.epilogue.where((i + j) % 3 == 0, -math.inf, 5.0 * tanh(s / 5.0)) - 0.2 * h * abs(i - j)


def changed_by_torch(s, i, j):
    h = torch.arange(s.shape[1])[:, None, None]
    return torch.where((i + j) % 3 == 0, -math.inf, 5.0 * torch.tanh(s / 5.0)) - 0.2 * h * (i - j).abs()


def test_a_bias_next_to_a_score_function_has_a_gradient():
    given = tensors(sq=9, sk=12)
    bias = torch.randn(4, 1, 12, requires_grad=True)
    with tw.emulator():
        out, lse = tw.torch.attention(*given, bias=bias, score=changed, is_causal=True, return_lse=True)
        weights = torch.randn(out.shape).to(out.dtype), torch.randn_like(lse)
        mine = torch.autograd.grad((out, lse), (*given, bias), weights)
    right = plain(*given, lambda s, i, j: changed_by_torch(s + bias, i, j), is_causal=True)
    agree((out, lse), right)
    agree(mine, torch.autograd.grad(right, (*given, bias), [x.double() for x in weights]))


def test_a_score_function_has_a_gradient_of_its_gradient():
    given = tensors(sq=5, sk=6)
    with tw.emulator():
        out = tw.attention(*given, score=changed)
        slopes = torch.autograd.grad(out.float().square().sum(), given, create_graph=True)
        mine = torch.autograd.grad(sum(x.float().square().sum() for x in slopes), given)
    wide = [x.detach().double().requires_grad_() for x in given]
    slopes = torch.autograd.grad(plain(*wide, changed_by_torch)[0].square().sum(), wide, create_graph=True)
    agree(mine, torch.autograd.grad(sum(x.square().sum() for x in slopes), wide), 2e-2)


def test_queries_that_a_score_function_lets_see_no_key_have_gradients_of_zero():
    q, k, v = tensors(sq=4, sk=4)
    bias = torch.zeros(4, 4, requires_grad=True)
    with tw.emulator():
        hidden = lambda s, b, h, i, j: tw.epilogue.where(i == 2, -math.inf, s)  # noqa: E731
        out = tw.torch.attention(q, k, v, bias=bias, score=hidden)
        found = torch.autograd.grad(out.sum(), (q, k, v, bias))
    assert all(torch.isfinite(x).all() for x in found)
    assert not found[0][:, :, 2].any()
    assert not found[3][2].any()


def test_packed_batches_say_that_they_have_no_gradient_of_their_gradient():
    q, k, v = (x.detach()[0].transpose(0, 1).requires_grad_() for x in tensors(sq=5, sk=5))
    with tw.emulator():
        out = tw.attention_varlen(q, k, v, [0, 5], [0, 5])
        with pytest.raises(InvalidOperand, match="no gradient of its gradient"):
            torch.autograd.grad(out.sum(), (q, k, v), create_graph=True)
