"""The ladder: every rung as data, in climbing order."""

from .attention import ATTENTION_RUNGS, find_attention_rung
from .attention_rung import AttentionAddresses, AttentionConfig, AttentionRung
from .gemm import GEMM_RUNGS, find_rung, rungs_for, rungs_of
from .rung import GemmConfig, Rung

__all__ = [
    "ATTENTION_RUNGS",
    "GEMM_RUNGS",
    "AttentionAddresses",
    "AttentionConfig",
    "AttentionRung",
    "GemmConfig",
    "Rung",
    "find_attention_rung",
    "find_rung",
    "rungs_for",
    "rungs_of",
]
