"""Attention with its keys in parts, on the GPU: against float64, caches that are not full, packed entries, graphs."""

from __future__ import annotations

import math
from itertools import accumulate

import pytest

import tilewright as tw
from tilewright.lab.attention_check import ROUNDOFF

pytestmark = pytest.mark.gpu

CONFIGS = {
    32: "(32, 16, 16): 1x4 warps, 3 stages", 64: "(64, 16, 32): 1x4 warps, 3 stages",
    96: "(96, 32, 32): 2x2 warps, 2 stages", 128: "(128, 16, 32): 1x4 warps, 3 stages",
    192: "(192, 16, 16): 1x4 warps, 3 stages", 256: "(256, 16, 16): 1x2 warps, 2 stages",
}  # fmt: skip
TAILS = ["", ", 3 parts", ", 7 parts", ", parts of 128 keys"]


def made(torch, *shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def judge(torch, out, lse, q, k, v, is_causal=False, window=(-1, -1)):
    """Hold [b, h, sq, d] to float64."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(group, 1) for x in (k, v))
    queries, keys = q.shape[2], k.shape[2]
    scores = q.double() @ k.transpose(-1, -2) / math.sqrt(q.shape[3])
    place = torch.arange(queries, device="cuda")[:, None] + keys - queries
    key = torch.arange(keys, device="cuda")[None]
    hidden = torch.zeros(queries, keys, dtype=torch.bool, device="cuda")
    if is_causal:
        hidden |= key > place
    if window[0] >= 0:
        hidden |= key < place - window[0]
    if window[1] >= 0:
        hidden |= key > place + window[1]
    scores = scores.masked_fill(hidden, -math.inf)
    weights = torch.nan_to_num(torch.softmax(scores, -1), nan=0.0)
    right = weights @ v
    allowed = (ROUNDOFF["bf16"] + 2.0**-14) * (weights @ v.abs()) + 2.0**-8 * right.abs() + 1e-6
    assert torch.isfinite(out).all()
    assert ((out.double() - right).abs() <= allowed).all()
    if lse is not None:
        seen = torch.isfinite(want := torch.logsumexp(scores, -1))
        assert torch.isneginf(lse[~seen]).all()
        assert ((lse.double() - want)[seen].abs() <= 1e-3).all()


def replayed(torch, call):
    """The results of a call that was captured in a graph, and the graph."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = call()
    graph.replay()
    torch.cuda.synchronize()
    return found, graph


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("d", CONFIGS)
def test_any_number_of_parts_is_right(torch, d, tail):
    for n, (b, heads, heads_kv, queries, keys) in enumerate([(2, 8, 2, 1, 1000), (1, 6, 2, 5, 777), (3, 4, 4, 17, 64)]):
        options = ({}, {"is_causal": True}, {"window": (100, 3)})[(n + d) % 3]
        q, k, v = made(torch, b, heads, queries, d), *(made(torch, b, heads_kv, keys, d) for _ in range(2))
        out, lse = tw.attention(q, k, v, config=CONFIGS[d] + tail, return_lse=True, **options)
        judge(torch, out, lse, q, k, v, **options)


@pytest.mark.parametrize("tail", ["", ", 5 parts", ", parts of 128 keys"])
def test_keys_past_those_used_are_never_read(torch, tail):
    used = [1, 0, 64, 1000, 999, 37]
    q, k, v = made(torch, 6, 8, 2, 128), *(made(torch, 6, 2, 1000, 128) for _ in range(2))
    for b, n in enumerate(used):
        k[b, :, n:] = v[b, :, n:] = math.nan
    counts = torch.tensor(used, device="cuda", dtype=torch.int32)
    for _ in range(2):  # a call as it is planned, and a warm one
        out, lse = tw.attention(q, k, v, seqused=counts, is_causal=True, config=CONFIGS[128] + tail, return_lse=True)
        for b, n in enumerate(used):
            one = slice(b, b + 1)
            judge(torch, out[one], lse[one], q[one], k[one, :, :n], v[one, :, :n], is_causal=True)


def test_a_graph_sees_new_counts(torch):
    q, k, v = made(torch, 3, 8, 1, 128), *(made(torch, 3, 2, 1000, 128) for _ in range(2))
    counts = torch.full((3,), 1000, device="cuda", dtype=torch.int32)
    out, graph = replayed(torch, lambda: tw.attention(q, k, v, seqused=counts, config=CONFIGS[128] + ", 5 parts"))
    counts.copy_(torch.tensor([7, 500, 1]))
    graph.replay()
    torch.cuda.synchronize()
    for b, n in enumerate((7, 500, 1)):
        one = slice(b, b + 1)
        judge(torch, out[one], None, q[one], k[one, :, :n], v[one, :, :n])


RAGGED = [
    (1, 1),
    (1, 2000),
    (0, 90),
    (3, 64),
    (1, 0),
    (40, 130),
    (1, 65),
    (300, 300),
    *((1, 100 + n) for n in range(60)),
]
PACKED = [
    CONFIGS[128], CONFIGS[128] + ", parts of 128 keys", "(128, 64, 64): 4x1 warps, 3 stages, parts of 512 keys", None,
    "(128, 128, 64, 4): load_2_2_2_fragments",
]  # fmt: skip


@pytest.mark.parametrize("options", [{}, {"is_causal": True}], ids=str)
@pytest.mark.parametrize("config", PACKED)
def test_packed_entries_are_captured_without_their_lengths(torch, config, options):
    starts = [
        torch.tensor([0, *accumulate(pair[n] for pair in RAGGED)], device="cuda", dtype=torch.int32) for n in (0, 1)
    ]
    ends = [[0, *accumulate(pair[n] for pair in RAGGED)] for n in (0, 1)]
    q = made(torch, ends[0][-1] + 3, 8, 128)
    k, v = (made(torch, ends[1][-1] + 9, 2, 128) for _ in range(2))
    k[ends[1][-1] :] = v[ends[1][-1] :] = math.nan
    given = torch.full_like(q, 7)
    (out, lse), _ = replayed(
        torch, lambda: tw.attention_varlen(q, k, v, *starts, config=config, return_lse=True, out=given, **options)
    )
    for n, (queries, _) in enumerate(RAGGED):
        if queries and (n < 12 or n % 9 == 0):
            mine, own = (slice(ends[x][n], ends[x][n + 1]) for x in (0, 1))
            part = [x.transpose(0, 1)[None] for x in (out[mine], q[mine], k[own], v[own])]
            judge(torch, part[0], lse[None, :, mine], *part[1:], **options)
    assert (out[ends[0][-1] :] == 7).all()


@pytest.mark.parametrize("config", [None, CONFIGS[128] + ", parts of 128 keys"])
def test_starts_that_lie_cannot_reach_beyond_the_operands(torch, config):
    q, k, v = (made(torch, 100, 2, 128) for _ in range(3))
    starts = torch.tensor([-70, 90, 10, 4000, 2**31 - 1], device="cuda", dtype=torch.int32)
    tw.attention_varlen(q, k, v, starts, starts, config=config)
    torch.cuda.synchronize()


def in_pages(torch, k, v, page):
    """Keys and values in pages that lie in no order, NaN where there is no key, and the table."""
    batch, heads, rows, d = k.shape
    count = -(-rows // page)
    table = torch.randperm(batch * count, device="cuda").int().view(batch, count).contiguous()
    made = []
    for x in (k, v):
        pages = torch.full((batch * count, heads, page, d), math.nan, device="cuda", dtype=x.dtype)
        for b in range(batch):
            for n in range(count):
                part = x[b, :, n * page : (n + 1) * page]
                pages[table[b, n], :, : part.shape[1]] = part
        made.append(pages)
    return *made, table


@pytest.mark.parametrize("page", [16, 64, 256])
def test_keys_in_pages_give_the_bits_of_keys_in_rows(torch, page):
    q, k, v = made(torch, 3, 8, 2, 128), *(made(torch, 3, 2, 3000, 128) for _ in range(2))
    used = torch.tensor([2999, 17, 1200], device="cuda", dtype=torch.int32)
    rows = tw.attention(q, k, v, seqused=used, is_causal=True, batch_invariant=True)
    k_pages, v_pages, table = in_pages(torch, k, v, page)
    for _ in range(2):
        out = tw.attention(q, k_pages, v_pages, block_table=table, seqused=used, is_causal=True, batch_invariant=True)
        assert torch.equal(out, rows)


@pytest.mark.parametrize(("queries", "group"), [(1, 4), (3, 1), (40, 2), (200, 4)])
@pytest.mark.parametrize("d", [64, 128, 256])
def test_batch_invariant_calls_give_an_entry_the_same_bits_in_any_batch(torch, d, queries, group):
    q = made(torch, 3, 2 * group, queries, d)
    k, v = (made(torch, 3, 2, 3000, d) for _ in range(2))
    out = tw.attention(q, k, v, is_causal=True, batch_invariant=True)
    judge(torch, out, None, q, k, v, is_causal=True)
    alone = tw.attention(q[1:2], k[1:2], v[1:2], is_causal=True, batch_invariant=True)
    assert torch.equal(alone, out[1:2])
