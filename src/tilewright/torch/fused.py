"""A product with an epilogue for torch, with gradients: at once where nothing has to see it, else as an operator.

The operator takes the expression as text. The backward pass has the expression's derivative as expressions, too: where
one depends on the sum it is the epilogue of a product that makes the sum again, so that nothing of the result's size is
kept for it (after a relu the result itself is) and nothing but a gradient written (backward.py). A sum of many
products before an activation is kept instead: to make it again would cost more than to read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch

from ..arrays.eager import is_batched, is_eager, runs_here, wants_gradients
from ..epilogue.recorded import Recorded, parse
from ..errors import InvalidOperand
from ..gemm.matmul import matmul as run
from .backward import KEPT_FROM, Backward, before_relu, cut_at_activation, plan_backward
from .expression import Frame, compute_dtype, evaluate, in_one_operation
from .inductor import lower_products
from .product import How, gradient_of_a, gradient_of_b, gradient_of_c, lies_turned, product, product_shape, reduced

if TYPE_CHECKING:
    from ..words import Precision

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
    with torch.no_grad():
        how = How(precision, deterministic, batch_invariant)
        return _on_gpu(a, b, c, alpha, beta, out_dtype, parse(expression), operands, how)


def _on_gpu(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, alpha: float, beta: float,
    out_dtype: torch.dtype | None, expression: Recorded, operands: Sequence[torch.Tensor], how: How,
) -> torch.Tensor:  # fmt: skip
    precision, deterministic, batch_invariant = how
    given: dict[str, Any] = {"epilogue": expression, **dict(zip(expression.operands, operands, strict=True))}
    return run(
        a, b, c=c, alpha=alpha, beta=beta, out_dtype=out_dtype, deterministic=deterministic,
        batch_invariant=batch_invariant, precision=cast("Precision", precision), **given,
    )  # fmt: skip


@fused_matmul_op.register_kernel("cpu")
def _on_cpu(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, alpha: float, beta: float,
    out_dtype: torch.dtype | None, expression: str, operands: list[torch.Tensor], precision: str,
    deterministic: bool, batch_invariant: bool,
) -> torch.Tensor:  # fmt: skip
    """Compute it by torch's own operations: there is no tilewright kernel for CPUs."""
    recorded, how = parse(expression), How(precision, deterministic, batch_invariant)
    named = dict(zip(recorded.operands, operands, strict=True))
    wide = compute_dtype(a.dtype)
    frame = Frame(tuple(product_shape(a, b)), a.dim() > 1, b.dim() > 1, wide, a.device)
    make_sum = partial(_sum, a, b, c, alpha, beta, wide, how)
    (result,) = evaluate(recorded.nodes, [len(recorded.nodes) - 1], make_sum, named, frame)
    return torch.empty(result.shape, dtype=out_dtype or a.dtype).copy_(result)


def _sum(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, alpha: float, beta: float, wide: torch.dtype, how: How
) -> torch.Tensor:
    """alpha * (a @ b) + beta * c as the epilogue reads it."""
    return product(a, b, None if c is None else c.to(wide), alpha, beta, wide, how)


@fused_matmul_op.register_fake
def _fake(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, alpha: float, beta: float,
    out_dtype: torch.dtype | None, expression: str, operands: list[torch.Tensor], precision: str,
    deterministic: bool, batch_invariant: bool,
) -> torch.Tensor:  # fmt: skip
    lower_products()
    shape = product_shape(a, b)
    for name, operand in zip(parse(expression).operands, operands, strict=True):
        check_over_result(name, operand, shape)
    return a.new_empty(shape, dtype=out_dtype or a.dtype)


def check_over_result(name: str, operand: torch.Tensor, shape: Sequence[Any], given: Any = None) -> None:
    """Raises InvalidOperand for what does not broadcast to the result; `given` is the shape to name. Extents may be
    symbolic."""
    lead = len(shape) - operand.dim()
    if lead < 0 or not all(have == 1 or have == want for have, want in zip(operand.shape, shape[lead:], strict=True)):
        told = tuple(operand.shape if given is None else given)
        per_row = " (one number per row)" if name == "row_scale" else ""
        raise InvalidOperand(f"{name} {told} does not broadcast to the result's shape {tuple(shape)}{per_row}.")


