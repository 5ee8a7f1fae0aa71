"""The emulator's speed: kernels of one kind of work each, in thread instructions per second.

The kernels are small sources of their own, so that their instructions stay what they are when rungs change. Each result
is compared with NumPy's before it is timed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..emu import EmulateResult, compiled, emulate
from ..errors import InvalidOperand, TilewrightError, WrongResult
from ..jit.tensor_map import TensorMap
from .ladder import Progress, silent
from .record import provenance

SOURCE = Path(__file__).with_suffix(".cu")
ROUNDS = 3


@dataclass(frozen=True)
class Row:
    """One launch: `make` gives its arguments, and what its last array holds after it."""

    entry: str
    grid: tuple[int, int]
    block: int
    make: Callable[[], tuple[list[Any], np.ndarray]]
    shared_bytes: int = 0
    tolerance: float = 0.0
    """Of the largest element, for sums of floats."""


def _square(n: int) -> Callable[[], tuple[list[Any], np.ndarray]]:
    def make() -> tuple[list[Any], np.ndarray]:
        a, b = np.random.default_rng(0).standard_normal((2, n, n), np.float32)
        return [a, b, np.zeros((n, n), np.float32), n], a.astype(np.float64) @ b

    return make


def _halves(n: int, maps: bool, single: bool = False) -> Callable[[], tuple[list[Any], np.ndarray]]:
    def make() -> tuple[list[Any], np.ndarray]:
        bits = np.random.default_rng(0).standard_normal((2, n, n), np.float32).view(np.uint32)
        a, b = (bits >> 16).astype(np.uint16)
        wide = (bits & 0xFFFF0000).view(np.float32).astype(np.float64)
        given: list[Any] = [x if single else x.view(np.uint32) for x in (a, b)]
        if maps:
            given = [TensorMap.of(x, (128, 64), dtype="bf16", swizzle=128) for x in (a, b)]
        return [*given, np.zeros((n, n), np.float32), n], wide[0] @ wide[1].T

    return make


def _axpy(n: int) -> tuple[list[Any], np.ndarray]:
    x, y = np.random.default_rng(0).standard_normal((2, n), np.float32)
    return [x, y, 2.5, n], 2.5 * x.astype(np.float64) + y


def _histogram(n: int) -> tuple[list[Any], np.ndarray]:
    x = np.random.default_rng(0).integers(0, 2**32, n, np.uint32)
    return [x, np.zeros(256, np.uint32), n], np.bincount(x % 256, minlength=256)


def _tickets(n: int) -> tuple[list[Any], np.ndarray]:
    x = np.random.default_rng(0).integers(0, 2**32, n, np.uint32)
    return [x, np.zeros(n, np.float32), np.zeros(64, np.float32), n], np.bincount(x % 64, minlength=64)


def _collatz(n: int) -> tuple[list[Any], np.ndarray]:
    x = np.arange(1, n + 1, dtype=np.uint32)
    value, steps = x.astype(np.int64), np.zeros(n, np.int64)
    while (value != 1).any():
        steps += value != 1
        value = np.where(value == 1, 1, np.where(value % 2, 3 * value + 1, value // 2))
    return [x, np.zeros(n, np.uint32), n], steps


def _lone(n: int) -> tuple[list[Any], np.ndarray]:
    value = 1
    for i in range(n):
        value ^= value << 13 & 0xFFFFFFFF
        value ^= value >> 17
        value ^= value << 5 & 0xFFFFFFFF
        value = value + i & 0xFFFFFFFF
    return [np.zeros(1, np.uint32), n], np.array([value])


ROWS = {
    "naive product, 512 cubed": Row("naive", (16, 64), 256, _square(512), tolerance=1e-5),
    "product by shared tiles, 256 cubed": Row("tiled", (8, 8), 1024, _square(256), tolerance=1e-5),
    "product by warp tiles, 512 cubed": Row("warp_tiles", (4, 4), 256, _square(512), tolerance=1e-5),
    "in-place axpy, 2^22": Row("axpy", (2048, 1), 256, lambda: _axpy(1 << 22), tolerance=1e-6),
    "atomics, a histogram of 2^20": Row("histogram", (256, 1), 256, lambda: _histogram(1 << 20)),
    "atomics with their old values, 2^18": Row("tickets", (1024, 1), 256, lambda: _tickets(1 << 18)),
    "divergence, Collatz of 2^14": Row("collatz", (64, 1), 256, lambda: _collatz(1 << 14)),
    "one lone thread, 2^14 steps": Row("lone", (1, 1), 1, lambda: _lone(1 << 14)),
    "mma, 1024 cubed": Row("mma", (16, 8), 128, _halves(1024, False), tolerance=1e-4),
    "cp.async and wgmma, 512 cubed, 4 stages": Row(
        "copied", (4, 8), 128, _halves(512, False, True), shared_bytes=4 * (64 + 128) * 128, tolerance=1e-4
    ),
    "TMA and wgmma, 512 cubed, 4 stages": Row(
        "ring", (4, 4), 384, _halves(512, True), shared_bytes=8 * 128 * 64 * 2, tolerance=1e-4
    ),
}
"""Name -> launch."""


def run_row(name: str) -> EmulateResult:
    """Run one row. Raises WrongResult where its result is wrong, InvalidOperand for an unknown name."""
    if name not in ROWS:
        raise InvalidOperand(f"{name!r} is not a row. Rows: {', '.join(ROWS)}.")
    row = ROWS[name]
    args, expected = row.make()
    result = emulate(SOURCE, row.entry, (*row.grid, 1), row.block, args, shared_bytes=row.shared_bytes)
    got = np.asarray(result.arrays[-1], np.float64)
    off = float(np.abs(got - expected).max(initial=0))
    if not off <= row.tolerance * float(np.abs(expected).max(initial=0)):
        raise WrongResult(f"{name}: an element differs from NumPy's by {off:.3g}")
    return result


def emulator_records(name: str, cases: list[dict[str, Any]], say: Progress = silent) -> list[dict[str, Any]]:
    """One record per row named in the cases: the compiled loops and NumPy alone, in turns, in processor seconds.

    Raises TilewrightError where there is no C compiler.
    """
    if not compiled.build():
        raise TilewrightError("there is no C compiler here, so there is nothing to compare NumPy with.")
    origin = provenance(machine_kind="emulator")
    records = []
    for number, case in enumerate(cases):
        say(number, case["row"])
        counts = run_row(case["row"]).counters.thread_instructions  # also compiles, and checks the result
        args, _ = ROWS[case["row"]].make()  # once: NumPy's threads, which wait for more work, are counted too
        pairs = []
        for _ in range(ROUNDS):
            fast = _seconds(case["row"], args)
            with compiled.without():
                pairs.append((fast, _seconds(case["row"], args)))
        seconds, numpy_seconds = (statistics.median(part) for part in zip(*pairs, strict=True))
        result = {
            "right": True, "instructions": counts, "seconds": seconds, "numpy_seconds": numpy_seconds,
            "rate": counts / seconds / 1e6, "ratio": statistics.median(slow / fast for fast, slow in pairs),
        }  # fmt: skip
        records.append({"suite": name, "case": dict(case), "result": result, "provenance": origin})
    return records


def _seconds(name: str, args: list[Any]) -> float:
    """Processor seconds of one launch, its check not included."""
    row = ROWS[name]
    started = time.process_time()
    emulate(SOURCE, row.entry, (*row.grid, 1), row.block, args, shared_bytes=row.shared_bytes)
    return time.process_time() - started
