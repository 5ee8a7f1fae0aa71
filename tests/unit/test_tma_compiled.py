"""What the compiler made of the rungs that copy by TMA: products that stay asynchronous, registers, instructions."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import pytest
from test_sass import code_of

from tilewright.gemm.problem import GemmProblem
from tilewright.gemm.rung import GemmConfig
from tilewright.gemm.rungs import find_rung
from tilewright.gemm.rungs.tma import TMA_RUNGS
from tilewright.gpus import ARCHS
from tilewright.jit import CompiledKernel

WIDE = GemmConfig(128, 256, 64, warp_m=16, warp_n=256, stages=4, group_m=8)
TALL = GemmConfig(256, 192, 64, warp_m=32, warp_n=192, stages=3, group_m=8)
THREE = GemmConfig(192, 192, 64, warp_m=16, warp_n=192, stages=3, group_m=8)
ONE = GemmConfig(64, 128, 64, warp_m=16, warp_n=128, stages=3, group_m=8, min_blocks=2)
IN_TURNS = {WIDE: (64, 256), TALL: (128, 192), THREE: (128, 160), ONE: (64, 128)}
"""Tiles of one warpgroup where two take turns."""


@lru_cache
def compiled(rung: str, config: GemmConfig, layout: str, n: int = 4096) -> CompiledKernel:
    problem = GemmProblem.dense(4096, n, 4096, layout=layout, dtype="bf16")
    found = find_rung(rung)
    levels = ("staged", "cluster_m", "cluster_n", "cluster_k", "turns", "stream_k")
    own = {name: getattr(found.default, name) for name in levels}
    if own["turns"] > 1:
        tile_m, tile_n = IN_TURNS[config]
        own |= {"tile_m": tile_m, "tile_n": tile_n, "warp_m": tile_m // 4, "warp_n": tile_n, "min_blocks": 1}
    return found.compile(problem, replace(config, **own), ARCHS["sm_90a"])


@pytest.mark.parametrize("rung", [rung.id for rung in TMA_RUNGS])
@pytest.mark.parametrize(
    ("config", "layout", "n"),
    [(WIDE, "nn", 4096), (WIDE, "tt", 4088), (TALL, "nt", 4096),
     (THREE, "nn", 4088), (ONE, "nt", 4096)], ids=str,
)  # fmt: skip
def test_products_stay_asynchronous_and_nothing_spills(rung, config, layout, n):
    """ptxas says so where it waits for each product, or ignores that registers are handed over (C7508, C7510)."""
    if rung == "h18_stream_k" and config is THREE:
        pytest.skip("it takes two warpgroups at most")
    kernel = compiled(rung, config, layout, n)
    assert "(C75" not in kernel.log
    assert kernel.resources.spill_load_bytes == kernel.resources.stack_bytes == 0


@pytest.mark.parametrize("rung", [rung.id for rung in TMA_RUNGS])
def test_tiles_come_by_tma_and_no_thread_copies(rung):
    code = code_of(compiled(rung, WIDE, "nn"))
    seen = [instruction.opcode for instruction in code]
    assert sum(opcode.startswith("UTMALDG") for opcode in seen) == 1 + 4, "A in one box, B in four, each 64 wide"
    assert sum(opcode.startswith("HGMMA") for opcode in seen) == 4, "16 deep each"
    assert sum(opcode.startswith("USETMAXREG") for opcode in seen) == 2
    assert not any(opcode.startswith("LDGSTS") for opcode in seen)


def test_results_leave_by_tma_from_what_stmatrix_wrote():
    """Of a warp's 16 x 256 results each buffer holds 16 x 64: four stores, of four matrices of 8 x 8 four times."""
    seen = [instruction.opcode for instruction in code_of(compiled("h15", WIDE, "nn"))]
    assert sum(opcode.startswith("UTMASTG") for opcode in seen) == 4
    assert sum(opcode.startswith("STSM") for opcode in seen) == 16
    assert not any(opcode.startswith(("STG", "SHFL.BFLY")) for opcode in seen)
