"""Nsight Compute's (ncu) counters of one launch, and the emulator's; and what warps wait for."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..arrays.dtypes import ITEM_BYTES
from ..errors import MissingDependency, TilewrightError
from ..gemm.problem import GemmProblem
from ..gemm.rungs import find_rung
from ..gpus import Gpu
from ..jit.gpu_executor import executor_for
from .climb_gpu import driver_version
from .ladder import (
    Progress,
    Step,
    TrialOperands,
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
_OF_PRODUCTS = PIPES | {
    "dram_bytes": "dram__bytes.sum",
    "tensor_pipe": "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active",
}


def watched(module: str, launches: Sequence[str], metrics: Mapping[str, str]) -> list[dict[str, float]]:
    """The metrics of each launch: `python -m module LAUNCH...` makes them in order, all in one process under ncu.

    Raises MissingDependency without ncu, TilewrightError where it profiled another number of kernels.
    """
    tool = shutil.which("ncu")
    if tool is None:
        raise MissingDependency("ncu (Nsight Compute) is not on the PATH; the hardware's counters cannot be read.")
    command = [
        tool, "--clock-control", "none", "--csv", "--page", "raw", "--metrics", ",".join(metrics.values()),
        sys.executable, "-m", module, *launches,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=os.environ.copy())
    return parse_csv(done.stdout, len(launches), done.stderr, metrics)


def read_hardware(steps: Sequence[Step], metrics: Mapping[str, str] = METRICS) -> list[dict[str, float]]:
    """The metrics of one launch of each step's rung in its default config. Raises MissingDependency without ncu."""
    launches = [
        ":".join(map(str, (step.rung.id, p.m, p.n, p.k, p.layout, p.dtype)))
        for step, p in ((step, step.problem) for step in steps)
    ]
    return watched("tilewright.lab.counters", launches, metrics)


def stall_records(steps: Sequence[Step], gpu: Gpu, say: Progress = silent) -> list[dict[str, Any]]:
    """One record a step: the check, the busiest pipes (shares), warps stalled per issued instruction by reason.

    `cycles_per_product`: active cycles of an SM's quarter for each of its tensor-core instructions. `flop_per_byte`: of
    what device memory read and wrote.
    """
    executor, records = executor_for(0), []
    operands: dict[GemmProblem, TrialOperands] = {}
    origin = provenance(machine_kind="gpu", gpu=gpu.name, arch=gpu.arch.name, driver=driver_version())
    say(0, "Nsight Compute")
    for number, (step, read) in enumerate(zip(steps, read_hardware(steps, _OF_PRODUCTS), strict=True)):
        say(number, step.rung.id)
        if step.problem not in operands:
            operands = {step.problem: prepare(step.problem)}
        kernel = step.rung.compile(step.problem, step.config, gpu.arch)
        result = verdict_dict(run_checked(step, kernel, executor, operands[step.problem]))
        products, quarters = read["products"], gpu.arch.warp_schedulers * gpu.sm_count
        result |= {name: read[name] / 100 for name in ("issue_active", "fma_pipe", "shared_pipe", "tensor_pipe")}
        result["cycles_per_product"] = read["cycles"] * quarters / products if products else None
        result["flop_per_byte"] = step.problem.flops / read["dram_bytes"]
        result["stalls"] = {name: read[name] for name in STALLS}
        records.append(as_record("stalls", step, result, origin))
    return records


def parse_csv(
    text: str, count: int = 1, error: str = "", metrics: Mapping[str, str] = METRICS
) -> list[dict[str, float]]:
    """The metrics of each kernel in ncu's raw CSV page. Raises TilewrightError unless there are `count`."""
    rows = list(csv.reader(line for line in text.splitlines() if line.startswith('"')))
    header, values = rows[0] if rows else [], rows[2:]
    if len(values) != count:
        raise TilewrightError(f"ncu profiled {len(values)} kernels instead of {count}: {(error or text)[-500:]}")
    return [{name: float(row[header.index(metric)].replace(",", "")) for name, metric in metrics.items()}
            for row in values]  # fmt: skip


def counter_records(suite: str, steps: Sequence[Step], gpu: Gpu, say: Progress = silent) -> list[dict[str, Any]]:
    """One record a step, whose rung runs in its default config: both sides' counts, and the ratios that must agree."""
    say(0, "Nsight Compute")
    records = []
    for number, (step, read) in enumerate(zip(steps, read_hardware(steps), strict=True)):
        say(number, step.rung.id)
        records.append(_compared(step, read, gpu) | {"suite": suite})
    return records


def _compared(step: Step, read: Mapping[str, float], gpu: Gpu) -> dict[str, Any]:
    (record,) = climb_on_emulator([step], gpu, suite="counters")
    record["result"] = {"right": record["result"]["right"]} | compared(read, record["result"]["counters"])
    record["provenance"] = provenance(machine_kind="gpu", gpu=gpu.name, driver=driver_version())
    return record


_RATIOS = {
    "sectors_per_load": ("global_load_sectors", "global_load_requests"),
    "sectors_per_store": ("global_store_sectors", "global_store_requests"),
    "wavefronts_per_shared_load": ("shared_load_wavefronts", "shared_load_instructions"),
    "wavefronts_per_shared_store": ("shared_store_wavefronts", "shared_store_instructions"),
}


def compared(read: Mapping[str, float], emulated: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    """The counts of METRICS by the hardware (`read`) and by the emulator (its Counters), and the ratios that must
    agree; a ratio is None where there was no access."""
    hardware = {name: int(read[name]) for name in METRICS}
    hardware["shared_load_instructions"] += hardware.pop("ldmatrix_instructions")
    mine = {
        "global_load_requests": emulated["global_load_requests"] + emulated["async_copy_requests"],
        "global_load_sectors": emulated["global_load_sectors"] + emulated["async_copy_sectors"],
    } | {name: emulated[name] for name in METRICS if name in emulated and not name.startswith("global_load")}
    mine["shared_load_instructions"] = emulated["shared_load_requests"]
    mine["shared_store_instructions"] = emulated["shared_store_requests"]

    def ratio(side: dict[str, int], part: str, whole: str) -> float | None:
        return side[part] / side[whole] if side[whole] else None

    ratios = {
        name: {"hardware": ratio(hardware, *pair), "emulator": ratio(mine, *pair)} for name, pair in _RATIOS.items()
    }
    return {"hardware": hardware, "emulator": mine, "ratios": ratios}


def _launch_each(launches: Sequence[str]) -> None:
    """Launch what runs under ncu: one launch of each rung named, with its default config."""
    executor = executor_for(0)
    for launch in launches:
        name, m, n, k, layout, dtype = launch.split(":")
        rung, problem = find_rung(name), GemmProblem.dense(int(m), int(n), int(k), layout=layout, dtype=dtype)
        a, b = (executor.upload(raw_bytes(side, problem.dtype)) for side in random_operands(problem))
        out = executor.allocate(ITEM_BYTES[problem.out_dtype] * problem.m * problem.n)
        program = Step(rung, rung.default, problem).program
        # as the stage before leaves it, which would be a second kernel
        work = executor.upload(np.zeros(program.workspace_bytes, np.uint8)) if program.workspace_bytes else 0
        product, bases = program.product, {"a": a, "b": b, "c": 0, "out": out, "work": work}
        executor.launch(product.compile(executor.arch), product.launch(bases, {"alpha": 1.0, "beta": 0.0}))
        executor.synchronize()


if __name__ == "__main__":
    _launch_each(sys.argv[1:])
