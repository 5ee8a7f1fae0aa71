"""The kinds of suites: what runs one, and about how long. Adding a kind is one entry of KINDS.

The seconds are those of an H200's host with 16 cores, at the default of SECONDS per measurement, with every kernel
compiled in the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, NamedTuple, Protocol

from ..attn.problem import AttentionProblem
from ..attn.rungs import parse_config
from ..errors import ConfigRejected
from ..gemm.problem import GemmProblem
from ..gemm.rung import GemmConfig
from ..gpus import Gpu, find_gpu
from .attention import AttentionStep, select_attention_rungs
from .ladder import Progress, Step
from .peers import select_peers
from .select import select_rungs
from .subject import read_config

SECONDS = 0.4
"""Measured time per case, if a run does not say how long."""
Suite = dict[str, Any]
Records = list[dict[str, Any]]


class Run(NamedTuple):
    """The terms of a run besides its suite: the GPU, the measured time per case, who watches."""

    gpu: Gpu
    seconds: float
    say: Progress


class Planned(Protocol):
    """A plan, or a step of one: what would run."""

    @property
    def rung(self) -> Any: ...
    @property
    def config(self) -> Any: ...


@dataclass(frozen=True)
class Kind:
    """A kind of suites: what runs them, and `record_s`: about how many seconds one of its records takes."""

    make: Callable[[Suite, Run], Records]
    record_s: float
    needs: tuple[str, ...] = ()
    """Keys that its suites have besides name, kind and cases."""
    parts: Callable[[Suite], int] | None = None
    """How many runs of `record_s` a suite makes, where that is not the number of its records."""
    needs_gpu: bool = True
    """False where a suite only compiles, for the GPU that it names."""
    kernels: Callable[[Suite, Gpu], Iterable[Callable[[], object]]] | None = None
    """What compiles the kernels of all cases, where that is done at once before the first."""
    whole: bool = False
    """True where the cases of a suite are judged together, not one after another."""
    planned: Callable[[Suite, Gpu], Planned | None] | None = None
    """What a case would run now, where that is for the plan to choose; None for a case that names it."""


def steps_of(suite: Suite, gpu: Gpu) -> list[Step]:
    """The suite's cases: rungs with their defaults or with the case's "configs" (the fields that differ), or, for
    "planned" cases, what plan_for chooses on `gpu`. Raises ConfigRejected."""
    from ..gemm.family import plan_for

    steps = []
    for case in suite["cases"]:
        dtype, precision = case.get("dtype", "f32"), case.get("precision", "ieee")
        problem = GemmProblem.dense(
            case["m"], case["n"], case["k"], layout=case.get("layout", "nn"), dtype=dtype, precision=precision
        )
        if case.get("planned"):
            plan = plan_for(problem, gpu)
            steps.append(Step(plan.rung, plan.config, problem))
        else:
            for rung in select_rungs(case.get("rungs"), dtype, precision):
                for text in case.get("configs", [""]):
                    config = read_config(rung, text, gpu.arch)
                    assert isinstance(config, GemmConfig)
                    if reason := rung.why_not(problem, config, gpu.arch):
                        raise ConfigRejected(f"{suite['name']}: {rung.id} with {text or 'its default'}: {reason}")
                    steps.append(Step(rung, config, problem))
    return steps


def attention_steps(suite: Suite, gpu: Gpu) -> list[AttentionStep]:
    """The suite's attention cases: their rungs with the best config known, with the case's own, or with "every" one
    that runs; or, for "planned" cases, what plan_attention chooses on `gpu`."""
    from ..attn.family import plan_attention

    steps = []
    for case in suite["cases"]:
        problem = AttentionProblem.dense(
            case["batch"], case["heads"], case["seq"], case["seq"], case["d_head"], heads_kv=case.get("heads_kv"),
            dtype=case.get("dtype", "bf16"), is_causal=case.get("causal", False),
        )  # fmt: skip
        problem = replace(problem, window=tuple(case.get("window", (-1, -1))))
        if case.get("planned"):
            plan = plan_attention(problem, gpu)
            steps.append(AttentionStep(plan.rung, plan.config, problem))
            continue
        for rung in select_attention_rungs(case.get("rungs")):
            if (named := case.get("config")) == "every":
                space = rung.space(problem.d_head)
                configs = [config for config in space if rung.why_not(problem, config, gpu.arch) is None]
            else:
                configs = [parse_config(named) if named else rung.default(problem, gpu.arch)]
            steps += [AttentionStep(rung, config, problem) for config in configs]
    return steps


def _function(name: str) -> Any:
    """A function of lab by "module.name": kinds load only what they run."""
    module, _, function = name.partition(".")
    return getattr(import_module(f".{module}", __package__), function)


def _cases(name: str) -> Callable[[Suite, Run], Records]:
    """The kind of a function (name, cases, say=...)."""
    return lambda suite, run: _function(name)(suite["name"], suite["cases"], say=run.say)


def _timed_cases(name: str) -> Callable[[Suite, Run], Records]:
    """The kind of a function (name, cases, seconds=..., say=...)."""
    return lambda suite, run: _function(name)(suite["name"], suite["cases"], seconds=run.seconds, say=run.say)


def _times(suite: Suite, run: Run) -> Records:
    wanted = suite["cases"][0].get("peers", suite.get("peers", "all"))  # cases run one by one (run_suite)
    peers = select_peers(wanted) if suite["kind"] == "peers" else ()
    return _function("climb_gpu.climb_on_gpu")(
        steps_of(suite, run.gpu), suite=suite["name"], seconds=run.seconds, say=run.say, peers=peers
    )


def _attention(suite: Suite, run: Run) -> Records:
    return _function("attention_gpu.climb_attention_on_gpu")(
        attention_steps(suite, run.gpu), suite=suite["name"], seconds=run.seconds, say=run.say
    )


def _attention_stalls(suite: Suite, run: Run) -> Records:
    records = _function("attention_gpu.attention_stalls")(attention_steps(suite, run.gpu), run.gpu, run.say)
    return [record | {"suite": suite["name"]} for record in records]


def _attention_kernels(suite: Suite, gpu: Gpu) -> Iterable[Callable[[], object]]:
    small: Any = _function("attention_gpu.small_problem")
    found: Iterable[Callable[[], object]] = _function("precompile.of_steps")(
        attention_steps(suite, gpu), small, gpu.arch
    )
    return found


def _kernels(name: str) -> Callable[[Suite, Gpu], Iterable[Callable[[], object]]]:
    """Kind.kernels by a function (cases, gpu)."""
    return lambda suite, gpu: _function(name)(suite["cases"], gpu)


def _of(module: str) -> Any:
    """Kind.kernels and Kind.planned by a module's functions of those names."""
    planned = f"{module}.planned"
    return {"kernels": _kernels(f"{module}.kernels"), "planned": lambda case, gpu: _function(planned)(case, gpu)}


