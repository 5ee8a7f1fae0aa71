"""Problem classes: problems that should run the same kernel share one, and classes have a distance."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import log2
from typing import Any, NamedTuple

import numpy as np

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
    """True where an epilogue is computed with it whose cost shows, scales of blocks too (shows)."""
    precision: str = "ieee"
    """As GemmProblem.precision."""

    def __str__(self) -> str:
        return class_key(self.__dict__)

    @property
    def kind(self) -> str:
        """See GemmProblem.kind."""
        if self.precision != "ieee":
            return self.precision
        return "fp8" if self.dtype in FP8 else self.dtype

    def to_dict(self) -> dict[str, Any]:
        """Its fields; a precision only where one was asked for."""
        return {name: value for name, value in self.__dict__.items() if name != "precision" or value != "ieee"}

    @staticmethod
    def from_dict(values: dict[str, Any]) -> ProblemClass:
        """Raises KeyError, TypeError or ValueError for what is not a class."""
        known = checked({"fused": False, "precision": "ieee"} | values, ProblemClass)
        klass = ProblemClass(**known)
        if not _CLASS.fullmatch(str(klass)):
            raise ValueError(f"{str(klass)!r} is not a class of problems")
        return klass


def class_key(of: Mapping[str, Any]) -> str:
    """The key of a class, from the values of its fields. Raises KeyError where one is missing."""
    dtype, out_dtype, batch, precision = of["dtype"], of["out_dtype"], of["batch"], of.get("precision", "ieee")
    out = "" if out_dtype == dtype else f"-{out_dtype}"
    how = "" if precision == "ieee" else f" as {precision}"
    edge = "whole" if of["whole"] else "ragged"
    c = (" +c" if of["use_c"] else "") + (" +epilogue" if of.get("fused") else "")
    times = f" x{batch}" if batch != 1 else ""
    return f"{dtype}{out}{how} {of['layout']} {of['access']} {edge}{c} {of['m']}x{of['n']}x{of['k']}{times}"


_TYPE = "|".join(ITEM_BYTES)
_CLASS = re.compile(
    rf"({_TYPE})(-({_TYPE}))?( as ({'|'.join(PRECISIONS)}))? [nts]{{2}} [hnw]{{2}}[ve] (whole|ragged)"
    r"( \+c)?( \+epilogue)? "
    r"\d{1,10}x\d{1,10}x\d{1,10}( x\d{1,10})?"
)


def shows(problem: GemmProblem) -> bool:
    """Return whether the problem has an epilogue that changes which kernel is fastest: one with a function, or that
    reads an operand of the result's size, or scales of blocks. A bias cost 0.1% on an H200
    (benchmarks/results/epilogue-parts-H200.json)."""
    epilogue = problem.epilogue
    if problem.scaled_blocks:
        return True
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


def own_classes(problem: GemmProblem) -> tuple[tuple[ProblemClass, ...], ...]:
    """The classes whose results serve the problem as its own, the best first; those in one list serve it equally.

    C hardly changes the choice. An epilogue does, because nothing hides it at the end of a block; which epilogue
    matters less than whether there is one. The two 16-bit types run the same code at the same rate. For products of
    fp32 operands the stored type matters little: where one of 16 bits was not tuned, what was found for fp32's serves.
    """
    ways = [problem]
    if problem.c is not None:
        ways.append(replace(ways[-1], c=None))
    if problem.epilogue is not None:
        ways.append(replace(ways[-1], epilogue=None))
    if problem.dtype == "f32":
        ways += [replace(way, out_dtype="f32") for way in ways]
    other = {"bf16": "f16", "f16": "bf16", "e4m3": "e5m2", "e5m2": "e4m3"}
    found = []
    for kind in dict.fromkeys(class_of(way) for way in ways):
        twin = replace(
            kind, dtype=other.get(kind.dtype, kind.dtype), out_dtype=other.get(kind.out_dtype, kind.out_dtype)
        )
        found.append(tuple(dict.fromkeys((kind, twin))))
    return tuple(found)


def _lines(matrix: Matrix, rows: int, cols: int, item: int) -> str:
    if not matrix.readable(rows, cols, item, 16):
        return "n"
    return "w" if item == 4 or matrix.whole_sectors(rows, cols, item) else "h"


_ALIKE = ({"bf16", "f16"}, set(FP8))
"""Types that run the same code at the same rate."""


class Columns(NamedTuple):
    """Classes, field by field: extents as logarithms, and what a distance compares."""

    m: np.ndarray
    n: np.ndarray
    k: np.ndarray
    batch: np.ndarray
    dtype: np.ndarray
    out_bytes: np.ndarray
    layout: np.ndarray
    access: np.ndarray
    narrow: np.ndarray
    """The access, half sectors as whole ones."""
    whole: np.ndarray
    use_c: np.ndarray
    fused: np.ndarray
    precision: np.ndarray


def columns(known: Sequence[Mapping[str, Any]]) -> Columns:
    """The columns of classes, each given as the values of its fields."""

    def of(name: str, default: Any = None) -> list[Any]:
        return [values.get(name, default) for values in known]

    def logs(name: str) -> np.ndarray:
        return np.array([_log2(extent) for extent in of(name)], np.float64)

    access = of("access")
    return Columns(
        logs("m"), logs("n"), logs("k"), logs("batch"),
        np.array(of("dtype"), np.str_), np.array([ITEM_BYTES[name] for name in of("out_dtype")], np.int64),
        np.array(of("layout"), np.str_), np.array(access, np.str_),
        np.array([text.replace("h", "w") for text in access], np.str_),
        np.array(of("whole"), np.bool_), np.array(of("use_c"), np.bool_), np.array(of("fused", False), np.bool_),
        np.array(of("precision", "ieee"), np.str_),
    )  # fmt: skip


@lru_cache(maxsize=4096)
def _log2(extent: int) -> float:
    return log2(max(extent, 1))


def distances(one: ProblemClass, known: Columns) -> np.ndarray:
    """Return how far a class is from each of the known ones: about 1 for a factor of two in one extent; infinite where
    kernels differ."""

    def apart(name: str) -> np.ndarray:
        return np.square(_log2(getattr(one, name)) - getattr(known, name))

    twins = next((kinds for kinds in _ALIKE if one.dtype in kinds), {one.dtype})
    total = apart("m") + apart("n") + 0.5 * apart("k") + 0.7 * apart("batch")
    narrow = one.access.replace("h", "w")
    for differs, cost in (
        (known.dtype != one.dtype, 0.01),
        (known.out_bytes != ITEM_BYTES[one.out_dtype], 0.3),
        (known.layout != one.layout, 1.0),
        (known.access != one.access, np.where(known.narrow != narrow, 1.5, 0.7)),
        (known.whole != one.whole, 1.0),
        (known.use_c != one.use_c, 0.1),
        (known.fused != one.fused, 0.1),
    ):
        total += cost * differs
    alike = np.logical_or.reduce([known.dtype == dtype for dtype in twins])  # np.isin may take 10 ms: it loads numpy.ma
    return np.where(alike & (known.precision == one.precision), np.sqrt(total), np.inf)
