"""tilewright.attention on a GPU: many sizes and options by the field's rule, every kind of array, streams, torch."""

from __future__ import annotations

import math
import random
import threading

import numpy as np
import pytest

import tilewright as tw
from tilewright.attn import warm as attention_warm
from tilewright.errors import InvalidOperand

pytestmark = pytest.mark.gpu


def seen_pairs(torch, sq, sk, is_causal=False, window=None):
    left, right = window or (-1, -1)
    place = torch.arange(sq, device="cuda")[:, None] + sk - sq
    key = torch.arange(sk, device="cuda")[None, :]
    seen = torch.ones(sq, sk, dtype=torch.bool, device="cuda")
    if left >= 0:
        seen &= key >= place - left
    if right >= 0:
        seen &= key <= place + right
    return seen & (key <= place) if is_causal else seen


def formula(torch, q, k, v, dtype, *, is_causal=False, window=None, scale=None, softcap=0.0, bias=None):
    """(out, LSE) by torch's plain operators, in `dtype` throughout but for the softmax."""
    q, k, v = (x.to(dtype) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = (q @ k.transpose(2, 3)) * (1 / math.sqrt(q.shape[3]) if scale is None else scale)
    scores = scores.double() if dtype == torch.float64 else scores.float()
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    scores = scores.masked_fill(~seen_pairs(torch, *scores.shape[2:], is_causal, window), -math.inf)
    rows = (scores > -math.inf).any(-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(~rows, 0), -1).masked_fill(~rows, 0)
    return weights.to(dtype) @ v, torch.logsumexp(scores, -1)


def judge(torch, out, lse, q, k, v, **options):
    """max|out - ref| <= 2 max|torch in 16 bits - ref| + half a step of out at its largest; the LSE to 1e-3."""
    right, right_lse = formula(torch, q, k, v, torch.float64, **options)
    library, _ = formula(torch, q, k, v, q.dtype, **options)
    assert torch.isfinite(out).all()
    error, allowed = ((x.double() - right).abs().max().item() for x in (out, library))
    step = 2.0**-8 if q.dtype == torch.bfloat16 else 2.0**-11
    assert error <= 2 * allowed + step * right.abs().max().item() + 1e-6, (error, allowed)
    if lse is not None:
        seen = torch.isfinite(right_lse)
        assert torch.equal(lse == -math.inf, ~seen)
        if seen.any():
            assert (lse.double() - right_lse)[seen].abs().max().item() <= 1e-3


def draw(torch, b, h, hk, sq, sk, d, dtype, layout):
    def one(heads, rows):
        if layout == "bshd":
            return torch.randn(b, rows, heads, d, device="cuda").to(dtype).transpose(1, 2)
        if layout == "padded":
            return torch.randn(b, heads, rows + 1, d + 8, device="cuda").to(dtype)[:, :, 1:, :d]
        return torch.randn(b, heads, rows, d, device="cuda").to(dtype)

    return one(h, sq), one(hk, sk), one(hk, sk)


@pytest.mark.parametrize("seed", range(60))
def test_random_sizes_and_options(torch, seed):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    hk = rng.choice([1, 2, 3])
    sq, sk = rng.choice([1, rng.randint(1, 700)]), rng.choice([1, rng.randint(1, 700), 128 * rng.randint(1, 5)])
    d = rng.choice([32, 64, 96, 128, 192, 256])
    dtype = rng.choice([torch.float16, torch.bfloat16])
    q, k, v = draw(torch, rng.choice([1, 3]), hk * rng.choice([1, 4]), hk, sq, sk, d, dtype,
                   rng.choice(["bhsd", "bshd", "padded"]))  # fmt: skip
    options = {}
    if rng.random() < 0.5:
        options["is_causal"] = True
    if rng.random() < 0.3:
        options["window"] = (rng.choice([-1, 0, 33, 200]), rng.choice([-1, 0, 5, 130]))
    if rng.random() < 0.25:
        options["softcap"] = 3.0
    if rng.random() < 0.3:
        shape = rng.choice([(sq, sk), (q.shape[1], 1, sk), (q.shape[0], 1, sq, sk)])
        options["bias"] = torch.randn(shape, device="cuda").to(rng.choice([torch.float32, dtype]))
    out, lse = tw.attention(q, k, v, return_lse=True, **options)
    judge(torch, out, lse, q, k, v, **options)
    again, _ = tw.attention(q, k, v, return_lse=True, **options)
    assert torch.equal(out, again), "the same bits twice, on the warm path too"


@pytest.mark.parametrize("d", [8, 40, 80, 100, 160])
def test_head_sizes_that_are_padded(torch, d):
    q, k, v = (torch.randn(2, 3, n, d, device="cuda", dtype=torch.bfloat16) for n in (130, 201, 201))
    out, lse = tw.attention(q, k, v, is_causal=True, return_lse=True)
    judge(torch, out, lse, q, k, v, is_causal=True)


@pytest.mark.parametrize("d", [32, 40])
def test_more_entries_than_a_grids_last_axis_holds(torch, d):
    q, k, v = (torch.randn(70000, 2, n, d, device="cuda").half() for n in (3, 5, 5))
    out, lse = tw.attention(q, k, v, is_causal=True, return_lse=True)
    judge(torch, out, lse, q, k, v, is_causal=True)


def test_a_mask_of_the_most_negative_number_leaves_what_it_hides_wholly_finite(torch):
    q, k, v = (torch.randn(1, 2, n, 64, device="cuda").half() for n in (130, 200, 200))
    bias = torch.zeros(130, 200, device="cuda")
    bias[:, 90:] = bias[7] = torch.finfo(torch.float32).min
    out, lse = tw.attention(q, k, v, bias=bias, return_lse=True)
    judge(torch, out, None, q, k, v, bias=bias)
    assert torch.isfinite(lse).all()


def test_a_function_of_the_score(torch):
    q, k, v = (torch.randn(2, 4, n, 64, device="cuda", dtype=torch.bfloat16) for n in (130, 200, 200))
    place, key = torch.arange(130, device="cuda")[:, None], torch.arange(200, device="cuda")[None, :]
    slopes = 2.0 ** -(torch.arange(4, device="cuda")[:, None, None] + 1)
    for _ in range(2):
        out = tw.attention(q, k, v, score=lambda s, b, h, i, j: s - 2.0 ** -(h + 1) * abs(i - j))
        judge(torch, out, None, q, k, v, bias=-slopes * (place - key).abs())


@pytest.mark.parametrize("which", range(4))
def test_operands_at_odd_addresses_are_copied(torch, which):
    shapes = [(2, 3, 100, 64), (2, 3, 90, 64), (2, 3, 90, 64), (2, 3, 100, 64)]
    given = [torch.randn(shape, device="cuda").half() for shape in shapes]
    whole = torch.full((given[which].numel() + 9,), math.nan, device="cuda", dtype=torch.float16)
    odd = whole[1 : 1 + given[which].numel()].view(shapes[which])
    odd.copy_(given[which])
    moved = list(given)
    moved[which] = odd
    assert tw.attention(*moved[:3], out=moved[3]) is moved[3]
    judge(torch, moved[3], None, *given[:3])
    assert whole[0].isnan()
    assert whole[1 + odd.numel() :].isnan().all()


def test_out_is_written_whole_and_nothing_beside_it(torch):
    q, k, v = (torch.randn(2, 3, 77, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    whole = torch.full((q.numel() + 1024,), math.nan, device="cuda", dtype=torch.bfloat16)
    out = whole[512:-512].view(q.shape)
    for _ in range(2):
        out.fill_(math.nan)
        assert tw.attention(q, k, v, out=out) is out
        judge(torch, out, None, q, k, v)
    assert whole[:512].isnan().all()
    assert whole[-512:].isnan().all()
    with pytest.raises(InvalidOperand, match="overlaps"):
        tw.attention(q, k, v, out=q)


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"window": (64, 3)}], ids=str)
@pytest.mark.parametrize("asked", [True, False])
def test_packed_batches(torch, options, asked):
    lengths = [(1, 1), (300, 300), (0, 5), (129, 64), (64, 500), (7, 0)]
    starts = [torch.tensor([0, *np.cumsum([pair[n] for pair in lengths])], device="cuda").int() for n in (0, 1)]
    rows = [int(s[-1]) for s in starts]
    q = torch.randn(rows[0], 4, 64, device="cuda").half()
    k, v = (torch.randn(rows[1] + 3, 2, 64, device="cuda").half() for _ in range(2))
    k[rows[1] :] = math.nan
    v[rows[1] :] = math.nan
    for _ in range(2):
        out, lse = tw.attention_varlen(
            q, k, v, *starts, max_seqlen_q=None if asked else 300, return_lse=True, **options
        )
        for n, (sq, _) in enumerate(lengths):
            mine, keys = (slice(int(s[n]), int(s[n + 1])) for s in starts)
            if sq:
                part = [x[y].transpose(0, 1)[None] for x, y in ((out, mine), (q, mine), (k, keys), (v, keys))]
                judge(torch, part[0], lse[:, mine][None], *part[1:], **options)


