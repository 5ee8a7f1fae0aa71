"""t04 (tf32) and t05 (fp32x3) on the emulator: fp32 operands as scaled fp16 numbers, and what these cannot give."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from rung_products import Bench, Case
from test_tensor32_rungs import CASES, T01, T03, chained, fp32, normal
from test_tensor32_rungs import SMALL as SMALL_OF

import tilewright as tw
from tilewright.gemm.problem import GemmProblem
from tilewright.gemm.rung import GemmConfig, Rung
from tilewright.gemm.rungs import find_rung
from tilewright.gemm.rungs.halves import HALVES_RUNGS, STRETCH, halved_bytes
from tilewright.gemm.stages import halving_team, program_for
from tilewright.gpus import ARCHS
from tilewright.lab.accuracy import VALUES, Exact, make_operands
from tilewright.plan.plan import Plan
from tilewright.run.program import SLOT

T04, T05 = HALVES_RUNGS
SMALL = GemmConfig(64, 64, 64, warp_m=16, warp_n=64, stages=2, group_m=2, staged=1)
every_rung = pytest.mark.parametrize("rung", HALVES_RUNGS, ids=str)


def bench_of(rung: Rung, case: Case) -> Bench:
    return Bench(dataclasses.replace(case, precision=rung.precision))


def run_on(rung: Rung, a: np.ndarray, b: np.ndarray, config: GemmConfig = SMALL) -> np.ndarray:
    """a @ b."""
    bench = bench_of(rung, fp32(a.shape[0], b.shape[1], a.shape[1]))
    bench.put(0, a[None].astype(np.float32))
    bench.put(1, b[None].astype(np.float32))
    product = bench.run(rung, config)
    assert product.unwritten == 0
    assert product.intact_around
    return bench.out.view[0].copy()


@every_rung
@pytest.mark.parametrize("case", [*CASES, fp32(130, 72, 200, layouts="tt", alpha=2.0, beta=0.5)], ids=str)
def test_a_product_is_right_and_stays_inside(rung, case):
    bench_of(rung, case).run(rung, SMALL, sms=2).assert_right()


@every_rung
@pytest.mark.parametrize(
    "changes",
    [{"tile_k": 32, "stages": 3}, {"cluster_m": 2}, {"cluster_n": 2}, {"tile_m": 128, "tile_n": 128, "warp_n": 128},
     {"tile_m": 128, "tile_n": 96, "warp_n": 96, "staged": 2}, {"staged": 0}],
    ids=str,
)  # fmt: skip
def test_every_kind_of_config_is_right(rung, changes):
    config = dataclasses.replace(SMALL, **changes)
    for case in (fp32(150, 200, 75, layouts="nt", beta=0.5), fp32(128, 128, 128, layouts="tn")):
        bench_of(rung, case).run(rung, config, sms=2).assert_right()


@every_rung
def test_k_of_zero_gives_beta_times_c(rung):
    bench = bench_of(rung, fp32(33, 24, 0, beta=2.0))
    bench.run(rung, SMALL).assert_right()
    np.testing.assert_array_equal(bench.out.view, bench.expected_bits())


@every_rung
@pytest.mark.parametrize(("shared", "entries"), [(False, 3), (True, 1)])
def test_what_all_products_share_is_made_once(rung, shared, entries):
    problem = bench_of(rung, fp32(40, 36, 44, batch=3, shared_b=shared)).problem
    program = program_for(problem, Plan(rung, SMALL, "", ""))
    assert [stage.name for stage in program.stages] == ["halve", "product"]
    lines = 3 * 40 + entries * 36
    once = halved_bytes(rung.halves, 40, 44, 3) + halved_bytes(rung.halves, 36, 44, entries)
    assert once <= program.workspace_bytes < once + 3 * SLOT
    counters = bench_of(rung, fp32(40, 36, 44, batch=3, shared_b=shared)).run(rung, SMALL).before[0].counters
    assert counters.global_store_sectors <= (lines * (2 * rung.halves * 44 + 32)) // 32 + lines + 2


@every_rung
@pytest.mark.parametrize(("a_batch", "b_batch"), [((), (3,)), ((3,), ()), ((1,), (3,)), ((2, 1), (1, 3))], ids=str)
def test_either_operand_may_be_one_for_all_products(rung, a_batch, b_batch):
    rng = np.random.default_rng(7)
    a, b = rng.standard_normal((*a_batch, 20, 50), np.float32), rng.standard_normal((*b_batch, 50, 40), np.float32)
    with tw.emulator():
        out = tw.matmul(a, b, precision=rung.precision, rung=rung.id, config=SMALL)
    np.testing.assert_allclose(out, a.astype(np.float64) @ b, atol=1e-5 if rung is T05 else 0.1)


@pytest.mark.parametrize("k", [37, 38, 39, 41])
def test_accesses_of_16_bytes_end_with_the_line(k):
    """Lines start at multiples of 16 bytes, and the last one ends with the memory."""
    a, b = (np.full(40 * 44 - 44 + k, 1, np.float32) for _ in range(2))
    left, right = (np.lib.stride_tricks.as_strided(x, (40, k), (176, 4)) for x in (a, b))
    with tw.emulator():
        out = tw.matmul(left, right.T, precision="fp32x3", rung="t05", config=SMALL)
    assert (out == k).all()


@pytest.mark.parametrize(("k", "team"), [(90, 32), (600, 64), (1030, 128), (2100, 256), (4200, 256)])
@pytest.mark.parametrize("layouts", ["nt", "tn", "ss"])
def test_teams_of_every_size_make_lines_and_clusters_others(layouts, k, team):
    """Of the last ks threads cannot keep all their elements, and read some again."""
    assert halving_team(k) == team
    bench_of(T05, fp32(41, 35, k, layouts=layouts)).run(T05, SMALL, sms=2).assert_right()


@pytest.mark.parametrize("layouts", ["nn", "tt"])
def test_making_halves_writes_whole_sectors(layouts):
    """4 bytes an element are read, once where k is short; 4 are written, and 8 a line."""
    product = bench_of(T05, fp32(128, 128, 128, layouts=layouts)).run(T05, T05.default)
    (counters,) = [result.counters for result in product.before]
    assert counters.global_load_sectors == 2 * 128 * 128 * 4 // 32
    assert counters.global_store_sectors <= 2 * (128 * 128 * 4 // 32 + 128 + 4)


# --- tf32 ------------------------------------------------------------------------------------------------------------


def test_t04_multiplies_the_numbers_that_t01_does():
    """Rounded to 11 bits, to nearest, whatever the line's exponent. One product: nothing else rounds."""
    rng = np.random.default_rng(3)
    a = np.ldexp(rng.standard_normal((64, 1), np.float32), rng.integers(-100, 100, (64, 1)))
    b = rng.standard_normal((1, 64), np.float32)
    a[:4, 0] = [1 + 2**-11, 1 + 2**-11 + 2**-23, -1 - 2**-11, 1 + 3 * 2**-11]
    bench = bench_of(T01, fp32(64, 64, 1))
    bench.put(0, a[None])
    bench.put(1, b[None])
    bench.run(T01, SMALL_OF[T01.id])
    np.testing.assert_array_equal(run_on(T04, a, b), bench.out.view[0])


