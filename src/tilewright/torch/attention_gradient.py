"""Attention's operators for torch and their gradients, which kernels make of operands, result and LSE.

Three operators, which torch.compile keeps in its graph: `attention`, `attention_with_lse`, which also gives what a
gradient needs and takes packed batches, and `attention_backward`. Eager calls go past them to the same functions.

Torch's own operators make the gradient where kernels have none: the gradient of a gradient, and that of a bias. They
take memory for rows of q x rows of k there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from ..arrays.eager import call_backward_itself, is_backward_seen, is_batched, past_transforms
from ..attn.attention import attention as run
from ..attn.attention import attention_varlen as run_varlen
from ..attn.backward import attention_backward as run_backward
from ..attn.score import traced
from ..errors import InvalidOperand
from ..run.warm import MISS
from . import attention_warm
from .attention_warm import Known
from .expression import Frame, evaluate

_torchs = functional.scaled_dot_product_attention
"""Torch's own, whatever stands in its place later."""


class Options(NamedTuple):
    """The numbers of a call, as operators take them."""

    is_causal: bool
    scale: float
    left: int
    right: int
    softcap: float

    def words(self) -> dict[str, Any]:
        """The options as tilewright.attention takes them."""
        window = None if self.left < 0 and self.right < 0 else (self.left, self.right)
        return {"is_causal": self.is_causal, "scale": self.scale, "window": window, "softcap": self.softcap}


_deterministic = torch.are_deterministic_algorithms_enabled
Score = Callable[..., Any] | None
_OPTIONS = "bool is_causal, float scale, int left, int right, float softcap"


def rows_outside_heads(q: Tensor) -> bool:
    """Return whether [batch, heads, rows, d] lies as [batch, rows, heads, d]; results then do too."""
    return q.shape[1] > 1 and q.shape[2] > 1 and q.stride(1) < q.stride(2)


def empty(like: Tensor, outside: bool, columns: int | None = None) -> Tensor:
    """A result of like's shape, or with other columns: dense, with its rows outside its heads or not.

    No view of another tensor, which torch would not let be changed in place where it has a gradient.
    """
    order = (0, 2, 1, 3) if outside else (0, 1, 2, 3)
    shape = like.shape if columns is None else (*like.shape[:3], columns)
    return torch.empty_permuted(shape, order, dtype=like.dtype, device=like.device)


def direct(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, options: Options, *, score: Score = None,
    return_lse: bool = False,
) -> Any:  # fmt: skip
    """The result, or it and the LSE; it lies as q does."""
    words = options.words()
    if not rows_outside_heads(q):
        return run(q, k, v, bias=bias, score=score, return_lse=return_lse, **words)
    result = empty(q, True, v.shape[3])
    turned, out = (x.transpose(1, 2) for x in (q, k, v)), result.transpose(1, 2)
    found = run(*turned, bias=bias, score=score, return_lse=return_lse, layout="bshd", out=out, **words)
    return (result, found[1]) if return_lse else result


