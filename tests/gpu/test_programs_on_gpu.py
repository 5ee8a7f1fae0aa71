"""Products through tw.matmul on a GPU: dtypes, packing, split k, workspaces, captures, batch invariance."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from wrong_launches import launch_wrongly

import tilewright as tw
from tilewright.errors import DeviceError, WrongResult
from tilewright.gemm import call as call_module
from tilewright.gemm.family import plan_for
from tilewright.gemm.rung import GemmConfig
from tilewright.gemm.rungs import find_rung
from tilewright.gemm.warm import calls
from tilewright.jit import limits
from tilewright.lab.check import check
from tilewright.plan.plan import Plan
from tilewright.run import ready

pytestmark = pytest.mark.gpu

SMALL = GemmConfig(32, 32, 64, warp_m=16, warp_n=16, stages=4, group_m=8, min_blocks=4)
BAND = 512


def with_parts(parts: int) -> GemmConfig:
    return GemmConfig(32, 32, 64, warp_m=16, warp_n=16, stages=4, group_m=8, min_blocks=4, split_k=parts)


def right(out, a, b, *, dtype="bf16", out_dtype=None, c=None, **options) -> None:
    wide = [x.float().cpu().numpy() for x in (out, a, b)]
    names = {"torch.float32": "f32", "torch.float16": "f16", "torch.bfloat16": "bf16"}
    third = None if c is None else c.expand(out.shape).float().cpu().numpy()
    verdict = check(*wide, c=third, dtype=dtype, out_dtype=out_dtype or names[str(out.dtype)], **options)
    assert verdict.ok, verdict.reason


def guarded(torch, shape: tuple[int, ...], dtype):
    """A NaN-filled result between NaN bands, and what says whether the bands still are."""
    size = int(np.prod(shape))
    whole = torch.full((size + 2 * BAND,), float("nan"), dtype=dtype, device="cuda")

    def intact() -> bool:
        return bool(whole[:BAND].isnan().all() and whole[BAND + size :].isnan().all())

    return whole[BAND : BAND + size].view(shape), intact


def place(torch, rows: int, cols: int, kind: str, dtype):
    def normal(*shape: int):
        return torch.randn(*shape, device="cuda").to(dtype)

    return {
        "n": lambda: normal(rows, cols),
        "t": lambda: normal(cols, rows).t(),
        "p": lambda: normal(rows, cols + 3)[:, :cols],
        "o": lambda: normal(rows * cols + 1)[1:].view(rows, cols),
        "s": lambda: normal(2 * rows + 1, 2 * cols + 3)[1 : 2 * rows + 1 : 2, 3 : 2 * cols + 3 : 2],
        "c": lambda: normal(rows, 1).expand(rows, cols),
    }[kind]()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("out_dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("shape", [(256, 256, 256), (1, 1000, 3000), (129, 257, 131)], ids=str)
def test_dtypes_in_and_out(torch, dtype, out_dtype, shape):
    m, n, k = shape
    kinds = getattr(torch, dtype), getattr(torch, out_dtype)
    a, b = place(torch, m, k, "n", kinds[0]), place(torch, k, n, "n", kinds[0])
    short = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}[dtype]
    for _ in range(2):  # cold, then warm
        out, intact = guarded(torch, (m, n), kinds[1])
        assert tw.matmul(a, b, out=out) is out
        right(out, a, b, dtype=short)
        assert intact()
        fresh = tw.matmul(a, b, out_dtype=kinds[1])
        assert fresh.dtype == kinds[1]
        right(fresh, a, b, dtype=short)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt", "pp", "oo", "ss", "cn", "nc", "ps", "so"])
@pytest.mark.parametrize(
    "shape", [(512, 512, 512), (1023, 999, 1001), (1, 777, 2001), (2000, 3, 1500), (64, 64, 1)], ids=str
)
def test_the_plan_is_right_at_every_layout(torch, layout, shape):
    m, n, k = shape
    torch.manual_seed(m + k)
    a, b = place(torch, m, k, layout[0], torch.bfloat16), place(torch, k, n, layout[1], torch.bfloat16)
    c = place(torch, m, n, "n", torch.bfloat16)
    for _ in range(2):
        out, intact = guarded(torch, (m, n), torch.bfloat16)
        tw.matmul(a, b, c=c, alpha=1.5, beta=-0.5, out=out)
        right(out, a, b, c=c, alpha=1.5, beta=-0.5)
        assert intact()


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt", "po", "ss", "cn"])
@pytest.mark.parametrize("shape", [(1023, 999, 1001), (1, 777, 4001), (16, 2048, 8192), (256, 256, 8192)], ids=str)
def test_the_fp32_plan_is_right_at_every_layout(torch, layout, shape):
    m, n, k = shape
    torch.manual_seed(m + k)
    a, b = place(torch, m, k, layout[0], torch.float32), place(torch, k, n, layout[1], torch.float32)
    c = place(torch, m, n, "n", torch.float32)
    assert len(tw.explain(a, b, c=c).stages) > 1
    for _ in range(2):  # cold, then warm
        out, intact = guarded(torch, (m, n), torch.float32)
        tw.matmul(a, b, c=c, alpha=1.5, beta=-0.5, out=out)
        right(out, a, b, dtype="f32", c=c, alpha=1.5, beta=-0.5)
        assert intact()


FP32_SMALL = GemmConfig(32, 32, 8, 4, 4, 16, 32, stages=3, cache="ca", group_m=8, min_blocks=8)


@pytest.mark.parametrize("names", [(), ("a",), ("b",), ("a", "b")], ids=str)
@pytest.mark.parametrize("parts", [1, 2, 5])
def test_fp32_packing_and_splitting_go_together_with_batches(torch, monkeypatch, names, parts):
    plan = Plan(find_rung("f12"), replace(FP32_SMALL, split_k=parts), "a test", "a test", packs=names)
    monkeypatch.setattr(call_module, "plan_rows", lambda *given, **options: plan)
    calls.forget()
    a = torch.randn(3, 2, 65, 131, device="cuda")[:, ::2]
    b = torch.randn(4, 1, 1, 131, 77, device="cuda")
    for _ in range(2):
        right(tw.matmul(a, b), a, b, dtype="f32")


@pytest.mark.parametrize("names", [(), ("a",), ("b",), ("a", "b")], ids=str)
@pytest.mark.parametrize("parts", [1, 2, 5])
def test_packing_and_splitting_go_together_with_batches_warm_too(torch, monkeypatch, names, parts):
    plan = Plan(find_rung("h11"), with_parts(parts), "a test", "a test", packs=names)
    monkeypatch.setattr(call_module, "plan_rows", lambda *given, **options: plan)
    calls.forget()
    a = torch.randn(3, 2, 65, 131, device="cuda").bfloat16()[:, ::2]
    b = torch.randn(4, 1, 1, 131, 77, device="cuda").bfloat16()
    for _ in range(2):
        right(tw.matmul(a, b), a, b)
    assert len(calls) == 1


def test_a_warm_call_of_several_stages_takes_new_operands_and_scalars(torch):
    shape = (4, 3000), (3000, 640)
    stages = tw.explain(
        torch.zeros(*shape[0], device="cuda").bfloat16(), torch.zeros(*shape[1], device="cuda").bfloat16()
    )
    assert stages.stages == ("product", "sum of parts")
    for alpha in (1.0, 0.5, -2.0):
        a, b = (torch.randn(*x, device="cuda").bfloat16() for x in shape)
        c = torch.randn(640, device="cuda").bfloat16()
        right(tw.matmul(a, b, c=c, alpha=alpha), a, b, c=c, alpha=alpha, beta=1.0)


def test_a_product_that_a_capture_meets_first_is_refused_and_one_that_ran_is_captured(torch, monkeypatch):
    a, b = torch.randn(3, 2111, device="cuda").bfloat16(), torch.randn(2111, 333, device="cuda").bfloat16()
    calls.forget()
    monkeypatch.setattr(ready, "_kept", type(ready._kept)(limits.programs))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), pytest.raises(DeviceError, match=r"capture is running.*Call it once before"):
        tw.matmul(a, b)
    out = torch.empty(3, 333, device="cuda", dtype=torch.bfloat16)
    tw.matmul(a, b, out=out)
    calls.forget()  # the full path, and the warm one
    tw.matmul(a, b)
    calls.forget()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tw.matmul(a, b, out=out)
        fresh = tw.matmul(a, b)
        again = tw.matmul(a, b)
    a.copy_(torch.randn(3, 2111, device="cuda"))
    out.fill_(float("nan"))
    graph.replay()
    for result in (out, fresh, again):
        right(result, a, b)


def test_a_workspace_is_not_reused_before_its_product_has_run(torch):
    """Many products in a row over one pool, each result checked at the end."""
    pairs = [(torch.randn(2, 4099, device="cuda").bfloat16(), torch.randn(4099, 301, device="cuda").bfloat16())
             for _ in range(40)]  # fmt: skip
    results = [tw.matmul(a, b) for a, b in pairs]
    for result, (a, b) in zip(results, pairs, strict=True):
        right(result, a, b)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_results_are_the_same_bits_run_after_run(torch, dtype):
    kind = getattr(torch, dtype)
    for m, n, k in ((1, 4096, 4096), (100, 1000, 5001), (512, 512, 512)):
        a, b = place(torch, m, k, "n", kind), place(torch, k, n, "n", kind)
        first = tw.matmul(a, b)
        assert all(torch.equal(tw.matmul(a, b), first) for _ in range(10))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize(("n", "k"), [(512, 4096), (333, 1001)])
def test_batch_invariant_rows_have_the_same_bits_whatever_m_is(torch, dtype, n, k):
    a, b = place(torch, 3000, k, "n", getattr(torch, dtype)), place(torch, k, n, "n", getattr(torch, dtype))
    whole = tw.matmul(a, b, batch_invariant=True)
    seen = set()
    for m in (1, 2, 7, 16, 33, 64, 100, 128, 257, 1024, 3000):
        assert torch.equal(tw.matmul(a[:m], b, batch_invariant=True), whole[:m]), f"m = {m}"
        seen.add(tw.explain(a[:m], b, batch_invariant=True).plan.config)
    assert len(seen) > 1, "several configs, one order of summation"


def test_cupy_and_dlpack_workspaces(torch, cupy):
    a, b = cupy.random.standard_normal((2, 3001)), cupy.random.standard_normal((3001, 300))
    a, b = a.astype(cupy.float16), b.astype(cupy.float16)
    assert plan_for  # the plan splits k here
    out = tw.matmul(a, b)
    verdict = check(out.get().astype(np.float32), a.get().astype(np.float32), b.get().astype(np.float32), dtype="f16",
                    out_dtype="f16")  # fmt: skip
    assert verdict.ok, verdict.reason


# --- verify ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("shape", [(512, 512, 512), (1, 2000, 4096), (999, 333, 2111), (4096, 64, 64)], ids=str)
@pytest.mark.parametrize("layout", ["nn", "tt", "ps"])
def test_verify_passes_right_products(torch, dtype, shape, layout):
    m, n, k = shape
    a, b = (
        place(torch, *size, kind, getattr(torch, dtype)) for size, kind in zip(((m, k), (k, n)), layout, strict=True)
    )
    out = tw.matmul(a, b, alpha=0.5, verify=True)
    assert torch.equal(out, tw.matmul(a, b, alpha=0.5))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_verify_has_no_false_alarm_in_many_draws_and_on_hard_values(torch, dtype):
    kind = getattr(torch, dtype)
    for spread in (1.0, 1e-4):
        a, b = ((torch.randn(300, 300, device="cuda") * spread).to(kind) for _ in range(2))
        for _ in range(20):
            tw.matmul(a, b, verify=True)
    constant = torch.full((64, 20_000), 0.1, device="cuda", dtype=kind)
    tw.matmul(constant, constant.t(), verify=True)
    spread_out = (torch.randn(200, 1000, device="cuda").exp() ** 3).to(kind)
    tw.matmul(spread_out, spread_out.t(), verify=True)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_verify_catches_a_kernel_that_is_wrong_on_the_gpu(torch, dtype, monkeypatch):
    kind = getattr(torch, dtype)
    a, b = torch.randn(512, 512, device="cuda").to(kind), torch.randn(512, 512, device="cuda").to(kind)
    tw.matmul(a, b, verify=True)
    launch_wrongly(monkeypatch, lambda problem, rung: replace(problem, k=problem.k - 256))
    calls.forget()  # a remembered call launches what was right
    with pytest.raises(WrongResult, match="Do not use it"):
        tw.matmul(a, b, verify=True)


def test_verify_inside_a_capture_is_refused(torch):
    a = torch.randn(64, 64, device="cuda").bfloat16()
    tw.matmul(a, a)
    with torch.cuda.graph(torch.cuda.CUDAGraph()), pytest.raises(DeviceError, match="verify=True waits"):
        tw.matmul(a, a, verify=True)
