"""One card per rung: its idea, and what changed against the rung below it, as records have both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from ..lab.record import find_records
from ..lab.shown import Grid
from ..lab.subject import every_rung
from . import charts
from .cells import DAGGER
from .markup import column, table_of

Record = dict[str, Any]
LADDERS = (
    ("fp32", ("fp32-ladder",), ("fp32-stalls",), ("counters",), ("fp32-ladder-sizes",), "cuBLAS"),
    ("bf16", ("bf16-ladder",), ("bf16-stalls",), ("bf16-counters",), ("bf16-ladder-sizes",), "cuBLAS"),
    ("Attention", ("attention-ladder", "attention-hopper"), ("attention-stalls", "attention-hopper-stalls"), (), (),
     "FlashAttention-2"),
)  # fmt: skip
"""Title, and the suites of times, stalls, counters and sizes; the library that shares are of."""
MOST_BARS = 6
_SIZES = ("m", "n", "k", "batch", "heads_q", "seq_q", "seq_k", "d_head")
"""What a problem's time depends on: a ladder's second suite may have another batch."""
_RATIOS = {
    "sectors_per_load": "sectors per global load", "sectors_per_store": "sectors per global store",
    "wavefronts_per_shared_load": "wavefronts per shared load",
    "wavefronts_per_shared_store": "wavefronts per shared store",
}  # fmt: skip
_EXECUTED = {
    "sectors_per_request": "sectors per global load", "wavefronts_per_request": "wavefronts per shared load",
    "flop_per_byte": "FLOP per byte of global traffic",
}  # fmt: skip
_PIPES = {"issue_active": "issue slots busy", "fma_pipe": "fp32 pipe busy", "tensor_pipe": "tensor pipe busy",
          "shared_pipe": "shared memory busy"}  # fmt: skip


@dataclass
class Card:
    """`rows`: (name, below, here). `bars`: title -> (name, below or None, here). `origin`: where they come from."""

    rung: str
    idea: str
    headline: str
    origin: str
    below: str = ""
    rows: list[tuple[str, str, str]] = field(default_factory=list)
    bars: dict[str, list[tuple[str, float | None, float]]] = field(default_factory=dict)

    def row(self, words: str, below: float | None, here: float | None, form: str) -> None:
        """Add a figure, where there is one here."""
        if here is not None:
            self.rows.append((words, "-" if below is None else form.format(below), form.format(here)))


@dataclass(frozen=True)
class Deck:
    """A ladder's cards."""

    title: str
    cards: tuple[Card, ...]


def cards(folder: Path, origin: Callable[[Path, Sequence[Record]], str]) -> list[Deck]:
    """The cards of each ladder; what has no record of times is left out. origin: says where records come from."""
    made = []
    compiled, executed = (_by_rung(find_records(folder, suite)) for suite in ("compiled-hopper", "executed"))

    def records_of(suites: Sequence[str]) -> list[Record]:
        return [record for suite in suites for record in find_records(folder, suite)]

    for title, times, stalls, counters, sizes, library in LADDERS:
        ladder = [record for record in records_of(times) if record["result"].get("ratio")]
        sides = [_by_rung(ladder), _by_rung(records_of(stalls)), compiled, executed]
        counted, grown = _by_rung(records_of(counters)), _shares(records_of(sizes))
        names = list(sides[0])
        held = []
        for name, below in zip(names, ["", *names], strict=False):
            here = [side.get(name) for side in sides]
            told = origin(folder, [record for record in (*here[:2], counted.get(name)) if record is not None])
            card = _card(name, below, here, [side.get(below) for side in sides],
                         (counted.get(name), counted.get(below)), library, told)  # fmt: skip
            card.bars |= _by_size(grown.get(name, {}), grown.get(below, {}), library)
            held.append(card)
        if held:
            made.append(Deck(title, tuple(held)))
    return made


def _shares(records: Sequence[Record]) -> dict[str, dict[int, float]]:
    """Each rung's share of the library's speed, by m = n = k."""
    found: dict[str, dict[int, float]] = {}
    for record in records:
        if "rung" in record["case"] and record["result"].get("ratio"):
            found.setdefault(record["case"]["rung"], {})[record["case"]["m"]] = record["result"]["ratio"]
    return found


def _by_size(
    now: dict[int, float], before: dict[int, float], library: str
) -> dict[str, list[tuple[str, float | None, float]]]:
    bars = [(str(size), before.get(size), share) for size, share in sorted(now.items())]
    return {f"Share of {library}'s speed by m = n = k": bars} if bars else {}


def _by_rung(records: Sequence[Record]) -> dict[str, Record]:
    """The first record of each rung, in their order."""
    found: dict[str, Record] = {}
    for record in records:
        if "rung" in record["case"]:
            found.setdefault(record["case"]["rung"], record)
    return found


