"""Few queries on long keys: calls of tw.attention as planned, beside torch's own, both replayed from CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..arrays.dtypes import DTYPE_NAMES
from ..attn.attention import attention
from ..attn.explain import explain_attention
from ..attn.family import plan_attention
from ..attn.problem import AttentionProblem
from ..errors import MissingDependency, install
from ..gpus import Gpu
from ..jit.device import device
from ..jit.timing import Start
from ..plan.plan import Plan
from .attention_check import attention_reference, check_attention
from .attention_gpu import REFERENCES
from .bench import time_pairs
from .check import CheckResult
from .climb_gpu import driver_version
from .ladder import Progress
from .precompile import Compile, of_attention
from .record import provenance
from .reference import torch_stream

GRAPH_MS = 0.4
"""Calls of about this time in all are captured in one graph."""
_BYTES_PER_MS = 4e9


def decode_problem(case: dict[str, Any]) -> AttentionProblem:
    """A case's problem: dense operands."""
    return AttentionProblem.dense(
        case["batch"], case["heads"], case["queries"], case["keys"], case["d_head"], heads_kv=case["heads_kv"],
        dtype=case.get("dtype", "bf16"), is_causal=case.get("causal", False),
    )  # fmt: skip


def planned(case: dict[str, Any], gpu: Gpu) -> Plan:
    """Return what a case would run now."""
    return plan_attention(decode_problem(case), gpu)


def kernels(cases: list[dict[str, Any]], gpu: Gpu) -> Iterator[Compile]:
    """Return what compiles what the cases launch: see lab/precompile.py."""
    return of_attention(map(decode_problem, cases), gpu)


def sets_for(problem: AttentionProblem, gpu: Gpu) -> int:
    """Return how many sets of operands take turns, so that none is found in the L2."""
    return min(max(2, 3 * gpu.l2 // problem.bytes + 1), 16)


def checked(out: Any, q: Any, k: Any, v: Any, problem: AttentionProblem) -> CheckResult:
    """Judge the first and the last head of keys, with all their query heads, against float64."""
    verdict = CheckResult(True, 0.0, 0.0)
    for b, h in {(0, 0), (problem.batch - 1, problem.heads_kv - 1)}:
        heads = slice(h * problem.group, (h + 1) * problem.group)
        one = AttentionProblem.dense(
            1, problem.group, problem.seq_q, problem.seq_k, problem.d_head, heads_kv=1, dtype=problem.dtype,
            is_causal=problem.is_causal,
        )  # fmt: skip
        mine, queries, keys, values = (
            np.asarray(x[b : b + 1, y].float().cpu()) for x, y in ((out, heads), (q, heads), (k, [h]), (v, [h]))
        )
        verdict = check_attention(mine, attention_reference(queries, keys, values, one), problem.dtype)
        if not verdict.ok:
            break
    return verdict


def attention_decode_records(
    suite: str, cases: list[dict[str, Any]], seconds: float, say: Progress, ordinal: int = 0
) -> list[dict[str, Any]]:
    """One record a case. `ratio` is FlashAttention-2's time over ours, `ratio_cudnn` cuDNN's; `gb_s` counts what must
    be read and written at least. What is wrong is not timed. Raises MissingDependency without torch."""
    try:
        import torch
    except ImportError as error:
        raise MissingDependency(f"the suite {suite} needs torch: {install('bench')}") from error
    where = device(ordinal)
    origin = provenance(
        machine_kind="gpu", gpu=where.name, arch=where.arch.name, driver=driver_version(),
        reference="FlashAttention-2 and cuDNN through torch", reference_version=f"torch {torch.__version__}",
    )  # fmt: skip
    records = []
    for number, case in enumerate(cases):
        problem = decode_problem(case)
        say(number, f"{problem.batch} x {problem.heads_q} heads, {problem.seq_q} x {problem.seq_k}")
        records.append({"suite": suite, **_measure(torch, problem, where.gpu, ordinal, seconds), "provenance": origin})
        torch.cuda.empty_cache()
    return records


def _measure(torch: Any, problem: AttentionProblem, gpu: Gpu, ordinal: int, seconds: float) -> dict[str, Any]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    kind = getattr(torch, DTYPE_NAMES[problem.dtype])
    shapes = [(problem.heads_q, problem.seq_q), *[(problem.heads_kv, problem.seq_k)] * 2]
    sets = [
        [torch.randn(problem.batch, heads, rows, problem.d_head, device="cuda", dtype=kind) for heads, rows in shapes]
        for _ in range(sets_for(problem, gpu))
    ]
    plan = explain_attention(sets[0][0], sets[0][1], sets[0][2], is_causal=problem.is_causal).plan
    assert plan is not None
    names = ("batch", "heads_q", "heads_kv", "seq_q", "seq_k", "d_head", "dtype", "is_causal")
    case = {name: getattr(problem, name) for name in names} | {"rung": plan.rung.id, "config_text": str(plan.config)}

    def mine(q: Any, k: Any, v: Any) -> Any:
        return attention(q, k, v, is_causal=problem.is_causal)

    def torchs(backend: Any) -> Callable[[Any, Any, Any], Any]:
        def call(q: Any, k: Any, v: Any) -> Any:
            with sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(
                    q, k, v, is_causal=problem.is_causal, enable_gqa=problem.group > 1
                )

        return call

    q, k, v = sets[0]
    verdict = checked(mine(q, k, v), q, k, v, problem)
    result: dict[str, Any] = {"right": verdict.ok, "reason": verdict.reason}
    if not verdict.ok:
        return {"case": case, "result": result}
    rounds = max(1, round(GRAPH_MS * _BYTES_PER_MS / problem.bytes / len(sets)))
    calls = rounds * len(sets)
    own = [replayed(torch, mine, sets * rounds, ordinal)]
    for name, theirs in REFERENCES.items():
        other = [replayed(torch, torchs(getattr(SDPBackend, theirs)), sets * rounds, ordinal)]
        first = name == "flash"
        timing, conditions = time_pairs(ordinal, own, other, seconds=seconds, graphs=False, watched=first)
        told = {key: value for key, value in timing.to_dict().items() if key not in ("by_graph", "pairs")}
        told |= {key: told[key] / calls for key in ("ms", "reference_ms")}
        if first:
            result |= told | {"conditions": conditions, "by_graph": True, "pairs": timing.pairs}
        else:
            result |= {f"{key}_{name}": told[key] for key in ("reference_ms", "ratio", "ratio_p10", "ratio_p90")}
    result |= {
        "gb_s": problem.bytes / result["ms"] * 1e-6, "tflops": problem.flops / result["ms"] * 1e-9,
        "buffer_sets": len(sets),
    }  # fmt: skip
    return {"case": case, "result": result}


def replayed(torch: Any, call: Callable[[Any, Any, Any], Any], sets: list[list[Any]], ordinal: int) -> Start:
    """One call for each set, captured in a graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call(*sets[0])  # what is compiled and loaded is so before the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for operands in sets:
            call(*operands)

    def launch(stream: int) -> None:
        with torch.cuda.stream(torch_stream(torch, stream, ordinal)):
            graph.replay()

    return launch
