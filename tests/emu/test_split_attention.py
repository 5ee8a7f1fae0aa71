"""Attention with its keys in parts, on the emulator: against float64, with workspaces that are poisoned."""

from __future__ import annotations

import re
import struct
from dataclasses import replace

import numpy as np
import pytest
from test_attention_op import judge, operands

import tilewright as tw
from tilewright import emu
from tilewright.attn import split_plan
from tilewright.attn.config import D_HEADS
from tilewright.attn.family import plan_attention
from tilewright.attn.problem import AttentionProblem
from tilewright.attn.rung import _ARGS, AttentionAddresses
from tilewright.attn.rungs import find_attention_rung
from tilewright.attn.split import _ARGS as _SPLIT_ARGS
from tilewright.attn.split import SPLIT_RUNGS, SplitConfig
from tilewright.errors import ConfigRejected, InvalidOperand
from tilewright.gpus import GPUS, find_arch
from tilewright.jit import compile_source
from tilewright.plan.demands import Demands

(D01,) = SPLIT_RUNGS
SMALL = SplitConfig(32, 16, 16, 1, 2, 3)


def split(q, k, v, config, **options):
    with tw.emulator():
        return tw.attention(q, k, v, config=str(config), return_lse=True, **options)


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 40])
@pytest.mark.parametrize(("sq", "sk"), [(1, 1), (1, 15), (1, 300), (5, 129), (17, 64)])
def test_any_number_of_parts_gives_the_result(parts, sq, sk):
    q, k, v = operands(2, 4, 2, sq, sk, 32)
    config = SplitConfig(32, 16, 16, 1, 2, 3, parts)
    judge(*split(q, k, v, config), q, k, v)
    judge(*split(q, k, v, config, is_causal=True), q, k, v, is_causal=True)


@pytest.mark.parametrize("group", [1, 2, 3, 5, 8, 16])
@pytest.mark.parametrize("queries", [1, 3, 7])
def test_heads_that_share_keys_are_rows_of_one_tile(group, queries):
    q, k, v = operands(1, 2 * group, 2, queries, 70, 32)
    config = SplitConfig(32, 32, 16, 2, 2, 2, 3)
    judge(*split(q, k, v, config, is_causal=True, window=(40, -1)), q, k, v, is_causal=True, window=(40, -1))


@pytest.mark.parametrize("d", D_HEADS)
@pytest.mark.parametrize("sliced_q", [False, True])
def test_every_head_size(d, sliced_q):
    q, k, v = operands(1, 4, 1, 2, 90, d)
    judge(*split(q, k, v, SplitConfig(d, 16, 16, 1, 2, 2, 2, sliced_q=sliced_q)), q, k, v)


@pytest.mark.parametrize(
    "config",
    [
        SplitConfig(64, 16, 64, 1, 1, 2, 2), SplitConfig(64, 16, 16, 1, 8, 4, 2), SplitConfig(64, 64, 32, 4, 1, 3),
        SplitConfig(64, 64, 32, 2, 2, 2, 2), SplitConfig(64, 128, 32, 4, 2, 2, 3, sliced_q=True),
        SplitConfig(64, 128, 32, 8, 1, 2), SplitConfig(64, 32, 32, 1, 4, 3, part_keys=64),
    ],
    ids=str,
)  # fmt: skip
def test_every_way_to_share_a_block_out(config):
    q, k, v = operands(1, 6, 2, 40, 200, 64)
    assert D01.why_not(AttentionProblem.dense(1, 6, 40, 200, 64, heads_kv=2), config, GPUS["H200"].arch) is None
    judge(*split(q, k, v, config, is_causal=True), q, k, v, is_causal=True)


