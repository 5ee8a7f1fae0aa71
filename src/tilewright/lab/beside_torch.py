"""Many whole products as tw.matmul plans them, in pairs with torch's: operands, checks and launches on the GPU.

For suites of a hundred shapes, where operands made and products checked on the host would take minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..errors import MissingDependency, install
from ..gemm.family import plan_for
from ..gemm.matmul import matmul
from ..gemm.problem import GemmProblem
from ..gpus import Gpu
from ..jit.device import device
from ..plan.plan import Plan
from .bench import pci_bus_id, time_pairs
from .climb_gpu import driver_version
from .energy import EnergyMeter, run_in_turns
from .ground import sets_for
from .ladder import Progress, silent
from .precompile import Compile, of_products
from .record import provenance
from .reference import torch_stream

SAMPLED = 16
"""Rows that are checked against float64, besides the first and the last."""


class Sets(NamedTuple):
    """Operands and results of a case, each once for each set."""

    a: list[Any]
    b: list[Any]
    out: list[Any]


def needed_torch() -> Any:
    """Return the module. Raises MissingDependency."""
    try:
        import torch
    except ImportError as error:
        raise MissingDependency(f"this suite needs torch: {install('bench')}") from error
    return torch


def shape_of(case: Mapping[str, Any]) -> tuple[int, int, int, int]:
    """(m, n, k, batch) of a case."""
    return case["m"], case["n"], case["k"], case.get("batch", 1)


def make_sets(torch: Any, case: Mapping[str, Any], where: str, count: int) -> Sets:
    """Normal operands, lying as `layout` says, and room for results."""
    m, n, k, batch = shape_of(case)
    dtype = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}[case["dtype"]]
    lead = (batch,) if batch > 1 else ()

    def randn(rows: int, cols: int, letter: str) -> Any:
        shape = (rows, cols) if letter == "n" else (cols, rows)
        made = torch.randn(*lead, *shape, device=where, dtype=dtype)
        return made if letter == "n" else made.mT

    of_a, of_b = case["layout"]
    return Sets(
        [randn(m, k, of_a) for _ in range(count)], [randn(k, n, of_b) for _ in range(count)],
        [torch.full((*lead, m, n), float("nan"), device=where, dtype=dtype) for _ in range(count)],
    )  # fmt: skip


def verdict(torch: Any, a: Any, b: Any, out: Any) -> str:
    """Why `out` is not a @ b; "" where it is: some rows against float64, all against torch's product."""
    rows = np.unique([0, out.shape[-2] - 1, *np.random.default_rng(1).integers(0, out.shape[-2], SAMPLED)])
    wide, other = a[..., rows, :].double(), b.double()
    exact, size = wide @ other, wide.abs() @ other.abs()
    sums = 2**-17 if out.dtype != torch.float32 else 2**-20  # what tensor cores lose of a sum, or a long chain of fp32
    bound = exact.abs() * torch.finfo(out.dtype).eps + size * sums
    if not bool(((out[..., rows, :].double() - exact).abs() <= bound).all()):  # NaN is wrong
        return "a row is off by more than rounding"
    if not torch.allclose(out, a @ b, rtol=0.02, atol=float(size.max()) * 2**-9):
        return "it is not torch's product"
    return ""


def launch_of(torch: Any, call: Callable[[], Any]) -> Callable[[int], None]:
    """A launch of torch's or ours on a stream that time_pairs gives."""

    def launch(stream: int) -> None:
        with torch.cuda.stream(torch_stream(torch, stream, 0)):
            call()

    return launch


def both(torch: Any, sets: Sets) -> tuple[list[Callable[[int], None]], list[Callable[[int], None]]]:
    """(our launches, torch's), one for each set."""
    product = torch.bmm if sets.out[0].ndim == 3 else torch.mm
    triples = list(zip(*sets, strict=True))
    return (
        [launch_of(torch, partial(matmul, a, b, out=out)) for a, b, out in triples],
        [launch_of(torch, partial(product, a, b, out=out)) for a, b, out in triples],
    )


def problem_of(case: Mapping[str, Any]) -> GemmProblem:
    """The product of a case."""
    m, n, k, batch = shape_of(case)
    return GemmProblem.dense(m, n, k, layout=case["layout"], dtype=case["dtype"], batch=batch)


def planned(case: Mapping[str, Any], gpu: Gpu) -> Plan:
    """Return what a case would run now."""
    return plan_for(problem_of(case), gpu)


