"""The host's time of one warm call, without the GPU's: microseconds of the Python thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median


def host_microseconds(
    call: Callable[[], object], wait: Callable[[], None], calls: int = 1000, rounds: int = 9
) -> float:
    """Median over rounds of the mean of `calls` calls. `wait` empties the GPU's queue between rounds.

    The queue must not fill: the GPU's part of a call must be shorter than the host's.
    """
    times = []
    for _ in range(rounds):
        wait()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - start) / calls * 1e6)
        wait()
    return median(times[1:])