@pytest.mark.parametrize("d", [64, 128, 256])
@pytest.mark.parametrize("is_causal", [False, True])
def test_many_entries_of_uneven_lengths(torch, d, is_causal):
    """More tiles than the GPU makes at once, tiles without rows, and neighbours that hold infinities."""
    rng = random.Random(d)
    lengths = [rng.choice([0, 1, rng.randint(2, 90), rng.randint(90, 1500)]) for _ in range(60)]
    starts = [sum(lengths[:i]) for i in range(61)]
    q, k, v = (torch.randn(starts[-1], heads, d, device="cuda").half() for heads in (8, 2, 2))
    bad = max(range(60), key=lengths.__getitem__)
    v[starts[bad] : starts[bad + 1]] = math.inf
    at = torch.tensor(starts, dtype=torch.int32, device="cuda")
    out, lse = tw.attention_varlen(q, k, v, at, at, is_causal=is_causal, return_lse=True)
    for entry in range(60):
        part = slice(*starts[entry : entry + 2])
        if entry != bad and lengths[entry]:
            own = [x[part].transpose(0, 1)[None] for x in (q, k, v)]
            judge(torch, out[part].transpose(0, 1)[None], lse[None, :, part], *own, is_causal=is_causal)


def test_starts_that_lie_cannot_reach_beyond_the_operands(torch):
    q, k, v = (torch.randn(100, 2, 64, device="cuda").half() for _ in range(3))
    starts = torch.tensor([-70, 50, 4000, 2**31 - 1], device="cuda", dtype=torch.int32)
    tw.attention_varlen(q, k, v, starts, starts, max_seqlen_q=4000)
    torch.cuda.synchronize()


