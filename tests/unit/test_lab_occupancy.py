"""Occupancy and the roofline, against figures worked out by hand."""

from __future__ import annotations

import shutil
import site
import subprocess
from pathlib import Path

import pytest

from tilewright.gemm.problem import GemmProblem
from tilewright.gpus import ARCHS, GPUS, occupancy
from tilewright.jit import Resources
from tilewright.lab.bounds import bound, tiled_bytes


def using(registers: int, shared: int = 0) -> Resources:
    return Resources(registers, 0, 0, 0, shared, 0)


@pytest.mark.parametrize(
    ("arch", "registers", "threads", "static", "dynamic", "blocks", "share", "limiter"),
    [
        # 1024 threads per block at 48 warps an SM: one block of 32 warps (GEMM-B's 66.7%)
        ("sm_89", 32, 1024, 0, 0, 1, 32 / 48, "warps"),
        ("sm_90a", 32, 1024, 0, 0, 2, 1.0, "warps"),
        # 33 registers per thread: 33 * 32 = 1056, handed out as 1280 a warp; 65536 // (1280 * 8) = 6 blocks of 8 warps
        ("sm_90a", 33, 256, 0, 0, 6, 48 / 64, "registers"),
        # 40 registers: 1280 a warp exactly, the same
        ("sm_90a", 40, 256, 0, 0, 6, 48 / 64, "registers"),
        ("sm_90a", 41, 256, 0, 0, 5, 40 / 64, "registers"),
        # 232448 is all a block may have: with the system's 1024 exactly what an SM has
        ("sm_90a", 32, 128, 0, 232448, 1, 4 / 64, "shared memory"),
        # 2 * (115712 + 1024) = 233472 = 228 KiB: two fit, with one byte more only one does
        ("sm_90a", 32, 128, 0, 115712, 2, 8 / 64, "shared memory"),
        ("sm_90a", 32, 128, 0, 115713, 1, 4 / 64, "shared memory"),
        # static and dynamic shared memory count together
        ("sm_90a", 32, 128, 57856, 57856, 2, 8 / 64, "shared memory"),
        # 32-thread blocks: 32 blocks per SM is all
        ("sm_90a", 32, 32, 0, 0, 32, 0.5, "blocks"),
        ("sm_86", 32, 32, 0, 0, 16, 16 / 48, "blocks"),
        # 100 threads take 4 warps
        ("sm_90a", 32, 100, 0, 0, 16, 1.0, "warps"),
        # 255 registers: 8192 a warp; 65536 // (8192 * 8) = 1
        ("sm_80", 255, 256, 0, 0, 1, 8 / 64, "registers"),
        ("sm_80", 255, 512, 0, 0, 0, 0.0, "registers"),
        ("sm_80", 32, 128, 0, 163 * 1024 + 1, 0, 0.0, "shared memory"),
        # a scheduler's 16384 registers hold 12 warps of 1280: 48 warps are 16 blocks of 3, though 65536 hold 51 warps
        ("sm_90a", 33, 96, 0, 0, 16, 48 / 64, "registers"),
        # 13 warps of 4352 registers: 3 per scheduler are 12, so none fits
        ("sm_80", 132, 405, 0, 0, 0, 0.0, "registers"),
    ],
)
def test_blocks_an_sm_holds(arch, registers, threads, static, dynamic, blocks, share, limiter):
    found = occupancy(using(registers, static), threads, dynamic, ARCHS[arch])
    assert (found.blocks, found.limiter) == (blocks, limiter)
    assert found.fraction == pytest.approx(share)
    assert found.warps == round(share * ARCHS[arch].warps_per_sm)


