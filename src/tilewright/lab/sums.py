"""The errors of planned fp32 products next to cuBLAS's, over random shapes, and the cost of shorter sums."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import exp, log
from statistics import fmean
from typing import Any

import numpy as np

from ..gemm.family import Products, plan_for
from ..gemm.matmul import matmul
from ..gemm.problem import GemmProblem
from ..gpus import Gpu
from ..plan.choose import plan
from ..plan.demands import Demands
from ..plan.plan import Plan
from .bench import time_pairs
from .check import UNIT_ROUNDOFF
from .ladder import Progress, silent
from .origin import torch_origin
from .precompile import Compile, of_products
from .reference import torch_stream

MOST_PRODUCTS, MOST_ELEMENTS = 2e10, 6e7
"""Of a shape: multiply-adds, and elements of its operands together."""
LONGEST, WIDEST = 100_000, 4096
ALLOWED = 2.0
"""An error may be so many times cuBLAS's,"""
FLOOR = 4.0
"""or so many half-ulps of the largest result: where cuBLAS happens to be exact, the ratio says nothing."""
TOLD = 20
"""Shapes that a record names, the worst first."""
Shape = tuple[int, int, int]


def shapes_of(case: Mapping[str, Any]) -> list[Shape]:
    """Return a case's (m, n, k): each extent's logarithm is uniform, the same at every run."""
    rng = np.random.default_rng(case["seed"])
    found: list[Shape] = []
    while len(found) < case["shapes"]:
        m, n, k = (int(exp(rng.uniform(0, log(most)))) for most in (WIDEST, WIDEST, LONGEST))
        if m * n * k <= MOST_PRODUCTS and (m + n) * k <= MOST_ELEMENTS:
            found.append((m, n, k))
    return found


class _AsChosen(Products):
    """Products whose long sums are left as they are."""

    def settled(self, problem: GemmProblem, chosen: Plan, demands: Demands) -> Plan:
        return chosen


AS_CHOSEN = _AsChosen()


def plans_of(shape: Shape, layout: str, gpu: Gpu) -> tuple[Plan, Plan]:
    """(the plan, the plan if long sums were left as they are) of a shape."""
    problem = GemmProblem.dense(*shape, layout=layout)
    return plan_for(problem, gpu), plan(AS_CHOSEN, problem, gpu)


