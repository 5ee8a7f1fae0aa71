"""The cost of a fused epilogue over the bare product and saves over torch's own kernels; on a GPU, with torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ..gemm.explain import explain
from .bench import time_pairs
from .check import UNIT_ROUNDOFF
from .host import host_microseconds
from .ladder import Progress, silent
from .origin import torch_origin
from .reference import torch_stream

_DIGITS = {"float32": 24, "float16": 11, "bfloat16": 8}
"""Bits of a significand."""


def verdict(
    torch: Any, out: Any, a: Any, b: Any, function: Callable[..., Any], operands: Sequence[Any] = (), *,
    alpha: float = 1.0,
) -> str:  # fmt: skip
    """Why `out` is not function(alpha * (a @ b), *operands), "" when it is. All are torch tensors on a GPU.

    As check.check: the reference in float64, the same in float32 as the measure; for 16-bit results half a step more,
    and what tilewright.epilogue says that functions may be off by then.
    """
    product = alpha * torch.matmul(a.double(), b.double())
    exact = function(product, *(x.double() for x in operands))
    measure = function((alpha * torch.matmul(a.float(), b.float())), *(x.float() for x in operands))
    if out.shape != exact.shape:
        return f"shape {tuple(out.shape)} instead of {tuple(exact.shape)}"
    k, size = a.shape[-1], exact.abs()
    steps = k**0.5 + (0 if a.dtype == torch.float32 else k / 8)
    scale = max(float(size.max()), float(product.abs().max()))
    in_fp32 = 2 * float((measure.double() - exact).abs().max()) + steps * UNIT_ROUNDOFF * scale + 1e-36
    digits = _DIGITS[str(out.dtype).removeprefix("torch.")]
    allowed = torch.full_like(exact, in_fp32)
    if digits < 24:
        least = -13 if out.dtype == torch.float16 else -125
        exponent = torch.frexp(size + in_fp32)[1].clamp(min=least)
        allowed += torch.ldexp(torch.ones_like(exact), exponent - digits - 1) + 2.0**-16 * size
    error = (out.double() - exact).abs()
    wrong = ~(error <= allowed)  # NaN is wrong
    if not wrong.any():
        return ""
    worst = float(torch.where(wrong, error.nan_to_num(nan=float("inf")), 0).max())
    return f"{int(wrong.sum())} of {out.numel()} elements are wrong, by up to {worst:.3g}; fp32 may be by {in_fp32:.3g}"


_EXPRESSION = "silu(acc + bias) + residual"


def epilogue_records(
    suite: str, cases: Sequence[dict[str, Any]], seconds: float = 1.0, say: Progress = silent
) -> list[dict[str, Any]]:
    """Records of cases; each kind of result is verified before anything is timed. Raises MissingDependency.

    Case "against": "bare" times the fused call in pairs with the same product without an epilogue, "torch" with torch's
    addmm, silu_ and add_; "host" measures the host's microseconds of warm calls. A ratio is the other's time over the
    fused call's, so that the epilogue costs 1 / ratio - 1 of the bare product.
    """
    torch, origin = torch_origin("the epilogue suite")
    records = []
    for number, case in enumerate(cases):
        say(number, f"{case['against']} at {case['m']}x{case['n']}x{case['k']}")
        for what, result in _host(torch, case) if case["against"] == "host" else _paired(torch, case, seconds):
            records.append({"suite": suite, "case": case | what, "result": result, "provenance": origin})
    return records


def _operands(torch: Any, case: dict[str, Any]) -> tuple[Any, ...]:
    """a, b, bias, residual and out, random normal."""
    dtype = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[case.get("dtype", "bf16")]
    m, n, k = case["m"], case["n"], case["k"]
    make = partial(torch.randn, device="cuda", dtype=dtype)
    b = make(n, k).T if case.get("layout", "nn")[1] == "t" else make(k, n)
    return make(m, k), b, make(n), make(m, n), torch.empty(m, n, device="cuda", dtype=dtype)


def _config_text(*given: Any, **options: Any) -> str:
    plan = explain(*given, **options).plan
    return f"{plan.rung} {plan.config}" if plan is not None else ""


def _paired(torch: Any, case: dict[str, Any], seconds: float) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    from ..gemm.matmul import matmul
    from ..jit.device import device

    silu = torch.nn.functional.silu
    of_call = sum(x.nbytes for x in _operands(torch, case))
    count = max(2, -(-3 * device(0).gpu.l2 // of_call))
    sets = [_operands(torch, case) for _ in range(count)]
    a, b, bias, residual, out = sets[0]
    matmul(a, b, out=out, bias=bias, activation="silu", residual=residual)
    reason = verdict(torch, out, a, b, lambda acc, bias, r: silu(acc + bias) + r, (bias, residual))
    what = {
        "epilogue": _EXPRESSION,
        "config_text": _config_text(a, b, out=out, bias=bias, activation="silu", residual=residual),
        "bare_config_text": _config_text(a, b, out=out),
    }
    if reason:
        return [(what, {"right": False, "reason": reason})]

    def fused(stream: int, given: tuple[Any, ...]) -> None:
        a, b, bias, residual, out = given
        with torch.cuda.stream(torch_stream(torch, stream, 0)):
            matmul(a, b, out=out, bias=bias, activation="silu", residual=residual)

    def bare(stream: int, given: tuple[Any, ...]) -> None:
        with torch.cuda.stream(torch_stream(torch, stream, 0)):
            matmul(given[0], given[1], out=given[4])

    def by_torch(stream: int, given: tuple[Any, ...]) -> None:
        a, b, bias, residual, out = given
        with torch.cuda.stream(torch_stream(torch, stream, 0)):
            torch.addmm(bias, a, b, out=out)
            silu(out, inplace=True)
            out.add_(residual)

    other = bare if case["against"] == "bare" else by_torch
    candidates = [lambda stream, given=given: fused(stream, given) for given in sets]
    references = [lambda stream, given=given: other(stream, given) for given in sets]
    timing, conditions = time_pairs(0, candidates, references, seconds=seconds)
    result = {"right": True, "reason": ""} | timing.to_dict() | {"buffer_sets": count, "conditions": conditions}
    return [(what, result)]


def _host(torch: Any, case: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    from .. import epilogue as ep
    from ..gemm.matmul import matmul

    silu = torch.nn.functional.silu
    a, b, bias, residual, _ = _operands(torch, case)
    calls: dict[str, tuple[Callable[[], Any], Callable[..., Any]]] = {
        "matmul(a, b)": (lambda: matmul(a, b), lambda acc, bias, r: acc),
        "matmul(a, b, bias=bias, activation='silu')": (
            lambda: matmul(a, b, bias=bias, activation="silu"), lambda acc, bias, r: silu(acc + bias),
        ),
        "matmul(a, b, bias=bias, activation='silu', residual=residual)": (
            lambda: matmul(a, b, bias=bias, activation="silu", residual=residual),
            lambda acc, bias, r: silu(acc + bias) + r,
        ),
        "matmul(a, b, epilogue=lambda acc, bias, r: silu(acc + bias) + r, bias=bias, r=residual)": (
            lambda: matmul(a, b, epilogue=lambda acc, bias, r: ep.silu(acc + bias) + r, bias=bias, r=residual),
            lambda acc, bias, r: silu(acc + bias) + r,
        ),
    }  # fmt: skip
    found = []
    for text, (call, function) in calls.items():
        reason = verdict(torch, call(), a, b, function, (bias, residual))
        result: dict[str, Any] = {"right": not reason, "reason": reason}
        if not reason:
            result["host_us"] = host_microseconds(call, torch.cuda.synchronize)
        found.append(({"call": text}, result))
    return found
