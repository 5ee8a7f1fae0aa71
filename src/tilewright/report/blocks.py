"""Records of transformer blocks (lab/blocks.py) as a table."""

from __future__ import annotations

from .cells import Column, milliseconds, result, spread

TIMES: tuple[Column, ...] = (
    ("block, pass", lambda record: str(record["case"]["call"])),
    ("dtype", lambda record: str(record["case"]["dtype"])),
    ("d_model, d_ff", lambda record: "{d_model}, {d_ff}".format(**record["case"])),
    ("batch x tokens", lambda record: "{batch} x {tokens}".format(**record["case"])),
    ("layers replaced", lambda record: str(record["case"]["replaced"])),
    ("ms", milliseconds),
    ("torch's, ms", result("reference_ms", ".3f")),
    ("times as fast", result("ratio", ".3f")),
    ("p10..p90", spread),
)
