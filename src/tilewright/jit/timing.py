"""Device time of launches: events on a stream of its own, short kernels replayed as a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from .device import bound_to, check, driver
from .loaded import private_captures

Start = Callable[[int], Any]
"""Starts one product on a stream (a CUstream as an integer)."""

SHORT_MS = 0.2
"""Kernels shorter than this are timed by graph replay: launch gaps stay out."""


class Stopwatch:
    """Times launches on a stream of its own. A context manager: the stream goes with it."""

    def __init__(self, ordinal: int) -> None:
        self.ordinal, self.api = ordinal, driver()
        with bound_to(ordinal):
            flags = self.api.CUstream_flags.CU_STREAM_NON_BLOCKING
            self.handle = check(self.api.cuStreamCreate(flags), "making a stream")
        self.stream = int(self.handle)

    def close(self) -> None:
        with bound_to(self.ordinal):
            check(self.api.cuStreamDestroy(self.handle), "closing a stream")

    def _event(self) -> Any:
        return check(self.api.cuEventCreate(0), "making an event")

    def synchronize(self) -> None:
        check(self.api.cuStreamSynchronize(self.handle), "waiting for the GPU")

    @contextmanager
    def graph_of(self, launches: Sequence[Start]) -> Iterator[Start]:
        """All launches as one graph; what comes out replays it on this stream."""
        private_captures.add(self.stream)  # `launches` outlive the graph, and with them their kernels
        mode = self.api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        check(self.api.cuStreamBeginCapture(self.handle, mode), "starting a capture")
        for launch in launches:
            launch(self.stream)
        private_captures.discard(self.stream)
        graph = check(self.api.cuStreamEndCapture(self.handle), "ending a capture")
        ready = check(self.api.cuGraphInstantiate(graph, 0), "making a graph")
        try:
            yield lambda _: check(self.api.cuGraphLaunch(ready, self.handle), "replaying a graph")
        finally:
            self.synchronize()
            check(self.api.cuGraphExecDestroy(ready), "closing a graph")
            check(self.api.cuGraphDestroy(graph), "closing a graph")

    def measure(self, launches: Sequence[Start]) -> list[float]:
        """Milliseconds of each launch, one after the other on the stream.

        The last is launched once more at the front, untimed: after it the queue fills, so that no time holds the gap
        in which an idle GPU waits for the host.
        """
        events = [self._event() for _ in range(len(launches) + 1)]
        launches[-1](self.stream)
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
            check(self.api.cuEventDestroy(event), "closing an event")
        return times
