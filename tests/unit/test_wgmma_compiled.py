"""What the compiler made of h12 and h13 with an epilogue: products that stay asynchronous, registers, wide accesses."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

import pytest
from test_sass import code_of

from tilewright.gemm.problem import Epilogue, FusedOperand, GemmProblem, Matrix, col_major, row_major
from tilewright.gemm.rung import GemmConfig
from tilewright.gemm.rungs import find_rung
from tilewright.gpus import ARCHS
from tilewright.jit import CompiledKernel

BESIDE = GemmConfig(128, 128, 64, warp_m=16, warp_n=128, stages=3, min_blocks=2, group_m=8)
TALL = GemmConfig(256, 128, 64, warp_m=16, warp_n=128, stages=4, group_m=8)
SILU_AND_RESIDUAL = Epilogue(
    "silu(acc + bias) + r", "value[i] = fused_silu(value[i] + in0[i]) + in1[i];",
    (FusedOperand("bias", "bf16", Matrix(0, 1, 0)), FusedOperand("r", "bf16", row_major(4096, 4096))),
)  # fmt: skip


@lru_cache
def compiled(rung: str, config: GemmConfig, layout: str, k: int = 4096) -> CompiledKernel:
    b = row_major(k, 4096) if layout == "nn" else col_major(k, 4096)
    out = row_major(4096, 4096)
    a = row_major(4096, k)
    problem = GemmProblem(4096, 4096, k, a, b, out, None, 1, "bf16", "bf16", SILU_AND_RESIDUAL)
    return find_rung(rung).compile(problem, config, ARCHS["sm_90a"])


@pytest.mark.parametrize(
    ("rung", "config", "layout"),
    [("h12", TALL, "nn"), ("h12", BESIDE, "nt"), ("h13", TALL, "nn"), ("h13", find_rung("h13").default, "nt")],
    ids=str,
)
def test_products_stay_asynchronous_and_nothing_spills_behind_an_epilogue(rung, config, layout):
    """ptxas says so where it waits for each product: half as fast (C7510 and its like)."""
    kernel = compiled(rung, config, layout)
    assert "serialized" not in kernel.log
    assert kernel.resources.spill_load_bytes == 0


@pytest.mark.parametrize(
    ("rung", "config", "layout"), [("h12", TALL, "nn"), ("h12", BESIDE, "nt"), ("h13", TALL, "nn")], ids=str
)
def test_results_and_the_residual_go_16_bytes_at_a_time_and_lanes_exchange_only_where_they_must(rung, config, layout):
    """A thread's 64 results of 2 bytes: eight accesses. Each vector changes lanes by four exchanges, unless B lies so
    that it need not; the bias, too, comes in vectors then, one for two rows."""
    counts = Counter(instruction.opcode for instruction in code_of(compiled(rung, config, layout)))
    stores = {opcode: count for opcode, count in counts.items() if opcode.startswith("STG")}
    assert stores == {"STG.E.128": 8}
    loads = {opcode: count for opcode, count in counts.items() if opcode.startswith("LDG.")}
    assert loads["LDG.E.128.CONSTANT"] == (8 if layout == "nn" else 8 + 4)
    exchanges = sum(count for opcode, count in counts.items() if opcode.startswith("SHFL.BFLY"))
    assert exchanges == (2 * 8 * 4 if layout == "nn" else 0)
