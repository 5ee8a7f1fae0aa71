"""The cost of a process's first product: compiled from nothing, and loaded from the cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from ..errors import TilewrightError
from .ladder import Progress
from .origin import torch_origin

ROUNDS = 5
"""Processes a figure: their median."""


def cold_records(suite: str, cases: list[dict[str, Any]], say: Progress) -> list[dict[str, Any]]:
    """Seconds from before `import tilewright` until the first product is there, by processes of their own.

    torch and the GPU's context are there already. "empty": the kernel cache is new; "warm": it holds the kernel.
    Raises MissingDependency without torch, TilewrightError where a product is wrong.
    """
    _, origin = torch_origin("the cold suite")
    records = []
    for number, case in enumerate(cases):
        say(number, "first product of {dtype} at {m}x{n}x{k}".format(**case))
        empty, warm = [], []
        for _ in range(ROUNDS):
            with tempfile.TemporaryDirectory() as cache:
                empty.append(_first_product(case, cache))
                warm.append(_first_product(case, cache))
        for text, runs in (("empty", empty), ("warm", warm)):
            result = {
                "right": True,
                "seconds": median(run["seconds"] for run in runs),
                "slowest_seconds": max(run["seconds"] for run in runs),
                "import_seconds": median(run["import_seconds"] for run in runs),
            }
            records.append({"suite": suite, "case": {**case, "cache": text}, "result": result, "provenance": origin})
    return records


def _first_product(case: dict[str, Any], cache: str) -> dict[str, Any]:
    program = Path(__file__).with_name("first_product.py").read_text(encoding="utf-8")
    command = [sys.executable, "-c", program, *(str(case[name]) for name in ("m", "n", "k", "dtype"))]
    # bytecode is kept from the first process on, as pip leaves it beside an installed package
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False,
        env=environment | {"TILEWRIGHT_CACHE": cache},
    )  # fmt: skip
    if done.returncode:
        raise TilewrightError(f"the first product failed: {(done.stderr or done.stdout)[-500:]}")
    run = json.loads(done.stdout.splitlines()[-1])
    if run["wrong"]:
        raise TilewrightError(f"the first product of {case} is wrong, so its time is not kept: {run['wrong']}")
    return run
