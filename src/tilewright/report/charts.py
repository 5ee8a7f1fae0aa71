"""What each chart shows, as typed data: values, marks, axes, and the words of every mark.

page/src/charts.ts draws them with Observable Plot: in the page at the width that there is, and for README's pictures.
A series is the number of a colour, 0 to 5, of the page's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape

SERIES = 6
"""Colours that the page has."""


@dataclass(frozen=True)
class Bar:
    """One bar: parts one after the other, each (value, series, words); `text` stands at its end. `before`: a value that
    is drawn as a fainter bar above it."""

    label: str
    parts: tuple[tuple[float, int, str], ...]
    text: str
    before: float | None = None


@dataclass(frozen=True)
class Bars:
    """Horizontal bars, the longest over the whole width; `mark`: a line across at this value, with words above it."""

    title: str
    rows: Sequence[Bar]
    mark: float | None = None
    mark_words: str = ""


@dataclass(frozen=True)
class Dot:
    """One point of a plot. `words`: what it says when it is pointed at; `label`: next to it, "" for none."""

    x: float
    y: float
    words: str
    series: int = 0
    label: str = ""


@dataclass(frozen=True)
class Line:
    """A line through points, in their order."""

    name: str
    points: tuple[tuple[float, float], ...]
    series: int = 0


@dataclass(frozen=True)
class Axis:
    """An axis from `low` to `high`; without ticks, round ones. `is_log`: each step multiplies."""

    name: str
    low: float
    high: float
    ticks: tuple[float, ...] = ()
    is_log: bool = False


def linear(name: str, values: Sequence[float]) -> Axis:
    """An axis from 0 that holds all values."""
    return Axis(name, 0.0, max(values))


def decades(name: str, values: Sequence[float]) -> Axis:
    """A logarithmic axis between powers of ten, for positive values."""
    powers = range(math.floor(math.log10(min(values))), math.ceil(math.log10(max(values))) + 1)
    return Axis(name, 10.0 ** powers[0], 10.0 ** powers[-1], tuple(10.0**n for n in powers), True)


def doublings(name: str, values: Sequence[float]) -> Axis:
    """A logarithmic axis with a tick at each value: sizes, mostly."""
    return Axis(name, min(values) / 1.2, max(values) * 1.2, tuple(sorted(set(values))), True)


@dataclass(frozen=True)
class Plot:
    """Dots and lines over two axes."""

    title: str
    x: Axis
    y: Axis
    dots: Sequence[Dot]
    lines: Sequence[Line] = ()


@dataclass(frozen=True)
class Strips:
    """A row of ticks per group, each (a value from 0 to 1, words): how many are near the best of a group."""

    title: str
    rows: Sequence[tuple[str, Sequence[tuple[float, str]]]]
    name: str


@dataclass(frozen=True)
class Heat:
    """A cell per row and column with its share: the fuller, the nearer to 1; green from what rounds to 100% on."""

    title: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[float | None]]]


@dataclass(frozen=True)
class Tiles:
    """Squares, one per element of each panel's matrix, coloured by its number below `most`."""

    title: str
    panels: Sequence[tuple[str, Sequence[Sequence[int]]]]
    most: int
    unit: str


Chart = Bars | Plot | Strips | Heat | Tiles


def as_json(chart: Chart) -> str:
    """What charts.ts reads."""
    return json.dumps({"kind": type(chart).__name__.lower(), **asdict(chart)}, separators=(",", ":"))


def json_element(text: str, attributes: str = "") -> str:
    """JSON in the page, where no text of it can end the element."""
    escaped = text.replace("<", "\\u003c")
    return f'<script type="application/json"{attributes}>{escaped}</script>'


def place(chart: Chart) -> str:
    """The place where the page's script draws a chart."""
    return f'<div class="chart">{json_element(as_json(chart))}</div>'


def legend(names: Sequence[str]) -> str:
    """The series' names with their colours, as HTML."""
    keys = (f'<li><span class="key k{n % SERIES}"></span>{escape(name)}</li>' for n, name in enumerate(names))
    return f'<ul class="legend">{"".join(keys)}</ul>'
