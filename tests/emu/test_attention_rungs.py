"""Every attention rung on the emulator: right at every length, mask, head size and stride, and counted as it says."""

from __future__ import annotations

import pytest
from attention_runs import STRIDED, run_attention

from tilewright.attn.config import AttentionConfig
from tilewright.attn.problem import AttentionProblem
from tilewright.attn.rungs import ATTENTION_RUNGS, find_attention_rung

RUNGS = [rung.id for rung in ATTENTION_RUNGS]


# Lengths 1, 17, 128 and 200 of every rung, with and without the mask, at d_head 128: tests/emu/every_attention_rung.py.
# That takes over a minute; here every rung walks three tiles of keys, the last of them ragged, under the mask. Those
# whose loop is not that of the rung below also meet fewer rows and keys than a tile has.
OTHER_LOOPS = ("a01", "a03", "a05", "a10", "a13", "a17")


@pytest.mark.parametrize(
    ("rung", "d_head", "is_causal"),
    [
        *((rung, 64, True) for rung in RUNGS),
        *((rung, 64, False) for rung in ("a03", "a10")),
        *((rung, 128, True) for rung in ("a04", "a17")),
    ],
)
def test_a_rung_is_right_at_ragged_lengths_with_its_tuned_config(rung, d_head, is_causal):
    for seq in (17, 136) if rung[:3] in OTHER_LOOPS else (136,):
        problem = AttentionProblem.dense(1, 1, seq, seq, d_head, is_causal=is_causal, with_lse=True)
        verdict, _ = run_attention(find_attention_rung(rung), problem)
        assert verdict.ok, (seq, verdict.reason)


@pytest.mark.parametrize(("rung", "is_causal"), [("a02", False), ("a05", False), ("a16", False), ("a17", True)])
def test_a_rung_is_right_at_lengths_that_tiles_divide(rung, is_causal):
    problem = AttentionProblem.dense(1, 2, 128, 128, 64, is_causal=is_causal)
    verdict, _ = run_attention(find_attention_rung(rung), problem)
    assert verdict.ok, verdict.reason


@pytest.mark.parametrize(("rung", "d_head"), [*(("a17", d) for d in (32, 64, 96, 192, 256)), ("a07", 96), ("a09", 192)])
def test_every_head_size_is_right_in_both_types(rung, d_head):
    config = AttentionConfig(d_head, 64, 32, 4, 2, 2, 2, buffer=True)
    dtype = "f16" if d_head in (64, 192) else "bf16"
    problem = AttentionProblem.dense(1, 2, 70, 45, d_head, heads_kv=1, dtype=dtype, with_lse=True)
    verdict, emulator = run_attention(find_attention_rung(rung), problem, config)
    assert verdict.ok, verdict.reason
    counters = emulator.last.counters
    assert counters.shared_load_wavefronts == counters.shared_load_ideal  # no bank conflict at any row length
    assert counters.async_copy_wavefronts == counters.async_copy_ideal


@pytest.mark.parametrize(("seq_q", "seq_k"), [(1, 1), (1, 77), (77, 1), (33, 65), (90, 40), (64, 100)])
def test_more_queries_than_keys_and_the_reverse_are_right_and_queries_with_no_key_give_zero(seq_q, seq_k):
    for is_causal in (False, True):
        problem = AttentionProblem.dense(2, 4, seq_q, seq_k, 32, heads_kv=2, is_causal=is_causal, with_lse=True)
        config = AttentionConfig(32, 32, 32, 2, 0, 2, 2)
        verdict, _ = run_attention(find_attention_rung("a17"), problem, config)
        assert verdict.ok, verdict.reason


@pytest.mark.parametrize("rung", ["a02", "a11", "a17"])
def test_strided_operands_between_nan_are_right(rung):
    load = 0 if rung == "a02" else 2
    verdict, _ = run_attention(find_attention_rung(rung), STRIDED, AttentionConfig(64, 64, 32, 4, load, load, load))
    assert verdict.ok, verdict.reason


@pytest.mark.parametrize("scale", [0.0, -0.4])
@pytest.mark.parametrize("rung", ["a03", "a17"])
def test_a_scale_that_is_not_positive_is_right(rung, scale):
    problem = AttentionProblem.dense(1, 1, 20, 40, 32, scale=scale, with_lse=True)
    verdict, _ = run_attention(find_attention_rung(rung), problem, AttentionConfig(32, 64, 32, 4))
    assert verdict.ok, verdict.reason


def test_the_swizzle_takes_shared_loads_from_eight_passes_to_one():
    problem = AttentionProblem.dense(1, 1, 64, 64, 128)
    passes = {}
    for rung in ("a01", "a02"):
        _, emulator = run_attention(find_attention_rung(rung), problem)
        counters = emulator.last.counters
        rows = [x for x in counters.per_instruction if "ldmatrix" in x.ptx]
        passes[rung] = sum(x.wavefronts for x in rows) / sum(x.ideal for x in rows)
    assert passes == {"a01": 8.0, "a02": 1.0}
