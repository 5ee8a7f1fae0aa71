"""Grouped products in pairs with one dense product of the same work, and with torch's own; on a GPU, with torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..gemm.problem import SCALE_BLOCK
from ..gpus import Gpu
from ..grouped.call import GroupedCall, read_grouped
from ..grouped.matmul import grouped_matmul
from ..plan.plan import Plan
from .bench import time_pairs
from .fp8 import LOSS, whole_scale
from .ladder import Progress, silent
from .origin import torch_origin
from .precompile import Compile, absent, of_call
from .reference import torch_stream

SAMPLED = 4
"""Rows of each group that are checked against float64, besides its first and last."""


class Arrays(NamedTuple):
    """Operands of one case, where its groups end, and a result."""

    a: Any
    b: Any
    offs: Any
    out: Any
    ends: tuple[int, ...]
    scales: Mapping[str, Any] = {}
    """a_scale and b_scale of fp8 operands."""


def sizes_of(case: Mapping[str, Any]) -> list[int]:
    """The groups' sizes: all of one, or evenly at random from the least to the most, always the same."""
    sizes = case["sizes"]
    if isinstance(sizes, int):
        return [sizes] * case["groups"]
    low, high = sizes
    return [int(size) for size in np.random.default_rng(0).integers(low, high + 1, case["groups"])]


def make_arrays(torch: Any, case: Mapping[str, Any], device: str) -> Arrays:
    """Normal operands. `form` "rows": [rows, k] @ [groups, k, n], by `layout`; "k": [rows, k].T @ [rows, n], a weight's
    gradient. Of dtype "e4m3" rows alone, both operands along k, and `scales` "rows" (of rows, and of each group's
    columns) or "blocks", from 0.5 to 1.5."""
    sizes = sizes_of(case)
    rows, groups, n, k = sum(sizes), len(sizes), case["n"], case["k"]
    dtype = {"f16": torch.float16}.get(case["dtype"], torch.bfloat16)

    def randn(*shape: int) -> Any:
        return torch.randn(shape, device=device, dtype=dtype)

    offs = torch.tensor(sizes, device=device).cumsum(0).to(torch.int32)
    ends = tuple(int(end) for end in np.cumsum(sizes))
    if case["dtype"] == "e4m3":
        return _of_fp8(torch, case, (rows, groups), offs, ends, device)
    a = randn(rows, k)
    if case["form"] == "k":
        return Arrays(a.mT, randn(rows, n), offs, torch.empty(groups, k, n, device=device, dtype=dtype), ends)
    b = randn(groups, n, k).mT if case["layout"] == "nt" else randn(groups, k, n)
    return Arrays(a, b, offs, torch.empty(rows, n, device=device, dtype=dtype), ends)


