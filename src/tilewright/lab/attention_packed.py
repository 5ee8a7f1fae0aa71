"""Packed lengths: calls of tw.attention_varlen as planned, and torch's varlen_attn, replayed from CUDA graphs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from ..arrays.dtypes import DTYPE_NAMES, ceil_div
from ..attn.attention import attention_varlen
from ..attn.explain import explain_attention
from ..attn.problem import AttentionProblem
from ..errors import MissingDependency, install
from ..gpus import Gpu
from ..jit.device import Device, device
from .attention_check import attention_reference, check_attention
from .attention_decode import GRAPH_MS, replayed
from .bench import time_pairs
from .check import CheckResult
from .climb_gpu import driver_version
from .ladder import Progress
from .precompile import Compile, of_attention
from .record import provenance

_FLOP_PER_MS = 3e11
_MOST_JUDGED = 1500
"""Rows of the entries that are judged by float64."""
OTHER = "a17"
"""The rung whose time is told too: the last that runs everywhere."""


def lengths_of(case: dict[str, Any]) -> list[int]:
    """The entries' rows: `entries` of `rows` each, or as many of `least` to `most` as make up `total`, always the same.
    `first`: one entry before them."""
    found = [case["first"]] if "first" in case else []
    if "rows" in case:
        return found + [case["rows"]] * case["entries"]
    draw, left = random.Random(0), case["total"]
    while left:
        found.append(min(draw.randint(case["least"], case["most"]), left))
        left -= found[-1]
    return found


def work_of(lengths: list[int], case: dict[str, Any]) -> int:
    """FLOP of all entries."""
    pairs = sum(n * (n + 1) // 2 if case["causal"] else n * n for n in lengths)
    return 4 * case["d_head"] * case["heads"] * pairs


def kernels(cases: list[dict[str, Any]], gpu: Gpu) -> Iterator[Compile]:
    """Return what compiles what the cases launch: see lab/precompile.py."""
    for case in cases:
        lengths = lengths_of(case)
        rows, heads = sum(lengths), case["heads"]
        average = ceil_div(rows, len(lengths))
        problem = AttentionProblem.dense(
            len(lengths), heads, average, average, case["d_head"], layout="bshd",
            heads_kv=case.get("heads_kv", heads), dtype=case.get("dtype", "bf16"), is_causal=case["causal"],
        )  # fmt: skip
        for rung in (None, OTHER):
            yield from of_attention([replace(problem, totals=(rows, rows))], gpu, rung)


def packed_records(
    suite: str, cases: list[dict[str, Any]], seconds: float, say: Progress, ordinal: int = 0
) -> list[dict[str, Any]]:
    """One record a case. `ratio` is the time of torch's varlen_attn over ours, `ratio_a17` that of our last rung
    without wgmma. What is wrong is not timed. Raises MissingDependency without a torch that has varlen_attn."""
    try:
        import torch
        from torch.nn.attention.varlen import varlen_attn
    except ImportError as error:
        raise MissingDependency(f"the suite {suite} needs torch 2.10: {install('bench')}") from error
    where = device(ordinal)
    origin = provenance(
        machine_kind="gpu", gpu=where.name, arch=where.arch.name, driver=driver_version(),
        reference="torch's varlen_attn", reference_version=f"torch {torch.__version__}",
    )  # fmt: skip
    records = []
    for number, case in enumerate(cases):
        say(number, f"{len(lengths_of(case))} entries, d_head {case['d_head']}")
        made = _measure(torch, varlen_attn, case, where, seconds)
        records.append({"suite": suite, **made, "provenance": origin})
        torch.cuda.empty_cache()
    return records


def _measure(torch: Any, varlen_attn: Any, case: dict[str, Any], where: Device, seconds: float) -> dict[str, Any]:
    lengths, heads, d_head, causal = lengths_of(case), case["heads"], case["d_head"], case["causal"]
    heads_kv, dtype = case.get("heads_kv", heads), case.get("dtype", "bf16")
    starts = [0, *accumulate(lengths)]
    at = torch.tensor(starts, dtype=torch.int32, device="cuda")
    kind = getattr(torch, DTYPE_NAMES[dtype])
    item = 4 * starts[-1] * d_head * (heads + heads_kv)
    sets = [
        [torch.randn(starts[-1], own, d_head, device="cuda", dtype=kind) for own in (heads, heads_kv, heads_kv)]
        for _ in range(min(max(2, 3 * where.gpu.l2 // item + 1), 16))
    ]

    def ours(rung: str | None) -> Any:
        return lambda q, k, v: attention_varlen(q, k, v, at, at, is_causal=causal, rung=rung)

    def torchs(q: Any, k: Any, v: Any) -> Any:
        return varlen_attn(q, k, v, at, at, max(lengths), max(lengths), window_size=(-1, 0 if causal else -1))

    plan = explain_attention(*sets[0], cu_seqlens_q=at, cu_seqlens_k=at, is_causal=causal).plan
    assert plan is not None
    told = {
        "entries": len(lengths), "shortest": min(lengths), "longest": max(lengths), "rows": starts[-1],
        "heads_q": heads, "heads_kv": heads_kv, "d_head": d_head, "dtype": dtype, "is_causal": causal,
        "rung": plan.rung.id, "config_text": str(plan.config),
    }  # fmt: skip
    out = ours(None)(*sets[0])
    verdict = judged(out, sets[0], starts, causal, dtype)
    result: dict[str, Any] = {"right": verdict.ok, "reason": verdict.reason}
    theirs = torchs(*sets[0])
    if verdict.ok and not float((out.float() - theirs.float()).abs().max()) <= float(theirs.abs().max()) / 32:
        result = {"right": False, "reason": "it differs from torch's"}
    if not result["right"]:
        return {"case": told, "result": result}
    flops = work_of(lengths, case)
    rounds = max(1, round(GRAPH_MS * _FLOP_PER_MS / flops / len(sets)))
    calls = rounds * len(sets)
    own = [replayed(torch, ours(None), sets * rounds, where.ordinal)]
    for name, other in (("", torchs), (f"_{OTHER}", ours(OTHER))):
        against = [replayed(torch, other, sets * rounds, where.ordinal)]
        timing, conditions = time_pairs(where.ordinal, own, against, seconds=seconds, graphs=False, watched=not name)
        read = timing.to_dict()
        read |= {key: read[key] / calls for key in ("ms", "reference_ms")}
        result |= {f"{key}{name}": read[key] for key in ("reference_ms", "ratio", "ratio_p10", "ratio_p90")}
        if not name:
            result |= {"ms": read["ms"], "conditions": conditions, "by_graph": True, "pairs": timing.pairs}
    result |= {"tflops": flops / result["ms"] * 1e-9, "buffer_sets": len(sets)}
    return {"case": told, "result": result}


def judged(out: Any, operands: list[Any], starts: list[int], causal: bool, dtype: str) -> CheckResult:
    """Judge the first head and the last of the first entry and the last that are short enough for float64."""
    short = [entry for entry, (start, end) in enumerate(pairwise(starts)) if 0 < end - start <= _MOST_JUDGED]
    heads, heads_kv, d_head = operands[0].shape[1], operands[1].shape[1], operands[0].shape[2]
    verdict = CheckResult(True, 0.0, 0.0)
    for entry in sorted({*short[:1], *short[-1:]}):
        rows = slice(starts[entry], starts[entry + 1])
        for head in {0, heads - 1}:
            own = (head, head // (heads // heads_kv), head // (heads // heads_kv))
            mine, query, keys, values = (
                np.asarray(x[rows, h].float().cpu())[None, None]
                for x, h in zip((out, *operands), (head, *own), strict=True)
            )
            count = starts[entry + 1] - starts[entry]
            problem = AttentionProblem.dense(1, 1, count, count, d_head, dtype=dtype, is_causal=causal)
            verdict = check_attention(mine, attention_reference(query, keys, values, problem), dtype)
            if not verdict.ok:
                return verdict
    return verdict
