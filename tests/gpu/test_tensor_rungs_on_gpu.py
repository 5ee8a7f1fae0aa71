"""Every 16-bit rung at 40 shapes and layouts, and h11's configs: right, all of it written, nothing beside touched."""

from __future__ import annotations

import numpy as np
import pytest
from products import CASES, Case, Target, place, values

import tilewright as tw
from tilewright.gemm.rungs import find_rung, rungs_beside, rungs_for
from tilewright.lab.check import check

pytestmark = pytest.mark.gpu

RUNGS = [rung.id for rung in (*rungs_for("bf16"), *rungs_beside("bf16"))]
TYPES = [("bf16", "f32"), ("f16", "f16"), ("bf16", "bf16"), ("f16", "f32")]
"""(operands, result). Each case meets each of them at some rung, each rung at some case."""


def run(torch, case: Case, dtype: str, out_dtype: str, **chosen) -> None:
    torch.manual_seed(case.m * 7 + case.n * 5 + case.k)
    a = place(torch, (*case.batch, case.m, case.k), case.a, dtype)
    b_batch = case.batch if case.b_batch is None else case.b_batch
    b = place(torch, (*b_batch, case.k, case.n), case.b, dtype)
    target = Target(torch, (*case.batch, case.m, case.n), case.out, out_dtype)
    c = None
    if case.beta is not None:
        c = place(torch, (*case.batch, case.m, case.n), case.c, out_dtype)
        if case.beta == 0:
            c = torch.full_like(c, float("nan"))  # must not be read
    out = tw.matmul(a, b, c=c, alpha=case.alpha, beta=case.beta, out=target.view, **chosen)
    assert out is target.view
    torch.cuda.synchronize()
    verdict = check(
        values(out), values(a), values(b), c=None if c is None else values(c), alpha=case.alpha, beta=case.beta or 0.0,
        dtype=dtype, out_dtype=out_dtype,
    )  # fmt: skip
    assert verdict.ok, verdict.reason
    assert target.unwritten() == 0
    assert target.intact_around(), "written beside the result"


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("rung", RUNGS)
def test_a_rung_is_right_and_stays_inside(torch, rung, case):
    dtype, out_dtype = TYPES[(RUNGS.index(rung) + CASES.index(case)) % len(TYPES)]
    run(torch, case, dtype, out_dtype, rung=rung)


SAMPLE = {(c.tile_m, c.tile_n, c.slices_k): c for c in find_rung("h11").space()}.values()


@pytest.mark.parametrize("config", SAMPLE, ids=str)
def test_h11_is_right_with_a_config_of_each_tile(torch, config):
    run(torch, Case(333, 264, 200), "bf16", "bf16", rung="h11", config=config)


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("case", [Case(70, 100, 64), Case(70, 100, 64, "n", "t"), Case(33, 12, 40)], ids=str)
def test_fp32_rows_of_whole_vectors_but_no_whole_eights_stay_in_their_rows(torch, case, rung):
    run(torch, case, "bf16", "f32", rung=rung)


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_the_emulator_differs_by_what_the_tensor_cores_cut(torch, gpu, rung, dtype):
    """A product m16n8k16 is rounded once on the emulator and cut on the GPU: an fp32 spacing of the sum of absolute
    products a step. h01 has no tensor cores: the same bits."""
    from tilewright.gpus import GPUS

    if gpu.name not in GPUS:
        pytest.skip(f"{gpu.name} is not a GPU that the emulator knows")
    torch.manual_seed(3)
    a, b = place(torch, (70, 64), "n", dtype), place(torch, (64, 72), "n", dtype)
    out = torch.empty(70, 72, device="cuda")
    hardware = values(tw.matmul(a, b, out=out, rung=rung))
    with tw.emulator(gpu=gpu.name):
        emulated = values(tw.matmul(a.cpu(), b.cpu(), out=torch.empty(70, 72), rung=rung))
    assert np.isfinite(hardware).all()
    steps = 64 / 16
    allowed = steps * 2.0**-22 * (np.abs(values(a)).astype(np.float64) @ np.abs(values(b)))
    assert (np.abs(hardware.astype(np.float64) - emulated) <= (0 if rung == "h01_simt" else allowed)).all()


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_rungs_that_stand_for_one_another_have_the_same_bits(torch, dtype):
    """batch_invariant=True may run any of them: with every tile they add a chain along k in one order."""
    for m, n, k in ((300, 264, 1000), (64, 512, 4104)):
        a, b = place(torch, (m, k), "n", dtype), place(torch, (k, n), "t", dtype)
        seen = {}
        for rung in (rung for rung in rungs_for(dtype) if rung.one_chain):
            for config in {(c.tile_m, c.tile_n, c.warp_n): c for c in rung.space() if c.slices_k == 1}.values():
                out = tw.matmul(a, b, out_dtype="float32", rung=rung.id, config=config)
                seen.setdefault(out.cpu().numpy().tobytes(), []).append((rung.id, str(config)))
        assert len(seen) == 1, sorted(seen.values(), key=len)[0]