# --- kinds of arrays, streams ----------------------------------------------------------------------------------------


def test_cupy_jax_dlpack_and_numpy_give_what_torch_gives(torch, cupy):
    q, k, v = (torch.randn(1, 2, 50, 64, device="cuda").half() for _ in range(3))
    want = tw.attention(q, k, v)
    out, lse = tw.attention(*(cupy.from_dlpack(x) for x in (q, k, v)), return_lse=True)
    assert isinstance(out, cupy.ndarray)
    assert lse.dtype == np.float32
    assert torch.equal(torch.from_dlpack(out), want)
    host = tw.attention(*(x.cpu().numpy() for x in (q, k, v)))
    assert isinstance(host, np.ndarray)
    np.testing.assert_array_equal(host, want.cpu().numpy())
    starts = cupy.asarray([0, 20, 50], dtype=np.int32)
    packed = [cupy.ascontiguousarray(cupy.from_dlpack(x)[0].swapaxes(0, 1)) for x in (q, k, v)]
    assert tw.attention_varlen(*packed, starts, starts).shape == packed[0].shape


def test_it_runs_in_torchs_current_stream(torch):
    q, k, v = (torch.randn(2, 4, 256, 64, device="cuda").half() for _ in range(3))
    want = tw.attention(q, k, v)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        late = torch.zeros_like(q)
        late.copy_(q)
        out = tw.attention(late, k, v)
    stream.synchronize()
    assert torch.equal(out, want)


def test_a_captured_graph_replays(torch):
    q, k, v = (torch.randn(2, 4, 200, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    out = torch.empty_like(q)
    tw.attention(q, k, v, out=out, is_causal=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tw.attention(q, k, v, out=out, is_causal=True)
    q.copy_(torch.randn_like(q))
    out.fill_(math.nan)
    graph.replay()
    torch.cuda.synchronize()
    judge(torch, out, None, q, k, v, is_causal=True)


def test_the_second_call_takes_the_warm_path_also_on_a_new_thread(torch, monkeypatch):
    warm_attention = attention_warm.warm_attention
    q, k, v = (torch.randn(1, 2, 70, 64, device="cuda").half() for _ in range(3))
    bias = torch.randn(70, device="cuda")
    want = tw.attention(q, k, v, bias=bias, window=(8, 8), return_lse=True)
    warm = []

    def watched(*given):
        warm.append(warm_attention(*given))
        return warm[-1]

    monkeypatch.setattr("tilewright.attn.attention.warm_attention", watched)
    got = [tw.attention(q, k, v, bias=bias, window=(8, 8), return_lse=True)]
    thread = threading.Thread(
        target=lambda: got.append(tw.attention(q, k, v, bias=bias, window=(8, 8), return_lse=True))
    )
    thread.start()
    thread.join()
    assert warm[0] is not attention_warm.MISS
    for mine in got:
        assert all(torch.equal(x, y) for x, y in zip(mine, want, strict=True))


# --- torch's operator ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_the_operator_keeps_torchs_contract(torch, layout):
    q, k, v = draw(torch, 2, 4, 2, 65, 130, 64, torch.bfloat16, layout)
    given = [x.requires_grad_() for x in (q, k, v)]
    assert tw.torch.attention  # registers the operator
    operator = torch.ops.tilewright.attention.default
    torch.library.opcheck(operator, (*given, None, True, 0.2, -1, -1, 0.0), atol=2e-2, rtol=2e-2)


def test_compiled_code_is_one_graph_and_right(torch):
    q, k, v = (torch.randn(2, 4, 333, 64, device="cuda").half().requires_grad_() for _ in range(3))

    def block(q, k, v):
        return tw.torch.scaled_dot_product_attention(torch.relu(q), k, v, is_causal=True) * 2

    out = torch.compile(block, fullgraph=True)(q, k, v)
    weight = torch.randn_like(out)
    found = torch.autograd.grad(out, (q, k, v), weight)

    def by_torch(q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(torch.relu(q), k, v, is_causal=True) * 2

    want = by_torch(q, k, v)
    right = torch.autograd.grad(want, (q, k, v), weight)
    torch.testing.assert_close(out, want, atol=4e-3, rtol=4e-3)
    for ours, theirs in zip(found, right, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-2, rtol=2e-2)
