"""Candidates for a problem, and which of them are worth compiling, by the model: nothing is measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ..gpus import Gpu
from .entries import worded
from .estimate import Prediction

KEPT = 24
"""Candidates compiled and measured for one problem, unless told otherwise."""
FAR_BEHIND = 3.0
"""A candidate whose modelled time is more than this many times the best one's is not tried."""
SHARE_OF_A_SHAPE = 4
"""Candidates of one block tile in the first choice; what room is left goes to the best of all."""
MOST_SPILL = 1.25
"""Estimated registers over those granted, at most."""


@dataclass(frozen=True)
class Candidate:
    """One kernel to try, and what the model says of it."""

    rung: Any
    config: Any
    prediction: Prediction
    packs: tuple[str, ...] = ()
    """Operands that are copied to aligned lines first (plan.Plan.packs)."""

    @property
    def text(self) -> str:
        """The config and what is packed before it."""
        return worded(self.config, self.packs)

    def __str__(self) -> str:
        return f"{self.rung.id} {self.text}"


T = TypeVar("T")


@dataclass(frozen=True)
class Space(Generic[T]):
    """`kept` is in the model's order. `pruned`: how many were put aside, by reason. `considered`: all of them."""

    kept: tuple[T, ...]
    pruned: dict[str, int]
    considered: int

    def __str__(self) -> str:
        reasons = ", ".join(f"{count} {why}" for why, count in self.pruned.items() if count)
        return f"{len(self.kept)} of {self.considered} candidates kept" + (f"; put aside: {reasons}" if reasons else "")


def why_pruned(candidate: Candidate, gpu: Gpu) -> str | None:
    """Why a candidate that can run is put aside without being compiled; None where it is not."""
    prediction, config, arch = candidate.prediction, candidate.config, gpu.arch
    granted = min(arch.registers_per_sm // max(config.threads * config.min_blocks, 1), arch.registers_per_thread)
    if prediction.resident == 0:
        return "do not fit on an SM"
    return "would spill registers" if prediction.registers > MOST_SPILL * granted else None


def select(
    fits: Iterable[Candidate], wanted: Collection[Candidate], kept: int, pruned: Counter[str],
    shape: Callable[[Candidate], tuple[object, ...]], order: Callable[[Candidate], Any],
    favoured: Callable[[Sequence[Candidate]], Sequence[Candidate]] = lambda near: (),
) -> tuple[Candidate, ...]:  # fmt: skip
    """The best few by the model, no shape crowding out all others. Those `wanted` are kept whatever the model says,
    then those `favoured` among the near. `pruned` is told how many were put aside.
    """
    ordered = sorted(fits, key=order)
    chosen = {id(candidate): candidate for candidate in list(wanted)[:kept]}
    limit = FAR_BEHIND * ordered[0].prediction.ms if ordered else 0.0
    near = [candidate for candidate in ordered if candidate.prediction.ms <= limit]
    for candidate in favoured(near):
        if len(chosen) < kept:
            chosen.setdefault(id(candidate), candidate)
    shapes: Counter[tuple[object, ...]] = Counter()
    for first_choice in (True, False):
        for candidate in near:
            if len(chosen) >= kept or id(candidate) in chosen:
                continue
            if first_choice and shapes[shape(candidate)] >= SHARE_OF_A_SHAPE:
                continue
            shapes[shape(candidate)] += 1
            chosen[id(candidate)] = candidate
    far = sum(id(candidate) not in chosen for candidate in ordered[len(near) :])
    pruned[f"more than {FAR_BEHIND:g} times the best modelled time"] += far
    pruned[f"not among the best {kept} by the model"] += len(ordered) - far - len(chosen)
    return tuple(sorted(chosen.values(), key=order))
