"""Stalls, pipes and clocks of kernels by Nsight Compute, and the emulator's counts next to the hardware's."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..attn.problem import AttentionProblem
from ..errors import InvalidOperand, MissingDependency, TilewrightError
from ..gemm.problem import GemmProblem
from ..gemm.rung import Rung
from ..gpus import Gpu
from .counters import METRICS, PIPES, STALLS, compared
from .exercise_lines import Exercise, read_exercise
from .ladder import Progress, silent
from .own_timing import product_of
from .profiled import PEERS, Problem, Target, judge_target, kind_of, launcher
from .record import provenance
from .shown import Grid, Shown
from .subject import every_rung, problem_of

_PEAK = "avg.pct_of_peak_sustained_active"
KNOWN = PIPES | {
    "time": "gpu__time_duration.sum",
    "tensor_pipe": f"sm__pipe_tensor_op_hmma_cycles_active.{_PEAK}",
    "xu_pipe": f"sm__inst_executed_pipe_xu.{_PEAK}",
}
"""Metrics that every Nsight Compute of today has."""
MORE = {
    "alu_pipe": f"sm__inst_executed_pipe_alu.{_PEAK}",
    "l2": "lts__t_sectors.avg.pct_of_peak_sustained_elapsed",
    "dram": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram_bytes": "dram__bytes.sum",
    "clock": "gpc__cycles_elapsed.avg.per_second",
}
"""Others, which are left out where Nsight Compute does not know one of them."""
HOPPER = {"gmma": "smsp__average_warps_issue_stalled_gmma_per_issue_active.ratio"}
"""A metric of sm_90: warps that wait for wgmma."""
SHARES = {
    "issue_active": "issue slots", "tensor_pipe": "tensor pipe", "fma_pipe": "fp32 pipe", "alu_pipe": "ALU pipe",
    "xu_pipe": "exponential unit", "shared_pipe": "shared memory", "l2": "L2", "dram": "device memory",
}  # fmt: skip


@dataclass(frozen=True)
class Profile:
    """One kernel's counters. Shares of a peak; stalls: warps that wait, per issued instruction."""

    what: str
    right: bool | None
    """Checked by float64 on a small problem; None for a peer."""
    kernel: str
    """The name of the kernel that took longest of the launch."""
    ms: float
    shares: dict[str, float]
    stalls: dict[str, float]
    dram_bytes: float | None
    flop_per_byte: float | None
    """The problem's operations over the bytes of device memory that moved."""
    profiled_mhz: float | None
    conditions: dict[str, float]
    """Clock, power and temperature while it ran again and again, unprofiled."""


@dataclass(frozen=True)
class Agreement:
    """One ratio of accesses, counted by the hardware and by the emulator on a smaller problem."""

    what: str
    ratio: str
    hardware: float | None
    emulator: float | None

    @property
    def agrees(self) -> float | None:
        """The emulator's over the hardware's; None without accesses."""
        return self.emulator / self.hardware if self.hardware and self.emulator is not None else None


@dataclass(frozen=True)
class ProfileReport(Shown):
    """Kernels next to each other, and the emulator next to the hardware."""

    gpu: str
    problem: str
    profiles: tuple[Profile, ...]
    agreements: tuple[Agreement, ...]
    provenance: dict[str, Any]

    def records(self) -> list[dict[str, Any]]:
        """One record per kernel (lab/record.py), of suite "profile"."""
        from dataclasses import asdict

        made = []
        for profile in self.profiles:
            case = {"rung" if profile.what not in PEERS else "peer": profile.what, "problem": self.problem}
            counted = [asdict(a) for a in self.agreements if a.what == profile.what]
            result = asdict(profile) | {"agreements": counted}
            if profile.right is None:  # a peer's kernel, which nobody judged
                del result["right"]
            made.append({"suite": "profile", "case": case, "result": result, "provenance": self.provenance})
        return made

    def grids(self) -> tuple[Grid, ...]:
        """Pipes, stalls, and agreement."""
        names = ("", *(profile.what for profile in self.profiles))

        def row(name: str, cells: Sequence[str]) -> tuple[str, ...]:
            return (name, *cells)

        rows = [row("ms", [f"{p.ms:.4f}" for p in self.profiles])]
        for key, words in SHARES.items():
            if any(key in p.shares for p in self.profiles):
                rows.append(row(words, [f"{p.shares[key]:.1%}" if key in p.shares else "-" for p in self.profiles]))
        if any(p.flop_per_byte for p in self.profiles):
            cells = [f"{p.flop_per_byte:.3g}" if p.flop_per_byte else "-" for p in self.profiles]
            rows.append(row("FLOP per byte of device memory", cells))
        for key, words in (("sm_mhz", "clock, MHz"), ("power_w", "power, W")):
            if any(key in p.conditions for p in self.profiles):
                rows.append(
                    row(words, [f"{p.conditions[key]:.0f}" if key in p.conditions else "-" for p in self.profiles])
                )
        made = [Grid(f"{self.problem} on {self.gpu}", names, tuple(rows))]
        reasons = [name for name in (*STALLS, "gmma") if any(name in p.stalls for p in self.profiles)]
        stalls = [
            row(name, [f"{p.stalls[name]:.2f}" if name in p.stalls else "-" for p in self.profiles]) for name in reasons
        ]
        made.append(Grid("Warps that wait, per issued instruction", names, tuple(stalls)))
        if self.agreements:
            told = tuple(
                (a.what, a.ratio.replace("_", " "), "-" if a.hardware is None else f"{a.hardware:.3f}",
                 "-" if a.emulator is None else f"{a.emulator:.3f}", "-" if a.agrees is None else f"{a.agrees:.3f}")
                for a in self.agreements
            )  # fmt: skip
            title = "Accesses, on a small problem"
            made.append(Grid(title, ("", "ratio", "hardware", "emulator", "emulator / hardware"), told))
        return tuple(made)


