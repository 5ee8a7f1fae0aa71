"""Attention with its keys in parts, on the emulator: against float64, with workspaces that are poisoned."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from test_attention_op import judge, operands

import tilewright as tw
from tilewright import emu
from tilewright.attn.problem import AttentionProblem
from tilewright.attn.rung import _ARGS, D_HEADS, AttentionAddresses
from tilewright.attn.rungs import find_attention_rung
from tilewright.attn.split import _ARGS as _SPLIT_ARGS
from tilewright.attn.split import SPLIT_RUNGS, SplitConfig
from tilewright.errors import ConfigRejected
from tilewright.gpus import GPUS, find_arch
from tilewright.jit import compile_source

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
    names = ["seq_q", "part_rows", "results", "sums", "used", "parts", "tiles", "part_tiles"]
    stores = "\n".join(f"  to[{i}] = (long long)args.{name};" for i, name in enumerate(names))
    source = f"""
    #include "attention/split_args.cuh"
    static_assert(sizeof(SplitArgs) == {struct.calcsize(_ARGS) + struct.calcsize(_SPLIT_ARGS)});
    extern "C" __global__ void k(const __grid_constant__ SplitArgs args, long long* to) {{
{stores}
    }}"""
    problem = AttentionProblem.dense(1, 8, 9, 1000, 32, heads_kv=2)
    config = SplitConfig(32, 16, 16, 1, 2, 3, part_keys=64)
    launch = D01.launch(problem, config, AttentionAddresses(1, 2, 3, 4, used=5, parts=(6, 7)))
    out = np.full(len(names), -1, np.int64)
    memory = emu.GlobalMemory()
    params = launch.params + struct.pack("<Q", memory.add(out.view(np.uint8), "out"))
    kernel = compile_source(source, entry="k")
    emu.run(kernel.ptx, "k", grid=(1, 1, 1), block=(1, 1, 1), params=params, memory=memory)
    values = memory.read(struct.unpack("<Q", params[-8:])[0], out.nbytes).view(np.int64)
    assert list(values) == [9, 16, 6, 7, 5, 16, 3, 4]
    assert launch.grid == (16 * 3, 2, 1)


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
