"""The host's time of one warm call of attention, and of torch's: microseconds of the Python thread."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ..arrays.dtypes import DTYPE_NAMES
from ..attn.attention import attention, attention_varlen
from ..attn.problem import AttentionProblem
from .attention_check import attention_reference, check_attention
from .check import CheckResult
from .host import host_microseconds
from .ladder import Progress
from .origin import torch_origin


def attention_calls(
    torch: Any, case: dict[str, Any], device: str = "cuda"
) -> tuple[CheckResult, dict[str, Callable[[], object]]]:
    """(whether the result is right, what to time by its name) for a case's sizes, on tensors of a device."""
    from ..torch import scaled_dot_product_attention

    batch, heads, seq, d = (case[name] for name in ("batch", "heads", "seq", "d_head"))
    dtype, is_causal = case.get("dtype", "bf16"), case.get("causal", False)
    kind = getattr(torch, DTYPE_NAMES[dtype])
    q, k, v = (torch.randn(batch, heads, seq, d, device=device).to(kind) for _ in range(3))
    out = torch.empty_like(q)
    rows = [x.transpose(1, 2).reshape(batch * seq, heads, d).contiguous() for x in (q, k, v)]
    starts = torch.arange(0, batch * seq + 1, seq, device=device, dtype=torch.int32)
    problem = AttentionProblem.dense(batch, heads, seq, seq, d, dtype=dtype, is_causal=is_causal)
    mine, *given = (x.float().cpu().numpy() for x in (attention(q, k, v, is_causal=is_causal), q, k, v))
    verdict = check_attention(mine, attention_reference(given[0], given[1], given[2], problem), dtype)
    torchs = torch.nn.functional.scaled_dot_product_attention
    calls: dict[str, Callable[[], object]] = {
        "tw.attention(q, k, v)": partial(attention, q, k, v, is_causal=is_causal),
        "tw.attention(q, k, v, out=out)": partial(attention, q, k, v, out=out, is_causal=is_causal),
        "tw.attention(q, k, v, return_lse=True)": partial(attention, q, k, v, return_lse=True, is_causal=is_causal),
        "tw.attention_varlen(q, k, v, starts, starts, longest)": partial(
            attention_varlen, rows[0], rows[1], rows[2], starts, starts, seq, is_causal=is_causal
        ),
        "tw.torch.scaled_dot_product_attention(q, k, v)": partial(
            scaled_dot_product_attention, q, k, v, is_causal=is_causal
        ),
        "torch's scaled_dot_product_attention(q, k, v)": partial(torchs, q, k, v, is_causal=is_causal),
    }
    return verdict, calls


def attention_host_records(suite: str, cases: list[dict[str, Any]], say: Progress) -> list[dict[str, Any]]:
    """One record a call of each case, on torch tensors, warm; checked first. Raises MissingDependency without torch."""
    torch, origin = torch_origin("the host suite")
    records = []
    for number, case in enumerate(cases):
        say(number, "host time of attention at {batch} x {heads} x {seq}, d_head {d_head}".format(**case))
        verdict, calls = attention_calls(torch, case)
        for text, call in calls.items():
            result: dict[str, Any] = {"right": verdict.ok, "reason": verdict.reason}
            if verdict.ok:
                call()
                result["host_us"] = host_microseconds(call, torch.cuda.synchronize)
            records.append({"suite": suite, "case": case | {"call": text}, "result": result, "provenance": origin})
    return records
