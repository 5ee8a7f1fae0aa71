"""The interface of a kind of problem to planning: products are one family, attention is another.

Nothing else in this package knows that there are families. gemm/family.py and attn/family.py each make one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from ..gpus import Gpu
from .demands import Demands
from .entries import AnyEntry
from .estimate import AnyWork
from .plan import Plan, Refusal

P = TypeVar("P", contravariant=True)
"""Its problems,"""
R = TypeVar("R")
"""rungs,"""
C = TypeVar("C")
"""configs, which have `parts`, `whole_k`, `to_dict`, and their text,"""
K = TypeVar("K")
"""and classes of problems, which have `fused`, `to_dict`, and their text: the key under which tables hold a result."""


class Preset(NamedTuple):
    """A config known to do well. The model of time chooses among presets where no table knows anything near."""

    rung: Any
    config: Any
    speed: float = 1.0
    """How fast it is where it was measured, over what the model says."""


class Family(Protocol[P, R, C, K]):
    """The methods are pure. `packs` are the operands that are copied to aligned lines first."""

    def __hash__(self) -> int: ...

    name: str
    """Such as "products"."""
    shape_extents: int
    """Numbers in the shape of an entry."""

    # --- what may run ---

    def rungs(self, problem: P, demands: Demands) -> Mapping[str, R]:
        """The rungs that compute the problem as demanded, by id, in climbing order. Raises ConfigRejected for demands
        that none can meet."""
        ...

    def why_not(self, problem: P, rung: R, config: C, packs: tuple[str, ...], gpu: Gpu, demands: Demands) -> str | None:
        """Return None where the config can run the problem as demanded; else the reason, with the numbers."""
        ...

    def named(self, problem: P, gpu: Gpu, rung: str | None, config: Any) -> Plan:
        """The plan for a rung, a config or both that the caller names. Raises ConfigRejected."""
        ...

    def presets(self, problem: P, gpu: Gpu) -> Iterable[Preset]:
        """Configs to choose from by the model alone, the preferred first."""
        ...

    def is_modelled(self, problem: P, gpu: Gpu) -> bool:
        """Return whether the model of time says more of the presets than the times of neighbours in the table that
        ships."""
        ...

    def last_resort(self, problem: P, gpu: Gpu, refused: Sequence[Refusal]) -> Plan:
        """The plan where none of the presets can run the problem. Raises ConfigRejected where nothing can."""
        ...

    def relatives(self, problem: P, rung: R, config: C, gpu: Gpu, several: bool) -> Iterable[tuple[C, tuple[str, ...]]]:
        """The ways to run a config that may be worth it: k in how many parts, which operands packed, itself first.
        `several`: whether anything is known of ways that take several launches."""
        ...

    def work(self, problem: P, rung: R, config: C, packs: tuple[str, ...]) -> AnyWork:
        """Return what the kernels of a candidate do, as the model of time sees it."""
        ...

    def works(self, problem: P, rung: R, ways: Sequence[tuple[C, tuple[str, ...]]]) -> Sequence[AnyWork]:
        """The same of each of a config's relatives."""
        ...

    def remark(self, problem: P, plan: Plan, gpu: Gpu) -> str:
        """More on a plan that the model chose, in words; "" for nothing."""
        ...

    def settled(self, problem: P, chosen: Plan, demands: Demands) -> Plan:
        """The plan as it runs: the chosen one, with what the problem asks of a config besides speed. Not of configs
        that a caller names."""
        ...

    # --- what tables hold ---

    def classes(self, problem: P) -> Sequence[Sequence[K]]:
        """The classes whose results serve the problem as its own, the best first; those in one list serve it equally.
        The very first is its own class. None of a problem that nothing is computed for."""
        ...

    def class_key(self, values: Mapping[str, Any]) -> str:
        """The text of a class, from its JSON. Raises KeyError where a field is missing."""
        ...

    def columns(self, known: Sequence[Mapping[str, Any]]) -> Any:
        """Classes, each as JSON has it, as `distances` takes them."""
        ...

    def distances(self, wanted: K, known: Any) -> np.ndarray:
        """Return how far each of the classes is from the one wanted: about 1 for a factor of two in an extent; infinite
        where its times say nothing."""
        ...

    def problem_of(self, entry: AnyEntry) -> Any:
        """The problem that an entry's times are of."""
        ...

    def words(self, entry: AnyEntry) -> str:
        """The shape of an entry's problem, in words."""
        ...

    def measured_with(self, problem: P, entry: AnyEntry) -> str:
        """Return how an entry of the problem's own class differs from it, in words; "" where it does not."""
        ...

    def owns(self, values: Mapping[str, Any]) -> bool:
        """Return whether a class's JSON is of this family."""
        ...

    def read_class(self, values: Mapping[str, Any]) -> K:
        """A class from its JSON. Raises KeyError, TypeError or ValueError for what is not a class."""
        ...

    def read_config(self, rung: str, values: Mapping[str, Any]) -> C | None:
        """A rung's config from its JSON; None for one of another version. Raises ValueError for what is none."""
        ...
