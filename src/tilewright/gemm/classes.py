"""Problem classes: problems that should run the same kernel share one, and classes have a distance."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, replace
from math import log2
from typing import Any

from ..arrays.dtypes import FP8, ITEM_BYTES
from ..epilogue.ops import OPS
from ..plan.classes import bucket, checked
from .problem import PRECISIONS, GemmProblem, Matrix


def _is_whole(extent: int, most: int) -> bool:
    """Return whether tiles of up to `most` (or of the extent, if that is a smaller power of two) leave no edge."""
    tile = min(most, 1 << max(extent - 1, 0).bit_length())
    return extent % tile == 0


@dataclass(frozen=True)
class ProblemClass:
    """Extents are buckets. Two classes that differ in any field share no entry of a store."""

    m: int
    n: int
    k: int
    batch: int
    dtype: str
    out_dtype: str
    layout: str
    """A then B: n, t or s, as GemmProblem.layout."""
    access: str
    """A's and B's lines: w where 16-byte accesses can read them, else n; of 16-bit operands h where they start in the
    middle of sectors. The result: v for vectors, else e."""
    whole: bool
    """True where tiles of 64 x 64 x 32, or smaller powers of two, leave no edge."""
    use_c: bool
    fused: bool = False
    """True where an epilogue is computed with it whose cost shows (shows)."""
    precision: str = "ieee"
    """As GemmProblem.precision."""

    def __str__(self) -> str:
        how = "" if self.precision == "ieee" else f" as {self.precision}"
        batch = f" x{self.batch}" if self.batch != 1 else ""
        out = "" if self.out_dtype == self.dtype else f"-{self.out_dtype}"
        edge = "whole" if self.whole else "ragged"
        c = (" +c" if self.use_c else "") + (" +epilogue" if self.fused else "")
        return f"{self.dtype}{out}{how} {self.layout} {self.access} {edge}{c} {self.m}x{self.n}x{self.k}{batch}"

    @property
    def kind(self) -> str:
        """As GemmProblem.kind."""
        if self.precision != "ieee":
            return self.precision
        return "fp8" if self.dtype in FP8 else self.dtype

    def to_dict(self) -> dict[str, Any]:
        """Its fields; a precision only where one was asked for."""
        return {name: value for name, value in asdict(self).items() if name != "precision" or value != "ieee"}

    @staticmethod
    def from_dict(values: dict[str, Any]) -> ProblemClass:
        """Raises KeyError, TypeError or ValueError for what is not a class."""
        known = checked({"fused": False, "precision": "ieee"} | values, ProblemClass)
        klass = ProblemClass(**known)
        if not _CLASS.fullmatch(str(klass)):
            raise ValueError(f"{str(klass)!r} is not a class of problems")
        return klass


_TYPE = "|".join(ITEM_BYTES)
_CLASS = re.compile(
    rf"({_TYPE})(-({_TYPE}))?( as ({'|'.join(PRECISIONS)}))? [nts]{{2}} [hnw]{{2}}[ve] (whole|ragged)"
    r"( \+c)?( \+epilogue)? "
    r"\d{1,10}x\d{1,10}x\d{1,10}( x\d{1,10})?"
)


def shows(problem: GemmProblem) -> bool:
    """Whether the problem has an epilogue that changes which kernel is fastest: one with a function, or that reads an
    operand of the result's size. A bias cost 0.1% on an H200 (benchmarks/results/epilogue-parts-H200.json)."""
    epilogue = problem.epilogue
    if epilogue is None or not epilogue.code:
        return False
    small = all(not operand.matrix.row_stride or not operand.matrix.col_stride for operand in epilogue.operands)
    cheap = all(OPS[node.op].cost <= 1 for node in epilogue.nodes if node.op in OPS)
    return not (small and epilogue.nodes and cheap)


def class_of(problem: GemmProblem) -> ProblemClass:
    """The class of a problem: a pure function of it."""
    m, n, k, item = problem.m, problem.n, problem.k, ITEM_BYTES[problem.dtype]
    out_item = ITEM_BYTES[problem.out_dtype]
    a, b = _lines(problem.a, m, k, item), _lines(problem.b, k, n, item)
    views = [problem.out] + ([problem.c] if problem.c else [])
    vectors = n * out_item % 16 == 0 and all(
        view.col_stride == 1 and view.vector_bytes(m, n, out_item) == 16 for view in views
    )
    return ProblemClass(
        bucket(m), bucket(n), bucket(k), bucket(problem.batch), problem.dtype, problem.out_dtype, problem.layout,
        a + b + ("v" if vectors else "e"),
        _is_whole(m, 64) and _is_whole(n, 64) and _is_whole(k, 32), problem.use_c, shows(problem),
        problem.precision,
    )  # fmt: skip


def own_classes(problem: GemmProblem) -> list[list[ProblemClass]]:
    """The classes whose results serve the problem as its own, the best first; those in one list serve it equally.

    C hardly changes the choice. An epilogue does, because nothing hides it at the end of a block; which epilogue
    matters less than whether there is one. The two 16-bit types run the same code at the same rate. For products of
    fp32 operands the stored type matters little: where one of 16 bits was not tuned, what was found for fp32's serves.
    """
    without_c = replace(problem, c=None)
    ways = [problem, without_c, replace(without_c, epilogue=None)]
    if problem.dtype == "f32":
        ways += [replace(way, out_dtype="f32") for way in ways]
    other = {"bf16": "f16", "f16": "bf16", "e4m3": "e5m2", "e5m2": "e4m3"}
    found = []
    for kind in dict.fromkeys(class_of(way) for way in ways):
        twin = replace(
            kind, dtype=other.get(kind.dtype, kind.dtype), out_dtype=other.get(kind.out_dtype, kind.out_dtype)
        )
        found.append(list(dict.fromkeys((kind, twin))))
    return found


def _lines(matrix: Matrix, rows: int, cols: int, item: int) -> str:
    if not matrix.readable(rows, cols, item, 16):
        return "n"
    return "w" if item == 4 or matrix.whole_sectors(rows, cols, item) else "h"


_ALIKE = ({"bf16", "f16"}, set(FP8))
"""Types that run the same code at the same rate."""


def _narrow(klass: ProblemClass) -> str:
    """Its access, half sectors as whole ones."""
    return klass.access.replace("h", "w")


def _apart(extent: int, other: int) -> float:
    """1 for a factor of two."""
    return (log2(max(extent, 1)) - log2(max(other, 1))) ** 2


def distance(one: ProblemClass, other: ProblemClass) -> float:
    """How far two classes are apart: about 1 for a factor of two in one extent; infinite where kernels differ."""
    if one.dtype != other.dtype and {one.dtype, other.dtype} not in _ALIKE:
        return float("inf")
    if one.precision != other.precision:
        return float("inf")
    total = (
        _apart(one.m, other.m) + _apart(one.n, other.n)
        + 0.5 * _apart(one.k, other.k) + 0.7 * _apart(one.batch, other.batch)
    )  # fmt: skip
    for differs, cost in (
        (one.dtype != other.dtype, 0.01),
        ((ITEM_BYTES[one.out_dtype]) != ITEM_BYTES[other.out_dtype], 0.3),
        (one.layout != other.layout, 1.0),
        (one.access != other.access, 1.5 if _narrow(one) != _narrow(other) else 0.7),
        (one.whole != other.whole, 1.0),
        (one.use_c != other.use_c, 0.1),
        (one.fused != other.fused, 0.1),
    ):
        total += cost if differs else 0.0
    return total**0.5
