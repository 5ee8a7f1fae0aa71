"""tilewright.torch's attention on CPU tensors: the operator's contract, gradients, one graph, torch's meaning."""

from __future__ import annotations

import math
import sys
import warnings

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")

import tilewright as tw  # noqa: E402
from tilewright.errors import InvalidOperand  # noqa: E402

F = torch.nn.functional


@pytest.fixture(autouse=True)
def fresh_warnings():
    sys.modules[tw.torch.attention.__module__]._said.clear()


def tensors(b=1, h=4, hk=2, sq=20, sk=30, d=32, *, dtype=torch.float16, grad=False):
    torch.manual_seed(0)
    shapes = [(b, h, sq, d), (b, hk, sk, d), (b, hk, sk, d)]
    return [torch.randn(shape, dtype=torch.float32).to(dtype).requires_grad_(grad) for shape in shapes]


def in_double(function, *given):
    """torch's own result in float64."""
    return function(*(x.double() if x is not None and x.is_floating_point() else x for x in given))


def close(out, right):
    assert out.dtype in (torch.float16, torch.bfloat16)
    assert torch.isfinite(out).all()
    error = (out.double() - right).abs().max().item()
    assert error <= (2e-3 if out.dtype == torch.float16 else 2e-2), error


OPTIONS = [
    (False, 0.2, -1, -1, 0.0), (True, 0.2, -1, -1, 0.0), (False, 0.2, 6, 3, 0.0), (True, 0.2, -1, -1, 2.0),
]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "with_bias"), [(OPTIONS[0], False), (OPTIONS[1], True), (OPTIONS[2], False), (OPTIONS[3], True)],
    ids=str,
)  # fmt: skip
def test_the_operator_keeps_torchs_contract(options, with_bias):
    q, k, v = tensors(grad=True)
    bias = torch.randn(20, 30, dtype=torch.float16).requires_grad_() if with_bias else None
    with tw.emulator():
        torch.library.opcheck(torch.ops.tilewright.attention.default, (q, k, v, bias, *options), atol=2e-3, rtol=2e-3)


def test_the_operator_keeps_its_contract_where_rows_lie_outside_heads():
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in tensors())
    with tw.emulator():
        torch.library.opcheck(torch.ops.tilewright.attention.default, (q, k, v, None, *OPTIONS[0]))
        out = tw.torch.attention(q.detach(), k.detach(), v.detach())
    assert out.transpose(1, 2).is_contiguous()


@pytest.mark.parametrize(("sq", "sk"), [(20, 30), (30, 20), (20, 20)])
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"window": (5, 0)}, {"softcap": 1.5, "is_causal": True}])
def test_gradients_are_those_of_the_formula(sq, sk, options):
    q, k, v = tensors(sq=sq, sk=sk, grad=True)
    bias = torch.randn(4, 1, sk, dtype=torch.float16, requires_grad=True) if "softcap" in options else None
    with tw.emulator():
        out = tw.torch.attention(q, k, v, bias=bias, **options)
        weight = torch.randn_like(out)
        out.backward(weight)
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    wide_bias = None if bias is None else bias.detach().double().requires_grad_()
    right = plain(*wide, wide_bias, **options)
    close(out, right)
    right.backward(weight.double())
    leaves = zip((q, k, v, *([bias] if bias is not None else [])), (*wide, wide_bias), strict=False)
    for ours, theirs in leaves:
        assert torch.isfinite(ours.grad).all()
        assert (ours.grad.double() - theirs.grad).abs().max() <= 1e-2 * max(1.0, theirs.grad.abs().max().item())


@pytest.mark.parametrize(
    ("shared", "options"),
    [
        (False, {"is_causal": True, "softcap": 1.5}),
        (True, {"is_causal": True, "softcap": 1.5}),
        (False, {}),
        (False, {"is_causal": True}),
        (False, {"window": (2, 1)}),
    ],
)
def test_gradients_of_gradients_are_those_of_the_formula(shared, options):
    given = tensors(hk=4, sq=7, sk=7, grad=True)
    wide = [x.detach().double().requires_grad_() for x in given]
    if shared:
        given, wide = [given[0]] * 3, [wide[0]] * 3
    found = []
    with tw.emulator():
        out = tw.torch.attention(*given, **options)
        assert out.grad_fn.name() == "TilewrightAttentionBackward"
        for result, leaves in ((out, given), (plain(*wide, **options), wide)):
            first = torch.autograd.grad(result.double().square().sum(), leaves, create_graph=True)
            found.append(torch.autograd.grad(sum(x.double().square().sum() for x in first), leaves))
    for ours, theirs in zip(*found, strict=True):
        assert torch.isfinite(ours).all()
        assert (ours.double() - theirs).abs().max() <= 2e-2 * max(1.0, theirs.abs().max().item())


