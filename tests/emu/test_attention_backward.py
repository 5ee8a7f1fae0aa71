"""attention_backward on the emulator: every option, layout and length, held against float64."""

from __future__ import annotations

import math
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.attn.backward_explain import explain_attention_backward
from tilewright.attn.backward_rungs import BACKWARD_RUNGS, find_backward_rung
from tilewright.attn.problem import AttentionProblem
from tilewright.epilogue import tanh, where
from tilewright.errors import ConfigRejected, InvalidOperand
from tilewright.lab.attention_check import attention_reference
from tilewright.lab.backward_check import backward_reference, check_backward

APART = find_backward_rung("b06")
NAMES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}


def operands(b=1, h=2, hk=1, sq=40, sk=56, d=32, dtype="f16", seed=0):
    rng = np.random.default_rng(seed)
    shapes = [(b, h, sq, d), (b, hk, sk, d), (b, hk, sk, d), (b, h, sq, d)]
    return [rng.standard_normal(shape).astype(NAMES[dtype]) for shape in shapes]


def least(rung):
    """The smallest d_head of a rung whose rows fill their tiles."""
    return min(config.d_head for config in rung.defaults if not config.wider)


def forward_by_float64(q, k, v, *, bias=None, score=None, window=(-1, -1), softcap=0.0, **options):
    """What a forward kernel gives the backward ones, without one to compile: `out` and the LSE, rounded once."""
    of = AttentionProblem.dense(*q.shape[:3], k.shape[2], q.shape[3], heads_kv=k.shape[1], d_v=v.shape[3], **options)
    found = attention_reference(q, k, v, replace(of, window=window, softcap=softcap), bias=bias, score=score)
    return found.out.astype(q.dtype), found.lse.astype(np.float32)


def judged(
    q, k, v, grad, *, dtype="f16", rung=None, grad_lse=None, config=None, deterministic=False, reference=None, gpu=None,
    by_kernel=False, **options,
):  # fmt: skip
    """Run backward on the emulator, and judge the gradients by float64.

    Where the plan names the rung, or `by_kernel`, forward is run there too, as callers do; else it is float64's.
    """
    with tw.emulator() if gpu is None else tw.emulator(gpu):
        if rung is None or by_kernel:
            out, lse = tw.attention(q, k, v, return_lse=True, **options)
        else:
            out, lse = forward_by_float64(q, k, v, **(options | (reference or {})))
        found = tw.attention_backward(
            grad, q, k, v, out, lse, rung=rung, config=config, grad_lse=grad_lse, deterministic=deterministic, **options
        )
    right = backward_reference(grad, q, k, v, grad_lse=grad_lse, **(options | (reference or {})))
    for x, like in zip(found, (q, k, v), strict=True):
        assert x.dtype == like.dtype
        assert x.shape == like.shape
    result = check_backward(tuple(x.astype(np.float32) for x in found), right, dtype)
    assert result.ok, result.reason
    return found


def judged_entries(found, q, k, v, grad, starts_q, starts_k, grad_lse=None):
    """Judge the gradients of causal packed entries, one entry after another."""

    def entry_of(x, rows):
        return x[rows].transpose(1, 0, 2)[None]

    for entry in range(len(starts_q) - 1):
        rows, keys = slice(*starts_q[entry : entry + 2]), slice(*starts_k[entry : entry + 2])
        given = [entry_of(x, part) for x, part in ((grad, rows), (q, rows), (k, keys), (v, keys))]
        of_lse = None if grad_lse is None else grad_lse[None, :, rows]
        right = backward_reference(*given, is_causal=True, grad_lse=of_lse)
        parts = [entry_of(x, part).astype(np.float32) for x, part in zip(found, (rows, keys, keys), strict=True)]
        result = check_backward(tuple(parts), right, "f16")
        assert result.ok, (entry, result.reason)
    ends = starts_q[-1], starts_k[-1], starts_k[-1]
    assert all((x[end:] == 0).all() for x, end in zip(found, ends, strict=True)), "rows that no entry has"


