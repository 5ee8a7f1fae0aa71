"""The product as a torch operator: a fake kernel for tracing, gradients, and torch's own product on the CPU."""

from __future__ import annotations

from typing import Any

import torch

from ..ops.matmul import matmul as run


@torch.library.custom_op("tilewright::matmul", mutates_args=(), device_types="cuda")
def matmul_op(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, alpha: float, beta: float, out_dtype: torch.dtype | None
) -> torch.Tensor:
    """alpha * (a @ b) + beta * c by tilewright.matmul, in the current stream. C is None exactly when beta is 0."""
    return run(a, b, c=c, alpha=alpha, beta=beta, out_dtype=out_dtype)


@matmul_op.register_kernel("cpu")
def _on_cpu(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, alpha: float, beta: float, out_dtype: torch.dtype | None
) -> torch.Tensor:
    """torch's own product: there is no tilewright kernel for CPUs."""
    product = alpha * torch.matmul(a.float(), b.float())
    if c is not None:
        product = product + beta * c.float()
    return product.to(out_dtype or a.dtype).contiguous()


def _shape(a: torch.Tensor, b: torch.Tensor) -> list[Any]:
    """numpy.matmul's rules. Extents may be symbolic."""
    rows = list(a.shape[-2:-1]) if a.dim() > 1 else []
    cols = list(b.shape[-1:]) if b.dim() > 1 else []
    inner = b.shape[-2] if b.dim() > 1 else b.shape[0]
    torch._check(a.shape[-1] == inner, lambda: f"a {tuple(a.shape)} and b {tuple(b.shape)} do not fit")
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return [*batch, *rows, *cols]


@matmul_op.register_fake
def _fake(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, alpha: float, beta: float, out_dtype: torch.dtype | None
) -> torch.Tensor:
    return a.new_empty(_shape(a, b), dtype=out_dtype or a.dtype)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    a, b, c, alpha, beta, _ = inputs
    ctx.save_for_backward(a if ctx.needs_input_grad[1] else None, b if ctx.needs_input_grad[0] else None)
    ctx.shapes = (a.shape, b.shape, None if c is None else c.shape)
    ctx.dtype, ctx.c_dtype = a.dtype, None if c is None else c.dtype
    ctx.alpha, ctx.beta = alpha, beta


def _matrices(a: tuple[int, ...], b: tuple[int, ...], grad: torch.Tensor) -> torch.Tensor:
    """The result's gradient with the axes that one-dimensional operands dropped."""
    if len(a) == 1:
        grad = grad.unsqueeze(-2 if len(b) > 1 else -1)
    if len(b) == 1:
        grad = grad.unsqueeze(-1)
    return grad


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    """dA = alpha dY B^T, dB = alpha A^T dY, dC = beta dY, each summed over the axes that were broadcast."""
    a, b = ctx.saved_tensors
    a_shape, b_shape, c_shape = ctx.shapes
    grad_a = grad_b = grad_c = None
    wide = _matrices(a_shape, b_shape, grad).to(ctx.dtype)
    if ctx.needs_input_grad[0]:
        turned = (b if len(b_shape) > 1 else b.unsqueeze(-1)).mT
        grad_a = matmul(wide, turned, alpha=ctx.alpha)
        grad_a = (grad_a if len(a_shape) > 1 else grad_a.squeeze(-2)).sum_to_size(a_shape)
    if ctx.needs_input_grad[1]:
        turned = (a if len(a_shape) > 1 else a.unsqueeze(0)).mT
        if len(b_shape) == 2 and turned.dim() > 2:
            # one B for all batches: one product over all their rows, summed inside the kernel
            grad_b = matmul(a.reshape(-1, a_shape[-1]).mT, wide.reshape(-1, wide.shape[-1]), alpha=ctx.alpha)
        else:
            grad_b = matmul(turned, wide, alpha=ctx.alpha)
        grad_b = (grad_b if len(b_shape) > 1 else grad_b.squeeze(-1)).sum_to_size(b_shape)
    if c_shape is not None and ctx.needs_input_grad[2]:
        grad_c = (ctx.beta * grad.float()).sum_to_size(c_shape).to(ctx.c_dtype)
    return grad_a, grad_b, grad_c, None, None, None


matmul_op.register_autograd(_backward, setup_context=_setup_context)


def matmul(
    a: torch.Tensor, b: torch.Tensor, *, c: torch.Tensor | None = None, alpha: float = 1.0, beta: float | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:  # fmt: skip
    """alpha * (a @ b) + beta * c with gradients; torch.compile keeps it as one operator.

    a [..., m, k], b [..., k, n]: float32, float16 or bfloat16 CUDA tensors of one dtype, any strides; batch axes
    broadcast. c broadcasts to the result and has its dtype. On CPU tensors torch's own product runs.
    Raises as tilewright.matmul does.
    """
    beta = (0.0 if c is None else 1.0) if beta is None else beta
    if beta == 0:
        c = None
    needs_graph = torch.is_grad_enabled() and (
        a.requires_grad or b.requires_grad or (c is not None and c.requires_grad)
    )
    if torch.compiler.is_compiling() or needs_graph or type(a) is not torch.Tensor or not a.is_cuda:
        return torch.ops.tilewright.matmul(a, b, c, alpha, beta, out_dtype)
    return run(a, b, c=c, alpha=alpha, beta=beta, out_dtype=out_dtype)  # a third of an operator's host time
