"""Steps of the attention ladder: how one is prepared, run and judged. Climbed by ladder.py, attention_gpu.py."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import inf
from typing import Any

import numpy as np

from ..attn.hopper import HOPPER_RUNGS
from ..attn.problem import AttentionProblem
from ..attn.rung import AttentionAddresses, AttentionRung
from ..attn.rungs import ATTENTION_RUNGS, EXPERIMENTS, find_attention_rung
from ..errors import ConfigRejected
from ..gpus import Arch, Gpu
from ..jit import CompiledKernel
from ..jit.launch import Executor
from .attention_check import AttentionReference, attention_reference, check_attention
from .check import CheckResult, Guarded
from .emulation_time import emulation_seconds
from .numbers import from_stored, rounded, to_stored
from .resources import static_facts
from .select import select


@dataclass(frozen=True)
class AttentionStep:
    """A rung, its config, and the problem to climb it with."""

    rung: AttentionRung
    config: Any
    problem: AttentionProblem

    @property
    def name(self) -> str:
        """The rung's id."""
        return self.rung.id

    @property
    def emulation_seconds(self) -> float:
        """About how long the emulator takes for it."""
        return emulation_seconds("attention's multiply-add", self.problem.flops / 2)

    def compile(self, arch: Arch) -> CompiledKernel:
        """The rung's kernel. Raises CompileError."""
        return self.rung.compile(self.problem, self.config, arch)

    def prepare(self) -> AttentionOperands:
        """Operands, and what attention must make of them."""
        return prepare_attention(self.problem)

    def run_checked(self, kernel: CompiledKernel, executor: Executor, given: AttentionOperands) -> CheckResult:
        """See run_attention_checked."""
        return run_attention_checked(self, kernel, executor, given)

    def facts(self, kernel: CompiledKernel, gpu: Gpu) -> dict[str, Any]:
        """See resources.static_facts."""
        return static_facts(kernel, self.config.threads, self.rung.shared_bytes(self.config), gpu)

    def record(self, suite: str, result: dict[str, Any], origin: dict[str, Any]) -> dict[str, Any]:
        """See attention_record."""
        return attention_record(suite, self, result, origin)


@dataclass(frozen=True)
class AttentionOperands:
    """Q [b, h, sq, d], K [b, hk, sk, d] and V [b, hk, sk, d_v] as float32 values that the problem's type can hold."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    expected: AttentionReference


def select_attention_rungs(text: str | None) -> tuple[AttentionRung, ...]:
    """Rungs by "a05..a09", "a01,a21", or both; for None those that every GPU runs.

    Raises ConfigRejected with the known ids.
    """
    known = (*ATTENTION_RUNGS, *HOPPER_RUNGS)

    def find(name: str) -> AttentionRung:
        rung = find_attention_rung(name)
        if rung not in (*known, *EXPERIMENTS):
            raise ConfigRejected(
                f"{rung} is on no ladder: it is for few queries, as tilewright bench attention-decode."
            )
        return rung

    return select(text, known, find) if text is not None else ATTENTION_RUNGS


def prepare_attention(problem: AttentionProblem, seed: int = 0) -> AttentionOperands:
    """Random normal operands and what attention must make of them."""
    rng = np.random.default_rng(seed)
    shapes = {"q": (problem.heads_q, problem.seq_q), **dict.fromkeys("kv", (problem.heads_kv, problem.seq_k))}
    q, k, v = (
        rounded(rng.standard_normal((problem.batch, *own, problem.columns(x)), dtype=np.float32), problem.dtype)
        for x, own in shapes.items()
    )
    return AttentionOperands(q, k, v, attention_reference(q, k, v, problem))


def run_attention_checked(
    step: AttentionStep, kernel: CompiledKernel, executor: Executor, given: AttentionOperands
) -> CheckResult:
    """Run the rung once on dense [b, h, s, d] operands, into a poisoned buffer between guard bands, and judge it.

    Raises what the launch raises.
    """
    problem = step.problem
    shape = given.q.shape[:3]
    out, lse = Guarded((*shape, given.v.shape[3]), problem.dtype), Guarded(shape)
    held: list[int] = []
    try:
        for name, values in (("q", given.q), ("k", given.k), ("v", given.v)):
            held.append(executor.upload(to_stored(values, problem.dtype).view(np.uint8).reshape(-1), name))
        for name, guarded in (("out", out), ("lse", lse)):
            held.append(executor.upload(guarded.whole.view(np.uint8), name))
        q, k, v, at_out, at_lse = held
        addresses = AttentionAddresses(
            q, k, v, at_out + out.band * out.whole.itemsize, at_lse + lse.band * lse.whole.itemsize
        )
        executor.launch(kernel, step.rung.launch(problem, step.config, addresses))
        for address, guarded in ((at_out, out), (at_lse, lse)):
            guarded.whole[:] = executor.download(address, guarded.whole.nbytes).view(guarded.whole.dtype)
    finally:
        for address in held:
            executor.release(address)
    if not (out.intact() and lse.intact()):
        return CheckResult(False, inf, 0.0, "it wrote outside its output")
    if missing := out.untouched():
        return CheckResult(False, inf, 0.0, f"it left {missing} elements unwritten")
    values = from_stored(out.view, problem.dtype)
    return check_attention(values, given.expected, problem.dtype, lse.view if problem.with_lse else None)


def attention_record(
    suite: str, step: AttentionStep, result: dict[str, Any], origin: dict[str, Any], layout: str = "bhsd"
) -> dict[str, Any]:
    """A record of one step (see lab/record.py)."""
    problem = step.problem
    names = ("batch", "heads_q", "heads_kv", "seq_q", "seq_k", "d_head", "dtype", "is_causal")
    case: dict[str, Any] = {
        "rung": step.rung.id,
        "config": asdict(step.config),
        "config_text": str(step.config),
        "layout": layout,
    }
    case |= {name: getattr(problem, name) for name in names}
    if problem.window != (-1, -1):
        case["window"] = list(problem.window)
    return {"suite": suite, "case": case, "result": result, "provenance": origin}
