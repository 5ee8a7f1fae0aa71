"""Records of fp8 products (lab/fp8.py) as a table."""

from __future__ import annotations

from .cells import Column, config, milliseconds, result, rung, share, spread

TIMES: tuple[Column, ...] = (
    ("m, n, k", lambda record: "{m}, {n}, {k}".format(**record["case"])),
    ("scales of", lambda record: str(record["case"]["scales"])),
    ("rung", rung),
    ("config", config),
    ("ms", milliseconds),
    ("TFLOP/s", result("tflops", ".0f")),
    ("times torch._scaled_mm", result("ratio", ".3f")),
    ("p10..p90", spread),
    ("of one scale each", share("of_tensor")),
)