def _with_lse(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, starts: tuple[Tensor, Tensor] | None, longest: int,
    options: Options, score: Score = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    if starts is None:
        return direct(q, k, v, bias, options, score=score, return_lse=True)
    most = None if longest < 0 else longest
    return run_varlen(q, k, v, *starts, most, score=score, return_lse=True, **options.words())


def _backward(
    grad: Tensor, grad_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, out: Tensor,
    lse: Tensor, starts: tuple[Tensor, Tensor] | None, options: Options, deterministic: bool, score: Score = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    words: dict[str, Any] = options.words() | {
        "deterministic": deterministic, "score": score, "grad_lse": grad_lse,
    }  # fmt: skip
    if starts is not None:
        return run_backward(grad, q, k, v, out, lse, cu_seqlens_q=starts[0], cu_seqlens_k=starts[1], **words)
    if not rows_outside_heads(q):
        return run_backward(grad, q, k, v, out, lse, bias=bias, **words)
    grad, q, k, v, out = (x.transpose(1, 2) for x in (grad, q, k, v, out))
    found = run_backward(grad, q, k, v, out, lse, bias=bias, layout="bshd", **words)
    dq, dk, dv = (x.transpose(1, 2) for x in found)
    return dq, dk, dv


# --- by torch's operators --------------------------------------------------------------------------------------------


def recompute(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, options: Options, with_lse: bool = False,
    score: Score = None, twice: bool = False,
) -> tuple[Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """The same result by torch's operators; where rows may see no key, [..., rows, 1] of bool: which see one; the LSE.

    Rows that see none hold anything finite. `twice`: its gradient has one, as those of torch's fused kernels have not.
    """
    is_causal, scale, left, right, softcap = options
    sq, sk = q.shape[2], k.shape[2]
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = (x.repeat_interleave(groups, dim=1) for x in (k, v))
    right = 0 if is_causal else right
    steps = twice or softcap != 0 or with_lse or score is not None
    if bias is None and not steps and left < 0 and (right < 0 or (right == 0 and sq == sk)):
        found = _torchs(q, k, v, is_causal=right == 0, scale=scale)
        return found, None, None
    place = torch.arange(sq, device=q.device)[:, None] + (sk - sq)
    key = torch.arange(sk, device=q.device)[None, :]
    seen = torch.ones((sq, sk), dtype=torch.bool, device=q.device)
    if left >= 0:
        seen &= key >= place - left
    if right >= 0:
        seen &= key <= place + right
    if score is not None:
        return _recompute_modified(scale * (q.float() @ k.float().transpose(2, 3)), v, bias, seen, softcap, score)
    if bias is not None:
        seen = seen & (bias != -math.inf)
    rows = seen.any(-1, keepdim=True)
    seen = seen | ~rows  # an empty row's softmax is NaN, and so would be its gradient
    added = torch.zeros((), dtype=q.dtype, device=q.device) if bias is None else bias.masked_fill(bias == -math.inf, 0)
    if not steps:
        mask = torch.where(seen, added.to(q.dtype), torch.full((), -math.inf, dtype=q.dtype, device=q.device))
        mask = mask.expand(*q.shape[:3], sk)
        return _torchs(q, k, v, attn_mask=mask, scale=scale), rows, None
    scores = scale * (q.float() @ k.float().transpose(2, 3))
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    scores = (scores + added.float()).masked_fill(~seen, -math.inf)
    lse = torch.logsumexp(scores, -1) if with_lse else None
    return (torch.softmax(scores, -1) @ v.float()).to(q.dtype), rows, lse


def _recompute_modified(
    scores: Tensor, v: Tensor, bias: Tensor | None, seen: Tensor, softcap: float, score: Callable[..., Any]
) -> tuple[Tensor, Tensor, Tensor]:
    """The same of scaled scores that a function changes, by torch's operations; `seen`: what masks leave."""
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    scores = scores if bias is None else scores + bias.float()
    nodes, shape = traced(score), tuple(scores.shape)
    places = {
        name: torch.arange(extent, device=scores.device).view([extent if n == axis else 1 for n in range(4)])
        for axis, (name, extent) in enumerate(zip("bhij", shape, strict=True))
    }
    frame = Frame(shape, True, True, torch.float32, scores.device)
    (changed,) = evaluate(nodes, [len(nodes) - 1], lambda: scores, places, frame)
    seen = seen & (changed != -math.inf)
    rows = seen.any(-1, keepdim=True)
    changed = changed.masked_fill(~seen, -math.inf).masked_fill(~rows, 0.0)
    return (torch.softmax(changed, -1) @ v.float()).to(v.dtype), rows, torch.logsumexp(changed, -1)


def _by_torch(
    grad: Tensor, grad_lse: Tensor | None, given: Sequence[Tensor | None], needs: Sequence[bool], options: Options,
    score: Score,
) -> list[Any]:  # fmt: skip
    """The gradients of q, k, v and bias that are needed."""
    asked = [n for n in range(4) if needs[n]]
    again = torch.is_grad_enabled()  # a gradient of the gradient is asked for
    # views, so that one tensor that is q and k gets the gradient of each
    leaves: list[Any] = [None if x is None else x.view_as(x) if again else x.detach() for x in given]
    if not again:
        for n in asked:
            leaves[n].requires_grad_()
    with torch.enable_grad():
        q, k, v, bias = leaves
        out, seen, lse = recompute(q, k, v, bias, options, grad_lse is not None, score, again)
    results, grads = [out], [grad if seen is None else grad.masked_fill(~seen, 0)]
    if grad_lse is not None:
        assert lse is not None
        results.append(lse)
        grads.append(grad_lse if seen is None else grad_lse.masked_fill(~seen.squeeze(-1), 0))
    found = torch.autograd.grad(results, [leaves[n] for n in asked], grads, create_graph=again)
    by_input: list[Any] = [None] * 4
    for n, gradient in zip(asked, found, strict=True):
        by_input[n] = gradient
    return by_input


def _gradients(
    backward: Callable[..., Any], grad: Tensor | None, grad_lse: Tensor | None, given: Sequence[Any],
    needs: Sequence[bool], options: Options, score: Score = None,
) -> list[Any]:  # fmt: skip
    """The gradients of q, k, v and bias. `given`: these, out, the LSE and, of packed batches, both starts."""
    q, k, v, bias, out, lse, *starts = given
    packed = (starts[0], starts[1]) if starts and starts[0] is not None else None
    if grad is None:
        grad = torch.zeros_like(out)
    if torch.is_grad_enabled() or needs[3]:
        if packed is not None:
            raise InvalidOperand(
                "attention with entries of different lengths has no gradient of its gradient. Omit create_graph=True, "
                "or differentiate once."
            )
        return _by_torch(grad, grad_lse, (q, k, v, bias), needs, options, score)
    if score is None and any(one is not None and is_batched(one) for one in (grad, grad_lse)):
        backward = _backward_by_operator  # which torch runs for each of the batch
    found = backward(grad, grad_lse, q, k, v, bias, out, lse, packed, options, _deterministic(), score)
    return [*(x if need else None for x, need in zip(found, needs, strict=False)), None]


# --- operators -------------------------------------------------------------------------------------------------------


def _operator(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, *options: Any) -> Tensor:
    with torch.no_grad():
        return direct(q, k, v, bias, Options(*options))


def _operator_with_lse(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, starts_q: Tensor | None, starts_k: Tensor | None,
    longest: int, *options: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    with torch.no_grad():
        return _with_lse(q, k, v, bias, _pair(starts_q, starts_k), longest, Options(*options))


def _operator_backward(
    grad: Tensor, grad_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, out: Tensor,
    lse: Tensor, starts_q: Tensor | None, starts_k: Tensor | None, deterministic: bool, *options: Any,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    with torch.no_grad():
        starts = _pair(starts_q, starts_k)
        return _backward(grad, grad_lse, q, k, v, bias, out, lse, starts, Options(*options), deterministic)


def _pair(one: Tensor | None, other: Tensor | None) -> tuple[Tensor, Tensor] | None:
    return None if one is None or other is None else (one, other)


def _define(name: str, function: Callable[..., Any], schema: str) -> Any:
    return torch.library.custom_op(f"tilewright::{name}", function, mutates_args=(), schema=schema)


_PACKED = "Tensor? starts_q, Tensor? starts_k"
forward: Any = _define(
    "attention", _operator, f"(Tensor q, Tensor k, Tensor v, Tensor? bias, {_OPTIONS}) -> Tensor"
)  # fmt: skip
forward_with_lse: Any = _define(
    "attention_with_lse", _operator_with_lse,
    f"(Tensor q, Tensor k, Tensor v, Tensor? bias, {_PACKED}, int longest, {_OPTIONS}) -> (Tensor, Tensor)",
)  # fmt: skip
_backward_operator: Any = _define(
    "attention_backward", _operator_backward,
    f"(Tensor grad, Tensor? grad_lse, Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor out, Tensor lse, {_PACKED}, "
    f"bool deterministic, {_OPTIONS}) -> (Tensor, Tensor, Tensor)",
)  # fmt: skip


@forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, *options: Any) -> Tensor:
    return empty(q, rows_outside_heads(q), v.shape[3])


@forward_with_lse.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, starts_q: Tensor | None, *_: Any) -> Any:
    if starts_q is not None:
        return q.new_empty((*q.shape[:2], v.shape[2])), q.new_empty((q.shape[1], q.shape[0]), dtype=torch.float32)
    return empty(q, rows_outside_heads(q), v.shape[3]), q.new_empty(q.shape[:3], dtype=torch.float32)


@_backward_operator.register_fake
def _(
    grad: Tensor, grad_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, out: Tensor,
    lse: Tensor, starts_q: Tensor | None, *_: Any,
) -> Any:  # fmt: skip
    if starts_q is not None:
        return tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    return tuple(empty(x, rows_outside_heads(q)) for x in (q, k, v))


def _backward_by_operator(
    grad: Tensor, grad_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, out: Tensor,
    lse: Tensor, starts: tuple[Tensor, Tensor] | None, options: Options, deterministic: bool, score: Score,
) -> Any:  # fmt: skip
    packed = (None, None) if starts is None else starts
    return _backward_operator(grad, grad_lse, q, k, v, bias, out, lse, *packed, deterministic, *options)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:4])
    ctx.options = Options(*inputs[4:])


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    q, k, v, bias = ctx.saved_tensors
    out, lse = (q, q) if torch.is_grad_enabled() else forward_with_lse(q, k, v, bias, None, None, -1, *ctx.options)
    given = (q, k, v, bias, out, lse, None, None)
    found = _gradients(_backward_by_operator, grad, None, given, ctx.needs_input_grad, ctx.options)
    return (*found, *[None] * len(Options._fields))


forward.register_autograd(_differentiate, setup_context=_save)


def _save_with_lse(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:4], *output, *inputs[4:6])
    ctx.set_materialize_grads(False)
    ctx.options = Options(*inputs[7:])


