"""The rungs as data: every default and space is sound, paths are chosen rightly, and why_not says why not."""

from __future__ import annotations

import dataclasses
import math
import re
import struct

import pytest

from tilewright import emulator
from tilewright.arrays.dtypes import FP8
from tilewright.errors import ConfigRejected
from tilewright.gemm.config import GemmConfig, SimtConfig
from tilewright.gemm.problem import GemmProblem, Matrix
from tilewright.gemm.rung import Addresses, vector_out
from tilewright.gemm.rungs import GEMM_RUNGS, find_rung, rungs_for
from tilewright.gpus import ARCHS
from tilewright.jit.source import CUDA_ROOT

FP32 = rungs_for("f32")
SQUARE = GemmProblem.dense(512, 512, 512)
WITH_C = GemmProblem.dense(512, 512, 512, use_c=True)
SM_90A = ARCHS["sm_90a"]


def test_the_twelve_fp32_rungs_stand_in_order_each_with_its_file_and_lesson():
    numbers = [rung.id.split("_")[0] for rung in FP32]
    assert [number for number in numbers if number <= "f12"] == [f"f{i:02d}" for i in range(1, 13)]
    for rung in FP32:
        assert (CUDA_ROOT / rung.include).is_file()
        assert rung.include.endswith(f"{rung.id}.cuh")
        assert len(rung.teaches) > 20


@pytest.mark.parametrize("rung", FP32, ids=str)
@pytest.mark.parametrize("arch", ARCHS.values(), ids=str)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_every_default_fits_every_architecture_and_layout(rung, arch, layout):
    problem = GemmProblem.dense(512, 512, 512, layout=layout)
    assert rung.why_not(problem, rung.default, arch) is None


