"""The product for torch, with gradients: at once where nothing has to see it, else as an operator.

`product` chooses. In eager mode gradients go through an autograd.Function, which costs the host a part of what an
operator's do; what traces (torch.compile, fake tensors, modes, subclasses) gets the operator. Both share one backward.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch

from ..arrays.eager import is_eager, runs_here, wants_gradients
from ..gemm.matmul import matmul as run
from ..gemm.shapes import matmul_shapes
from .expression import compute_dtype
from .inductor import lower_products

if TYPE_CHECKING:
    from ..words import Precision


class How(NamedTuple):
    """The promises of a product besides its value; the last arguments of both operators, as tilewright.matmul has them.

    The operators' schemas have no defaults: some versions of torch omit what equals one.
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
        a, b, c=c, alpha=alpha, beta=beta, out_dtype=out_dtype, deterministic=deterministic,
        batch_invariant=batch_invariant, precision=cast("Precision", precision),
    )  # fmt: skip


@matmul_op.register_kernel("cpu")
def _on_cpu(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, alpha: float, beta: float,
    out_dtype: torch.dtype | None, precision: str, deterministic: bool, batch_invariant: bool,
) -> torch.Tensor:  # fmt: skip
    """torch's own product, in its precision and order: there is no tilewright kernel for CPUs."""
    product_shape(a, b)  # refuses what does not fit
    dtype = compute_dtype(a.dtype)
    product = alpha * torch.matmul(a.to(dtype), b.to(dtype))
    if c is not None:
        product = product + beta * c.to(dtype)
    return product.to(out_dtype or a.dtype).contiguous()


def product_shape(a: torch.Tensor, b: torch.Tensor) -> list[Any]:
    """numpy.matmul's rules. Extents may be symbolic. Raises InvalidOperand where they are known and do not fit."""
    left, right = a.shape, b.shape
    if torch.jit.is_tracing():  # extents are tensors then
        left, right = (torch.Size(map(int, shape)) for shape in (left, right))
    if len(right) == 2 and len(left) > 1 and type(left[-1]) is int and left[-1] == right[0]:
        return [*left[:-1], right[1]]
    if all(type(extent) is int for extent in (*left, *right)):
        return [*matmul_shapes(tuple(left), tuple(right)).result]
    inner = right[-2] if len(right) > 1 else right[0]
    torch._check(left[-1] == inner, lambda: f"a {tuple(left)} and b {tuple(right)} do not fit")
    batch = torch.broadcast_shapes(left[:-2], right[:-2])
    return [*batch, *left[-2:-1], *(right[-1:] if len(right) > 1 else ())]


@matmul_op.register_fake
def _fake(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, alpha: float, beta: float,
    out_dtype: torch.dtype | None, precision: str, deterministic: bool, batch_invariant: bool,
) -> torch.Tensor:  # fmt: skip
    lower_products()
    return a.new_empty(product_shape(a, b), dtype=out_dtype or a.dtype)


# --- at once, or as an operator ---------------------------------------------------------------------------------------


def product(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, alpha: float, beta: float,
    out_dtype: torch.dtype | None, how: How,
) -> torch.Tensor:  # fmt: skip
    """alpha * (a @ b) + beta * c, with gradients where they are asked for. C is None exactly when beta is 0."""
    given = (a, b) if c is None else (a, b, c)
    if not is_eager(given):
        return torch.ops.tilewright.matmul(a, b, c, alpha, beta, out_dtype, *how)
    if wants_gradients(given):
        return TilewrightMatmul.apply(a, b, c, alpha, beta, out_dtype, how)
    return run_product(a, b, c, alpha, beta, out_dtype, how)


def run_product(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, alpha: float, beta: float,
    out_dtype: torch.dtype | None, how: How,
) -> torch.Tensor:  # fmt: skip
    """The same, now, of tensors without gradients."""
    precision, deterministic, batch_invariant = how
    if runs_here(a):
        return run(
            a, b, c=c, alpha=alpha, beta=beta, out_dtype=out_dtype, deterministic=deterministic,
            batch_invariant=batch_invariant, precision=cast("Precision", precision),
        )  # fmt: skip
    return _on_cpu(a, b, c, alpha, beta, out_dtype, *how)


