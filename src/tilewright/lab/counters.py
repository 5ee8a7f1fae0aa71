"""Nsight Compute's (ncu) counters of one launch, and the emulator's; and what warps wait for."""

from __future__ import annotations

import argparse
import csv
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from ..arrays.dtypes import ITEM_BYTES
from ..errors import MissingDependency, TilewrightError
from ..gemm.problem import GemmProblem
from ..gemm.rung import Addresses, Rung
from ..gemm.rungs import find_rung
from ..gpus import Gpu
from ..jit.device import executor_for
from .climb_gpu import driver_version
from .ladder import (
    Operands,
    Progress,
    Step,
    as_record,
    climb_on_emulator,
    prepare,
    random_operands,
    raw_bytes,
    run_checked,
    silent,
    verdict_dict,
)
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
    "ldmatrix_instructions": "smsp__inst_executed_op_ldsm.sum",
}

STALLS = (
    "long_scoreboard", "short_scoreboard", "mio_throttle", "lg_throttle", "barrier", "dispatch_stall",
    "math_pipe_throttle", "not_selected", "no_instruction", "wait",
)  # fmt: skip
PIPES = {
    "issue_active": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "fma_pipe": "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active",
    "shared_pipe": "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_active",
    "cycles": "sm__cycles_active.avg",
    "products": "smsp__inst_executed_pipe_tensor_op_hmma.sum",
} | {name: f"smsp__average_warps_issue_stalled_{name}_per_issue_active.ratio" for name in STALLS}


def read_hardware(
    rung: Rung, problem: GemmProblem, metrics: dict[str, str] = METRICS, ordinal: int = 0
) -> dict[str, float]:
    """Launch the rung once under ncu in a process of its own. Raises MissingDependency without ncu."""
    tool = shutil.which("ncu")
    if tool is None:
        raise MissingDependency("ncu (Nsight Compute) is not on the PATH; the hardware's counters cannot be read.")
    command = [
        tool, "--clock-control", "none", "--csv", "--page", "raw", "--metrics", ",".join(metrics.values()),
        sys.executable, "-m", "tilewright.lab.counters", rung.id, str(problem.m), str(problem.n), str(problem.k),
        problem.layout, problem.dtype, str(ordinal),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=os.environ.copy())
    return parse_csv(done.stdout, done.stderr, metrics)


def stall_records(steps: Sequence[Step], gpu: Gpu, say: Progress = silent) -> list[dict[str, Any]]:
    """One record a step: the check, the busiest pipes (shares), warps stalled per issued instruction by reason.

    `cycles_per_product`: active cycles of an SM's quarter for each of its tensor-core instructions.
    """
    executor, records = executor_for(0), []
    operands: dict[GemmProblem, Operands] = {}
    origin = provenance(machine_kind="gpu", gpu=gpu.name, arch=gpu.arch.name, driver=driver_version())
    for number, step in enumerate(steps):
        say(number, step.rung.id)
        if step.problem not in operands:
            operands = {step.problem: prepare(step.problem)}
        kernel = step.rung.compile(step.problem, step.config, gpu.arch)
        result = verdict_dict(run_checked(step, kernel, executor, operands[step.problem]))
        read = read_hardware(step.rung, step.problem, PIPES)
        products, quarters = read["products"], gpu.arch.warp_schedulers * gpu.sm_count
        result |= {name: read[name] / 100 for name in ("issue_active", "fma_pipe", "shared_pipe")}
        result["cycles_per_product"] = read["cycles"] * quarters / products if products else None
        result["stalls"] = {name: read[name] for name in STALLS}
        records.append(as_record("stalls", step, result, origin))
    return records


def parse_csv(text: str, error: str = "", metrics: dict[str, str] = METRICS) -> dict[str, float]:
    """The metrics of the one kernel in ncu's raw CSV page. Raises TilewrightError when there is none."""
    rows = list(csv.reader(line for line in text.splitlines() if line.startswith('"')))
    if len(rows) != 3:
        raise TilewrightError(f"ncu profiled {max(len(rows) - 2, 0)} kernels instead of 1: {(error or text)[-500:]}")
    header, _, values = rows
    return {name: float(values[header.index(metric)].replace(",", "")) for name, metric in metrics.items()}


def compare(rung: Rung, problem: GemmProblem, gpu: Gpu) -> dict[str, Any]:
    """One record: both sides' counts, and the two ratios that must agree."""
    hardware = {name: int(value) for name, value in read_hardware(rung, problem).items()}
    hardware["shared_load_instructions"] += hardware.pop("ldmatrix_instructions")
    step = Step(rung, rung.default, problem)
    (record,) = climb_on_emulator([step], gpu, suite="counters")
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
    record["provenance"] = provenance(machine_kind="gpu", gpu=gpu.name, driver=driver_version())
    return record


def _launch_once(arguments: list[str]) -> None:
    """What runs under ncu: one launch of one rung."""
    parser = argparse.ArgumentParser()
    for name in ("rung", "m", "n", "k", "layout", "dtype", "ordinal"):
        parser.add_argument(name)
    given = parser.parse_args(arguments)
    rung = find_rung(given.rung)
    problem = GemmProblem.dense(int(given.m), int(given.n), int(given.k), layout=given.layout, dtype=given.dtype)
    executor = executor_for(int(given.ordinal))
    held = [executor.upload(raw_bytes(side, problem.dtype)) for side in random_operands(problem)]
    out = executor.allocate(ITEM_BYTES[problem.out_dtype] * problem.m * problem.n)
    kernel = rung.compile(problem, rung.default, executor.arch)
    executor.launch(kernel, rung.launch(problem, rung.default, Addresses(held[0], held[1], out)))
    executor.synchronize()


if __name__ == "__main__":
    _launch_once(sys.argv[1:])
