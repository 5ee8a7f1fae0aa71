"""Charts as SVG, drawn from typed figures. No script and no library: they open from disk, print, and scale to a phone.

Colours are the page's (CSS classes s0 to s5), so that light and dark are its choice. Each chart has a title and a
description for screen readers, and every mark says its own figure when it is pointed at.
"""

from __future__ import annotations

import colorsys
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 720
_ROW, _LABEL, _VALUE, _TOP = 24, 170, 70, 8
_PLOT_HEIGHT, _MARGIN = 340, (56, 16, 16, 44)  # left, right, top, bottom
SERIES = 6
"""Colours that the page has."""


@dataclass(frozen=True)
class Bar:
    """One bar: parts one after the other, each (value, series, words); `text` stands at its end."""

    label: str
    parts: tuple[tuple[float, int, str], ...]
    text: str

    @property
    def value(self) -> float:
        """The length of all parts."""
        return sum(value for value, _, _ in self.parts)


@dataclass(frozen=True)
class Dot:
    """One point of a plot. `words`: what it says when it is pointed at; `label`: beside it, "" for none."""

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


def _number(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")


def _svg(height: float, title: str, description: str, body: Sequence[str]) -> str:
    head = f'<svg viewBox="0 0 {WIDTH} {_number(height)}" role="img" xmlns="http://www.w3.org/2000/svg">'
    return f"{head}<title>{escape(title)}</title><desc>{escape(description)}</desc>{''.join(body)}</svg>"


def _text(x: float, y: float, words: str, anchor: str = "start", kind: str = "") -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text x="{_number(x)}" y="{_number(y)}" text-anchor="{anchor}"{style}>{escape(words)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    ends = f'x1="{_number(x1)}" y1="{_number(y1)}" x2="{_number(x2)}" y2="{_number(y2)}"'
    return f'<line {ends} class="{kind}"/>'


def bars(title: str, rows: Sequence[Bar], mark: float | None = None, mark_words: str = "") -> str:
    """Horizontal bars, the longest over the whole width; `mark`: a line across at this value, with words above it."""
    if not rows:
        raise ValueError("a chart of bars needs at least one")
    most = max([bar.value for bar in rows] + ([mark] if mark is not None else []))
    room = WIDTH - _LABEL - _VALUE
    scale = room / most if most > 0 else 0.0
    top = _TOP + (16 if mark is not None else 0)
    body = []
    for number, bar in enumerate(rows):
        y, x = top + number * _ROW, float(_LABEL)
        body.append(_text(_LABEL - 8, y + 15, bar.label, "end"))
        for value, series, words in bar.parts:
            width = max(value, 0.0) * scale
            place = f'x="{_number(x)}" y="{y + 3}" width="{_number(width)}" height="{_ROW - 6}"'
            body.append(f'<rect {place} class="s{series % SERIES}"><title>{escape(words)}</title></rect>')
            x += width
        body.append(_text(x + 6, y + 15, bar.text))
    if mark is not None:
        x = _LABEL + mark * scale
        body += [_line(x, top, x, top + len(rows) * _ROW, "mark"), _text(x, top - 4, mark_words, "middle", "small")]
    told = "; ".join(f"{bar.label}: {bar.text}" for bar in rows)
    return _svg(top + len(rows) * _ROW + 6, title, told, body)


def pairs(title: str, rows: Sequence[tuple[str, float | None, float]]) -> str:
    """Two thin bars per row, (name, before or None, after), the one before fainter."""
    most = max(max(after, before or 0.0) for _, before, after in rows)
    room, line, top = WIDTH - _LABEL - 2 * _VALUE, 26, 22
    body = [_text(0, 13, title.split(": ")[-1], kind="small")]
    for number, (name, before, after) in enumerate(rows):
        y = top + number * line
        body.append(_text(_LABEL - 8, y + 14, name, "end"))
        for offset, value, kind in ((0, before, "s0 faint"), (9, after, "s0")):
            if value is not None:
                width = _number(room * value / most if most else 0.0)
                place = f'x="{_LABEL}" y="{y + 2 + offset}" width="{width}" height="8"'
                body.append(f'<rect {place} class="{kind}"><title>{escape(f"{name}: {value:g}")}</title></rect>')
        longest = _LABEL + room * max(after, before or 0.0) / most if most else _LABEL
        told = f"{after:g}" if before is None or before == after else f"{before:g} to {after:g}"
        body.append(_text(longest + 6, y + 14, told, kind="small"))
    told = "; ".join(f"{name}: {before} to {after}" for name, before, after in rows)
    return _svg(top + len(rows) * line + 4, title, told, body)


def _together(labels: Sequence[tuple[float, float, str]]) -> list[tuple[float, float, str]]:
    """Labels with their places; those that would cover one another become one, at the middle of their places."""
    groups: list[list[tuple[float, float, str]]] = []
    for one in sorted(labels, key=lambda label: (round(label[0]), label[1])):
        last = groups[-1][-1] if groups else None
        if last is not None and abs(one[0] - last[0]) < 30 and abs(one[1] - last[1]) < 12:
            groups[-1].append(one)
        else:
            groups.append([one])
    return [
        (group[0][0], sum(y for _, y, _ in group) / len(group), ", ".join(sorted(words for _, _, words in group)))
        for group in groups
    ]


@dataclass(frozen=True)
class Axis:
    """An axis from `low` to `high`, with ticks; `is_log`: each step multiplies."""

    name: str
    low: float
    high: float
    ticks: tuple[float, ...]
    is_log: bool = False

    def at(self, value: float) -> float:
        """Return how far along the axis a value lies, 0 to 1."""
        if self.is_log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def axis(name: str, values: Sequence[float], is_log: bool = False) -> Axis:
    """An axis that holds all values, with round ticks. A logarithmic one takes positive values."""
    low, high = min(values), max(values)
    if is_log:
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        last = last if last > first else first + 1
        return Axis(name, 10.0**first, 10.0**last, tuple(10.0**n for n in range(first, last + 1)), True)
    low, high = min(low, 0.0), high if high > 0 else 1.0
    step = 10.0 ** math.floor(math.log10(high - low))
    step = step / 5 if (high - low) / step < 2 else step / 2 if (high - low) / step < 5 else step
    count = math.ceil((high - low) / step - 1e-9)
    return Axis(name, low, low + count * step, tuple(low + n * step for n in range(count + 1)))


def doublings(name: str, values: Sequence[float]) -> Axis:
    """A logarithmic axis with a tick at each value: sizes, mostly."""
    low, high = min(values), max(values)
    return Axis(name, low / 1.2, high * 1.2, tuple(sorted(set(values))), True)


def plot(title: str, x: Axis, y: Axis, dots: Sequence[Dot], lines: Sequence[Line] = ()) -> str:
    """Dots and lines over two axes."""
    left, right, above, below = _MARGIN
    width, height = WIDTH - left - right, _PLOT_HEIGHT - above - below

    def place(a: float, b: float) -> tuple[float, float]:
        return left + width * x.at(a), above + height * (1 - y.at(b))

    body = []
    for tick in x.ticks:
        at, _ = place(tick, y.low)
        body += [
            _line(at, above, at, above + height, "grid"),
            _text(at, above + height + 16, f"{tick:g}", "middle", "small"),
        ]
    for tick in y.ticks:
        _, at = place(x.low, tick)
        body += [_line(left, at, left + width, at, "grid"), _text(left - 6, at + 4, f"{tick:g}", "end", "small")]
    body.append(_text(left + width / 2, _PLOT_HEIGHT - 6, x.name, "middle", "small"))
    body.append(_text(left, above - 4, y.name, "start", "small"))
    for line in lines:
        points = " ".join(f"{_number(px)},{_number(py)}" for px, py in (place(*point) for point in line.points))
        words = f"<title>{escape(line.name)}</title>"
        body.append(f'<polyline points="{points}" class="l{line.series % SERIES}">{words}</polyline>')
    for dot in dots:
        px, py = place(dot.x, dot.y)
        place_ = f'cx="{_number(px)}" cy="{_number(py)}" r="4"'
        body.append(f'<circle {place_} class="s{dot.series % SERIES}"><title>{escape(dot.words)}</title></circle>')
    labelled = [(*place(dot.x, dot.y), dot.label) for dot in dots if dot.label]
    for px, py, words in _together(labelled):
        side = -7 if px > left + 0.7 * width else 7
        body.append(_text(px + side, py + 4, words, "end" if side < 0 else "start", "small"))
    told = "; ".join(dot.words for dot in dots[:60])
    return _svg(_PLOT_HEIGHT, title, told, body)


def strips(title: str, rows: Sequence[tuple[str, Sequence[tuple[float, str]]]], name: str) -> str:
    """One row of ticks per group, each a value from 0 to 1 with its words: how many are near the best of a group."""
    room = WIDTH - _LABEL - 24
    body = []
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        at = _LABEL + room * tick
        body.append(_line(at, _TOP, at, _TOP + len(rows) * _ROW, "grid"))
        body.append(_text(at, _TOP + len(rows) * _ROW + 16, f"{tick:.0%}", "middle", "small"))
    for number, (label, values) in enumerate(rows):
        y = _TOP + number * _ROW
        body.append(_text(_LABEL - 8, y + 16, label, "end"))
        for value, words in values:
            at = _LABEL + room * value
            place = f'x="{_number(at - 1)}" y="{y + 4}" width="2" height="{_ROW - 8}"'
            body.append(f'<rect {place} class="s0 faint"><title>{escape(words)}</title></rect>')
    bottom = _TOP + len(rows) * _ROW + 34
    body.append(_text(_LABEL + room / 2, bottom, name, "middle", "small"))
    told = "; ".join(f"{label}: {len(values)} values" for label, values in rows)
    return _svg(bottom + 8, title, told, body)


def _hue(share: float) -> str:
    """A colour of the circle, 0 to 1, that stands out on white and on black."""
    return "#" + "".join(f"{round(255 * part):02x}" for part in colorsys.hls_to_rgb(share, 0.55, 0.6))


def tiles(title: str, panels: Sequence[tuple[str, Sequence[Sequence[int]]]], most: int, unit: str) -> str:
    """Squares side by side, one per element of each panel's matrix, coloured by its number below `most`."""
    gap = 24
    width = (WIDTH - gap * (len(panels) - 1)) / len(panels)
    body, height = [], 0.0
    for number, (name, rows) in enumerate(panels):
        left, size = number * (width + gap), width / max(len(rows[0]), 1)
        body.append(_text(left, 16, name))
        for y, row in enumerate(rows):
            for x, value in enumerate(row):
                place = f'x="{_number(left + x * size)}" y="{_number(24 + y * size)}"'
                edge = f'width="{_number(size - 0.5)}" height="{_number(size - 0.5)}"'
                words = f"<title>row {y}, column {x}: {unit} {value}</title>"
                body.append(f'<rect {place} {edge} fill="{_hue(value / most)}">{words}</rect>')
        height = max(height, 24 + len(rows) * size)
    told = "; ".join(f"{name}: {len(rows)} x {len(rows[0])} elements" for name, rows in panels)
    return _svg(height + 6, title, told, body)


def legend(names: Sequence[str]) -> str:
    """The series' names with their colours, as HTML."""
    keys = (f'<li><span class="key k{n % SERIES}"></span>{escape(name)}</li>' for n, name in enumerate(names))
    return f'<ul class="legend">{"".join(keys)}</ul>'
