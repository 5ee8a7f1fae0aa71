"""Times on a GPU, as ratios inside one run: candidate and reference interleaved, pair by pair.

Device time comes from events. Short kernels are captured into a graph and replayed, so that launch gaps stay out; what
a call costs the host is another figure (lab/host.py, host_pairs.py). Clocks and power are read, never set.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from ..jit.device import bound_to, check, device, driver
from ..jit.timing import SHORT_MS, Start, Stopwatch

LEAST_REPLAYS = 20
"""Launches in one graph, at least; always whole rounds of the buffer sets."""
QUEUE_MS = 50.0
"""Pairs worth this much are queued before the host waits: the GPU never idles between pairs."""
MOST_AT_ONCE = 100
LONG_MS = 1000.0
FEW_PAIRS = 2
"""Pairs at least where one takes longer than LONG_MS, without a warm-up before them: seconds of work are one."""
MOST_WAIT_S = 3.0
"""How much longer than asked a measurement goes on until the conditions have been read under load."""


@dataclass(frozen=True)
class Timing:
    """`ms`: median of one product. `ratio`: median of reference time over candidate time, pair by pair (above 1: the
    candidate is faster), with its 10th and 90th percentile; None without a reference."""

    ms: float
    pairs: int
    by_graph: bool
    reference_ms: float | None = None
    ratio: float | None = None
    ratio_p10: float | None = None
    ratio_p90: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def percentile(values: Sequence[float], share: float) -> float:
    """Interpolate linearly between the closest ranks. `share` in 0..1."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def summary(samples: Sequence[Sequence[float]], launches: int, by_graph: bool) -> Timing:
    """Timing of samples in ms, each (candidate,) or (candidate, reference), of `launches` products each."""
    own = median(sample[0] / launches for sample in samples)
    if len(samples[0]) == 1:
        return Timing(own, len(samples), by_graph)
    ratios = [reference / candidate for candidate, reference in samples]
    return Timing(
        own, len(samples), by_graph, median(sample[1] / launches for sample in samples), median(ratios),
        percentile(ratios, 0.1), percentile(ratios, 0.9),
    )  # fmt: skip


class Conditions:
    """SM clock (MHz), power (W) and temperature (C), read by nvidia-smi in the background while work goes on."""

    FIELDS = ("clocks.sm", "power.draw", "temperature.gpu")
    NAMES = ("sm_mhz", "power_w", "temperature_c")

    def __init__(self, pci_bus_id: str) -> None:
        tool = shutil.which("nvidia-smi")
        self._process = None
        if tool is not None:
            self._process = subprocess.Popen(
                [tool, f"--id={pci_bus_id}", f"--query-gpu={','.join(self.FIELDS)}", "--format=csv,noheader,nounits"],
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            )  # fmt: skip

    def pending(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def read(self) -> dict[str, float]:
        """Return what was read; {} where the tool is missing or does not answer within seconds."""
        if self._process is None:
            return {}
        try:
            output, _ = self._process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            return {}
        return parse_conditions(output)


def parse_conditions(output: str) -> dict[str, float]:
    """The values that nvidia-smi could tell ("[N/A]" is left out)."""
    found = {}
    for name, text in zip(Conditions.NAMES, output.strip().split(","), strict=False):
        try:
            found[name] = float(text)
        except ValueError:
            continue
    return found


def pci_bus_id(ordinal: int) -> str:
    """Return what nvidia-smi calls this GPU, whatever CUDA_VISIBLE_DEVICES hides."""
    text = check(driver().cuDeviceGetPCIBusId(16, device(ordinal).handle), "reading the GPU's bus id")
    return text.split(b"\0")[0].decode()


def paired_samples(
    measure: Callable[[Sequence[Start]], list[float]],
    sides: Sequence[Sequence[Start]],
    seconds: float,
    least: int,
    at_once: int = 1,
    pending: Callable[[], bool] = lambda: False,
) -> list[list[float]]:
    """Samples for `seconds`, at least `least`, longer while `pending`; each the times of all sides on one buffer set.

    The sets are rotated through; who comes first changes from sample to sample. `at_once` samples are queued together.
    """
    samples: list[list[float]] = []
    start = time.perf_counter()
    while True:
        gone = time.perf_counter() - start
        if len(samples) >= least and gone >= seconds and not (pending() and gone < seconds + MOST_WAIT_S):
            return samples
        batch = [
            [side[index % len(side)] for side in sides][:: 1 if index % 2 == 0 else -1]
            for index in range(len(samples), len(samples) + at_once)
        ]
        times = iter(measure([launch for sample in batch for launch in sample]))
        for sample in batch:
            taken = [next(times) for _ in sample]
            samples.append(taken[:: 1 if len(samples) % 2 == 0 else -1])


def time_pairs(
    ordinal: int,
    candidates: Sequence[Start],
    references: Sequence[Start] | None,
    *,
    seconds: float = 1.0,
    least_pairs: int = 10,
    graphs: bool = True,
    watched: bool = True,
) -> tuple[Timing, dict[str, float]]:
    """(times, conditions under load). One launch a buffer set: the sets are rotated through.

    Without `graphs` short kernels are not replayed from graphs either: for references that allocate as they run. Warms
    up for half of `seconds`, then measures pairs for `seconds`, at least `least_pairs`, or FEW_PAIRS where one takes
    longer than LONG_MS; the conditions are read while the pairs run. They may have to go on for that: where not
    `watched`, nothing is read, and {} is given.
    """
    watch = Stopwatch(ordinal)
    sides: list[list[Start]] = [list(candidates)] + ([list(references)] if references else [])
    try:
        with bound_to(ordinal), ExitStack() as open_graphs:
            # loads modules and workspaces, apart from any time
            firsts = [watch.measure([side[index] for side in sides]) for index in range(len(candidates))]
            launches, by_graph, at_once = 1, False, 1
            if min(map(sum, firsts)) > LONG_MS:
                seconds, least_pairs = 0.0, min(least_pairs, FEW_PAIRS)
            else:
                by_graph = graphs and median(watch.measure(sides[0])) < SHORT_MS
                if by_graph:
                    rounds = -(-LEAST_REPLAYS // len(candidates))
                    launches = rounds * len(candidates)
                    sides = [[open_graphs.enter_context(watch.graph_of(side * rounds))] for side in sides]
                pair_ms = sum(watch.measure([side[0] for side in sides]))
                at_once = min(max(1, int(QUEUE_MS / pair_ms)), MOST_AT_ONCE)
                paired_samples(watch.measure, sides, seconds / 2, 3, at_once)
            if not watched:
                samples = paired_samples(watch.measure, sides, seconds, least_pairs, at_once)
                return summary(samples, launches, by_graph), {}
            conditions = Conditions(pci_bus_id(ordinal))
            samples = paired_samples(watch.measure, sides, seconds, least_pairs, at_once, conditions.pending)
            return summary(samples, launches, by_graph), conditions.read()
    finally:
        watch.close()
