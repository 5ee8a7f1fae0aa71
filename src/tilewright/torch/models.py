"""Whole models: their linear layers and attention by tilewright's kernels, and back.

import tilewright.torch as tt
changes = tt.accelerate(model)      # a model of transformers, or any torch.nn.Module
print(changes)                      # what runs by tilewright now, and why the rest does not
changes.undo()
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..arrays.eager import runs_here
from ..attn.config import D_HEADS
from ..errors import InvalidOperand, MissingDependency
from ..words import Precision
from .attention import attention
from .gated import fused_feed
from .layer import DTYPES
from .linear import OWN, Linear, replace_linears
from .norm import fused_norm
from .rotary import fused_turn
from .said import give, take_back

NAME = "tilewright"
"""What transformers knows the attention by."""
_HALVES = (torch.float16, torch.bfloat16)


# --- attention for Hugging Face transformers --------------------------------------------------------------------------


def register_with_transformers() -> None:
    """Offer attention to Hugging Face transformers: `from_pretrained(..., attn_implementation="tilewright")`.

    Models built so, and those told by `model.set_attn_implementation("tilewright")`, call tilewright wherever it has a
    kernel: float16 and bfloat16 tensors on a GPU, d_head up to 256, without dropout. Causal and padding masks, caches
    of any length, sliding windows, soft caps, sinks and grouped heads are taken. Other calls go to transformers'
    "sdpa". Calling this again does nothing. Raises MissingDependency without transformers 4.53 or newer.
    """
    try:
        masks = importlib.import_module("transformers.masking_utils")
        models = importlib.import_module("transformers.modeling_utils")
        register, register_mask = models.AttentionInterface.register, masks.AttentionMaskInterface.register
    except (ImportError, AttributeError) as error:
        raise MissingDependency(
            "attention for transformers needs transformers 4.53 or newer. Install it: pip install -U transformers"
        ) from error
    register(NAME, transformers_attention)
    register_mask(NAME, masks.sdpa_mask)


def transformers_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    dropout: float = 0.0, scaling: float | None = None, is_causal: bool | None = None, **options: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Attention as transformers calls it: query [batch, heads, rows, d], key and value [batch, shared heads, keys, d].

    attention_mask: None, or bool or additive [batch, 1 or heads, rows, keys]; s_aux: sinks [heads]. Returns ([batch,
    rows, heads, d], None). Raises InvalidOperand for sinks where no kernel can run the call.
    """
    softcap, sinks = options.get("softcap"), options.get("s_aux")
    if (why := _why_sdpa(query, value, dropout, options)) is not None:
        if sinks is not None:
            raise InvalidOperand(
                f"attention with sinks (s_aux) has no kernel for {why}, and transformers' sdpa leaves sinks out. Pass "
                "attn_implementation='eager'."
            )
        sdpa = importlib.import_module("transformers.integrations.sdpa_attention").sdpa_attention_forward
        return cast(
            "tuple[Tensor, None]",
            sdpa(module, query, key, value, attention_mask, dropout, scaling, is_causal, **options),
        )
    rows, keys = query.shape[2], key.shape[2]
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    causal = causal and attention_mask is None and rows > 1
    if causal and keys > rows:  # an empty static cache: its later keys are not filled yet
        key, value = key[:, :, :rows], value[:, :, :rows]
    bias = None if attention_mask is None else _added(attention_mask[..., :keys], query.dtype)
    out = attention(query, key, value, is_causal=causal, scale=scaling, softcap=softcap or 0.0, bias=bias, sinks=sinks)
    return out.transpose(1, 2).contiguous(), None


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return what is added to the scores. transformers' additive masks hold the least finite number where none is
    seen."""
    if mask.dtype == torch.bool:
        return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, -torch.inf)
    return mask if mask.dtype in (dtype, torch.float32) else mask.to(dtype)


def _why_sdpa(query: Tensor, value: Tensor, dropout: float, options: dict[str, Any]) -> str | None:
    """Return what a call of transformers has that no kernel here does; None if there is nothing."""
    if dropout:
        return "dropout"
    for name in ("position_bias", "cache"):
        if options.get(name) is not None:
            return name
    if query.dtype not in _HALVES:
        return f"{query.dtype}"
    if not runs_here(query):
        return f"tensors on {query.device.type}"
    if max(query.shape[-1], value.shape[-1]) > max(D_HEADS):
        return f"d_head {query.shape[-1]} and {value.shape[-1]}"
    return None


# --- a model's layers -------------------------------------------------------------------------------------------------


@dataclass
class Changes:
    """The changes that `accelerate` made to a model. `undo` takes it back."""

    layers: list[str] = field(default_factory=list)
    """The names of linear layers that tilewright multiplies now."""
    feeds: list[str] = field(default_factory=list)
    """The names of gated feed-forwards that run by `gated_mlp` now."""
    turns: list[str] = field(default_factory=list)
    """The names of attention modules whose rotary positions are `rotary` now."""
    norms: list[str] = field(default_factory=list)
    """The names of norms that run by torch's fused kernel now."""
    attention: str | None = None
    """The model's attention before, where tilewright's took its place."""
    left: list[tuple[str, str]] = field(default_factory=list)
    """(module, why it was left alone)."""
    model: nn.Module | None = field(default=None, repr=False)
    """The model, until the changes are undone."""

    def undo(self) -> None:
        """Give the layers that were changed, and the attention, back to torch. A second call does nothing."""
        if self.model is None:
            return
        for name in self.layers:
            module = self.model.get_submodule(name)
            if type(module) is Linear:
                for own in OWN:
                    module.__dict__.pop(own, None)
                module.__class__ = nn.Linear
        for name in (*self.feeds, *self.turns, *self.norms):
            take_back(self.model.get_submodule(name))
        if self.attention is not None:
            cast(Any, self.model).set_attn_implementation(self.attention)
        self.model = None

    def __str__(self) -> str:
        told = [f"{len(self.layers)} linear layers by tilewright"]
        if self.feeds:
            told.append(f"{len(self.feeds)} gated feed-forwards fused")
        if self.turns:
            told.append(f"rotary positions of {len(self.turns)} modules in one pass")
        if self.norms:
            told.append(f"{len(self.norms)} norms by torch's fused kernel")
        if self.attention is not None:
            told.append(f"attention by tilewright, {self.attention!r} before")
        for why, count in Counter(why for _, why in self.left).items():
            first = next(name for name, reason in self.left if reason == why)
            more = f" and {count - 1} more" if count > 1 else ""
            told.append(f"left alone: {first or 'the model'}{more}: {why}")
        return "\n".join(told)


