"""precision="tf32" and "fp32x3" on a GPU: every shape and layout, hard ranges beside cuBLAS, gradients."""

from __future__ import annotations

import numpy as np
import pytest
from products import CASES, Target, place, values

import tilewright as tw
from tilewright.gemm.rungs import find_rung
from tilewright.gpus import Gpu
from tilewright.lab.accuracy import VALUES, Exact, accuracy_records, make_operands
from tilewright.lab.check import check
from tilewright.lab.numbers import to_tf32

pytestmark = pytest.mark.gpu


def needs(gpu: Gpu, rung: str) -> None:
    """Skip where the GPU lacks the rung's instructions."""
    if find_rung(rung).only_on not in ("", gpu.arch.name):
        pytest.skip(f"{rung} is Hopper's")


OUT = ("f32", "bf16", "f16")
"""Types of results: each case meets all of them, and each rung too."""


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize(
    ("precision", "rung"), [("tf32", "t01"), ("fp32x3", "t02"), ("fp32x3", "t03"), ("tf32", "t04"), ("fp32x3", "t05")]
)
def test_a_product_is_right_and_stays_inside(torch, gpu, precision, rung, case):
    needs(gpu, rung)
    out_dtype = OUT[(int(rung[2]) + CASES.index(case)) % len(OUT)]
    torch.manual_seed(case.m * 7 + case.n * 5 + case.k)
    a = place(torch, (*case.batch, case.m, case.k), case.a)
    b = place(torch, (*(case.batch if case.b_batch is None else case.b_batch), case.k, case.n), case.b)
    if precision == "tf32":  # numbers that tf32 holds: the products are exact then
        for side in (a, b):
            once = side[tuple(slice(0, 1 if step == 0 else None) for step in side.stride())]  # what is repeated, once
            once.copy_(torch.from_numpy(to_tf32(once.cpu().numpy())))
    target = Target(torch, (*case.batch, case.m, case.n), case.out, out_dtype)
    c = None
    if case.beta is not None:
        c = place(torch, (*case.batch, case.m, case.n), case.c, out_dtype)
        if case.beta == 0:
            c = torch.full_like(c, float("nan"))  # must not be read
    out = tw.matmul(a, b, c=c, alpha=case.alpha, beta=case.beta, out=target.view, precision=precision, rung=rung)
    torch.cuda.synchronize()
    verdict = check(
        values(out), values(a), values(b), c=None if c is None else values(c), alpha=case.alpha, beta=case.beta or 0.0,
        dtype="tf32" if precision == "tf32" else "f32", out_dtype=out_dtype,
    )  # fmt: skip
    assert verdict.ok, verdict.reason
    assert target.unwritten() == 0
    assert target.intact_around(), "written beside the result"


@pytest.mark.parametrize("rung", ["t03", "t05"])
@pytest.mark.parametrize("values", VALUES)
def test_split_operands_keep_fp32s_accuracy_in_hard_ranges(gpu, values, rung):
    needs(gpu, rung)
    a, b = make_operands(values, 200, 136, 600, seed=3)
    errors = Exact.of(a, b).errors(np.asarray(tw.matmul(a, b, precision="fp32x3", rung=rung)))
    assert errors.kinds
    assert errors.share < 9


@pytest.mark.parametrize("values", VALUES)
def test_halves_keep_tf32s_accuracy_in_hard_ranges(gpu, values):
    needs(gpu, "t04")
    a, b = make_operands(values, 200, 136, 600, seed=3)
    errors = Exact.of(a, b).errors(np.asarray(tw.matmul(a, b, precision="tf32", rung="t04")))
    assert errors.kinds
    assert errors.share < 2.0**14 + 64, "2^-10 of a product"


def test_halves_multiply_the_numbers_that_tf32_has(torch, gpu):
    """One product an element, so that nothing else rounds: the same bits."""
    needs(gpu, "t04")
    torch.manual_seed(8)
    a = torch.randn(300, 1, device="cuda") * 2.0 ** torch.randint(-60, 60, (300, 1), device="cuda")
    b = torch.randn(1, 200, device="cuda")
    first, second = (tw.matmul(a, b, precision="tf32", rung=rung) for rung in ("t01", "t04"))
    assert torch.equal(first, second)


@pytest.mark.parametrize("values", VALUES)
def test_fp32x3_is_as_good_as_cublas_in_hard_ranges(torch, values):
    (record,) = accuracy_records("test", [{"m": 200, "n": 136, "k": 300, "values": values}])
    assert record["result"]["right"], record["result"]["reason"]


@pytest.mark.parametrize("k", [1, 2, 4, 8, 16, 64, 1000, 4096])
def test_fp32x3_errs_no_more_than_cublas_on_normal_numbers(torch, k):
    """From k = 16 on. Of a few products the one rounding of a fused multiply-add is less than what parts leave away."""
    (record,) = accuracy_records("test", [{"m": 512, "n": 512, "k": k}])
    ours, theirs = (record["result"]["errors"][name] for name in ("fp32x3", "cuBLAS fp32"))
    assert ours["rms"] <= (1 if k >= 16 else 2) * theirs["rms"]
    assert ours["kinds"]


def test_the_same_call_gives_the_same_bits(torch):
    a, b = (torch.from_numpy(side).cuda() for side in make_operands("elements spread over 2^120", 300, 200, 700))
    for precision in ("ieee", "tf32", "fp32x3"):
        first = tw.matmul(a, b, precision=precision)
        for _ in range(5):
            assert torch.equal(first.view(torch.int32), tw.matmul(a, b, precision=precision).view(torch.int32))


@pytest.mark.parametrize("precision", ["tf32", "fp32x3"])
def test_gradients_have_the_precision_of_the_product(torch, precision):
    import tilewright.torch as tt

    torch.manual_seed(5)
    mine = [torch.randn(shape, device="cuda", requires_grad=True) for shape in ((65, 300), (300, 40))]
    bias = torch.randn(40, device="cuda")
    seed = torch.randn(65, 40, device="cuda")
    tt.matmul(*mine, bias=bias, activation="silu", precision=precision).backward(seed)
    exact = [side.detach().double().requires_grad_() for side in mine]
    torch.nn.functional.silu(exact[0] @ exact[1] + bias.double()).backward(seed.double())
    for one, other in zip(mine, exact, strict=True):
        error = float((one.grad.double() - other.grad).abs().max()) / float(other.grad.abs().max())
        assert error < (5e-3 if precision == "tf32" else 5e-6)
        assert precision == "fp32x3" or error > 1e-5  # it did round


@pytest.mark.parametrize("precision", ["tf32", "fp32x3"])
def test_verify_passes_what_is_right(torch, precision):
    a, b = torch.randn(257, 300, device="cuda"), torch.randn(300, 129, device="cuda")
    checked = tw.matmul(a, b, precision=precision, verify=True)
    assert torch.equal(checked, tw.matmul(a, b, precision=precision))
    worst = (checked.double() - a.double() @ b.double()).abs().max()
    assert worst < (0.2 if precision == "tf32" else 1e-3)


def test_numpy_arrays_take_a_precision(gpu):
    a, b = make_operands("normal", 100, 90, 200)
    assert Exact.of(a, b).errors(np.asarray(tw.matmul(a, b, precision="fp32x3"))).share < 8
