"""Kernels of experiments: rungs with one thing changed (f02x is f02 with another type of operands). They are on no
ladder and in no plan; suites and calls name them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ...arrays.dtypes import CPP_TYPES
from ...jit.source import Constant
from ..config import SimtConfig
from ..problem import GemmProblem
from ..rung import Rung
from .simt import FP32_RUNGS
from .tensor import HALVES, TENSOR_RUNGS

_RUNGS = {rung.id.split("_")[0]: rung for rung in (*FP32_RUNGS, *TENSOR_RUNGS)}


def _in_type(config: SimtConfig, problem: GemmProblem) -> dict[str, Constant]:
    return {"in_type": CPP_TYPES[problem.dtype]}


def _half_of_f03(config: SimtConfig, problem: GemmProblem) -> int:
    return _RUNGS["f03"].shared_bytes(config, problem) // 2


def _wide_b(wide: bool) -> Callable[[SimtConfig, GemmProblem], dict[str, Constant]]:
    return lambda config, problem: {"wide_b": wide}


EXPERIMENTS: tuple[Rung, ...] = (
    replace(
        _RUNGS["f02"], id="f02x_16bit", include="gemm/f02x_16bit.cuh", dtypes=HALVES, vector_bytes=2,
        own_constants=_in_type, teaches="an experiment: f02 on 16-bit operands, half the bytes by as many loads",
    ),
    replace(
        _RUNGS["f03"], id="f03x_16bit", include="gemm/f03x_16bit.cuh", dtypes=HALVES, vector_bytes=2,
        own_constants=_in_type, shared_bytes=_half_of_f03,
        teaches="an experiment: f03 on 16-bit operands, widened as they are read from shared memory",
    ),
    replace(
        _RUNGS["f08"], id="f08x_single_loads", include="gemm/f08x_loads.cuh", own_constants=_wide_b(False),
        teaches="an experiment: f08 with single loads of shared memory",
    ),
    replace(
        _RUNGS["f08"], id="f08y_wide_b", include="gemm/f08x_loads.cuh", own_constants=_wide_b(True),
        teaches="an experiment: f08 with single loads of A, and vectors of B",
    ),
    replace(
        _RUNGS["h05"], id="h05x_registers", include="gemm/h05x_registers.cuh",
        default=replace(_RUNGS["h05"].default, min_blocks=2),  # three leave no registers for a tile: they spill
        teaches="an experiment: h05 whose next tile waits in registers, as without cp.async",
    ),
)  # fmt: skip
