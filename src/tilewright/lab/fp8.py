"""Products of fp8 operands as plans make them, in pairs with torch._scaled_mm; on a GPU, with torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..gemm.call import Call, Options, read_call
from ..gemm.explain import explain
from ..gemm.fusion import request
from ..gemm.matmul import matmul
from ..gemm.problem import SCALE_BLOCK
from ..gpus import Gpu
from ..plan.plan import Plan
from .bench import time_pairs
from .ladder import Progress, silent
from .origin import torch_origin
from .precompile import Compile, absent, of_call
from .reference import torch_stream

ROTATED = 180 << 20
"""Bytes of operands that are rotated through: three times an H200's L2, and more."""
SAMPLED = 64
"""Rows of a result that are checked against float64."""
LOSS = 2.0**-9
"""What sums on Hopper's tensor cores may lose, of the sum of the products' magnitudes (docs/products.md)."""


class Arrays(NamedTuple):
    """Operands of one case with their scales, and a result."""

    a: Any
    b: Any
    a_scale: Any
    b_scale: Any
    out: Any


def _scales(torch: Any, shape: tuple[int, ...], device: str) -> Any:
    return torch.rand(shape, device=device) + 0.5


def make_arrays(torch: Any, case: Mapping[str, Any], device: str) -> Arrays:
    """Normal operands rounded to e4m3, a [m, k] and b [k, n], both contiguous along k, and scales from 0.5 to 1.5:
    `scales` "tensor": one of each operand; "rows": of rows and columns; "blocks": 1 x 128 and 128 x 128, by columns, as
    torch wants them and tilewright.quantize makes a's."""
    m, n, k = case["m"], case["n"], case["k"]
    deep = -(-k // SCALE_BLOCK)
    of_a, of_b = {
        "tensor": ((), ()), "rows": ((m, 1), (1, n)), "blocks": ((m, deep), (deep, -(-n // SCALE_BLOCK))),
    }[case["scales"]]  # fmt: skip
    a, b = (torch.randn(lines, k, device=device).to(torch.float8_e4m3fn) for lines in (m, n))
    out = torch.empty(m, n, device=device, dtype=torch.bfloat16)
    a_scale, b_scale = _scales(torch, of_a[::-1], device), _scales(torch, of_b[::-1], device)
    return Arrays(a, b.mT, a_scale.mT if of_a else a_scale, b_scale.mT if of_b else b_scale, out)


def kernels(cases: Sequence[Mapping[str, Any]], gpu: Gpu) -> Iterator[Compile]:
    """Return what compiles what the cases launch: see lab/precompile.py."""
    for case in cases:
        for call in _calls(case):
            yield from of_call(call, gpu)


def planned(case: Mapping[str, Any], gpu: Gpu) -> Plan:
    """Return what a case would run now."""
    return next(_calls(case)).plan(gpu)


def _calls(case: Mapping[str, Any]) -> Iterator[Call]:
    """The call of a case, then the calls of ours that it is timed against."""
    m, n, k = case["m"], case["n"], case["k"]
    deep, wide = -(-k // SCALE_BLOCK), -(-n // SCALE_BLOCK)
    of_a, of_b = {"tensor": ((), ()), "rows": ((m, 1), (1, n)), "blocks": ((m, deep), (deep, wide))}[case["scales"]]
    scaled = [(of_a, of_b), *([((), ())] if case["scales"] == "blocks" else [])]
    a, b, out = absent("a", (m, k), "e4m3"), absent("b", (k, n), "e4m3", True), absent("out", (m, n), "bf16")
    for one, other in scaled:
        scales = absent("a_scale", one, "f32", bool(one)), absent("b_scale", other, "f32", bool(other))
        asked = request(None, None, None, None, None, None, {}, *scales)
        yield read_call(a, b, None, 1.0, None, out, Options(), asked)


def whole_scale(torch: Any, scale: Any, shape: tuple[int, int]) -> Any:
    """The scale of each element of an operand."""
    for axis, extent in enumerate(shape):
        if scale.ndim and scale.shape[axis] not in (1, extent):
            scale = scale.repeat_interleave(SCALE_BLOCK, axis).narrow(axis, 0, extent)
    return torch.broadcast_to(scale, shape)


def verdict(torch: Any, arrays: Arrays) -> str:
    """Why `out` is wrong; "" where it is not: some of its rows, the first and last among them, against float64."""
    (m, k), n = arrays.a.shape, arrays.b.shape[1]
    rows = np.unique([0, m - 1, *np.random.default_rng(0).integers(0, m, SAMPLED)])
    a = (arrays.a.float() * whole_scale(torch, arrays.a_scale, (m, k)))[rows].double()
    b = (arrays.b.float() * whole_scale(torch, arrays.b_scale, (k, n))).double()
    exact, size = a @ b, a.abs() @ b.abs()
    bound = exact.abs() * torch.finfo(arrays.out.dtype).eps + size * LOSS
    off = (arrays.out[rows].double() - exact).abs()
    if bool((off <= bound).all()):  # NaN is wrong
        return ""
    row, column = (int(i) for i in ((off <= bound).logical_not()).nonzero()[0])
    found, wanted = float(arrays.out[rows[row], column]), float(exact[row, column])
    return f"row {rows[row]}, column {column} is {found}; exactly {wanted}"


def scaled_mm(torch: Any, arrays: Arrays) -> Callable[[], Any]:
    """The call of torch's product of the same operands, sums in fp32."""
    a, b, a_scale, b_scale, out = arrays
    return lambda: torch._scaled_mm(a, b, scale_a=a_scale, scale_b=b_scale, out_dtype=out.dtype, out=out)


def fp8_records(
    suite: str, cases: Sequence[dict[str, Any]], seconds: float = 1.0, say: Progress = silent
) -> list[dict[str, Any]]:
    """Records of cases {"m", "n", "k", "scales"}; verified, then timed in pairs with torch._scaled_mm. Scales of blocks
    are timed in pairs with our own product of one scale per operand too ("of_tensor"). Raises MissingDependency."""
    torch, origin = torch_origin("the suite of fp8")
    records = []
    for number, case in enumerate(cases):
        say(number, "{m} x {n} x {k}, scales of {scales}".format(**case))
        torch.manual_seed(0)
        moved = case["m"] * case["k"] + case["k"] * case["n"] + 2 * case["m"] * case["n"]
        sets = [make_arrays(torch, case, "cuda") for _ in range(max(2, -(-ROTATED // moved)))]
        first = sets[0]
        _multiply(first)
        reason = verdict(torch, first)
        result: dict[str, Any] = {"right": not reason, "reason": reason}
        if not reason:
            result |= _timed(torch, case, sets, seconds)
        plan = explain(first.a, first.b, a_scale=first.a_scale, b_scale=first.b_scale, out=first.out).plan
        assert plan is not None
        told = {"dtype": "e4m3", "layout": "nt"} | case | {"rung": plan.rung.id, "config_text": str(plan.config)}
        records.append({"suite": suite, "case": told, "result": result, "provenance": origin})
        del sets, first
        torch.cuda.empty_cache()
    return records


def _multiply(arrays: Arrays) -> None:
    a, b, a_scale, b_scale, out = arrays
    matmul(a, b, a_scale=a_scale, b_scale=b_scale, out=out)


def _timed(torch: Any, case: Mapping[str, Any], sets: Sequence[Arrays], seconds: float) -> dict[str, Any]:
    def launches(calls: Sequence[Callable[[], Any]]) -> list[Callable[[int], None]]:
        return [_launch(torch, call) for call in calls]

    def ours(chosen: Sequence[Arrays]) -> list[Callable[[int], None]]:
        return launches([lambda arrays=arrays: _multiply(arrays) for arrays in chosen])  # type: ignore[misc]

    theirs = launches([scaled_mm(torch, arrays) for arrays in sets])
    timing, conditions = time_pairs(0, ours(sets), theirs, seconds=seconds)
    found = timing.to_dict() | {
        "tflops": 2e-9 * case["m"] * case["n"] * case["k"] / timing.ms, "conditions": conditions,
    }  # fmt: skip
    if case["scales"] == "blocks":
        one = [_scales(torch, (), "cuda") for _ in range(2)]
        plain = [arrays._replace(a_scale=one[0], b_scale=one[1]) for arrays in sets]
        found["of_tensor"] = time_pairs(0, ours(sets), ours(plain), seconds=seconds)[0].ratio
    return found


def _launch(torch: Any, call: Callable[[], Any]) -> Callable[[int], None]:
    def launch(stream: int) -> None:
        with torch.cuda.stream(torch_stream(torch, stream, 0)):
            call()

    return launch
