"""The laboratory: checking numbers, counting what kernels do, measuring on a GPU, and keeping records of it.

Its calculators and inspections are public, as `tilewright.lab.occupancy(...)` and so on. Each returns a typed result
that shows itself in a terminal, in a notebook, and as plain data (`to_dict()`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .bank_lines import banks_of
    from .bank_map import banks, swizzle_strides
    from .exercise import check_kernel
    from .inspection import inspect, inspect_diff, inspect_space
    from .own_timing import time_own
    from .profiling import profile
    from .residency import occupancy, occupancy_of
    from .rooflines import roofline
    from .rung_source import show
    from .rung_table import rungs
    from .starters import new_kernel
    from .statements import claims

_LAZY = {
    "banks": ".bank_map",
    "banks_of": ".bank_lines",
    "claims": ".statements",
    "check_kernel": ".exercise",
    "inspect": ".inspection",
    "inspect_diff": ".inspection",
    "inspect_space": ".inspection",
    "new_kernel": ".starters",
    "occupancy": ".residency",
    "occupancy_of": ".residency",
    "profile": ".profiling",
    "roofline": ".rooflines",
    "rungs": ".rung_table",
    "show": ".rung_source",
    "swizzle_strides": ".bank_map",
    "time_own": ".own_timing",
}

__all__ = [
    "banks",
    "banks_of",
    "check_kernel",
    "claims",
    "inspect",
    "inspect_diff",
    "inspect_space",
    "new_kernel",
    "occupancy",
    "occupancy_of",
    "profile",
    "roofline",
    "rungs",
    "show",
    "swizzle_strides",
    "time_own",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_LAZY[name], __name__), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
