"""tilewright.torch with a result of another type than the operands', without a GPU: values, fake tensors, gradients."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

import tilewright.torch as tt  # noqa: E402


def given(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype).requires_grad_()


PAIRS = [(torch.float32, torch.bfloat16), (torch.float32, torch.float16), (torch.bfloat16, torch.float32)]


@pytest.mark.parametrize(("dtype", "out_dtype"), PAIRS)
@pytest.mark.parametrize("fused", [False, True], ids=["bare", "fused"])
def test_the_result_is_of_the_type_asked_for_and_gradients_of_the_operands(dtype, out_dtype, fused):
    a, b, c = given(6, 8, dtype=dtype), given(8, 5, dtype=dtype, seed=1), given(6, 5, dtype=out_dtype, seed=2)
    bias = given(5, dtype=torch.float32, seed=3)
    options = {"bias": bias, "activation": "silu"} if fused else {}
    out = tt.matmul(a, b, c=c, out_dtype=out_dtype, **options)
    assert out.dtype == out_dtype
    wide = [x.detach().double().requires_grad_() for x in (a, b, c, bias)]
    exact = wide[0] @ wide[1] + wide[2]
    exact = torch.nn.functional.silu(exact + wide[3]) if fused else exact
    torch.testing.assert_close(out.double(), exact, rtol=2**-8, atol=1e-6)
    pull = torch.randn(6, 5, generator=torch.Generator().manual_seed(4)).to(out_dtype)
    out.backward(pull)
    exact.backward(pull.double())
    for mine, right in zip((a, b, c, bias) if fused else (a, b, c), wide, strict=False):
        assert mine.grad.dtype == mine.dtype
        off = 1e-5 if mine.dtype == dtype == torch.float32 else 2**-7  # the result's type rounds no operand's gradient
        torch.testing.assert_close(mine.grad.double(), right.grad, rtol=off, atol=off)


@pytest.mark.parametrize(("dtype", "out_dtype"), PAIRS)
def test_fake_tensors_have_the_type_asked_for(dtype, out_dtype):
    with FakeTensorMode():
        a, b = torch.empty(2, 6, 8, dtype=dtype), torch.empty(8, 5, dtype=dtype)
        for out in (tt.matmul(a, b, out_dtype=out_dtype), tt.matmul(a, b, out_dtype=out_dtype, activation="relu")):
            assert (out.dtype, tuple(out.shape)) == (out_dtype, (2, 6, 5))
