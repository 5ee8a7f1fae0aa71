"""The emulator's counters beside the hardware's: the same launch, read by Nsight Compute (ncu)."""

from __future__ import annotations

import argparse
import csv
import os
import shutil
import subprocess
import sys
from typing import Any

from ..arch import DEFAULT_GPU, find_gpu
from ..errors import MissingDependency, TilewrightError
from ..ladder import Rung, find_rung
from ..problems import ITEM_BYTES, GemmProblem
from .climb_gpu import driver_version
from .ladder import Step, climb_on_emulator, random_operands, raw_bytes
from .record import provenance

_GLOBAL = "l1tex__t_{0}_pipe_lsu_mem_global_op_{1}.sum"
_SHARED = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{0}.sum"
METRICS = {
    # the L1 counts an asynchronous copy's read as a global load
    "global_load_requests": _GLOBAL.format("requests", "ld"),
    "global_load_sectors": _GLOBAL.format("sectors", "ld"),
    "global_store_requests": _GLOBAL.format("requests", "st"),
    "global_store_sectors": _GLOBAL.format("sectors", "st"),
    "shared_load_wavefronts": _SHARED.format("ld"),
    "shared_store_wavefronts": _SHARED.format("st"),
    # of warps with a thread whose guard holds: ptxas puts loads that never execute before some LDGSTS
    "shared_load_instructions": "smsp__inst_executed_op_shared_ld_pred_on_any.sum",
    "shared_store_instructions": "smsp__inst_executed_op_shared_st_pred_on_any.sum",
}


def read_hardware(rung: Rung, problem: GemmProblem, ordinal: int = 0) -> dict[str, int]:
    """Launch the rung once under ncu in a process of its own. Raises MissingDependency without ncu."""
    tool = shutil.which("ncu")
    if tool is None:
        raise MissingDependency("ncu (Nsight Compute) is not on the PATH; the hardware's counters cannot be read.")
    command = [
        tool, "--clock-control", "none", "--csv", "--page", "raw", "--metrics", ",".join(METRICS.values()),
        sys.executable, "-m", "tilewright.lab.counters", rung.id, str(problem.m), str(problem.n), str(problem.k),
        problem.layout, str(ordinal),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=os.environ.copy())
    return parse_csv(done.stdout, done.stderr)


def parse_csv(text: str, error: str = "") -> dict[str, int]:
    """The metrics of the one kernel in ncu's raw CSV page. Raises TilewrightError when there is none."""
    rows = list(csv.reader(line for line in text.splitlines() if line.startswith('"')))
    if len(rows) != 3:
        raise TilewrightError(f"ncu profiled {max(len(rows) - 2, 0)} kernels instead of 1: {(error or text)[-500:]}")
    header, _, values = rows
    return {name: int(float(values[header.index(metric)].replace(",", ""))) for name, metric in METRICS.items()}


def compare(rung: Rung, problem: GemmProblem, gpu_name: str = DEFAULT_GPU) -> dict[str, Any]:
    """One record: both sides' counts, and the two ratios that must agree."""
    hardware = read_hardware(rung, problem)
    step = Step(rung, rung.default, problem)
    (record,) = climb_on_emulator([step], find_gpu(gpu_name), suite="counters")
    emulated = record["result"]["counters"]
    mine = {
        "global_load_requests": emulated["global_load_requests"] + emulated["async_copy_requests"],
        "global_load_sectors": emulated["global_load_sectors"] + emulated["async_copy_sectors"],
    } | {name: emulated[name] for name in METRICS if name in emulated and not name.startswith("global_load")}
    mine["shared_load_instructions"] = emulated["shared_load_requests"]
    mine["shared_store_instructions"] = emulated["shared_store_requests"]

    def ratio(side: dict[str, int], part: str, whole: str) -> float | None:
        return side[part] / side[whole] if side[whole] else None

    pairs = {
        "sectors_per_load": ("global_load_sectors", "global_load_requests"),
        "sectors_per_store": ("global_store_sectors", "global_store_requests"),
        "wavefronts_per_shared_load": ("shared_load_wavefronts", "shared_load_instructions"),
        "wavefronts_per_shared_store": ("shared_store_wavefronts", "shared_store_instructions"),
    }
    record["result"] = {
        "right": record["result"]["right"],
        "hardware": hardware,
        "emulator": mine,
        "ratios": {
            name: {"hardware": ratio(hardware, *pair), "emulator": ratio(mine, *pair)} for name, pair in pairs.items()
        },
    }
    record["provenance"] = provenance(machine_kind="gpu", gpu=gpu_name, driver=driver_version())
    return record


def _launch_once(arguments: list[str]) -> None:
    """What runs under ncu: one launch of one rung."""
    from ..jit.device import executor_for
    from ..ladder.rung import Addresses

    parser = argparse.ArgumentParser()
    for name in ("rung", "m", "n", "k", "layout", "ordinal"):
        parser.add_argument(name)
    given = parser.parse_args(arguments)
    rung = find_rung(given.rung)
    problem = GemmProblem.dense(int(given.m), int(given.n), int(given.k), layout=given.layout)
    executor = executor_for(int(given.ordinal))
    held = [executor.upload(raw_bytes(side, problem.dtype)) for side in random_operands(problem)]
    out = executor.allocate(ITEM_BYTES[problem.out_dtype] * problem.m * problem.n)
    kernel = rung.compile(problem, rung.default, executor.arch)
    executor.launch(kernel, rung.plan(problem, rung.default, Addresses(held[0], held[1], out)))
    executor.synchronize()


if __name__ == "__main__":
    _launch_once(sys.argv[1:])
