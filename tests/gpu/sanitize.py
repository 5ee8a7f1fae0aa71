"""compute-sanitizer's memcheck and racecheck over every GEMM rung, one process each; a record of what they found:

    python tests/gpu/sanitize.py benchmarks/results/sanitizer-H200.json

Exits with 1 if a tool found an error or a result is wrong.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tilewright.gemm.rungs.simt import GEMM_RUNGS
from tilewright.jit.device import device
from tilewright.lab.record import provenance, write_json

TOOLS = ("memcheck", "racecheck")
SUMMARY = {
    "memcheck": re.compile(r"ERROR SUMMARY: (\d+) error"),
    "racecheck": re.compile(r"RACECHECK SUMMARY: (\d+) hazard"),
}


def found(rung: str, tool: str) -> dict:
    """What a tool says of a rung's launches; errors None where it gave no summary."""
    launches = [sys.executable, str(Path(__file__).with_name("every_rung.py")), rung]
    ran = subprocess.run(["compute-sanitizer", "--tool", tool, *launches], capture_output=True, text=True, timeout=300)
    summary = SUMMARY[tool].search(ran.stdout + ran.stderr)
    return {
        "right": ran.returncode == 0 and "right" in ran.stdout,
        "errors": int(summary[1]) if summary else None,
    }


def main(place: str) -> int:
    rungs = [rung.id.split("_")[0] for rung in GEMM_RUNGS]
    pairs = [(rung, tool) for rung in rungs for tool in TOOLS]
    with ThreadPoolExecutor(max(os.cpu_count() or 2, 2) - 1) as pool:
        results = list(pool.map(lambda pair: found(*pair), pairs))
    gpu = provenance(gpu=device(0).name, machine_kind="gpu")
    write_json(Path(place), [
        {"suite": "sanitizer", "case": {"rung": rung, "tool": tool}, "result": result, "provenance": gpu}
        for (rung, tool), result in zip(pairs, results, strict=True)
    ])  # fmt: skip
    bad = [
        f"{rung} {tool}: {r}"
        for (rung, tool), r in zip(pairs, results, strict=True)
        if not r["right"] or r["errors"] != 0
    ]
    print("\n".join(bad) or f"{len(pairs)} runs, no error")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
