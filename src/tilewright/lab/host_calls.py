"""The host's time of calls, wherever their arrays come from, and of the library's own call, round by round.

A case is {"call": a name of host_pairs.CALLS, "goal": {...}}. A goal holds where ours takes at most `of_reference`
times the library's time plus `more_us`, or at most `us`. A library that is not here makes a record that says so.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import numpy as np

from ..errors import MissingDependency, TilewrightError
from .bench import percentile
from .host_pairs import CALLS, Pair
from .ladder import Progress, silent
from .record import provenance

ROUNDS = 9
PASSES = 2
ROUND_S = 0.02
"""About how long one side of a round lasts."""
MOST_CALLS = 1000


_FIRST_PLAN = """
import sys, time
from tilewright.gemm.problem import GemmProblem
from tilewright.gpus import find_gpu
from tilewright.gemm.family import plan_for
gpu, taken = find_gpu(sys.argv[1]), []
for m in (1000, 1001):
    problem = GemmProblem.dense(m, 4096, 4096, dtype="bf16")
    start = time.perf_counter()
    plan_for(problem, gpu)
    taken.append(time.perf_counter() - start)
print(*taken)
"""


def first_plan_us(gpu: str) -> list[tuple[float, float]]:
    """Microseconds of the first plan of a process and of the next one, for ROUNDS processes."""
    samples = []
    for _ in range(ROUNDS):
        done = subprocess.run(
            [sys.executable, "-c", _FIRST_PLAN, gpu], capture_output=True, text=True, timeout=120, check=False
        )
        if done.returncode:
            raise TilewrightError(f"a process that makes one plan failed: {done.stderr[-500:]}")
        first, second = (float(taken) * 1e6 for taken in done.stdout.split())
        samples.append((first, second))
    return samples


FIRST_PLAN = "the first plan of a process"


def agree(pair: Pair) -> str:
    """Why our result is not the library's; "" where both are the same but for rounding. NaN never passes."""
    assert pair.theirs is not None
    mine, its = pair.read(pair.ours()), pair.read(pair.theirs())
    if mine.shape != its.shape:
        return f"the result is {mine.shape}, the library's {its.shape}"
    scale = float(np.abs(its).max(initial=1.0))
    worst = float(np.abs(mine.astype(np.float64) - its).max(initial=0.0))
    return "" if worst <= 0.02 * scale else f"differs from the library's result by {worst:.3g} of {scale:.3g}"


def _once(call: Callable[[], Any], wait: Callable[[], None]) -> float:
    wait()
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e6


def _mean(call: Callable[[], Any], wait: Callable[[], None], calls: int) -> float:
    wait()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    taken = (time.perf_counter() - start) / calls * 1e6
    wait()
    return taken


def _least(call: Callable[[], Any], wait: Callable[[], None]) -> float:
    """The least mean of a few rounds."""
    for _ in range(3):
        call()
    calls = max(1, min(MOST_CALLS, int(ROUND_S * 1e6 / max(_once(call, wait), 1.0))))
    return min(_mean(call, wait, calls) for _ in range(ROUNDS))


def samples_of(pair: Pair, rounds: int = ROUNDS) -> Iterator[tuple[float, float]]:
    """(our microseconds per call, the library's), round by round; who comes first changes from round to round."""
    sides = [pair.ours, pair.theirs]
    assert sides[1] is not None
    if pair.once:
        # agree has taken one of each; the last is left so that neither side ends first
        for number in range(pair.once - 2):
            order = (0, 1) if number % 2 == 0 else (1, 0)
            taken = {side: _once(sides[side], pair.wait) for side in order}  # type: ignore[arg-type]
            yield taken[0], taken[1]
        return
    counts = []
    for side in sides:
        for _ in range(3):
            side()  # type: ignore[misc]
        counts.append(max(1, min(MOST_CALLS, int(ROUND_S * 1e6 / max(_once(side, pair.wait), 1.0)))))  # type: ignore[arg-type]
    for number in range(rounds):
        order = (0, 1) if number % 2 == 0 else (1, 0)
        taken = {side: _mean(sides[side], pair.wait, counts[side]) for side in order}  # type: ignore[arg-type]
        yield taken[0], taken[1]