def plain(q, k, v, bias=None, is_causal=False, window=(-1, -1), softcap=0.0):
    """The definition, with empty rows 0."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[3])
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    sq, sk = scores.shape[2:]
    place, key = torch.arange(sq)[:, None] + sk - sq, torch.arange(sk)[None, :]
    seen = torch.ones(sq, sk, dtype=torch.bool)
    if window[0] >= 0:
        seen &= key >= place - window[0]
    if window[1] >= 0:
        seen &= key <= place + window[1]
    if is_causal:
        seen &= key <= place
    rows = seen.any(-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(~(seen | ~rows), -math.inf), -1)
    return weights.masked_fill(~rows, 0) @ v


@pytest.mark.parametrize("d", [32, 40])
def test_a_result_that_lies_as_q_does_is_a_tensor_of_its_own_which_the_gradient_reads(d):
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in tensors(sq=5, sk=7, d=d))
    right = in_double(F.scaled_dot_product_attention, q, *(x.repeat_interleave(2, 1) for x in (k, v)))
    with tw.emulator():
        out = tw.torch.attention(q, k, v)
        assert out.stride() == q.stride()
        out.mul_(2)  # torch refuses this for a view that a Function returns
        close(out, 2 * right)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiling_breaks_no_graph_also_for_gradients(dynamic):
    def step(q, k, v):
        return tw.torch.attention(2 * q, k, v, is_causal=True, window=(9, 0)).sum()

    given, again = tensors(grad=True), tensors(grad=True)
    with tw.emulator():
        out = torch.compile(step, fullgraph=True, backend="aot_eager", dynamic=dynamic)(*given)
        out.backward()
        right = step(*again)
        right.backward()
    assert out == right
    for ours, theirs in zip(given, again, strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


# --- torch's signature -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sq", "sk"), [(20, 20), (20, 30), (30, 20)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_torchs_signature_has_torchs_meaning(sq, sk, is_causal):
    q, k, v = tensors(hk=4, sq=sq, sk=sk)
    with tw.emulator() as emulator, warnings.catch_warnings():
        warnings.simplefilter("error")
        out = tw.torch.scaled_dot_product_attention(q, k, v, is_causal=is_causal, scale=0.3)
        assert len(emulator.results) == 1
    close(out, in_double(lambda *x: F.scaled_dot_product_attention(*x, is_causal=is_causal, scale=0.3), q, k, v))


@pytest.mark.parametrize("shape", [(20, 30), (1, 4, 20, 30), (1, 1, 1, 30)])
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_masks_of_torchs_two_kinds(shape, kind):
    q, k, v = tensors(hk=4)
    mask = torch.randn(shape) > -0.5
    if kind == "float":
        mask = torch.randn(shape).half().masked_fill(~mask, -math.inf)
    with tw.emulator():
        out = tw.torch.scaled_dot_product_attention(q, k, v, mask)
    close(out, in_double(F.scaled_dot_product_attention, q, k, v, mask))


def test_three_axes_and_shared_heads():
    q, k, v = tensors(hk=4)
    with tw.emulator():
        out = tw.torch.scaled_dot_product_attention(q[0], k[0], v[0])
        shared = tw.torch.scaled_dot_product_attention(q, k[:, :2], v[:, :2], enable_gqa=True)
    assert out.shape == q[0].shape
    close(out, in_double(F.scaled_dot_product_attention, q[0], k[0], v[0]))
    close(shared, in_double(lambda *x: F.scaled_dot_product_attention(*x, enable_gqa=True), q, k[:, :2], v[:, :2]))


FALLBACKS = [
    ({"dropout_p": 0.5}, torch.float16, "dropout"),
    ({}, torch.float32, "torch.float32 is not taken"),
    ({"attn_mask": torch.zeros(20, 30, dtype=torch.float64)}, torch.float64, "torch.float64 is not taken"),
]


@pytest.mark.parametrize(("options", "dtype", "words"), FALLBACKS, ids=[x[-1] for x in FALLBACKS])
def test_what_is_not_done_here_torch_does_and_it_is_said_once(options, dtype, words):
    q, k, v = tensors(hk=4, dtype=dtype)
    with tw.emulator() as emulator:
        torch.manual_seed(1)
        with pytest.warns(RuntimeWarning, match=words):
            out = tw.torch.scaled_dot_product_attention(q, k, v, **options)
        torch.manual_seed(1)
        right = F.scaled_dot_product_attention(q, k, v, **options)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            tw.torch.scaled_dot_product_attention(q, k, v, **options)
        assert not emulator.results
    torch.testing.assert_close(out, right)


def test_tensors_on_the_cpu_are_torchs_without_an_emulator():
    q, k, v = tensors(hk=4)
    with pytest.warns(RuntimeWarning, match="tensors on cpu are not run here"):
        out = tw.torch.scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(out, F.scaled_dot_product_attention(q, k, v))


@pytest.mark.parametrize("outside", [False, True])
def test_values_of_another_d_head_than_keys_and_their_gradients(outside):
    q, k, _ = tensors(d=48)
    *_, v = tensors(d=32)
    if outside:
        q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    with tw.emulator():
        out = tw.torch.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        assert out.shape == (1, 4, 20, 32)
        fake = torch.ops.tilewright.attention.default
        torch.library.opcheck(fake, (q, k, v, None, False, 0.2, -1, -1, 0.0), atol=2e-2, rtol=2e-2)
        grad = torch.randn_like(out)
        found = torch.autograd.grad(out, (q, k, v), grad)
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    right = F.scaled_dot_product_attention(*wide, enable_gqa=True)
    close(out, right)
    for mine, theirs in zip(found, torch.autograd.grad(right, wide, grad.double()), strict=True):
        torch.testing.assert_close(mine.double(), theirs, atol=3e-2, rtol=3e-2)


REFUSED = {
    "heads that are not shared": (lambda q, k, v: (q, k[:, :2], v[:, :2]), {}),
    "heads that do not divide": (lambda q, k, v: (q, k[:, :3], v[:, :3]), {"enable_gqa": True}),
    "a mask beside is_causal": (lambda q, k, v: (q, k, v, torch.ones(20, 30, dtype=torch.bool)), {"is_causal": True}),
    "a mask of another shape": (lambda q, k, v: (q, k, v, torch.zeros(20, 29).half()), {}),
    "keys of another d_head": (lambda q, k, v: (q, k[..., :16], v), {}),
    "keys of another dtype": (lambda q, k, v: (q, k.bfloat16(), v), {}),
    "a mask that is no tensor": (lambda q, k, v: (q, k, v, "causal"), {}),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_torch_refuses_is_refused_in_its_words(case):
    change, options = REFUSED[case]
    given = change(*tensors(hk=4))
    try:
        F.scaled_dot_product_attention(*given, **options)
        pytest.skip(f"torch {torch.__version__} takes it on the CPU")
    except (RuntimeError, IndexError, TypeError) as error:
        theirs = str(error)
    with tw.emulator(), pytest.raises((RuntimeError, IndexError, TypeError)) as ours:
        tw.torch.scaled_dot_product_attention(*given, **options)
    assert str(ours.value) == theirs


def test_a_mask_of_the_most_negative_number_is_torchs_also_where_it_hides_every_key():
    q, k, v = tensors(hk=4)
    mask = torch.zeros(20, 30)
    mask[:, 7:] = mask[3] = torch.finfo(torch.float32).min
    with tw.emulator():
        out = tw.torch.scaled_dot_product_attention(q, k, v, mask)
    close(out, in_double(F.scaled_dot_product_attention, q, k, v, mask))


def test_the_plain_function_refuses_what_has_no_gradient_where_one_is_required():
    q, k, v = tensors(grad=True)
    with tw.emulator():
        assert tw.attention(q, k, v).requires_grad
        with pytest.raises(InvalidOperand, match="rung is not supported where an operand requires a gradient"):
            tw.attention(q, k, v, rung="a16")


def test_packed_starts_may_be_torchs():
    q, k, v = (torch.randn(12, 2, 32).half() for _ in range(3))
    starts = torch.tensor([0, 5, 12], dtype=torch.int32)
    with tw.emulator():
        out = tw.attention_varlen(q, k, v, starts, starts)
    for first, end in ((0, 5), (5, 12)):
        part = [x[first:end].transpose(0, 1)[None] for x in (q, k, v)]
        close(out[first:end].transpose(0, 1)[None], in_double(F.scaled_dot_product_attention, *part))


def test_every_way_to_call_gives_the_same_attention():
    q, k, v = tensors(b=2, h=2, hk=2, sq=20, sk=20)
    rows = [x.transpose(1, 2).reshape(40, 2, 32).contiguous() for x in (q, k, v)]
    starts = torch.tensor([0, 20, 40], dtype=torch.int32)
    with tw.emulator():
        whole = tw.attention(q, k, v, is_causal=True)
        others = (
            tw.attention(q, k, v, is_causal=True, out=torch.empty_like(q)),
            tw.attention(q, k, v, is_causal=True, return_lse=True)[0],
            tw.torch.scaled_dot_product_attention(q, k, v, is_causal=True),
        )
        packed = tw.attention_varlen(*rows, starts, starts, 20, is_causal=True)
    for other in others:
        assert torch.equal(other, whole)
    torch.testing.assert_close(packed.reshape(2, 20, 2, 32).transpose(1, 2), whole, atol=2e-3, rtol=0)
    torch.testing.assert_close(whole, F.scaled_dot_product_attention(q, k, v, is_causal=True), atol=4e-3, rtol=0)


def test_operands_are_cast_as_autocast_does_before_an_earlier_call_is_looked_up(monkeypatch):
    memory, looked_up = sys.modules[tw.torch.attention.__module__].attention_warm, []
    monkeypatch.setattr(memory, "find", lambda *given, **_: looked_up.append(given[0].dtype))
    q, k, v = tensors(hk=4)
    with tw.emulator(), torch.autocast("cpu", torch.bfloat16):
        assert tw.torch.scaled_dot_product_attention(q, k, v).dtype == torch.bfloat16
    assert set(looked_up) == {torch.bfloat16}