@pytest.mark.parametrize("rung", FP32, ids=str)
def test_every_space_holds_its_default_and_configs_that_fit(rung):
    space = rung.space()
    assert rung.default in space
    assert len(set(space)) == len(space)
    reasons = [rung.why_not(SQUARE, config, SM_90A) for config in space]
    assert reasons.count(None) >= max(1, len(space) // 4)
    for reason in filter(None, reasons):
        assert re.search(r"\d", reason) or "next rung" in reason, f"a reason carries its numbers: {reason}"


def test_tiles_are_walked_alike_from_the_rung_that_brings_them():
    assert {rung.default.group_m for rung in FP32[2:]} == {8}
    assert {config.group_m for rung in FP32[2:] for config in rung.space()} == {8}


def test_rungs_are_found_by_id_or_number_and_else_named():
    assert find_rung("f09") is find_rung("f09_transposed")
    with pytest.raises(ConfigRejected, match=r"'f9' is not known\. Did you mean 'f09'\? Known: f01_naive, f02"):
        find_rung("f9")


@pytest.mark.parametrize("sizes", [(512, 512, 512), (513, 512, 512), (512, 511, 512), (512, 512, 510)])
@pytest.mark.parametrize("rung", FP32, ids=str)
def test_ragged_sizes_take_the_edge_path_and_whole_tiles_do_not(rung, sizes):
    assert rung.edge(GemmProblem.dense(*sizes), rung.default) == (sizes != (512, 512, 512) and ragged(rung, sizes))


def ragged(rung, sizes) -> bool:
    config = rung.default
    m, n, k = sizes
    lines = rung.vector_bytes == 16 and (n % 4 or k % 4)
    return bool(m % config.tile_m or n % config.tile_n or k % max(config.tile_k, 1) or lines)


@pytest.mark.parametrize("rung", [rung for rung in FP32 if rung.vector_bytes == 16], ids=str)
@pytest.mark.parametrize(
    "a", [Matrix(512, 1, alignment=4), Matrix(513, 1), Matrix(1024, 2), Matrix(512, 1, batch_stride=3)], ids=str
)
def test_lines_that_vectors_cannot_read_take_the_edge_path(rung, a):
    assert rung.edge(dataclasses.replace(SQUARE, a=a, batch=2), rung.default)


@pytest.mark.parametrize(
    ("changes", "edges"),
    [
        ({}, (False, False)),
        ({"m": 500}, (True, False)),
        ({"n": 500}, (False, True)),
        ({"k": 500}, (True, True)),
        ({"k": 500, "a": Matrix(512, 1, padded=True)}, (False, True)),
        ({"a": Matrix(513, 1), "b": Matrix(513, 1)}, (False, True)),  # A is transposed one element an access
        ({"a": Matrix(1, 513), "b": Matrix(1, 513)}, (True, False)),
        ({"a": Matrix(1024, 2)}, (True, False)),
    ],
)
def test_f12_tests_only_the_operands_that_need_it(changes, edges):
    facts = find_rung("f12").constants(dataclasses.replace(SQUARE, **changes), find_rung("f12").default)
    assert (facts["a_edge"], facts["b_edge"]) == edges


def test_scalar_rungs_need_no_alignment():
    problem = dataclasses.replace(SQUARE, a=Matrix(513, 1, alignment=4), b=Matrix(1024, 2))
    assert not find_rung("f05").edge(problem, find_rung("f05").default)


@pytest.mark.parametrize(
    ("out", "c", "n", "whole"),
    [
        (Matrix(512, 1), None, 512, True),
        (Matrix(512, 1), Matrix(512, 1), 512, True),
        (Matrix(512, 1, alignment=4), None, 512, False),
        (Matrix(512, 1), Matrix(512, 1, alignment=8), 512, False),
        (Matrix(512, 1), Matrix(0, 1), 512, True),
        (Matrix(512, 1), Matrix(1, 0), 512, False),
        (Matrix(1, 512), None, 512, False),
        (Matrix(512, 1), None, 510, False),
    ],
)
def test_results_move_in_vectors_only_where_rows_allow_it(out, c, n, whole):
    problem = dataclasses.replace(GemmProblem.dense(512, n, 512), out=out, c=c)
    assert vector_out(problem) == whole


def test_why_not_carries_the_numbers():
    f12, f01 = find_rung("f12"), find_rung("f01")
    deep = dataclasses.replace(f12.default, stages=40)
    assert re.search(
        r"needs \d{6,} B of shared memory per block; sm_90a allows 232448", f12.why_not(SQUARE, deep, SM_90A)
    )
    assert "4096 threads per block; sm_90a allows 1024" in f01.why_not(SQUARE, GemmConfig(64, 64), SM_90A)
    assert "multiplies f32; the operands are bf16" in f01.why_not(
        GemmProblem.dense(8, 8, 8, dtype="bf16"), f01.default, SM_90A
    )
    old = dataclasses.replace(SM_90A, compute_capability=(7, 0))
    assert "needs compute capability 8.0; sm_90a has 7.0" in f01.why_not(SQUARE, f01.default, old)
    few = dataclasses.replace(f12.default, stages=1)
    assert "at least 2 stages; it has 1" in f12.why_not(SQUARE, few, SM_90A)
    with pytest.raises(ConfigRejected, match="4096 threads"):
        f01.compile(SQUARE, GemmConfig(64, 64), SM_90A)


@pytest.mark.parametrize("rung", FP32, ids=str)
def test_a_plan_covers_the_result_with_tiles_and_packs_what_it_was_given(rung):
    problem = dataclasses.replace(GemmProblem.dense(300, 200, 100, batch=3, use_c=True))
    launch = rung.launch(problem, rung.default, Addresses(1 << 40, 2 << 40, 3 << 40, 4 << 40), 1.5, -2.0)
    tiles = -(-300 // rung.default.tile_m) * -(-200 // rung.default.tile_n)
    assert launch.grid == (tiles, 3, 1)
    assert launch.block == (rung.default.threads, 1, 1)
    assert struct.unpack_from("<4Q", launch.params) == (1 << 40, 2 << 40, 4 << 40, 3 << 40)
    assert struct.unpack_from("<3i2f", launch.params, 16 * 8) == (300, 200, 100, 1.5, -2.0)
    assert launch.shared_bytes == (rung.shared_bytes(rung.default, problem) if rung.dynamic_shared else 0)


@pytest.mark.parametrize("rung", [rung for rung in FP32 if not rung.dynamic_shared], ids=str)
def test_the_shared_bytes_told_are_those_the_compiler_sees(rung):
    with emulator():
        ptx = rung.compile(WITH_C, rung.default, SM_90A).ptx
    variables = re.findall(r"^\s*\.shared [^;]*\.b8 \w+\[(\d+)\];", ptx, re.MULTILINE)
    assert len(variables) == ptx.count(".shared .")
    assert sum(map(int, variables)) == rung.shared_bytes(rung.default, WITH_C)


def test_config_texts_name_what_they_have():
    assert str(GemmConfig(32, 32)) == "32x32"
    text = str(find_rung("f12").default)
    for word in ("128x256x16", "warp 64x64/4x2", "thread 4x4", "4 stages", "ca", "group 8"):
        assert word in text


def test_ids_are_unique():
    assert len({rung.id for rung in GEMM_RUNGS}) == len(GEMM_RUNGS)


@pytest.mark.parametrize("rung", GEMM_RUNGS, ids=str)
def test_a_rung_whose_grids_may_overlap_waits_before_it_touches_global_memory(rung):
    """And no other one waits: its launch must not ask for overlap."""
    dtype = rung.dtypes[0]
    out_dtype = "bf16" if dtype in FP8 else dtype
    given = dataclasses.replace(WITH_C, dtype=dtype, out_dtype=out_dtype, precision=rung.precision)
    for config in sorted(rung.space(), key=lambda config: math.prod(config.tile)):  # the least compiles the fastest
        problem = given.packed(config.tile, rung.must_pack(given))
        if rung.why_not(problem, config, SM_90A) is None:
            break
    with emulator():  # which takes PTX only
        lines = rung.compile(problem, config, SM_90A).ptx.splitlines()
    waits = [number for number, line in enumerate(lines) if "griddepcontrol.wait" in line]
    touches = [
        n
        for n, line in enumerate(lines)
        if re.search(r"\b(ld|st|atom|red)\.(volatile\.)?global|cp\.async\.(c|bulk\.tensor\.\dd\.shared)", line)
    ]
    assert rung.launch(problem, config, Addresses(0, 0, 0)).overlaps == rung.overlaps == bool(waits)
    assert touches
    if waits:
        assert waits[0] < touches[0]


@pytest.mark.parametrize("batch", [1, 3])
def test_h14_has_l2_fetch_its_first_tiles_of_b_while_it_waits(batch):
    problem = GemmProblem.dense(64, 512, 256, dtype="bf16", layout="nt", batch=batch)
    rung = find_rung("h14")
    with emulator():  # which takes PTX only
        ptx = rung.compile(problem, rung.default, SM_90A).ptx
    box = f"cp.async.bulk.prefetch.tensor.{3 if batch > 1 else 2}d.L2.global"
    assert 0 < ptx.index(box) < ptx.index("griddepcontrol.wait")
    assert ptx.rindex("cp.async.bulk.prefetch") < ptx.index("griddepcontrol.wait")


def test_older_gpus_know_no_overlap():
    problem = GemmProblem.dense(512, 512, 512)
    with emulator():
        assert "griddepcontrol" not in FP32[-1].compile(problem, FP32[-1].default, ARCHS["sm_80"]).ptx
    assert not ARCHS["sm_89"].can_overlap_grids
    assert SM_90A.can_overlap_grids


@pytest.mark.parametrize("rung", [rung.id for rung in rungs_for("f32")])
def test_a_rung_refuses_levels_that_its_kernel_does_not_have(rung):
    """Such a kernel would make a part of the result only, and say nothing."""
    rung = find_rung(rung)
    own = {"sums"} if isinstance(rung.default, SimtConfig) else {"slices_k", "fragment_sets"}
    for level, value in (("split_k", 2), *((level, 2) for level in sorted(own))):
        if level in rung.levels:
            continue
        config = dataclasses.replace(rung.default, **{level: value})
        reason = rung.why_not(GemmProblem.dense(256, 256, 256), config, ARCHS["sm_90a"])
        assert f"{level} is {value}, and it has no such level" in reason
    naive = find_rung("f01")
    for config in (SimtConfig(16, 16, 16), SimtConfig(16, 16, 0, 2, 2), SimtConfig(32, 32, warp_m=16, warp_n=32)):
        assert "has no such level" in naive.why_not(GemmProblem.dense(256, 256, 256), config, ARCHS["sm_90a"])


@pytest.mark.parametrize("rung", [rung.id for rung in GEMM_RUNGS])
def test_a_rung_takes_the_levels_of_its_own_space(rung):
    rung = find_rung(rung)
    problem = GemmProblem.dense(256, 256, 256, dtype=rung.dtypes[0], precision=rung.precision)
    for config in (rung.default, *rung.space()):
        assert "no such level" not in (rung.why_not(problem, config, ARCHS["sm_90a"]) or "")


def test_parts_of_k_beyond_a_grid_and_fractions_of_a_tile_are_refused():
    h11, problem = find_rung("h11"), GemmProblem.dense(64, 64, 64, dtype="bf16")
    many = dataclasses.replace(h11.default, split_k=70000)
    assert "70000 parts of k; a grid holds 65535" in h11.why_not(problem, many, ARCHS["sm_90a"])
    assert "tile_m is 16.0" in find_rung("f01").why_not(
        GemmProblem.dense(64, 64, 64), GemmConfig(16.0, 16), ARCHS["sm_90a"]
    )


@pytest.mark.parametrize("rung", rungs_for("f32"), ids=str)
def test_the_emulators_time_is_estimated_from_instructions_near_those_that_it_counts(rung):
    """Within a factor of two; what an instruction costs is fitted where the estimate is made."""
    from tilewright.emu import Emulator
    from tilewright.gemm.family import plan_for
    from tilewright.gpus import GPUS
    from tilewright.lab.ladder import Step, expected_instructions

    gpu = GPUS["H200"]
    problem = GemmProblem.dense(128, 128, 128)
    step = Step(rung, plan_for(problem, gpu, rung.id).config, problem)
    emulator = Emulator("H200")
    assert step.run_checked(step.compile(gpu.arch), emulator, step.prepare()).ok
    counted = emulator.last.counters.thread_instructions
    assert counted / 2 <= expected_instructions(step) <= 2 * counted
    large = Step(rung, step.config, GemmProblem.dense(512, 512, 512))
    assert 0 < step.emulation_seconds < large.emulation_seconds < 60
