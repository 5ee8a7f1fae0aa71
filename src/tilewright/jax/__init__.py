"""tilewright inside jax.jit: products and attention that XLA launches in its own stream, with gradients.

    import tilewright.jax as tj
    y = jax.jit(lambda x, w, b: tj.matmul(x, w, bias=b, activation="silu"))(x, w, b)
    out = jax.jit(lambda q, k, v: tj.attention(q, k, v, is_causal=True))(q, k, v)

Imported on request only; `import tilewright` never imports jax.
"""

from __future__ import annotations

try:
    import jax as _jax  # noqa: F401
except ImportError as error:
    from ..errors import MissingDependency

    raise MissingDependency("tilewright.jax needs jax, which is not installed. Install it: pip install jax") from error

from .calls import attention, emulated, matmul

__all__ = ["attention", "emulated", "matmul"]
