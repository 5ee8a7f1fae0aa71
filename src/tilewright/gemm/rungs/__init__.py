"""The rungs of the GEMM ladders as data, in climbing order, and how they are found."""

from __future__ import annotations

from ...arrays.dtypes import FP8
from ...errors import ConfigRejected, near_rung
from ..problem import PRECISIONS
from ..rung import Rung
from .experiments import EXPERIMENTS
from .fp8 import FP8_RUNGS
from .halves import HALVES_RUNGS
from .hopper import HOPPER_RUNGS
from .rows import ROW_RUNGS
from .simt import FP32_RUNGS
from .tensor import TENSOR_RUNGS
from .tensor32 import TENSOR32_RUNGS
from .tma import TMA_RUNGS

_LADDERS: tuple[Rung, ...] = (
    *FP32_RUNGS, *TENSOR_RUNGS, *HOPPER_RUNGS, *TMA_RUNGS, *TENSOR32_RUNGS, *HALVES_RUNGS, *FP8_RUNGS,
)  # fmt: skip
GEMM_RUNGS: tuple[Rung, ...] = (*_LADDERS, *ROW_RUNGS)


def rungs_for(dtype: str, precision: str = "ieee") -> tuple[Rung, ...]:
    """The rungs that multiply `dtype` with a precision, in climbing order."""
    also = "ieee" if precision == "fast" else precision  # which allows less, and asks for nothing
    return tuple(rung for rung in _LADDERS if dtype in rung.dtypes and rung.precision in (precision, also))


def rungs_beside(dtype: str, precision: str = "ieee") -> tuple[Rung, ...]:
    """The rungs of no ladder that multiply `dtype`, which plans choose from too."""
    return tuple(rung for rung in ROW_RUNGS if dtype in rung.dtypes and rung.precision == precision)


def find_rung(name: str) -> Rung:
    """The rung or experiment by its id or the id's number ("f09_transposed" or "f09"). Raises ConfigRejected with the
    ladders' ids."""
    for rung in (*GEMM_RUNGS, *EXPERIMENTS):
        if name in (rung.id, rung.id.split("_")[0]):
            return rung
    ids = [rung.id for rung in GEMM_RUNGS]
    raise ConfigRejected(f"rung {name!r} is not known.{near_rung(name, ids)} Known: {', '.join(ids)}.")


def rungs_of(kind: str) -> tuple[Rung, ...]:
    """The rungs that make the products of a GemmProblem.kind."""
    if kind in ("fp8", "fast"):
        return rungs_for(FP8[0], "ieee" if kind == "fp8" else kind)
    return rungs_for("f32", kind) if kind in PRECISIONS else rungs_for(kind)