def targets(
    names: Sequence[str], *, size: int = 4096, dtype: str | None = None, layout: str = "nn", batch: int = 4,
    heads: int = 16, d_head: int = 128, causal: bool = False, entry: str | None = None,
    sizes: Mapping[str, int] | None = None,
) -> tuple[Target, ...]:  # fmt: skip
    """The kernels to profile, all of one problem: m = n = k, or queries and keys, of `size`; next to a file, a product
    of the file's sizes. entry, sizes: of a file, as in time_own.

    Raises InvalidOperand for an unknown name, and for products and attention together.
    """
    found = [kind_of(name) for name in names]
    own = {name: read_exercise(Path(name), sizes, entry) for kind, name, _ in found if kind == "own"}
    kinds = {kind for kind, *_ in found} - {"own"}
    if len(kinds) > 1:
        raise InvalidOperand(f"{', '.join(names)}: name products or attention, not both.")
    if sizes and not own:
        raise InvalidOperand("sizes replace those of a .cu file: name one, or give size.")
    problem: Problem | None = None
    if "gemm" in kinds:
        first = next((rung for _, name, _ in found if (rung := every_rung(name)) is not None), None)
        if own:
            problem = product_of(next(iter(own.values())))
        else:
            like = problem_of(first, dtype) if isinstance(first, Rung) else None
            kind = like.dtype if like is not None else dtype or "f32"
            precision = like.precision if like is not None else "ieee"
            problem = GemmProblem.dense(size, size, size, layout=layout, dtype=kind, precision=precision)
    elif kinds:
        problem = AttentionProblem.dense(batch, heads, size, size, d_head, dtype=dtype or "bf16", is_causal=causal)
    return tuple(Target(name, own.get(name) or problem, config) for _, name, config in found)  # type: ignore[arg-type]


def _described(problem: Problem) -> str:
    if isinstance(problem, GemmProblem):
        return f"{problem.kind} {problem.layout.upper()} {problem.m} x {problem.n} x {problem.k}"
    if isinstance(problem, Exercise):
        return f"{problem.entry}, {', '.join(f'{name} = {value}' for name, value in problem.sizes.items())}"
    mask = ", causal" if problem.is_causal else ""
    shape = f"{problem.batch} x {problem.heads_q} x {problem.seq_q} x {problem.d_head}"
    return f"attention {problem.dtype} {shape}{mask}"


def watch(target: Target) -> tuple[str, dict[str, float]]:
    """(kernel, metrics) of one launch, without those that its Nsight Compute does not know. Raises what read_once
    raises."""
    failures = []
    for metrics in (KNOWN | MORE | HOPPER, KNOWN | MORE, KNOWN):
        try:
            return read_once(target, metrics)
        except TilewrightError as error:
            if isinstance(error, MissingDependency):
                raise
            failures.append(str(error))
    raise TilewrightError(f"ncu could not profile {target.what}: {failures[-1]}")


def read_once(target: Target, metrics: dict[str, str]) -> tuple[str, dict[str, float]]:
    """(kernel, metrics) of one launch, in a process of its own. Raises MissingDependency without Nsight Compute, and
    TilewrightError where it does not know a metric."""
    tool = shutil.which("ncu")
    if tool is None:
        raise MissingDependency(
            "ncu (Nsight Compute) is not on the PATH; the hardware's counters cannot be read. It comes with the CUDA "
            "toolkit. Without it: tilewright ladder and tilewright emulate count accesses on the emulator."
        )
    command = [
        tool, "--profile-from-start", "off", "--clock-control", "none", "--csv", "--page", "raw",
        "--print-units", "base", "--metrics", ",".join(metrics.values()),
        sys.executable, "-m", "tilewright.lab.profiled", target.spec,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=os.environ.copy())
    try:
        return longest(done.stdout, metrics)
    except TilewrightError as error:
        raise TilewrightError(f"{error} {(done.stderr or done.stdout).strip()[-500:]}") from None


