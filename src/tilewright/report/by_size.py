"""Records of a ladder by size as a table: a row per rung or library, a column per m = n = k."""

from __future__ import annotations

from collections.abc import Sequence

from ..lab.record import who
from .cells import DAGGER, DASH, Record


def shares(records: Sequence[Record], stale: Sequence[str] = ()) -> list[str]:
    """Each rung's share of cuBLAS's speed by size, and above them what cuBLAS reaches, in TFLOP/s.

    A dagger marks the shares that may no longer hold, where others do.
    """
    some = any(stale) and not all(stale)
    sizes = sorted({record["case"]["m"] for record in records})
    held: dict[str, dict[int, str]] = {}
    library: dict[int, str] = {}
    for record, why in zip(records, stale or [""] * len(records), strict=True):
        size, result = record["case"]["m"], record["result"]
        row = held.setdefault(who(record), {})
        if result.get("ratio"):
            row[size] = f"{result['ratio']:.1%}{DAGGER if some and why else ''}"
            library[size] = f"{result['tflops'] / result['ratio']:.3g}"
    lines = ["| rung | " + " | ".join(map(str, sizes)) + " |", "|---" * (len(sizes) + 1) + "|"]
    for name, cells in ({"cuBLAS, TFLOP/s": library} | held).items():
        lines.append(f"| {name} | " + " | ".join(cells.get(size, DASH) for size in sizes) + " |")
    return lines