def _step(steps: Callable[[Suite, Gpu], Sequence[Planned]]) -> Callable[[Suite, Gpu], Planned | None]:
    """Kind.planned by a function that makes the steps of a suite, whose cases are "planned" or name what runs."""
    return lambda case, gpu: steps({"name": "", "cases": [case]}, gpu)[0] if case.get("planned") else None


def _stalls(suite: Suite, run: Run) -> Records:
    records = _function("counters.stall_records")(steps_of(suite, run.gpu), run.gpu, run.say)
    return [record | {"suite": suite["name"]} for record in records]


def _counters(suite: Suite, run: Run) -> Records:
    return _function("counters.counter_records")(suite["name"], steps_of(suite, run.gpu), run.gpu, run.say)


def _sweep(suite: Suite, run: Run) -> Records:
    return _function("sweep.sweep_records")(
        suite["name"], suite["cases"], seconds=run.seconds, say=run.say, each=suite.get("each", False)
    )


def _swept(suite: Suite) -> int:
    """How many configs a sweep times, about."""
    cases = suite["cases"]
    return sum(case["tiles"] * case.get("of_a_tile", 1) if "tiles" in case else case.get("keep", 12) for case in cases)


def _executed(suite: Suite, run: Run) -> Records:
    attends = [case for case in suite["cases"] if "seq" in case]
    multiplies = [case for case in suite["cases"] if "seq" not in case]
    steps = [*steps_of(suite | {"cases": multiplies}, run.gpu), *attention_steps({"cases": attends}, run.gpu)]
    records: Records = _function("ladder.climb_on_emulator")(steps, run.gpu, suite["name"], run.say)
    return records


