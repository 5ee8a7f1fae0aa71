"""Functions for `tilewright.matmul(a, b, epilogue=...)`: what an expression is made of besides Python's arithmetic.

    from tilewright.epilogue import silu
    out = tw.matmul(a, b, epilogue=lambda acc, bias, r: silu(acc + bias) * r, bias=bias, r=r)

Everything is computed in float32 and rounded once, to the result's dtype. Each function's docstring says how far it may
be off in float32. For results of 16 bits exp, sigmoid, silu and gelu_tanh are shorter forms, off by a relative 2^-16 at
most; rounding the result is 2^-9 (bfloat16) or 2^-12 (float16), so only an expression that cancels (exp(x) - 1) shows
it. Division is within 2 ulp; sums and products may be fused, which rounds once less.
"""

from __future__ import annotations

from .functions import FUNCTIONS

erf = FUNCTIONS["erf"]
exp = FUNCTIONS["exp"]
exp2 = FUNCTIONS["exp2"]
gelu = FUNCTIONS["gelu"]
gelu_tanh = FUNCTIONS["gelu_tanh"]
log = FUNCTIONS["log"]
maximum = FUNCTIONS["maximum"]
minimum = FUNCTIONS["minimum"]
relu = FUNCTIONS["relu"]
rsqrt = FUNCTIONS["rsqrt"]
sigmoid = FUNCTIONS["sigmoid"]
silu = FUNCTIONS["silu"]
sqrt = FUNCTIONS["sqrt"]
tanh = FUNCTIONS["tanh"]
where = FUNCTIONS["where"]

__all__ = [
    "erf", "exp", "exp2", "gelu", "gelu_tanh", "log", "maximum", "minimum", "relu", "rsqrt", "sigmoid", "silu", "sqrt",
    "tanh", "where",
]  # fmt: skip
