"""The rungs that copy by TMA, on the emulator: every way an operand can lie, every depth, parts, batches, blocks that
stay; and what they refuse."""

from __future__ import annotations

import dataclasses

import ml_dtypes
import numpy as np
import pytest
from rung_products import Bench, Case

import tilewright as tw
from tilewright.gemm.problem import GemmProblem, Matrix
from tilewright.gemm.rung import GemmConfig, Rung, walked
from tilewright.gemm.rungs import find_rung
from tilewright.gemm.rungs.tma import TMA_RUNGS, registers_of
from tilewright.gemm.shapes import Product
from tilewright.gemm.stages import program_of
from tilewright.gpus import ARCHS
from tilewright.plan.plan import Plan

SMALL = GemmConfig(64, 64, 32, warp_m=16, warp_n=64, stages=3)


def suited(rung: Rung, config: GemmConfig = SMALL, **changes: int) -> GemmConfig:
    """The config with the levels that only this rung has."""
    own = {name: getattr(rung.default, name) for name in ("staged", "cluster_m", "cluster_n", "turns")}
    own["stream_k"] = 3 if rung.default.stream_k else 0
    own["cluster_k"] = 2 if rung.default.cluster_k > 1 else 1
    if rung.default.turns > 1 and not changes.keys() & {"tile_m", "warp_m"}:  # a set is one warpgroup here
        tile_m = config.tile_m if config.tile_m * config.tile_n <= 192 * 128 else 64
        own |= {"tile_m": tile_m, "warp_m": tile_m // 4, "warp_n": config.tile_n}
    return dataclasses.replace(config, **own | changes)


every_rung = pytest.mark.parametrize("rung", TMA_RUNGS, ids=str)


@every_rung
@pytest.mark.parametrize("tile_k", [16, 64, 128])
@pytest.mark.parametrize("layout", ["nn", "tt"])
def test_boxes_of_every_width_lie_as_the_products_read_them(rung, tile_k, layout):
    config = suited(rung, tile_k=tile_k, stages=2)
    Bench(Case(72, 64, 2 * tile_k + 8, layout, dtype="f16", out_dtype="f16")).run(rung, config).assert_right()


@every_rung
@pytest.mark.parametrize(
    ("tile", "warp", "layout"),
    [((64, 128), (16, 64), "nt"), ((128, 64), (32, 64), "nn"), ((128, 96), (16, 96), "nn"),
     ((64, 160), (16, 160), "nn"), ((192, 32), (16, 32), "tn"), ((64, 224), (16, 224), "nt"),
     ((128, 256), (16, 256), "nn")], ids=str,
)  # fmt: skip
def test_warpgroups_stand_under_and_beside_one_another_and_products_have_many_widths(rung, tile, warp, layout):
    config = suited(rung, GemmConfig(*tile, 32, warp_m=warp[0], warp_n=warp[1], stages=2))
    if config.stream_k and tile == (192, 32):
        assert "3 warpgroups leave no registers" in str(rung.check(config, GemmProblem.dense(8, 8, 8, dtype="bf16")))
        return
    sizes = (tile[0] + 8, tile[1] + 16, 72)
    Bench(Case(*sizes, layout, out_dtype="bf16")).run(rung, config, sms=1).assert_right()


@pytest.mark.parametrize(
    ("rung", "own"),
    [("h14", {}), ("h16", {"cluster_m": 2}), ("h16", {"cluster_n": 2}), ("h17", {"turns": 2}), ("h18", {"stream_k": 3}),
     ("h19", {"cluster_k": 3})], ids=str,
)  # fmt: skip
@pytest.mark.parametrize(
    ("width", "layout", "out"), [(144, "nt", "bf16"), (176, "nn", "bf16"), (48, "tt", "bf16"), (80, "nn", "f32")]
)
def test_products_need_not_be_multiples_of_32_columns_wide(rung, own, width, layout, out):
    """Half a group of columns at a tile's end; B's last panel is copied beyond the tile."""
    config = GemmConfig(64, width, 64, warp_m=16, warp_n=width, stages=3, group_m=4, **own)
    case = Case(136, 2 * width + 24, 200, layout, dtype="bf16", out_dtype=out, beta=0.5)
    Bench(case).run(find_rung(rung), config).assert_right()


def test_half_a_group_of_columns_cannot_be_staged():
    config = suited(find_rung("h15"), tile_n=144, warp_n=144)
    assert "omit staged" in (find_rung("h15").why_not(Bench(Case(64, 64, 64)).problem, config, ARCHS["sm_90a"]) or "")


@pytest.mark.parametrize("blocks", [2, 3, 5, 8])
@pytest.mark.parametrize(("m", "n", "k"), [(64, 64, 32 * 9 + 8), (200, 136, 64), (72, 100, 320)])
def test_a_cluster_adds_up_its_parts_of_k(blocks, m, n, k):
    """More blocks than steps, and than groups of columns; rows that are no whole vectors."""
    config = suited(find_rung("h19"), GemmConfig(64, 96, 32, warp_m=16, warp_n=96, stages=3), cluster_k=blocks)
    case = Case(m, n, k, "nt", dtype="f16", out_dtype="f32", batch=2, alpha=0.5, beta=1.0)
    Bench(case).run(find_rung("h19"), config).assert_right()


def test_a_cluster_of_nine_blocks_is_refused():
    problem = Bench(Case(64, 64, 64)).problem
    reason = find_rung("h19").why_not(problem, suited(find_rung("h19"), cluster_k=9), ARCHS["sm_90a"])
    assert "2 to 8 blocks; cluster_k is 9" in (reason or "")


def test_parts_of_k_are_refused_where_their_fp32_buffers_do_not_fit():
    """With bf16 results a warp's buffers take half of that, and fit."""
    config = GemmConfig(64, 96, 64, warp_m=16, warp_n=96, stages=11, staged=1, group_m=8)
    problem, whole = Bench(Case(128, 2112, 64, dtype="bf16", out_dtype="bf16")).problem, find_rung("h15")
    assert whole.why_not(problem, config, ARCHS["sm_90a"]) is None
    reason = whole.why_not(problem, dataclasses.replace(config, split_k=3), ARCHS["sm_90a"])
    assert "needs 233648 B of shared memory per block; sm_90a allows 232448" in (reason or "")


@every_rung
@pytest.mark.parametrize("stages", [2, 3, 5])
def test_the_ring_is_right_at_fewer_and_more_tiles_than_it_has_stages(rung, stages):
    config = suited(rung, stages=stages)
    for k in (0, 8, 32 * (stages - 1), 32 * stages + 40):
        Bench(Case(64, 64, k, "nn", dtype="f16")).run(rung, config).assert_right()


@every_rung
def test_partial_sums_add_up_to_the_product(rung):
    """9 parts of 7 tiles: some get none, and write zeros."""
    if "split_k" not in rung.levels:
        pytest.skip("it shares the steps out by itself")
    bench = Bench(Case(64, 40, 200, "nn", dtype="f16", batch=2), 9)
    bench.run(rung, suited(rung, split_k=9), sms=1).assert_right()
    sums = bench.out.view.reshape(9, 2, -1)
    assert (np.abs(sums).max(axis=(1, 2)) > 0).sum() == 7


@every_rung
@pytest.mark.parametrize("sms", [1, 3, 4])
def test_blocks_that_stay_take_every_tile_once(rung, sms):
    """15 tiles, walked in groups of 2 rows, the last of 1, by 1 to 4 blocks."""
    config = suited(rung, group_m=2)
    case = Case(5 * 64 - 8, 3 * 64 - 7, 40, "tt", dtype="f16", out_dtype="bf16", alpha=1.5, beta=-0.5)
    Bench(case).run(rung, config, sms=sms).assert_right()


@every_rung
@pytest.mark.parametrize(
    "case",
    [Case(72, 72, 40, "np", out="p", out_dtype="bf16", batch=3), Case(72, 72, 40, "tt", batch=3, shared_b=True),
     Case(1, 64, 72, out_dtype="bf16"), Case(64, 1, 72, "nt", out_dtype="bf16"), Case(40, 33, 64, "nt", out="t"),
     Case(70, 100, 64, "nt"), Case(72, 64, 64, out="s", beta=2.0, c="t"), Case(64, 64, 8, "pp", alpha=2.0, beta=0.0)],
    ids=str,
)  # fmt: skip
def test_batches_rows_and_results_of_every_kind(rung, case):
    Bench(case).run(rung, suited(rung), sms=2).assert_right()


@pytest.mark.parametrize(
    ("rung", "own"),
    [("h15", {}), ("h16", {"cluster_m": 2}), ("h16", {"cluster_n": 2}), ("h17", {}),
     ("h17", {"cluster_m": 2})], ids=str,
)  # fmt: skip
@pytest.mark.parametrize("sms", [2, 3, 7])
def test_blocks_walk_the_tiles_of_all_products_of_a_batch(rung, own, sms):
    """5 products of 6 tiles on fewer blocks, which end one product in the middle of their walk; ragged, and one B."""
    config = suited(find_rung(rung), **{"staged": 2, "group_m": 2, "cluster_m": 1, "cluster_n": 1} | own)
    for case in (
        Case(3 * 64 - 8, 2 * 64 - 16, 72, "nt", dtype="bf16", out_dtype="bf16", batch=5, alpha=0.5),
        Case(136, 120, 40, "tn", out="p", dtype="f16", out_dtype="f16", batch=5, shared_b=True),
    ):
        bench = Bench(case)
        clusters = walked(config, bench.problem)[0]
        assert find_rung(rung).shape(bench.problem, config).grid == (5 * clusters, 1, 1)
        bench.run(find_rung(rung), config, sms=sms).assert_right()


@pytest.mark.parametrize(
    ("case", "own"),
    [(Case(72, 64, 40, dtype="f16", out_dtype="f16", batch=3, beta=0.5), {}),  # C's products are told apart by blocks
     (Case(72, 64, 40, dtype="f16", out_dtype="f16", out="t", batch=3), {}),  # no map of the result
     (Case(72, 64, 40, dtype="f16", out_dtype="f16", batch=3), {"split_k": 2}),
     (Case(72, 64, 40, dtype="f16", out_dtype="f16"), {})], ids=["c", "turned", "parts", "one"],
)  # fmt: skip
def test_a_grid_counts_the_products_that_maps_alone_do_not_tell_apart(case, own):
    rung = find_rung("h15")
    grid = rung.shape(Bench(case, own.get("split_k", 1)).problem, suited(rung, **own)).grid
    assert grid == (2, case.batch, own.get("split_k", 1))


def test_a_batch_of_several_launches_is_not_walked():
    """65535 products, then 3: both launches have the same parameters."""
    whole = Matrix(64, 1, 64 * 64)
    for batch, grid in ((65534, (65534, 1, 1)), (65535, (1, 65535, 1))):
        problem = GemmProblem(64, 64, 64, whole, whole, whole, None, batch, "bf16", "bf16")
        assert find_rung("h15").shape(problem, suited(find_rung("h15"))).grid == grid
    product = Product(GemmProblem(64, 64, 64, whole, whole, whole, None, 65538, "bf16", "bf16"), (), (4096,) * 4)
    program = program_of(product, Plan(find_rung("h15"), suited(find_rung("h15")), "", ""))
    assert [run.shapes[0].grid for run in program.runs] == [(1, 65535, 1), (1, 3, 1)]


@every_rung
def test_the_bits_are_those_of_h13(rung):
    if rung.default.cluster_k > 1:
        pytest.skip("it adds up parts of k")
    case = Case(72, 136, 200, "nn", dtype="bf16", out_dtype="f32")
    results = []
    for one, config in (
        (find_rung("h13"), SMALL), (rung, suited(rung)),
        (rung, suited(rung, GemmConfig(128, 96, 64, warp_m=16, warp_n=96, stages=2))),
    ):  # fmt: skip
        bench = Bench(case)
        bench.run(one, config).assert_right()
        results.append(bench.out.bits.tobytes())
    assert results[0] == results[1] == results[2]


@every_rung
@pytest.mark.parametrize(("m", "n", "k"), [(70, 90, 33), (64, 33, 64), (33, 64, 63)])
def test_operands_that_tma_cannot_read_are_packed_first(rung, m, n, k):
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in ((m, k), (k, n)))
    with tw.emulator() as emulator:
        c = tw.matmul(a, b, rung=rung.id, config=suited(rung))
    wide = [x.astype(np.float64) for x in (a, b)]
    np.testing.assert_allclose(c.astype(np.float64), wide[0] @ wide[1], rtol=2**-7, atol=2**-5)
    assert len(emulator.results) == 1 + (k % 8 > 0) + (n % 8 > 0) + (rung.passes_sums is not None)


