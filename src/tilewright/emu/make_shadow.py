"""The choice of a launch's checker of shared memory."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from .clocks import ClockShadow
from .epochs import EpochShadow
from .messages import passed
from .product_hazards import ProductJudge
from .proxies import ProxyFences
from .ptx import Immediate
from .shadow import Shadow

if TYPE_CHECKING:
    from .machine import Machine
    from .program import Code

_UNEVEN = (
    "mbarrier.",
    "cp.async.bulk",
    "cp.reduce.async",
    "cp.async.mbarrier",
    "barrier.cluster",
    "st.async",
    "red.async",
)
"""What orders a part of a block, or lets something else than a warp touch shared memory."""


def make_shadow(machine: Machine) -> Shadow:
    """Epochs where every barrier is one of the whole block, else clocks; with async proxies, inside of ProxyFences."""
    shadow = _ordering(machine)
    return ProxyFences(machine, shadow) if machine.products or isinstance(shadow, ClockShadow) else shadow


def _ordering(machine: Machine) -> Shadow:
    if machine.cluster_size > 1 or _uneven(machine.program, machine.threads):
        return ClockShadow(machine)
    epochs = EpochShadow(machine)
    epochs.products = ProductJudge(epochs) if machine.products else None
    return epochs


@lru_cache(maxsize=64)
def _uneven(program: Code, threads: int) -> bool:
    """Return whether anything but barriers of whole blocks, of so many threads, orders warps."""
    if passed(program):
        return True
    for instruction in program.instructions:
        if instruction.opcode.startswith(_UNEVEN):
            return True
        parts = instruction.opcode.split(".")
        if parts[0] not in ("bar", "barrier") or "warp" in parts:
            continue
        counts = instruction.operands[2:-1] if "red" in parts else instruction.operands[1:]
        whole = all(isinstance(n, Immediate) and n.bits == threads for n in counts)
        if "arrive" in parts or not whole:
            return True
    return False
