"""verify=True behind an epilogue on a GPU: no false alarm at any rung, layout or hard value; planted mistakes raise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from products import place, torch_type
from wrong_launches import launch_wrongly, scaled_by

import tilewright as tw
from tilewright import epilogue as ep
from tilewright.arrays.dtypes import FP8
from tilewright.errors import DeviceError, WrongResult
from tilewright.gemm.rungs import GEMM_RUNGS

pytestmark = pytest.mark.gpu

SHORT = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


def curved(acc, bias, r):
    return ep.silu(acc + bias) * r + ep.tanh(acc * 0.1) / (1.5 + abs(r)) - ep.exp(-abs(acc))


@pytest.mark.parametrize("rung", [rung for rung in GEMM_RUNGS if rung.dtypes[0] not in FP8], ids=str)
def test_the_bare_sums_of_every_rung_are_those_of_the_fused_product(torch, rung):
    """Else sums that cancel would raise: each element is held to the roundings behind its sum alone."""
    kind = torch_type(torch, rung.dtypes[0])
    for m, n, k in ((256, 256, 1024), (333, 130, 777)):
        a, b = torch.randn(m, k, device="cuda").to(kind), torch.randn(k, n, device="cuda").to(kind)
        bias, c = torch.randn(n, device="cuda"), torch.randn(m, n, device="cuda").to(kind)
        plain = tw.matmul(a, b, c=c, bias=bias, rung=rung.id, precision=rung.precision)
        checked = tw.matmul(a, b, c=c, bias=bias, rung=rung.id, precision=rung.precision, verify=True)
        assert torch.equal(plain, checked)
        options = {"bias": bias, "epilogue": curved, "r": c, "rung": rung.id, "precision": rung.precision}
        assert torch.equal(tw.matmul(a, b, **options, verify=True), tw.matmul(a, b, **options))


@pytest.mark.parametrize("dtype", list(SHORT))
@pytest.mark.parametrize("shape", [(512, 512, 512), (1, 2000, 4096), (999, 333, 2111), (4096, 64, 64)], ids=str)
@pytest.mark.parametrize("layout", ["nn", "tt", "ps"])
def test_planned_products_pass(torch, dtype, shape, layout):
    m, n, k = shape
    a, b = (place(torch, size, way, SHORT[dtype]) for size, way in zip(((m, k), (k, n)), layout, strict=True))
    bias, r = torch.randn(n, device="cuda"), place(torch, (m, n), "p")
    out = tw.matmul(a, b, alpha=0.5, bias=bias, activation="gelu", residual=r, verify=True)
    assert torch.equal(out, tw.matmul(a, b, alpha=0.5, bias=bias, activation="gelu", residual=r))
    kept = r.to(out.dtype).clone()
    expected = tw.matmul(a, b, residual=kept)
    assert torch.equal(tw.matmul(a, b, residual=kept, out=kept, verify=True), expected)
    c = r.to(out.dtype).clone()
    expected = tw.matmul(a, b, c=c, beta=0.5)
    assert torch.equal(tw.matmul(a, b, c=c, beta=0.5, out=c, verify=True), expected)


@pytest.mark.parametrize("dtype", list(SHORT))
@pytest.mark.parametrize("name", ["exp", "exp2", "log", "sqrt", "rsqrt", "tanh", "erf", "sigmoid", "silu", "relu",
                                  "gelu", "gelu_tanh"])  # fmt: skip
def test_every_function_passes_on_numbers_of_every_size(torch, dtype, name):
    """100 000 sums that are numbers of every exponent, infinities and NaN among them."""
    bits = torch.randint(-(2**31), 2**31 - 1, (100_000, 1), device="cuda", dtype=torch.int32)
    a = bits.view(torch.float32)
    near = torch.randn(100_000, 1, device="cuda") * 30
    a = torch.cat((a, near, torch.tensor([[np.inf], [-np.inf], [np.nan], [0.0], [-0.0]], device="cuda")))
    a = a.to(getattr(torch, dtype))
    one = torch.ones(1, 8, device="cuda", dtype=a.dtype)
    function = getattr(ep, name)
    for alpha, epilogue in (
        (1.0, lambda acc: function(acc)),
        (0.7, lambda acc: function(acc) - function(0.5 * acc) / 3.0),
    ):
        checked = tw.matmul(a, one, alpha=alpha, epilogue=epilogue, verify=True)
        plain = tw.matmul(a, one, alpha=alpha, epilogue=epilogue)
        torch.testing.assert_close(checked, plain, rtol=0, atol=0, equal_nan=True)
        assert torch.isfinite(checked).any()


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_mistakes_are_caught(torch, dtype, monkeypatch):
    kind = getattr(torch, dtype)
    a, b = torch.randn(512, 512, device="cuda").to(kind), torch.randn(512, 512, device="cuda").to(kind)
    r = torch.randn(512, 512, device="cuda")
    tw.matmul(a, b, residual=r, verify=True)

    def scaled(template, problem, rung):
        return scaled_by(template, 1.02) if problem.epilogue is not None else template

    def short(problem, rung):
        return replace(problem, k=problem.k - 256)

    for wrong, words in (({"params": scaled}, "what is fused"), ({"change": short}, "These are its sums")):
        launch_wrongly(monkeypatch, **wrong)
        with pytest.raises(WrongResult, match=words):
            tw.matmul(a, b, residual=r, verify=True)
        monkeypatch.undo()


def test_inside_a_capture_it_is_refused(torch):
    a = torch.randn(64, 64, device="cuda").bfloat16()
    tw.matmul(a, a, activation="relu")
    with torch.cuda.graph(torch.cuda.CUDAGraph()), pytest.raises(DeviceError, match="verify=True waits"):
        tw.matmul(a, a, activation="relu", verify=True)
