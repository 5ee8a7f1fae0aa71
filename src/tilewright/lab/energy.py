"""The joules that products cost: NVIDIA's counter of a GPU's energy, read around seconds of work."""

from __future__ import annotations

import ctypes
import ctypes.util
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import Any

from ..errors import DeviceError
from ..jit.timing import Start, Stopwatch

TURNS = 2
"""How often each side runs for its seconds."""
QUEUE_MS = 20.0
"""Work that one graph holds."""
SETTLING = 0.3
"""Seconds of the same work before each reading: clocks follow power with a delay."""


class EnergyMeter:
    """A GPU's energy since the driver was loaded, by NVML. Raises DeviceError where that is not to be had."""

    def __init__(self, pci_bus_id: str) -> None:
        name = ctypes.util.find_library("nvidia-ml") or "libnvidia-ml.so.1"
        try:
            self._nvml: Any = ctypes.CDLL(name)
        except OSError as error:
            raise DeviceError(f"NVIDIA's management library cannot be loaded ({error}): joules need it.") from error
        self._gpu = ctypes.c_void_p()
        self._call("nvmlInit_v2")
        self._call("nvmlDeviceGetHandleByPciBusId_v2", pci_bus_id.encode(), ctypes.byref(self._gpu))

    def _call(self, name: str, *arguments: Any) -> None:
        if status := getattr(self._nvml, name)(*arguments):
            raise DeviceError(f"{name} gave status {status}: the GPU's energy cannot be read.")

    def joules(self) -> float:
        """Return the counter."""
        read = ctypes.c_ulonglong()
        self._call("nvmlDeviceGetTotalEnergyConsumption", self._gpu, ctypes.byref(read))
        return read.value * 1e-3

    def sm_mhz(self) -> int:
        """Return the clock of the SMs."""
        read = ctypes.c_uint()
        self._call("nvmlDeviceGetClockInfo", self._gpu, 1, ctypes.byref(read))
        return read.value


@dataclass(frozen=True)
class Sustained:
    """Medians of a side's turns."""

    tflops: float
    watts: float
    joules_per_tflop: float
    sm_mhz: float


def run_in_turns(
    meter: EnergyMeter, sides: Sequence[Sequence[Start]], flops: int, seconds: float
) -> tuple[Sustained, ...]:
    """Run each side for `seconds`, without a pause, in turns. A side is its launches, one for each set of buffers;
    `flops`: of one launch."""
    watch = Stopwatch(0)
    try:
        with ExitStack() as open_graphs:
            graphs, products = [], 0
            for side in sides:
                once = min(watch.measure([*side, *side]))
                rounds = max(1, round(QUEUE_MS / (once * len(side))))
                products = rounds * len(side)
                graphs.append(open_graphs.enter_context(watch.graph_of(list(side) * rounds)))
            turns = [[_turn(meter, watch, graph, flops * products, seconds) for graph in graphs] for _ in range(TURNS)]
    finally:
        watch.close()
    return tuple(
        Sustained(*(median(values) for values in zip(*of_a_side, strict=True)))
        for of_a_side in zip(*turns, strict=True)
    )


def _turn(
    meter: EnergyMeter, watch: Stopwatch, graph: Callable[[int], Any], flops: int, seconds: float
) -> tuple[float, float, float, float]:
    """(TFLOP/s, W, J per TFLOP, MHz) of a graph that does `flops`."""

    def run_for(limit: float) -> tuple[int, list[int]]:
        count, clocks, start = 0, [], time.perf_counter()
        while time.perf_counter() - start < limit:
            graph(0)
            graph(0)  # the second is queued while the first runs
            clocks.append(meter.sm_mhz())
            watch.synchronize()
            count += 2
        return count, clocks

    run_for(SETTLING)
    before, start = meter.joules(), time.perf_counter()
    count, clocks = run_for(seconds)
    took, used = time.perf_counter() - start, meter.joules() - before
    work = flops * count * 1e-12
    return work / took, used / took, used / work, float(median(clocks))