def test_what_scores_go_through_counts_heads_and_queries_of_packed_rows():
    q, k, v = operands(2, 6, 2, 5, 100, 32)
    bias = np.random.default_rng(0).standard_normal((2, 6, 5, 100)).astype(np.float32)
    config = SplitConfig(32, 16, 16, 1, 2, 2, 3)
    out, lse = split(q, k, v, config, bias=bias, softcap=3.0)
    judge(out, lse, q, k, v, bias=bias, softcap=3.0)
    with tw.emulator():
        out = tw.attention(
            q, k, v, score=lambda s, b, h, i, j: s - 0.1 * h + 0.01 * j * (h + b) - 0.2 * i, config=str(config)
        )
    judge(out, None, q, k, v, score=lambda s, b, h, i, j: s - 0.1 * h + 0.01 * j * (h + b) - 0.2 * i)


def test_rows_and_parts_without_a_key_give_nothing():
    q, k, v = operands(1, 2, 1, 9, 4, 32)
    judge(*split(q, k, v, SplitConfig(32, 16, 16, 1, 2, 2, 3), is_causal=True), q, k, v, is_causal=True)
    q, k, v = operands(1, 2, 1, 3, 0, 32)
    out, lse = split(q, k, v, SplitConfig(32, 16, 16, 1, 2, 2, 2))
    assert not out.any()
    assert np.isneginf(lse).all()


def test_parts_whose_scores_are_the_least_number_weigh_by_their_keys():
    q, k, v = operands(1, 1, 1, 1, 80, 32)
    bias = np.full((1, 1, 1, 80), np.finfo(np.float32).min)
    out, _ = split(q, k, v, SplitConfig(32, 16, 16, 1, 2, 2, part_keys=64), bias=bias)
    assert np.abs(out[0, 0, 0] - v[0, 0].astype(np.float64).mean(0)).max() < 2e-3


@pytest.mark.parametrize("order", ["bshd", "broadcast"])
def test_strides_of_keys(order):
    q, k, v = operands(2, 4, 2, 3, 50, 32)
    if order == "bshd":
        q, k, v = (x.transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3) for x in (q, k, v))
    else:
        k = np.broadcast_to(k[:, :1], k.shape)
    judge(*split(q, k, v, SplitConfig(32, 16, 16, 1, 2, 2, 2)), q, k, v)


def test_parts_of_a_length_give_the_same_bits_in_any_batch():
    config = SplitConfig(32, 16, 16, 1, 2, 3, part_keys=64)
    q, k, v = operands(5, 4, 2, 2, 300, 32)
    out, lse = split(q, k, v, config)
    for b in (0, 3):
        alone = split(q[b : b + 1], k[b : b + 1], v[b : b + 1], config)
        assert (alone[0][0] == out[b]).all()
        assert (alone[1][0] == lse[b]).all()


def test_a_rows_bits_do_not_depend_on_other_rows():
    q, k, v = operands(1, 2, 2, 8, 130, 32)
    out, _ = split(q, k, v, SplitConfig(32, 16, 16, 1, 2, 3, part_keys=64))
    louder = q.copy()
    louder[0, :, 1:] *= 30
    other, _ = split(louder, k, v, SplitConfig(32, 16, 16, 1, 2, 3, part_keys=64))
    assert (out[0, :, 0] == other[0, :, 0]).all()


def test_the_packed_parameters_are_the_device_codes():
    names = [
        "seq_q",
        "part_rows",
        "results",
        "sums",
        "used",
        "pages",
        "parts",
        "tiles",
        "part_keys",
        "page_row",
        "page_count",
    ]
    stores = "\n".join(f"  to[{i}] = (long long)args.{name};" for i, name in enumerate(names))
    source = f"""
    #include "attention/split_args.cuh"
    static_assert(sizeof(SplitArgs) == {struct.calcsize(_ARGS) + struct.calcsize(_SPLIT_ARGS)});
    extern "C" __global__ void k(const __grid_constant__ SplitArgs args, long long* to) {{
{stores}
    }}"""
    problem = AttentionProblem.dense(1, 8, 9, 1000, 32, heads_kv=2)
    config = SplitConfig(32, 16, 16, 1, 2, 3, part_keys=64)
    launch = D01.launch(problem, config, AttentionAddresses(1, 2, 3, 4, used=5, pages=8, parts=(6, 7)))
    out = np.full(len(names), -1, np.int64)
    memory = emu.GlobalMemory()
    params = launch.params + struct.pack("<Q", memory.add(out.view(np.uint8), "out"))
    kernel = compile_source(source, entry="k")
    emu.run(kernel.ptx, "k", grid=(1, 1, 1), block=(1, 1, 1), params=params, memory=memory)
    values = memory.read(struct.unpack("<Q", params[-8:])[0], out.nbytes).view(np.int64)
    assert list(values) == [9, 16, 6, 7, 5, 8, 16, 3, 64, 0, 0]
    assert launch.grid == (16 * 3, 2, 1)


