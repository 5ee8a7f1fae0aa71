"""What a census of strangers' kernels, and what became of those with a reference, look like: a row per project."""

from __future__ import annotations

from collections.abc import Sequence

from .cells import Record

STAGES = ("there", "compiled", "known", "ran")


def projects(records: Sequence[Record], stale: Sequence[str] = ()) -> list[str]:
    """Return for each project, and for all, the kernels that came so far."""
    lines = ["| project | files | kernels | compile unedited | known forms only | run |", "|---|---|---|---|---|---|"]
    for name, files in _by_project(records).items():
        counts = [sum(record["result"][stage] for record in files) for stage in STAGES]
        lines.append(f"| {name} | {len(files)} | " + " | ".join(map(str, counts)) + " |")
    return lines


def judged(records: Sequence[Record], stale: Sequence[str] = ()) -> list[str]:
    """Return for each project, and for all, how many kernels agree with their reference, and what the others did."""
    lines = [f"| project | kernels | {' | '.join(OUTCOMES)} |", "|---" * (2 + len(OUTCOMES)) + "|"]
    for name, files in _by_project(records).items():
        outcomes = [_outcome(kernel) for record in files for kernel in record["result"]["kernels"]]
        counts = [outcomes.count(outcome) for outcome in OUTCOMES]
        lines.append(f"| {name} | {len(outcomes)} | " + " | ".join(map(str, counts)) + " |")
    return lines


OUTCOMES = ("right", "fault or wrong result, as expected", "no fault, no reference", "otherwise", "refused")
"""Right: the result is the reference's, and there is no fault. Expected: what the data say was looked into."""


def _outcome(kernel: Record) -> str:
    if kernel["why"] or not kernel["right"]:
        return "refused" if kernel["why"] else "otherwise"
    if kernel["found"] or kernel["wrong"]:
        return OUTCOMES[1]
    return "right" if kernel["checked"] else OUTCOMES[2]


def _by_project(records: Sequence[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in records:
        case = record["case"]
        found.setdefault(f"{case['project']} at {case['commit'][:7]}", []).append(record)
    return found | {"all": list(records)}
