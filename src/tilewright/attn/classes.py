"""Classes of attention problems: those that should run the same kernel share one, and classes have a distance."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import log2
from typing import Any

import numpy as np

from ..plan.classes import ATTENTION, bucket, checked
from .config import D_HEADS
from .problem import DTYPES, AttentionProblem


@dataclass(frozen=True)
class AttentionClass:
    """`heads`: of queries in all batch entries; it and the lengths are buckets. `keys`: that a window lets a query see,
    where there is one.

    What is added to scores or done to them, the LSE, strides, and packed lengths are in no class: the plain problem's
    result serves, where the kernel can run what is asked.
    """

    heads: int
    group: int
    """Query heads that share a head of keys."""
    queries: int
    keys: int
    d_head: int
    dtype: str
    is_causal: bool
    fused = False
    """Results are never of something else that is computed with it."""

    def __str__(self) -> str:
        return attention_key(self.__dict__)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(values: dict[str, Any]) -> AttentionClass:
        """Raises KeyError, TypeError or ValueError for what is not a class."""
        klass = AttentionClass(**checked(values, AttentionClass))
        if not _CLASS.fullmatch(str(klass)):
            raise ValueError(f"{str(klass)!r} is not a class of attention problems")
        return klass


def attention_key(of: Mapping[str, Any]) -> str:
    """The key of a class, from the values of its fields. Raises KeyError where one is missing."""
    mask = "causal" if of["is_causal"] else "full"
    shared = f" in groups of {of['group']}" if of["group"] > 1 else ""
    return f"{ATTENTION}{of['dtype']} {mask} d{of['d_head']} {of['heads']} heads{shared} {of['queries']}x{of['keys']}"


_CLASS = re.compile(
    rf"{ATTENTION}({'|'.join(DTYPES)}) (causal|full) d({'|'.join(map(str, D_HEADS))}) \d{{1,10}} heads"
    r"( in groups of \d{1,6})? \d{1,10}x\d{1,10}"
)


def keys_seen(problem: AttentionProblem) -> int:
    """Return how many keys a query sees at most."""
    left, right = problem.window
    if left < 0 or (right < 0 and not problem.is_causal):
        return problem.seq_k
    return min(problem.seq_k, left + 1 + (0 if problem.is_causal else right))


def attention_class_of(problem: AttentionProblem) -> AttentionClass:
    """The class of a problem: a pure function of it."""
    windowed = problem.window[0] >= 0
    return AttentionClass(
        bucket(problem.batch * problem.heads_q), problem.group, bucket(problem.seq_q), bucket(keys_seen(problem)),
        problem.d_head, problem.dtype, problem.right == 0 and not windowed,
    )  # fmt: skip


_WEIGHTS = {"heads": 1.0, "queries": 1.0, "keys": 0.5, "group": 0.1}
"""What a factor of two in an extent counts."""


def attention_columns(known: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Classes, each given as the values of its fields, field by field: extents as logarithms."""
    found = {name: np.array([log2(max(values[name], 1)) for values in known], np.float64) for name in _WEIGHTS}
    found |= {name: np.array([values[name] for values in known]) for name in ("d_head", "is_causal", "dtype")}
    return found


def attention_distances(one: AttentionClass, known: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return how far a class is from each of the known ones: about 2 for a factor of two in one extent; infinite where
    configs differ."""
    logs = {name: log2(max(getattr(one, name), 1)) for name in _WEIGHTS}
    total = sum(weight * np.square(logs[name] - known[name]) for name, weight in _WEIGHTS.items())
    total += 0.5 * (known["is_causal"] != one.is_causal) + 0.01 * (known["dtype"] != one.dtype)
    return np.where(known["d_head"] == one.d_head, 2 * np.sqrt(total), np.inf)