def longest(text: str, metrics: dict[str, str]) -> tuple[str, dict[str, float]]:
    """The kernel that took longest in ncu's raw CSV page, and its metrics. Raises TilewrightError."""
    rows = list(csv.reader(line for line in text.splitlines() if line.startswith('"')))
    if len(rows) < 3:
        raise TilewrightError("no kernel was profiled.")
    header, _, *kernels = rows
    if missing := [metric for metric in metrics.values() if metric not in header]:
        raise TilewrightError(f"it has no {', '.join(missing)}.")

    def value(row: list[str], metric: str) -> float:
        text = row[header.index(metric)].replace(",", "")
        try:
            return float(text)
        except ValueError:
            raise TilewrightError(f"{metric} is {text!r}.") from None

    best = max(kernels, key=lambda row: value(row, metrics["time"]))
    name = best[header.index("Kernel Name")] if "Kernel Name" in header else ""
    return name, {key: value(best, metric) for key, metric in metrics.items()}


def profile_of(
    target: Target, kernel: str, read: dict[str, float], conditions: dict[str, float], right: bool | None = None
) -> Profile:
    """Return what the metrics of a launch say."""
    moved = read.get("dram_bytes")
    flops = None if isinstance(target.problem, Exercise) else target.problem.flops
    return Profile(
        target.what, right, kernel, read["time"] * 1e-6, {name: read[name] / 100 for name in SHARES if name in read},
        {name: read[name] for name in (*STALLS, "gmma") if name in read}, moved,
        flops / moved if flops and moved else None, read["clock"] * 1e-6 if "clock" in read else None, conditions,
    )  # fmt: skip


def profile(
    names: str | Sequence[str], *, seconds: float = 1.0, small: int = 256, say: Progress = silent, **options: Any
) -> ProfileReport:
    """Return stalls, pipes, clocks and power of kernels, and of products' rungs and of files the emulator's counts.

    names: one or several of rungs (with a config: "f09:tile_k=8"), .cu files whose `// check:` lines say how to run
    them, "cublas", "flash" (FlashAttention-2), "cudnn". options: see targets. small: m = n = k of the problem
    on which a rung is judged, and on which hardware and emulator count. Needs a GPU and Nsight Compute: DeviceError,
    MissingDependency; a wrong kernel raises WrongResult. Profiling a kernel takes seconds; its times are those of one
    launch under the profiler.
    """
    from ..jit.device import device, need_gpu
    from .bench import time_pairs
    from .climb_gpu import driver_version

    chosen = targets([names] if isinstance(names, str) else names, **options)
    need_gpu("kernels are profiled", "Registers and machine code: tilewright inspect. Counts: tilewright ladder gemm.")
    where = device(0)
    profiles, agreements = [], []
    for number, target in enumerate(chosen):
        say(number, target.what)
        right = judge_target(target, small)
        kernel, read = watch(target)
        _, conditions = time_pairs(0, [launcher(target)], None, seconds=seconds, graphs=target.what not in PEERS)
        profiles.append(profile_of(target, kernel, read, conditions, right))
        agreements += [
            Agreement(target.what, ratio, sides["hardware"], sides["emulator"])
            for ratio, sides in _ratios(target, small, where.gpu).items()
        ]
    origin = provenance(machine_kind="gpu", gpu=where.name, arch=where.arch.name, driver=driver_version())
    return ProfileReport(where.name, _described(chosen[0].problem), tuple(profiles), tuple(agreements), origin)


def _ratios(target: Target, small: int, gpu: Gpu) -> dict[str, dict[str, float | None]]:
    """Accesses as the hardware and the emulator count them: of a product's rung on a problem of `small`, of a file with
    the sizes that it says; none of other kernels."""
    from .counters import counter_records
    from .exercise import run_exercise
    from .ladder import Step

    rung, p = every_rung(target.what), target.problem
    if isinstance(p, Exercise):
        said = read_exercise(p.path, None, p.entry)
        _, read = read_once(Target(target.what, said), METRICS | {"time": KNOWN["time"]})
        return compared(read, run_exercise(said, gpu.name).counters.to_dict())["ratios"]
    if not isinstance(rung, Rung) or not isinstance(p, GemmProblem):
        return {}
    cube = GemmProblem.dense(small, small, small, layout=p.layout, dtype=p.dtype)
    (counted,) = counter_records("counters", [Step(rung, rung.default, cube)], gpu)
    return counted["result"]["ratios"]


def profile_records(
    name: str, cases: Sequence[dict[str, Any]], *, seconds: float = 1.0, say: Progress = silent
) -> list[dict[str, Any]]:
    """The records of a suite: one per kernel of each case, whose other keys are options of `profile`."""
    records = []
    for case in cases:
        options = {key: value for key, value in case.items() if key != "kernels"}
        records += profile(case["kernels"], seconds=seconds, say=say, **options).records()
    return [record | {"suite": name} for record in records]