@pytest.mark.parametrize("name", VALUES)
def test_t04_keeps_tf32s_accuracy_in_hard_ranges(name):
    a, b = make_operands(name, 48, 40, 70, seed=9)
    errors = Exact.of(a, b).errors(run_on(T04, a, b))
    assert errors.kinds
    assert errors.share < 2.0**14 + 16, "2^-10 of a product"


# --- fp32x3 ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [64, 512, 1500])
def test_t05_errs_no_more_than_a_chain_of_fp32_roundings(k):
    a, b = normal(k, k)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    ours, chain = (np.abs(x - exact) for x in (run_on(T05, a, b), chained(a, b)))
    assert np.sqrt((ours**2).mean()) <= np.sqrt((chain**2).mean())
    assert ours.max() <= chain.max()


def test_t05_errs_no_more_than_t03_where_k_is_long():
    """Its parts lack a bit that t03's have; its sums lose less."""
    a, b = normal(5, 4600)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    bench = bench_of(T03, fp32(32, 32, 4600))
    bench.put(0, a[None])
    bench.put(1, b[None])
    bench.run(T03, SMALL_OF[T03.id])
    ours, theirs = (np.sqrt(((x - exact) ** 2).mean()) for x in (run_on(T05, a, b), bench.out.view[0]))
    assert ours <= theirs


@pytest.mark.parametrize("k", [1, 5, 16])
def test_t05_errs_at_most_a_few_roundings_of_each_product(k):
    a, b = normal(17, k)
    assert Exact.of(a, b).errors(run_on(T05, a, b)).share < 2.0**24 * 2.0**-21


