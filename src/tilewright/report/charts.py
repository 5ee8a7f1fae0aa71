"""Charts as SVG, drawn from typed figures. No script and no library: they open from disk, print, and scale to a phone.

Colours are the page's (CSS classes s0 to s5), so that light and dark are its choice. Each chart has a title and a
description for screen readers, and every mark says its own figure when it is pointed at. Each is drawn as wide as it is
asked for: WIDTH for a desk, NARROW for a phone, where names stand above their bars.
"""

from __future__ import annotations

import colorsys
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from statistics import fmean

WIDTH, NARROW, CARD = 720, 360, 440
_ROW, _VALUE, _TOP, _LETTER = 24, 70, 8, 7.3  # _LETTER: about how wide one is
_PLOT_HEIGHT, _MARGIN = 340, (46, 20, 20, 44)  # left, right, top, bottom
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


def _svg(width: float, height: float, title: str, description: str, body: Sequence[str]) -> str:
    head = f'<svg viewBox="0 0 {_number(width)} {_number(height)}" role="img" xmlns="http://www.w3.org/2000/svg">'
    return f"{head}<title>{escape(title)}</title><desc>{escape(description)}</desc>{''.join(body)}</svg>"


def _text(x: float, y: float, words: str, anchor: str = "start", kind: str = "") -> str:
    style = f"halo {kind}".rstrip()
    return f'<text x="{_number(x)}" y="{_number(y)}" text-anchor="{anchor}" class="{style}">{escape(words)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    ends = f'x1="{_number(x1)}" y1="{_number(y1)}" x2="{_number(x2)}" y2="{_number(y2)}"'
    return f'<line {ends} class="{kind}"/>'


def _label_room(labels: Sequence[str]) -> float:
    """The width that labels need on the left of a chart."""
    return max(map(len, labels), default=0) * _LETTER + 12


def bars(title: str, rows: Sequence[Bar], mark: float | None = None, mark_words: str = "", width: float = WIDTH) -> str:
    """Horizontal bars, the longest over the whole width; `mark`: a line across at this value, with words above it."""
    if not rows:
        raise ValueError("a chart of bars needs at least one")
    most = max([bar.value for bar in rows] + ([mark] if mark is not None else []))
    above = width < WIDTH  # names above their bars
    left = 0.0 if above else _label_room([bar.label for bar in rows])
    name, value_room = (16 if above else 0), max(_VALUE, max(len(bar.text) for bar in rows) * _LETTER + 10)
    scale = (width - left - value_room) / most if most > 0 else 0.0
    top, step = _TOP + (16 if mark is not None else 0), _ROW + name
    shapes, words = [], []
    for number, bar in enumerate(rows):
        y, x = top + number * step, left
        words.append(_text(0, y + 13, bar.label) if above else _text(left - 8, y + 15, bar.label, "end"))
        for value, series, told in bar.parts:
            length = max(value, 0.0) * scale
            place = f'x="{_number(x)}" y="{y + name + 3}" width="{_number(length)}" height="{_ROW - 6}"'
            shapes.append(f'<rect {place} class="s{series % SERIES}"><title>{escape(told)}</title></rect>')
            x += length
        words.append(_text(x + 6, y + name + 16, bar.text))
    if mark is not None:
        x = left + mark * scale
        half = len(mark_words) * _LETTER / 2
        shapes.append(_line(x, top, x, top + len(rows) * step, "mark"))
        words.append(_text(min(x, width - half), top - 4, mark_words, "middle", "small"))
    described = "; ".join(f"{bar.label}: {bar.text}" for bar in rows)
    return _svg(width, top + len(rows) * step + 6, title, described, [*shapes, *words])


