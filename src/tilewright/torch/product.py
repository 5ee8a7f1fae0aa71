"""The product as a torch operator: a fake kernel for tracing, gradients, and torch's own product on the CPU."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ..ops.matmul import matmul as run
from .expression import compute_dtype


class How(NamedTuple):
    """What a product promises beside its value; the last arguments of both operators, as tilewright.matmul has them.

    The operators' schemas have no defaults: some versions of torch leave away what equals one.
    """

    precision: str = "ieee"
    deterministic: bool = False
    batch_invariant: bool = False


@torch.library.custom_op("tilewright::matmul", mutates_args=(), device_types="cuda")
def matmul_op(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, alpha: float, beta: float,
    out_dtype: torch.dtype | None, precision: str, deterministic: bool, batch_invariant: bool,
) -> torch.Tensor:  # fmt: skip
    """alpha * (a @ b) + beta * c by tilewright.matmul, in the current stream. C is None exactly when beta is 0."""
    return run(
        a, b, c=c, alpha=alpha, beta=beta, out_dtype=out_dtype, precision=precision, deterministic=deterministic,
        batch_invariant=batch_invariant,
    )  # fmt: skip


@matmul_op.register_kernel("cpu")
def _on_cpu(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, alpha: float, beta: float,
    out_dtype: torch.dtype | None, precision: str, deterministic: bool, batch_invariant: bool,
) -> torch.Tensor:  # fmt: skip
    """torch's own product, in its precision and order: there is no tilewright kernel for CPUs."""
    dtype = compute_dtype(a)
    product = alpha * torch.matmul(a.to(dtype), b.to(dtype))
    if c is not None:
        product = product + beta * c.to(dtype)
    return product.to(out_dtype or a.dtype).contiguous()


def product_shape(a: torch.Tensor, b: torch.Tensor) -> list[Any]:
    """numpy.matmul's rules. Extents may be symbolic."""
    rows = list(a.shape[-2:-1]) if a.dim() > 1 else []
    cols = list(b.shape[-1:]) if b.dim() > 1 else []
    inner = b.shape[-2] if b.dim() > 1 else b.shape[0]
    torch._check(a.shape[-1] == inner, lambda: f"a {tuple(a.shape)} and b {tuple(b.shape)} do not fit")
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return [*batch, *rows, *cols]


@matmul_op.register_fake
def _fake(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, alpha: float, beta: float,
    out_dtype: torch.dtype | None, precision: str, deterministic: bool, batch_invariant: bool,
) -> torch.Tensor:  # fmt: skip
    return a.new_empty(product_shape(a, b), dtype=out_dtype or a.dtype)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    a, b, c, alpha, beta, _, *how = inputs
    ctx.save_for_backward(a if ctx.needs_input_grad[1] else None, b if ctx.needs_input_grad[0] else None)
    ctx.shapes = (a.shape, b.shape, None if c is None else c.shape)
    ctx.dtype, ctx.c_dtype = a.dtype, None if c is None else c.dtype
    ctx.alpha, ctx.beta, ctx.how = alpha, beta, How(*how)


def _matrices(a: tuple[int, ...], b: tuple[int, ...], grad: torch.Tensor) -> torch.Tensor:
    """The result's gradient with the axes that one-dimensional operands dropped."""
    if len(a) == 1:
        grad = grad.unsqueeze(-2 if len(b) > 1 else -1)
    if len(b) == 1:
        grad = grad.unsqueeze(-1)
    return grad


def gradient_of_a(
    a_shape: tuple[int, ...], b: torch.Tensor, grad: torch.Tensor, alpha: float, dtype: torch.dtype, how: How
) -> torch.Tensor:
    """alpha dY B^T, summed over the axes that were broadcast. Its rows are those of dY, so it can promise what the
    product does."""
    wide = _matrices(a_shape, b.shape, grad).to(dtype)
    turned = (b if b.dim() > 1 else b.unsqueeze(-1)).mT
    result = _product(wide, turned, alpha, how)
    return (result if len(a_shape) > 1 else result.squeeze(-2)).sum_to_size(a_shape)


def gradient_of_b(
    a: torch.Tensor, b_shape: tuple[int, ...], grad: torch.Tensor, alpha: float, dtype: torch.dtype, how: How
) -> torch.Tensor:
    """alpha A^T dY, summed over the axes that were broadcast. It sums over the rows of A, however many there are, so
    there is nothing that could be the same for any number of them."""
    how = how._replace(batch_invariant=False)
    wide = _matrices(a.shape, b_shape, grad).to(dtype)
    turned = (a if a.dim() > 1 else a.unsqueeze(0)).mT
    if len(b_shape) == 2 and turned.dim() > 2:
        # one B for all batches: one product over all their rows, summed inside the kernel
        result = _product(a.reshape(-1, a.shape[-1]).mT, wide.reshape(-1, wide.shape[-1]), alpha, how)
    else:
        result = _product(turned, wide, alpha, how)
    return (result if len(b_shape) > 1 else result.squeeze(-1)).sum_to_size(b_shape)


def _product(a: torch.Tensor, b: torch.Tensor, alpha: float, how: How) -> torch.Tensor:
    return torch.ops.tilewright.matmul(a, b, None, alpha, 0.0, None, *how)


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    a, b = ctx.saved_tensors
    a_shape, b_shape, c_shape = ctx.shapes
    needs = ctx.needs_input_grad
    grad_a = gradient_of_a(a_shape, b, grad, ctx.alpha, ctx.dtype, ctx.how) if needs[0] else None
    grad_b = gradient_of_b(a, b_shape, grad, ctx.alpha, ctx.dtype, ctx.how) if needs[1] else None
    grad_c = None
    if c_shape is not None and needs[2]:
        grad_c = (ctx.beta * grad.to(compute_dtype(grad))).sum_to_size(c_shape).to(ctx.c_dtype)
    return grad_a, grad_b, grad_c, *(None,) * (3 + len(ctx.how))


matmul_op.register_autograd(_backward, setup_context=_setup_context)