@every_rung
def test_an_epilogue_and_its_operands_are_fused(rung):
    rng = np.random.default_rng(6)
    a, b, r = (rng.standard_normal(shape).astype(np.float16) for shape in ((72, 64), (64, 104), (72, 104)))
    bias = rng.standard_normal(104).astype(np.float16)
    with tw.emulator():
        c = tw.matmul(a, b, bias=bias, residual=r, activation="relu", rung=rung.id, config=suited(rung))
    wide = [x.astype(np.float64) for x in (a, b, bias, r)]
    expected = np.maximum(wide[0] @ wide[1] + wide[2], 0) + wide[3]
    np.testing.assert_allclose(c.astype(np.float64), expected, rtol=2**-9, atol=2**-6)


@every_rung
@pytest.mark.parametrize(
    ("change", "words"),
    [({"warp_n": 40, "tile_n": 40}, "a multiple of 16"), ({"warp_m": 64}, "not a multiple"), ({"stages": 1}, "stages"),
     ({"tile_k": 24}, "power of two"), ({"tile_m": 512}, "at most 256 lines"),
     ({"tile_m": 192, "tile_n": 256, "warp_n": 256}, "needs 154 registers; a block starts with 128"),
     ({"tile_m": 256, "tile_n": 256, "warp_m": 32, "warp_n": 256}, "too little of its 240 registers")],
)  # fmt: skip
def test_a_config_that_does_not_fit_is_refused_with_the_reason(rung, change, words):
    problem = Bench(Case(64, 64, 64)).problem
    if rung.default.turns > 1 and "registers" in words:
        pytest.skip("other numbers")
    assert words in (rung.why_not(problem, suited(rung, **change), ARCHS["sm_90a"]) or "")


