"""Arguments of tilewright.attention as they are read: the problem, what is copied and why, and every refusal."""

from __future__ import annotations

import itertools
import struct
from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
from tilewright.arrays.view import as_operand
from tilewright.attn.call import padded_head, read_attention, read_attention_varlen
from tilewright.attn.config import AttentionConfig
from tilewright.attn.cu_seqlens import Starts, length_of
from tilewright.attn.family import plan_attention
from tilewright.attn.problem import AttentionProblem, BiasRows, HeadRows
from tilewright.attn.rung import AttentionAddresses
from tilewright.attn.stages import _ARGS, COPY_ROWS, RowCopy, StridedRows
from tilewright.errors import ConfigRejected, DeviceError, InvalidOperand
from tilewright.gpus import GPUS
from tilewright.jit import compile_source, device
from tilewright.lab.attention_check import visible


def zeros(*shape: int, dtype=np.float16) -> np.ndarray:
    """Aligned as kernels want it, which NumPy does not promise for small arrays."""
    whole = np.zeros(int(np.prod(shape)) + 8, dtype)
    first = -whole.ctypes.data % 16 // whole.itemsize
    return whole[first : first + int(np.prod(shape))].reshape(shape)


Q, K = zeros(2, 4, 10, 64), zeros(2, 2, 30, 64)


def test_a_dense_call_is_read_without_a_copy():
    call = read_attention(Q, K, K, is_causal=True, window=(5, -1), softcap=3, bias=zeros(30), return_lse=True)
    problem = call.problem
    assert call.copied == ()
    assert (problem.batch, problem.heads_q, problem.heads_kv, problem.seq_q, problem.seq_k) == (2, 4, 2, 10, 30)
    assert problem.scale == struct.unpack("<f", struct.pack("<f", 1 / 8))[0]
    assert (problem.is_causal, problem.window, problem.softcap, problem.with_lse) == (True, (5, -1), 3.0, True)
    assert (problem.q.batch_stride, problem.q.head_stride, problem.q.row_stride) == (2560, 640, 64)
    assert problem.bias == BiasRows(0, 0, 0, 1, "f16")
    assert call.lse_shape == (2, 4, 10)


def test_views_that_a_caller_has_made_are_taken_as_they_are():
    """XLA's buffers come so (tilewright.jax)."""
    q, k = as_operand(Q, "q"), as_operand(K, "q")
    call, plain = read_attention(q, k, k), read_attention(Q, K, K)
    assert call.problem == plain.problem
    assert (call.q.name, call.k.name, call.q.address) == ("q", "k", q.address)


def test_the_other_layout_swaps_the_strides():
    turned = zeros(2, 10, 4, 64), zeros(2, 30, 2, 64)
    call = read_attention(turned[0], turned[1], turned[1], layout="bshd")
    assert (call.problem.seq_q, call.problem.heads_q, call.problem.seq_k) == (10, 4, 30)
    assert (call.problem.q.head_stride, call.problem.q.row_stride) == (64, 256)
    assert (call.problem.out.head_stride, call.problem.out.row_stride) == (64, 256)
    assert call.out_shape == turned[0].shape


def test_what_is_copied_is_said_with_its_reason():
    odd = zeros(2, 2, 30, 65)[..., 1:]
    apart = zeros(2, 2, 30, 128)[..., ::2]
    call = read_attention(Q, odd, apart)
    assert dict(call.copied) == {
        "k": "rows start at multiples of 2 bytes, and kernels copy 16 at once",
        "v": "the elements of a row lie 2 apart",
    }
    call = read_attention(Q[..., :40], K[..., :40], K[..., :40])
    assert [name for name, _ in call.copied] == ["q", "k", "v", "out"]
    assert call.problem.d_head == 64
    assert call.problem.scale == pytest.approx(40**-0.5)
    assert dict(call.copied)["q"] == "d_head 40 is padded with zeros to 64"
    assert padded_head(64, 100) == padded_head(100, 64) == 128
    call = read_attention(Q, K, K[..., :32])
    assert dict(call.copied) == {
        "v": "d_head 32 is padded with zeros to 64",
        "out": "d_head 32 is padded with zeros to 64",
    }
    assert [padded_head(d, 1) for d in (1, 32, 33, 96, 97, 200, 256)] == [32, 32, 64, 96, 128, 256, 256]


