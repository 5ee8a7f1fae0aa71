"""CUTLASS's own GEMM kernel on the emulator: a program that nobody here wrote, as NVRTC compiles it."""

from __future__ import annotations

import pytest

from tilewright.emu import Emulator
from tilewright.errors import EmulatorFault, MissingDependency
from tilewright.gemm.problem import GemmProblem
from tilewright.gemm.rung import GemmConfig
from tilewright.gpus import GPUS
from tilewright.jit import use_executor
from tilewright.lab.ladder import Step, prepare, run_checked
from tilewright.lab.peers import cutlass

try:
    cutlass.libraries()
except MissingDependency as error:
    pytest.skip(f"{error}", allow_module_level=True)

GPU = GPUS["H200"]


def run(problem: GemmProblem, hazards: str = "raise", config: GemmConfig | None = None):
    """(verdict, counters, kinds of hazards) of CUTLASS's kernel on a problem."""
    rung = cutlass.rung_of(problem.dtype)
    step = Step(rung, config or rung.default, problem)
    emulator = Emulator(GPU.name, hazards)
    with use_executor(emulator):  # to PTX only
        kernel = rung.compile(problem, step.config, GPU.arch)
    verdict = run_checked(step, kernel, emulator, prepare(problem))
    return verdict, emulator.last.counters, {hazard.kind for hazard in emulator.last.hazards}


def test_the_bf16_kernel_is_right_and_multiplies_on_tensor_cores():
    m, n, k = 128, 128, 128
    verdict, counters, _ = run(GemmProblem.dense(m, n, k, dtype="bf16"))
    assert verdict.ok, verdict.reason
    assert counters.by_class["tensor"] == m * n * k // (16 * 8 * 16) * 32
    assert counters.async_copy_bytes == 2 * (m * k + k * n)
    # Its tiles are swizzled: neither loads of fragments nor copies meet in a bank.
    tiles = [row for row in counters.per_instruction if row.ptx.startswith(("ldmatrix", "cp.async.c")) and row.requests]
    assert {row.ptx.split(".")[0] for row in tiles} == {"ldmatrix", "cp"}
    assert [row.wavefronts for row in tiles] == [row.ideal for row in tiles]


def test_it_reads_shared_memory_that_it_never_wrote_and_is_right_all_the_same():
    """Its main loop leaves copies out instead of filling with zeros: behind a short k, and in rows beyond m."""
    problem = GemmProblem.dense(104, 72, 136, dtype="bf16")
    with pytest.raises(EmulatorFault, match=r"mma_tensor_op_tile_iterator\.h"):
        run(problem)
    verdict, _, hazards = run(problem, "collect")
    assert verdict.ok, verdict.reason
    assert hazards == {"uninitialised_shared_read"}


def test_the_fp32_kernel_is_right_at_sizes_that_no_tile_divides():
    verdict, counters, _ = run(GemmProblem.dense(97, 51, 33, layout="nt"))
    assert verdict.ok, verdict.reason
    assert counters.by_class.get("tensor", 0) == 0