def _card(
    name: str, below: str, here: Sequence[Record | None], there: Sequence[Record | None],
    counted: tuple[Record | None, Record | None], library: str, origin: str,
) -> Card:  # fmt: skip
    rung = every_rung(name)
    (times, stalls, compiled, executed), (old_times, old_stalls, old_compiled, old_executed) = here, there
    assert times is not None
    now, before = times["result"], old_times["result"] if old_times else {}
    gain = f", {100 * (now['ratio'] - before['ratio']):+.1f} points" if before else ""
    card = Card(name, _sentence(rung.teaches) if rung else "", f"{now['ratio']:.1%} of {library}{gain}", origin, below)

    def row(words: str, key: str, form: str) -> None:
        card.row(words, before.get(key), now.get(key), form)

    is_same = old_times is not None and all(old_times["case"].get(key) == times["case"].get(key) for key in _SIZES)
    card.row("time", before.get("ms") if is_same else None, now.get("ms"), "{:.4g} ms")
    row("speed", "tflops", "{:.4g} TFLOP/s")
    card.rows.append(("config", str((old_times or times)["case"]["config_text"]) if old_times else "-",
                      str(times["case"]["config_text"])))  # fmt: skip
    row("registers per thread", "registers", "{:d}")
    row("spilled bytes", "spill_bytes", "{:d}")
    row("shared memory per block", "shared_bytes", "{:,d} B")
    row("occupancy", "occupancy", "{:.1%}")
    card.rows.append(("limited by", str(before.get("limited_by", "-")), str(now.get("limited_by", "-"))))
    old_state, state = (result.get("conditions") or {} for result in (before, now))
    for key, words, form in (("sm_mhz", "clock", "{:.0f} MHz"), ("power_w", "power", "{:.0f} W")):
        card.row(words, old_state.get(key), state.get(key), form)
    _counts(card, *counted)
    _executed(card, executed, old_executed, counted[0] is None)
    _stalls(card, stalls, old_stalls)
    if compiled:
        groups, old = compiled["result"]["loop"], (old_compiled["result"]["loop"] if old_compiled else None)
        arch = compiled["provenance"]["arch"]
        _bars(card, f"SASS instructions in the main loop, {arch}", groups["groups"], old["groups"] if old else None)
    return card


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:] + "."


def _counts(card: Card, counted: Record | None, old: Record | None) -> None:
    if counted is None:
        return
    for key, words in _RATIOS.items():
        before = old["result"]["ratios"][key]["hardware"] if old else None
        card.row(words, before, counted["result"]["ratios"][key]["hardware"], "{:.3g}")


def _executed(card: Card, executed: Record | None, old: Record | None, has_no_counters: bool) -> None:
    """The emulator's counts: all of them where the hardware's were not read."""
    if executed is None:
        return
    now, before = executed["result"], old["result"] if old else {}
    for key, words in _EXECUTED.items():
        if has_no_counters or key == "flop_per_byte":
            card.row(f"{words}, emulator", before.get(key), now.get(key), "{:.3g}")
    case = executed["case"]
    size = f"{case['m']} cubed" if "m" in case else f"{case['seq_q']} queries and keys"
    title = f"Instructions of a thread at {size}, on the emulator"
    _bars(card, title, now["instructions_per_thread"], before.get("instructions_per_thread"))


def _stalls(card: Card, stalls: Record | None, old: Record | None) -> None:
    if stalls is None:
        return
    now, before = stalls["result"], old["result"] if old else {}
    for key, words in _PIPES.items():
        card.row(words, before.get(key), now.get(key), "{:.0%}")
    _bars(card, "Warps that wait, per issued instruction", now["stalls"], before.get("stalls"))


def _bars(card: Card, title: str, now: dict[str, float], before: dict[str, float] | None) -> None:
    """The names that matter most on either side."""
    names = list(dict.fromkeys((*now, *(before or {}))))
    names.sort(key=lambda name: -max(now.get(name, 0.0), (before or {}).get(name, 0.0)))
    held = [(name, None if before is None else before.get(name, 0.0), now.get(name, 0.0)) for name in names[:MOST_BARS]]
    card.bars[title] = [bar for bar in held if bar[2] or bar[1]]


def as_html(decks: Sequence[Deck]) -> str:
    """The cards, folded."""
    parts = [
        "<p>Each card compares a rung with the one below it: what changed is coloured, and faint bars are the rung "
        f"below. Pipes and stalls are the hardware's counts, and so are sectors and wavefronts where nothing else is "
        f"said; the emulator's are of a smaller problem. {DAGGER}: some of its figures were "
        "measured before its kernel changed; its last line says which.</p>"
    ]
    for deck in decks:
        parts.append(f"<h3>{escape(deck.title)}</h3>")
        parts += map(_html, deck.cards)
    return "".join(parts)


def _html(card: Card) -> str:
    names = ("", card.below or "-", card.rung)
    head = "".join(map(column, names)).replace("_", "_<wbr>")  # a narrow column breaks ids there
    rows = "".join(
        f'<tr{" class=changed" if old not in ("-", new) else ""}><th scope="row">{escape(name)}</th>'
        f"<td>{escape(old)}</td><td>{escape(new)}</td></tr>"
        for name, old, new in card.rows
    )
    table = f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    drawn = "".join(
        f"<div><h4>{escape(title)}</h4>{charts.place(_chart(card, title))}</div>"
        for title in card.bars
        if card.bars[title]
    )
    figures = Grid("", ("", "", *names[1:]), tuple(
        (title, name, "-" if before is None else _short(before), _short(now))
        for title, bars in card.bars.items() for name, before, now in bars
    ))  # fmt: skip
    mark = f" {DAGGER}" if "May no longer hold" in card.origin else ""
    return (
        f'<details class="card"><summary><b>{escape(card.rung)}</b> {escape(card.headline)}{mark}</summary>'
        f'<p>{escape(card.idea)}</p>{table}<div class="drawn">{drawn}</div>'
        f"<details><summary>Figures of the bars</summary>{table_of(figures, card.rung)}</details>"
        f'<p class="origin">{escape(card.origin)}</p></details>'
    )


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _chart(card: Card, title: str) -> charts.Bars:
    """A bar per name, over a fainter one of the rung below."""
    rows = []
    for name, before, now in card.bars[title]:
        said = _short(now) if before in (None, now) else f"{_short(before)} to {_short(now)}"
        rows.append(charts.Bar(name, ((now, 0, f"{name}: {now:g}"),), said, before))
    return charts.Bars(f"{card.rung}: {title}", rows)