REFUSED = [
    (
        lambda: read_attention(Q.astype(np.float32), K, K),
        "(2, 4, 10, 64)) is float32; attention takes float16 and bfloat16",
    ),
    (lambda: read_attention(Q, K.astype(np.float32), K), "k (shape (2, 2, 30, 64)) is float32"),
    (lambda: read_attention(Q[0], K, K), "q has shape (4, 10, 64); it must have the 4 axes [batch, heads, rows"),
    (
        lambda: read_attention(Q, K, K[:, :, :5]),
        "k (2, 2, 30, 64) and v (2, 2, 5, 64) must agree in all but their last",
    ),
    (lambda: read_attention(Q, K, zeros(2, 2, 30, 300)), "v (2, 2, 30, 300) has d_head 300; kernels take 1 to 256"),
    (lambda: read_attention(Q, K, K[..., :32], out=Q), "the result has q's rows of v's d_head, (2, 4, 10, 32)"),
    (lambda: read_attention(Q, K[..., :32], K[..., :32]), "differ in d_head"),
    (lambda: read_attention(Q[:1], K, K), "differ in batch"),
    (lambda: read_attention(zeros(2, 3, 1, 64), K, K), "has 3 heads and k (2, 2, 30, 64) has 2"),
    (lambda: read_attention(Q, K[:, :0], K[:, :0]), "has 4 heads and k (2, 0, 30, 64) has 0"),
    (lambda: read_attention(zeros(1, 1, 2, 300), *[zeros(1, 1, 2, 300)] * 2), "d_head 300; kernels take 1 to 256"),
    (lambda: read_attention(Q, K, K, layout="sbhd"), "layout='sbhd' is not one of 'bhsd', 'bshd'"),
    (lambda: read_attention(Q, K, K, window=5), "window=5 must be two whole numbers"),
    (lambda: read_attention(Q, K, K, window=(-2, 0)), "window=(-2, 0): each side"),
    (lambda: read_attention(Q, K, K, softcap=-1), "softcap=-1.0 must be a finite number above 0"),
    (lambda: read_attention(Q, K, K, softcap=float("nan")), "softcap=nan"),
    (lambda: read_attention(Q, K, K, softcap=1e-40), "/ softcap=9.99995e-41 is beyond 1.70141e+38"),
    (lambda: read_attention(Q, K, K, scale=-3e38), "scale=-3e+38 is beyond 1.70141e+38"),
    (lambda: read_attention(Q, K, K, scale=float("inf")), "scale=inf must be a finite number"),
    (lambda: read_attention(Q, K, K, scale="1"), "scale='1' is not a number"),
    (lambda: read_attention(Q, K, K, bias=zeros(29)), "bias (29,) does not broadcast to the scores (2, 4, 10, 30)"),
    (lambda: read_attention(Q, K, K, is_causal="no"), "is_causal='no' is not True or False"),
    (lambda: read_attention(Q, K, K, return_lse=None), "return_lse=None is not True or False"),
    (
        lambda: read_attention(Q, K, K, bias=np.zeros(30, np.uint8)),
        "For a mask, pass bias.astype(bool): its zeros and ones would be added to the scores. For scores, pass",
    ),
    (lambda: read_attention(Q, K, K, out=zeros(2, 4, 10, 32)), "out has shape (2, 4, 10, 32); the result has exactly"),
    (lambda: read_attention(Q, K, K, out=Q), "overlaps"),
    (lambda: read_attention([1], K, K), "q is of type list"),
    (lambda: read_attention(Q.astype(">f2"), K, K), "is >f2; attention takes float16"),
    (lambda: read_attention(Q, K, K, bias=np.True_), "bias=np.True_ is one number: added"),
    (lambda: read_attention(Q, K, K, bias=2.0), "added to every score it changes no weight"),
    (lambda: read_attention(Q, K, K, window=(2.5, 1)), "window=(2.5, 1) must be two whole numbers"),
    (lambda: read_attention(Q, K, K, out=zeros(2, 4, 10, 64, dtype=np.float32)), "Pass an out of q's dtype, or none"),
    (lambda: read_attention(Q, K, K, out=np.broadcast_to(Q[:, :1], Q.shape)), "is read-only"),
]


