"""The demands of a call on its plan."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Demands:
    """The promises that a plan must keep besides a right result."""

    deterministic: bool = False
    """The same bits run after run on every machine with this GPU and version: nothing tuned on this one is asked."""
    batch_invariant: bool = False
    """k is walked in one chain, so that a row's bits depend on its operands, n, k and dtypes, not on m or batch."""


NONE = Demands()
