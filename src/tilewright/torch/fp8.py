"""A linear layer whose products are of fp8: operands are quantized as they come, gradients pass straight through.

Each product quantizes its operands along what it sums over, so that scales of rows and blocks stay what they are.
torch.compile keeps the products as one operator each, and fuses the quantizing.
"""

from __future__ import annotations

from typing import Any, Literal, cast

import torch

from ..arrays.eager import runs_here
from ..errors import InvalidOperand
from ..gemm.matmul import matmul as run
from ..gemm.problem import SCALE_BLOCK
from ..gemm.quantize import of_tensor
from .matmul import matmul
from .product import reduced
from .transforms import refuse_transforms

Block = tuple[int, int] | None
BLOCKS: dict[str, tuple[Block, Block]] = {
    "tensor": (None, None),
    "rows": ((1, -1), (-1, 1)),
    "blocks": ((1, SCALE_BLOCK), (SCALE_BLOCK, SCALE_BLOCK)),
}
"""What shares a scale in the first operand of a product, and in the second."""
OWN = "own"
"""`backward`: gradients by products of the operands as they were given."""


def fp8_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *,
    scales: Literal["tensor", "rows", "blocks"] = "rows", backward: Literal["own", "e4m3", "e5m2"] = "own",
) -> torch.Tensor:  # fmt: skip
    """x @ weight.T + bias by a product of fp8, with gradients.

    x [..., in_features], weight [out_features, in_features], bias [out_features]: float32, float16 or bfloat16, x and
    weight of one dtype, which the result has too. x and weight are rounded to e4m3 with scales made of their largest
    magnitudes, as tilewright.quantize makes them: one for each operand ("tensor"), one for each row of x and of weight
    ("rows"), or for 1 x 128 of x and 128 x 128 of weight ("blocks").

    Gradients are those of the product as if nothing had been rounded. backward="own" makes them by products in x's
    dtype, of x and weight themselves. "e5m2" and "e4m3" make them by products of fp8: the result's gradient rounded to
    that type, x and weight to e4m3, with scales of the same kind. They are not differentiable again then.

    Raises InvalidOperand for other dtypes and names, and as tilewright.matmul does.
    """
    refuse_transforms("tilewright.torch.fp8_linear", x, weight, *(() if bias is None else (bias,)))
    if not isinstance(scales, str) or scales not in BLOCKS:
        raise InvalidOperand(f"scales={scales!r} is not one of {', '.join(map(repr, BLOCKS))}.")
    if not isinstance(backward, str) or backward not in (OWN, "e4m3", "e5m2"):
        raise InvalidOperand(f"backward={backward!r} is not one of 'own', 'e4m3', 'e5m2'.")
    if x.dtype != weight.dtype or x.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise InvalidOperand(
            f"x is {x.dtype} and weight {weight.dtype}; both are float32, float16 or bfloat16, of one dtype."
        )
    if weight.dim() != 2 or x.dim() < 1 or x.shape[-1] != weight.shape[1]:
        raise InvalidOperand(
            f"x has shape {tuple(x.shape)} and weight {tuple(weight.shape)}: x is [..., in_features], weight "
            "[out_features, in_features]."
        )
    result = _Linear.apply(x.reshape(-1, x.shape[-1]), weight, bias, scales, backward)
    return cast(torch.Tensor, result).view(*x.shape[:-1], weight.shape[0])


class _Linear(torch.autograd.Function):
    """The layer for x [rows, in_features]."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> torch.Tensor:
        x, weight, bias, scales, backward = inputs
        needs = ctx.needs_input_grad
        ctx.save_for_backward(x if needs[1] else None, weight if needs[0] else None)
        ctx.how = scales, backward
        ctx.of_bias = None if bias is None else (bias.shape, bias.dtype)
        return _product(x, weight.t(), bias, scales, "e4m3", x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        scales, backward = ctx.how
        of_x = of_weight = of_bias = None

        def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            if backward == OWN:
                return matmul(a, b)
            return _product(a, b, None, scales, backward, a.dtype)

        if ctx.needs_input_grad[0]:
            of_x = product(grad, weight)
        if ctx.needs_input_grad[1]:
            of_weight = product(grad.t(), x)
        if ctx.needs_input_grad[2]:
            of_bias = reduced(grad, *ctx.of_bias)
        return of_x, of_weight, of_bias, None, None


def _product(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, scales: str, dtype: str, out_dtype: torch.dtype
) -> torch.Tensor:
    """a @ b + bias of both rounded to fp8: a to `dtype`, b to e4m3."""
    of_a, of_b = BLOCKS[scales]
    a8, a_scale = of_tensor(a, dtype, of_a, torch)
    b8, b_scale = of_tensor(b.t(), "e4m3", of_b and (of_b[1], of_b[0]), torch)  # a weight's lines stay lines
    b_scale = b_scale.t() if b_scale.dim() else b_scale
    return cast(torch.Tensor, fp8_matmul(a8, b8.t(), a_scale, b_scale, bias, out_dtype))


@torch.library.custom_op("tilewright::fp8_matmul", mutates_args=(), device_types="cuda")
def fp8_matmul(
    a: torch.Tensor, b: torch.Tensor, a_scale: torch.Tensor, b_scale: torch.Tensor, bias: torch.Tensor | None,
    out_dtype: torch.dtype,
) -> torch.Tensor:  # fmt: skip
    """(a * a_scale) @ (b * b_scale) + bias, in the current stream."""
    return cast(torch.Tensor, run(a, b, a_scale=a_scale, b_scale=b_scale, bias=bias, out_dtype=out_dtype))


@fp8_matmul.register_kernel("cpu")
def _on_cpu(
    a: torch.Tensor, b: torch.Tensor, a_scale: torch.Tensor, b_scale: torch.Tensor, bias: torch.Tensor | None,
    out_dtype: torch.dtype,
) -> torch.Tensor:  # fmt: skip
    """The emulator's where one is in force; else torch's own operations in float32."""
    if runs_here(a):
        return cast(torch.Tensor, run(a, b, a_scale=a_scale, b_scale=b_scale, bias=bias, out_dtype=out_dtype))
    result = (a.float() * _each(a_scale, a.shape)) @ (b.float() * _each(b_scale, b.shape))
    return (result if bias is None else result + bias.float()).to(out_dtype)


def _each(scale: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """The scale of each element of an operand, or of what broadcasts to it."""
    for axis, extent in enumerate(shape):
        if scale.dim() and scale.shape[axis] not in (1, extent):
            scale = scale.repeat_interleave(SCALE_BLOCK, axis).narrow(axis, 0, extent)
    return scale


@fp8_matmul.register_fake
def _fake(
    a: torch.Tensor, b: torch.Tensor, a_scale: torch.Tensor, b_scale: torch.Tensor, bias: torch.Tensor | None,
    out_dtype: torch.dtype,
) -> torch.Tensor:  # fmt: skip
    return a.new_empty(a.shape[0], b.shape[1], dtype=out_dtype)