OPTIONS = {
    "causal, more keys": ({"is_causal": True}, 40, 70),
    "causal, more queries": ({"is_causal": True}, 150, 70),
    "window": ({"window": (9, 4)}, 140, 150),
    "window on the left": ({"window": (20, -1)}, 70, 150),
    "causal window": ({"window": (30, 0), "is_causal": True}, 150, 140),
    "softcap": ({"softcap": 1.5}, 40, 56),
    "negative scale": ({"scale": -0.3, "is_causal": True}, 70, 70),
    "scale 0": ({"scale": 0.0}, 20, 20),
}


@pytest.mark.parametrize("rung", BACKWARD_RUNGS, ids=str)
@pytest.mark.parametrize("d", [32, 64, 96, 128, 192, 256])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_gradients_are_those_of_the_formula(rung, d, dtype):
    if d not in {config.d_head for config in rung.defaults}:
        pytest.skip(f"{rung} has no config for it")
    if dtype == "bf16" and d not in (64, 256):
        pytest.skip("two sizes in bf16 are enough")
    keys = 50 if rung.alone and d == 96 else 88
    judged(*operands(sq=72, sk=keys, d=d, dtype=dtype), dtype=dtype, rung=rung.id, is_causal=d != 96)


@pytest.mark.parametrize("d", [192, 256])
def test_wide_heads_fit_the_shared_memory_of_a_small_gpu(d):
    """RTX 4090: 99 KiB a block."""
    judged(*operands(sq=20, sk=37, d=d), gpu="RTX 4090", is_causal=True)


@pytest.mark.parametrize(
    ("rung", "config"),
    [
        ("b04", "d96 in 128: keys 128x64/8, sums 4"), ("b05", "d96 in 128: keys 128x64/8, sums 4 in order"),
        ("b06", "d96 in 128: apart keys 128x64/8, queries 128x64/8"), ("b04", "d32 in 64: keys 128x128/8, sums 8"),
    ],
)  # fmt: skip
def test_rows_narrower_than_their_tiles(rung, config):
    """What lies after a row, here in memory the next row's elements, is read as zeros."""
    given = operands(sq=140, sk=90, d=int(config[1:].split()[0]))
    judged(*given, rung=rung, config=config, is_causal=True)


@pytest.mark.parametrize("d", [192, 256])
@pytest.mark.parametrize("case", ["causal, more keys", "causal, more queries", "window", "negative scale"])
def test_two_warpgroups_that_make_a_gradient_each(d, case):
    options, sq, sk = OPTIONS[case]
    given = operands(sq=2 * sq, sk=2 * sk, d=d, dtype="bf16")
    judged(*given, dtype="bf16", rung="b06", config=f"d{d}: keys 64x64/4x2, queries 128x64/8", **options)


def test_two_warpgroups_that_make_a_gradient_each_of_large_scores():
    q, k, v, grad = operands(h=1, sq=70, sk=140, d=256)
    rng = np.random.default_rng(5)
    bias, grad_lse = rng.standard_normal((70, 140)).astype(np.float32), rng.standard_normal((1, 1, 70))
    bias[:, ::3] = -np.inf
    config = "d256: keys 64x64/4x2, queries 128x64/8"
    judged(q, k, v, grad, rung="b06", config=config, bias=bias, grad_lse=grad_lse.astype(np.float32))
    with pytest.raises(ConfigRejected, match="slopes of their own"):
        judged(q, k, v, grad, rung="b06", config=config, softcap=2.0)


@pytest.mark.parametrize("sk", [70, 200, 460])
def test_walks_of_one_gradient_each_take_many_tiles(sk):
    judged(*operands(h=1, sq=330, sk=sk, d=256, dtype="bf16"), dtype="bf16", rung="b06", is_causal=True)


@pytest.mark.parametrize("rung", BACKWARD_RUNGS, ids=str)
@pytest.mark.parametrize("case", OPTIONS)
def test_masks_and_scales(rung, case):
    options, sq, sk = OPTIONS[case]
    judged(*operands(sq=sq, sk=min(sk, 120) if rung.alone else sk, d=least(rung)), rung=rung.id, **options)


@pytest.mark.parametrize("rung", BACKWARD_RUNGS, ids=str)
@pytest.mark.parametrize("shape", [(1, 2, 40, 56), (2, 1, 1, 56), (40, 56), (1, 1, 40, 1)])
def test_a_bias_is_added_and_minus_infinity_hides(rung, shape):
    q, k, v, grad = operands(b=2, d=least(rung))
    bias = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    bias[..., ::3] = -np.inf
    judged(q, k, v, grad, rung=rung.id, bias=bias, softcap=2.0)


