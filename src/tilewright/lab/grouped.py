"""Grouped products in pairs with one dense product of the same work, and with torch's own; on a GPU, with torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..grouped.matmul import grouped_matmul
from .bench import time_pairs
from .ladder import Progress, silent
from .origin import torch_origin
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


def sizes_of(case: Mapping[str, Any]) -> list[int]:
    """The groups' sizes: all of one, or evenly at random from the least to the most, always the same."""
    sizes = case["sizes"]
    if isinstance(sizes, int):
        return [sizes] * case["groups"]
    low, high = sizes
    return [int(size) for size in np.random.default_rng(0).integers(low, high + 1, case["groups"])]


def make_arrays(torch: Any, case: Mapping[str, Any], device: str) -> Arrays:
    """Normal operands. `form` "rows": [rows, k] @ [groups, k, n], by `layout`; "k": [rows, k].T @ [rows, n], a weight's
    gradient."""
    sizes = sizes_of(case)
    rows, groups, n, k = sum(sizes), len(sizes), case["n"], case["k"]
    dtype = {"f16": torch.float16, "bf16": torch.bfloat16}[case["dtype"]]

    def randn(*shape: int) -> Any:
        return torch.randn(shape, device=device, dtype=dtype)

    offs = torch.tensor(sizes, device=device).cumsum(0).to(torch.int32)
    a, ends = randn(rows, k), tuple(int(end) for end in np.cumsum(sizes))
    if case["form"] == "k":
        return Arrays(a.mT, randn(rows, n), offs, torch.empty(groups, k, n, device=device, dtype=dtype), ends)
    b = randn(groups, n, k).mT if case["layout"] == "nt" else randn(groups, k, n)
    return Arrays(a, b, offs, torch.empty(rows, n, device=device, dtype=dtype), ends)


def verdict(torch: Any, case: Mapping[str, Any], arrays: Arrays) -> str:
    """Why `out` is wrong; "" where it is not: some rows of every group against float64, all others against torch's."""
    begin, chosen = 0, np.random.default_rng(1)
    for group, end in enumerate(arrays.ends):
        if case["form"] == "k":
            a, b, out = arrays.a[:, begin:end], arrays.b[begin:end], arrays.out[group]
        else:
            a, b, out = arrays.a[begin:end], arrays.b[group], arrays.out[begin:end]
        begin = end
        if out.shape[0] == 0:
            continue
        rows = np.unique([0, out.shape[0] - 1, *chosen.integers(0, out.shape[0], SAMPLED)])
        wide, other = a[rows].double(), b.double()
        exact, size = wide @ other, wide.abs() @ other.abs()
        bound = exact.abs() * torch.finfo(out.dtype).eps + size * 2**-17
        worst = (out[rows].double() - exact).abs() - bound
        if not bool((worst <= 0).all()):  # NaN is wrong
            return f"group {group} of {len(arrays.ends)}, {a.shape[0]} x {a.shape[1]}: off by more than rounding"
        if not torch.allclose(out, a @ b, rtol=0.02, atol=float(size.max()) * 2**-9):
            return f"group {group} of {len(arrays.ends)}, {a.shape[0]} x {a.shape[1]}: not torch's product"
    return ""


def grouped_records(
    suite: str, cases: Sequence[dict[str, Any]], seconds: float = 1.0, say: Progress = silent
) -> list[dict[str, Any]]:
    """Records of cases {"form", "groups", "sizes", "n", "k", "layout", "dtype"}; verified, then timed in pairs with a
    dense product of as many rows, and with torch's grouped product. Raises MissingDependency."""
    torch, origin = torch_origin("the suite of grouped products")
    from ..grouped.explain import explain_grouped_matmul

    records = []
    for number, case in enumerate(cases):
        say(number, f"{case['groups']} groups, {case['form']}, n {case['n']}, k {case['k']}")
        torch.manual_seed(0)
        arrays = make_arrays(torch, case, "cuda")
        call = arrays.a, arrays.b, arrays.offs
        grouped_matmul(*call, out=arrays.out)
        reason = verdict(torch, case, arrays)
        result: dict[str, Any] = {"right": not reason, "reason": reason}
        if not reason:
            result |= _timed(torch, case, arrays, seconds)
        plan = explain_grouped_matmul(*call).plan
        assert plan is not None
        told = case | {"rung": plan.rung.id, "config_text": str(plan.config), "rows": arrays.ends[-1]}
        records.append({"suite": suite, "case": told, "result": result, "provenance": origin})
        del arrays, call
        torch.cuda.empty_cache()
    return records


def _timed(torch: Any, case: Mapping[str, Any], arrays: Arrays, seconds: float) -> dict[str, Any]:
    a, b, offs, out, ends = arrays
    dense = torch.empty(out.shape[-2:], device="cuda", dtype=out.dtype)
    one = b if case["form"] == "k" else b[0]
    ours = [_launch(torch, lambda: grouped_matmul(a, b, offs, out=out))]
    library = [_launch(torch, lambda: torch.mm(a, one, out=dense))]
    timing, conditions = time_pairs(0, ours, library, seconds=seconds)
    found = timing.to_dict() | {
        "tflops": 2e-9 * ends[-1] * case["n"] * case["k"] / timing.ms, "conditions": conditions,
    }  # fmt: skip
    if hasattr(torch, "_grouped_mm"):
        theirs = [_launch(torch, lambda: torch._grouped_mm(a, b, offs=offs))]
        found["of_torchs"] = time_pairs(0, ours, theirs, seconds=seconds, graphs=False)[0].ratio
    return found


def _launch(torch: Any, call: Callable[[], Any]) -> Callable[[int], None]:
    def launch(stream: int) -> None:
        with torch.cuda.stream(torch_stream(torch, stream, 0)):
            call()

    return launch
