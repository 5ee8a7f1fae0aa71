"""activation(x @ weight.T + bias) in eager mode on a GPU, with gradients, at the least host time.

What was called before takes no view, no plan and no operator, forward or backward (gemm/warm_layer.py). What has to be
seen, cast or recorded by torch is left to `matmul`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from ..arrays.eager import (
    call_backward_itself,
    is_backward_seen,
    is_batched,
    is_eager,
    is_out_of_the_way,
    is_watched,
    past_transforms,
    wants_gradients,
)
from ..epilogue.expression import record_standard
from ..gemm.matmul import matmul as run
from ..gemm.warm_layer import (
    GRAD,
    WarmLayer,
    find_layer,
    product_of,
    remember_derivative,
    remember_gradients,
    remember_layer,
    warm_derivative,
    warm_gradients,
)
from ..run.warm import MISS
from . import fused
from .backward import KEPT_FROM, activate, before_relu, plan_backward
from .product import How, gradient_of_a, gradient_of_b, reduced
from .transforms import transforms_active

DTYPES = (torch.float32, torch.float16, torch.bfloat16)

Options = tuple[Any, ...]
"""As tilewright.gemm.warm.warm_matmul takes them."""
Found = tuple[torch.Tensor | None, torch.Tensor | None]


def again(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: str | None, options: Options
) -> torch.Tensor | None:
    """The result of a layer like those of late; None for any other, and where anything has to see, cast or record
    more."""
    if not is_out_of_the_way():
        return None
    # none was noted in torch.func's transforms
    known = find_layer(x, weight, bias, activation, options, only_lately=True)
    return None if known is None else _repeated(x, weight, bias, known)


def at_once(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: str | None, options: Options
) -> torch.Tensor | None:
    """The layer's result; None where anything has to see or record more."""
    if is_watched() or transforms_active():
        return None
    tensors = (x, weight) if bias is None else (x, weight, bias)
    known = find_layer(x, weight, bias, activation, options)  # none is there of what is refused below
    if known is not None and (result := _repeated(x, weight, bias, known)) is not None:
        return result
    if x.dtype not in DTYPES or weight.dim() != 2 or (bias is not None and bias.dim() != 1) or not is_eager(tensors):
        return None
    wanted = wants_gradients(tensors)
    if wanted and activation is not None and activation != "relu" and weight.shape[1] >= KEPT_FROM:
        got = at_once(x, weight, bias, None, options)
        return None if got is None else activate(activation, got)
    known = new_layer(x, weight, bias, activation, options)
    known.wanted = wanted
    if wanted:
        result = _differentiable(x, weight, bias, known)
        with torch.no_grad():  # as it was made
            known.product = product_of(x, weight, bias, activation, options)
    else:
        result = _whole(x, weight, bias, known.call)
        known.product = product_of(x, weight, bias, activation, options)
    if known.product is not None:
        remember_layer(known, x, weight, bias, activation, options)
    return result


def _repeated(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, known: WarmLayer
) -> torch.Tensor | None:
    if known.wanted:
        return _differentiable(x, weight, bias, known)
    result = MISS if known.product is None else known.product(x, weight, bias)
    return None if result is MISS else result


def new_layer(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: str | None, options: Options
) -> WarmLayer:
    """A layer that was not made before."""
    like_bias = None if bias is None else (bias.shape, bias.dtype)
    call = _Call(x.shape, x.dtype, weight.shape, like_bias, activation, options)
    return WarmLayer(call)


def _whole(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, call: _Call) -> torch.Tensor:
    """The layer's result by a product."""
    _, deterministic, batch_invariant, _, _, precision = call.options
    activation: Any = call.activation
    return run(
        x, weight.t(), bias=bias, activation=activation, deterministic=deterministic, batch_invariant=batch_invariant,
        precision=precision,
    )  # fmt: skip


