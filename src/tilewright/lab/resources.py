"""The compiler's figures of a kernel, and what follows for an SM."""

from __future__ import annotations

from typing import Any

from ..gpus import Gpu, occupancy
from ..jit import CompiledKernel


def static_facts(kernel: CompiledKernel, threads: int, dynamic_shared: int, gpu: Gpu) -> dict[str, Any]:
    """Registers per thread, spills and shared memory in bytes, and occupancy on `gpu` at `threads` per block.

    `dynamic_shared`: bytes of shared memory that the launch adds to the kernel's own.
    """
    resources = kernel.resources
    fits = occupancy(resources, threads, dynamic_shared, gpu.arch)
    return {
        "registers": resources.registers,
        "spill_bytes": resources.spill_store_bytes + resources.spill_load_bytes,
        "shared_bytes": resources.shared_bytes + dynamic_shared,
        "occupancy": fits.fraction,
        "blocks_per_sm": fits.blocks,
        "limited_by": fits.limiter,
    }
