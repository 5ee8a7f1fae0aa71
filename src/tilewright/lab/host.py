"""The host's time of one warm call, without the GPU's: microseconds of the Python thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

from ..arrays.dtypes import DTYPE_NAMES
from .check import check
from .ladder import Progress
from .origin import torch_origin


def host_microseconds(
    call: Callable[[], object], wait: Callable[[], None], calls: int = 1000, rounds: int = 9
) -> float:
    """Median over rounds of the mean of `calls` calls. `wait` empties the GPU's queue between rounds.

    The queue must not fill: the GPU's part of a call must be shorter than the host's.
    """
    times = []
    for _ in range(rounds):
        wait()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - start) / calls * 1e6)
        wait()
    return median(times[1:])


def host_records(suite: str, cases: list[dict[str, Any]], say: Progress) -> list[dict[str, Any]]:
    """Time warm calls of tw.matmul and torch.mm, checked first. Raises MissingDependency without torch."""
    torch, origin = torch_origin("the host suite")
    from ..gemm.matmul import matmul

    torch.backends.cuda.matmul.allow_tf32 = False
    records = []
    for number, case in enumerate(cases):
        m, n, k = case["m"], case["n"], case["k"]
        say(number, f"host time at {m}x{n}x{k}")
        dtype = case.get("dtype", "f32")
        kind = getattr(torch, DTYPE_NAMES[dtype])
        a, b = (torch.randn(size, device="cuda").to(kind) for size in ((m, k), (k, n)))
        out = torch.empty(m, n, device="cuda", dtype=kind)
        numbers = [x.float().cpu().numpy() for x in (matmul(a, b), a, b)]
        verdict = check(*numbers, dtype=dtype, out_dtype=dtype)
        calls: dict[str, Callable[[], object]] = {
            "tw.matmul(a, b)": partial(matmul, a, b),
            "tw.matmul(a, b, out=out)": partial(matmul, a, b, out=out),
            "torch.mm(a, b)": partial(torch.mm, a, b),
            "torch.mm(a, b, out=out)": partial(torch.mm, a, b, out=out),
        }
        for text, call in calls.items():
            result = {"right": verdict.ok, "reason": verdict.reason}
            if verdict.ok:
                result["host_us"] = host_microseconds(call, torch.cuda.synchronize)
            where = {"call": text, "m": m, "n": n, "k": k, "layout": "nn", "dtype": dtype}
            records.append({"suite": suite, "case": where, "result": result, "provenance": origin})
    return records
