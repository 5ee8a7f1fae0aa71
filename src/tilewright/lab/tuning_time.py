"""The time that tuning one problem takes from cold: a process of its own, with no kernel compiled and no result
known."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ..errors import TilewrightError
from ..gemm.classes import class_of
from ..gemm.family import PRODUCTS
from ..plan.store import ENVIRONMENT_VARIABLE, Store
from .climb_gpu import driver_version
from .heldout import problem_of
from .ladder import Progress
from .record import provenance


def tuning_time_records(suite: str, cases: list[dict[str, Any]], say: Progress) -> list[dict[str, Any]]:
    """Seconds of `tilewright tune` from its start to its end, of each case {"m", "n", "k", "layout", "dtype"}.

    Raises TilewrightError when the command fails or leaves no finished result.
    """
    from ..jit.device import device
    from ..plan.tables import driver_name

    where = device(0)
    origin = provenance(machine_kind="gpu", gpu=where.name, arch=where.arch.name, driver=driver_version())
    records = []
    for number, case in enumerate(cases):
        say(number, "tuning {dtype} {layout} {m}x{n}x{k} from cold".format(**case))
        with tempfile.TemporaryDirectory() as folder:
            seconds = _tune(case, folder)
            table = Store(where.gpu.name, driver_name(), Path(folder) / "tuned").of(PRODUCTS)
        entry = table.get(str(class_of(problem_of(case))))
        if entry is None or not entry.finished:
            raise TilewrightError(f"tilewright tune left no finished result for {case}.")
        result = {
            "right": not any(failure.kind == "wrong" for failure in entry.failed), "seconds": seconds,
            "candidates": len(entry.timed) + len(entry.failed), "cores": len(os.sched_getaffinity(0)),
            "tuned": str(entry.best), "tuned_us": entry.best.ms * 1e3,
        }  # fmt: skip
        call = f"tilewright tune, {case['dtype']}"
        records.append({"suite": suite, "case": {**case, "call": call}, "result": result, "provenance": origin})
    return records


def _tune(case: dict[str, Any], folder: str) -> float:
    """Wall-clock seconds of the command, with caches in `folder`."""
    shape = "{m}x{n}x{k}".format(**case)
    command = [
        sys.executable, "-m", "tilewright", "tune", "--shapes", shape, "--dtype", case["dtype"],
        "--layout", case["layout"],
    ]  # fmt: skip
    environment = {**os.environ, "TILEWRIGHT_CACHE": folder, ENVIRONMENT_VARIABLE: str(Path(folder) / "tuned")}
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False, env=environment)
    if done.returncode:
        raise TilewrightError(f"tilewright tune --shapes {shape} failed: {(done.stderr or done.stdout)[-500:]}")
    return time.perf_counter() - start
