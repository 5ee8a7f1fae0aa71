"""tilewright.attention on the emulator: masks, biases, layouts, lengths, what is copied, and what must not leak."""

from __future__ import annotations

import numpy as np
import pytest
from ml_dtypes import bfloat16

import tilewright as tw
import tilewright.epilogue
from tilewright.attn import rung as attention_rung
from tilewright.attn.config import AttentionConfig
from tilewright.attn.problem import AttentionProblem
from tilewright.errors import ConfigRejected, InvalidEpilogue
from tilewright.lab.attention_check import attention_reference, check_attention
from tilewright.lab.check import Guarded

SMALL = AttentionConfig(32, 32, 32, 2, 0, 2, 2)
INF = np.inf


def values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([*shape, seed]).standard_normal(shape).astype(np.float16)


def operands(b: int, h: int, hk: int, sq: int, sk: int, d: int) -> list[np.ndarray]:
    return [values(b, h, sq, d, seed=1), values(b, hk, sk, d, seed=2), values(b, hk, sk, d, seed=3)]


def judge(out, lse, q, k, v, *, bias=None, dtype="f16", score=None, **options) -> None:
    """Hold a result to float64. `options` as AttentionProblem's."""
    options.setdefault("scale", 1 / np.sqrt(q.shape[3]))
    (b, h, sq, d), (_, hk, sk, _) = q.shape, k.shape
    lies = AttentionProblem.dense(1, 1, 1, 1, 32).q
    problem = AttentionProblem(b, h, hk, sq, sk, d, lies, lies, lies, lies, dtype, **options)
    expected = attention_reference(q, k, v, problem, bias=bias, score=score)
    verdict = check_attention(np.asarray(out, np.float32), expected, dtype, lse)
    assert verdict.ok, verdict.reason


@pytest.mark.parametrize(("sq", "sk"), [(1, 1), (1, 40), (40, 1), (17, 33), (33, 17), (32, 64)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_lengths_of_queries_and_keys(sq, sk, is_causal):
    q, k, v = operands(2, 2, 1, sq, sk, 32)
    with tw.emulator():
        out, lse = tw.attention(q, k, v, is_causal=is_causal, return_lse=True, config=SMALL)
    judge(out, lse, q, k, v, is_causal=is_causal)


@pytest.mark.parametrize("window", [(0, 0), (5, 2), (-1, 4), (7, -1), (40, 40), (None, 1)])
@pytest.mark.parametrize(("sq", "sk"), [(40, 33), (20, 70)])
def test_windows_hide_what_lies_beyond_them(window, sq, sk):
    q, k, v = operands(1, 2, 2, sq, sk, 32)
    with tw.emulator():
        out, lse = tw.attention(q, k, v, window=window, return_lse=True, config=SMALL)
    judge(out, lse, q, k, v, window=tuple(-1 if x is None else x for x in window))


def test_a_causal_window_has_no_right_side():
    q, k, v = operands(1, 2, 2, 40, 40, 32)
    with tw.emulator():
        out, lse = tw.attention(q, k, v, window=(6, 9), is_causal=True, return_lse=True, config=SMALL)
    judge(out, lse, q, k, v, window=(6, 0))


def test_tiles_that_a_window_hides_wholly_are_not_read():
    q, k, v = operands(1, 1, 1, 32, 160, 32)
    k[:, :, :64] = v[:, :, :64] = np.nan  # the first two tiles of 32 keys: 128 - 50 is behind them
    with tw.emulator() as emulator:
        out = tw.attention(q, k, v, window=(50, 0), config=SMALL)
        assert np.isfinite(out).all()
        windowed = emulator.last.counters.async_copy_bytes
        tw.attention(q, k, v, config=SMALL)
        row = 2 * 32
        assert emulator.last.counters.async_copy_bytes - windowed == 2 * 2 * 32 * row


@pytest.mark.parametrize("softcap", [0.5, 30.0])
@pytest.mark.parametrize("rung", ["a03", None])
def test_scores_are_capped_softly(softcap, rung):
    q, k, v = operands(1, 2, 1, 20, 37, 32)
    with tw.emulator():
        out, lse = tw.attention(4 * q, k, v, softcap=softcap, is_causal=True, return_lse=True, rung=rung)
    judge(out, lse, 4 * q, k, v, softcap=softcap, is_causal=True)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((2, 2, 20, 34), np.float16), ((20, 34), np.float32), ((2, 1, 1, 34), np.float32), ((2, 20, 1), np.float16),
        ((34,), np.float16), ((1, 1, 1, 1), np.float32),
    ],
)  # fmt: skip
def test_a_bias_of_any_shape_that_broadcasts_is_added(shape, dtype):
    q, k, v = operands(2, 2, 1, 20, 34, 32)
    bias = values(*shape).astype(dtype)
    with tw.emulator():
        out, lse = tw.attention(q, k, v, bias=bias, return_lse=True, config=SMALL)
    judge(out, lse, q, k, v, bias=bias)