def accelerate(
    model: nn.Module, *, where: Callable[[str, nn.Linear], bool] | None = None, precision: Precision = "ieee",
    deterministic: bool = False, batch_invariant: bool = False,
) -> Changes:  # fmt: skip
    """Run a model's linear layers, and the attention of a model of transformers, by tilewright, in place.

    where(name, module) chooses layers; precision, deterministic, batch_invariant: as `Linear` has them. Parameters,
    tied weights, hooks, the state dict and the model's results (but for rounding) stay. A feed-forward as Llama's runs
    by `gated_mlp`, rotary positions as transformers' by `rotary`, and norms as Llama's by torch's fused kernel. The
    returned Changes say what was changed, and why the rest was not; `Changes.undo()` takes all of it back.

    Raises InvalidOperand for an unknown precision, or a model that is not a torch.nn.Module.
    """
    if not isinstance(model, nn.Module):
        raise InvalidOperand(f"model is a {type(model).__name__}; accelerate takes a torch.nn.Module.")
    changes = Changes(model=model)

    def wanted(name: str, module: nn.Linear) -> bool:
        if where is not None and not where(name, module):
            changes.left.append((name, "`where` says no"))
        elif module.weight.dtype not in DTYPES:
            changes.left.append((name, f"there is no kernel for {module.weight.dtype}"))
        else:
            changes.layers.append(name)
            return True
        return False

    replace_linears(model, wanted, precision=precision, deterministic=deterministic, batch_invariant=batch_invariant)
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and type(module) not in (nn.Linear, Linear):
            changes.left.append((name, f"{type(module).__name__} may compute something else than nn.Linear"))
        elif isinstance(module, nn.MultiheadAttention):
            changes.left.append((name, "nn.MultiheadAttention computes with its weights without calling a layer"))
        elif type(module).__name__ == "Conv1D":  # of transformers: GPT-2 and its kin
            changes.left.append((name, "Conv1D keeps its weight turned round, and is no nn.Linear"))
        if "forward" not in vars(module):
            for fused, names in ((fused_feed, changes.feeds), (fused_turn, changes.turns), (fused_norm, changes.norms)):
                if (forward := fused(module)) is not None:
                    give(module, forward)
                    names.append(name)
                    break
    _change_attention(model, changes)
    return changes


def _change_attention(model: nn.Module, changes: Changes) -> None:
    config, choose = getattr(model, "config", None), getattr(model, "set_attn_implementation", None)
    before = getattr(config, "_attn_implementation", None)
    if choose is None or before is None:
        return  # no model of transformers
    if before == NAME:
        changes.left.append(("", "its attention is tilewright's already"))
        return
    register_with_transformers()
    try:
        choose(NAME)
    except ValueError as error:
        changes.left.append(("", f"transformers keeps its attention {before!r}: {error}"))
        return
    changes.attention = before