@pytest.mark.parametrize("name", VALUES)
def test_t05_keeps_fp32s_accuracy_in_hard_ranges(name):
    a, b = make_operands(name, 48, 40, 70, seed=7)
    errors = Exact.of(a, b).errors(run_on(T05, a, b))
    assert errors.kinds
    assert errors.share < 9


@every_rung
@pytest.mark.parametrize("layouts", ["nn", "tt", "st"])
def test_what_is_made_again_is_read_where_the_operands_lie(rung, layouts):
    """Strided, ragged, and in its own batch entry."""
    names = ("subnormal a, huge b", "infinities and NaN", "one product of 1, all others tiny times huge")
    bench = bench_of(rung, fp32(37, 43, 41, layouts=layouts, out="t", batch=len(names)))
    sides = [make_operands(name, 37, 43, 41, seed=5) for name in names]
    for i in range(2):
        bench.put(i, np.stack([side[i] for side in sides]))
    product = bench.run(rung, SMALL)
    assert product.unwritten == 0
    assert product.intact_around
    for name, (a, b), out in zip(names, sides, bench.out.view, strict=True):
        errors = Exact.of(a, b).errors(out)
        assert errors.kinds, name
        assert errors.share < (9 if rung is T05 else 2.0**14 + 16), name


@every_rung
def test_rows_and_columns_of_far_apart_ranges_need_nothing_made_again(rung):
    """Each line has an exponent of its own."""
    rng = np.random.default_rng(4)
    a, b = normal(6, 256)
    a *= np.float32(2.0) ** rng.integers(-60, 60, (32, 1)).astype(np.float32)
    b *= np.float32(2.0) ** rng.integers(-60, 60, (1, 32)).astype(np.float32)
    bench = bench_of(rung, fp32(32, 32, 256))
    bench.put(0, a[None])
    bench.put(1, b[None])
    counters = bench.run(rung, SMALL).result.counters
    assert Exact.of(a, b).errors(bench.out.view[0]).share < (8 if rung is T05 else 2.0**14)
    plain = bench_of(rung, fp32(32, 32, 256)).run(rung, SMALL).result.counters
    assert counters.global_load_sectors == plain.global_load_sectors, "the operands themselves are not read"


@every_rung
def test_the_largest_numbers_and_zeros(rung):
    a, b = normal(13, 32)
    a[:] = 0
    assert (run_on(rung, a, b) == 0).all()
    largest = np.finfo(np.float32).max
    a[4, 4], b[4] = largest, 1
    want = np.full(32, largest) if rung is T05 else np.full(32, np.inf)
    np.testing.assert_array_equal(run_on(rung, a, b)[4], want)


# --- as data ---------------------------------------------------------------------------------------------------------


def test_stretches_are_whole_steps_of_every_tile():
    assert STRETCH % 16 == 0
    for config in T05.space():
        assert config.tile_k % STRETCH == 0


@every_rung
def test_spaces_hold_their_default_and_configs_that_fit(rung):
    problem = GemmProblem.dense(512, 512, 512, precision=rung.precision)
    space = rung.space()
    assert rung.default in space
    assert len(set(space)) == len(space)
    assert [rung.why_not(problem, config, ARCHS["sm_90a"]) for config in space].count(None) == len(space)


def test_a_config_without_registers_for_three_sums_is_refused():
    problem = GemmProblem.dense(512, 512, 512, precision="fp32x3")
    wide = dataclasses.replace(T05.default, tile_n=256, warp_n=256, stages=2)
    assert "three sums of 64 x 128" in str(T05.why_not(problem, wide, ARCHS["sm_90a"]))


def test_operands_that_would_borrow_too_much_are_refused():
    problem = GemmProblem.dense(32768, 32768, 32768, precision="fp32x3")
    assert "at most 4294967296 are borrowed" in str(T05.why_not(problem, T05.default, ARCHS["sm_90a"]))


@every_rung
def test_matmul_takes_it_by_name_and_gives_its_memory_back(rung):
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((3, 20, 50), np.float32), rng.standard_normal((50, 40), np.float32)
    with tw.emulator() as emulator:
        out = tw.matmul(a, b, precision=rung.precision, rung=rung.id, config=SMALL)
        assert len(emulator.results) == 2
        assert not emulator.memory._buffers, "the workspace is given back"
    np.testing.assert_allclose(out, a.astype(np.float64) @ b, atol=1e-5 if rung is T05 else 0.1)


def test_older_gpus_lack_its_instructions():
    problem = GemmProblem.dense(512, 512, 512, precision="fp32x3")
    assert "only sm_90a has" in str(find_rung("t05").why_not(problem, T05.default, ARCHS["sm_89"]))
