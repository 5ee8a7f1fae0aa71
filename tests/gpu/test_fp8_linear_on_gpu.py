"""tilewright.torch.fp8_linear on a GPU: the layer and its gradients against float64, within what sums may lose."""

from __future__ import annotations

import pytest

import tilewright as tw
from tilewright.lab.fp8 import LOSS

pytestmark = pytest.mark.gpu

BLOCKS = {"tensor": (None, None), "rows": ((1, -1), (1, -1)), "blocks": ((1, 128), (128, 128))}
"""What shares a scale, in lines that run along the sum, in the first operand of a product and in the second."""


def rounded(torch, x, dtype, block):
    """x [lines, k] as the layer's products see it, in float64."""
    x8, scale = tw.quantize(x.detach(), dtype, block=block)
    for axis, extent in enumerate(x.shape):
        if scale.dim() and scale.shape[axis] not in (1, extent):
            scale = scale.repeat_interleave(128, axis).narrow(axis, 0, extent)
    return scale.double() * x8.double()


def assert_near(torch, found, a, b, added=0.0, loss=LOSS):
    """`found` is a @ b.T + added of float64 operands: sums lose a share of their terms' size, and the result is rounded
    once."""
    exact = a @ b.t() + added
    size = a.abs() @ b.abs().t()
    bound = exact.abs() * torch.finfo(found.dtype).eps + size * loss
    assert bool(((found.double() - exact).abs() <= bound).all())  # NaN is wrong


@pytest.mark.parametrize("sizes", [(512, 384, 640), (77, 136, 160)], ids=str)
@pytest.mark.parametrize("backward", ["own", "e4m3", "e5m2"])
@pytest.mark.parametrize("scales", BLOCKS)
def test_the_layer_and_its_gradients_are_those_of_the_rounded_operands(torch, gpu, scales, backward, sizes):
    import tilewright.torch as tt

    torch.manual_seed(0)
    rows, outs, ins = sizes
    x = torch.randn(rows, ins, device="cuda", dtype=torch.bfloat16).requires_grad_()
    weight = (torch.randn(outs, ins, device="cuda") / 8).bfloat16().requires_grad_()
    bias = torch.randn(outs, device="cuda", dtype=torch.bfloat16).requires_grad_()
    out = tt.fp8_linear(x, weight, bias, scales=scales, backward=backward)
    grad = torch.randn_like(out)
    out.backward(grad)
    first, second = BLOCKS[scales]

    def operands(a, b):
        """a [lines, k] and b [lines, k] of a product of the backward pass."""
        if backward == "own":
            return a.detach().double(), b.detach().double()
        return rounded(torch, a, backward, first), rounded(torch, b, "e4m3", second)

    loss = 2.0**-17 if backward == "own" else LOSS
    of_forward = rounded(torch, x, "e4m3", first), rounded(torch, weight, "e4m3", second)
    assert_near(torch, out.detach(), *of_forward, bias.detach().double())
    assert_near(torch, x.grad, *operands(grad, weight.detach().t().contiguous()), loss=loss)
    assert_near(torch, weight.grad, *operands(grad.t().contiguous(), x.detach().t().contiguous()), loss=loss)
    exact = grad.double().sum(0)
    assert bool(((bias.grad.double() - exact).abs() <= exact.abs() * 2**-8 + grad.double().abs().sum(0) * 2**-16).all())


def test_the_compiled_layer_gives_the_same(torch, gpu):
    import tilewright.torch as tt

    torch.manual_seed(1)
    x = torch.randn(256, 512, device="cuda", dtype=torch.bfloat16).requires_grad_()
    weight = (torch.randn(384, 512, device="cuda") / 8).bfloat16().requires_grad_()
    found = []
    for layer in (tt.fp8_linear, torch.compile(tt.fp8_linear, fullgraph=True)):
        x.grad = weight.grad = None
        out = layer(x, weight, backward="e5m2")
        out.float().square().sum().backward()
        found.append([out.detach(), x.grad, weight.grad])
    for eager, compiled in zip(*found, strict=True):
        off = (eager.double() - compiled.double()).norm() / eager.double().norm()
        assert off < 0.02  # a scale that fusing rounds otherwise moves a number to its neighbour