class TilewrightMatmul(torch.autograd.Function):
    """The product in eager mode."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> torch.Tensor:
        a, b, c, alpha, beta, out_dtype, how = inputs
        _keep(ctx, a, b, c, alpha, beta, how)
        return run_product(a, b, c, alpha, beta, out_dtype, how)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        return *_gradients(ctx, grad), None, None, None, None


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    a, b, c, alpha, beta, _, *how = inputs
    _keep(ctx, a, b, c, alpha, beta, How(*how))


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    return *_gradients(ctx, grad), *(None,) * (3 + len(How._fields))


matmul_op.register_autograd(_backward, setup_context=_setup_context)


# --- gradients --------------------------------------------------------------------------------------------------------


def _keep(
    ctx: Any, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, alpha: float, beta: float, how: How
) -> None:
    needs = ctx.needs_input_grad
    ctx.save_for_backward(a if needs[1] else None, b if needs[0] else None)
    of_c = None if c is None else (c.shape, c.dtype)
    ctx.call = (a.shape, b.shape, lies_turned(b), a.dtype, of_c, alpha, beta, how)


def _gradients(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    a, b = ctx.saved_tensors
    a_shape, b_shape, b_turned, dtype, of_c, alpha, beta, how = ctx.call
    needs = ctx.needs_input_grad
    narrow = grad if grad.dtype == dtype else grad.to(dtype)
    grad_a = gradient_of_a(a_shape, b, narrow, alpha, how) if needs[0] else None
    grad_b = gradient_of_b(a, b_shape, b_turned, narrow, alpha, how) if needs[1] else None
    grad_c = gradient_of_c(grad, beta, *of_c) if of_c is not None and needs[2] else None
    return grad_a, grad_b, grad_c


def _matrices(a_axes: int, b_axes: int, grad: torch.Tensor) -> torch.Tensor:
    """The result's gradient with the axes that one-dimensional operands dropped."""
    if a_axes == 1:
        grad = grad.unsqueeze(-2 if b_axes > 1 else -1)
    if b_axes == 1:
        grad = grad.unsqueeze(-1)
    return grad


def gradient_of_a(
    a_shape: tuple[int, ...], b: torch.Tensor, grad: torch.Tensor, alpha: float, how: How
) -> torch.Tensor:
    """alpha dY B^T, summed over the axes that were broadcast. Its rows are those of dY, so it can promise what the
    product does. grad: in the operands' dtype."""
    wide = _matrices(len(a_shape), b.dim(), grad)
    turned = b.mT if b.dim() > 1 else b.unsqueeze(0)
    result = product(wide, turned, None, alpha, 0.0, None, how)
    return summed(result if len(a_shape) > 1 else result.squeeze(-2), a_shape)


def gradient_of_b(
    a: torch.Tensor, b_shape: tuple[int, ...], b_turned: bool, grad: torch.Tensor, alpha: float, how: How
) -> torch.Tensor:
    """alpha A^T dY, summed over the axes that were broadcast. It sums over the rows of A, however many there are, so
    there is nothing that could be the same for any number of them. grad: in the operands' dtype.

    Where B lies turned round, as a layer's weight.t() does, the result does too: else torch would copy it into the
    weight's layout.
    """
    if how.batch_invariant:
        how = how._replace(batch_invariant=False)
    wide = _matrices(a.dim(), len(b_shape), grad)
    if len(b_shape) == 2 and a.dim() > 2:
        # one B for all batches: one product over all their rows, summed inside the kernel
        rows = math.prod(wide.shape[:-1])
        a, wide = a.reshape(rows, a.shape[-1]), wide.reshape(rows, wide.shape[-1])  # torch cannot batch flatten
    elif a.dim() == 1:
        a = a.unsqueeze(0)
    if b_turned:
        return summed(product(wide.mT, a, None, alpha, 0.0, None, how).mT, b_shape)
    result = product(a.mT, wide, None, alpha, 0.0, None, how)
    return summed(result if len(b_shape) > 1 else result.squeeze(-1), b_shape)


def lies_turned(b: torch.Tensor) -> bool:
    """Return whether B's columns lie in a row, and its rows do not."""
    return b.dim() > 1 and b.stride(-2) == 1 and b.stride(-1) != 1


def gradient_of_c(of_sum: torch.Tensor, beta: float, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """beta dY, summed over the axes that were broadcast; rounded once."""
    if beta == 1:
        return reduced(of_sum, shape, dtype)
    if of_sum.shape == shape:
        return (beta * of_sum).to(dtype)
    return (beta * reduced(of_sum, shape, compute_dtype(of_sum.dtype))).to(dtype)


def summed(x: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    return x if x.shape == shape else x.sum_to_size(shape)


def reduced(x: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """x summed to a shape that broadcasts to its own, in dtype. torch sums 16-bit numbers in float32, and rounds once;
    no copy of x in a wider dtype is made."""
    if x.shape == shape:
        return x if x.dtype == dtype else x.to(dtype)
    if x.dtype == dtype and x.shape[1:] == shape:  # a layer's bias, most often
        return x.sum(0)
    wide = dtype if dtype == x.dtype else torch.promote_types(compute_dtype(x.dtype), dtype)
    lead = x.dim() - len(shape)
    if x.shape[lead:] == shape:
        result = x.sum(list(range(lead)), dtype=wide)
    else:
        axes = [n for n in range(x.dim()) if n < lead or (shape[n - lead] == 1 and x.shape[n] != 1)]
        result = x.sum(axes, keepdim=True, dtype=wide).view(shape)
    return result if result.dtype == dtype else result.to(dtype)