def test_a_bias_may_have_any_strides_and_odd_rows():
    q, k, v = operands(1, 2, 2, 19, 35, 32)
    wide = values(2, 2 * 35, 19 + 1)
    bias = wide[:, ::2, 1:].swapaxes(1, 2)  # keys two rows apart, queries side by side from an odd element on
    assert bias.shape == (2, 19, 35)
    with tw.emulator():
        out, lse = tw.attention(q, k, v, bias=bias, return_lse=True, is_causal=True, config=SMALL)
    judge(out, lse, q, k, v, bias=bias, is_causal=True)


def test_a_row_whose_bias_hides_every_key_gives_zero_even_where_keys_are_no_numbers():
    q, k, v = operands(1, 1, 1, 20, 40, 32)
    k[0, 0, 30:] = np.nan
    bias = np.zeros((20, 40), np.float32)
    bias[:, 30:] = -INF
    bias[[3, 19]] = -INF
    with tw.emulator():
        out, lse = tw.attention(q, k, v, bias=bias, return_lse=True, config=SMALL)
    assert not out[0, 0, [3, 19]].any()
    assert np.isneginf(lse[0, 0, [3, 19]]).all()
    judge(out, lse, q, np.nan_to_num(k), v, bias=bias)


@pytest.mark.parametrize("least", [-1e30, float(np.finfo(np.float32).min)])
def test_a_bias_that_hides_by_a_huge_number_leaves_rows_of_it_finite(least):
    q, k, v = operands(1, 1, 1, 20, 40, 32)
    bias = np.zeros((20, 40), np.float32)
    bias[:, 30:] = bias[3] = least
    with tw.emulator():
        out, lse = tw.attention(q, k, v, bias=bias, return_lse=True, config=SMALL)
    np.testing.assert_allclose(out[0, 0, 3], v[0, 0].astype(np.float64).mean(0), atol=1e-3)
    assert lse[0, 0, 3] == np.float32(least)
    rest = [x[:, :, [n for n in range(20) if n != 3]] for x in (out, lse, q)]
    judge(*rest, k, v, bias=np.delete(bias, 3, 0))


@pytest.mark.parametrize(("dtype", "largest"), [(np.float16, 1e8), (bfloat16, 1e9)])
@pytest.mark.parametrize("rung", ["a06", "a20", "a24"])
def test_scores_up_to_the_bound_of_the_page_give_the_value_of_the_largest(rung, dtype, largest):
    """docs/attention.md: a row's maximum is subtracted with one rounding of its product by the scale."""
    q, k, v = (x.astype(dtype) for x in operands(1, 1, 1, 192, 256, 64))
    scores = q[0, 0].astype(np.float64) @ k[0, 0].astype(np.float64).T
    with tw.emulator():
        out = tw.attention(q, k, v, scale=largest / np.abs(scores).max(), rung=rung)
    want = v[0, 0][scores.argmax(1)].astype(np.float64)
    ordered = np.sort(scores, 1) * (largest / np.abs(scores).max())
    alone = ordered[:, -1] - ordered[:, -2] > 1000  # one key has all of the weight
    assert alone.mean() > 0.9
    step = 2.0 ** (-10 if dtype is np.float16 else -7)  # of the weight, which is no power of two, and of the result
    np.testing.assert_allclose(np.asarray(out, np.float64)[0, 0][alone], want[alone], rtol=2 * step)


