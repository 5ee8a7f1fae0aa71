"""tt.grouped_matmul: tilewright.grouped_matmul with gradients, kept by torch.compile as one operator.

Both gradients of each form are grouped products of another: no copy is made of an operand, and nothing waits for the
host.
"""

from __future__ import annotations

from typing import Any

import torch

from ..arrays.eager import is_eager, runs_here, wants_gradients
from ..arrays.view import Operand
from ..errors import InvalidOperand
from ..grouped.call import FORMS
from ..grouped.ends import read_ends
from ..grouped.matmul import grouped_matmul as run
from .expression import compute_dtype
from .matmul import matmul
from .product import lies_turned
from .transforms import check_tensors, refuse_transforms, torch_dtype


def grouped_matmul(
    a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor | None = None, *, out_dtype: torch.dtype | None = None
) -> torch.Tensor:
    """One product for each group of rows, of columns or of k, with gradients; torch.compile keeps it as one operator.

    a, b, offs, out_dtype: as tilewright.grouped_matmul has them, CUDA tensors. On CPU tensors
    torch's own operations run, in their own precision and order, which promise nothing.

    Gradients reach a and b, in their dtype; those of rows, columns and k after the last group's end are 0. Raises as
    tilewright.grouped_matmul does.
    """
    check_tensors("tilewright.torch.grouped_matmul", a, b)
    if a.dtype in FLOAT8 or b.dtype in FLOAT8:
        raise InvalidOperand(f"a is {a.dtype} and b {b.dtype}: fp8 has no gradients here. Use "
                             "tilewright.grouped_matmul, which takes scales too.")  # fmt: skip
    if offs is None and a.dim() == b.dim() == 3:
        return matmul(a, b, out_dtype=out_dtype)
    refuse_transforms("tilewright.torch.grouped_matmul", a, b)
    if offs is None or not isinstance(offs, torch.Tensor):
        raise InvalidOperand(
            f"offs is of type {type(offs).__name__}; pass an int32 tensor on {a.device}: where each group ends."
        )
    out_dtype = torch_dtype(out_dtype)
    compiling = torch.compiler.is_compiling()
    if not compiling and runs_here(a) and not wants_gradients((a, b)) and is_eager((a, b, offs)):
        return run(a, b, offs, out_dtype=out_dtype)
    return torch.ops.tilewright.grouped_matmul(a, b, offs, out_dtype)


FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


@torch.library.custom_op("tilewright::grouped_matmul", mutates_args=(), device_types="cuda")
def grouped_op(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor, out_dtype: torch.dtype | None) -> torch.Tensor:
    """Run tilewright.grouped_matmul in the current stream."""
    return run(a, b, offs, out_dtype=out_dtype)


@grouped_op.register_kernel("cpu")
def _on_cpu(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor, out_dtype: torch.dtype | None) -> torch.Tensor:
    """The emulator's where one is in force; else torch's own products: there is no tilewright kernel for CPUs."""
    if runs_here(a):
        return run(a, b, offs, out_dtype=out_dtype)
    axis, dtype = _axis(a, b), compute_dtype(a.dtype)
    out = a.new_zeros(_shape(a, b, offs), dtype=out_dtype or a.dtype)
    what, total = {"m": ("rows of a", a.shape[0]), "n": ("columns of b", b.shape[1]), "k": ("k", a.shape[1])}[axis]
    ends = read_ends(offs, "offs", Operand("a", "torch", 0, tuple(a.shape), (), "f32", None), what, total)
    if ends.host is None or (axis != "k" and ends.groups != (b if axis == "m" else a).shape[0]):
        raise InvalidOperand(
            f"a {tuple(a.shape)}, b {tuple(b.shape)} and offs {tuple(offs.shape)} on {offs.device}: offs has an end "
            f"for each group, on {a.device}."
        )
    begin = 0
    for group, end in enumerate(ends.host.tolist()):
        if axis == "m":
            out[begin:end] = a[begin:end].to(dtype) @ b[group].to(dtype)
        elif axis == "n":
            out[:, begin:end] = a[group].to(dtype) @ b[:, begin:end].to(dtype)
        else:
            out[group] = a[:, begin:end].to(dtype) @ b[begin:end].to(dtype)
        begin = end
    return out


def _axis(a: torch.Tensor, b: torch.Tensor) -> str:
    axis = FORMS.get((a.dim(), b.dim()))
    if axis is None:
        raise InvalidOperand(f"a {tuple(a.shape)} and b {tuple(b.shape)}: with offs each has two or three axes, and "
                             "not both three.")  # fmt: skip
    return axis


def _shape(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor) -> list[Any]:
    torch._check(a.shape[-1] == b.shape[-2], lambda: f"a {tuple(a.shape)} and b {tuple(b.shape)} do not fit")
    return [*([offs.shape[0]] if _axis(a, b) == "k" else []), a.shape[-2], b.shape[-1]]


@grouped_op.register_fake
def _fake(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor, out_dtype: torch.dtype | None) -> torch.Tensor:
    return a.new_empty(_shape(a, b, offs), dtype=out_dtype or a.dtype)


# --- gradients --------------------------------------------------------------------------------------------------------


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    a, b, offs, _ = inputs
    needs = ctx.needs_input_grad
    ctx.save_for_backward(a if needs[1] else None, b if needs[0] else None, offs)
    ctx.dtype, ctx.turned = a.dtype, lies_turned(b)


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    """dA = dY B^T and dB = A^T dY, group by group; B's in the layout of B."""
    a, b, offs = ctx.saved_tensors
    narrow = grad if grad.dtype == ctx.dtype else grad.to(ctx.dtype)
    grad_a = grad_b = None
    if ctx.needs_input_grad[0]:
        grad_a = grouped_matmul(narrow, b.mT, offs)
    if ctx.needs_input_grad[1]:
        grad_b = grouped_matmul(narrow.mT, a, offs).mT if ctx.turned else grouped_matmul(a.mT, narrow, offs)
    return grad_a, grad_b, None, None


grouped_op.register_autograd(_backward, setup_context=_setup_context)