def _profile(suite: Suite, run: Run) -> Records:
    return _function("profiling.profile_records")(suite["name"], suite["cases"], seconds=run.seconds, say=run.say)


def _compiled(suite: Suite, run: Run) -> Records:
    return _function("compiled.compiled_records")(suite["name"], suite["cases"], run.gpu.name, say=run.say)


KINDS: dict[str, Kind] = {
    "times": Kind(_times, 3, planned=_step(steps_of)),
    "peers": Kind(_times, 8, planned=_step(steps_of)),
    "products": Kind(_timed_cases("products.product_records"), 2),
    "beside-torch": Kind(_timed_cases("beside_torch.torch_records"), 0.7, **_of("beside_torch")),
    "beside-cublaslt": Kind(_timed_cases("beside_cublaslt.cublaslt_records"), 2, **_of("beside_torch")),
    "beside-copies": Kind(_timed_cases("beside_torch.copy_records"), 0.9, **_of("beside_torch")),
    "power": Kind(_timed_cases("beside_torch.power_records"), 6, **_of("beside_torch")),
    "sweep": Kind(_sweep, 1.2, parts=_swept, kernels=_kernels("sweep.kernels")),
    "epilogue": Kind(_timed_cases("epilogues.epilogue_records"), 3),
    "accuracy": Kind(_cases("accuracy.accuracy_records"), 1),
    "counters": Kind(_counters, 3),
    "stalls": Kind(_stalls, 4),
    "host-calls": Kind(_cases("host_calls.host_call_records"), 2),
    "cold": Kind(_cases("cold.cold_records"), 15),
    "attention": Kind(
        _attention,
        2,
        parts=lambda suite: len(attention_steps(suite, find_gpu("H200"))),
        kernels=_attention_kernels,
        planned=_step(attention_steps),
    ),
    "attention-backward": Kind(
        _timed_cases("backward_gpu.backward_records"),
        4,
        parts=lambda suite: sum(len(case.get("rungs", ["", "deterministic"])) for case in suite["cases"]),
        kernels=_kernels("backward_gpu.kernels"),
    ),
    "attention-stalls": Kind(_attention_stalls, 3, kernels=_attention_kernels),
    "attention-decode": Kind(_timed_cases("attention_decode.attention_decode_records"), 5, **_of("attention_decode")),
    "attention-packed": Kind(
        _timed_cases("attention_packed.packed_records"), 2, kernels=_kernels("attention_packed.kernels")
    ),
    "sums": Kind(_timed_cases("sums.sums_records"), 38, kernels=_kernels("sums.kernels")),
    "blocks": Kind(_timed_cases("blocks.block_records"), 10),
    "grouped": Kind(_timed_cases("grouped.grouped_records"), 4, **_of("grouped")),
    "fp8": Kind(_timed_cases("fp8.fp8_records"), 2, **_of("fp8")),
    "heldout": Kind(_timed_cases("heldout.heldout_records"), 1.5, parts=lambda suite: len(suite["cases"]), whole=True),
    "tuning-time": Kind(_cases("tuning_time.tuning_time_records"), 8),
    "profile": Kind(_profile, 12, parts=lambda suite: sum(len(case["kernels"]) for case in suite["cases"])),
    "latency": Kind(_cases("latency.latency_records"), 2),
    "compiled": Kind(_compiled, 1, ("gpu",), lambda suite: sum(len(c["configs"]) for c in suite["cases"]), False),
    "executed": Kind(_executed, 0.5, ("gpu",), needs_gpu=False),
    "corpus": Kind(_cases("corpus.corpus_records"), 5, ("gpu",), needs_gpu=False),
    "strangers": Kind(_cases("corpus.strangers_records"), 4, ("gpu",), needs_gpu=False),
    "census": Kind(_cases("census.census_records"), 120, ("gpu",), needs_gpu=False),
    "emulator": Kind(_cases("emulator_speed.emulator_records"), 10, ("gpu",), needs_gpu=False),
    "model": Kind(_cases("fit_model.model_records"), 100, ("gpu",), lambda suite: 1, needs_gpu=False, whole=True),
    "spread": Kind(_timed_cases("spread.spread_records"), 3),
    "sanitizer": Kind(_cases("sanitizer.sanitizer_records"), 2),
}
