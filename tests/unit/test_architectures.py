"""Each architecture gets machine code of the rungs that may run there: h11, which most have as their best, and a share.

The share is one rung in as many as there are architectures, so that every rung compiles for one of them at least.
"""

from __future__ import annotations

from typing import Any

import pytest

from tilewright.attn.problem import AttentionProblem
from tilewright.attn.rungs import ATTENTION_RUNGS
from tilewright.gemm.problem import GemmProblem
from tilewright.gemm.rungs import GEMM_RUNGS, find_rung, rungs_of
from tilewright.gpus import ARCHS, Arch

PRECISIONS = {"f32": "ieee", "tf32": "tf32", "fp32x3": "fp32x3"}
PRODUCTS: dict[str, Any] = {
    **{kind: GemmProblem.dense(512, 512, 512, precision=name) for kind, name in PRECISIONS.items()},
    "bf16": GemmProblem.dense(512, 512, 512, dtype="bf16"),
    "fp8": GemmProblem.dense(512, 512, 512, dtype="e4m3", out_dtype="bf16"),
    "fast": GemmProblem.dense(512, 512, 512, dtype="e4m3", out_dtype="bf16", precision="fast"),
}
ATTENTION = AttentionProblem.dense(1, 2, 256, 256, 64)
EVERY = [(rung, problem) for kind, problem in PRODUCTS.items() for rung in rungs_of(kind)]
EVERY += [(rung, ATTENTION) for rung in ATTENTION_RUNGS]
TOPS = [(find_rung("h11"), PRODUCTS["bf16"]), (find_rung("q01"), PRODUCTS["fp8"])]
HOPPERS_OWN = {rung.id for rung in GEMM_RUNGS if rung.only_on == "sm_90a"}


def config_of(rung: Any, problem: Any, arch: Arch) -> Any:
    """The default, or the first that fits."""
    if problem is ATTENTION:
        return rung.default(problem, arch)
    return next(config for config in (rung.default, *rung.space()) if rung.why_not(problem, config, arch) is None)


@pytest.mark.parametrize("number", range(len(ARCHS)), ids=list(ARCHS))
def test_rungs_compile_for_the_architecture(number):
    arch = list(ARCHS.values())[number]
    share = EVERY[number :: len(ARCHS)]
    if arch.name == "sm_90a":
        share = [*share, *((rung, problem) for rung, problem in EVERY if rung.id in HOPPERS_OWN)]
    for rung, problem in {rung.id: (rung, problem) for rung, problem in [*TOPS, *share]}.values():
        if rung.id in HOPPERS_OWN and arch.name != "sm_90a":
            assert "only sm_90a has" in rung.why_not(problem, rung.default, arch)
            continue
        config = config_of(rung, problem, arch)
        kernel = rung.compile(problem, config, arch)
        assert kernel.cubin.startswith(b"\x7fELF")
        assert kernel.resources.registers > 0