@every_rung
@pytest.mark.parametrize(
    ("layouts", "k", "words"),
    [("nn", 60, "a: its lines do not start at multiples of 16 bytes"), ("on", 64, "a: its lines do not start"),
     ("nr", 64, "b: its lines overlap"), ("sn", 64, "a: none of its lines lies contiguous")],
)  # fmt: skip
def test_an_operand_that_tma_cannot_read_is_refused_with_the_reason(rung, layouts, k, words):
    problem = Bench(Case(64, 64, k, layouts)).problem
    assert words in (rung.why_not(problem, suited(rung), ARCHS["sm_90a"]) or "")


@pytest.mark.parametrize(("cluster_m", "layout"), [(1, "nn"), (1, "tt"), (2, "nt"), (2, "tn")])
@pytest.mark.parametrize("sizes", [(256, 256, 96), (72, 64, 40), (200, 136, 72)])
def test_clusters_of_either_way_share_what_they_copy(cluster_m, layout, sizes):
    """Whole clusters, half of one, and a last one of which a part is outside."""
    config = dataclasses.replace(SMALL, staged=1, cluster_m=cluster_m, cluster_n=3 - cluster_m)
    product = Bench(Case(*sizes, layout, dtype="f16", out_dtype="f16")).run(find_rung("h16"), config, sms=4)
    product.assert_right()
    tiles = -(-sizes[0] // (64 * cluster_m)) * -(-sizes[1] // (64 * (3 - cluster_m)))
    steps = -(-sizes[2] // 32)
    assert product.result.counters.bulk_load_requests == tiles * steps * 4, "A or B by halves, the other for each block"


@pytest.mark.parametrize("blocks", [2, 4, 5, 7, 12])
@pytest.mark.parametrize(("tiles_m", "tiles_n", "k"), [(3, 2, 32 * 9), (1, 1, 32 * 30), (5, 2, 32 * 6 + 8)])
def test_shared_out_steps_add_up_however_tiles_are_cut(blocks, tiles_m, tiles_n, k):
    """Whole tiles ahead of those that are cut; a tile over many blocks; blocks without steps; batches."""
    config = suited(find_rung("h18"), stream_k=blocks)
    case = Case(64 * tiles_m, 64 * tiles_n, k, "nt", dtype="f16", out_dtype="f16", batch=2, alpha=0.5, beta=1.0)
    Bench(case).run(find_rung("h18"), config).assert_right()


def test_clusters_pass_sums_between_blocks_of_the_same_place():
    config = dataclasses.replace(SMALL, staged=1, stream_k=6, cluster_m=2)
    Bench(Case(300, 200, 296, "nn", dtype="f16", out_dtype="f16")).run(find_rung("h18"), config).assert_right()


def test_steps_are_shared_out_the_same_in_every_run():
    bits = set()
    for _ in range(2):
        bench = Bench(Case(200, 136, 320, "nn", dtype="bf16", out_dtype="f32"))
        bench.run(find_rung("h18"), suited(find_rung("h18"), stream_k=5)).assert_right()
        bits.add(bench.out.bits.tobytes())
    assert len(bits) == 1


@every_rung
def test_no_block_hands_over_more_registers_than_it_starts_with(rung):
    """It would wait for them for ever."""
    for config in {(c.threads, c.min_blocks, c.warp_m * c.warp_n): c for c in rung.space()}.values():
        copying, multiplying = registers_of(config)
        facts = rung.own_constants(config, Bench(Case(64, 64, 64)).problem)
        if facts["hands_over"]:
            start = 65536 // (rung.threads(config) * config.min_blocks) // 8 * 8
            assert copying * 128 + multiplying * config.threads <= start * rung.threads(config), config