# --- at once, or as an operator ---------------------------------------------------------------------------------------


class Call(NamedTuple):
    """The part of a call that is not a tensor."""

    alpha: float
    beta: float
    out_dtype: torch.dtype | None
    expression: Recorded
    how: How


def fused_product(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, call: Call, operands: Sequence[torch.Tensor]
) -> torch.Tensor:
    """call.expression of alpha * (a @ b) + beta * c and its operands, with gradients where they are asked for."""
    given = (a, b, *operands) if c is None else (a, b, c, *operands)
    if a.shape[-1] >= KEPT_FROM and wants_gradients(given) and (kept := cut_at_activation(call.expression)) is not None:
        named = dict(zip(call.expression.operands, operands, strict=True))
        inside = call._replace(expression=kept.inside)
        return kept.apply(fused_product(a, b, c, inside, [named[name] for name in kept.inside.operands]), named)
    if not is_eager(given):
        alpha, beta, out_dtype, expression, how = call
        return torch.ops.tilewright.fused_matmul(a, b, c, alpha, beta, out_dtype, expression.text, list(operands), *how)
    if wants_gradients(given):
        return TilewrightFusedMatmul.apply(a, b, c, call, *operands)
    return _run(a, b, c, call, operands)


def _run(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, call: Call, operands: Sequence[torch.Tensor]
) -> torch.Tensor:
    alpha, beta, out_dtype, expression, how = call
    if runs_here(a):
        return _on_gpu(a, b, c, alpha, beta, out_dtype, expression, operands, how)
    return _on_cpu(a, b, c, alpha, beta, out_dtype, expression.text, list(operands), *how)


class TilewrightFusedMatmul(torch.autograd.Function):
    """The product with an epilogue in eager mode."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> torch.Tensor:
        a, b, c, call, *operands = inputs
        result = _run(a, b, c, call, operands)
        _keep(ctx, a, b, c, call, operands, result)
        return result

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        needs = ctx.needs_input_grad
        of_a, of_b, of_c, of_operands = _gradients(ctx, grad, needs[:3], needs[4:])
        return of_a, of_b, of_c, None, *of_operands


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    a, b, c, alpha, beta, out_dtype, expression, operands, *how = inputs
    _keep(ctx, a, b, c, Call(alpha, beta, out_dtype, parse(expression), How(*how)), operands, output)


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    needs = ctx.needs_input_grad
    of_a, of_b, of_c, of_operands = _gradients(ctx, grad, needs[:3], tuple(needs[7]))
    return of_a, of_b, of_c, None, None, None, None, of_operands, *(None,) * len(How._fields)


fused_matmul_op.register_autograd(_backward, setup_context=_setup_context)


# --- gradients --------------------------------------------------------------------------------------------------------

Like = tuple[tuple[int, ...], torch.dtype]
"""A tensor's shape and dtype, of which the tensor itself need not be kept."""


def _keep(
    ctx: Any, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, call: Call, operands: Sequence[torch.Tensor],
    result: torch.Tensor,
) -> None:  # fmt: skip
    """Keep for the backward pass what it will read, and what it must know of all. After a relu it reads the result,
    as torch's does, and the rest of the expression is left."""
    inside = before_relu(call.expression)
    if inside is not None:
        call = call._replace(expression=inside)
    of_a, of_b, of_c = a.requires_grad, b.requires_grad, c is not None and c.requires_grad
    asked = tuple([x.requires_grad for x in operands])
    plan = plan_backward(call.expression, of_a or of_b or of_c, asked)
    again = plan.needs_sum
    ctx.save_for_backward(
        a if again or of_b else None, b if again or of_a else None, c if again else None,
        *[x if read else None for x, read in zip(operands, plan.reads, strict=True)],
        None if inside is None else result,
    )  # fmt: skip
    ctx.call, ctx.b_turned = call, lies_turned(b)
    ctx.like = [None if x is None else (x.shape, x.dtype) for x in (a, b, c, *operands)]