def test_entries_that_a_grids_last_axis_does_not_hold_are_right(monkeypatch):
    monkeypatch.setattr(attention_rung, "_GRID_LIMIT", 2)
    q, k, v = operands(5, 2, 1, 40, 37, 24)  # d_head is padded: copies are made too
    bias = values(5, 1, 1, 37)
    with tw.emulator() as emulator:
        out, lse = tw.attention(q, k, v, bias=bias, is_causal=True, return_lse=True, config=SMALL)
        assert len(emulator.results) == 5
    judge(out, lse, q, k, v, bias=bias, is_causal=True)


def test_no_keys_at_all_give_zero():
    q, k, v = operands(2, 4, 2, 40, 0, 32)
    with tw.emulator():
        out, lse = tw.attention(q, k, v, return_lse=True)
    assert out.shape == q.shape
    assert not out.any()
    assert np.isneginf(lse).all()


@pytest.mark.parametrize("empty", ["batch", "rows"])
def test_an_empty_result_launches_nothing(empty):
    q, k, v = operands(0 if empty == "batch" else 2, 4, 2, 0 if empty == "rows" else 3, 5, 32)
    with tw.emulator() as emulator:
        out, lse = tw.attention(q, k, v, return_lse=True)
        assert not emulator.results
    assert (out.shape, lse.shape) == (q.shape, q.shape[:3])


# --- layouts, strides, copies ----------------------------------------------------------------------------------------


def test_layouts_are_the_same_function():
    q, k, v = operands(2, 4, 2, 20, 30, 64)
    turned = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v)]
    with tw.emulator() as emulator:
        out, lse = tw.attention(*turned, layout="bshd", return_lse=True)
        assert len(emulator.results) == 1, "nothing is copied"
        plain = tw.attention(q, k, v)
    assert out.flags.c_contiguous
    np.testing.assert_array_equal(out.swapaxes(1, 2), plain)
    judge(out.swapaxes(1, 2), lse, q, k, v)


@pytest.mark.parametrize("d", [1, 40, 100])
def test_head_sizes_between_the_kernels_own_are_padded(d):
    q, k, v = operands(1, 2, 1, 9, 20, d)
    with tw.emulator() as emulator:
        out, lse = tw.attention(q, k, v, return_lse=True)
        assert len(emulator.results) == 5
    judge(out, lse, q, k, v)


@pytest.mark.parametrize(("d", "dv"), [(64, 32), (32, 64), (96, 40), (192, 128)])
def test_values_of_another_head_size_than_keys_are_padded_to_one(d, dv):
    q, k, _ = operands(2, 4, 2, 20, 30, d)
    v = values(2, 2, 30, dv, seed=3)
    with tw.emulator():
        out, lse = tw.attention(q, k, v, is_causal=True, return_lse=True)
        given = np.full_like(out, np.nan)
        assert tw.attention(q, k, v, is_causal=True, out=given) is given
        turned = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v)]
        other = tw.attention(*turned, is_causal=True, layout="bshd")
        rows = [np.ascontiguousarray(x[0].swapaxes(0, 1)) for x in (q, k, v)]
        packed = tw.attention_varlen(*rows, [0, 20], [0, 30], is_causal=True)
    assert out.shape == (2, 4, 20, dv)
    judge(out, lse, q, k, v, is_causal=True)
    for same in (given, other.swapaxes(1, 2)):
        np.testing.assert_array_equal(same, out)
    np.testing.assert_array_equal(packed.swapaxes(0, 1), out[0])


