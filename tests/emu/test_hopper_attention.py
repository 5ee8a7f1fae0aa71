"""The attention rungs of Hopper on the emulator, races and barriers checked, against float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from attention_runs import STRIDED, run_attention
from test_attention_op import judge, operands

import tilewright as tw
from tilewright.attn.config import D_HEADS
from tilewright.attn.hopper import HOPPER_RUNGS, TURNS, HopperConfig
from tilewright.attn.problem import AttentionProblem, HeadRows
from tilewright.attn.rungs import find_attention_rung
from tilewright.errors import ConfigRejected
from tilewright.gpus import ARCHS
from tilewright.jit.source import CUDA_ROOT

SMALL = HopperConfig(64, 128, 64)
FEW = HopperConfig(32, 64, 32)
WIDE = HopperConfig(32, 128, 32)
INF = np.inf


def right(rung: str, problem: AttentionProblem, config: HopperConfig, **options) -> None:
    verdict, _ = run_attention(find_attention_rung(rung), problem, config, **options)
    assert verdict.ok, verdict.reason


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("rung", [rung.id for rung in HOPPER_RUNGS])
def test_a_rung_is_right_at_ragged_lengths(rung, is_causal):
    for seq_q, seq_k in ((17, 17), (200, 330)):
        problem = AttentionProblem.dense(1, 2, seq_q, seq_k, 64, heads_kv=1, is_causal=is_causal, with_lse=True)
        right(rung, problem, SMALL)


@pytest.mark.parametrize("rung", [rung.id for rung in HOPPER_RUNGS])
def test_a_rung_is_right_at_lengths_that_tiles_divide(rung):
    right(rung, AttentionProblem.dense(1, 1, 128, 256, 64, dtype="f16"), SMALL)


@pytest.mark.parametrize("b_r", [128, 192])
@pytest.mark.parametrize("turns", TURNS)
@pytest.mark.parametrize("rung", ["a21", "a23", "a24"])
def test_turns_of_two_and_three_warpgroups_are_right(rung, turns, b_r):
    problem = AttentionProblem.dense(1, 1, b_r + 30, 200, 32, is_causal=True, with_lse=True)
    right(rung, problem, HopperConfig(32, b_r, 48, 2, turns))


@pytest.mark.parametrize("d_head", D_HEADS)
def test_every_head_size_is_right_in_both_types(d_head):
    dtype = "f16" if d_head in (64, 192) else "bf16"
    problem = AttentionProblem.dense(1, 2, 70, 100, d_head, heads_kv=1, dtype=dtype, with_lse=True)
    right("a20", problem, HopperConfig(d_head, 128, 48))


@pytest.mark.parametrize("stages", [1, 3])
@pytest.mark.parametrize("rung", ["a18", "a19", "a20"])
def test_any_number_of_stages_is_right(rung, stages):
    right(rung, AttentionProblem.dense(1, 1, 64, 200, 32), HopperConfig(32, 64, 32, stages))


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("blocks", [1, 3, 7, 11])
def test_blocks_that_stay_make_every_tile_once(blocks, is_causal):
    """Three tiles a head, eight heads. Under the mask one and three blocks take long and short tiles in pairs, seven
    and eleven take tiles by length."""
    problem = AttentionProblem.dense(2, 4, 150, 170, 32, heads_kv=2, is_causal=is_causal, with_lse=True)
    right("a22", problem, FEW, blocks=blocks)


WALKED = """
extern "C" __global__ void walked(int* keys, int* rows, int heads, int seq) {
  HopperArgs args = {};
  args.heads = heads, args.group = 1, args.seq_q = args.seq_k = seq;
  args.row_tiles = (seq + Cfg::b_r - 1) / Cfg::b_r, args.tiles = args.row_tiles * heads;
  const Walk<Cfg> walk{args};
  Place place;
  for (int step = 0; walk.at(step, gridDim.x, place); ++step) {
    const OutTile<Cfg> tile(args, place);
    keys[blockIdx.x] += (tile.row0 + Cfg::b_r) / 64;
    for (int row = max(tile.row0, 0); row < min(tile.row0 + Cfg::b_r, seq); ++row) rows[tile.head * seq + row] += 1;
  }
}
"""


def walked(rung: str, config: HopperConfig, heads: int, seq: int, blocks: int) -> tuple[np.ndarray, np.ndarray]:
    """The keys that each block walks under a causal mask, in 64s, and how often each row of a head is made."""
    problem = AttentionProblem.dense(1, heads, seq, seq, 32, is_causal=True)
    source = find_attention_rung(rung).compile(problem, config, ARCHS["sm_90a"]).source.text + WALKED
    given = [np.zeros(blocks, np.int32), np.zeros((heads, seq), np.int32), heads, seq]
    return tw.emulate(source, "walked", blocks, 1, given, include=[CUDA_ROOT]).arrays


@pytest.mark.parametrize("row_tiles", [2, 3, 4, 5])
@pytest.mark.parametrize("heads", [1, 7, 31, 60])
def test_blocks_that_stay_walk_as_many_keys_under_a_causal_mask(row_tiles, heads):
    """Tiles of one head are as many keys long as they are far from the first; twelve blocks take rounds of pairs, and
    the rest by length."""
    keys, made = walked("a22", FEW, heads, 64 * row_tiles, 12)
    assert (made == 1).all()
    assert keys.max() <= max(keys.mean() + (row_tiles + 1) / 2, row_tiles), "half of the longest tile more than others"


@pytest.mark.parametrize(("rung", "walks"), [("a22", 3 + 6 + 9), ("a23", 1 + 4 + 7)])
def test_the_tile_that_is_not_full_is_the_shortest_under_a_causal_mask(rung, walks):
    keys, made = walked(rung, HopperConfig(32, 192, 64), 1, 7 * 64 - 3, 1)
    assert (made == 1).all()
    assert keys.tolist() == [walks]


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("blocks", [1, 3, 11])
def test_the_next_q_has_room_of_its_own(blocks, is_causal):
    problem = AttentionProblem.dense(2, 4, 150, 170, 32, heads_kv=2, is_causal=is_causal, with_lse=True)
    right("a24", problem, HopperConfig(32, 128, 48, 2, "products", 2), blocks=blocks)


@pytest.mark.parametrize("rung", ["a18", "a22", "a24"])
@pytest.mark.parametrize(("d_head", "d_v"), [(192, 128), (64, 32), (32, 96), (96, 256)])
def test_values_of_another_width_than_keys_are_right(rung, d_head, d_v):
    problem = AttentionProblem.dense(1, 4, 100, 130, d_head, heads_kv=2, is_causal=True, with_lse=True, d_v=d_v)
    right(rung, problem, HopperConfig(d_head, 128, 32, d_v=d_v))


@pytest.mark.parametrize(("d", "d_v", "copied"), [(192, 128, ""), (100, 48, "qkvout"), (32, 64, "")])
def test_a_call_with_values_of_another_width_pads_no_further_than_its_kernel_asks(d, d_v, copied):
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((1, 2, n, x)).astype(np.float16) for n, x in ((70, d), (90, d), (90, d_v)))
    told = tw.explain_attention(q, k, v, rung="a24", gpu="H200")
    assert "".join(name for name, _ in told.copied) == copied
    with tw.emulator():
        out, lse = tw.attention(q, k, v, is_causal=True, return_lse=True, rung="a24")
        packed = [np.ascontiguousarray(x[0].swapaxes(0, 1)) for x in (q, k, v)]
        rows = tw.attention_varlen(*packed, [0, 70], [0, 90], is_causal=True, rung="a24")
        padded = tw.attention(q, k, v, is_causal=True, rung="a17")
    judge(out, lse, q, k, v, is_causal=True)
    judge(padded, None, q, k, v, is_causal=True)
    assert (rows.swapaxes(0, 1)[None] == out).all()


@pytest.mark.parametrize(("seq_q", "seq_k"), [(1, 1), (1, 77), (77, 1), (33, 65), (90, 40)])
def test_more_queries_than_keys_and_the_reverse_are_right_and_queries_with_no_key_give_zero(seq_q, seq_k):
    for is_causal in (False, True):
        problem = AttentionProblem.dense(2, 4, seq_q, seq_k, 32, heads_kv=2, is_causal=is_causal, with_lse=True)
        right("a22", problem, FEW)


def test_a_warpgroup_whose_rows_see_no_more_keys_lets_tiles_pass():
    """192 rows and tiles of 32 keys: under the mask six differ; the last block has one group of rows."""
    for turns in TURNS:
        problem = AttentionProblem.dense(1, 1, 200, 230, 32, is_causal=True, with_lse=True)
        right("a23", problem, HopperConfig(32, 192, 32, 2, turns))
    problem = AttentionProblem.dense(1, 1, 200, 230, 32, is_causal=True)
    counted = {}
    for rung in ("a22", "a23"):
        _, emulator = run_attention(find_attention_rung(rung), problem, HopperConfig(32, 192, 32))
        ran = emulator.last.counters.per_instruction
        counted[rung] = sum(x.warps for x in ran if x.ptx.startswith("wgmma.mma_async"))
    assert counted["a23"] < 0.75 * counted["a22"]


@pytest.mark.parametrize("order", [1, 3])
def test_a_warp_that_lags_where_its_group_multiplies_nothing_is_waited_for(order):
    """A wait for a phase never ends once the next has completed. The third group of the last tile has no rows; before,
    some orders deadlocked, and in others a copy overwrote what a product still read."""
    problem = AttentionProblem.dense(1, 2, 200, 200, 32, is_causal=True)
    right("a23", problem, HopperConfig(32, 192, 16), blocks=1, order=order)


@pytest.mark.parametrize("rung", ["a23", "a24"])
def test_a_window_of_rows_after_the_last_lets_no_more_tiles_pass_than_there_are(rung):
    """It begins after the block's last tile: of 193 rows the third group of 64 has one, the next tile's none."""
    problem = replace(AttentionProblem.dense(1, 2, 193, 193, 32, with_lse=True), window=(0, 0))
    right(rung, problem, HopperConfig(32, 192, 16), blocks=1)
    q, k, v = operands(1, 2, 1, 300, 300, 32)
    rows = [np.ascontiguousarray(x[0].swapaxes(0, 1)) for x in (q, k, v)]
    with tw.emulator():
        out = tw.attention_varlen(*rows, [0, 200, 300], [0, 200, 300], window=(20, 0), rung=rung, config=str(WIDE))
    for part in (slice(0, 200), slice(200, 300)):
        judge(out[part].swapaxes(0, 1)[None], None, *(x[:, :, part] for x in (q, k, v)), window=(20, 0))


def test_strided_operands_between_nan_are_right():
    right("a21", STRIDED, SMALL)


@pytest.mark.parametrize("scale", [0.0, -0.4])
def test_a_scale_that_is_not_positive_is_right(scale):
    right("a20", AttentionProblem.dense(1, 1, 20, 40, 32, scale=scale, with_lse=True), FEW)


@pytest.mark.parametrize("rung", ["a20", "a24"])
def test_scores_that_outgrow_those_of_the_tiles_before_are_right(rung):
    """By far more than 2^12, in some rows at every tile; the last keys are walked first."""
    q, k, v = operands(1, 2, 1, 100, 200, 32)
    k *= np.linspace(40, 0.1, 200, dtype=np.float16)[:, None]
    for is_causal in (False, True):
        with tw.emulator():
            out, lse = tw.attention(q, k, v, is_causal=is_causal, return_lse=True, rung=rung, config=str(WIDE))
        judge(out, lse, q, k, v, is_causal=is_causal)


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("window", [(5, 2), (-1, 4), (60, -1)])
def test_windows_and_layouts(window, layout):
    q, k, v = operands(2, 2, 1, 100, 130, 32)
    there = [np.ascontiguousarray(x.swapaxes(1, 2)) if layout == "bshd" else x for x in (q, k, v)]
    with tw.emulator():
        out, lse = tw.attention(*there, window=window, layout=layout, return_lse=True, rung="a24", config=str(WIDE))
    judge(out.swapaxes(1, 2) if layout == "bshd" else out, lse, q, k, v, window=window)


@pytest.mark.parametrize("rung", ["a18", "a23", "a24"])
def test_packed_lengths_and_what_lies_next_to_an_entry(rung):
    """Each entry alone is right, whatever its neighbours hold: the tile over its end reads their rows."""
    starts_q, starts_k = (np.array(x, np.int32) for x in ([0, 70, 70, 75, 130], [0, 45, 120, 120, 203]))
    (q,), (k,), (v,) = operands(1, 2, 1, 130, 203, 32)

    def run(q, k, v, is_causal):
        with tw.emulator():
            return tw.attention_varlen(
                *(x.swapaxes(0, 1) for x in (q, k, v)), starts_q, starts_k, is_causal=is_causal, return_lse=True,
                rung=rung, config=HopperConfig(32, 128, 32),
            )  # fmt: skip

    for is_causal in (False, True):
        together, _ = run(q, k, v, is_causal)
        for entry in range(4):
            rows_q, rows_k = (slice(*starts[entry : entry + 2]) for starts in (starts_q, starts_k))
            if rows_q.start == rows_q.stop:
                continue
            there = [np.full_like(x, np.nan) for x in (q, k, v)]
            for array, whole, rows in zip(there, (q, k, v), (rows_q, rows_k, rows_k), strict=True):
                array[:, rows] = whole[:, rows]
            out, lse = run(*there, is_causal)
            own = q[None, :, rows_q], k[None, :, rows_k], v[None, :, rows_k]
            judge(out.swapaxes(0, 1)[None, :, rows_q], lse[None, :, rows_q], *own, is_causal=is_causal)
            assert (out[rows_q] == together[rows_q]).all(), "bits depend on a neighbour"


@pytest.mark.parametrize("is_causal", [False, True])
def test_tiles_that_blocks_draw_are_each_made_once(is_causal):
    """More tiles than SMs, some without rows; a tile that two blocks make is a race."""
    lengths = [0, 35, 98, 13, 130, 1, 0, 0, 29, 81, 7, 1, 44, 0, 19, 300, 2]
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    (q,), (k,), (v,) = operands(1, 10, 2, starts[-1], starts[-1], 32)
    rows = [np.ascontiguousarray(x.swapaxes(0, 1)) for x in (q, k, v)]
    config = HopperConfig(32, 64, 64, q_buffers=2)
    with tw.emulator():
        out, lse = tw.attention_varlen(*rows, starts, starts, is_causal=is_causal, return_lse=True, config=config)
    for entry in range(len(lengths)):
        if lengths[entry]:
            part = slice(*starts[entry : entry + 2])
            own = [x[None, :, part] for x in (q, k, v)]
            judge(out[part].swapaxes(0, 1)[None], lse[None, :, part], *own, is_causal=is_causal)


def test_warps_that_let_tiles_pass_take_their_turns_whole():
    """Of 128 rows the second group often has none: one lane fell a barrier behind the others, and waited for ever."""
    lengths = [0, 35, 98, 13, 73, 30, 38, 40, 1, 42, 1, 0, 0, 1, 38, 36, 1, 1, 6, 6, 81, 40, 1, 29, 0, 1, 28, 1, 14, 9]
    starts = np.concatenate([[0], np.cumsum([*lengths, 0, 24, 38, 22, 1, 1, 17, 0, 19, 21])]).astype(np.int32)
    q, k, v = (x[0].swapaxes(0, 1) for x in operands(1, 6, 2, starts[-1], starts[-1], 32))
    with tw.emulator():
        config = HopperConfig(32, 128, 32, 2, "products")
        out = tw.attention_varlen(q, k, v, starts, starts, is_causal=True, config=config)
    assert np.isfinite(out).all()


def test_softcap_bias_and_a_score_function_change_scores_and_hidden_rows_are_zero():
    q, k, v = operands(1, 2, 2, 70, 90, 32)
    bias = np.random.default_rng(5).standard_normal((2, 70, 90)).astype(np.float32)
    bias[:, 3], bias[:, :, 7] = -INF, -INF
    with tw.emulator():
        out, lse = tw.attention(q, k, v, bias=bias, return_lse=True, config=FEW)
        capped = tw.attention(q, k, v, softcap=3.0, is_causal=True, config=FEW)
        bent = tw.attention(q, k, v, score=lambda s, b, h, i, j: s - 0.1 * abs(i - j), config=FEW)
    judge(out, lse, q, k, v, bias=bias)
    assert (out[:, :, 3] == 0).all()
    judge(capped, None, q, k, v, softcap=3.0, is_causal=True)
    judge(bent, None, q, k, v, score=lambda s, b, h, i, j: s - 0.1 * np.abs(i - j))


def test_a_config_is_read_back_and_says_why_it_cannot():
    for rung in HOPPER_RUNGS:
        assert all(rung.check(config) is None for config in rung.defaults)
        for config in (*rung.defaults, HopperConfig(128, 192, 80, 3, "exponentials", 2, 64)):
            assert HopperConfig.parse(str(config)) == config
    assert "one of 64, 128, 192" in HopperConfig(64, 96, 64).why_not()
    assert "multiple of 16" in HopperConfig(64, 128, 72).why_not()
    assert "two warpgroups" in HopperConfig(64, 64, 64, turns="products").why_not()
    assert "registers per thread" in HopperConfig(256, 192, 64).why_not()
    with pytest.raises(ConfigRejected, match="not a config of Hopper"):
        HopperConfig.parse("(64, 128, 64): stages")


def test_a_rung_says_why_it_cannot():
    from tilewright.gpus import GPUS

    a20, hopper = find_attention_rung("a20"), GPUS["H200"].arch
    problem = AttentionProblem.dense(1, 1, 64, 64, 64)
    assert a20.why_not(problem, SMALL, hopper) is None
    assert "only sm_90a has" in a20.why_not(problem, SMALL, GPUS["A100"].arch)
    assert "turns come with a21" in a20.why_not(problem, HopperConfig(64, 128, 64, turns="products"), hopper)
    assert "here are no keys" in a20.why_not(AttentionProblem.dense(1, 1, 64, 0, 64), SMALL, hopper)
    assert "is not one" in a20.why_not(problem, find_attention_rung("a17").defaults[0], hopper)
    assert "another kind" in find_attention_rung("a17").why_not(problem, SMALL, hopper)
    back = AttentionProblem.dense(1, 1, 64, 64, 64)
    object.__setattr__(back, "k", HeadRows(64 * 64, 64 * 64, -64))
    assert "a stride of k is -128 bytes" in a20.why_not(back, SMALL, hopper)
    a24, wide = find_attention_rung("a24"), AttentionProblem.dense(1, 1, 64, 64, 64, d_v=128)
    assert "values of d_head columns; these have 128" in a24.why_not(wide, SMALL, hopper)
    assert "values of 32 columns; these have 128" in a24.why_not(wide, replace(SMALL, d_v=32), hopper)
    assert "room for Q of the next" in a20.why_not(problem, replace(SMALL, q_buffers=2), hopper)
    assert "B of shared memory" in a20.why_not(problem, HopperConfig(64, 128, 176, 5), hopper)
