"""Run-time compilation: source -> cubin and PTX (cached on disk) -> launch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .compile import CompiledKernel, Resources, compile_rung
from .launch import Executor, Launch, current_executor, use_executor

if TYPE_CHECKING:
    from .own_source import compile_source

__all__ = [
    "CompiledKernel",
    "Executor",
    "Launch",
    "Resources",
    "compile_rung",
    "compile_source",
    "current_executor",
    "use_executor",
]


def __getattr__(name: str) -> Any:
    if name == "compile_source":  # what it needs takes 20 ms to import
        from .own_source import compile_source

        return compile_source
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