def place(array: np.ndarray, how: str) -> np.ndarray:
    """The same values at an odd address, with gaps between rows, with columns apart, backwards in axes, or repeated."""
    b, h, s, d = array.shape
    if how == "odd":
        whole = np.full(array.size + 9, np.nan, np.float16)
        view = whole[1 : 1 + array.size].reshape(array.shape)
    elif how == "gaps":
        view = np.full((b, h, s + 2, d + 12), np.nan, np.float16)[:, :, 1:-1, 3 : 3 + d]
    elif how == "apart":
        view = np.full((b, h, s, 2 * d), np.nan, np.float16)[..., ::2]
    elif how == "backwards":
        view = np.full((b, h, s, d), np.nan, np.float16)[::-1, ::-1, ::-1, ::-1]
    else:
        view = np.full((d, s, h, b), np.nan, np.float16).T.swapaxes(0, 0)
    view[...] = array
    return view


@pytest.mark.parametrize("how", ["odd", "gaps", "apart", "turned", "backwards"])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_operands_that_kernels_cannot_read_are_copied(how, which):
    given = operands(2, 2, 2, 9, 12, 32)
    moved = list(given)
    moved[which] = place(given[which], how)
    with tw.emulator() as emulator:
        out, lse = tw.attention(*moved, return_lse=True, config=SMALL)
        assert len(emulator.results) == 2
    judge(out, lse, *given)


def test_repeated_keys_are_read_where_they_lie():
    q, k, v = operands(2, 4, 1, 9, 12, 32)
    k, v = np.broadcast_to(k[:1], k.shape), np.broadcast_to(v[:1], v.shape)
    with tw.emulator() as emulator:
        out, lse = tw.attention(q, k, v, return_lse=True, config=SMALL)
        assert len(emulator.results) == 1
    judge(out, lse, q, k, v)


@pytest.mark.parametrize("how", ["guarded", "odd", "apart", "backwards"])
def test_out_is_written_whole_and_nothing_else_is(how):
    q, k, v = operands(2, 2, 2, 9, 12, 32)
    guarded = Guarded(q.shape, "f16")
    out = guarded.view if how == "guarded" else place(np.full(q.shape, np.nan, np.float16), how)
    with tw.emulator():
        assert tw.attention(q, k, v, out=out, config=SMALL) is out
    judge(out, None, q, k, v)
    if how == "guarded":
        assert guarded.intact()
    else:
        whole = out.base.reshape(-1) if how == "odd" else out.base
        assert np.isfinite(whole).sum() == q.size


def test_a_bias_and_packed_rows_may_run_backwards():
    q, k, v = operands(1, 2, 1, 9, 12, 32)
    bias = values(9, 12)
    rows = [x[0].swapaxes(0, 1) for x in (q, k, v)]
    with tw.emulator():
        out, lse = tw.attention(q, k, v, bias=bias[::-1, ::-1].copy()[::-1, ::-1], return_lse=True)
        plain = tw.attention_varlen(*rows, [0, 4, 9], [0, 7, 12])
        packed = tw.attention_varlen(*(x[::-1].copy()[::-1] for x in rows), [0, 4, 9], [0, 7, 12])
    judge(out, lse, q, k, v, bias=bias)
    np.testing.assert_array_equal(packed, plain)


def test_bfloat16_of_ml_dtypes_comes_in_and_goes_out():
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    q, k, v = (x.astype(ml_dtypes.bfloat16) for x in operands(1, 2, 1, 20, 33, 64))
    bias = values(33).astype(ml_dtypes.bfloat16)
    with tw.emulator():
        out, lse = tw.attention(q, k, v, bias=bias, return_lse=True)
    assert out.dtype == q.dtype
    assert lse.dtype == np.float32
    judge(out, lse, *(x.astype(np.float32) for x in (q, k, v)), bias=bias.astype(np.float32), dtype="bf16")


@pytest.mark.parametrize("rung", ["a01", "a05", "a16"])
def test_every_option_works_on_lower_rungs_too(rung):
    q, k, v = operands(1, 4, 2, 40, 50, 32)
    bias = values(4, 40, 50)
    options = {"window": (30, 3), "softcap": 5.0, "scale": 0.3}
    with tw.emulator():
        out, lse = tw.attention(q, k, v, bias=bias, rung=rung, return_lse=True, **options)
    judge(out, lse, q, k, v, bias=bias, **options)


# --- the caller's own function ---------------------------------------------------------------------------------------


