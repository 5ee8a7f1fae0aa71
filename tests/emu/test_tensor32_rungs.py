"""t01 (tf32), t02 and t03 (fp32x3) on the emulator: right at every shape and layout, fp32's accuracy, hard ranges."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

import numpy as np
import pytest
from rung_products import Bench, Case

from tilewright.gemm.problem import GemmProblem
from tilewright.gemm.rung import GemmConfig, Rung
from tilewright.gemm.rungs import find_rung, rungs_for
from tilewright.gpus import ARCHS
from tilewright.lab.accuracy import VALUES, Exact, make_operands

T01, T02, T03 = find_rung("t01_tf32"), find_rung("t02_fp32x3"), find_rung("t03_fp32x3_split")
ALL, FP32X3 = (T01, T02, T03), (T02, T03)
SMALL = {
    T01.id: GemmConfig(32, 32, 16, warp_m=16, warp_n=32, stages=2, group_m=2),
    T02.id: GemmConfig(32, 32, 32, warp_m=16, warp_n=16, stages=2, group_m=2),
    T03.id: GemmConfig(32, 32, 32, warp_m=16, warp_n=16, stages=3, group_m=2),
}


def fp32(*sizes, **changes) -> Case:
    return Case(*sizes, dtype="f32", **changes)


CASES = [
    # whole tiles: every layout, four tiles along k and one
    fp32(64, 32, 128, layouts="nn"),
    fp32(32, 64, 32, layouts="tt", out_dtype="bf16", alpha=1.5, beta=-0.5),
    fp32(64, 64, 64, layouts="nt", out="o", batch=2, shared_b=True),
    # ragged: lines that 16-byte loads can read, then lines that they cannot; thin; every other element
    fp32(40, 36, 44, layouts="tn", out="t", out_dtype="f16", beta=1.0),
    fp32(45, 70, 37, layouts="nn", out="q", alpha=-1.0, beta=2.0, c="q"),
    fp32(1, 33, 50, layouts="ss", out="s", out_dtype="bf16", batch=2),
    # chains of 512 along k
    fp32(20, 32, 1100, layouts="nt", out_dtype="f16"),
]


def bench_of(rung, case: Case) -> Bench:
    return Bench(dataclasses.replace(case, precision=rung.precision))


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("rung", ALL, ids=str)
def test_a_product_is_right_and_stays_inside(rung, case):
    bench_of(rung, case).run(rung, SMALL[rung.id]).assert_right()


@pytest.mark.parametrize("rung", ALL, ids=str)
def test_k_of_zero_gives_beta_times_c(rung):
    bench = bench_of(rung, fp32(33, 24, 0, beta=2.0))
    bench.run(rung, SMALL[rung.id]).assert_right()
    np.testing.assert_array_equal(bench.out.view, bench.expected_bits())


@pytest.mark.parametrize("rung", ALL, ids=str)
def test_shared_memory_is_read_and_written_without_conflicts(rung):
    """At the tiles of the default config, whose warps are as wide as these."""
    config = dataclasses.replace(rung.default, tile_m=64, tile_n=64, warp_m=32, warp_n=32)
    for layouts in ("nn", "tt"):
        counters = bench_of(rung, fp32(64, 64, 64, layouts=layouts)).run(rung, config).result.counters
        assert counters.shared_store_wavefronts == counters.shared_store_ideal
        # what the block's warps tell each other of their ranges is read at one address by all lanes
        assert counters.shared_load_wavefronts - counters.shared_load_ideal <= 16


# --- t01 -------------------------------------------------------------------------------------------------------------


def test_t01_rounds_operands_to_tf32_to_nearest():
    """Bits behind the tenth: a half rounds to even. Products with 1 show what the operand became."""
    bench = bench_of(T01, fp32(32, 32, 16))
    values = np.float32(
        [1 + 2**-11, 1 + 2**-11 + 2**-23, -1 - 2**-11, 1 + 3 * 2**-11, 2.0**-140, np.inf, -np.inf, 3e38]
    )
    a = np.zeros((1, 32, 16), np.float32)
    a[0, :8, 0] = values
    bench.put(0, a)
    b = np.zeros((1, 16, 32), np.float32)
    b[0, 0, :] = 1
    b[0, 1:, :] = 0
    bench.put(1, b)
    bench.run(T01, SMALL[T01.id])
    want = [1, 1 + 2**-10, -1, 1 + 2**-9, 0, np.inf, -np.inf, 3e38]
    got = bench.out.view[0, :8, 0]
    np.testing.assert_allclose(got, np.float32(want), rtol=2**-11)
    np.testing.assert_array_equal(got[:4], np.float32(want[:4]))


# --- fp32x3: accuracy and hard ranges --------------------------------------------------------------------------------


def run_on(rung: Rung, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a @ b. a [32, k], b [k, 32]."""
    bench = bench_of(rung, fp32(32, 32, a.shape[1]))
    bench.put(0, a[None].astype(np.float32))
    bench.put(1, b[None].astype(np.float32))
    product = bench.run(rung, SMALL[rung.id])
    assert product.unwritten == 0
    assert product.intact_around
    return bench.out.view[0].copy()