def beside(numbers, shape):
    """Numbers, and room for a result that begins with the same bytes."""
    room = np.zeros(int(np.prod(shape)), np.float16)
    numbers = np.asarray(numbers)
    held = room[: numbers.nbytes // 2].view(numbers.dtype)
    held[:] = numbers
    return held, room.reshape(shape)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_a_result_over_the_numbers_of_a_call_is_refused(dtype):
    rows = zeros(20, 2, 64)
    starts, out = beside(np.array([0, 5, 20], dtype), rows.shape)
    apart = starts.copy()
    for given in ((starts, apart), (apart, starts)):
        with pytest.raises(InvalidOperand, match=r"out .* overlaps cu_seqlens"):
            read_attention_varlen(rows, rows, rows, *given, out=out)
    assert read_attention_varlen(rows, rows, rows, apart, [0, 5, 20], out=out).out_is_given
    used, out = beside(np.array([3, 4], dtype), Q.shape)
    with pytest.raises(InvalidOperand, match=r"out .* overlaps seqused"):
        read_attention(Q, K, K, seqused=used, out=out)


@pytest.mark.parametrize(("call", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_refusals_name_the_argument_and_its_values(call, words):
    with pytest.raises(InvalidOperand) as caught:
        call()
    assert words in str(caught.value)


PQ, PK = zeros(10, 4, 64), zeros(12, 2, 64)
PACKED = [
    ([0, 4], [0, 5, 12], {}, "cu_seqlens_q is for 1 entries and cu_seqlens_k for 2"),
    ([1, 10], [0, 12], {}, "cu_seqlens_q must begin with 0"),
    ([0, 10], [0, 13], {}, "end at most at the 12 rows of k"),
    ([0, 6, 5, 10], [0, 1, 2, 3], {}, "its steps are -1 at least"),
    ([0.0, 10.0], [0, 12], {}, "cu_seqlens_q must hold integers"),
    ([[0, 10]], [0, 12], {}, "shape (1, 2)"),
    ([0, [10]], [0, 12], {}, "cu_seqlens_q must hold integers"),
    ([0, 10], [0, 12], {"batch_invariant": "no"}, "batch_invariant='no' is not True or False"),
    ([0, 10], [0, 12], {"max_seqlen_q": 9}, "max_seqlen_q=9 is less than the longest entry, 10"),
    ([0, 10], [0, 12], {"max_seqlen_k": "12"}, "max_seqlen_k='12' must be an integer"),
]


@pytest.mark.parametrize(("starts_q", "starts_k", "options", "words"), PACKED, ids=[x[-1] for x in PACKED])
def test_starts_that_cannot_be_are_refused(starts_q, starts_k, options, words):
    with pytest.raises(InvalidOperand) as caught:
        read_attention_varlen(PQ, PK, PK, starts_q, starts_k, **options)
    assert words in str(caught.value)


USED = [
    ([3], "seqused holds 1 numbers and q 2 entries"),
    ([3, 31], "seqused goes from 0 to 31; an entry of k has 30 rows"),
    ([-1, 3], "seqused goes from -1 to 3"),
    ([1.0, 2.0], "seqused must hold integers [batch]"),
]


@pytest.mark.parametrize(("used", "words"), USED, ids=[words for _, words in USED])
def test_counts_of_keys_that_cannot_be_are_refused(used, words):
    with pytest.raises(InvalidOperand) as caught:
        read_attention(Q, K, K, seqused=used)
    assert words in str(caught.value)


def test_counts_of_keys_are_part_of_the_problem_and_of_the_inputs():
    call = read_attention(Q, K, K, seqused=[0, 30])
    assert call.problem.seqused
    assert dict(call.inputs)["used"].tolist() == [0, 30]
    assert not read_attention(Q, K, K).problem.seqused


def test_a_packed_batch_on_a_gpu_is_read_as_its_average_entry():
    starts = Starts((5,), None, None)
    assert length_of(starts, None, "max_seqlen_q", 10) == 3
    assert length_of(starts, 7, "max_seqlen_q", 10) == 7
    assert length_of(starts, 0, "max_seqlen_q", 10) == 1


def test_a_packed_batch_is_read_as_its_longest_entry():
    call = read_attention_varlen(PQ, PK, PK, np.array([0, 7, 10]), [0, 2, 12], max_seqlen_k=11)
    assert (call.problem.batch, call.problem.seq_q, call.problem.seq_k) == (2, 7, 11)
    assert call.problem.totals == (10, 12)
    assert (call.problem.q.head_stride, call.problem.q.row_stride) == (64, 256)
    assert call.out_shape == (10, 4, 64)
    assert call.lse_shape == (4, 10)


def test_pairs_that_a_window_leaves_are_counted():
    for sq, sk, left, right in itertools.product(range(1, 6), range(6), range(-1, 7), range(-1, 7)):
        problem = replace(AttentionProblem.dense(1, 1, sq, sk, 64), window=(left, right))
        seen = visible(problem)
        assert problem.visible_pairs == (sq * sk if seen is None else seen.sum())


def test_the_bytes_of_a_bias_count_what_does_not_repeat():
    plain = AttentionProblem.dense(2, 4, 10, 30, 64)
    assert replace(plain, bias=BiasRows(0, 300, 30, 1, "f32")).bytes - plain.bytes == 4 * 4 * 10 * 30
    assert replace(plain, bias=BiasRows(30, 0, 0, 1, "bf16")).bytes - plain.bytes == 2 * 2 * 30


def test_bias_elements_are_read_in_pairs_only_where_all_pairs_are_aligned():
    whole = BiasRows(600, 300, 30, 1, "f32", 8)
    assert whole.in_pairs
    for change in ({"row_stride": 31}, {"col_stride": 2}, {"alignment": 4}, {"head_stride": 1}, {"batch_stride": 3}):
        assert not replace(whole, **change).in_pairs


def test_numpy_arrays_without_a_gpu_are_refused_with_a_way_out(monkeypatch):
    monkeypatch.setattr(device, "gpu_count", lambda: 0)
    with pytest.raises(DeviceError, match=r"tilewright\.emulator"):
        tw.attention(Q, K, K)


# --- the plan --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("d", "rows", "is_causal", "tile"),
    [(64, 128, False, (128, 128)), (64, 256, True, (128, 64)), (64, 512, True, (192, 64)), (64, 640, True, (192, 64)),
     (64, 2048, True, (192, 64)), (64, 2048, False, (192, 96)), (64, 4096, True, (192, 96)),
     (128, 192, False, (128, 64)), (128, 256, True, (128, 64)), (128, 512, True, (192, 64)),
     (128, 512, False, (128, 128)), (128, 2048, True, (192, 64)), (128, 4096, True, (128, 128))],
)  # fmt: skip
def test_short_rows_take_the_tiles_measured_for_them(d, rows, is_causal, tile):
    problem = AttentionProblem.dense(16384 // rows, 2048 // d, rows, rows, d, is_causal=is_causal)
    found = plan_attention(problem, GPUS["H200"])
    assert (found.rung.id, found.config.b_r, found.config.b_c) == ("a24_old_maximum", *tile)


@pytest.mark.parametrize("left", [127, 1023])
def test_windows_on_long_keys_take_the_tiles_measured_for_them(left):
    long = AttentionProblem.dense(2, 32, 8192, 8192, 64, is_causal=True)
    found = plan_attention(replace(long, window=(left, -1)), GPUS["H200"])
    assert str(found.config) == "(64, 192, 64): 3_stages+2_q+products_in_turns"
    assert plan_attention(long, GPUS["H200"]).config.b_c == 96


def test_the_plan_takes_fewer_rows_a_block_where_blocks_would_be_too_few():
    large = plan_attention(AttentionProblem.dense(16, 16, 4096, 4096, 128), GPUS["H200"])
    small = plan_attention(AttentionProblem.dense(1, 8, 256, 900, 128), GPUS["H200"])
    assert large.config.b_r > small.config.b_r
    assert "tiles of 64 queries on 132 SMs" in small.why
    assert plan_attention(AttentionProblem.dense(1, 8, 256, 900, 128), GPUS["H200"]) is small
    few = plan_attention(AttentionProblem.dense(1, 8, 256, 4096, 128), GPUS["H200"])
    assert "parts" in few.why
    assert plan_attention(AttentionProblem.dense(1, 8, 256, 4096, 128), GPUS["H200"]) is few


def test_the_plan_takes_hoppers_last_rung_where_it_can_run_and_has_been_timed():
    problem = AttentionProblem.dense(2, 16, 2048, 2048, 128)
    h200 = GPUS["H200"]
    assert plan_attention(problem, h200).rung.id == "a24_old_maximum"
    assert plan_attention(replace(problem, window=(100, 0), with_lse=True), h200).rung.id == "a24_old_maximum"
    assert plan_attention(replace(problem, totals=(4096, 4096)), h200).rung.id == "a24_old_maximum"
    short = replace(AttentionProblem.dense(512, 16, 32, 32, 128), totals=(16384, 16384))
    others = {
        "another GPU": (problem, GPUS["A100"]),
        "a stride that TMA does not take": (replace(problem, k=HeadRows(2**40, 2048 * 128, 128)), h200),
        "packed entries of few rows": (short, h200),
        "a head size that was not timed": (AttentionProblem.dense(2, 16, 2048, 2048, 32), h200),
        "no keys": (replace(problem, seq_k=0), h200),
    }
    for what, (other, gpu) in others.items():
        assert plan_attention(other, gpu).rung.id == "a17_lazy_rescale", what


def test_values_of_another_width_than_keys_are_padded_only_where_no_kernel_takes_them():
    q, k, v = (np.zeros((1, 16, n, d), np.float16) for n, d in ((300, 192), (300, 192), (300, 128)))
    asked = {"H200": "", "A100": "vout"}
    for gpu, copied in asked.items():
        assert "".join(name for name, _ in tw.explain_attention(q, k, v, gpu=gpu).copied) == copied
    named = tw.explain_attention(q, k, v, gpu="H200", rung="a17")
    assert [name for name, _ in named.copied] == ["v", "out"]
    many = np.zeros((1, 16, 9000, 192), np.float16)
    few = tw.explain_attention(q[:, :, :1], many, many[..., :128], gpu="H200")
    assert few.plan.rung.id == "d01_split"


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("d_head", [32, 64, 96, 128, 192, 256])
def test_there_is_a_plan_for_every_head_size_on_every_gpu(gpu, d_head):
    for seq in (1, 4096):
        problem = AttentionProblem.dense(1, 16, seq, seq, d_head)
        plan = plan_attention(problem, GPUS[gpu])
        assert plan.rung.why_not(problem, plan.config, GPUS[gpu].arch) is None


def test_what_the_caller_names_runs_or_is_refused():
    problem = AttentionProblem.dense(1, 2, 64, 64, 64)
    config = AttentionConfig(64, 64, 32, 4)
    assert plan_attention(problem, GPUS["H200"], "a03").rung.id == "a03_eager_kv"
    assert plan_attention(problem, GPUS["H200"], "a03", config).config == config
    with pytest.raises(ConfigRejected, match="the operands have 64"):
        plan_attention(problem, GPUS["H200"], "a03", replace(config, d_head=128))
    with pytest.raises(ConfigRejected, match="Known: a01_base"):
        plan_attention(problem, GPUS["H200"], "a99")
    assert plan_attention(problem, GPUS["H200"], "a03", str(config)).config == config
    with pytest.raises(ConfigRejected, match="not an attention config"):
        plan_attention(problem, GPUS["H200"], config="(64, 64, 32, 4)")
    with pytest.raises(ConfigRejected, match="AttentionConfig"):
        plan_attention(problem, GPUS["H200"], config=(64, 64, 32, 4))
    with pytest.raises(ConfigRejected, match="heads_q=70000; a grid holds 65535"):
        plan_attention(AttentionProblem.dense(1, 70000, 1, 1, 64), GPUS["H200"])


def test_more_entries_than_a_grids_last_axis_holds_lie_along_its_first():
    problem = AttentionProblem.dense(70000, 2, 300, 5, 64)
    plan = plan_attention(problem, GPUS["H200"])
    grid = plan.rung.launch(problem, plan.config, AttentionAddresses(0, 0, 0, 0)).grid
    assert grid == (70000, 2, -(-300 // plan.config.b_r))


def test_a_side_of_a_window_that_reaches_past_every_key_is_no_limit():
    for window, kept in (((29, 9), (-1, -1)), ((28, 8), (28, 8)), ((2**31, 10**12), (-1, -1)), ((None, 0), (-1, 0))):
        assert read_attention(Q, K, K, window=window).problem.window == kept


def test_nothing_is_computed_where_there_are_no_heads():
    assert read_attention(Q[:, :0], K[:, :0], K[:, :0]).problem is None
    assert read_attention(Q[:, :0], K, K).problem is None


def test_the_parameters_of_a_copy_are_the_device_codes():
    compile_source(
        f"""
        struct Cfg {{ static constexpr int threads = 256; }};
        #include "copy/rows.cuh"
        static_assert(sizeof(RowsArgs) == {struct.calcsize(_ARGS)});
        """,
        entry="copy_rows",
    )
    copy = RowCopy(StridedRows(2, 3, 4, 5), StridedRows(7, 8, 9), 10, 11, 12, 13, 14)
    assert struct.unpack(_ARGS, copy.params(1, 6).data) == (1, 6, 2, 3, 4, 5, 7, 8, 9, 1, 12, 13, 14)
    assert COPY_ROWS.shape(copy).grid == (10, 11, 1)
