"""The ladder: every rung as data, in climbing order."""

from .gemm import GEMM_RUNGS, find_rung, rungs_for
from .rung import GemmConfig, Rung

__all__ = ["GEMM_RUNGS", "GemmConfig", "Rung", "find_rung", "rungs_for"]