def pairs(title: str, rows: Sequence[tuple[str, float | None, float]], width: float = CARD) -> str:
    """Two thin bars per row, (name, before or None, after), the one before fainter."""
    most = max(max(after, before or 0.0) for _, before, after in rows)
    left, line, top = min(_label_room([name for name, _, _ in rows]), 0.4 * width), 26, 24

    def short(value: float) -> str:
        return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"

    said = [
        short(after) if before is None or before == after else f"{short(before)} to {short(after)}"
        for _, before, after in rows
    ]
    room = width - left - max(map(len, said)) * _LETTER - 10
    body = [_text(0, 13, title.split(": ")[-1], kind="small")]
    for number, (name, before, after) in enumerate(rows):
        y = top + number * line
        body.append(_text(left - 8, y + 14, name, "end"))
        for offset, value, kind in ((0, before, "s0 faint"), (9, after, "s0")):
            if value is not None:
                length = _number(room * value / most if most else 0.0)
                place = f'x="{_number(left)}" y="{y + 2 + offset}" width="{length}" height="8"'
                body.append(f'<rect {place} class="{kind}"><title>{escape(f"{name}: {value:g}")}</title></rect>')
        longest = left + room * max(after, before or 0.0) / most if most else left
        body.append(_text(longest + 6, y + 14, said[number], kind="small"))
    told = "; ".join(f"{name}: {before} to {after}" for name, before, after in rows)
    return _svg(width, top + len(rows) * line + 4, title, told, body)


def _together(labels: Sequence[tuple[float, float, str]]) -> list[tuple[float, float, str]]:
    """Labels with their places; those that would cover one another become one, right of their places."""
    groups: list[list[tuple[float, float, str]]] = []
    for one in sorted(labels, key=lambda label: (round(label[0]), label[1])):
        last = groups[-1][-1] if groups else None
        if last is not None and abs(one[0] - last[0]) < 30 and abs(one[1] - last[1]) < 12:
            groups[-1].append(one)
        else:
            groups.append([one])
    return [
        (max(x for x, _, _ in group), fmean(y for _, y, _ in group), _in_short([words for _, _, words in group]))
        for group in groups
    ]


def _in_short(names: Sequence[str]) -> str:
    """Names in their order, three and more that follow each other as "f05 to f11"."""
    ordered = sorted(names)
    numbers = [int(name[1:]) if name[1:].isdigit() else -1 for name in ordered]
    follow = all(b == a + 1 for a, b in pairwise(numbers)) and -1 not in numbers
    return f"{ordered[0]} to {ordered[-1]}" if follow and len(names) > 2 else ", ".join(ordered)


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


def plot(title: str, x: Axis, y: Axis, dots: Sequence[Dot], lines: Sequence[Line] = (), width: float = WIDTH) -> str:
    """Dots and lines over two axes."""
    left, right, above, below = _MARGIN
    whole, width, height = width, width - left - right, _PLOT_HEIGHT - above - below

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
        side = -7 if px + 7 + len(words) * _LETTER > whole else 7
        body.append(_text(px + side, py + 4, words, "end" if side < 0 else "start", "small"))
    told = "; ".join(dot.words for dot in dots[:60])
    return _svg(whole, _PLOT_HEIGHT, title, told, body)


def strips(title: str, rows: Sequence[tuple[str, Sequence[tuple[float, str]]]], name: str, width: float = WIDTH) -> str:
    """One row of ticks per group, each a value from 0 to 1 with its words: how many are near the best of a group."""
    above = width < WIDTH
    left, lead = (0.0, 16) if above else (_label_room([label for label, _ in rows]), 0)
    room, step, body = width - left - 24, _ROW + lead, []
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        at = left + room * tick
        body.append(_line(at, _TOP, at, _TOP + len(rows) * step, "grid"))
        body.append(_text(max(at, 8), _TOP + len(rows) * step + 16, f"{tick:.0%}", "middle", "small"))
    for number, (label, values) in enumerate(rows):
        y = _TOP + number * step
        body.append(_text(0, y + 13, label) if above else _text(left - 8, y + 16, label, "end"))
        for value, words in values:
            at = left + room * value
            place = f'x="{_number(max(at - 1, 0))}" y="{y + lead + 4}" width="2" height="{_ROW - 8}"'
            body.append(f'<rect {place} class="s0 faint"><title>{escape(words)}</title></rect>')
    bottom = _TOP + len(rows) * step + 34
    body.append(_text(left + room / 2, bottom, name, "middle", "small"))
    told = "; ".join(f"{label}: {len(values)} values" for label, values in rows)
    return _svg(width, bottom + 8, title, told, body)


