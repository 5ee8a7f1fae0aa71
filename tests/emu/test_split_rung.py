"""t03 (fp32x3, operands split first) on the emulator: its splitting launches, every way to configure it, its ring."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from test_rung_faults import NEVER, RACE, RING, WAIT, Fault, kernel_with, mistaken
from test_tensor32_rungs import SMALL, T02, T03, bench_of, fp32

import tilewright as tw
from tilewright.errors import EmulatorFault
from tilewright.gemm.rung import GemmConfig
from tilewright.gemm.stages import program_for
from tilewright.gpus import ARCHS
from tilewright.jit.source import render
from tilewright.plan.plan import Plan


def t03(tile_m: int, tile_n: int, tile_k: int, warp_m: int, warp_n: int, stages: int) -> GemmConfig:
    return GemmConfig(tile_m, tile_n, tile_k, warp_m=warp_m, warp_n=warp_n, stages=stages, group_m=2)


@pytest.mark.parametrize(
    ("config", "case"),
    [
        (t03(32, 32, 32, 16, 16, 2), fp32(45, 70, 75, layouts="nt", beta=0.5)),
        (t03(64, 32, 64, 32, 16, 3), fp32(70, 45, 75, layouts="tn")),
        (t03(32, 64, 64, 16, 64, 2), fp32(33, 72, 300, layouts="nn", beta=1.0)),
        (t03(64, 64, 32, 64, 32, 8), fp32(64, 64, 100, layouts="qs", out="t")),
    ],
    ids=str,
)
def test_every_kind_of_config_is_right(config, case):
    bench_of(T03, case).run(T03, config).assert_right()


def test_its_bits_are_those_of_t02_whatever_the_config():
    """The same parts, the same six products in the same order, the same chains of 512."""
    k = 1100
    wanted = bench_of(T02, fp32(32, 32, k))
    wanted.run(T02, SMALL[T02.id])
    for config in (SMALL[T03.id], t03(32, 32, 64, 32, 16, 2)):
        bench = bench_of(T03, fp32(32, 32, k))
        bench.run(T03, config)
        np.testing.assert_array_equal(bench.out.view, wanted.out.view)


# --- splitting -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layouts", ["nn", "tt"])
def test_splitting_moves_whole_sectors_only(layouts):
    """4 bytes an element in, 6 out; beside that a few words for each tile."""
    product = bench_of(T03, fp32(128, 128, 128, layouts=layouts)).run(T03, T03.default)
    assert len(product.before) == 2
    for counters in (result.counters for result in product.before):
        assert counters.global_load_sectors == 128 * 128 * 4 // 32
        assert counters.global_load_requests * 16 == counters.global_load_sectors, "16 bytes per lane"
        tiles, words_of_the_origin = 4, 3
        assert counters.global_store_sectors == 128 * 128 * 6 // 32 + tiles + words_of_the_origin
        assert counters.shared_store_wavefronts == counters.shared_store_ideal
        assert counters.shared_load_wavefronts == counters.shared_load_ideal


def test_the_product_copies_whole_sectors_and_meets_no_bank_conflicts():
    """Its copies are one run of bytes a tile."""
    config = dataclasses.replace(T03.default, tile_m=64, tile_n=64, warp_m=32, warp_n=32)
    counters = bench_of(T03, fp32(64, 64, 64)).run(T03, config).result.counters
    assert counters.async_copy_sectors * 32 == counters.async_copy_bytes == 2 * 64 * 64 * 6
    assert counters.async_copy_wavefronts == counters.async_copy_ideal


@pytest.mark.parametrize(("shared", "entries"), [(False, 3), (True, 1)])
def test_what_all_products_share_is_split_once(shared, entries):
    problem = bench_of(T03, fp32(40, 36, 44, batch=3, shared_b=shared)).problem
    program = program_for(problem, Plan(T03, SMALL[T03.id], "", ""))
    assert [stage.name for stage in program.stages] == ["split a", "split b", "product"]
    assert [stage.problem.batch for stage in program.stages] == [3, entries, 3]
    tile = 6 * 32 * 32
    assert program.workspace_bytes == (3 + entries) * (256 + 2 * 2 * tile)


def test_splitting_waits_for_earlier_grids_whatever_there_is_to_split():
    """The product waits for the second splitting launch only, and must not overtake what ran before both."""
    stage = program_for(bench_of(T03, fp32(32, 32, 0)).problem, Plan(T03, SMALL[T03.id], "", "")).stages[0]
    before, found, _ = stage.compile(ARCHS["sm_90a"]).ptx.partition("griddepcontrol.wait")
    assert found
    assert " bra " not in before


def test_a_batch_with_a_shared_operand_is_right_and_gives_its_memory_back():
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((3, 20, 50), np.float32), rng.standard_normal((50, 40), np.float32)
    with tw.emulator() as emulator:
        out = tw.matmul(a, b, precision="fp32x3", rung="t03", config=SMALL[T03.id])
        assert len(emulator.results) == 3
        assert not emulator.memory._buffers, "the workspace is given back"
    np.testing.assert_allclose(out, a.astype(np.float64) @ b, atol=1e-5)


# --- the ring: mistakes made in its own source -----------------------------------------------------------------------

FAULTS = [
    Fault("t03", "waits for a group less", " wait();", -1, " cp_async_wait<ahead>(), __syncthreads();", WAIT, RING),
    Fault("t03", "no wait before the first tile", "ring.wait();", 0, "__syncthreads();", WAIT),
    Fault("t03", "no barrier before the first tile", "ring.wait();", 0, "cp_async_wait<Cfg::stages - 2>();", RACE),
    Fault("t03", "no barrier before the refill", " wait();", -1, " cp_async_wait<ahead - 1>();", RACE, RING),
    Fault("t03", "copies into the buffer that is read", "start_part(ring.write,", 0, "start_part(ring.read,", WAIT),
    Fault("t03", "reads the buffer that is copied to", "ring.read * B::bytes", 0, "ring.write * B::bytes", WAIT),
    Fault("t03", "never turns the ring", "write = read;", 0, ";", WAIT, RING),
    Fault("t03", "no commit in the loop", "cp_async_commit();", -1, "", WAIT, RING),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_mistake_in_its_ring_is_reported(fault):
    bench = bench_of(T03, fp32(32, 32, 7 * 32))
    problem = program_for(bench.problem, Plan(T03, SMALL[T03.id], "", "")).product.problem
    source = render(T03.include, T03.constants(problem, SMALL[T03.id]), T03.entry)
    file = fault.file or T03.include
    text = mistaken(fault, file, dict(source.headers)[file])
    with pytest.raises(EmulatorFault) as caught:
        bench.run(T03, SMALL[T03.id], kernel_with(source, file, text))
    assert caught.value.hazard.kind in (fault.kind, NEVER), str(caught.value.hazard)