def layer_of(known: WarmLayer, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """activation(x @ weight.T), without gradients or bias, for one who keeps `known`."""
    result = MISS if known.product is None else known.product(x, weight)
    if result is MISS:
        result = _whole(x, weight, None, known.call)
        known.product = product_of(x, weight, None, known.call.activation, known.call.options)
    found: torch.Tensor = result
    return found


def gradients_of(known: Any, grad: torch.Tensor, x: torch.Tensor | None, weight: torch.Tensor | None) -> Any:
    """(grad @ weight, grad.T @ x) of such a layer: None for what is not asked for. x is None where weight needs no
    gradient, weight where x needs none."""
    if x is None and weight is None:
        return None, None
    found = warm_gradients(known, grad, x, weight)
    return _made(known, grad, x, weight) if found is MISS else found


class _Call(NamedTuple):
    """The part of the call that a gradient has to know, besides tensors."""

    shape: tuple[int, ...]
    """x's."""
    dtype: torch.dtype
    """x's and weight's."""
    features: tuple[int, int]
    """The weight's shape."""
    bias: tuple[tuple[int, ...], torch.dtype] | None
    activation: str | None
    options: Options

    @property
    def how(self) -> How:
        _, deterministic, batch_invariant, _, _, precision = self.options
        return How(precision, deterministic, batch_invariant)

    @property
    def product(self) -> fused.Call:
        """The same as a product of x and weight.T; of a relu that the result decides only what is inside."""
        names = frozenset(()) if self.bias is None else frozenset(("bias",))
        expression = record_standard(names, self.activation)
        return fused.Call(1.0, 0.0, None, before_relu(expression) or expression, self.how)


class TilewrightLinear(torch.autograd.Function):
    """The layer with gradients. After a relu they read the result; after another activation they make the sum again,
    where it is short (backward.KEPT_FROM)."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, known: WarmLayer
    ) -> torch.Tensor:
        result = MISS if known.product is None else known.product(x, weight, bias)
        if result is MISS:
            result = _whole(x, weight, bias, known.call)
        activation, needs = known.call.activation, ctx.needs_input_grad
        if activation is None:
            ctx.save_for_backward(x if needs[1] else None, weight if needs[0] else None)
        elif activation == "relu":
            ctx.save_for_backward(x if needs[1] else None, weight if needs[0] else None, result)
        else:
            ctx.save_for_backward(x, weight, bias)
        ctx.known = known
        return result

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        x, weight, *other = ctx.saved_tensors
        known, needs = ctx.known, ctx.needs_input_grad
        call = known.call
        once = not is_backward_seen()
        if call.activation == "relu":
            grad = torch.ops.aten.threshold_backward.default(grad, other[0], 0)
        elif call.activation is not None:
            if is_batched(grad):  # torch's operations then make the derivative
                return _as_fused(call, grad, x, weight, other[0], needs)
            made = warm_derivative(grad, x, weight, other[0], call.activation, call.options) if once else MISS
            grad = _before_activation(call, grad, x, weight, other[0], once) if made is MISS else made
            x, weight = x if needs[1] else None, weight if needs[0] else None
        of_bias = reduced(grad, *call.bias) if needs[2] else None
        if not once:
            return *_as_products(call, grad, x, weight), of_bias, None
        found = warm_gradients(known, grad, x, weight)
        return *(_made(known, grad, x, weight) if found is MISS else found), of_bias, None


call_backward_itself(TilewrightLinear)
_differentiable = past_transforms(TilewrightLinear)


def _before_activation(
    call: _Call, grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, once: bool
) -> torch.Tensor:
    """The gradient of what the activation got: its derivative is the epilogue of a product that makes the sum again.

    `once`: nothing differentiates it again or watches; it is then remembered.
    """
    product = call.product
    plan = plan_backward(product.expression, True, (True,) * len(product.expression.operands))
    assert plan.of_sum is not None
    expression = plan.by_product[plan.of_sum]
    given = {"bias": bias, GRAD: grad}
    again = product._replace(out_dtype=call.dtype, expression=expression)
    result = fused.fused_product(x, weight.t(), None, again, [given[name] for name in expression.operands])
    if once and call.activation is not None:
        used = bias if "bias" in expression.operands else None
        remember_derivative(grad, x, weight, used, call.activation, call.options, expression, call.dtype)
    return result


def _as_fused(
    call: _Call, grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: Any, needs: tuple[bool, ...]
) -> tuple[Any, ...]:
    operands, likes = ((), ()) if call.bias is None else ((bias,), (call.bias,))
    like = ((call.shape, call.dtype), (call.features[::-1], call.dtype), None, *likes)
    of_x, of_b, _, of_operands = fused.gradients(
        call.product, (x, weight.t(), None, *operands), like, True, grad, (needs[0], needs[1], False),
        (needs[2],) * len(operands),
    )  # fmt: skip
    return of_x, None if of_b is None else of_b.t(), of_operands[0] if of_operands else None, None


def _as_products(call: _Call, grad: torch.Tensor, x: Any, weight: Any) -> Found:
    """Gradients of x and weight by products that have gradients themselves. x is None where weight needs none, weight
    where x needs none."""
    narrow = grad if grad.dtype == call.dtype else grad.to(call.dtype)
    of_x = None if weight is None else gradient_of_a(call.shape, weight.t(), narrow, 1.0, call.how)
    if x is None:
        return of_x, None
    return of_x, gradient_of_b(x, call.features[::-1], True, narrow, 1.0, call.how).t()


def _made(known: WarmLayer, grad: torch.Tensor, x: Any, weight: Any) -> Found:
    """The same, now, and remembered."""
    call: _Call = known.call
    if not is_eager([one for one in (grad, x, weight) if one is not None]):
        return _as_products(call, grad, x, weight)
    _, deterministic, batch_invariant, _, _, precision = call.options
    narrow = grad if grad.dtype == call.dtype else grad.to(call.dtype)
    stays = narrow is grad
    of_x = of_weight = made_x = made_weight = None
    if weight is not None:
        of_x = run(narrow, weight, deterministic=deterministic, batch_invariant=batch_invariant, precision=precision)
        made_x = narrow, weight, (None, deterministic, batch_invariant, None, None, precision)
    if x is not None:
        rows, by = narrow, x
        if x.dim() != 2:
            many = math.prod(call.shape[:-1])  # -1 would not be known where there are no columns
            rows, by = narrow.reshape(many, call.features[0]), x.reshape(many, call.features[1])
            stays = stays and rows.data_ptr() == grad.data_ptr() and by.data_ptr() == x.data_ptr()
        of_weight = run(rows.t(), by, deterministic=deterministic, precision=precision)
        made_weight = rows.t(), by, (None, deterministic, False, None, None, precision)
    if stays:  # what was multiplied lies where grad and x do
        remember_gradients(known, grad, x, weight, made_x, made_weight)
    return of_x, of_weight
