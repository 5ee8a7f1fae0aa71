"""Matrix products and attention for NVIDIA GPUs, compiled at run time; an emulator runs the kernels without a GPU."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from . import arch as arch
    from . import epilogue, errors
    from . import gpus as gpus
    from . import lab as lab
    from . import ladder as ladder
    from . import torch as torch
    from .arrays.float8 import Float8Array
    from .attn.attention import attention, attention_varlen
    from .attn.backward import attention_backward
    from .attn.backward_explain import BackwardExplanation, explain_attention_backward
    from .attn.config import AttentionConfig
    from .attn.explain import AttentionExplanation, explain_attention
    from .emu import EmulateResult, emulate, emulate_cupy, emulate_numba, emulate_triton, emulator
    from .gemm.config import GemmConfig
    from .gemm.explain import Explanation, explain
    from .gemm.matmul import matmul
    from .gemm.prepare import prepare
    from .gemm.quantize import quantize
    from .grouped.explain import GroupedExplanation, explain_grouped_matmul
    from .grouped.matmul import grouped_matmul
    from .tuning import tune, tune_attention
    from .tuning.run import Tuned

# Heavy modules load when first needed: `import tilewright` alone stays under 0.2 s.
_LAZY = {
    "AttentionConfig": ".attn.config",
    "AttentionExplanation": ".attn.explain",
    "BackwardExplanation": ".attn.backward_explain",
    "EmulateResult": ".emu",
    "Explanation": ".gemm.explain",
    "Float8Array": ".arrays.float8",
    "GemmConfig": ".gemm.config",
    "Tuned": ".tuning.run",
    "matmul": ".gemm.matmul",
    "prepare": ".gemm.prepare",
    "quantize": ".gemm.quantize",
    "attention": ".attn.attention",
    "attention_backward": ".attn.backward",
    "attention_varlen": ".attn.attention",
    "grouped_matmul": ".grouped.matmul",
    "explain_grouped_matmul": ".grouped.explain",
    "GroupedExplanation": ".grouped.explain",
    "explain": ".gemm.explain",
    "explain_attention": ".attn.explain",
    "explain_attention_backward": ".attn.backward_explain",
    "emulate": ".emu",
    "emulate_cupy": ".emu",
    "emulate_numba": ".emu",
    "emulate_triton": ".emu",
    "emulator": ".emu",
    "tune": ".tuning",
    "tune_attention": ".tuning",
}

__all__ = [
    "AttentionConfig",
    "AttentionExplanation",
    "BackwardExplanation",
    "EmulateResult",
    "Explanation",
    "Float8Array",
    "GemmConfig",
    "GroupedExplanation",
    "Tuned",
    "__version__",
    "attention",
    "attention_backward",
    "attention_varlen",
    "emulate",
    "emulate_cupy",
    "emulate_numba",
    "emulate_triton",
    "emulator",
    "epilogue",
    "errors",
    "explain",
    "explain_attention",
    "explain_attention_backward",
    "explain_grouped_matmul",
    "grouped_matmul",
    "matmul",
    "prepare",
    "quantize",
    "tune",
    "tune_attention",
]


if not TYPE_CHECKING:  # type checkers then know a misspelt name

    def __getattr__(name: str) -> Any:
        if name in ("arch", "epilogue", "errors", "gpus", "lab", "ladder", "torch"):
            return import_module(f".{name}", __name__)
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import_module(".run.frameworks", __name__).load_by(_framework)
        value = globals()[name] = getattr(import_module(_LAZY[name], __name__), name)
        return value

    def _framework(name: str) -> Any:
        """`tilewright.torch` or `tilewright.jax`, which the core may not name: they stand on it."""
        return import_module(f".{name}", __name__)


def __dir__() -> list[str]:
    return sorted(__all__)
