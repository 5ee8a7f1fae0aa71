"""Products in the code that torch.compile writes: called directly, into memory that it plans.

By itself it calls operators through torch's dispatcher, which takes more of the host than the product's own call, and
takes their results not to be aligned. That is what happens where a private name of torch used here is gone, and for a
product with c.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

from ..epilogue.recorded import parse
from ..gemm.matmul import matmul as run

_done = False


def product_into(
    a: torch.Tensor, b: torch.Tensor, *operands: torch.Tensor, alpha: float, expression: str, precision: str,
    deterministic: bool, batch_invariant: bool, out: torch.Tensor,
) -> None:  # fmt: skip
    """`expression` ("": none) of alpha * (a @ b) and its operands, as the operators make it, into `out`.

    Code that torch keeps on disk calls this: its name and arguments stay.
    """
    if not a.is_cuda:
        how = precision, deterministic, batch_invariant
        if expression:
            out.copy_(torch.ops.tilewright.fused_matmul(a, b, None, alpha, 0.0, out.dtype, expression, operands, *how))
        else:
            out.copy_(torch.ops.tilewright.matmul(a, b, None, alpha, 0.0, out.dtype, *how))
        return
    given: dict[str, Any] = {}
    if expression:
        recorded = parse(expression)
        given = {"epilogue": recorded, **dict(zip(recorded.operands, operands, strict=True))}
    with torch.no_grad():
        run(
            a, b, out=out, alpha=alpha, precision=precision, deterministic=deterministic,  # type: ignore[arg-type]
            batch_invariant=batch_invariant, **given,
        )  # fmt: skip


def lower_products() -> None:
    """Tell what writes torch's code, where it is loaded, how to call products. Fake kernels call this, since they are
    asked before any code is written."""
    global _done
    if _done or "torch._inductor.lowering" not in sys.modules:
        return
    _done = True
    try:
        _register()
    except (ImportError, AttributeError, TypeError):
        return


def _register() -> None:
    from torch._inductor import ir
    from torch._inductor.lowering import fallback_handler, register_lowering
    from torch._inductor.virtualized import V

    class Product(ir.ExternKernelOut):
        def codegen(self, wrapper: Any) -> None:
            wrapper.add_import_once(f"from {__name__} import {product_into.__name__}")
            super().codegen(wrapper)

    def product(
        operator: Any, a: Any, b: Any, alpha: float, expression: str, operands: Sequence[Any], how: Sequence[Any]
    ) -> Any:
        like = V.graph.current_node.meta["val"]
        inputs = [ir.ExternKernel.realize_input(x) for x in (a, b, *operands)]
        shape, strides = map(ir.convert_shape_to_inductor, (like.shape, like.stride()))
        layout = ir.FixedLayout(a.get_device(), like.dtype, shape, strides)
        names = ("precision", "deterministic", "batch_invariant")
        given = {"alpha": alpha, "expression": expression, **dict(zip(names, how, strict=True))}
        return ir.TensorBox.create(
            Product(layout, inputs, (), given, python_kernel_name=product_into.__name__, op_overload=operator)
        )

    plain, fused = torch.ops.tilewright.matmul.default, torch.ops.tilewright.fused_matmul.default
    otherwise = {operator: fallback_handler(operator) for operator in (plain, fused)}

    @register_lowering(plain, type_promotion_kind=None)
    def _(a: Any, b: Any, c: Any, alpha: float, beta: float, out_dtype: Any, *how: Any) -> Any:
        if c is not None or V.graph.cpp_wrapper:
            return otherwise[plain](a, b, c, alpha, beta, out_dtype, *how)
        return product(plain, a, b, alpha, "", (), how)

    @register_lowering(fused, type_promotion_kind=None)
    def _(
        a: Any, b: Any, c: Any, alpha: float, beta: float, out_dtype: Any, expression: str, operands: Any, *how: Any
    ) -> Any:
        if c is not None or V.graph.cpp_wrapper:
            return otherwise[fused](a, b, c, alpha, beta, out_dtype, expression, operands, *how)
        return product(fused, a, b, alpha, expression, operands, how)
