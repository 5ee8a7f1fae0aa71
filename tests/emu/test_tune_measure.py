"""What measures candidates on a GPU, run on the emulator: operands, reference, verdicts, starts. Times are made up.

The emulator stands for the GPU's memory and launches; of the driver only what fills and copies memory is played.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import numpy as np
import pytest

from tilewright.attn import stages
from tilewright.attn.config import AttentionConfig
from tilewright.attn.problem import AttentionProblem
from tilewright.attn.rungs import find_attention_rung
from tilewright.attn.split import SplitConfig
from tilewright.emu import Emulator
from tilewright.errors import WrongResult
from tilewright.gemm.problem import GemmProblem
from tilewright.gemm.rung import GemmConfig
from tilewright.gemm.rungs import find_rung
from tilewright.jit import use_executor
from tilewright.jit.params import Place
from tilewright.plan.space import Candidate
from tilewright.tuning import attention_trial, measure, race
from tilewright.tuning.attention_trial import AttentionTrial, exact_attention
from tilewright.tuning.product_trial import ProductTrial, program_of
from tilewright.tuning.verify import Pattern


class EmulatedGpu(Emulator):
    """With the parts of a GPU's executor that ops do not need, and an L2 that one set of operands fills."""

    def __init__(self) -> None:
        super().__init__("H200")
        self.gpu = dataclasses.replace(self.gpu, l2=1)

    def allocate(self, nbytes: int) -> int:
        return self.upload(np.zeros(nbytes, np.uint8))

    def write(self, address: int, data: np.ndarray) -> None:
        self.memory.write(address, data)

    def synchronize(self) -> None:
        pass


@pytest.fixture
def gpu(monkeypatch) -> Iterator[EmulatedGpu]:
    emulator = EmulatedGpu()

    class Driver:
        @staticmethod
        def cuMemcpyDtoD(to, source, nbytes):
            emulator.write(to, emulator.download(source, nbytes))
            return (0,)

        @staticmethod
        def cuMemsetD8(address, value, nbytes):
            emulator.write(address, np.full(nbytes, value, np.uint8))
            return (0,)

    class FakePrepared:
        def __init__(self, kernel, launch, ordinal) -> None:
            self.kernel, self.launched = kernel, launch

        def launch(self, params, stream, maps) -> None:
            emulator.launch(self.kernel, dataclasses.replace(self.launched, params=params, maps=maps))

    class FakeStopwatch:
        """Every start takes 0.1 ms, a graph as many times that as it holds; each runs once, to see that it can."""

        def __init__(self, ordinal) -> None:
            self.graphs = {}
            self.ran = set()

        def close(self) -> None:
            pass

        def measure(self, starts):
            for start in starts:
                if start not in self.ran:
                    self.ran.add(start)
                    start(0)
            return [self.graphs.get(start, 1) * 0.1 for start in starts]

        @contextmanager
        def graph_of(self, starts):
            def replay(stream) -> None:
                assert self.ran.issuperset(starts)

            self.graphs[replay] = len(starts)
            yield replay

    for module in (race, measure):
        monkeypatch.setattr(module, "executor_for", lambda ordinal: emulator, raising=False)
        monkeypatch.setattr(module, "Prepared", FakePrepared, raising=False)
    monkeypatch.setattr(race, "driver", Driver)
    monkeypatch.setattr(race, "bound_to", lambda ordinal: nullcontext())
    monkeypatch.setattr(race, "Stopwatch", FakeStopwatch)
    with use_executor(emulator):  # kernels are compiled to PTX only
        yield emulator


@pytest.mark.parametrize(
    ("name", "config", "dtype"),
    [
        ("h10", GemmConfig(32, 32, 32, warp_m=16, warp_n=16, stages=3), "bf16"),
        ("h14", GemmConfig(64, 32, 64, warp_m=16, warp_n=32, stages=3), "bf16"),
        ("f12", GemmConfig(32, 32, 8, 4, 4, 16, 32, stages=3, cache="cg"), "f32"),
        ("q02", GemmConfig(64, 64, 128, warp_m=16, warp_n=64, stages=4, part_n=64), "e4m3"),
    ],
)
def test_a_product_is_verified_and_timed(gpu, name, config, dtype):
    problem = GemmProblem.dense(48, 40, 32, dtype=dtype, out_dtype="bf16")
    rung = find_rung(name)
    right = Candidate(rung, config, None)  # type: ignore[arg-type]
    with ProductTrial(problem, 0, Pattern(dtype)) as measurer:
        kernel = program_of(problem, right).product.compile(gpu.arch)
        assert measurer.verify(right, kernel) == ""
        measurer.prepare(right, kernel)
        assert measurer.one_pass([right], 0) == pytest.approx([0.1])
        other = {"dtype": "f16"} if dtype == "bf16" else {"out_dtype": "f16"}
        if dtype == "e4m3":  # it is packed first, and compiled as what it then is
            problem, other = program_of(problem, right).product.problem, {"b_dtype": "e5m2"}
        misread = dataclasses.replace(problem, **other)
        assert "elements are wrong" in measurer.verify(right, rung.compile(misread, config, gpu.arch))


