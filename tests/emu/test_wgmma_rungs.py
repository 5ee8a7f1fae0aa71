"""h12 and h13 on the emulator: every way an operand can lie for wgmma, every depth, and blocks that stay."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from rung_products import Bench, Case

from tilewright.gemm.rung import GemmConfig
from tilewright.gemm.rungs import find_rung
from tilewright.gpus import ARCHS

H12, H13 = find_rung("h12"), find_rung("h13")
SMALL = GemmConfig(64, 64, 32, warp_m=16, warp_n=64, stages=3)


@pytest.mark.parametrize("tile_k", [16, 32, 64, 128])
@pytest.mark.parametrize("layout", ["nn", "tt"])
def test_lines_of_every_width_and_both_ways_are_read_where_they_lie(tile_k, layout):
    """Lines of 32, 64 and 128 bytes, and panels of them: of A along k or m, of B along n or k."""
    config = dataclasses.replace(SMALL, tile_k=tile_k, stages=3)
    Bench(Case(72, 64, 2 * tile_k + 8, layout, dtype="f16", out_dtype="f16")).run(H12, config).assert_right()


@pytest.mark.parametrize(
    ("tile", "warp"), [((64, 128), (16, 128)), ((64, 256), (16, 128)), ((64, 256), (16, 256)), ((128, 64), (32, 64)),
                       ((128, 64), (16, 64))], ids=str,
)  # fmt: skip
def test_warpgroups_stand_under_and_beside_one_another_and_make_one_product_or_more(tile, warp):
    config = GemmConfig(*tile, 32, warp_m=warp[0], warp_n=warp[1], stages=3)
    Bench(Case(tile[0], tile[1], 96, "nt", out_dtype="bf16")).run(H12, config).assert_right()


@pytest.mark.parametrize("sizes", [(128, 192, 96), (70, 200, 72)], ids=str)
@pytest.mark.parametrize("layout", ["nn", "tt"])
def test_192_columns_which_no_power_of_two_of_threads_divides_are_copied_panel_by_panel(layout, sizes):
    for tile_m, tile_n in ((128, 192), (64, 384)):
        config = GemmConfig(tile_m, tile_n, 32, warp_m=16, warp_n=192, stages=3)
        Bench(Case(*sizes, layout, dtype="f16", out_dtype="f16")).run(H12, config).assert_right()


@pytest.mark.parametrize("sizes", [(64, 64, 64), (70, 56, 72)], ids=str)
def test_lines_that_start_in_the_middle_of_sectors_are_read_through_l1(sizes):
    bench = Bench(Case(*sizes, "pp", dtype="f16", out_dtype="f16"))
    bench.run(H12, SMALL).assert_right()
    facts = H12.own_constants(SMALL, bench.problem)
    assert (facts["a_sectors"], facts["b_sectors"]) == (sizes[2] % 16 == 8, sizes[1] % 16 == 8)


@pytest.mark.parametrize(("stages", "blocks"), [(2, 2), (3, 2), (3, 1), (4, 1), (6, 1)])
def test_the_ring_is_right_at_fewer_and_more_tiles_than_it_has_stages(stages, blocks):
    config = dataclasses.replace(SMALL, stages=stages, min_blocks=blocks)
    for k in (0, 8, 32 * (stages - 1), 32 * stages + 40):
        Bench(Case(64, 64, k, "nn", dtype="f16")).run(H12, config).assert_right()


@pytest.mark.parametrize("rung", [H12, H13], ids=str)
def test_partial_sums_add_up_to_the_product(rung):
    """9 parts of 7 tiles: some get none, and write zeros."""
    bench = Bench(Case(64, 40, 200, "nn", dtype="f16", batch=2), 9)
    bench.run(rung, dataclasses.replace(SMALL, split_k=9), sms=1).assert_right()
    sums = bench.out.view.reshape(9, 2, -1)
    assert (np.abs(sums).max(axis=(1, 2)) > 0).sum() == 7


def test_partial_sums_whose_rows_end_within_eight_columns_stay_in_their_rows():
    """Partial sums are fp32 whatever the result is: n = 100 is whole vectors of them, but not whole eights."""
    Bench(Case(70, 100, 130, "nt", dtype="f16", batch=2), 2).run(
        H12, dataclasses.replace(SMALL, split_k=2)
    ).assert_right()


@pytest.mark.parametrize("sms", [1, 3, 4])
def test_blocks_that_stay_take_every_tile_once(sms):
    """15 tiles, walked in groups of 2 rows, the last of 1, by 1 to 4 blocks."""
    config = dataclasses.replace(SMALL, group_m=2)
    case = Case(5 * 64 - 9, 3 * 64 - 7, 40, "tn", dtype="f16", out_dtype="bf16", alpha=1.5, beta=-0.5)
    product = Bench(case).run(H13, config, sms=sms)
    product.assert_right()
    assert product.result.counters.threads == sms * 128


def test_the_bits_are_those_of_h11():
    """wgmma adds as mma.sync does, whatever the tile (on a GPU: tests/gpu)."""
    case = Case(70, 130, 200, "nn", dtype="bf16", out_dtype="f32")
    results = []
    for rung, config in (
        (find_rung("h11"), GemmConfig(32, 32, 32, warp_m=16, warp_n=32, stages=3)), (H12, SMALL),
        (H13, GemmConfig(64, 128, 64, warp_m=16, warp_n=128, stages=2, min_blocks=2)),
    ):  # fmt: skip
        bench = Bench(case)
        bench.run(rung, config).assert_right()
        results.append(bench.out.bits.tobytes())
    assert results[0] == results[1] == results[2]


def test_other_architectures_are_told_that_they_lack_it():
    problem = Bench(Case(64, 64, 64)).problem
    for name in ("sm_80", "sm_89", "sm_120"):
        assert "only sm_90a has" in (H12.why_not(problem, H12.default, ARCHS[name]) or "")
    assert H12.why_not(problem, H12.default, ARCHS["sm_90a"]) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [({"warp_n": 32}, "64, 128, 192, 256"), ({"warp_m": 64}, "not a multiple"), ({"stages": 2}, "3 to 8 stages"),
     ({"tile_k": 24}, "power of two"),
     ({"tile_n": 384, "warp_n": 128}, "a block's threads must be a power of two"),
     ({"tile_n": 384, "warp_n": 256}, "not a multiple"),
     ({"tile_m": 128, "tile_n": 192, "warp_n": 192, "tile_k": 16}, "256 threads do not divide a line of 24")],
)  # fmt: skip
def test_a_config_that_wgmma_cannot_take_is_refused_with_the_reason(change, words):
    problem = Bench(Case(64, 64, 64)).problem
    assert words in (H12.why_not(problem, dataclasses.replace(SMALL, **change), ARCHS["sm_90a"]) or "")
