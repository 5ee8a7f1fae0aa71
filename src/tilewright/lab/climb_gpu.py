"""Climbing on a GPU: each rung is checked, then timed in pairs with cuBLAS; peers after them, in the same pairs."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from typing import Any

from ..jit.device import Device, device, driver
from ..jit.device import check as check_call
from .ground import Ground, rung_launcher
from .ladder import Progress, Step, as_record, run_checked, silent, verdict_dict
from .peers import Peer
from .peers.compete import peer_record
from .record import provenance
from .reference import find_reference


def climb_on_gpu(
    steps: Sequence[Step], ordinal: int = 0, suite: str = "gpu-ladder", seconds: float = 1.0, say: Progress = silent,
    peers: Sequence[Peer] = (),
) -> list[dict[str, Any]]:  # fmt: skip
    """One record a step: the check, then times, paired with cuBLAS where a library brings it. Wrong is not timed.

    Then one record a peer and problem, judged and paired in the same way; of a peer that is not there, or cannot make
    the product, the reason. Raises DeviceError without a GPU, or when a kernel faults: the context is then lost, and
    the climb with it.
    """
    where = device(ordinal)
    library, no_library = find_reference(ordinal)
    origin = origin_of(where, library.name if library else None, library.version if library else None)
    origin |= {"no_reference": no_library or None}
    records: list[dict[str, Any]] = []
    for problem in dict.fromkeys(step.problem for step in steps):
        ground = Ground(problem, where, library)
        say(len(records), f"reference of {problem.m} x {problem.n} x {problem.k} {problem.layout}")
        for step in (step for step in steps if step.problem == problem):
            say(len(records), step.rung.id)
            records.append(_rung_record(step, ground, suite, seconds, origin))
        for peer in peers:
            say(len(records), peer.id)
            records.append(peer_record(peer, ground, suite, seconds, origin))
    return records


def origin_of(where: Device, reference: str | None, version: str | None) -> dict[str, Any]:
    """The provenance of a measurement on a GPU, with its reference."""
    return provenance(
        machine_kind="gpu", gpu=where.name, arch=where.arch.name, driver=driver_version(), reference=reference,
        reference_version=version,
    )  # fmt: skip


def _rung_record(step: Step, ground: Ground, suite: str, seconds: float, origin: dict[str, Any]) -> dict[str, Any]:
    kernel = step.rung.compile(step.problem, step.config, ground.where.arch)
    verdict = run_checked(step, kernel, ground.executor, ground.given)
    result = verdict_dict(verdict) | step.facts(kernel, ground.where.gpu)
    if verdict.ok:
        launches = list(map(rung_launcher(step, ground.where), ground.sets))
        result |= ground.timed(launches, seconds)
    return as_record(suite, step, result, origin)


@cache
def driver_version() -> str:
    """The driver's own version where nvidia-smi says it, else the CUDA version it serves. Raises DeviceError."""
    if tool := shutil.which("nvidia-smi"):
        done = subprocess.run(
            [tool, "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True, timeout=30,
            check=False,
        )  # fmt: skip
        if done.returncode == 0 and done.stdout.strip():
            return done.stdout.splitlines()[0].strip()
    number = int(check_call(driver().cuDriverGetVersion(), "reading the driver's version"))
    return f"CUDA {number // 1000}.{number % 1000 // 10}"