def test_a_boolean_mask_hides_pairs_and_whole_rows():
    q, k, v, grad = operands()
    mask = np.random.default_rng(2).random((40, 56)) < 0.5
    mask[7] = False
    dq, _, _ = judged(q, k, v, grad, bias=mask, reference={"bias": np.where(mask, 0, -np.inf)})
    assert (dq[:, :, 7] == 0).all()


def test_a_boolean_mask_without_axes_is_one_for_every_pair():
    q, k, v, _ = operands()
    with tw.emulator():
        shown, hidden = (tw.attention(q, k, v, bias=np.array(seen)) for seen in (True, False))
        assert np.array_equal(shown, tw.attention(q, k, v, bias=np.ones((1, 1), bool)))
    assert (hidden == 0).all()


ALIBI = 0.125
SCORES = {
    "alibi": (lambda s, b, h, i, j: s - ALIBI * (h + 1) * abs(i - j), None),
    "hides": (
        lambda s, b, h, i, j: where((j % 3 == 0) | (j == i), s, -math.inf),
        lambda s, b, h, i, j: np.where((j % 3 == 0) | (j == i), s, -np.inf),
    ),
    "curved": (lambda s, b, h, i, j: 3.0 * tanh(0.4 * s) + 0.5 * s, lambda s, *_: 3.0 * np.tanh(0.4 * s) + 0.5 * s),
    "of no score": (lambda s, b, h, i, j: 0.01 * (i - j), lambda s, b, h, i, j: 0.01 * (i - j) + 0 * s),
}


@pytest.mark.parametrize("rung", BACKWARD_RUNGS, ids=str)
@pytest.mark.parametrize("name", SCORES)
def test_a_function_of_a_score_is_differentiated(rung, name):
    score, plain = SCORES[name]
    judged(*operands(d=least(rung)), rung=rung.id, score=score, is_causal=True, reference={"score": plain or score})


@pytest.mark.parametrize("rung", BACKWARD_RUNGS, ids=str)
def test_the_gradient_of_the_lse_is_added(rung):
    q, k, v, grad = operands(d=least(rung))
    grad_lse = np.random.default_rng(3).standard_normal(q.shape[:3]).astype(np.float32)
    judged(q, k, v, grad, rung=rung.id, grad_lse=grad_lse, is_causal=True)


@pytest.mark.parametrize("d", [1, 20, 40, 130])
def test_d_head_is_padded(d):
    judged(*operands(d=d, sk=30), is_causal=True)


@pytest.mark.parametrize(("d", "dv"), [(64, 32), (20, 50)])
def test_values_of_another_head_size_than_keys_have_gradients(d, dv):
    q, k, _, _ = operands(d=d)
    _, _, v, grad = operands(d=dv, seed=1)
    judged(q, k, v, grad, is_causal=True)


OWN_COLUMNS = [(192, 128), (128, 192), (256, 64), (64, 256), (160, 128)]
"""d_head, and the columns of values: those that have walks of their own rather than copies."""


@pytest.mark.parametrize(("d", "dv"), OWN_COLUMNS)
@pytest.mark.parametrize("case", ["causal, more keys", "causal, more queries", "window", "softcap"])
def test_values_of_another_width_are_not_padded(d, dv, case):
    options, sq, sk = OPTIONS[case]
    lies = {"b": 2, "h": 4, "hk": 2} if case == "softcap" else {"b": 1, "h": 2, "hk": 1}
    q, k, _, _ = operands(**lies, sq=sq, sk=sk, d=d, dtype="bf16")
    _, _, v, grad = operands(**lies, sq=sq, sk=sk, d=dv, dtype="bf16", seed=1)
    grad_lse = np.random.default_rng(3).standard_normal(q.shape[:3]).astype(np.float32)
    plan = explain_attention_backward(q, k, v, gpu="H200", **options)
    assert plan.problem.forward.d_v == dv
    judged(q, k, v, grad, dtype="bf16", grad_lse=grad_lse, **options)


SHARED = [
    ("b04", 64, 64, {"is_causal": True}), ("b05", 128, 128, {"window": (100, 90)}), ("b05", 96, 96, {}),
    ("b06", 256, 256, {"softcap": 2.0}), ("b06", 192, 128, {"is_causal": True, "window": (70, -1)}),
]  # fmt: skip


