"""The account that explanations of every family give, in rows of a label and a text."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from ..gpus import Resources
from ..words import Told
from .plan import Plan, Refusal

Row = tuple[str, str]
_WIDTH = 100
_LABEL = 9
_REFUSED = 8
"""Reasons told one by one."""


class Explained(Told):
    """An account of what would run, by its rows."""

    def rows(self) -> list[Row]:
        """Return what is told, in order."""
        raise NotImplementedError

    def __str__(self) -> str:
        return self.text()

    def text(self, width: int = _WIDTH) -> str:
        """Return what would run and why, in lines of at most `width` characters."""
        return "\n".join(
            textwrap.fill(
                text, width, initial_indent=f"{label:<{_LABEL}}", subsequent_indent=" " * _LABEL, break_on_hyphens=False
            )
            for label, text in self.rows()
        )


def plain(value: float) -> str:
    """Return a number of at least three digits, without an exponent."""
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def counted(number: int, word: str) -> str:
    """Return such as 1 head, 2 heads."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def chosen_rows(plan: Plan) -> list[Row]:
    """Return what a plan chose, why, and what came next."""
    return [
        ("runs", f"{plan.rung.id}, config {plan.config}"),
        ("why", plan.why),
        ("source", plan.source),
        *(("next", f"{rung}, config {config}: {words}") for rung, config, words in plan.runners_up),
    ]


def refused_rows(refused: Sequence[Refusal]) -> list[Row]:
    """Return what cannot run the problem, rungs of one reason together; a table of results may know more of that than
    anyone reads."""
    rungs_by: dict[str, list[str]] = {}
    for rung, _, reason in refused:
        rungs_by.setdefault(reason.removeprefix(f"{rung} "), []).append(rung)
    rows = [("refused", f"{', '.join(sorted(set(rungs)))}: {reason}") for reason, rungs in rungs_by.items()]
    if len(rows) > _REFUSED + 1:
        rows[_REFUSED:] = [("refused", f"and {len(rows) - _REFUSED} more; the plan's `refused` has them all")]
    return rows or [("refused", "none")]


def compiled_words(resources: Resources) -> str:
    """Return the compiler's figures, in words."""
    spills = resources.spill_store_bytes + resources.spill_load_bytes
    return (
        f"{resources.registers} registers per thread, {f'{spills} B of spills' if spills else 'no spills'}, "
        f"{resources.shared_bytes} B of static shared memory"
    )
