"""Rungs by the words of a command line: "f05..f09", "f05..", "..f09", "f01,f12", or several of these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from ..errors import ConfigRejected
from ..gemm.rung import Rung
from ..gemm.rungs import EXPERIMENTS, GEMM_RUNGS, find_rung, rungs_beside, rungs_for

R = TypeVar("R")


def select(text: str | None, known: Sequence[R], find: Callable[[str], R]) -> tuple[R, ...]:
    """The rungs that `text` names, in its order; all of `known` for None.

    `find` gives the rung of a name, or raises ConfigRejected, as does a range that holds no rung. A name by itself may
    be of a rung that is not known.
    """
    if text is None:
        return tuple(known)
    chosen: list[R] = []
    for part in text.split(","):
        first, dots, last = (name.strip() for name in part.partition(".."))
        if not first and not last:
            raise ConfigRejected(
                f"{text!r} is not a choice of rungs. Write {known[0]}..{known[-1]}, {known[0]}.. (to the last), "
                f"or names with commas. Known: {', '.join(map(str, known))}."
            )
        low = find(first) if first else known[0]
        high = (find(last) if last else known[-1]) if dots else low
        if dots and (apart := next((end for end in (low, high) if end not in known), None)):
            raise ConfigRejected(f"{apart} is on no ladder, so it ends no range. Name it by itself.")
        span = known[known.index(low) : known.index(high) + 1] if dots else (low,)
        if not span:
            raise ConfigRejected(f"the range {part!r} is empty: {low} stands above {high}.")
        chosen.extend(rung for rung in span if rung not in chosen)
    return tuple(chosen)


def select_rungs(text: str | None, dtype: str, precision: str = "ieee") -> tuple[Rung, ...]:
    """Rungs of a dtype and precision by "f05..f09", "f05..", "f01,f12", or several of these; all for None.

    Raises ConfigRejected with the known ids.
    """
    known = rungs_for(dtype, precision)
    if not known:
        dtypes = sorted({d for rung in GEMM_RUNGS for d in rung.dtypes})
        told = "" if precision == "ieee" else f" and precision {precision!r}"
        raise ConfigRejected(f"there is no ladder for dtype {dtype!r}{told}. There is one for: {', '.join(dtypes)}.")

    def find(name: str) -> Rung:
        rung = find_rung(name)
        if rung in rungs_beside(dtype, precision):
            raise ConfigRejected(f"{rung} stands on no ladder. A suite's cases name it, and so does rung= in a call.")
        if rung not in known and not (rung in EXPERIMENTS and dtype in rung.dtypes and rung.precision == precision):
            raise ConfigRejected(
                f"{rung} does not multiply {dtype} with precision {precision!r}; it multiplies "
                f"{', '.join(rung.dtypes)} with precision {rung.precision!r}."
            )
        return rung

    return select(text, known, find)
