"""The attention ladder on a GPU: each rung is checked, then timed in pairs with FlashAttention-2 and with cuDNN.

Both references are torch's: its scaled_dot_product_attention with one back end allowed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..arrays.device_array import DeviceArray
from ..attn.problem import AttentionProblem
from ..attn.rung import AttentionAddresses
from ..attn.rungs import find_attention_rung, parse_config
from ..errors import install
from ..gpus import Gpu
from ..jit import CompiledKernel
from ..jit.device import Device, bound_to, device
from ..jit.gpu_executor import executor_for
from ..jit.loaded import Prepared
from ..jit.timing import Start
from .attention import AttentionStep, attention_record, prepare_attention, run_attention_checked
from .bench import time_pairs
from .bounds import peak_tflops
from .climb_gpu import driver_version
from .counters import PIPES, STALLS, watched
from .ladder import Progress, silent, verdict_dict
from .numbers import to_stored
from .precompile import compile_together, of_steps
from .record import provenance
from .reference import torch_stream

_RANDOM = 2**23 + 59
"""Random values made; operands repeat them. The count is odd, so that no two heads are alike."""
REFERENCES = {"flash": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION"}
"""Names in records, and torch's names."""
CHECKED = 320
"""The rung is judged against float64 at lengths cut to this much and a remainder, in one batch entry of a few heads."""


@dataclass(frozen=True)
class AttentionBuffers:
    """One set of operands on the GPU, dense; `out` is written."""

    q: DeviceArray
    k: DeviceArray
    v: DeviceArray
    out: DeviceArray


