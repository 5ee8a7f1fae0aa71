"""Tables of many products in pairs with torch's (lab/beside_torch.py): a line for each group of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, log
from statistics import fmean

from ..lab.record import went_wrong
from .cells import Column, Record, config, result, rung

GROUPS: tuple[tuple[str, Callable[[Record], bool]], ...] = (
    ("transposed A (TN, TT)", lambda record: record["case"]["layout"][0] == "t"),
    ("fp16", lambda record: record["case"]["dtype"] == "f16"),
    ("fp32, 1 to 8 rows", lambda record: record["case"]["dtype"] == "f32"),
    ("batches", lambda record: record["case"].get("batch", 1) > 1),
    ("lines that TMA cannot read", lambda record: any(record["case"][name] % 8 for name in "nk")),
    ("cubes", lambda record: record["case"]["m"] == record["case"]["n"] == record["case"]["k"]),
    *((f"m = {m}", lambda record, m=m: record["case"]["m"] == m) for m in (1, 16, 64, 128, 512, 2048, 8192)),
    ("others", lambda record: True),
)  # fmt: skip
"""The first that a product is of counts it."""
LOWEST = 5
"""Products that are named, of those that fare worst."""


def summary(records: Sequence[Record], stale: Sequence[str]) -> list[str]:
    """One line per group, one for all, and the products that fare worst. `stale` is told below the table."""
    right = [record for record in records if not went_wrong(record)]
    groups: dict[str, list[Record]] = {name: [] for name, _ in GROUPS}
    for record in right:
        groups[next(name for name, holds in GROUPS if holds(record))].append(record)
    lines = ["| products | number | geometric mean | least | ahead |", "|---|---|---|---|---|"]
    lines += [_line(name, group) for name, group in groups.items() if group]
    if sum(map(bool, groups.values())) > 1:
        lines.append(_line("**all**", right))
    worst = sorted(right, key=lambda record: record["result"]["ratio"])[:LOWEST]
    lines += ["", "Lowest: " + "; ".join(f"{_name(record)} {record['result']['ratio']:.3f}" for record in worst) + "."]
    if wrong := [_name(record) for record in records if went_wrong(record)]:
        lines += ["", f"**Wrong, and not timed:** {', '.join(wrong)}."]
    return lines


def _line(name: str, records: Sequence[Record]) -> str:
    ratios = [record["result"]["ratio"] for record in records]
    mean = exp(fmean(map(log, ratios)))
    return f"| {name} | {len(ratios)} | {mean:.3f} | {min(ratios):.3f} | {sum(ratio > 1 for ratio in ratios)} |"


def _name(record: Record) -> str:
    case = record["case"]
    batch = f"{case['batch']} x " if case.get("batch", 1) > 1 else ""
    return f"{batch}{case['m']} x {case['n']} x {case['k']} {case['layout'].upper()}"


POWER: tuple[Column, ...] = (
    ("m x n x k", _name),
    ("rung", rung),
    ("config", config),
    ("TFLOP/s", result("tflops", ".0f")),
    ("torch's", result("reference_tflops", ".0f")),
    ("ratio", result("ratio", ".3f")),
    ("W", result("watts", ".0f")),
    ("torch's", result("reference_watts", ".0f")),
    ("J per TFLOP", result("joules_per_tflop", ".3f")),
    ("of torch's", result("joules_ratio", ".3f")),
    ("MHz", result("sm_mhz", ".0f")),
    ("torch's", result("reference_sm_mhz", ".0f")),
)
COPIES: tuple[Column, ...] = (
    ("m x n x k", _name),
    ("rung", rung),
    ("config", config),
    ("GB/s", result("gb_s", ".0f")),
    ("a copy's", result("reference_gb_s", ".0f")),
    ("share", result("ratio", ".3f")),
)