def test_parts_without_room_are_refused_and_not_written_to_address_0():
    problem = AttentionProblem.dense(1, 8, 9, 1000, 32, heads_kv=2)
    with pytest.raises(ValueError, match=r"4 parts.*at\.parts is none"):
        D01.launch(problem, SplitConfig(32, 16, 16, 1, 2, 3, 4), AttentionAddresses(1, 2, 3, 4))
    assert D01.launch(problem, SplitConfig(32, 16, 16, 1, 2, 3), AttentionAddresses(1, 2, 3, 4)).grid == (3, 2, 1)


def test_configs_have_a_text_and_reasons():
    for config in (*D01.defaults, SplitConfig(128, 64, 32, 4, 2, 3, 7, sliced_q=True, min_blocks=2),
                   SplitConfig(64, 16, 16, 1, 8, 3, part_keys=2048)):  # fmt: skip
        assert SplitConfig.parse(str(config)) == config
        assert config.why_not() is None
    assert "multiple of 32" in SplitConfig(128, 16, 32, 2, 1).why_not()
    assert "stages=1" in SplitConfig(128, 16, 32, stages=1).why_not()
    assert "multiple of b_c=32" in SplitConfig(128, 16, 32, part_keys=40).why_not()
    problem = AttentionProblem.dense(1, 1, 1, 100, 128)
    assert "B of shared memory" in D01.why_not(problem, SplitConfig(128, 16, 64, 1, 8, 4), GPUS["H200"].arch)
    a17 = find_attention_rung("a17")
    assert "another kind" in a17.why_not(problem, D01.defaults[2], GPUS["H200"].arch)
    assert "split attention" in D01.why_not(problem, a17.defaults[2], GPUS["H200"].arch)
    with pytest.raises(ConfigRejected, match="not a config of split attention"):
        SplitConfig.parse("(128, 16, 32): 3 stages")


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_120"])
@pytest.mark.parametrize("d", D_HEADS)
def test_there_is_a_config_for_every_head_size_on_every_architecture(arch, d):
    problem, target = AttentionProblem.dense(1, 4, 1, 1000, d), find_arch(arch)
    assert D01.why_not(problem, D01.default(problem, target), target) is None
    assert all(config.why_not() is None and config.d_head == d for config in D01.space(d))


# --- packed entries ---------------------------------------------------------------------------------------------------


def packed(lengths, heads, heads_kv, d, rows_after=0):
    """q, k, v of entries of (queries, keys), and where they begin."""
    starts = [[0, *np.cumsum([pair[n] for pair in lengths]).tolist()] for n in (0, 1)]
    q = operands(1, heads, heads_kv, starts[0][-1] + rows_after, 1, d)[0][0].swapaxes(0, 1).copy()
    k, v = (x[0].swapaxes(0, 1).copy() for x in operands(1, heads, heads_kv, 1, starts[1][-1] + rows_after, d)[1:])
    return q, k, v, starts


def judge_packed(out, lse, q, k, v, starts, **options):
    for first, end, key, last in zip(starts[0], starts[0][1:], starts[1], starts[1][1:], strict=False):
        if first < end:
            part = [x.swapaxes(0, 1)[None] for x in (out[first:end], q[first:end], k[key:last], v[key:last])]
            judge(part[0], lse[:, first:end][None], *part[1:], **options)


