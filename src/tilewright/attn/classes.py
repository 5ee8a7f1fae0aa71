"""Classes of attention problems: those that should run the same kernel share one, and classes have a distance."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from math import log2
from typing import Any

from ..plan.classes import ATTENTION, bucket, checked
from .problem import DTYPES, AttentionProblem
from .rung import D_HEADS


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
        mask = "causal" if self.is_causal else "full"
        shared = f" in groups of {self.group}" if self.group > 1 else ""
        return f"{ATTENTION}{self.dtype} {mask} d{self.d_head} {self.heads} heads{shared} {self.queries}x{self.keys}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(values: dict[str, Any]) -> AttentionClass:
        """Raises KeyError, TypeError or ValueError for what is no class."""
        klass = AttentionClass(**checked(values, AttentionClass))
        if not _CLASS.fullmatch(str(klass)):
            raise ValueError(f"{str(klass)!r} is no class of attention problems")
        return klass


_CLASS = re.compile(
    rf"{ATTENTION}({'|'.join(DTYPES)}) (causal|full) d({'|'.join(map(str, D_HEADS))}) \d{{1,10}} heads"
    r"( in groups of \d{1,6})? \d{1,10}x\d{1,10}"
)


def keys_seen(problem: AttentionProblem) -> int:
    """How many keys a query sees at most."""
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


def attention_distance(one: AttentionClass, other: AttentionClass) -> float:
    """How far two classes are apart: about 2 for a factor of two in one extent; infinite where configs differ."""
    if one.d_head != other.d_head:
        return float("inf")
    total = sum(
        weight * (log2(max(a, 1)) - log2(max(b, 1))) ** 2
        for a, b, weight in (
            (one.heads, other.heads, 1.0), (one.queries, other.queries, 1.0), (one.keys, other.keys, 0.5),
            (one.group, other.group, 0.1),
        )
    )  # fmt: skip
    total += 0.5 if one.is_causal != other.is_causal else 0.0
    return 2 * float((total + (0.01 if one.dtype != other.dtype else 0.0)) ** 0.5)