def _differentiate_with_lse(ctx: Any, grad: Tensor | None, grad_lse: Tensor | None) -> tuple[Any, ...]:
    found = _gradients(_backward_by_operator, grad, grad_lse, ctx.saved_tensors, ctx.needs_input_grad, ctx.options)
    return (*found, *[None] * (3 + len(Options._fields)))


forward_with_lse.register_autograd(_differentiate_with_lse, setup_context=_save_with_lse)


class Call(NamedTuple):
    """The part of a call that has no gradient."""

    starts: tuple[Tensor, Tensor] | None
    """Where entries of packed batches begin, of q and of k."""
    longest: int
    """Rows of the longest entry; -1 where that is not said."""
    options: Options
    score: Score
    return_lse: bool


class TilewrightAttention(torch.autograd.Function):
    """Attention in eager mode: the operators' gradients at a part of their host time."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, call: Call) -> Any:
        starts, longest, options, score, return_lse = call
        out, lse = _with_lse(q, k, v, bias, starts, longest, options, score)
        ctx.save_for_backward(q, k, v, bias, out, lse, *(starts or ()))
        ctx.call = options, score
        ctx.set_materialize_grads(False)
        return (out, lse) if return_lse else out

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_lse: Tensor | None = None) -> tuple[Any, ...]:
        found = _gradients(_backward, grad, grad_lse, ctx.saved_tensors, ctx.needs_input_grad, *ctx.call)
        return *found, None


attend = past_transforms(TilewrightAttention)
"""attend(q, k, v, bias, call): with gradients, in eager mode."""


class RepeatedAttention(torch.autograd.Function):
    """The same, of a call like an earlier one: its backward pass runs in another thread, whose caches hold none of
    what the forward pass read, so that it reads little."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, known: Known) -> Tensor:
        found = known.call.run((q.data_ptr(), k.data_ptr(), v.data_ptr()))
        out, lse = direct(q, k, v, None, known.options, return_lse=True) if found is MISS else found
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.known = known
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        known, saved = ctx.known, ctx.saved_tensors
        seen = is_backward_seen()
        found: Any = MISS if seen else attention_warm.gradients(known, grad, saved)
        if found is not MISS:
            return *found, None
        q, k, v, out, lse = saved
        if seen or is_batched(grad):
            needs = (*ctx.needs_input_grad[:3], False)
            return *_gradients(_backward, grad, None, (q, k, v, None, out, lse), needs, known.options)[:3], None
        found = _backward(grad, None, q, k, v, None, out, lse, None, known.options, _deterministic())
        attention_warm.remember_gradients(known, grad, saved, found)
        return *found, None


call_backward_itself(RepeatedAttention)
attend_again = past_transforms(RepeatedAttention)
"""attend_again(q, k, v, known): with gradients, in eager mode."""
