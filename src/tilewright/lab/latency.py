"""The cost of a step that the next one waits for, in clock cycles: registers, shared memory, L1, L2, device memory.

Of memory a step is one access and the address that is made of what it brought: some five cycles more than the access.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..jit import Launch, compile_source
from ..jit.launch import Executor
from .ladder import Progress, silent
from .record import provenance

PLACES = {"device memory": 0, "L2": 0, "L1": 1, "shared memory": 2, "register": 3}
"""What holds the chain -> the kernel's `place`."""
LINE = 32
"""Words between elements of a chain in memory: 128 bytes, so that no two lie in one line."""
ROUNDS = 5


def chain_of(elements: int, apart: int = 1, seed: int = 0) -> np.ndarray:
    """uint32 [elements * apart]: from 0, each element's word holds the index of the next, all in one random cycle."""
    order = np.concatenate([[0], 1 + np.random.default_rng(seed).permutation(elements - 1)]).astype(np.uint32) * apart
    chain = np.zeros(elements * apart, np.uint32)
    chain[order] = np.roll(order, -1)
    return chain


def walked(chain: np.ndarray, place: str, steps: int) -> int:
    """Return where the rounds' steps lead from 0, with as many again in each where the kernel walks first."""
    at, held = 0, chain.tolist()
    for _ in range(ROUNDS * (steps if PLACES[place] == 0 else 2 * steps)):
        at = (at * 1664525 + 1013904223) % 2**32 if place == "register" else held[at]
    return at


def follow(executor: Executor, place: str, elements: int, steps: int) -> tuple[int, int, int]:
    """(where the kernel arrived, where it should have, clock cycles of `steps` steps: the least of ROUNDS).

    Each round goes on where the one before ended: a chain that is larger than L2 is never met again.
    """
    chain = chain_of(elements, 1 if place in ("shared memory", "register") else LINE)
    kernel = compile_source(
        Path(__file__).with_name("latency.cu").read_text(encoding="utf-8"), entry="chain",
        arch=executor.arch.name, name="latency.cu",
    )  # fmt: skip
    held = [executor.upload(data.view(np.uint8)) for data in (chain, np.zeros(1, np.uint32), np.zeros(1, np.int64))]
    try:
        params = struct.pack("<Qiii4xQQ", held[0], elements, steps, PLACES[place], *held[1:])
        launch = Launch((1, 1, 1), (1, 1, 1), params, chain.nbytes if place == "shared memory" else 0)
        cycles = []
        for _ in range(ROUNDS):
            executor.launch(kernel, launch)
            cycles.append(int(executor.download(held[2], 8).view(np.int64)[0]))
        arrived = int(executor.download(held[1], 4).view(np.uint32)[0])
    finally:
        for address in held:
            executor.release(address)
    return arrived, walked(chain, place, steps), min(cycles)


def latency_records(suite: str, cases: Sequence[dict[str, Any]], say: Progress = silent) -> list[dict[str, Any]]:
    """Records of cases {"values": a key of PLACES, "elements", "steps"}: cycles per step, where the walk ended right.

    Raises DeviceError without a GPU.
    """
    from ..jit.device import device
    from ..jit.gpu_executor import executor_for
    from .climb_gpu import driver_version

    where, records = device(0), []
    origin = provenance(machine_kind="gpu", gpu=where.name, arch=where.arch.name, driver=driver_version())
    for number, case in enumerate(cases):
        say(number, f"a chain through {case['values']}")
        arrived, expected, cycles = follow(executor_for(0), case["values"], case["elements"], case["steps"])
        result = {"right": arrived == expected, "cycles": cycles / case["steps"]}
        if arrived != expected:
            result |= {"reason": f"the chain led to {arrived}, not to {expected}"}
        records.append({"suite": suite, "case": dict(case), "result": result, "provenance": origin})
    return records