RAGGED = [(1, 1), (1, 200), (0, 90), (3, 64), (1, 0), (40, 130), (1, 65), (2, 128)]


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"window": (20, 2)}], ids=str)
@pytest.mark.parametrize("part_keys", [0, 32, 64, 1024])
def test_packed_entries_of_any_lengths(part_keys, options):
    q, k, v, starts = packed(RAGGED, 4, 2, 32, rows_after=5)
    k[starts[1][-1] :] = v[starts[1][-1] :] = np.nan
    config = SplitConfig(32, 16, 16, 1, 2, 3, part_keys=part_keys)
    with tw.emulator():
        out, lse = tw.attention_varlen(q, k, v, *starts, config=str(config), return_lse=True, **options)
    judge_packed(out, lse, q, k, v, starts, **options)


def test_many_packed_entries_find_their_blocks():
    lengths = [(1, 3 + n % 50) for n in range(70)] + [(0, 0)] * 3 + [(5, 40)]
    q, k, v, starts = packed(lengths, 1, 1, 32)
    for config in (SplitConfig(32, 16, 16, 1, 1, 2, part_keys=16), "(32, 32, 32, 2): load_0_2_2_fragments"):
        with tw.emulator():
            out, lse = tw.attention_varlen(q, k, v, *starts, config=str(config), return_lse=True)
        judge_packed(out, lse, q, k, v, starts)


def test_a_packed_entrys_bits_do_not_depend_on_the_others():
    config = str(SplitConfig(32, 16, 16, 1, 2, 3, part_keys=32))
    q, k, v, starts = packed(RAGGED, 4, 2, 32)
    with tw.emulator():
        out = tw.attention_varlen(q, k, v, *starts, config=config)
        for n, (queries, keys) in enumerate(RAGGED):
            mine, own = (slice(starts[x][n], starts[x][n + 1]) for x in (0, 1))
            if queries:
                alone = tw.attention_varlen(q[mine], k[own], v[own], [0, queries], [0, keys], config=config)
                assert (alone == out[mine]).all()


@pytest.mark.parametrize("starts", [[-70, 50, 4000, 2**30], [50, 90, 10, 40], [100, 0, 0, 100]])
@pytest.mark.parametrize("config", [str(SplitConfig(32, 16, 16, 1, 1, 2, part_keys=16)), None], ids=str)
def test_starts_that_lie_cannot_reach_beyond_the_operands(starts, config, monkeypatch):
    monkeypatch.setattr("tilewright.attn.cu_seqlens.check_starts", lambda *_: None)
    q, k, v, _ = packed([(100, 100)], 2, 1, 32)
    with tw.emulator():  # which reports accesses outside of them
        tw.attention_varlen(q, k, v, starts, starts, config=config)


# --- caches that are not full -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [SplitConfig(32, 16, 16, 1, 2, 3, 3), SplitConfig(32, 16, 16, 1, 2, 2, part_keys=64),
                                    SplitConfig(32, 16, 16, 1, 2, 2)], ids=str)  # fmt: skip
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"window": (30, -1), "is_causal": True}], ids=str)
def test_keys_past_those_used_are_never_read(config, options):
    used = [1, 0, 64, 100, 150, 37]
    q, k, v = operands(6, 4, 2, 2, 150, 32)
    for b, n in enumerate(used):
        k[b, :, n:] = v[b, :, n:] = np.nan
    out, lse = split(q, k, v, config, seqused=used, **options)
    for b, n in enumerate(used):
        judge(out[b : b + 1], lse[b : b + 1], q[b : b + 1], k[b : b + 1, :, :n], v[b : b + 1, :, :n], **options)


def test_a_longer_cache_does_not_change_the_bits():
    config = SplitConfig(32, 16, 16, 1, 2, 3, part_keys=64)
    q, k, v = operands(2, 4, 2, 1, 400, 32)
    out, _ = split(q, k, v, config, seqused=[130, 70])
    shorter, _ = split(q, k[:, :, :150], v[:, :, :150], config, seqused=[130, 70])
    exact, _ = split(q[:1], k[:1, :, :130], v[:1, :, :130], config)
    assert (out == shorter).all()
    assert (out[:1] == exact).all()


# --- caches in pages --------------------------------------------------------------------------------------------------


