"""Peers of the ladder: other libraries and kernels, checked like a rung and timed in the same pairs."""

from __future__ import annotations

from ...errors import ConfigRejected, did_you_mean
from .cublaslt import CUBLASLT_BEST
from .cutlass import CUTLASS, CUTLASS_SWIZZLED, CUTLASS_TUNED
from .entrant import Contender, Entrant, Peer
from .library import CUBLAS
from .triton_matmul import TRITON

PEERS: tuple[Peer, ...] = (CUBLAS, CUBLASLT_BEST, CUTLASS, CUTLASS_TUNED, CUTLASS_SWIZZLED, TRITON)
"""Everybody we know, in the order of the table."""


def select_peers(text: str) -> tuple[Peer, ...]:
    """Peers by "all", "none", or names with commas between. Raises ConfigRejected with the known names."""
    if text in ("all", "none"):
        return PEERS if text == "all" else ()
    known = {peer.id: peer for peer in PEERS}
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise ConfigRejected(
                f"peer {name!r} is not known.{did_you_mean(name, known)} Known: {', '.join(known)}; or all, or none."
            )
    return tuple(known[name] for name in dict.fromkeys(names))


__all__ = ["PEERS", "Contender", "Entrant", "Peer", "select_peers"]
