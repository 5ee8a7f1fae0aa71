"""Every 16-bit rung on the emulator: right at every kind of shape, layout and type, and nothing beside is touched."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
from rung_products import Bench, Case

from tilewright import emulator
from tilewright.gemm.rung import GemmConfig
from tilewright.gemm.rungs import find_rung, rungs_for
from tilewright.gpus import ARCHS

RUNGS = [rung.id for rung in rungs_for("bf16")]


def wmma(stages: int = 1, **changes) -> GemmConfig:
    base = GemmConfig(32, 32, 32, warp_m=32, warp_n=16, subtiles_m=2, subtiles_n=1, stages=stages)
    return dataclasses.replace(base, **changes)


def mma(stages: int, **changes) -> GemmConfig:
    return dataclasses.replace(GemmConfig(32, 32, 32, warp_m=16, warp_n=32, stages=stages), **changes)


# Tiles that small problems do not drown in: two warps a block, several tiles along k. What copies by TMA, from h14 on,
# takes aligned lines alone, and has tests of its own (test_tma_rungs.py).
SMALL = {
    "h01_simt": GemmConfig(32, 32, 16, 4, 4, 32, 16),
    "h02_wmma_naive": GemmConfig(32, 16, 16, warp_m=16, warp_n=16),
    "h03_wmma_warptile": wmma(),
    "h04_wmma_async": wmma(),
    "h05_wmma_double_buffer": wmma(2, tile_k=16),
    "h06_wmma_pipeline": wmma(3, tile_k=16),
    "h07_wmma_three_stage": wmma(3, tile_k=16),
    "h08_mma": mma(2, tile_k=16),
    "h09_mma_swizzled": mma(2, tile_k=16),
    "h10_mma_three_stage": mma(3, tile_k=16),
    "h11_mma_multistage": mma(3, group_m=2),
    "h12_wgmma": GemmConfig(64, 64, 32, warp_m=16, warp_n=64, stages=3),
    "h13_persistent": GemmConfig(64, 64, 16, warp_m=16, warp_n=64, stages=2, min_blocks=2, group_m=2),
}

CASES = [
    # whole tiles: every layout, type and kind of result
    Case(64, 32, 96, "nn", dtype="bf16", out_dtype="f32"),
    Case(32, 64, 64, "tt", dtype="f16", out_dtype="f16"),
    Case(64, 64, 32, "tn", dtype="bf16", out_dtype="bf16", alpha=1.5, beta=-0.5),
    Case(32, 32, 64, "nt", out="o", dtype="f16", out_dtype="bf16", batch=2, shared_b=True),
    Case(32, 32, 64, "pp", out="p", dtype="f16", out_dtype="f32", alpha=0.5, beta=0.25, c="t", batch=2),
    # ragged: lines that 16-byte accesses can read (multiples of 8), then lines that they cannot
    Case(40, 56, 88, "nt", out="t", dtype="f16", out_dtype="f16", beta=1.0),
    Case(24, 40, 72, "tn", dtype="bf16", out_dtype="bf16"),
    Case(45, 70, 37, "nn", out="q", dtype="f16", out_dtype="f32", alpha=-1.0, beta=2.0, c="q"),
    Case(35, 33, 50, "tt", out="s", dtype="bf16", out_dtype="f16"),
    # thin
    Case(1, 70, 45, "nt", dtype="f16", out_dtype="bf16"),
    Case(65, 1, 29, "tn", dtype="bf16", out_dtype="f32", alpha=2.0, beta=1.0, c="c"),
    Case(33, 34, 1, "nn", dtype="bf16", out_dtype="f16", batch=3),
    # operands that no 16-byte access can read though the sizes are whole tiles
    Case(32, 32, 64, "ou", out="u", dtype="bf16", out_dtype="bf16"),
    Case(40, 30, 50, "ss", dtype="f16", out_dtype="f16", beta=0.5, c="s"),
    Case(32, 40, 48, "rc", dtype="bf16", out_dtype="f32"),
]


def test_the_cases_meet_every_pair_of_types_with_and_without_c():
    assert len(set(CASES)) == len(CASES)
    assert {(case.dtype, case.out_dtype) for case in CASES} == {
        (dtype, out) for dtype in ("bf16", "f16") for out in ("f32", "bf16", "f16")
    }
    assert {case.out_dtype for case in CASES if case.beta} == {"f32", "bf16", "f16"}


def pairs_of_rung_and_case() -> list[tuple[str, Case]]:
    """Every case with h01, with h04, whose copies and stores h05 to h07 share, and with h11; of the other rungs each
    takes every third one, and the next rung the next, so that h05 to h07, and h08 to h10, take them all together. On a
    GPU each does."""
    whole = ("h01_simt", "h04_wmma_async", "h11_mma_multistage")
    return [
        (rung, case)
        for number, rung in enumerate(SMALL)
        for place, case in enumerate(CASES)
        if rung in whole or (number + place) % 3 == 0
    ]


@pytest.mark.parametrize(("rung", "case"), pairs_of_rung_and_case(), ids=str)
def test_a_product_is_right_and_stays_inside(rung, case):
    Bench(case).run(find_rung(rung), SMALL[rung]).assert_right()


@pytest.mark.parametrize("rung", SMALL)
def test_k_of_zero_gives_beta_times_c(rung):
    bench = Bench(Case(33, 24, 0, out_dtype="bf16", beta=2.0))
    bench.run(find_rung(rung), SMALL[rung]).assert_right()
    np.testing.assert_array_equal(bench.out.view, bench.expected_bits())


@pytest.mark.parametrize("subtiles", [(2, 2), (1, 4), (4, 1)], ids=["16x16", "32x8", "8x32"])
@pytest.mark.parametrize(
    ("rung", "dtype", "layout"), [("h03_wmma_warptile", "bf16", "tt"), ("h07_wmma_three_stage", "f16", "nn")]
)
def test_wmma_rungs_are_right_with_each_shape_of_product(rung, dtype, layout, subtiles):
    config = wmma(find_rung(rung).default.stages, warp_n=32, subtiles_m=subtiles[0], subtiles_n=subtiles[1])
    shape = f"m{32 // subtiles[0]}n{32 // subtiles[1]}k16"
    bench = Bench(Case(64, 35, 96, layout, dtype=dtype))
    with emulator():  # which takes PTX only
        kernel = find_rung(rung).compile(bench.problem, config, ARCHS["sm_90a"])
    shapes = re.findall(r"wmma\.mma\.sync\.aligned\.\w+\.\w+\.(\w+)", kernel.ptx)
    assert shapes == [shape] * kernel.ptx.count("wmma.mma")
    assert shapes
    bench.run(find_rung(rung), config, kernel).assert_right()


@pytest.mark.parametrize("sets", [1, 2])
@pytest.mark.parametrize("k", [16, 32, 48, 64, 80])
def test_h07_is_right_with_one_or_two_fragment_sets_at_any_number_of_tiles(sets, k):
    Bench(Case(32, 32, k)).run(find_rung("h07"), wmma(3, tile_k=16, fragment_sets=sets)).assert_right()


@pytest.mark.parametrize("tiles", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_h06_is_right_at_any_number_of_tiles(tiles, stages):
    Bench(Case(32, 32, 16 * tiles)).run(find_rung("h06"), wmma(stages, tile_k=16)).assert_right()


LONG = Case(48, 40, 200, "nn", dtype="f16")  # seven tiles along k, the last a part of one
H11 = find_rung("h11")


@pytest.mark.parametrize(("stages", "layout"), [(3, "nn"), (4, "tn"), (5, "nt")])
def test_h11_is_right_with_each_number_of_stages_at_fewer_and_more_tiles(stages, layout):
    for k in (0, 1, 32 * (stages - 1), 32 * stages + 8):
        Bench(dataclasses.replace(LONG, k=k, layouts=layout)).run(H11, mma(stages)).assert_right()


@pytest.mark.parametrize(("parts", "layout"), [(2, "nt"), (3, "tn"), (9, "nn")])
def test_h11s_partial_sums_add_up_to_the_product(parts, layout):
    """9 parts of 7 tiles: some get none, and write zeros."""
    bench = Bench(dataclasses.replace(LONG, layouts=layout, batch=2), parts)
    bench.run(H11, mma(3, split_k=parts)).assert_right()
    sums = bench.out.view.reshape(parts, 2, -1)
    assert (np.abs(sums).max(axis=(1, 2)) > 0).sum() == min(parts, 7)


@pytest.mark.parametrize(("slices", "tile_k", "layout"), [(2, 64, "nn"), (2, 128, "tt"), (4, 128, "nt")])
def test_h11s_slices_of_k_add_up_in_shared_memory(slices, tile_k, layout):
    case = dataclasses.replace(LONG, layouts=layout, k=300, out_dtype="f16", alpha=1.5, beta=-1.0)
    Bench(case).run(H11, mma(3, tile_k=tile_k, slices_k=slices)).assert_right()