def kernels(cases: Sequence[Mapping[str, Any]], gpu: Gpu) -> Iterator[Compile]:
    """Return what compiles what the cases launch: see lab/precompile.py."""
    problems = map(problem_of, cases)
    return of_products(((problem, plan_for(problem, gpu)) for problem in problems), gpu)


def torch_records(
    suite: str, cases: Sequence[dict[str, Any]], seconds: float = 1.0, say: Progress = silent
) -> list[dict[str, Any]]:
    """Records of cases {"m", "n", "k", "layout", "dtype", "batch"}: verified, then timed in pairs with torch's product.

    Raises MissingDependency.
    """

    def timed(problem: GemmProblem, sets: Sets) -> dict[str, Any]:
        timing, conditions = time_pairs(0, *both(torch, sets), seconds=seconds)
        rate = {"tflops": problem.flops / timing.ms * 1e-9, "gb_s": problem.bytes / timing.ms * 1e-6}
        return timing.to_dict() | rate | {"conditions": conditions}

    torch = needed_torch()
    return [record_of(torch, suite, number, case, timed, say) for number, case in enumerate(cases)]


def copy_records(
    suite: str, cases: Sequence[dict[str, Any]], seconds: float = 1.0, say: Progress = silent
) -> list[dict[str, Any]]:
    """Records of the same cases, timed in pairs with a copy within device memory that moves as many bytes: ratio is the
    share of a copy's bandwidth that the product reaches. Raises MissingDependency.
    """

    def timed(problem: GemmProblem, sets: Sets) -> dict[str, Any]:
        half = problem.bytes // 2 // 256 * 256
        # apart: a second half at an odd address would be copied slowly
        rooms = [[torch.empty(half, device="cuda", dtype=torch.int8) for _ in range(2)] for _ in sets.a]
        references = [launch_of(torch, partial(to.copy_, source)) for source, to in rooms]
        timing, conditions = time_pairs(0, both(torch, sets)[0], references, seconds=seconds)
        assert timing.reference_ms is not None
        rates = {"gb_s": problem.bytes / timing.ms * 1e-6, "reference_gb_s": 2 * half / timing.reference_ms * 1e-6}
        return timing.to_dict() | rates | {"conditions": conditions}

    torch = needed_torch()
    return [record_of(torch, suite, number, case, timed, say) for number, case in enumerate(cases)]


def power_records(
    suite: str, cases: Sequence[dict[str, Any]], seconds: float = 1.0, say: Progress = silent
) -> list[dict[str, Any]]:
    """Records of the same cases, each side run for `seconds` without a pause, in turns: rates, watts and joules.

    Raises MissingDependency, DeviceError without NVIDIA's management library.
    """
    torch = needed_torch()
    meter = EnergyMeter(pci_bus_id(0))

    def timed(problem: GemmProblem, sets: Sets) -> dict[str, Any]:
        ours, theirs = run_in_turns(meter, both(torch, sets), problem.flops, seconds)
        ratios = {"ratio": ours.tflops / theirs.tflops, "joules_ratio": ours.joules_per_tflop / theirs.joules_per_tflop}
        return asdict(ours) | {f"reference_{name}": value for name, value in asdict(theirs).items()} | ratios

    return [record_of(torch, suite, number, case, timed, say) for number, case in enumerate(cases)]


def record_of(
    torch: Any, suite: str, number: int, case: dict[str, Any], timed: Callable[[GemmProblem, Sets], dict[str, Any]],
    say: Progress,
) -> dict[str, Any]:  # fmt: skip
    """The record of one case: our product verified, then what `timed` says of it."""
    where, problem = device(0), problem_of(case)
    batch = f", {problem.batch} of them" if problem.batch > 1 else ""
    say(number, f"{problem.m} x {problem.n} x {problem.k} {problem.layout} in {problem.dtype}{batch}")
    torch.manual_seed(number)
    sets = make_sets(torch, case, "cuda", sets_for(problem, where.gpu.l2))
    matmul(sets.a[0], sets.b[0], out=sets.out[0])
    reason = verdict(torch, sets.a[0], sets.b[0], sets.out[0])
    result: dict[str, Any] = {"right": not reason, "reason": reason}
    if not reason:
        result |= timed(problem, sets)
    plan = plan_for(problem, where.gpu)
    told = case | {"rung": plan.rung.id, "config_text": str(plan.config), "source": plan.source}
    origin = provenance(
        machine_kind="gpu", gpu=torch.cuda.get_device_name(0), driver=driver_version(),
        reference_version=f"torch {torch.__version__}",
    )  # fmt: skip
    del sets
    torch.cuda.empty_cache()
    return {"suite": suite, "case": told, "result": result, "provenance": origin}
