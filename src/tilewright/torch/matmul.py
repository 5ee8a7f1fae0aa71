"""tt.matmul: tilewright.matmul with gradients, kept by torch.compile as one operator."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..arrays.eager import is_eager, runs_here, wants_gradients
from ..arrays.scalar import flag
from ..epilogue.expression import record_standard, recorded_of
from ..epilogue.recorded import parse
from ..errors import InvalidOperand
from ..gemm.fusion import check_activation, request
from ..gemm.matmul import matmul as run
from ..gemm.problem import check_precision
from ..words import Activation, Precision
from . import fused, product
from .distributed import sums_over_gpus
from .traced import traced_text
from .transforms import check_tensors, refuse_learned, refuse_transforms, torch_dtype

_NOT_HERE = frozenset(("out", "verify", "rung", "config"))
"""Options of tilewright.matmul that the operators do not have."""


_record = torch.compiler.disable(recorded_of)
"""Where torch.compile gave up a function, it is not to try again with what the function calls."""


@torch.compiler.assume_constant_result
def _standard_text(names: tuple[str, ...], activation: str | None) -> str:
    return record_standard(frozenset(names), activation).text


@torch.compiler.assume_constant_result
def _operands_of(text: str) -> tuple[str, ...]:
    return parse(text).operands


def matmul(
    a: torch.Tensor, b: torch.Tensor, *, c: torch.Tensor | None = None, alpha: float = 1.0, beta: float | None = None,
    out_dtype: torch.dtype | None = None, bias: torch.Tensor | None = None,
    activation: Activation | None = None, residual: torch.Tensor | None = None,
    row_scale: torch.Tensor | None = None, col_scale: torch.Tensor | None = None,
    epilogue: Callable[..., Any] | None = None, precision: Precision = "ieee", deterministic: bool = False,
    batch_invariant: bool = False, **operands: Any,
) -> torch.Tensor:  # fmt: skip
    """alpha * (a @ b) + beta * c with what is fused after it, and gradients; torch.compile keeps it as one operator.

    a [..., m, k], b [..., k, n]: float32, float16 or bfloat16 CUDA tensors of one dtype, any strides; batch axes
    broadcast. c broadcasts to the result and has its dtype. bias, activation, residual, row_scale, col_scale, epilogue
    and its operands, precision, deterministic, batch_invariant: as tilewright.matmul has them. On CPU tensors torch's
    own operations run, in their own precision and order, which promise nothing.

    The gradients' products have the same precision, and are deterministic if the product is. batch_invariant makes
    a's gradient so too; b's is a sum over all rows, and what is broadcast is summed by torch.
    Gradients reach a, b, c and every tensor among the operands. After an epilogue whose derivative needs the sum, the
    backward pass makes it again, by a product with that derivative as its epilogue; at a tie of maximum or minimum each
    side gets half. Raises as tilewright.matmul does.
    """
    check_tensors("tilewright.torch.matmul", a, b, optional=(c,))
    out_dtype = torch_dtype(out_dtype)
    beta = (0.0 if c is None else 1.0) if beta is None else beta
    if operands and not _NOT_HERE.isdisjoint(operands):  # else they would work until a gradient is asked for
        name = next(name for name in operands if name in _NOT_HERE)
        raise InvalidOperand(
            f"tilewright.torch.matmul has no option {name}. tilewright.matmul has it, without gradients."
        )
    compiling = torch.compiler.is_compiling()
    if type(alpha) is not float or type(beta) is not float:
        refuse_learned(alpha=alpha, beta=beta)
        if not compiling:
            alpha, beta = (x.item() if isinstance(x, torch.Tensor) else x for x in (alpha, beta))
    if c is None and beta != 0:
        raise InvalidOperand(f"beta={beta} without c: there is nothing to scale. Pass c, or omit beta.")
    if beta == 0:
        c = None
    if not isinstance(precision, str) or precision != "ieee":
        check_precision(precision, "f32" if a.dtype == torch.float32 else str(a.dtype))
    asked = request(epilogue, activation, bias, residual, row_scale, col_scale, operands)
    tensors = [a, b] if c is None else [a, b, c]
    if asked is not None:
        tensors += [x for x in asked.operands.values() if isinstance(x, torch.Tensor)]
    refuse_transforms("tilewright.torch.matmul", *tensors)
    if not compiling and runs_here(a) and not wants_gradients(tensors) and is_eager(tensors):
        return run(
            a, b, c=c, alpha=alpha, beta=beta, out_dtype=out_dtype, bias=bias, activation=activation,
            residual=residual, row_scale=row_scale, col_scale=col_scale, epilogue=epilogue, precision=precision,
            deterministic=deterministic, batch_invariant=batch_invariant, **operands,
        )  # fmt: skip
    if asked is not None and epilogue is activation is row_scale is col_scale is None and sums_over_gpus(a, b):
        # parts of a sum have no bias each: the product stays Partial, and torch adds
        result = matmul(
            a, b, c=c, alpha=alpha, beta=beta, out_dtype=out_dtype, precision=precision, deterministic=deterministic
        )
        return sum((x for x in (bias, residual) if x is not None), start=result)
    how = product.How(precision, flag(deterministic, "deterministic"), flag(batch_invariant, "batch_invariant"))
    if asked is None:
        if compiling:
            return torch.ops.tilewright.matmul(a, b, c, alpha, beta, out_dtype, *how)
        return product.product(a, b, c, alpha, beta, out_dtype, how)
    given = asked.operands
    if epilogue is None:
        check_activation(activation)
    else:
        known: dict[str, Any] = {name: x if isinstance(x, numbers.Real) else None for name, x in given.items()}
    laid = _laid(given, a, b)
    if compiling:  # the operator's fake kernel looks whether operands fit
        if epilogue is None:
            text = _standard_text(tuple(given), activation)
        elif torch.compiler.is_dynamo_compiling():
            text = traced_text(epilogue, known)
        else:
            text = _record(epilogue, known).text
        listed = [laid[name] for name in _operands_of(text)]
        return torch.ops.tilewright.fused_matmul(a, b, c, alpha, beta, out_dtype, text, listed, *how)
    expression = record_standard(frozenset(given), activation) if epilogue is None else _record(epilogue, known)
    _check(laid, given, tuple(product.product_shape(a, b)), epilogue is not None)
    call = fused.Call(alpha, beta, out_dtype, expression, how)
    return fused.fused_product(a, b, c, call, [laid[name] for name in expression.operands])


def _laid(operands: Mapping[str, Any], a: torch.Tensor, b: torch.Tensor) -> Mapping[str, Any]:
    """The operands as they broadcast to the result: a row_scale of one number per row gets the axis of the columns."""
    scale = operands.get("row_scale")
    if not isinstance(scale, torch.Tensor) or b.dim() < 2 or scale.dim() == 0:
        return operands
    rows = a.shape[-2] if a.dim() > 1 else 1
    if scale.dim() > 1 and scale.shape[-1] == 1 and scale.shape[-2] in (1, rows):
        return operands
    return {**operands, "row_scale": scale.unsqueeze(-1)}


def _check(operands: Mapping[str, Any], given: Mapping[str, Any], shape: tuple[int, ...], may_be_numbers: bool) -> None:
    """Raises InvalidOperand, which names shapes as they were `given`."""
    for name, operand in operands.items():
        if isinstance(operand, torch.Tensor) and operand.is_floating_point():
            if operand.shape != shape[len(shape) - operand.dim() :]:
                fused.check_over_result(name, operand, shape, given[name].shape)
        elif not (may_be_numbers and isinstance(operand, numbers.Real)):
            kind = operand.dtype if isinstance(operand, torch.Tensor) else type(operand).__name__
            raise InvalidOperand(f"{name} is a {kind}, not a tensor of floats.")
