"""compute-sanitizer's memcheck and racecheck over the GEMM rungs, one process each: what they found, as records."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any

from ..errors import MissingDependency, install
from ..gemm.rungs import GEMM_RUNGS
from .climb_gpu import driver_version
from .ladder import Progress, silent
from .record import provenance

SUMMARIES = {
    "memcheck": re.compile(r"ERROR SUMMARY: (\d+) error"),
    "racecheck": re.compile(r"RACECHECK SUMMARY: (\d+) hazard"),
}


def summary(tool: str, text: str) -> int | None:
    """Return how many errors a tool's output reports; None where it has no summary."""
    found = SUMMARIES[tool].search(text)
    return int(found[1]) if found else None


def _run(rung: str, tool: str) -> dict[str, Any]:
    launches = [sys.executable, "-m", "tilewright.lab.every_rung", rung]
    ran = subprocess.run(
        ["compute-sanitizer", "--tool", tool, *launches], capture_output=True, text=True, timeout=300, check=False
    )
    errors = summary(tool, ran.stdout + ran.stderr)
    right = ran.returncode == 0 and "right" in ran.stdout and errors == 0
    reason = "" if right else f"{tool}: {errors if errors is not None else 'no summary'}; status {ran.returncode}"
    return {"right": right, "errors": errors, "reason": reason}


def sanitizer_records(suite: str, cases: list[dict[str, Any]], say: Progress = silent) -> list[dict[str, Any]]:
    """One record a rung and tool ("memcheck", "racecheck") of each case {"tool": ...}, over all GEMM rungs.

    Raises MissingDependency without compute-sanitizer or ml_dtypes.
    """
    from ..jit.device import device

    if shutil.which("compute-sanitizer") is None:
        raise MissingDependency("compute-sanitizer was not found on PATH. It comes with the CUDA toolkit.")
    if find_spec("ml_dtypes") is None:
        raise MissingDependency(f"fp8's rungs are tried with operands of ml_dtypes, which is missing. {install('fp8')}")
    pairs = [(rung.id.split("_")[0], case["tool"]) for rung in GEMM_RUNGS for case in cases]
    say(0, f"{len(pairs)} runs under compute-sanitizer")
    with ThreadPoolExecutor(max(os.cpu_count() or 2, 2) - 1) as pool:
        results = list(pool.map(lambda pair: _run(*pair), pairs))
    origin = provenance(gpu=device(0).name, machine_kind="gpu", driver=driver_version())
    return [
        {"suite": suite, "case": {"rung": rung, "tool": tool}, "result": result, "provenance": origin}
        for (rung, tool), result in zip(pairs, results, strict=True)
    ]
