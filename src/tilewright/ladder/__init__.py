"""The ladder: every rung as data, in climbing order."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .gemm import GEMM_RUNGS, find_rung, rungs_for, rungs_of
from .rung import GemmConfig, Rung

if TYPE_CHECKING:
    from .attention import ATTENTION_RUNGS, find_attention_rung
    from .attention_rung import AttentionAddresses, AttentionConfig, AttentionRung

# A product has no use for them: they load when first asked for.
_ATTENTION = {
    "ATTENTION_RUNGS": ".attention",
    "AttentionAddresses": ".attention_rung",
    "AttentionConfig": ".attention_rung",
    "AttentionRung": ".attention_rung",
    "find_attention_rung": ".attention",
}

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


if not TYPE_CHECKING:  # type checkers then know a misspelt name

    def __getattr__(name: str) -> Any:
        if name not in _ATTENTION:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_ATTENTION[name], __name__), name)
        return value