def in_pages(x, page, seed=0):
    """The keys of [b, h, s, d] in pages that lie in no order, NaN where there is no key, and the table; its numbers of
    pages that are not there are far away."""
    b, h, s, d = x.shape
    count = -(-s // page)
    order = np.random.default_rng(seed).permutation(b * count + 3)
    pages = np.full((b * count + 3, h, page, d), np.nan, x.dtype)
    table = np.full((b, count + 2), 2**31 - 1, np.int32)
    for n in range(b * count):
        rows = x[n // count, :, n % count * page : n % count * page + page]
        pages[order[n], :, : rows.shape[1]] = rows
        table[n // count, n % count] = order[n]
    return pages, table


@pytest.mark.parametrize("page", [16, 64, 256])
@pytest.mark.parametrize(("config", "layout"), [
    (SplitConfig(32, 16, 16, 1, 2, 3, 3), "bhsd"), (SplitConfig(32, 16, 16, 1, 4, 2, part_keys=64), "bshd"),
    (SplitConfig(32, 32, 16, 2, 1, 4), "bhsd"),
], ids=str)  # fmt: skip
def test_keys_in_pages_give_the_bits_of_keys_in_rows(page, config, layout):
    used = [150, 0, 97, 16]
    q, k, v = operands(4, 4, 2, 2, 150, 32)
    whole, lse = split(q, k, v, config, seqused=used, is_causal=True)
    (k_pages, table), (v_pages, _) = (in_pages(x, page) for x in (k, v))
    if layout == "bshd":
        q, k_pages, v_pages = (x.swapaxes(1, 2).copy() for x in (q, k_pages, v_pages))
    options = {"seqused": used, "block_table": table, "layout": layout}
    out, own = split(q, k_pages, v_pages, config, is_causal=True, **options)
    if layout == "bshd":
        out = out.swapaxes(1, 2)
    assert (out == whole).all()
    assert (own == lse).all()


def test_pages_are_refused_where_tiles_of_keys_do_not_fit():
    q, k, v = operands(2, 2, 2, 1, 64, 32)
    pages, table = in_pages(k, 16)
    table = table[:, :4].copy()
    with tw.emulator():
        with pytest.raises(ConfigRejected, match="do not hold whole ones"):
            tw.attention(q, pages, pages, block_table=table, config=str(SplitConfig(32, 16, 32, 1, 2, 2)))
        with pytest.raises(ConfigRejected, match="not caches with seqused or pages"):
            tw.attention(q, pages, pages, block_table=table, rung="a17")
        with pytest.raises(InvalidOperand, match="pages of 24 keys"):
            tw.attention(q, k[:, :, :24], v[:, :, :24], block_table=table)
        with pytest.raises(InvalidOperand, match="a row for each"):
            tw.attention(q, pages, pages, block_table=table[:1])
        with pytest.raises(InvalidOperand, match=r"integers \[batch, pages\]"):
            tw.attention(q, pages, pages, block_table=table[0])


@pytest.mark.parametrize("wrong", [-1, 11])
def test_pages_that_are_not_there_are_refused_where_used_keys_lie_in_them(wrong):
    q, k, v = operands(2, 2, 2, 1, 64, 32)
    (k_pages, table), (v_pages, _) = (in_pages(x, 16) for x in (k, v))
    table[1, 2] = wrong
    with tw.emulator():
        out = tw.attention(q, k_pages, v_pages, block_table=table, seqused=[64, 32])
        for used in ([64, 33], None):
            with pytest.raises(InvalidOperand, match=rf"block_table\[1, 2\] is {wrong}, .*k has pages 0 to 10\."):
                tw.attention(q, k_pages, v_pages, block_table=table[:, :4], seqused=used)
    judge(out[1:], None, q[1:], k[1:, :, :32], v[1:, :, :32])


# --- as it is planned -------------------------------------------------------------------------------------------------


def test_the_plan_splits_few_queries_on_many_keys_and_says_why():
    one = AttentionProblem.dense(1, 32, 1, 65536, 128, heads_kv=8)
    found = plan_attention(one, GPUS["H200"])
    assert found.rung is D01
    assert found.config.parts > 1
    assert re.search(rf"keys in {found.config.parts} parts: \d+ blocks on 132 SMs", found.why)
    long = plan_attention(AttentionProblem.dense(4, 16, 4096, 4096, 128), GPUS["H200"])
    assert long.rung is not D01


@pytest.mark.parametrize("gpu", ["H200", "A100", "RTX 4090"])
@pytest.mark.parametrize("d", D_HEADS)
@pytest.mark.parametrize(("queries", "group"), [(1, 1), (1, 16), (7, 8), (300, 4)])
def test_caches_have_a_plan_on_every_gpu(gpu, d, queries, group):
    problem = replace(AttentionProblem.dense(3, 2 * group, queries, 5000, d, heads_kv=2), seqused=True)
    for at in (problem, replace(problem, pages=(16, 400, 900))):
        found = plan_attention(at, GPUS[gpu])
        assert found.rung.why_not(at, found.config, GPUS[gpu].arch) is None
        fixed = plan_attention(at, GPUS[gpu], demands=Demands(batch_invariant=True))
        assert (
            fixed.config
            == plan_attention(replace(at, batch=50), GPUS[gpu], demands=Demands(batch_invariant=True)).config
        )


@pytest.mark.parametrize("queries", [1, 5, 200])
def test_batch_invariant_calls_give_an_entry_the_same_bits_anywhere(queries, monkeypatch):
    monkeypatch.setattr(split_plan, "PART_KEYS", 128)  # so that keys are in parts at these lengths
    q, k, v = operands(3, 4, 2, queries, 400, 32)
    used = [400, 130, 57]
    with tw.emulator():
        out, lse = tw.attention(q, k, v, seqused=used, is_causal=True, batch_invariant=True, return_lse=True)
        alone = [
            tw.attention(q[b : b + 1], k[b : b + 1, :, : n + 3], v[b : b + 1, :, : n + 3], seqused=[n], is_causal=True,
                         batch_invariant=True, return_lse=True) for b, n in enumerate(used)
        ]  # fmt: skip
        plain = tw.attention(q, k, v, batch_invariant=True)
        assert (tw.attention(q[1:2], k[1:2], v[1:2], batch_invariant=True) == plain[1:2]).all()
    for b, n in enumerate(used):
        assert (alone[b][0] == out[b : b + 1]).all()
        assert (alone[b][1] == lse[b : b + 1]).all()
        judge(out[b : b + 1], lse[b : b + 1], q[b : b + 1], k[b : b + 1, :, :n], v[b : b + 1, :, :n], is_causal=True)


def test_batch_invariant_packed_entries_have_the_same_bits_anywhere(monkeypatch):
    monkeypatch.setattr(split_plan, "PART_KEYS", 64)
    q, k, v, starts = packed(RAGGED, 4, 2, 32)
    with tw.emulator():
        out, lse = tw.attention_varlen(q, k, v, *starts, batch_invariant=True, return_lse=True)
        judge_packed(out, lse, q, k, v, starts)
        for n, (queries, keys) in enumerate(RAGGED):
            mine, own = (slice(starts[x][n], starts[x][n + 1]) for x in (0, 1))
            if queries:
                alone = tw.attention_varlen(q[mine], k[own], v[own], [0, queries], [0, keys], batch_invariant=True)
                assert (alone == out[mine]).all()


def test_explain_tells_of_the_cache_and_of_the_parts():
    q, k = np.zeros((1, 8, 1, 128), np.float16), np.zeros((1, 2, 16384, 128), np.float16)
    told = " ".join(str(tw.explain_attention(q, k, k, seqused=[9000], gpu="H200")).split())
    assert "as many keys of each entry as seqused says" in told
    assert "runs d01_split, config (128, 16, 32): 1x4 warps, 3 stages, " in told
    assert re.search(r"keys in \d+ parts", told)
    fixed = " ".join(str(tw.explain_attention(q, k, k, batch_invariant=True, gpu="H200")).split())
    assert "parts of 2048 keys" in fixed
    assert "source batch_invariant" in fixed
