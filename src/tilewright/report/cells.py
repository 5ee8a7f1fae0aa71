"""The cells of tables: a figure of a record, or a dash where there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..lab.record import went_wrong, who

Record = dict[str, Any]
Column = tuple[str, Callable[[Record], str]]
DASH = "-"
DAGGER = "\u2020"
"""What may no longer hold."""


def number(value: float | int | None, form: str = ".2f") -> str:
    return DASH if value is None else format(value, form)


def percent(value: float | None, digits: int = 1) -> str:
    return DASH if value is None else f"{100 * value:.{digits}f}%"


def result(name: str, form: str = "") -> Callable[[Record], str]:
    return lambda record: number(record["result"].get(name), form)


def share(name: str, digits: int = 1) -> Callable[[Record], str]:
    return lambda record: percent(record["result"].get(name), digits)


def rung(record: Record) -> str:
    return who(record)


def config(record: Record) -> str:
    return str(record["case"]["config_text"])


def milliseconds(record: Record) -> str:
    """At least three digits that count, in at most seven places up to hours."""
    value = record["result"].get("ms")
    if value is None:
        return DASH
    return format(value, ".1f" if value >= 1000 else ".3f" if value >= 1 else ".5f")


def spread(record: Record) -> str:
    found = record["result"]
    if found.get("ratio") is None:
        return DASH
    return f"{found['ratio_p10']:.3f}..{found['ratio_p90']:.3f}"


def verdict(record: Record) -> str:
    return "WRONG" if went_wrong(record) else "right"


def stall(name: str) -> Callable[[Record], str]:
    return lambda record: number(record["result"]["stalls"][name], ".2f")