ATTENTION = AttentionProblem.dense(1, 2, 40, 72, 32, heads_kv=1, is_causal=True)


def attention_candidate(config: AttentionConfig | None = None) -> Candidate:
    rung = find_attention_rung("a17")
    return Candidate(rung, config or AttentionConfig(32, 64, 32, 4, 2, 2, 2), None)  # type: ignore[arg-type]


def test_attention_is_verified_and_timed(gpu):
    right = attention_candidate()
    with AttentionTrial(ATTENTION, 0, Pattern("bf16")) as measurer:
        kernel = right.rung.compile(ATTENTION, right.config, gpu.arch)
        assert measurer.verify(right, kernel) == ""
        measurer.prepare(right, kernel)
        assert measurer.one_pass([right, right], 1) == pytest.approx([0.1, 0.1])


def test_keys_in_parts_are_verified_with_the_launch_that_adds_them(gpu, monkeypatch):
    few = AttentionProblem.dense(2, 4, 3, 300, 64, heads_kv=2)
    parts = Candidate(find_attention_rung("d01"), SplitConfig(64, 16, 16, 1, 2, 2, parts=4), None)  # type: ignore[arg-type]
    with AttentionTrial(few, 0, Pattern("bf16")) as measurer:
        kernel = parts.rung.compile(few, parts.config, gpu.arch)
        assert measurer.verify(parts, kernel) == ""
        (run,) = measurer.runs(parts, kernel, measurer.sets[:1])
        assert len(run) == 2
        monkeypatch.setattr(measurer, "runs", lambda *given: [run[:1]])
        assert "are wrong or unwritten" in measurer.verify(parts, kernel)


@pytest.mark.parametrize(
    "wrong",
    [
        dataclasses.replace(ATTENTION, is_causal=False),
        dataclasses.replace(ATTENTION, scale=1.5 * ATTENTION.scale),
        dataclasses.replace(ATTENTION, seq_k=71),
        dataclasses.replace(ATTENTION, seq_q=39),
    ],
    ids=["a mask forgotten", "another scale", "a key too few", "a row too few"],
)
def test_attention_of_another_problem_is_found_wrong(gpu, monkeypatch, wrong):
    candidate = attention_candidate()
    with AttentionTrial(ATTENTION, 0, Pattern("bf16")) as measurer:
        kernel = candidate.rung.compile(wrong, candidate.config, gpu.arch)
        monkeypatch.setattr(attention_trial, "program_of", lambda problem, plan: stages.program_of(wrong, plan))
        assert "are wrong or unwritten" in measurer.verify(candidate, kernel)
        monkeypatch.setattr(attention_trial, "program_of", stages.program_of.__wrapped__)
        monkeypatch.setattr(stages, "Place", lambda name: Place(name, 64 * (name == "out")))
        right = candidate.rung.compile(ATTENTION, candidate.config, gpu.arch)
        assert measurer.verify(candidate, right) == "it wrote outside its output"


def test_a_reference_that_is_wrong_verifies_nothing(gpu, monkeypatch):
    half = dataclasses.replace(ATTENTION, scale=ATTENTION.scale / 2)
    monkeypatch.setattr(attention_trial, "program_of", lambda _, plan: stages.program_of(half, plan))
    with pytest.raises(WrongResult, match=r"a02_swizzle is wrong .* no candidate can be verified"):
        AttentionTrial(ATTENTION, 0, Pattern("bf16"))


def test_the_bound_is_what_rounding_allows_and_finds_a_tile_left_out():
    """4096 keys of which a kernel forgets 64: the mean of the rest is near, and must not pass."""
    problem = AttentionProblem.dense(1, 1, 4096, 4096, 64)
    random = np.random.default_rng(0)
    q, k, v = (random.standard_normal((count, 64)) for count in (16, 4096, 4096))
    right, allowed = exact_attention(problem, q, k, v, 0)
    weights = np.exp(problem.scale * (q @ k.T))
    rounded = weights / weights.sum(-1, keepdims=True) * (1 + random.uniform(-1, 1, weights.shape) * 2.0**-8)
    assert (np.abs(rounded @ v - right) < allowed).all()
    weights[:, 128:192] = 0
    forgotten = weights / weights.sum(-1, keepdims=True) @ v
    assert (np.abs(forgotten - right) > allowed).mean() > 0.3
