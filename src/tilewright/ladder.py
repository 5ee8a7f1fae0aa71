"""The ladders as callers name them: configs to pass, rungs to look up."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .attn.config import AttentionConfig as AttentionConfig
    from .attn.hopper import HOPPER_RUNGS as HOPPER_RUNGS
    from .attn.hopper import HopperConfig as HopperConfig
    from .attn.rung import AttentionRung as AttentionRung
    from .attn.rungs import ATTENTION_RUNGS as ATTENTION_RUNGS
    from .attn.rungs import find_attention_rung as find_attention_rung
    from .attn.split import SPLIT_RUNGS as SPLIT_RUNGS
    from .attn.split import SplitConfig as SplitConfig
    from .gemm.config import GemmConfig as GemmConfig
    from .gemm.config import MmaConfig as MmaConfig
    from .gemm.config import SimtConfig as SimtConfig
    from .gemm.config import WgmmaConfig as WgmmaConfig
    from .gemm.rung import Rung as Rung
    from .gemm.rungs import GEMM_RUNGS as GEMM_RUNGS
    from .gemm.rungs import find_rung as find_rung
    from .gemm.rungs import rungs_for as rungs_for
    from .gemm.rungs import rungs_of as rungs_of

_HOMES = {
    "ATTENTION_RUNGS": ".attn.rungs",
    "AttentionConfig": ".attn.config",
    "AttentionRung": ".attn.rung",
    "GEMM_RUNGS": ".gemm.rungs",
    "GemmConfig": ".gemm.config",
    "HOPPER_RUNGS": ".attn.hopper",
    "HopperConfig": ".attn.hopper",
    "MmaConfig": ".gemm.config",
    "Rung": ".gemm.rung",
    "SPLIT_RUNGS": ".attn.split",
    "SimtConfig": ".gemm.config",
    "SplitConfig": ".attn.split",
    "WgmmaConfig": ".gemm.config",
    "find_attention_rung": ".attn.rungs",
    "find_rung": ".gemm.rungs",
    "rungs_for": ".gemm.rungs",
    "rungs_of": ".gemm.rungs",
}

__all__ = list(_HOMES)


if not TYPE_CHECKING:  # type checkers then know a misspelt name

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_HOMES[name], __package__), name)
        return value