@pytest.mark.parametrize(("rung", "d", "dv", "options"), SHARED)
def test_blocks_that_share_the_queries_of_their_keys_add_their_parts(rung, d, dv, options):
    """Eight heads on one of keys: few blocks, each of which would pass many tiles by."""
    q, k, _, _ = operands(h=8, hk=1, sq=150, sk=140, d=d, dtype="bf16")
    _, _, v, grad = operands(h=8, hk=1, sq=150, sk=140, d=dv, dtype="bf16", seed=1)
    stages = explain_attention_backward(q, k, v, rung=rung, gpu="H200", **options).program.stages
    assert "parts of dK dV" in [stage.name for stage in stages]
    judged(q, k, v, grad, dtype="bf16", rung=rung, **options)


@pytest.mark.parametrize("rung", ["b05", "b06"])
def test_packed_entries_and_blocks_in_order_share_queries(rung):
    lengths_q, lengths_k = [90, 0, 140, 33], [130, 40, 0, 129]
    rng, d = np.random.default_rng(6), 128
    q, grad = (rng.standard_normal((sum(lengths_q) + 5, 4, d)).astype(np.float16) for _ in range(2))
    k, v = (rng.standard_normal((sum(lengths_k) + 5, 1, d)).astype(np.float16) for _ in range(2))
    starts_q, starts_k = (np.cumsum([0, *lengths]) for lengths in (lengths_q, lengths_k))
    packed = {"cu_seqlens_q": starts_q, "cu_seqlens_k": starts_k}
    told = explain_attention_backward(q, k, v, deterministic=True, rung=rung, gpu="H200", is_causal=True, **packed)
    assert "parts of dK dV" in [stage.name for stage in told.program.stages]
    with tw.emulator():
        out, lse = tw.attention_varlen(q, k, v, starts_q, starts_k, return_lse=True, is_causal=True)
        found = tw.attention_backward(grad, q, k, v, out, lse, **packed, is_causal=True, rung=rung, deterministic=True)
    judged_entries(found, q, k, v, grad, starts_q, starts_k)


def test_two_warpgroups_make_gradients_of_narrower_values():
    q, k, _, _ = operands(h=1, sq=150, sk=140, d=192, dtype="bf16")
    _, _, v, grad = operands(h=1, sq=150, sk=140, d=128, dtype="bf16", seed=1)
    judged(q, k, v, grad, dtype="bf16", rung="b06", config="d192: keys 64x64/4x2, queries 128x64/8", is_causal=True)


@pytest.mark.parametrize(("d", "dv"), [(192, 128), (128, 128), (64, 256)])
@pytest.mark.parametrize("case", ["causal, more keys", "causal, more queries", "causal window"])
def test_one_walk_makes_dk_and_dv(d, dv, case):
    options, sq, sk = OPTIONS[case]
    q, k, _, _ = operands(sq=2 * sq, sk=2 * sk, d=d, dtype="bf16")
    _, _, v, grad = operands(sq=2 * sq, sk=2 * sk, d=dv, dtype="bf16", seed=1)
    grad_lse = np.random.default_rng(3).standard_normal(q.shape[:3]).astype(np.float32)
    config = f"d{d}: keys 128x64/8, queries 128x64/8"
    judged(q, k, v, grad, dtype="bf16", grad_lse=grad_lse, rung="b06", config=config, **options)


def test_one_walk_makes_the_same_bits_in_any_legal_order():
    q, k, v, grad = operands(h=1, sq=140, sk=140, d=64)
    named = {"is_causal": True, "rung": "b06", "config": "d64: keys 128x64/8, queries 128x64/8"}
    with tw.emulator():
        out, lse = tw.attention(q, k, v, is_causal=True, return_lse=True)
        found = tw.attention_backward(grad, q, k, v, out, lse, **named)
    for order in (1, 3):
        with tw.emulator(order=order):
            others = tw.attention_backward(grad, q, k, v, out, lse, **named)
        assert all(np.array_equal(x, y) for x, y in zip(found, others, strict=True))


