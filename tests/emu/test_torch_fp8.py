"""The layer of fp8 products: what it computes, its gradients, and torch.compile."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import tilewright as tw  # noqa: E402
import tilewright.torch as tt  # noqa: E402
from tilewright.errors import InvalidOperand  # noqa: E402

SCALES = ["tensor", "rows", "blocks"]


def operands(dtype=torch.bfloat16, rows=(2, 20)):
    torch.manual_seed(0)
    x = torch.randn(*rows, 160, dtype=dtype).requires_grad_()
    weight = (torch.randn(136, 160) / 8).to(dtype).requires_grad_()
    return x, weight, torch.randn(136, dtype=dtype).requires_grad_()


def rounded(x, dtype, block):
    """x as the layer's products see it, in float64."""
    x8, scale = tw.quantize(x.detach(), dtype, block=block)
    return tt.fp8._each(scale.double(), x.shape) * x8.double()


def close(found, wanted, share):
    assert float((found.detach().double() - wanted).norm() / wanted.norm()) < share


@pytest.mark.parametrize("scales", SCALES)
def test_the_product_is_that_of_the_rounded_operands(scales):
    x, weight, bias = operands()
    with tw.emulator() as emulator:
        out = tt.fp8_linear(x, weight, bias, scales=scales)
        assert emulator.results
    of_x, of_w = {"tensor": (None, None), "rows": ((1, -1),) * 2, "blocks": ((1, 128), (128, 128))}[scales]
    wanted = rounded(x, "e4m3", of_x) @ rounded(weight, "e4m3", of_w).t() + bias.detach().double()
    assert out.shape == (2, 20, 136)
    assert out.dtype == x.dtype
    close(out, wanted, 2**-8)


@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize(("backward", "share"), [("own", 2**-7), ("e4m3", 0.05), ("e5m2", 0.08)])
def test_gradients_are_those_of_the_product_before_rounding(scales, backward, share):
    x, weight, bias = operands()
    with tw.emulator():
        out = tt.fp8_linear(x, weight, bias, scales=scales, backward=backward)
        grad = torch.randn(out.shape, dtype=out.dtype)
        out.backward(grad)
    flat = grad.reshape(-1, 136).double()
    close(x.grad, grad.double() @ weight.detach().double(), share)
    close(weight.grad, flat.t() @ x.detach().double().reshape(-1, 160), share)
    close(bias.grad, flat.sum(0), 2**-8)
    if backward != "own":  # it was rounded: no product of the operands themselves is as far off
        exact = grad.double() @ weight.detach().double()
        assert float((x.grad.double() - exact).norm() / exact.norm()) > 2**-7


@pytest.mark.parametrize("asked", [0, 1, 2])
def test_only_what_is_asked_for_gets_a_gradient(asked):
    given = [one.detach() for one in operands()]
    given[asked].requires_grad_()
    tt.fp8_linear(*given).sum().backward()
    assert [one.grad is not None for one in given] == [number == asked for number in range(3)]


@pytest.mark.parametrize("backward", ["own", "e5m2"])
def test_torch_compile_gives_the_same(backward):
    x, weight, bias = operands()
    found = []
    for layer in (tt.fp8_linear, torch.compile(tt.fp8_linear, backend="aot_eager", fullgraph=True)):
        x.grad = None
        out = layer(x, weight, bias, backward=backward)
        out.float().square().sum().backward()
        found.append((out.detach(), x.grad))
    torch.testing.assert_close(found[0], found[1])


def test_the_operator_passes_torchs_checks():
    x, weight, _ = operands(rows=(20,))
    a8, a_scale = tw.quantize(x, block=(1, -1))
    b8, b_scale = tw.quantize(weight, block=(1, -1))
    operator, given = torch.ops.tilewright.fp8_matmul.default, (a8, b8.t(), a_scale, b_scale.t(), None, x.dtype)
    torch.library.opcheck(operator, given, test_utils=("test_faketensor", "test_autograd_registration"))


def test_other_dtypes_shapes_and_names_are_refused():
    x, weight, bias = operands()
    for change, words in (
        ({"scales": "columns"}, "scales='columns' is not one of 'tensor', 'rows', 'blocks'"),
        ({"backward": "bf16"}, "backward='bf16' is not one of 'own', 'e4m3', 'e5m2'"),
        ({"weight": weight.float()}, "of one dtype"),
        ({"weight": weight[:, 1:]}, "in_features"),
    ):
        with pytest.raises(InvalidOperand, match=words):
            tt.fp8_linear(**{"x": x, "weight": weight, "bias": bias} | change)