def _gradients(
    ctx: Any, grad: torch.Tensor, needs: tuple[bool, ...], operands_need: tuple[bool, ...]
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None, list[torch.Tensor | None]]:
    """The gradients of a, b, c and the operands."""
    *given, result = ctx.saved_tensors
    if result is not None:
        grad = torch.ops.aten.threshold_backward.default(grad, result, 0)
    return gradients(ctx.call, given, ctx.like, ctx.b_turned, grad, needs, operands_need)


def gradients(
    call: Call, given: Sequence[Any], like: Sequence[Any], b_turned: bool, grad: torch.Tensor,
    needs: tuple[bool, ...], operands_need: tuple[bool, ...],
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None, list[torch.Tensor | None]]:  # fmt: skip
    """The gradients of a, b, c and the operands. `given`: these, None for what is not read; `like`: what each is
    like."""
    a, b, c, *operands = given
    like_a, like_b, like_c, *likes = like
    names = call.expression.operands
    sum_asked = needs[0] or needs[1] or needs[2]
    plan = plan_backward(call.expression, sum_asked, operands_need, by_products=not is_batched(grad))
    named = {name: x for name, x in zip(names, operands, strict=True) if x is not None}
    named[plan.derivative.grad] = grad
    made: dict[int, torch.Tensor] = {}  # what is not in it is the result's gradient itself
    if plan.by_product or plan.by_torch:
        wide_c = like_c[1] if like_c is not None and needs[2] else None
        axes = (len(like_a[0]) > 1, len(like_b[0]) > 1)
        takers = dict(zip(names, likes, strict=True))
        made = _made(plan, call, a, b, c, named, grad, axes, like_a[1], wide_c, takers)
    of_a = of_b = of_c = None
    if plan.of_sum is not None:
        of_sum = made.get(plan.of_sum, grad)
        narrow = of_sum if of_sum.dtype == like_a[1] else of_sum.to(like_a[1])
        of_a = gradient_of_a(like_a[0], b, narrow, call.alpha, call.how) if needs[0] else None
        of_b = gradient_of_b(a, like_b[0], b_turned, narrow, call.alpha, call.how) if needs[1] else None
        of_c = gradient_of_c(of_sum, call.beta, *like_c) if needs[2] else None
    of_operands = [
        reduced(made.get(plan.of_operands[name], grad), *like) if name in plan.of_operands else None
        for name, like in zip(names, likes, strict=True)
    ]
    return of_a, of_b, of_c, of_operands


def _made(
    plan: Backward, call: Call, a: Any, b: Any, c: Any, named: dict[str, torch.Tensor], grad: torch.Tensor,
    axes: tuple[bool, bool], dtype: torch.dtype, c_dtype: torch.dtype | None, takers: dict[str, Like],
) -> dict[int, torch.Tensor]:  # fmt: skip
    """The plan's gradients by number, of the result's shape. That of the sum is in the operands' dtype, or c's if c
    takes it and has a wider one; others are in float32 where they are still to be reduced."""
    made = {}
    wide = compute_dtype(dtype)
    for number, expression in plan.by_product.items():
        if number == plan.of_sum:
            kinds = [dtype, c_dtype or dtype]
        else:
            takes = [takers[name] for name, taken in plan.of_operands.items() if taken == number]
            kinds = [of if shape == grad.shape else wide for shape, of in takes]
        if c is not None:
            kinds.append(c.dtype)  # a product's result has C's dtype
        kind = reduce(torch.promote_types, kinds)
        its_c = c if c is None or c.dtype == kind else c.to(kind)
        operands = [named[name] for name in expression.operands]
        made[number] = fused_product(a, b, its_c, call._replace(out_dtype=kind, expression=expression), operands)
    nodes = plan.derivative.graph.nodes
    left = []
    for number in plan.by_torch:
        at_once = in_one_operation(nodes, number, named, dtype) if number == plan.of_sum else None
        if at_once is None:
            left.append(number)
        else:
            made[number] = at_once
    if left:
        make_sum = partial(_sum, a, b, c, call.alpha, call.beta, wide, call.how)
        frame = Frame(tuple(grad.shape), *axes, wide, grad.device)
        made.update(zip(left, evaluate(nodes, left, make_sum, named, frame), strict=True))
    return made