def least_disturbed(pair: Pair) -> list[tuple[float, float]]:
    """The samples of the pass in which the library's own call took the least: others may have used the host in the
    other one. What can be called once only has one pass."""
    passes = [list(samples_of(pair)) for _ in range(1 if pair.once else PASSES)]
    return min(passes, key=lambda samples: median(its for _, its in samples))


def met(goal: dict[str, float], us: float, reference_us: float | None) -> bool | None:
    """Return whether a goal holds; None without one."""
    limits = [goal["us"]] if "us" in goal else []
    if reference_us is not None and ("of_reference" in goal or "more_us" in goal):
        limits.append(goal.get("of_reference", 1.0) * reference_us + goal.get("more_us", 0.0))
    return us <= max(limits) if limits else None


def in_words(goal: dict[str, float]) -> str:
    """A goal as a table says it."""
    parts = []
    if "of_reference" in goal or "more_us" in goal:
        share = goal.get("of_reference", 1.0)
        text = "the library's" if share == 1.0 else f"{share:g} of the library's"
        parts.append(text + (f" and {goal['more_us']:g} us" if "more_us" in goal else ""))
    if "us" in goal:
        parts.append(f"{goal['us']:g} us")
    return " or ".join(parts)


def _timed(case: dict[str, Any], device: str, gpu: str) -> dict[str, Any]:
    goal = case.get("goal", {})
    samples: list[tuple[float, float | None]]
    if case["call"] == FIRST_PLAN:
        plans = first_plan_us(gpu)
        samples = [(first, None) for first, _ in plans]
        parts = {"a plan after it": median(second for _, second in plans)}
    else:
        pair = CALLS[case["call"]](device)
        if reason := agree(pair):
            return {"right": False, "reason": reason}
        samples = [*least_disturbed(pair)]
        parts = {name: _least(call, pair.wait) for name, call in pair.parts.items()}
    us = median(sample[0] for sample in samples)
    result: dict[str, Any] = {
        "right": True, "reason": "", "host_us": us, "host_us_p90": percentile([s[0] for s in samples], 0.9),
        "rounds": len(samples),
    }  # fmt: skip
    reference = None
    if samples[0][1] is not None:
        pairs = [(mine, its) for mine, its in samples if its is not None]
        ratios = [its / mine for mine, its in pairs]
        reference = median(its for _, its in pairs)
        result |= {
            "reference_us": reference, "ratio": median(ratios), "ratio_p10": percentile(ratios, 0.1),
            "ratio_p90": percentile(ratios, 0.9),
        }  # fmt: skip
    told = {"parts_us": parts} if parts else {}
    return result | told | {"goal": in_words(goal), "met": met(goal, us, reference)}


def host_call_records(
    suite: str, cases: list[dict[str, Any]], say: Progress = silent, device: str = "cuda", gpu: str | None = None
) -> list[dict[str, Any]]:
    """One record a case. A library that is not here, or sees no GPU, makes a record whose "right" is None, with why.

    `device` "cpu" is for tests, on the emulator.
    """
    from .climb_gpu import driver_version

    if gpu is None:
        from ..jit.device import device as device_of

        where = device_of(0)
        origin, gpu = provenance(machine_kind="gpu", gpu=where.name, driver=driver_version()), where.gpu.name
    else:
        origin = provenance(machine_kind="emulator", gpu=gpu)
    records = []
    for number, case in enumerate(cases):
        say(number, case["call"])
        try:
            result = _timed(case, device, gpu)
        except ImportError as error:
            result = {"right": None, "reason": f"{error.name or error} is not installed"}
        except MissingDependency as error:
            result = {"right": None, "reason": str(error)}
        told = {"call": case["call"], "dtype": "f32" if ":" in case["call"] and "torch" not in case["call"] else "bf16"}
        records.append({"suite": suite, "case": told, "result": result, "provenance": origin | _version(case["call"])})
    return records


def _version(call: str) -> dict[str, str]:
    """The version of the library that a call is compared with, where it is loaded."""
    name = {"CuPy": "cupy", "JAX": "jax"}.get(call.partition(":")[0], "torch")
    module = sys.modules.get(name)
    return {"reference_version": f"{name} {module.__version__}"} if module is not None else {}
