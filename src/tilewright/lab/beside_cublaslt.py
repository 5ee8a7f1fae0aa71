"""Whole products as tw.matmul plans them, in pairs with the fastest algorithm that cuBLASLt's heuristics offer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from ..errors import WrongResult
from ..gemm.problem import GemmProblem
from ..jit.device import Device, device
from ..jit.gpu_executor import executor_for
from .bench import time_pairs
from .beside_torch import Sets, both, needed_torch, record_of, verdict
from .ground import Buffers, Ground
from .ladder import Progress, silent
from .peers.cublaslt import cublaslt_candidates
from .peers.entrant import race

ROUNDS = 5
FINALISTS = 3
"""So many of the race's first are met in pairs; the record is of the one that does best."""


class _Place(NamedTuple):
    """A torch tensor as launches of others take it."""

    address: int


class _Course(NamedTuple):
    """The part of a Ground that a race asks."""

    where: Device
    sets: list[Buffers]


def cublaslt_records(
    suite: str, cases: Sequence[dict[str, Any]], seconds: float = 1.0, say: Progress = silent
) -> list[dict[str, Any]]:
    """Records of cases {"m", "n", "k", "layout", "dtype"}: verified, then timed in pairs with cuBLASLt's best.

    Algorithms whose products are wrong are left out. Raises MissingDependency; WrongResult where none is right.
    """

    def timed(problem: GemmProblem, sets: Sets) -> dict[str, Any]:
        entry = cublaslt_candidates(problem, executor_for(0))
        places = [Buffers(*(cast(Any, _Place(x.data_ptr())) for x in each)) for each in zip(*sets, strict=True)]
        ours, _ = both(torch, sets)
        right = []
        for one in entry.candidates:
            sets.out[0].fill_(float("nan"))
            torch.cuda.synchronize()
            one.prepare(places[0])(0)
            torch.cuda.synchronize()
            if not verdict(torch, sets.a[0], sets.b[0], sets.out[0]):
                right.append(one)
        if not right:
            raise WrongResult(f"none of {len(entry.candidates)} algorithms of {entry.version} is right for {problem}.")
        times = race(right, cast(Ground, _Course(device(0), places)), ROUNDS)
        first = [one for _, one in sorted(zip(times, right, strict=True), key=lambda pair: pair[0])][:FINALISTS]
        launches = [[one.prepare(each) for each in places] for one in first]
        ratios = [time_pairs(0, ours, each, seconds=seconds / 4)[0].ratio or 0.0 for each in launches]
        hardest = ratios.index(min(ratios))
        timing, conditions = time_pairs(0, ours, launches[hardest], seconds=seconds)
        return timing.to_dict() | {
            "tflops": problem.flops / timing.ms * 1e-9, "conditions": conditions, "against_version": entry.version,
            "against_config": first[hardest].text, "candidates": len(entry.candidates), "right_ones": len(right),
        }  # fmt: skip

    torch = needed_torch()
    return [record_of(torch, suite, number, case, timed, say) for number, case in enumerate(cases)]