SCORES = {
    "slopes": lambda s, b, h, i, j: s - 0.5 ** (2) * (h + 1) * abs(i - j),
    "entries": lambda s, b, h, i, j: s * (b + 1) + tw.epilogue.tanh(s),
    "every other": lambda s, b, h, i, j: tw.epilogue.where((i + j) % 3 == 0, -INF, s),
    "constant": lambda s, b, h, i, j: 1.5,
    "alibi": lambda s, b, h, i, j: s - 2.0 ** (-4 * (h + 1)) * (i - j),
    "64 bits": lambda s, b, h, i, j: tw.epilogue.where((i * 1000003 + j * 2**31) % 7 < 3, s, -1.0),
    "quotients": lambda s, b, h, i, j: s + 0.5 * ((i - 3 * j) // 4) - (i - j) % 3,
}


@pytest.mark.parametrize("name", SCORES)
def test_a_function_of_the_score_is_traced_into_the_kernel(name):
    q, k, v = operands(2, 2, 1, 20, 37, 32)
    bias = values(37)
    with tw.emulator():
        out, lse = tw.attention(
            q, k, v, score=SCORES[name], bias=bias, is_causal=True, softcap=4.0, return_lse=True, config=SMALL
        )
    plain = {
        "slopes": lambda s, b, h, i, j: s - 0.25 * (h + 1) * np.abs(i - j),
        "entries": lambda s, b, h, i, j: s * (b + 1) + np.tanh(s),
        "every other": lambda s, b, h, i, j: np.where((i + j) % 3 == 0, -INF, s),
        "constant": lambda s, b, h, i, j: np.full(s.shape, 1.5),
        "64 bits": lambda s, b, h, i, j: np.where((i * 1000003 + j * 2**31) % 7 < 3, s, -1.0),
    }
    judge(out, lse, q, k, v, bias=bias, is_causal=True, softcap=4.0, score=plain.get(name, SCORES[name]))


def test_a_function_that_hides_every_key_of_a_query_gives_zero():
    q, k, v = operands(1, 1, 1, 20, 37, 32)
    with tw.emulator():
        out, lse = tw.attention(
            q, k, v, score=lambda s, b, h, i, j: tw.epilogue.where(i == 5, -INF, s), return_lse=True, config=SMALL
        )
    assert not out[0, 0, 5].any()
    assert np.isneginf(lse[0, 0]).sum() == 1
    judge(out, lse, q, k, v, score=lambda s, b, h, i, j: np.where(i == 5, -INF, s))


def test_packed_entries_count_queries_and_keys_from_their_start():
    starts = [0, 9, 20]
    q, k, v = (values(20, 2, 32, seed=n) for n in range(3))
    with tw.emulator():
        out = tw.attention_varlen(q, k, v, starts, starts, score=lambda s, b, h, i, j: s + b + 0.5 * j, config=SMALL)
    for n, (first, end) in enumerate(((0, 9), (9, 20))):
        part = [x[first:end].swapaxes(0, 1)[None] for x in (out, q, k, v)]
        judge(part[0], None, *part[1:], score=lambda s, b, h, i, j, n=n: s + n + 0.5 * j)


@pytest.mark.parametrize(
    ("score", "words"),
    [
        (lambda s: s, "must be a function of five values"),
        (lambda s, b, h, i, j: s if s > 0 else 0, "score: Python control flow"),
        (lambda s, b, h, i, j: (s, s), "returned a tuple"),
        (lambda s, b, h, i, j: s + np.ones(3), "score:"),
        (3, "must be a function of five values"),
        (lambda s, b, h, i, j: s + i * j * i * j, "integers grow beyond 64 bits"),
        (lambda s, b, h, i, j: s + (i >> 1), "bits of an index"),
        (lambda s, b, h, i, j: s + [0.5, 0.25][h], "cannot choose from a list"),
        (lambda s, b, h, i, j: s + (0 * h) ** i, "exponent"),
        (lambda s, b, h, i, j: s + 0.0**i, "no positive number"),
    ],
)
def test_functions_that_cannot_be_traced_are_refused(score, words):
    q, k, v = operands(1, 1, 1, 4, 4, 32)
    with tw.emulator(), pytest.raises(InvalidEpilogue, match=words):
        tw.attention(q, k, v, score=score)


# --- different lengths -----------------------------------------------------------------------------------------------

LENGTHS = [(5, 9), (0, 4), (17, 0), (1, 40), (12, 12), (40, 3)]


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"window": (4, 2)}, {"softcap": 2.0}], ids=str)
def test_entries_of_different_lengths_are_each_by_themselves(options):
    starts_q, starts_k = (np.cumsum([0, *(pair[n] for pair in LENGTHS)]) for n in (0, 1))
    q = values(starts_q[-1] + 2, 4, 32)
    k, v = values(starts_k[-1] + 3, 2, 32, seed=1), values(starts_k[-1] + 3, 2, 32, seed=2)
    k[starts_k[-1] :] = v[starts_k[-1] :] = np.nan
    guarded = Guarded(q.shape, "f16")
    with tw.emulator() as emulator:
        out, lse = tw.attention_varlen(
            q, k, v, starts_q, list(starts_k), return_lse=True, out=guarded.view, config=SMALL, **options
        )
        assert len(emulator.results) == 1
    assert guarded.intact()
    assert guarded.untouched() == 2 * 4 * 32, "rows behind the last entry are left alone"
    for n, (sq, _) in enumerate(LENGTHS):
        rows, keys = slice(starts_q[n], starts_q[n + 1]), slice(starts_k[n], starts_k[n + 1])
        if sq:
            judge(out[rows].swapaxes(0, 1)[None], lse[:, rows][None], q[rows].swapaxes(0, 1)[None],
                  k[keys].swapaxes(0, 1)[None], v[keys].swapaxes(0, 1)[None], **options)  # fmt: skip


