"""Transformer blocks as models have them, for lab/blocks.py. Imports torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    """As transformers' models say it, so that `accelerate` knows it."""
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


def apply_rotary_pos_emb(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotary positions: each pair (i, i + d_head / 2) turned by its angle."""
    cos = cos.unsqueeze(unsqueeze_dim)
    sin = sin.unsqueeze(unsqueeze_dim)
    q_embed = (q * cos) + (rotate_half(q) * sin)
    k_embed = (k * cos) + (rotate_half(k) * sin)
    return q_embed, k_embed


class LlamaFeed(nn.Module):
    """A gated feed-forward, named and written as transformers' models have it."""

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(d_model, d_ff, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(d_ff, d_model, bias=False)
        self.act_fn = nn.SiLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class LlamaBlock(nn.Module):
    """The block that Llama repeats: grouped causal attention with rotary positions, then a gated feed-forward, each on
    the normalised residual stream."""

    attend = staticmethod(functional.scaled_dot_product_attention)

    def __init__(self, d_model: int, d_ff: int, heads: int, kv_heads: int, tokens: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.d_head = heads, kv_heads, d_model // heads
        narrow = kv_heads * self.d_head
        self.norm_attention, self.norm_feed = nn.RMSNorm(d_model, eps=1e-5), nn.RMSNorm(d_model, eps=1e-5)
        self.q, self.o = nn.Linear(d_model, d_model, bias=False), nn.Linear(d_model, d_model, bias=False)
        self.k, self.v = nn.Linear(d_model, narrow, bias=False), nn.Linear(d_model, narrow, bias=False)
        self.feed = LlamaFeed(d_model, d_ff)
        speeds = 10000.0 ** (-torch.arange(0, self.d_head, 2) / self.d_head)
        angles = torch.outer(torch.arange(tokens), speeds).repeat(1, 2)
        self.register_buffer("cos", angles.cos()[None])
        self.register_buffer("sin", angles.sin()[None])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [batch, tokens, d_model], and so the result."""
        normal = self.norm_attention(x)
        q, k, v = (
            project(normal).unflatten(-1, (heads, self.d_head)).transpose(1, 2)
            for project, heads in ((self.q, self.heads), (self.k, self.kv_heads), (self.v, self.kv_heads))
        )
        q, k = apply_rotary_pos_emb(q, k, self.cos, self.sin)
        seen = self.attend(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads)
        x = x + self.o(seen.transpose(1, 2).flatten(2))
        return x + self.feed(self.norm_feed(x))


def make_block(case: dict[str, Any]) -> nn.Module:
    """The block of a case, or `layers` of them, with torch's own layers. It stays in training mode, without dropout: in
    evaluation nn.TransformerEncoderLayer would not call its layers, but a kernel of torch's for all of it."""
    if "layers" in case:
        one = {name: value for name, value in case.items() if name != "layers"}
        return nn.Sequential(*(make_block(one) for _ in range(case["layers"])))
    if case["block"] == "llama":
        return LlamaBlock(case["d_model"], case["d_ff"], case["heads"], case["kv_heads"], case["tokens"])
    return nn.TransformerEncoderLayer(
        case["d_model"], case["heads"], case["d_ff"], dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )


def replace_attention(model: nn.Module, attend: Any) -> None:
    """Let the model's Llama blocks call `attend` in place of torch's attention."""
    for module in model.modules():
        if isinstance(module, LlamaBlock):
            module.attend = attend
