"""tilewright for torch: custom ops that torch.compile keeps in its graph, autograd, and layers.

    import tilewright.torch as tt
    y = tt.matmul(a, b)
    out = tt.scaled_dot_product_attention(q, k, v, is_causal=True)
    y = tt.linear(x, weight, bias, activation="silu")
    changes = tt.accelerate(model)

Imported on request only; `import tilewright` never imports torch.
"""

from __future__ import annotations

try:
    import torch as _torch
except ImportError as error:
    from ..errors import MissingDependency

    raise MissingDependency(
        "tilewright.torch needs torch, which is not installed. Install it: pip install torch"
    ) from error

from ..attn.attention import attention as _attention
from ..attn.attention import attention_varlen as _attention_varlen
from ..attn.backward import attention_backward as _attention_backward
from ..gemm.matmul import matmul as _matmul
from ..grouped.matmul import grouped_matmul as _grouped_matmul
from ..run.gradients import register, register_untraced
from .attention import attention, attention_varlen, of_layout, scaled_dot_product_attention
from .context import context_rows, ring_attention
from .distributed import register as share_out
from .fp8 import fp8_linear
from .gated import gated_mlp
from .grouped import grouped_matmul
from .linear import Linear, linear, replace_linears
from .matmul import matmul
from .models import Changes, accelerate, register_with_transformers
from .rotary import rotary

share_out()
register("matmul", matmul)
register("grouped_matmul", grouped_matmul)
register("attention", of_layout)
register("attention_varlen", attention_varlen)
for _function in (_matmul, _grouped_matmul, _attention, _attention_varlen, _attention_backward):
    register_untraced(_function.__name__, _torch.compiler.disable(_function))

__all__ = [
    "Changes",
    "Linear",
    "accelerate",
    "attention",
    "attention_varlen",
    "context_rows",
    "fp8_linear",
    "gated_mlp",
    "grouped_matmul",
    "linear",
    "matmul",
    "register_with_transformers",
    "replace_linears",
    "ring_attention",
    "rotary",
    "scaled_dot_product_attention",
]