_PROGRAM = r"""
#include <initializer_list>
#include <cstdio>
#include <cuda_occupancy.h>
int main() {
  int major, minor, warps, of_sm, of_block;
  while (scanf("%d %d %d %d %d", &major, &minor, &warps, &of_sm, &of_block) == 5) {
    cudaOccDeviceProp gpu;
    gpu.computeMajor = major, gpu.computeMinor = minor, gpu.maxThreadsPerBlock = 1024;
    gpu.maxThreadsPerMultiprocessor = 32 * warps, gpu.regsPerBlock = gpu.regsPerMultiprocessor = 65536;
    gpu.warpSize = 32, gpu.sharedMemPerBlock = 49152, gpu.sharedMemPerMultiprocessor = of_sm, gpu.numSms = 1;
    gpu.sharedMemPerBlockOptin = of_block, gpu.reservedSharedMemPerBlock = 1024;
    for (int threads = 1; threads <= 1024; threads += threads < 33 ? 8 : 31)
      for (int registers = 1; registers <= 255; registers += 2)
        for (int shared : {0, 100, 16384, 49152, 101376}) {
          cudaOccFuncAttributes kernel;
          kernel.maxThreadsPerBlock = 1024, kernel.numRegs = registers, kernel.sharedSizeBytes = 0;
          kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN, kernel.maxDynamicSharedSizeBytes = of_block;
          kernel.numBlockBarriers = 1;
          cudaOccDeviceState state;
          cudaOccResult found;
          if (cudaOccMaxActiveBlocksPerMultiprocessor(&found, &gpu, &kernel, &state, threads, shared)) return 1;
          printf("%d %d %d %d\n", threads, registers, shared, found.activeBlocksPerMultiprocessor);
        }
  }
}
"""


@pytest.mark.parametrize(
    "arch", [ARCHS[name] for name in ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120")], ids=str
)
def test_blocks_are_those_of_cudas_own_header(arch, tmp_path):
    """Every 31st block size, every other number of registers, five sizes of shared memory."""
    header = next(
        (path for each in site.getsitepackages() for path in Path(each).glob("nvidia/*/include/cuda_occupancy.h")), None
    )
    compiler = shutil.which("g++")
    if header is None or compiler is None:
        pytest.skip("needs g++ and CUDA's cuda_occupancy.h (the extra `headers`)")
    (tmp_path / "blocks.cpp").write_text(_PROGRAM)
    subprocess.run([compiler, f"-I{header.parent}", "blocks.cpp", "-o", "blocks"], cwd=tmp_path, check=True)
    limits = (*arch.compute_capability, arch.warps_per_sm, arch.shared_per_sm, arch.shared_per_block)
    told = subprocess.run(
        ["./blocks"], input=" ".join(map(str, limits)), cwd=tmp_path, capture_output=True, text=True, check=True
    )
    rows = [tuple(map(int, line.split())) for line in told.stdout.splitlines()]
    assert len(rows) > 20_000
    other = [row for row in rows if occupancy(using(row[1]), row[0], row[2], arch).blocks != row[3]]
    assert not other, other[:5]


def test_bytes_that_one_element_a_block_asks_for_give_a_quarter_flop_a_byte():
    """GEMM-A's two figures at 4096: 0.25 FLOP/B a thread on its own, 7.94 with blocks of 32 x 32, C read too."""
    problem = GemmProblem.dense(4096, 4096, 4096, use_c=True)
    assert problem.flops / tiled_bytes(problem, 1, 1) == pytest.approx(0.25, abs=0.0005)
    assert problem.flops / tiled_bytes(problem, 32, 32) == pytest.approx(7.94, abs=0.005)


def test_tiled_bytes_counts_ragged_tiles_whole_columns_and_rows():
    problem = GemmProblem.dense(33, 65, 10)
    # A once for each of 3 columns of tiles, B once for each of 2 rows, out once
    assert tiled_bytes(problem, 32, 32) == 4 * (33 * 10 * 3 + 10 * 65 * 2 + 33 * 65)


def test_the_lower_roof_bounds():
    gpu = GPUS["H200"]
    ridge = gpu.ffma_tflops / (gpu.dram_gb_s * 1e-3)
    below, above = bound(ridge / 2, gpu), bound(ridge * 2, gpu)
    assert (below.roof, above.roof) == ("memory", "compute")
    assert below.tflops == pytest.approx(gpu.ffma_tflops / 2)
    assert above.tflops == pytest.approx(gpu.ffma_tflops)
    assert bound(1e9, gpu, peak_tflops=3.0).tflops == 3.0
