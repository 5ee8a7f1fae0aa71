"""Products in the code that torch.compile writes for the host, where torch's own operations make them."""

from __future__ import annotations

import shutil

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import tilewright.torch as tt  # noqa: E402
from tilewright.torch import inductor  # noqa: E402

pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler here")


@pytest.fixture
def written():
    """Compile anew; what calls a function and returns (its result, the code that torch wrote)."""
    from torch._inductor.utils import fresh_cache, run_and_get_code

    torch._dynamo.reset()
    with fresh_cache():
        yield run_and_get_code


def values(*shape):
    return torch.randn(shape).requires_grad_()


def test_products_of_compiled_code_are_called_directly_and_right(written):
    x, w, other, bias = values(3, 16, 32), values(24, 32), values(24, 20), values(20)

    def step(*given):
        result = compiled(*given)
        return result, *torch.autograd.grad(result.square().sum(), given)

    @torch.compile(fullgraph=True)
    def compiled(x, w, other, bias):
        return tt.matmul(torch.relu(tt.matmul(x, w.t(), alpha=0.5)), other, bias=bias, activation="silu")

    found, codes = written(step, x, w, other, bias)
    inner = torch.relu(0.5 * x @ w.t()) @ other + bias
    right = torch.nn.functional.silu(inner)
    expected = (right, *torch.autograd.grad(right.square().sum(), (x, w, other, bias)))
    for one, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(one, wanted, rtol=1e-4, atol=1e-4)
    code = "\n".join(codes)
    assert code.count("product_into(") >= 6, "two products, and those of four gradients"
    assert "torch.ops.tilewright" not in code


def test_a_product_with_c_goes_through_the_dispatcher_and_is_right(written):
    a, b, c = (torch.randn(s) for s in ((8, 16), (16, 4), (8, 4)))
    found, (code,) = written(torch.compile(lambda a, b, c: tt.matmul(a, b, c=c, beta=2.0), fullgraph=True), a, b, c)
    torch.testing.assert_close(found, a @ b + 2 * c, rtol=1e-5, atol=1e-5)
    assert "torch.ops.tilewright.matmul" in code


def test_one_compiled_product_serves_any_number_of_rows(written):
    weight = torch.randn(16, 8)
    compiled = torch.compile(lambda a: tt.matmul(a, weight), dynamic=True, fullgraph=True)
    for m in (4, 9, 30):
        a = torch.randn(m, 16)
        torch.testing.assert_close(compiled(a), a @ weight, rtol=1e-5, atol=1e-5)


def test_without_the_names_it_needs_torch_calls_the_operators(written, monkeypatch):
    def gone():
        raise ImportError("no such name")

    from torch._inductor import lowering

    for operator in (torch.ops.tilewright.matmul.default, torch.ops.tilewright.fused_matmul.default):
        monkeypatch.delitem(lowering.lowerings, operator, raising=False)
    monkeypatch.setattr(inductor, "_done", False)
    monkeypatch.setattr(inductor, "_register", gone)
    a, b = torch.randn(8, 16), torch.randn(16, 4)
    found, (code,) = written(torch.compile(tt.matmul, fullgraph=True), a, b)
    torch.testing.assert_close(found, a @ b, rtol=1e-5, atol=1e-5)
    assert "torch.ops.tilewright.matmul" in code
