"""A product with an epilogue as a torch operator: the expression is one of its arguments, as text.

The backward pass makes the sum again, by a product of its own where the derivative asks for it, and walks the
expression backwards in float32 (expression.py). Nothing of the result's size is kept from the forward pass.
"""

from __future__ import annotations

from typing import Any

import torch

from ..errors import InvalidOperand
from ..ops.epilogue.recorded import Recorded, parse
from ..ops.matmul import matmul as run
from .expression import Evaluation, compute_dtype
from .product import How, gradient_of_a, gradient_of_b, product_shape

_SCHEMA = (
    "(Tensor a, Tensor b, Tensor? c, float alpha, float beta, ScalarType? out_dtype, str expression, "
    "Tensor[] operands, str precision, bool deterministic, bool batch_invariant) -> Tensor"
)


@torch.library.custom_op("tilewright::fused_matmul", mutates_args=(), device_types="cuda", schema=_SCHEMA)
def fused_matmul_op(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, alpha: float, beta: float,
    out_dtype: torch.dtype | None, expression: str, operands: list[torch.Tensor], precision: str,
    deterministic: bool, batch_invariant: bool,
) -> torch.Tensor:  # fmt: skip
    """`expression` of alpha * (a @ b) + beta * c and its `operands`, in the order of Recorded.operands."""
    recorded = parse(expression)
    named: dict[str, Any] = dict(zip(recorded.operands, operands, strict=True))
    with torch.no_grad():
        options: dict[str, Any] = {
            "out_dtype": out_dtype, "precision": precision, "deterministic": deterministic,
            "batch_invariant": batch_invariant, "epilogue": recorded,
        }  # fmt: skip
        return run(a, b, c=c, alpha=alpha, beta=beta, **named | options)


def _evaluation(
    recorded: Recorded, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, alpha: float, beta: float,
    operands: list[torch.Tensor], how: How,
) -> Evaluation:  # fmt: skip
    """The expression over the sum, which is made, in float32, when it is asked for."""
    wide = compute_dtype(a)

    def product() -> torch.Tensor:
        of_c = None if c is None else c.to(wide)
        return torch.ops.tilewright.matmul(a, b, of_c, alpha, beta, wide, *how)

    named = dict(zip(recorded.operands, operands, strict=True))
    return Evaluation(recorded, product, named, tuple(product_shape(a, b)), a.dim() > 1, b.dim() > 1, a)


@fused_matmul_op.register_kernel("cpu")
def _on_cpu(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, alpha: float, beta: float,
    out_dtype: torch.dtype | None, expression: str, operands: list[torch.Tensor], precision: str,
    deterministic: bool, batch_invariant: bool,
) -> torch.Tensor:  # fmt: skip
    """By torch's own operations: there is no tilewright kernel for CPUs."""
    how = How(precision, deterministic, batch_invariant)
    result = _evaluation(parse(expression), a, b, c, alpha, beta, operands, how).result
    return torch.empty(result.shape, dtype=out_dtype or a.dtype).copy_(result)


@fused_matmul_op.register_fake
def _fake(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, alpha: float, beta: float,
    out_dtype: torch.dtype | None, expression: str, operands: list[torch.Tensor], precision: str,
    deterministic: bool, batch_invariant: bool,
) -> torch.Tensor:  # fmt: skip
    shape = product_shape(a, b)
    for name, operand in zip(parse(expression).operands, operands, strict=True):
        check_over_result(name, operand, shape)
    return a.new_empty(shape, dtype=out_dtype or a.dtype)


def check_over_result(name: str, operand: torch.Tensor, shape: list[Any], given: Any = None) -> None:
    """Raises InvalidOperand for what does not broadcast to the result; `given` is the shape to name. Extents may be
    symbolic."""
    lead = len(shape) - operand.dim()
    if lead < 0 or not all(have == 1 or have == want for have, want in zip(operand.shape, shape[lead:], strict=True)):
        told = tuple(operand.shape if given is None else given)
        per_row = " (one number a row)" if name == "row_scale" else ""
        raise InvalidOperand(f"{name} {told} does not broadcast to the result's shape {tuple(shape)}{per_row}.")


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    a, b, c, alpha, beta, _, expression, operands, *how = inputs
    ctx.save_for_backward(a, b, c, *operands)
    ctx.alpha, ctx.beta, ctx.expression, ctx.how = alpha, beta, expression, How(*how)


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    a, b, c, *operands = ctx.saved_tensors
    recorded = parse(ctx.expression)
    values = _evaluation(recorded, a, b, c, ctx.alpha, ctx.beta, operands, ctx.how)
    of_sum, named = values.gradients(grad)
    grad_a = grad_b = grad_c = None
    if of_sum is not None:
        needs = ctx.needs_input_grad
        grad_a = gradient_of_a(a.shape, b, of_sum, ctx.alpha, a.dtype, ctx.how) if needs[0] else None
        grad_b = gradient_of_b(a, b.shape, of_sum, ctx.alpha, b.dtype, ctx.how) if needs[1] else None
        if c is not None and needs[2]:
            grad_c = (ctx.beta * of_sum).sum_to_size(c.shape).to(c.dtype)
    of_operands = [
        named[name].sum_to_size(operand.shape).to(operand.dtype) if name in named else None
        for name, operand in zip(recorded.operands, operands, strict=True)
    ]
    return grad_a, grad_b, grad_c, None, None, None, None, of_operands, *(None,) * len(ctx.how)


fused_matmul_op.register_autograd(_backward, setup_context=_setup_context)
