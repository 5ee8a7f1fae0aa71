"""A GPU and a compiler made of Python, in place of tuning.run.Bench: times are the model's, unless told otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from tilewright.errors import DeviceError
from tilewright.gpus import GPUS, Gpu


class FakeBench:
    """`wrong` and `crashing` name configs by their text, `broken` by their tile; `slower` multiplies the
    modelled time of a candidate, one of so many that run side by side, in a pass by number."""

    def __init__(self, gpu: Gpu = GPUS["H200"]) -> None:
        self.ordinal, self.gpu, self.arch = 0, gpu, gpu.arch.name
        self.measured: list[Any] = []
        self.closed = 0
        self.asked: list[tuple[Any, str]] = []
        """(include, entry) of all that was to be compiled,"""
        self.generated: list[dict[str, str]] = []
        self.wrong: set[str] = set()
        self.is_wrong: Callable[[Any], bool] = lambda config: str(config) in self.wrong
        self.broken: set[str] = set()
        self.crashing: set[str] = set()
        self.is_lost = False
        self.room = 10**18
        self.passes_left = 10**9
        self.slower: Callable[[Any, int, int], float] = lambda candidate, of, number: 1.0
        self.on_pass: Callable[[int], None] = lambda number: None

    @property
    def compiled(self) -> int:
        return len(self.asked)

    def builder(self, jobs: int) -> FakeBench:
        return self

    def __enter__(self) -> FakeBench:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, include, constants, entry, arch, generated) -> Future:
        self.asked.append((include, entry))
        self.generated.append(dict(generated))
        future: Future = Future()
        tile = "x".join(str(constants.get(name)) for name in ("tile_m", "tile_n", "tile_k"))
        future.set_result(("compile", "error: no such tile") if tile in self.broken else "a kernel")
        return future

    def trial(self, family, problem) -> FakeTrial:
        if problem.bytes > self.room:
            raise DeviceError("allocating 9 bytes failed: CUDA_ERROR_OUT_OF_MEMORY")
        self.measured.append(problem)
        return FakeTrial(self)


class FakeTrial:
    def __init__(self, bench: FakeBench) -> None:
        self.bench = bench

    def __exit__(self, *_: object) -> None:
        self.bench.closed += 1

    def verify(self, candidate, kernel) -> str:
        if str(candidate.config) in self.bench.crashing:
            self.bench.is_lost = True
            raise DeviceError("launching failed: CUDA_ERROR_ILLEGAL_ADDRESS")
        return "5 elements are wrong" if self.bench.is_wrong(candidate.config) else ""

    def prepare(self, candidate, kernel) -> None:
        assert kernel == "a kernel"

    def one_pass(self, candidates: Sequence[Any], number: int) -> list[float]:
        self.bench.on_pass(number)
        self.bench.passes_left -= 1
        if self.bench.passes_left < 0:
            raise KeyboardInterrupt
        return [one.prediction.ms * self.bench.slower(one, len(candidates), number) for one in candidates]
