"""Approximate functions of fp32. The only fp32 instructions whose bits may differ from the GPU's.

Each is computed in float64 and rounded once, so the emulator's error is half an ulp; the GPU's own is larger. Against a
GPU, results therefore differ by up to the bound that the PTX manual gives for the hardware:

    ex2.approx         2 ulp                  sin.approx, cos.approx   2^-20.5 absolute in [-2pi, 2pi]
    lg2.approx         2^-22 absolute         tanh.approx              2^-11 relative
    rcp.approx         1 ulp                  div.approx, div.full     2 ulp
    rsqrt.approx       2 ulp                  sqrt.approx              2^-23 relative
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..machine import Machine
from .float32 import canonical, flush
from .registry import Compute, elementwise, executes

_FUNCTIONS: dict[str, Callable[..., np.ndarray]] = {
    "ex2": np.exp2,
    "lg2": np.log2,
    "rcp": np.reciprocal,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "sqrt": np.sqrt,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
}


@executes(
    "{op:ex2|lg2|rcp|rsqrt|sqrt|sin|cos}.approx{ftz:.ftz|}.f32",
    "{op:tanh}.approx.f32",
    kind="special",
    flops=("mufu", 1),
)
@elementwise(types=("f32", "f32"))
def approximate(machine: Machine, fields: dict[str, str]) -> Compute:
    """See the head of this file."""
    function, ftz = _FUNCTIONS[fields["op"]], bool(fields.get("ftz"))

    def compute(out: np.ndarray, a: np.ndarray) -> None:
        a = flush(a) if ftz else a
        result = function(a.astype(np.float64)).astype(np.float32)
        np.copyto(out, flush(result) if ftz else result)
        canonical(out)

    return compute


@executes("div.{approx|full}{ftz:.ftz|}.f32", kind="special", flops=("mufu", 1))
@elementwise(types=("f32", "f32", "f32"))
def divide(machine: Machine, fields: dict[str, str]) -> Compute:
    """a / b; here correctly rounded but for divisors beyond 2^126, whose quotients div.approx loses on a GPU."""
    ftz = bool(fields["ftz"])

    def compute(out: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
        x, y = (flush(a), flush(b)) if ftz else (a, b)
        result = (x.astype(np.float64) / y.astype(np.float64)).astype(np.float32)
        np.copyto(out, flush(result) if ftz else result)
        canonical(out)

    return compute
