"""What a census of strangers' kernels looks like: a row per project."""

from __future__ import annotations

from collections.abc import Sequence

from .cells import Record

STAGES = ("there", "compiled", "known", "ran")


def projects(records: Sequence[Record], stale: Sequence[str] = ()) -> list[str]:
    """Of each project, and of all, the kernels that came so far."""
    lines = ["| project | files | kernels | compile unedited | known forms only | run |", "|---|---|---|---|---|---|"]
    found: dict[str, list[Record]] = {}
    for record in records:
        case = record["case"]
        found.setdefault(f"{case['project']} at {case['commit'][:7]}", []).append(record)
    for name, files in [*found.items(), ("all", list(records))]:
        counts = [sum(record["result"][stage] for record in files) for stage in STAGES]
        lines.append(f"| {name} | {len(files)} | " + " | ".join(map(str, counts)) + " |")
    return lines
