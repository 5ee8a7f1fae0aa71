"""The findings of compute-sanitizer, as one sentence per tool, with the rungs that have changed since."""

from __future__ import annotations

from collections.abc import Sequence

from ..gemm.rungs import GEMM_RUNGS
from ..lab.record import went_wrong
from .cells import Record


def sentences(records: Sequence[Record], stale: Sequence[str]) -> list[str]:
    """One line a tool. `stale`: why each record may no longer hold, "" where it does."""
    lines = []
    for tool in dict.fromkeys(str(record["case"]["tool"]) for record in records):
        of_tool = [(record, why) for record, why in zip(records, stale, strict=True) if record["case"]["tool"] == tool]
        errors = {record["case"]["rung"]: record["result"]["errors"] for record, _ in of_tool if went_wrong(record)}
        found = ", ".join(f"{rung}: {count}" for rung, count in errors.items()) if errors else "no error"
        lines.append(f"- `{tool}` ran over {len(of_tool)} rungs, on whole tiles and ragged ones: {found}.")
        missing = [
            rung.id for rung in GEMM_RUNGS if rung.id.split("_")[0] not in {r["case"]["rung"] for r, _ in of_tool}
        ]
        if missing:
            lines.append(f"  It did not run over {', '.join(missing)}.")
    return lines
