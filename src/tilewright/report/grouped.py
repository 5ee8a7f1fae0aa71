"""Records of grouped products (lab/grouped.py) as a table."""

from __future__ import annotations

from .cells import Column, Record, config, milliseconds, result, rung, share, spread


def _groups(record: Record) -> str:
    sizes = record["case"]["sizes"]
    return f"{record['case']['groups']} of {sizes if isinstance(sizes, int) else '{} to {}'.format(*sizes)}"


def _operands(record: Record) -> str:
    case = record["case"]
    return f"{case['dtype']}, scales of {case['scales']}" if "scales" in case else str(case["dtype"])


TIMES: tuple[Column, ...] = (
    ("groups", _groups),
    ("cut", lambda record: str(record["case"]["form"])),
    ("n, k", lambda record: "{n}, {k}".format(**record["case"])),
    ("layout", lambda record: str(record["case"]["layout"]).upper()),
    ("operands", _operands),
    ("rung", rung),
    ("config", config),
    ("ms", milliseconds),
    ("TFLOP/s", result("tflops", ".0f")),
    ("of one dense product", share("ratio")),
    ("p10..p90", spread),
    ("times torch's grouped", result("of_torchs", ".2f")),
)
