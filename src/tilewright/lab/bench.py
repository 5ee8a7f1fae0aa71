"""Times on a GPU, as ratios inside one run: candidate and reference interleaved, pair by pair.

Device time comes from events. Short kernels are captured into a graph and replayed, so that launch gaps stay out; what
a call costs the host is another figure (lab/host.py). Clocks and power are read, never set.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from ..jit.device import bound_to, check, driver

Launch = Callable[[int], None]

SHORT_MS = 0.2
"""Kernels shorter than this are timed by graph replay."""
REPLAYS = 20
"""Launches in one graph."""


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
    """By linear interpolation between the closest ranks."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def conditions(ordinal: int) -> dict[str, float]:
    """SM clock (MHz), power (W) and temperature (C) now, by nvidia-smi; {} where it is missing."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return {}
    fields = "clocks.sm,power.draw,temperature.gpu"
    done = subprocess.run(
        [tool, f"--id={ordinal}", f"--query-gpu={fields}", "--format=csv,noheader,nounits"],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    try:
        clock, power, temperature = (float(part) for part in done.stdout.split(","))
    except ValueError:
        return {}
    return {"sm_mhz": clock, "power_w": power, "temperature_c": temperature}


class Stopwatch:
    """Times launches on a stream of its own."""

    def __init__(self, ordinal: int) -> None:
        self.ordinal, self.api = ordinal, driver()
        with bound_to(ordinal):
            flags = self.api.CUstream_flags.CU_STREAM_NON_BLOCKING
            self.handle = check(self.api.cuStreamCreate(flags), "making a stream")
        self.stream = int(self.handle)

    def _event(self) -> Any:
        return check(self.api.cuEventCreate(0), "making an event")

    def synchronize(self) -> None:
        check(self.api.cuStreamSynchronize(self.handle), "waiting for the GPU")

    def graph_of(self, launch: Launch, times: int) -> Launch:
        """`times` launches as one graph; the result replays it on this stream."""
        mode = self.api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        check(self.api.cuStreamBeginCapture(self.handle, mode), "starting a capture")
        for _ in range(times):
            launch(self.stream)
        graph = check(self.api.cuStreamEndCapture(self.handle), "ending a capture")
        ready = check(self.api.cuGraphInstantiate(graph, 0), "making a graph")
        return lambda _: check(self.api.cuGraphLaunch(ready, self.handle), "replaying a graph")

    def measure(self, launches: Sequence[Launch]) -> list[float]:
        """Milliseconds of each launch, one after the other on the stream, once."""
        events = [self._event() for _ in range(len(launches) + 1)]
        check(self.api.cuEventRecord(events[0], self.handle), "recording an event")
        for launch, event in zip(launches, events[1:], strict=True):
            launch(self.stream)
            check(self.api.cuEventRecord(event, self.handle), "recording an event")
        self.synchronize()
        times = [
            float(check(self.api.cuEventElapsedTime(first, last), "reading an event"))
            for first, last in pairwise(events)
        ]
        for event in events:
            self.api.cuEventDestroy(event)
        return times


def time_pairs(
    ordinal: int,
    candidates: Sequence[Launch],
    references: Sequence[Launch] | None,
    *,
    seconds: float = 1.0,
    least_pairs: int = 10,
    on_pair: Callable[[], None] = lambda: None,
) -> tuple[Timing, dict[str, float]]:
    """(times, conditions under load). One launch a buffer set: the sets are rotated through.

    Warms up for a third of `seconds` (and at least three rounds), reads the conditions while work is queued, then
    measures pairs for `seconds`, at least `least_pairs`.
    """
    watch = Stopwatch(ordinal)
    with bound_to(ordinal):
        sets = len(candidates)
        both = [list(candidates)] + ([list(references)] if references else [])
        once = max(watch.measure([launches[i] for launches in both])[0] for i in range(sets))
        by_graph = once < SHORT_MS
        each = REPLAYS if by_graph else 1
        if by_graph:
            both = [[watch.graph_of(launch, REPLAYS) for launch in launches] for launches in both]
        rounds = max(3, int(seconds / 3 / max(once * each * len(both) * 1e-3, 1e-6)))
        for i in range(min(rounds, 5000)):
            for launches in both:
                launches[i % sets](watch.stream)
        state = conditions(ordinal)  # the queue is still running
        watch.synchronize()
        samples: list[list[float]] = []
        start = time.perf_counter()
        while len(samples) < least_pairs or time.perf_counter() - start < seconds:
            i = len(samples)
            order = both if i % 2 == 0 else both[::-1]  # who comes first changes from pair to pair
            times = watch.measure([launches[i % sets] for launches in order])
            samples.append(times if i % 2 == 0 else times[::-1])
            on_pair()
    own = [sample[0] / each for sample in samples]
    if not references:
        return Timing(median(own), len(samples), by_graph), state
    ratios = [sample[1] / sample[0] for sample in samples]
    return (
        Timing(
            median(own), len(samples), by_graph, median(sample[1] / each for sample in samples), median(ratios),
            percentile(ratios, 0.1), percentile(ratios, 0.9),
        ),
        state,
    )  # fmt: skip
