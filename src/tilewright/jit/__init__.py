"""Run-time compilation: source -> cubin and PTX (cached on disk) -> launch."""

from .compile import CompiledKernel, Resources, compile_rung, compile_source
from .launch import Executor, Launch, current_executor, use_executor

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
