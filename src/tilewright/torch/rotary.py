"""Rotary positions of q and k, as Llama's models have them, with gradients: one launch for each, both ways."""

from __future__ import annotations

from functools import lru_cache
from types import CellType, FunctionType
from typing import Any

import torch
from torch import nn

from ..arrays.eager import is_eager, is_watched, past_transforms, runs_here
from ..attn.rotary import turn
from .layer import DTYPES
from .said import body, says
from .transforms import check_tensors, transforms_active


def rotary(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(q, k) turned by their positions: x * cos + rotate_half(x) * sin, in float32, rounded once.

    q, k: [batch, heads, rows, d], of any numbers of heads; cos, sin: [rows, d], or [batch or 1, rows, d], in q's dtype
    or float32. rotate_half(x) is the right half of x's last axis, negated, before the left one. Results lie as the
    results of elementwise operations do. torch's own operations compute what no kernel does: other dtypes and devices,
    an odd d, cos and sin that require gradients, and whatever torch compiles, traces or transforms.
    """
    check_tensors("tilewright.torch.rotary", q, k, cos, sin)
    if _fits(q, k, cos, sin):
        turned: tuple[torch.Tensor, torch.Tensor] = _differentiable(q, k, cos, sin)
        return turned
    return by_torch(q, cos, sin), by_torch(k, cos, sin)


def by_torch(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, back: bool = False) -> torch.Tensor:
    """x turned by torch's operations, which have gradients; `back`: the transposed turn."""
    cos, sin = (angle[:, None] if angle.dim() == 3 else angle for angle in (cos, sin))
    if back:
        left, right = (x * sin).chunk(2, -1)
        return (x * cos + torch.cat((right, -left), -1)).to(x.dtype)
    left, right = x.chunk(2, -1)
    return (x * cos + torch.cat((-right, left), -1) * sin).to(x.dtype)


def _fits(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> bool:
    if transforms_active() or not is_eager((q, k, cos, sin)) or not runs_here(q):
        return False
    if q.dtype not in DTYPES or q.dim() != 4 or k.dim() != 4 or cos.requires_grad or sin.requires_grad:
        return False
    batch, _, rows, d = q.shape
    if k.dtype != q.dtype or k.device != q.device or (k.shape[0], *k.shape[2:]) != (batch, rows, d) or d % 2:
        return False
    shapes = (rows, d), (1, rows, d), (batch, rows, d)
    alike = cos.dtype == sin.dtype in (q.dtype, torch.float32) and cos.device == sin.device == q.device
    return alike and cos.shape in shapes and sin.shape in shapes


class TilewrightRotary(torch.autograd.Function):
    """The turn. Its gradient is the transposed one."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.save_for_backward(cos, sin)
        ctx.set_materialize_grads(False)
        cos, sin = _along(cos), _along(sin)
        return turn(_along(q), cos, sin), turn(_along(k), cos, sin)

    @staticmethod
    def backward(ctx: Any, of_q: torch.Tensor | None, of_k: torch.Tensor | None) -> tuple[Any, ...]:
        cos, sin = ctx.saved_tensors
        given = [one for one in (of_q, of_k) if one is not None]
        if torch.is_grad_enabled() or is_watched() or (given and not is_eager(given)):
            return *(None if x is None else by_torch(x, cos, sin, True) for x in (of_q, of_k)), None, None
        cos, sin = _along(cos), _along(sin)
        return *(None if x is None else turn(_along(x), cos, sin, True) for x in (of_q, of_k)), None, None


_differentiable = past_transforms(TilewrightRotary)


def _along(x: torch.Tensor) -> torch.Tensor:
    """x with neighbours along its last axis next to each other."""
    return x if x.stride(-1) == 1 else x.contiguous()


# --- a model's modules ------------------------------------------------------------------------------------------------

_NAME = "apply_rotary_pos_emb"
"""What models of transformers call it by,"""
_BODY = body("""
cos = cos.unsqueeze(unsqueeze_dim)
sin = sin.unsqueeze(unsqueeze_dim)
q_embed = (q * cos) + (rotate_half(q) * sin)
k_embed = (k * cos) + (rotate_half(k) * sin)
return q_embed, k_embed
""")
"""and what it says there, next to this:"""
_HALF = body("""
x1 = x[..., : x.shape[-1] // 2]
x2 = x[..., x.shape[-1] // 2 :]
return torch.cat((-x2, x1), dim=-1)
""")
_ARGUMENTS = (
    ["q", "k", "cos", "sin", "unsqueeze_dim"], ["q", "k", "cos", "sin", "position_ids", "unsqueeze_dim"],
)  # fmt: skip


@lru_cache(maxsize=256)
def _turned_forward(forward: Any) -> FunctionType | None:
    """A copy of a forward method whose rotary positions are `rotary`; None of one that says something else."""
    if not isinstance(forward, FunctionType):
        return None
    if within := getattr(forward, "__wrapped__", None):  # in a decorator, such as one that renames an argument
        turned, cells = _turned_forward(within), forward.__closure__ or ()
        places = [n for n, cell in enumerate(cells) if _content(cell) is within]
        if turned is None or not places:
            return None
        cells = tuple(CellType(turned) if n in places else cell for n, cell in enumerate(cells))
        copy = _copied(forward, forward.__globals__, cells)
        copy.__dict__["__wrapped__"] = turned
        return copy
    if _NAME not in forward.__code__.co_names:
        return None
    names = forward.__globals__
    theirs: Any = names.get(_NAME)
    half = names.get("rotate_half")
    if not says(theirs, _ARGUMENTS, [_BODY]) or not says(half, [["x"]], [_HALF]):
        return None

    def apply(
        q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *rest: Any, **more: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if rest or more or torch.compiler.is_compiling() or cos.dtype != q.dtype or not _fits(q, k, cos, sin):
            found: tuple[torch.Tensor, torch.Tensor] = theirs(q, k, cos, sin, *rest, **more)
            return found
        return rotary(q, k, cos, sin)

    return _copied(forward, {**names, _NAME: apply}, forward.__closure__)


def _content(cell: CellType) -> Any:
    """What a cell holds; None of an empty one, whose name nothing was bound to yet, or was deleted."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _copied(forward: FunctionType, names: dict[str, Any], cells: tuple[CellType, ...] | None) -> FunctionType:
    copy = FunctionType(forward.__code__, names, forward.__name__, forward.__defaults__, cells)
    copy.__kwdefaults__, copy.__dict__ = forward.__kwdefaults__, dict(forward.__dict__)
    return copy


def fused_turn(module: nn.Module) -> Any:
    """A forward method whose rotary positions are `rotary`, for a module that says them so; None for any other."""
    return _turned_forward(type(module).forward)