def small_problem(problem: AttentionProblem, config: Any) -> AttentionProblem:
    """The same kernel's problem, small enough for float64: same masks and paths, few heads, short rows."""

    def cut(rows: int, tile: int) -> int:
        return rows if rows <= CHECKED else CHECKED // tile * tile + rows % tile

    heads_kv = min(problem.heads_kv, 2)
    dense = AttentionProblem.dense(
        min(problem.batch, 2), heads_kv * problem.group, cut(problem.seq_q, config.b_r), cut(problem.seq_k, config.b_c),
        problem.d_head, heads_kv=heads_kv, dtype=problem.dtype, is_causal=problem.is_causal, scale=problem.scale,
    )  # fmt: skip
    window = (min(problem.window[0], CHECKED // 3), min(problem.window[1], CHECKED // 3))
    return replace(dense, with_lse=problem.with_lse, window=window)


def make_buffers(problem: AttentionProblem, ordinal: int, seed: int) -> AttentionBuffers:
    """A set of random normal operands."""
    executor = executor_for(ordinal)
    rng = np.random.default_rng(seed)
    values = to_stored(rng.standard_normal(_RANDOM, dtype=np.float32), problem.dtype)

    def on_gpu(heads: int, rows: int) -> DeviceArray:
        array = DeviceArray(executor, (problem.batch, heads, rows, problem.d_head), problem.dtype)
        start = int(rng.integers(_RANDOM))
        executor.write(array.address, np.resize(np.roll(values, start), array.nbytes // 2).view(np.uint8))
        return array

    q = on_gpu(problem.heads_q, problem.seq_q)
    k, v = on_gpu(problem.heads_kv, problem.seq_k), on_gpu(problem.heads_kv, problem.seq_k)
    return AttentionBuffers(q, k, v, DeviceArray(executor, q.shape, problem.dtype))


def launches_of(
    step: AttentionStep, kernel: CompiledKernel, sets: Sequence[AttentionBuffers], ordinal: int
) -> list[Start]:
    """One launch of the rung for each set, which lives as long as its launch."""

    def one(buffers: AttentionBuffers) -> Start:
        addresses = AttentionAddresses(buffers.q.address, buffers.k.address, buffers.v.address, buffers.out.address)
        launch = step.rung.launch(step.problem, step.config, addresses)
        with bound_to(ordinal):
            prepared = Prepared(kernel, launch, ordinal)

        def run(stream: int, _held: AttentionBuffers = buffers) -> None:
            prepared.launch(launch.params, stream, launch.maps)

        return run

    return [one(buffers) for buffers in sets]


Attend = Callable[[AttentionProblem, AttentionBuffers], Callable[[int], Any]]
"""Prepares a reference: what comes out starts it on a stream and gives its result, a torch tensor."""
_WITH_WINDOWS = "flash"
"""The one reference that torch hands a window to."""


def find_sdpa(ordinal: int) -> tuple[dict[str, Attend], str]:
    """({"flash": ..., "cudnn": ...}, torch's version) where torch can use the GPU, else ({}, why not)."""
    try:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.functional import scaled_dot_product_attention

        torch.zeros(1, device=f"cuda:{ordinal}")
    except Exception as error:  # not installed, a build without CUDA, a driver it cannot use
        return {}, f"torch cannot be used ({type(error).__name__}: {error}); {install('bench')}"

    def reference(backend: Any) -> Attend:
        def prepare(problem: AttentionProblem, buffers: AttentionBuffers) -> Callable[[int], Any]:
            q, k, v = (torch.from_dlpack(x) for x in (buffers.q, buffers.k, buffers.v))
            if problem.window != (-1, -1):
                return windowed(problem, q, k, v)

            def launch(stream: int) -> Any:
                with torch.cuda.stream(torch_stream(torch, stream, ordinal)), sdpa_kernel(backend):
                    return scaled_dot_product_attention(
                        q, k, v, is_causal=problem.is_causal, scale=problem.scale, enable_gqa=problem.group > 1
                    )

            return launch

        return prepare

    def windowed(problem: AttentionProblem, *operands: Any) -> Callable[[int], Any]:
        q, k, v = (x.transpose(1, 2) for x in operands)
        left, right = problem.window[0], problem.right

        def launch(stream: int) -> Any:
            with torch.cuda.stream(torch_stream(torch, stream, ordinal)):
                found = torch.ops.aten._flash_attention_forward(
                    q, k, v, None, None, problem.seq_q, problem.seq_k, 0.0, problem.is_causal, False,
                    scale=problem.scale, window_size_left=left, window_size_right=right,
                )  # fmt: skip
                return found[0].transpose(1, 2)

        return launch

    found = {name: reference(getattr(SDPBackend, theirs)) for name, theirs in REFERENCES.items()}
    return found, f"torch {torch.__version__}"


def differs_from(theirs: Any, buffers: AttentionBuffers) -> str:
    """ "" when our result is the reference's over all heads up to 1/32 of its largest value; else the difference."""
    import torch

    mine = torch.from_dlpack(buffers.out)
    worst = max(float((a.float() - b.float()).abs().max()) for a, b in zip(mine, theirs, strict=True))
    largest = float(theirs.abs().max())
    return "" if worst <= largest / 32 else f"it differs from torch's by {worst:.3g}; torch's largest is {largest:.3g}"


def climb_attention_on_gpu(
    steps: Sequence[AttentionStep], ordinal: int = 0, suite: str = "gpu-attention", seconds: float = 1.0,
    say: Progress = silent,
) -> list[dict[str, Any]]:  # fmt: skip
    """One record a step: the check against float64 (small_problem), the whole result against torch's, then times.

    `ratio` is FlashAttention-2's time over ours, `ratio_cudnn` cuDNN's, each paired. What is wrong is not timed.
    Raises DeviceError without a GPU, or when a kernel faults: the context is then lost, and the climb with it.
    """
    where = device(ordinal)
    references, version = find_sdpa(ordinal)
    origin = provenance(
        machine_kind="gpu", gpu=where.name, arch=where.arch.name, driver=driver_version(),
        reference="FlashAttention-2 and cuDNN through torch" if references else None,
        reference_version=version if references else None, no_reference=None if references else version,
    )  # fmt: skip
    records: list[dict[str, Any]] = []
    compile_together(of_steps(steps, small_problem, where.arch))
    for problem in dict.fromkeys(step.problem for step in steps):
        same = [step for step in steps if step.problem == problem]
        count = min(max(2, 3 * where.gpu.l2 // problem.bytes + 1), 64)
        sets = [make_buffers(problem, ordinal, seed) for seed in range(count)]
        for step in same:
            say(len(records), step.rung.id)
            result = _climb_one(step, where, sets, references, seconds)
            result |= {"buffer_sets": count, "rotated_over_l2": count * problem.bytes / where.gpu.l2}
            records.append(attention_record(suite, step, result, origin))
    return records


def _climb_one(
    step: AttentionStep, where: Device, sets: Sequence[AttentionBuffers], references: dict[str, Attend], seconds: float
) -> dict[str, Any]:
    problem, ordinal = step.problem, where.ordinal
    executor = executor_for(ordinal)
    small = replace(step, problem=small_problem(problem, step.config))
    kernel = step.rung.compile(small.problem, step.config, where.arch)
    verdict = run_attention_checked(small, kernel, executor, prepare_attention(small.problem))
    kernel = step.rung.compile(problem, step.config, where.arch)
    result = verdict_dict(verdict) | step.facts(kernel, where.gpu)
    launches = launches_of(step, kernel, sets, ordinal)
    for name, prepare in references.items():
        if problem.window != (-1, -1) and name != _WITH_WINDOWS:
            continue
        theirs = [prepare(problem, buffers) for buffers in sets]
        if result["right"] and name == "flash":
            executor.write(sets[0].out.address, np.full(sets[0].out.nbytes, 0xFF, np.uint8))
            with bound_to(ordinal):
                launches[0](executor.stream)
                reason = differs_from(theirs[0](executor.stream), sets[0])
            if reason:
                result |= {"right": False, "reason": reason}
        if result["right"]:
            first = name == "flash"
            timing, conditions = time_pairs(ordinal, launches, theirs, seconds=seconds, graphs=False, watched=first)
            if first:
                result |= timing.to_dict() | {"conditions": conditions}
            else:
                names = ("reference_ms", "ratio", "ratio_p10", "ratio_p90")
                result |= {f"{x}_{name}": getattr(timing, x) for x in names}
    if not references and result["right"]:
        timing, conditions = time_pairs(ordinal, launches, None, seconds=seconds)
        result |= timing.to_dict() | {"conditions": conditions}
    if result["right"]:
        tflops, peak = problem.flops / result["ms"] * 1e-9, peak_tflops(where.gpu, problem.dtype)
        result |= {"tflops": tflops, "share_of_peak": tflops / peak if peak else None}
    return result


STALL_METRICS = PIPES | {
    "tensor_pipe": "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active",
    "xu_pipe": "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active",
    "alu_pipe": "sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_active",
    "l2": "lts__t_sectors.avg.pct_of_peak_sustained_elapsed",
}
_SHARES = ("issue_active", "fma_pipe", "alu_pipe", "shared_pipe", "tensor_pipe", "xu_pipe", "l2")


def attention_stalls(steps: Sequence[AttentionStep], gpu: Gpu, say: Progress = silent) -> list[dict[str, Any]]:
    """One record a step: the check, the busiest pipes (shares), warps stalled per issued instruction by reason.

    Read by Nsight Compute from one launch each, on dense operands without a mask. Raises MissingDependency without it.
    """
    compile_together(of_steps(steps, small_problem, gpu.arch))
    say(0, "Nsight Compute")
    launches = [
        f"{step.rung.id};{step.config};{p.batch};{p.heads_q};{p.seq_q};{p.d_head}"
        for step, p in ((step, step.problem) for step in steps)
    ]
    found = watched("tilewright.lab.attention_gpu", launches, STALL_METRICS)
    executor, records = executor_for(0), []
    origin = provenance(machine_kind="gpu", gpu=gpu.name, arch=gpu.arch.name, driver=driver_version())
    for number, (step, read) in enumerate(zip(steps, found, strict=True)):
        say(number, step.rung.id)
        small = replace(step, problem=small_problem(step.problem, step.config))
        kernel = step.rung.compile(small.problem, step.config, gpu.arch)
        result = verdict_dict(run_attention_checked(small, kernel, executor, prepare_attention(small.problem)))
        result |= {name: read[name] / 100 for name in _SHARES}
        result["stalls"] = {name: read[name] for name in STALLS}
        records.append(attention_record("attention-stalls", step, result, origin))
    return records


def _launch_each(launches: Sequence[str]) -> None:
    """Launch what runs under ncu: one launch of each rung named, with its config and dense problem."""
    for launch in launches:
        name, config_text, *numbers = launch.split(";")
        rung, config = find_attention_rung(name), parse_config(config_text)
        batch, heads, seq, d_head = map(int, numbers)
        problem = AttentionProblem.dense(batch, heads, seq, seq, d_head)
        executor = executor_for(0)
        buffers = make_buffers(problem, 0, 0)
        kernel = rung.compile(problem, config, executor.arch)
        addresses = AttentionAddresses(buffers.q.address, buffers.k.address, buffers.v.address, buffers.out.address)
        executor.launch(kernel, rung.launch(problem, config, addresses))
        executor.synchronize()


if __name__ == "__main__":
    _launch_each(sys.argv[1:])