def test_one_walk_makes_dk_and_dv_in_parts_of_large_scores():
    q, k, _, _ = operands(h=8, hk=1, sq=70, sk=140, d=192, dtype="bf16")
    _, _, v, grad = operands(h=8, hk=1, sq=70, sk=140, d=128, dtype="bf16", seed=1)
    bias = 40 * np.random.default_rng(5).standard_normal((70, 140)).astype(np.float32)
    bias[:, ::3] = -np.inf
    named = {"rung": "b06", "config": "d192: keys 128x64/8, queries 128x64/8"}
    stages = explain_attention_backward(q, k, v, gpu="H200", is_causal=True, bias=bias, **named).program.stages
    assert "parts of dK dV" in [stage.name for stage in stages]
    judged(q, k, v, grad, dtype="bf16", is_causal=True, bias=bias, **named)
    with pytest.raises(ConfigRejected, match="slopes of their own"):
        judged(q, k, v, grad, dtype="bf16", softcap=2.0, **named)


def test_values_of_another_width_are_padded_where_that_is_less_work():
    q, k, v, _ = (np.zeros((1, 1, 64, d), np.float16) for d in (128, 128, 64, 64))
    assert explain_attention_backward(q, k, v, gpu="H200").problem.forward.d_v == 0
    q, k, v, _ = (np.zeros((1, 1, 64, d), np.float16) for d in (192, 192, 128, 128))
    assert explain_attention_backward(q, k, v, gpu="A100").problem.forward.d_v == 0
    assert explain_attention_backward(q, k, v, gpu="H200", rung="b02").problem.forward.d_v == 0


