"""fp8 on a GPU: bits equal to the emulator's, every scale against float64, packing, captures, torch's own product."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import InvalidOperand
from tilewright.gemm import quantize
from tilewright.gemm.rungs.fp8 import FP8_RUNGS
from tilewright.run.warm import MISS

pytestmark = pytest.mark.gpu
BLOCK = 128


@pytest.fixture
def able(gpu):
    """The rungs that this GPU has, with their precision."""
    return [rung for rung in FP8_RUNGS if rung.only_on in ("", gpu.arch.name)]


def random(torch, *shape, dtype="float8_e4m3fn", turned=False):
    shape = (*shape[:-2], shape[-1], shape[-2]) if turned else shape
    made = torch.randn(shape, device="cuda").to(getattr(torch, dtype))
    return made.mT if turned else made


def spread(scale, of, rows, cols):
    scale = scale.double()
    if scale.dim() == 0 or tuple(scale.shape[-2:]) == ((rows, 1) if of == "a" else (1, cols)):
        return scale
    wide = scale.repeat_interleave(BLOCK, -1)[..., :cols]
    return wide if of == "a" else wide.repeat_interleave(BLOCK, -2)[..., :rows, :]


@pytest.mark.parametrize("sizes", [(128, 128, 1024), (70, 100, 300)], ids=str)
def test_bits_are_the_emulators(torch, gpu, able, sizes):
    """Sums of whole operands, sums of scaled blocks, and results in fp8."""
    m, n, k = sizes
    torch.manual_seed(0)
    a, b = random(torch, m, k), random(torch, k, n, turned=True)
    a_scale = torch.rand(m, -(-k // BLOCK), device="cuda") + 0.5
    b_scale = torch.rand(-(-k // BLOCK), -(-n // BLOCK), device="cuda") + 0.5
    for rung in able:
        given = {"rung": rung.id, "precision": rung.precision}
        for scales in ({}, {"a_scale": a_scale, "b_scale": b_scale}):
            if scales and rung.precision == "fast":
                continue
            for out_dtype in ("f32", "e4m3"):
                out = tw.matmul(a, b, out_dtype=out_dtype, **scales, **given).view(torch.uint8).cpu()
                with tw.emulator(gpu.name):
                    host = {name: scale.cpu() for name, scale in scales.items()}
                    same = tw.matmul(a.cpu(), b.mT.cpu().mT, out_dtype=out_dtype, **host, **given).view(torch.uint8)
                assert torch.equal(out, same), rung


@pytest.mark.parametrize("layouts", ["nt", "nn", "tn", "tt"])
@pytest.mark.parametrize("scales", ["tensor", "lines", "blocks", "mixed"])
def test_every_layout_and_scale_is_right_and_verified(torch, able, layouts, scales):
    torch.manual_seed(1)
    m, n, k = 300, 520, 777
    a = random(torch, m, k, turned=layouts[0] == "t")
    b = random(torch, k, n, dtype="float8_e5m2", turned=layouts[1] == "t")
    down, across = -(-k // BLOCK), -(-n // BLOCK)

    def made(*shape):
        return torch.rand(shape, device="cuda") + 0.5

    a_scale, b_scale = {
        "tensor": (made(), made()), "lines": (made(m, 1), made(1, n)), "blocks": (made(m, down), made(down, across)),
        "mixed": (made(m, 1), made(down, across)),
    }[scales]  # fmt: skip
    exact = (a.double() * spread(a_scale, "a", m, k)) @ (b.double() * spread(b_scale, "b", k, n))
    for rung in able:
        if rung.precision == "fast" and scales in ("blocks", "mixed"):
            continue
        out = tw.matmul(
            a, b, a_scale=a_scale, b_scale=b_scale, out_dtype="f32", verify=True, rung=rung.id, precision=rung.precision
        )
        assert (out.double() - exact).abs().max() < 5e-3 * exact.abs().max(), rung


def test_every_rung_fuses_and_verifies_what_it_fused(torch, able):
    torch.manual_seed(3)
    for m, n, k in ((256, 256, 512), (131, 77, 300)):
        a, b = random(torch, m, k), random(torch, k, n, turned=True)
        bias, residual = torch.randn(n, device="cuda"), torch.randn(m, n, device="cuda").bfloat16()
        exact = torch.nn.functional.silu(a.double() @ b.double() + bias.double()) + residual.double()
        for rung in able:
            fused = {"bias": bias, "activation": "silu", "residual": residual, "out_dtype": "f32"}
            given = {"rung": rung.id, "precision": rung.precision, **fused}
            out = tw.matmul(a, b, **given)
            assert (out.double() - exact).abs().max() < 5e-3 * exact.abs().max(), rung
            assert torch.equal(tw.matmul(a, b, **given, verify=True), out), rung


def test_a_captured_product_runs_again_on_new_numbers(torch):
    x = torch.randn(256, 512, device="cuda")
    w8, w_scale = tw.quantize(torch.randn(384, 512, device="cuda"), block=(128, 128))
    a8, a_scale = tw.quantize(x, block=(1, 128))
    out = tw.matmul(a8, w8.t(), a_scale=a_scale, b_scale=w_scale.t())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tw.matmul(a8, w8.t(), a_scale=a_scale, b_scale=w_scale.t(), out=out)
    new8, new_scale = tw.quantize(3 * x.flip(0), block=(1, 128))
    a8.copy_(new8)
    a_scale.copy_(new_scale)
    graph.replay()
    assert torch.equal(out, tw.matmul(new8, w8.t(), a_scale=new_scale, b_scale=w_scale.t()))


def test_near_torchs_own_product(torch, gpu):
    if gpu.arch.compute_capability < (8, 9):
        pytest.skip("torch._scaled_mm needs compute capability 8.9")
    torch.manual_seed(2)
    a, b = random(torch, 512, 1024), random(torch, 1024, 768, turned=True)
    one, two = torch.tensor(0.5, device="cuda"), torch.tensor(0.25, device="cuda")
    theirs = torch._scaled_mm(a, b, scale_a=one, scale_b=two, out_dtype=torch.float32)
    ours = tw.matmul(a, b, a_scale=one, b_scale=two, out_dtype="f32")
    exact = (a.double() * 0.5) @ (b.double() * 0.25)
    assert (ours.double() - exact).abs().max() <= 2 * (theirs.double() - exact).abs().max() + 1e-4


def test_bytes_of_cupy_are_read_as_fp8(cupy):
    x = cupy.random.standard_normal((64, 256), dtype=cupy.float32)
    w = cupy.random.standard_normal((96, 256), dtype=cupy.float32)
    x8, x_scale = tw.quantize(x, "e4m3", block=(1, 128))
    w8, w_scale = tw.quantize(w, "e5m2")
    out = tw.matmul(x8, w8.T, a_scale=x_scale, b_scale=w_scale, out_dtype="f32")
    exact = cupy.asnumpy(x).astype(np.float64) @ cupy.asnumpy(w).T
    assert np.linalg.norm(cupy.asnumpy(out) - exact) < 0.15 * np.linalg.norm(exact)
    result = tw.Float8Array(cupy.zeros((64, 96), cupy.uint8), "e4m3")
    assert tw.matmul(x8, w8.T, out=result) is result
    assert bool(result.bits.any())
    with pytest.raises(InvalidOperand, match="CuPy has no float8_e4m3fn"):
        tw.matmul(x8, w8.T, out_dtype="e4m3")


@pytest.mark.parametrize("block", [None, (1, -1), (-1, 1), (1, 128), (128, 128), (3, 5)], ids=str)
@pytest.mark.parametrize("dtype", ["e4m3", "e5m2"])
def test_quantize_gives_the_bits_of_the_host(torch, cupy, dtype, block):
    torch.manual_seed(0)
    x = torch.randn(3, 300, 392) * torch.exp2(torch.randint(-20, 12, (3, 300, 392)))
    x[0, 0, 0], x[1, 2, 3], x[2, 7] = float("nan"), float("-inf"), 0
    for one in (x, x.mT.contiguous().mT, x[..., 1:]):
        wanted8, wanted = tw.quantize(one.numpy(), dtype, block=block)
        made8, made = tw.quantize(one.cuda(), dtype, block=block)
        of_cupy8, of_cupy = tw.quantize(cupy.asarray(one.numpy()), dtype, block=block)
        for bits, scale in (
            (made8.view(torch.uint8).cpu().numpy(), made.cpu().numpy()),
            (cupy.asnumpy(of_cupy8.bits), cupy.asnumpy(of_cupy)),
        ):
            np.testing.assert_array_equal(scale, wanted)
            np.testing.assert_array_equal(bits, wanted8.view(np.uint8))


@pytest.mark.parametrize("block", [None, (1, -1), (-1, 1), (1, 128), (128, 128)], ids=str)
@pytest.mark.parametrize("turned", [False, True])
def test_quantizing_again_is_remembered_and_the_same(torch, block, turned):
    x, y = (torch.randn(3, 200, 264, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    if turned:
        x, y = x.mT, y.mT
    first = tw.quantize(x, "e5m2", block=block)
    again = quantize.calls.run((x,), ("e5m2", block))
    if block is None and turned:  # no view has all of it as one matrix: a copy is quantized
        assert again is MISS
        return
    assert again is not MISS
    other = tw.quantize(y, "e5m2", block=block)
    quantize.calls.forget()
    for found, wanted in ((again, first), (other, tw.quantize(y, "e5m2", block=block))):
        for one, like in zip(found, wanted, strict=True):
            assert (one.dtype, one.shape, one.stride()) == (like.dtype, like.shape, like.stride())
            assert torch.equal(one.view(torch.uint8) if one.element_size() == 1 else one,
                               like.view(torch.uint8) if like.element_size() == 1 else like)  # fmt: skip