def _of_fp8(
    torch: Any, case: Mapping[str, Any], sizes: tuple[int, int], offs: Any, ends: tuple[int, ...], device: str
) -> Arrays:
    (rows, groups), n, k = sizes, case["n"], case["k"]

    def normal(lines: int) -> Any:
        return torch.randn(lines, k, device=device, dtype=torch.bfloat16).to(torch.float8_e4m3fn)

    def scale(*shape: int) -> Any:
        return torch.rand(shape, device=device) + 0.5

    b = torch.stack([normal(n).view(torch.uint8) for _ in range(groups)]).view(torch.float8_e4m3fn).mT
    deep, wide = -(-k // SCALE_BLOCK), -(-n // SCALE_BLOCK)
    a_scale, b_scale = {
        "rows": (scale(rows, 1), scale(groups, 1, n)), "blocks": (scale(deep, rows).mT, scale(groups, wide, deep).mT),
    }[case["scales"]]  # fmt: skip
    out = torch.empty(rows, n, device=device, dtype=torch.bfloat16)
    return Arrays(normal(rows), b, offs, out, ends, {"a_scale": a_scale, "b_scale": b_scale})


def kernels(cases: Sequence[Mapping[str, Any]], gpu: Gpu) -> Iterator[Compile]:
    """Return what compiles what the cases launch: see lab/precompile.py."""
    for case in cases:
        yield from of_call(_call(case), gpu)


def planned(case: Mapping[str, Any], gpu: Gpu) -> Plan:
    """Return what a case would run now."""
    return _call(case).plan(gpu)


def _call(case: Mapping[str, Any]) -> GroupedCall:
    sizes, n, k, dtype = sizes_of(case), case["n"], case["k"], case["dtype"]
    rows, groups, made = sum(sizes), len(sizes), dtype if dtype == "f16" else "bf16"
    if case["form"] == "k":
        a, b = absent("a", (k, rows), dtype, True), absent("b", (rows, n), dtype)
        out = absent("out", (groups, k, n), made)
    else:
        a, b = absent("a", (rows, k), dtype), absent("b", (groups, k, n), dtype, case["layout"] == "nt")
        out = absent("out", (rows, n), made)
    deep, wide = -(-k // SCALE_BLOCK), -(-n // SCALE_BLOCK)
    of_b = absent("b_scale", (groups, deep, wide), "f32", True)
    scales = {
        "rows": (absent("a_scale", (rows, 1), "f32"), absent("b_scale", (groups, 1, n), "f32")),
        "blocks": (absent("a_scale", (rows, deep), "f32", True), of_b),
    }.get(case.get("scales", ""), (None, None))
    return read_grouped(a, b, np.cumsum(sizes), out, None, (None, None), *scales)


def _scaled(torch: Any, operand: Any, scale: Any) -> Any:
    return operand.float() * whole_scale(torch, scale, tuple(operand.shape))


def verdict(torch: Any, case: Mapping[str, Any], arrays: Arrays) -> str:
    """Why `out` is wrong; "" where it is not: some rows of every group against float64, all others against torch's."""
    begin, chosen = 0, np.random.default_rng(1)
    for group, end in enumerate(arrays.ends):
        if case["form"] == "k":
            a, b, out = arrays.a[:, begin:end], arrays.b[begin:end], arrays.out[group]
        else:
            a, b, out = arrays.a[begin:end], arrays.b[group], arrays.out[begin:end]
        if arrays.scales:
            a = _scaled(torch, a, arrays.scales["a_scale"][begin:end])
            b = _scaled(torch, b, arrays.scales["b_scale"][group])
        begin = end
        if out.shape[0] == 0:
            continue
        rows = np.unique([0, out.shape[0] - 1, *chosen.integers(0, out.shape[0], SAMPLED)])
        wide, other = a[rows].double(), b.double()
        exact, size = wide @ other, wide.abs() @ other.abs()
        bound = exact.abs() * torch.finfo(out.dtype).eps + size * (LOSS if arrays.scales else 2**-17)
        worst = (out[rows].double() - exact).abs() - bound
        if not bool((worst <= 0).all()):  # NaN is wrong
            return f"group {group} of {len(arrays.ends)}, {a.shape[0]} x {a.shape[1]}: off by more than rounding"
        theirs = a.to(out.dtype) @ b.to(out.dtype)
        if not torch.allclose(out, theirs, rtol=0.02, atol=float(size.max()) * (2**-8 if arrays.scales else 2**-9)):
            return f"group {group} of {len(arrays.ends)}, {a.shape[0]} x {a.shape[1]}: not torch's product"
    return ""


def grouped_records(
    suite: str, cases: Sequence[dict[str, Any]], seconds: float = 1.0, say: Progress = silent
) -> list[dict[str, Any]]:
    """Records of cases {"form", "groups", "sizes", "n", "k", "layout", "dtype"}, of fp8 "scales" too; verified, then
    timed in pairs with a dense product of as many rows (of fp8 torch._scaled_mm, with one scale of each operand), and
    with torch's grouped product, which has no scales of blocks. Raises MissingDependency."""
    torch, origin = torch_origin("the suite of grouped products")
    from ..grouped.explain import explain_grouped_matmul

    records = []
    for number, case in enumerate(cases):
        say(number, f"{case['groups']} groups, {case['form']}, n {case['n']}, k {case['k']}")
        torch.manual_seed(0)
        arrays = make_arrays(torch, case, "cuda")
        call = arrays.a, arrays.b, arrays.offs
        grouped_matmul(*call, out=arrays.out, **arrays.scales)
        reason = verdict(torch, case, arrays)
        result: dict[str, Any] = {"right": not reason, "reason": reason}
        if not reason:
            result |= _timed(torch, case, arrays, seconds)
        plan = explain_grouped_matmul(*call, out=arrays.out, **arrays.scales).plan
        assert plan is not None
        told = case | {"rung": plan.rung.id, "config_text": str(plan.config), "rows": arrays.ends[-1]}
        records.append({"suite": suite, "case": told, "result": result, "provenance": origin})
        del arrays, call
        torch.cuda.empty_cache()
    return records


def _timed(torch: Any, case: Mapping[str, Any], arrays: Arrays, seconds: float) -> dict[str, Any]:
    a, b, offs, out, ends, scales = arrays
    dense = torch.empty(out.shape[-2:], device="cuda", dtype=out.dtype)
    one = b if case["form"] == "k" else b[0]
    ours = [_launch(torch, lambda: grouped_matmul(a, b, offs, out=out, **scales))]
    library, theirs = _peers(torch, case, arrays, one, dense)
    timing, conditions = time_pairs(0, ours, [_launch(torch, library)], seconds=seconds)
    found = timing.to_dict() | {
        "tflops": 2e-9 * ends[-1] * case["n"] * case["k"] / timing.ms, "conditions": conditions,
    }  # fmt: skip
    if theirs is not None:
        found["of_torchs"] = time_pairs(0, ours, [_launch(torch, theirs)], seconds=seconds, graphs=False)[0].ratio
    return found


def _peers(
    torch: Any, case: Mapping[str, Any], arrays: Arrays, one: Any, dense: Any
) -> tuple[Callable[[], Any], Callable[[], Any] | None]:
    """torch's product of as many rows with the matrix `one`, and its grouped product where it has one."""
    a, b, offs = arrays.a, arrays.b, arrays.offs
    if not arrays.scales:
        grouped = (lambda: torch._grouped_mm(a, b, offs=offs)) if hasattr(torch, "_grouped_mm") else None
        return lambda: torch.mm(a, one, out=dense), grouped
    scale = torch.ones((), device="cuda")
    of_a, of_b = arrays.scales["a_scale"], arrays.scales["b_scale"]
    able = case["scales"] == "rows" and hasattr(torch, "_scaled_grouped_mm")

    def theirs() -> Any:
        return torch._scaled_grouped_mm(a, b, of_a[:, 0], of_b[:, 0], offs=offs, out_dtype=dense.dtype)

    def library() -> Any:
        return torch._scaled_mm(a, one, scale_a=scale, scale_b=scale, out_dtype=dense.dtype, out=dense)

    return library, theirs if able else None


def _launch(torch: Any, call: Callable[[], Any]) -> Callable[[int], None]:
    def launch(stream: int) -> None:
        with torch.cuda.stream(torch_stream(torch, stream, 0)):
            call()

    return launch