def normal(seed: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((32, k), np.float32), rng.standard_normal((k, 32), np.float32)


def chained(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """fp32's product summed in one chain of fused multiply-adds, as f01 sums."""
    sums = np.zeros((a.shape[0], b.shape[1]), np.float32)
    with np.errstate(all="ignore"):
        for k in range(a.shape[1]):
            sums = (sums + np.outer(a[:, k].astype(np.float64), b[k].astype(np.float64))).astype(np.float32)
    return sums


@pytest.mark.parametrize("rung", FP32X3, ids=str)
@pytest.mark.parametrize("k", [64, 512])
def test_fp32x3_errs_no_more_than_a_chain_of_fp32_roundings(rung, k):
    a, b = normal(k, k)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    ours, chain = (np.abs(x - exact) for x in (run_on(rung, a, b), chained(a, b)))
    assert np.sqrt((ours**2).mean()) <= np.sqrt((chain**2).mean())
    assert ours.max() <= chain.max()


def assert_hard_ranges_hold(rung: Rung, case: Case, names: Collection[str], seed: int) -> None:
    """One product of the batch for each kind of values: as accurate as fp32, infinities and NaN as fp32 has them."""
    bench = bench_of(rung, case)
    sides = [make_operands(name, case.m, case.n, case.k, seed=seed) for name in names]
    for i in range(2):
        bench.put(i, np.stack([side[i] for side in sides]))
    product = bench.run(rung, SMALL[rung.id])
    assert product.unwritten == 0
    assert product.intact_around
    for name, (a, b), out in zip(names, sides, bench.out.view, strict=True):
        errors = Exact.of(a, b).errors(out)
        assert errors.kinds, name
        assert errors.share < 8, name


@pytest.mark.parametrize("rung", FP32X3, ids=str)
def test_fp32x3_keeps_fp32s_accuracy_in_hard_ranges(rung):
    """Against the sum of magnitudes: fp32 itself is allowed k roundings, and errs a few. Infinities and NaN as fp32.
    One product of a batch for each kind of values."""
    assert_hard_ranges_hold(rung, fp32(32, 32, 64, batch=len(VALUES)), VALUES, seed=7)


@pytest.mark.parametrize("rung", FP32X3, ids=str)
@pytest.mark.parametrize("layouts", ["nn", "tt", "st"])
def test_hard_ranges_hold_in_every_layout_batch_and_ragged_tile(rung, layouts):
    """What is done again is read where the operands lie: strided, and in its own batch entry."""
    names = ("subnormal a, huge b", "infinities and NaN", "one product of 1, all others tiny times huge")
    assert_hard_ranges_hold(rung, fp32(37, 43, 41, layouts=layouts, out="t", batch=len(names)), names, seed=5)


@pytest.mark.parametrize("rung", FP32X3, ids=str)
def test_alpha_beta_and_c_come_after_what_is_done_again(rung):
    bench = bench_of(rung, fp32(32, 32, 32, alpha=-2.0, beta=0.5))
    a, b = make_operands("subnormal products", 32, 32, 32)
    bench.put(0, a[None])
    bench.put(1, b[None])
    bench.put(2, np.full((1, 32, 32), 2.0**-130, np.float32))
    bench.run(rung, SMALL[rung.id])
    want = -2.0 * (a.astype(np.float64) @ b.astype(np.float64)) + 0.5 * 2.0**-130
    np.testing.assert_allclose(bench.out.view[0], want, rtol=0, atol=64 * 2.0**-149)


@pytest.mark.parametrize("rung", FP32X3, ids=str)
def test_fp32x3_takes_infinities_and_nan_as_a_chain_in_fp32_does(rung):
    """The parts of an infinity would be infinity and NaN."""
    a, b = make_operands("infinities and NaN", 32, 32, 64, seed=11)
    want, out = chained(a, b), run_on(rung, a, b)
    hard = ~np.isfinite(want)
    for kind in (np.isnan, np.isposinf, np.isneginf):
        assert kind(want).any()
    np.testing.assert_array_equal(out[hard], want[hard])
    assert np.isfinite(out[~hard]).all()


@pytest.mark.parametrize("rung", FP32X3, ids=str)
@pytest.mark.parametrize("k", [1, 5, 16])
def test_fp32x3_errs_less_than_a_cut_and_a_rounding_of_each_product(rung, k):
    """What the six products omit is less than half a rounding; tensor cores cut a sum, which counts twice."""
    a, b = normal(17, k)
    assert Exact.of(a, b).errors(run_on(rung, a, b)).share < 2.5


@pytest.mark.parametrize("rung", FP32X3, ids=str)
def test_fp32x3_takes_numbers_whose_first_part_is_infinite(rung):
    """From (2 - 2^-8) 2^127 on: the whole row is done again."""
    a, b = normal(19, 32)
    a[3, 3], b[3] = 3.4e38, np.linspace(-1, 1, 32)
    errors = Exact.of(a, b).errors(run_on(rung, a, b))
    assert errors.kinds
    assert errors.share < 8


@pytest.mark.parametrize("rung", FP32X3, ids=str)
def test_fp32x3_gives_zero_for_zeros_and_the_largest_number_for_itself(rung):
    a, b = normal(13, 32)
    a[:] = 0
    assert (run_on(rung, a, b) == 0).all()
    largest = np.finfo(np.float32).max
    a[4, 4], b[4] = largest, 1
    np.testing.assert_array_equal(run_on(rung, a, b)[4], np.full(32, largest))


# --- as data ---------------------------------------------------------------------------------------------------------


def test_the_rungs_of_other_precisions_are_found_and_are_no_part_of_the_fp32_ladder():
    assert rungs_for("f32", "tf32") == (T01, find_rung("t04"))
    assert rungs_for("f32", "fp32x3") == (*FP32X3, find_rung("t05"))
    assert not set(ALL) & set(rungs_for("f32"))
    assert find_rung("t02") is T02


def test_a_rung_of_one_precision_refuses_another():
    plain = GemmProblem.dense(512, 512, 512)
    arch = ARCHS["sm_90a"]
    assert "asked for is 'ieee'" in T02.why_not(plain, T02.default, arch)
    other = dataclasses.replace(plain, precision="tf32")
    assert T01.why_not(other, T01.default, arch) is None
    assert "'fp32x3'" in T02.why_not(other, T02.default, arch)
    assert "'ieee'" in find_rung("f12").why_not(other, find_rung("f12").default, arch)


@pytest.mark.parametrize("rung", ALL, ids=str)
def test_spaces_hold_their_default_and_configs_that_fit(rung):
    problem = GemmProblem.dense(512, 512, 512, precision=rung.precision)
    space = rung.space()
    assert rung.default in space
    assert len(set(space)) == len(space)
    assert [rung.why_not(problem, config, ARCHS["sm_90a"]) for config in space].count(None) > len(space) // 2


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"stages": 3}, "stages=3"), ({"tile_k": 16}, "tile_k must be a power of two and at least 32"),
        ({"warp_n": 128}, "at most 64"), ({"tile_m": 16, "warp_m": 16}, "at least 32"),
        ({"split_k": 3}, "k=512 is not 3 parts"), ({"slices_k": 2}, "slices_k is 2"),
    ],
)  # fmt: skip
def test_configs_that_the_kernel_cannot_run_are_refused_with_numbers(changes, reason):
    problem = GemmProblem.dense(512, 512, 512, precision="fp32x3")
    assert reason in T02.why_not(problem, dataclasses.replace(T02.default, **changes), ARCHS["sm_90a"])