def heat(
    title: str, columns: Sequence[str], rows: Sequence[tuple[str, Sequence[float | None]]], width: float = WIDTH
) -> str:
    """A cell per row and column with its share in percent: the fuller, the nearer to 1; green from 1 on."""
    names = [name.split("_")[0] if width < WIDTH else name for name, _ in rows]
    left = _label_room(names)
    cell, body = (width - left) / len(columns), []
    for number, column in enumerate(columns):
        body.append(_text(left + (number + 0.5) * cell, 14, column, "middle", "small"))
    for line, (name, (_, shares)) in enumerate(zip(names, rows, strict=True)):
        y = 22 + line * 22
        body.append(_text(left - 8, y + 15, name, "end"))
        for number, share in enumerate(shares):
            if share is None:
                continue
            kind, fill = ("s2", 0.6) if share >= 1 else ("s0", 0.08 + 0.72 * share**1.5)
            place = f'x="{_number(left + number * cell + 1)}" y="{y}" width="{_number(cell - 2)}" height="20" rx="3"'
            words = escape(f"{rows[line][0]}, {columns[number]}: {share:.1%}")
            body.append(f'<rect {place} class="{kind}" fill-opacity="{fill:.2f}"><title>{words}</title></rect>')
            body.append(f'<text x="{_number(left + (number + 0.5) * cell)}" y="{y + 14}" text-anchor="middle" '
                        f'class="cell">{share:.0%}</text>')  # fmt: skip
    told = "; ".join(
        f"{name}: " + ", ".join("none" if share is None else f"{share:.0%}" for share in shares)
        for name, shares in rows
    )
    return _svg(width, 22 + len(rows) * 22 + 4, title, told, body)


def _hue(share: float) -> str:
    """A colour of the circle, 0 to 1, that stands out on white and on black."""
    return "#" + "".join(f"{round(255 * part):02x}" for part in colorsys.hls_to_rgb(share, 0.55, 0.6))


def tiles(
    title: str, panels: Sequence[tuple[str, Sequence[Sequence[int]]]], most: int, unit: str, width: float = WIDTH
) -> str:
    """Squares, one per element of each panel's matrix, coloured by its number below `most`. Panels stand side by side,
    or one below the other where it is narrow."""
    gap, below = 24, width < WIDTH
    side = width if below else (width - gap * (len(panels) - 1)) / len(panels)
    body, height, top = [], 0.0, 0.0
    for number, (name, rows) in enumerate(panels):
        left, size = 0.0 if below else number * (side + gap), side / max(len(rows[0]), 1)
        body.append(_text(left, top + 16, name))
        for y, row in enumerate(rows):
            for x, value in enumerate(row):
                place = f'x="{_number(left + x * size)}" y="{_number(top + 24 + y * size)}"'
                edge = f'width="{_number(size - 0.5)}" height="{_number(size - 0.5)}"'
                words = f"<title>row {y}, column {x}: {unit} {value}</title>"
                body.append(f'<rect {place} {edge} fill="{_hue(value / most)}">{words}</rect>')
        height = max(height, top + 24 + len(rows) * size)
        top = height + 12 if below else 0.0
    told = "; ".join(f"{name}: {len(rows)} x {len(rows[0])} elements" for name, rows in panels)
    return _svg(width, height + 6, title, told, body)


def legend(names: Sequence[str]) -> str:
    """The series' names with their colours, as HTML."""
    keys = (f'<li><span class="key k{n % SERIES}"></span>{escape(name)}</li>' for n, name in enumerate(names))
    return f'<ul class="legend">{"".join(keys)}</ul>'