def changed_shapes(case: Mapping[str, Any], gpu: Gpu) -> tuple[int, list[Shape]]:
    """(how many of a case's shapes have shorter sums, those of them that are timed)."""
    changed = [
        shape for shape in shapes_of(case) if len({one.config for one in plans_of(shape, case["layout"], gpu)}) > 1
    ]
    return len(changed), changed[:: max(1, len(changed) // case["timed"])][: case["timed"]]


def kernels(cases: Sequence[Mapping[str, Any]], gpu: Gpu) -> Iterator[Compile]:
    """Return what compiles what the cases launch: see lab/precompile.py."""
    for case in cases:
        errors = case["what"] == "errors"
        for shape in shapes_of(case) if errors else changed_shapes(case, gpu)[1]:
            problem = GemmProblem.dense(*shape, layout=case["layout"])
            plans = (plan_for(problem, gpu),) if errors else plans_of(shape, case["layout"], gpu)
            yield from of_products(((problem, one) for one in plans), gpu)


def operands(torch: Any, shape: Shape, layout: str, device: str) -> tuple[Any, Any]:
    """Random normal A [m, k] and B [k, n] that lie as the layout says."""
    m, n, k = shape
    a, b = ((m, k) if layout[0] == "n" else (k, m)), ((k, n) if layout[1] == "n" else (n, k))
    sides = [torch.randn(*extents, device=device) for extents in (a, b)]
    return tuple(side if how == "n" else side.t() for side, how in zip(sides, layout, strict=True))


def errors_of(torch: Any, shape: Shape, layout: str, device: str) -> dict[str, float]:
    """The largest errors of our product and of torch's, in half-ulps of the largest element of the result.

    `ratio`: ours over torch's. `beyond`: ours over what is allowed; above 1 it is too large. NaN is infinitely wrong.
    """
    a, b = operands(torch, shape, layout, device)
    exact = a.double() @ b.double()
    half_ulp = float(exact.abs().max()) * UNIT_ROUNDOFF
    ours, theirs = (
        float((product.double() - exact).abs().max().nan_to_num(nan=float("inf"))) / half_ulp
        for product in (matmul(a, b), torch.mm(a, b))
    )
    return {
        "ours": ours, "cublas": theirs, "ratio": ours / theirs if theirs else float(ours > 0) * 1e9,
        "beyond": ours / max(ALLOWED * theirs, FLOOR),
    }  # fmt: skip


def sums_records(
    suite: str, cases: Sequence[dict[str, Any]], seconds: float = 1.0, say: Progress = silent
) -> list[dict[str, Any]]:
    """Records of cases {"what", "shapes", "seed", "layout"}, what: the "errors" of all shapes, or the "time" of shorter
    sums, over the case's number "timed" of the shapes whose plan has them. Raises MissingDependency without torch."""
    torch, origin = torch_origin("the suite of fp32 sums")
    from ..jit.device import device

    where = device(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    records = []
    for case in cases:
        torch.manual_seed(case["seed"])
        measure = _errors if case["what"] == "errors" else _times
        result = measure(torch, case, where.gpu, seconds, say)
        told = {name: case[name] for name in ("what", "layout", "seed")} | {"dtype": "f32"}
        records.append({"suite": suite, "case": told, "result": result, "provenance": origin})
    return records


def _errors(torch: Any, case: Mapping[str, Any], gpu: Gpu, seconds: float, say: Progress) -> dict[str, Any]:
    shapes, layout = shapes_of(case), case["layout"]
    found = []
    for number, shape in enumerate(shapes):
        if number % 100 == 0:
            say(0, f"errors of {len(shapes)} shapes, {number} of them done")
        found.append((shape, errors_of(torch, shape, layout, "cuda")))
    return summary(found, layout, gpu)


def _times(torch: Any, case: Mapping[str, Any], gpu: Gpu, seconds: float, say: Progress) -> dict[str, Any]:
    changed, shapes = changed_shapes(case, gpu)
    timed = []
    for shape in shapes:
        say(1, f"time of {shape}")
        timed.append(timed_pair(torch, shape, case["layout"], gpu, seconds))
    ratios = [one["ratio"] for one in timed]
    return {
        "right": True, "reason": "", "shapes": len(timed), "changed": changed, "timed": timed,
        "ratio": exp(fmean(map(log, ratios))), "least": min(ratios),
    }  # fmt: skip


def summary(found: Sequence[tuple[Shape, dict[str, float]]], layout: str, gpu: Gpu) -> dict[str, Any]:
    """A record's result on the errors of all shapes; right where none is beyond what is allowed."""
    worst = sorted(found, key=lambda one: -one[1]["beyond"])
    beyond = sum(not errors["beyond"] <= 1 for _, errors in found)
    configs = {shape: str(plans_of(shape, layout, gpu)[0].config) for shape, _ in worst[:TOLD]}
    return {
        "right": beyond == 0,
        "reason": f"{beyond} of {len(found)} errors are more than {ALLOWED:g} times cuBLAS's" if beyond else "",
        "shapes": len(found), "beyond": beyond,
        "over_twice": sum(errors["ratio"] > ALLOWED for _, errors in found),
        "worst": [{"shape": shape, "config": configs[shape], **errors} for shape, errors in worst[:TOLD]],
    }  # fmt: skip


def timed_pair(torch: Any, shape: Shape, layout: str, gpu: Gpu, seconds: float) -> dict[str, Any]:
    """A shape's time without shorter sums over its time with them (above 1: they cost nothing), in pairs."""
    chosen, plain = plans_of(shape, layout, gpu)
    m, n, k = shape
    sets = min(max(2, 3 * gpu.l2 // (4 * (m * k + k * n + m * n)) + 1), 64)
    arrays = [(*operands(torch, shape, layout, "cuda"), torch.empty(m, n, device="cuda")) for _ in range(sets)]

    def launches(of: Plan) -> list[Any]:
        def launch(stream: int, a: Any, b: Any, out: Any) -> None:
            with torch.cuda.stream(torch_stream(torch, stream, 0)):
                matmul(a, b, out=out, rung=of.rung.id, config=of.config)

        return [lambda stream, one=one: launch(stream, *one) for one in arrays]

    timing, _ = time_pairs(0, launches(chosen), launches(plain), seconds=seconds)
    torch.cuda.empty_cache()
    return {
        "shape": shape, "config": str(chosen.config), "plain": str(plain.config), "us": timing.ms * 1e3,
        "ratio": timing.ratio, "ratio_p10": timing.ratio_p10, "ratio_p90": timing.ratio_p90,
    }  # fmt: skip
