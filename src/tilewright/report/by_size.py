"""Records of a ladder by size as a table: a row per rung or library, a column per m = n = k."""

from __future__ import annotations

from collections.abc import Sequence

from ..lab.record import who
from .cells import DASH, Record


def shares(records: Sequence[Record], stale: Sequence[str] = ()) -> list[str]:
    """Each rung's share of cuBLAS's speed by size, and above them what cuBLAS reaches, in TFLOP/s."""
    sizes = sorted({record["case"]["m"] for record in records})
    held: dict[str, dict[int, Record]] = {}
    for record in records:
        held.setdefault(who(record), {})[record["case"]["m"]] = record
    library = {record["case"]["m"]: record["result"]["tflops"] / record["result"]["ratio"] for record in records}
    lines = ["| | " + " | ".join(map(str, sizes)) + " |", "|---" * (len(sizes) + 1) + "|"]
    lines.append("| cuBLAS, TFLOP/s | " + " | ".join(f"{library[size]:.3g}" for size in sizes) + " |")
    for name, found in held.items():
        cells = (f"{found[size]['result']['ratio']:.1%}" if size in found else DASH for size in sizes)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines
