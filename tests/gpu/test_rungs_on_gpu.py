"""Every fp32 rung at 40 shapes and layouts: right against float64, all of the result written, nothing beside it."""

from __future__ import annotations

import numpy as np
import pytest
from products import CASES, Target, place, values

import tilewright as tw
from tilewright.gemm.rungs import rungs_beside, rungs_for
from tilewright.lab.check import check

pytestmark = pytest.mark.gpu

RUNGS = [rung.id for rung in (*rungs_for("f32"), *rungs_beside("f32"))]
OUT = ("f32", "bf16", "f32", "f16")
"""Types of results: each case meets all of them, and each rung too."""


def test_there_are_forty_cases():
    assert len(CASES) == len(set(CASES)) == 40


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("rung", RUNGS)
def test_a_rung_is_right_and_stays_inside(torch, rung, case):
    out_dtype = OUT[(RUNGS.index(rung) + CASES.index(case)) % len(OUT)]
    torch.manual_seed(case.m * 7 + case.n * 5 + case.k)
    a = place(torch, (*case.batch, case.m, case.k), case.a)
    b_batch = case.batch if case.b_batch is None else case.b_batch
    b = place(torch, (*b_batch, case.k, case.n), case.b)
    target = Target(torch, (*case.batch, case.m, case.n), case.out, out_dtype)
    c = None
    if case.beta is not None:
        c = place(torch, (*case.batch, case.m, case.n), case.c, out_dtype)
        if case.beta == 0:
            c = torch.full_like(c, float("nan"))  # must not be read
    out = tw.matmul(a, b, c=c, alpha=case.alpha, beta=case.beta, out=target.view, rung=rung)
    assert out is target.view
    torch.cuda.synchronize()
    verdict = check(
        values(out), values(a), values(b), c=None if c is None else values(c), alpha=case.alpha, beta=case.beta or 0.0,
        out_dtype=out_dtype,
    )  # fmt: skip
    assert verdict.ok, verdict.reason
    assert target.unwritten() == 0
    assert target.intact_around(), "written beside the result"


@pytest.mark.parametrize("size", [128, 500, 512, 1000, 2048])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_what_the_plan_chooses_is_right(torch, size, layout):
    torch.manual_seed(size)
    a, b = place(torch, (size, size), layout[0]), place(torch, (size, size), layout[1])
    verdict = check(tw.matmul(a, b).cpu().numpy(), a.cpu().numpy(), b.cpu().numpy())
    assert verdict.ok, verdict.reason


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("layout", ["nn", "tt"])
@pytest.mark.parametrize("shape", [(256, 256, 64), (67, 45, 33), (1, 130, 20)], ids=str)
def test_the_emulator_gives_the_gpus_very_bits(torch, gpu, rung, layout, shape):
    from tilewright.gpus import GPUS

    if gpu.name not in GPUS:
        pytest.skip(f"{gpu.name} is not a GPU that the emulator knows")
    m, n, k = shape
    torch.manual_seed(m)
    a, b, c = place(torch, (m, k), layout[0]), place(torch, (k, n), layout[1]), place(torch, (m, n), "n")
    hardware = tw.matmul(a, b, c=c, alpha=1.25, beta=-0.75, rung=rung).cpu().numpy()
    with tw.emulator(gpu=gpu.name):
        emulated = tw.matmul(a.cpu(), b.cpu(), c=c.cpu(), alpha=1.25, beta=-0.75, rung=rung).numpy()
    different = int((hardware.view(np.uint32) != emulated.view(np.uint32)).sum())
    assert different == 0, f"{different} of {hardware.size} elements differ"