def test_operands_of_any_strides_give_the_same_bits():
    given = operands(b=2, h=2, hk=2)
    dense = judged(*given, rung="b01", by_kernel=True)
    turned = [np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3) for x in given]
    wide = [np.repeat(x, 2, axis=-1)[..., ::2] for x in given]
    backwards = [x[::-1, ::-1, ::-1].copy()[::-1, ::-1, ::-1] for x in given]
    for others in (turned, wide, backwards):
        for one, other in zip(dense, judged(*others, rung="b01", by_kernel=True), strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_layout_of_rows_outside_heads():
    given = operands(b=2, h=4, hk=2)
    want = judged(*given, is_causal=True)
    q, k, v, grad = (np.ascontiguousarray(x.transpose(0, 2, 1, 3)) for x in given)
    with tw.emulator():
        out, lse = tw.attention(q, k, v, layout="bshd", is_causal=True, return_lse=True)
        found = tw.attention_backward(grad, q, k, v, out, lse, layout="bshd", is_causal=True)
    for one, other in zip(want, found, strict=True):
        np.testing.assert_array_equal(one, other.transpose(0, 2, 1, 3))


@pytest.mark.parametrize(("sq", "sk"), [(0, 5), (5, 0), (0, 0), (1, 1), (1, 70), (70, 1)])
def test_short_and_empty_sequences(sq, sk):
    found = judged(*operands(sq=sq, sk=sk), is_causal=True)
    if not sq or not sk:
        assert all((x == 0).all() for x in found)


@pytest.mark.parametrize(
    ("rung", "d", "dv", "config"),
    [
        *((rung, least(rung), least(rung), None) for rung in BACKWARD_RUNGS if not rung.alone), (APART, 192, 128, None),
        (APART, 64, 192, None), (APART, 192, 128, "d192: keys 128x64/8, queries 128x64/8"),
    ],
)  # fmt: skip
def test_entries_of_different_lengths(rung, d, dv, config):
    lengths_q, lengths_k, after = [70, 0, 1, 40, 130], [70, 30, 60, 0, 129], 9
    rng = np.random.default_rng(4)
    rows_q, rows_k = sum(lengths_q) + after, sum(lengths_k) + after
    q, grad = (rng.standard_normal((rows_q, 2, columns)).astype(np.float16) for columns in (d, dv))
    k, v = (rng.standard_normal((rows_k, 1, columns)).astype(np.float16) for columns in (d, dv))
    starts_q, starts_k = (np.cumsum([0, *lengths]) for lengths in (lengths_q, lengths_k))
    grad_lse = rng.standard_normal((2, rows_q)).astype(np.float32)
    with tw.emulator():
        out, lse = tw.attention_varlen(q, k, v, starts_q, starts_k, return_lse=True, is_causal=True)
        out[starts_q[-1] :] = np.nan
        found = tw.attention_backward(
            grad, q, k, v, out, lse, cu_seqlens_q=starts_q, cu_seqlens_k=starts_k, is_causal=True, rung=rung.id,
            grad_lse=grad_lse, config=config,
        )  # fmt: skip
    judged_entries(found, q, k, v, grad, starts_q, starts_k, grad_lse)


def test_weights_that_outgrow_their_rows_statistics_reach_no_gradient():
    """Keys that do not exist have a score of 0; where every score is far below that, e^(0 - lse) is infinite."""
    q, k, v, grad = operands(sq=20, sk=20)
    judged(q, k, v, grad, bias=np.full((20, 20), -200.0, np.float32), rung="b02", by_kernel=True)


@pytest.mark.parametrize("rung", BACKWARD_RUNGS, ids=str)
@pytest.mark.parametrize("large", [-1e5, -3e7, float(np.finfo(np.float32).min)])
def test_rows_whose_every_key_a_large_bias_hides_share_their_weight(rung, large):
    """The LSE of such a row has lost what its keys differ by, or how many there are."""
    q, k, v, grad = operands(sq=40, sk=72, d=least(rung))
    bias = np.zeros((40, 72), np.float32)
    bias[:, 50:] = bias[7] = bias[33, :] = large
    s = (q.astype(np.float32) @ k.astype(np.float32).swapaxes(2, 3)) / np.float32(math.sqrt(q.shape[3]))
    added = np.where(bias != 0, (s + bias).astype(np.float64) - s, 0)  # as fp32 has it
    judged(q, k, v, grad, bias=bias, rung=rung.id, reference={"bias": added}, by_kernel=True)


ORDERED = [
    ("b02", "d64: keys 64x64/2x2, sums 2 in order"), ("b03", "d64: keys 64x64/4, sums 4 in order"),
    ("b05", "d64: keys 128x128/8, sums 8 in order"), ("b05", "d64: keys 128x64/8, sums 4 in order"),
]  # fmt: skip


@pytest.mark.parametrize(("rung", "config"), ORDERED)
@pytest.mark.parametrize(
    ("sq", "sk", "options"), [(150, 270, {"window": (160, 20), "softcap": 3.0}), (300, 130, {"is_causal": True})]
)
def test_blocks_that_add_in_order_are_deterministic(rung, config, sq, sk, options):
    q, k, v, grad = operands(sq=sq, sk=sk, d=64)
    judged(q, k, v, grad, rung=rung, config=config, deterministic=True, **options)
    named = config.removesuffix(" in order")
    with tw.emulator(), pytest.raises(ConfigRejected, match="is not deterministic"):
        tw.attention_backward(
            grad, q, k, v, grad, np.zeros(q.shape[:3], np.float32), rung=rung, config=named, deterministic=True
        )


ORDERED_32 = "d32 in 64: keys 128x128/8, sums 8 in order"


def test_deterministic_takes_a_rung_that_is():
    q, k, v, grad = operands(sq=20, sk=140)
    with tw.emulator():
        out, lse = tw.attention(q, k, v, return_lse=True)
        one = tw.attention_backward(grad, q, k, v, out, lse, deterministic=True)
        other = tw.attention_backward(grad, q, k, v, out, lse, rung="b05", config=ORDERED_32)
        with pytest.raises(ConfigRejected, match="cannot run d_head=32, deterministic,"):
            tw.attention_backward(grad, q, k, v, out, lse, deterministic=True, rung="b02")
    for x, y in zip(one, other, strict=True):
        np.testing.assert_array_equal(x, y)


def test_what_does_not_fit_is_told():
    q, k, v, grad = operands(sq=20, sk=20)
    with tw.emulator():
        out, lse = tw.attention(q, k, v, return_lse=True)
        with pytest.raises(InvalidOperand, match="grad is"):
            tw.attention_backward(grad[:, :, :-1], q, k, v, out, lse)
        with pytest.raises(InvalidOperand, match="lse has shape"):
            tw.attention_backward(grad, q, k, v, out, lse[:, :1])
        with pytest.raises(InvalidOperand, match="come together"):
            tw.attention_backward(grad, q, k, v, out, lse, cu_seqlens_q=[0, 20])
        with pytest.raises(ConfigRejected, match="not a backward config"):
            tw.attention_backward(grad, q, k, v, out, lse, config="(128, 64)")