def test_a_neighbours_nan_does_not_leak():
    starts = np.array([0, 20, 40, 60])
    q, k, v = (values(60, 2, 32, seed=n) for n in range(3))
    clean = [x.copy() for x in (q, k, v)]
    for x in (q, k, v):
        x[20:40] = np.nan
    with tw.emulator():
        out = tw.attention_varlen(q, k, v, starts, starts, config=SMALL)
        right = tw.attention_varlen(*clean, starts, starts, config=SMALL)
    for rows in (slice(0, 20), slice(40, 60)):
        np.testing.assert_array_equal(out[rows], right[rows])


def test_packed_operands_that_kernels_cannot_read_are_copied():
    starts = [0, 3, 10]
    q, k, v = (values(10, 2, 20, seed=n) for n in range(3))
    with tw.emulator():
        out, lse = tw.attention_varlen(q, k, v, starts, starts, max_seqlen_q=7, return_lse=True)
    for first, end in ((0, 3), (3, 10)):
        part = [x[first:end].swapaxes(0, 1)[None] for x in (out, q, k, v)]
        judge(part[0], lse[:, first:end][None], *part[1:])


def test_rows_after_the_last_entry_stay_where_the_result_is_copied_back():
    starts = [0, 3, 8]
    q, k, v = (values(12, 2, 20, seed=n) for n in range(3))
    out = np.full_like(q, 7)
    with tw.emulator():
        right = tw.attention_varlen(q, k, v, starts, starts)
        tw.attention_varlen(q, k, v, starts, starts, out=out)
    np.testing.assert_array_equal(out[:8], right[:8])
    np.testing.assert_array_equal(out[8:], np.full_like(out[8:], 7))


def test_the_same_call_gives_the_same_bits():
    q, k, v = operands(1, 2, 1, 33, 70, 64)
    with tw.emulator():
        one, other = (tw.attention(q, k, v, is_causal=True) for _ in range(2))
    np.testing.assert_array_equal(one, other)


def test_a_rung_that_is_no_name_is_refused_with_one_that_is():
    q = np.ones((1, 1, 8, 32), np.float16)
    with tw.emulator(), pytest.raises(ConfigRejected, match=r"rung is \['a16'\]; pass the name"):
        tw.attention(q, q, q, rung=["a16"])
