"""Charts of the records, each with its heading, its words, its data and its origin."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..lab.bank_map import banks
from ..lab.counters import STALLS
from ..lab.fingerprint import why_stale
from ..lab.record import find_records, who
from ..lab.rooflines import RooflineReport, board_of, roofline
from ..lab.shown import Grid
from ..lab.suite import read_suite
from . import charts, landscapes, profiles
from .charts import Bar, Chart, Dot, Line
from .tables import days

Record = dict[str, Any]
_EXTENTS = {"m": "m = n = k", "seq_q": "queries and keys"}
_SIDES = {"cuDNN": "_cudnn"}
"""The end of the names of a record's ratios to a second library."""


@dataclass(frozen=True)
class Figure:
    """A chart with its heading, what it shows, its data, and where that comes from."""

    heading: str
    words: str
    chart: Chart
    data: Grid
    origin: str
    keys: tuple[str, ...] = ()


def origin_of(folder: Path, records: Sequence[Record]) -> str:
    """Say where, when and at which clocks and power records were measured, and whether they may no longer hold."""
    first = records[0]["provenance"]
    named = list(dict.fromkeys(str(record["suite"]) for record in records))
    suite = f"Suite{'s' * (len(named) > 1)} {', '.join(named)}"
    words = [suite, str(first.get("gpu") or first.get("arch")), days(records)]
    held = [record["result"].get("conditions") or {} for record in records]
    for key, unit in (("sm_mhz", "MHz"), ("power_w", "W")):
        values = [conditions[key] for conditions in held if key in conditions]
        if values:
            low, high = min(values), max(values)
            words.append(f"{low:.0f} {unit}" if round(low) == round(high) else f"{low:.0f} to {high:.0f} {unit}")
    files = {record["suite"]: folder.parent / f"{record['suite']}.json" for record in records}
    suites = {name: read_suite(file) if file.is_file() else None for name, file in files.items()}
    reasons = [why for record in records if (why := why_stale(record, suites[record["suite"]]))]
    told = (
        f" May no longer hold, {len(reasons)} of {len(records)}: {'; '.join(dict.fromkeys(reasons))}."
        if reasons
        else ""
    )
    return f"{', '.join(words)}.{told}"


def ladder(
    suite: str, heading: str, words: str, against: str, label: Callable[[Record], str] = who
) -> Callable[[Path], list[Figure]]:
    """The rungs' share of a library's speed, without a mask; `label` names each bar."""
    side = _SIDES.get(against, "")

    def make(folder: Path) -> list[Figure]:
        records = [r for r in find_records(folder, suite) if r["result"].get(f"ratio{side}") and "rung" in r["case"]]
        records = [r for r in records if not r["case"].get("is_causal")]
        if not records:
            return []
        rows, data = [], []
        for record in records:
            result, name = record["result"], label(record)
            ratio, low, high = (result[f"{word}{side}"] for word in ("ratio", "ratio_p10", "ratio_p90"))
            told = f"{name}: {ratio:.1%} of {against}, {result['ms']:.4g} ms, {result['tflops']:.4g} TFLOP/s"
            rows.append(Bar(name, ((ratio, 0, told),), f"{ratio:.1%}"))
            clock = (result.get("conditions") or {}).get("sm_mhz")
            data.append(
                (
                    name,
                    str(record["case"]["config_text"]),
                    f"{result['ms']:.4g}",
                    f"{result['tflops']:.4g}",
                    f"{ratio:.1%}",
                    f"{low:.3f}..{high:.3f}",
                    "-" if clock is None else f"{clock:.0f}",
                )
            )
        chart = charts.Bars(heading, rows, 1.0, against)
        names = ("rung", "config", "ms", "TFLOP/s", f"of {against}", "p10..p90", "MHz")
        return [Figure(heading, words, chart, Grid("", names, tuple(data)), origin_of(folder, records))]

    return make


def stalls(suite: str, heading: str, first: str = "") -> Callable[[Path], list[Figure]]:
    """Return what warps wait for, by rung: the reasons that matter most, and the rest together.

    first: the rung to begin with, where bars of those below it would leave the others too short to read.
    """

    def make(folder: Path) -> list[Figure]:
        held: dict[str, Record] = {}
        for record in find_records(folder, suite):
            held.setdefault(who(record), record)
        records = [held[name] for name in sorted(held) if name >= first]
        if not records:
            return []
        total = {name: sum(r["result"]["stalls"][name] for r in records) for name in STALLS}
        shown = sorted(STALLS, key=lambda name: -total[name])[: charts.SERIES - 1]
        rows = []
        for record in records:
            stalls = record["result"]["stalls"]
            rest = sum(stalls.values()) - sum(stalls[name] for name in shown)
            parts = [(stalls[name], n, f"{who(record)}: {name} {stalls[name]:.2f}") for n, name in enumerate(shown)]
            parts.append((rest, len(shown), f"{who(record)}: all other reasons {rest:.2f}"))
            rows.append(Bar(who(record), tuple(parts), f"{sum(stalls.values()):.1f}"))
        data = tuple((who(r), *(f"{r['result']['stalls'][name]:.2f}" for name in STALLS)) for r in records)
        words = "Warps that cannot issue, per issued instruction, by the reason they wait for. Less is better."
        return [Figure(heading, words, charts.Bars(heading, rows), Grid("", ("rung", *STALLS), data),
                       origin_of(folder, records), (*shown, "others"))]  # fmt: skip

    return make


def stalls_of_all(folder: Path) -> list[Figure]:
    """Return what warps of ours and of the libraries' kernels wait for, and the pipes that they keep busy."""
    records = find_records(folder, "profile")
    if not records:
        return []
    total: dict[str, float] = {}
    for record in records:
        for name, value in record["result"]["stalls"].items():
            total[name] = total.get(name, 0.0) + value
    shown = sorted(total, key=lambda name: -total[name])[: charts.SERIES - 1]
    rows = []
    for record in records:
        stalls = record["result"]["stalls"]
        name = f"{who(record).split('_')[0]} ({record['case']['problem'].split()[0]})"
        rest = sum(stalls.values()) - sum(stalls.get(reason, 0.0) for reason in shown)
        parts = [(stalls.get(r, 0.0), n, f"{name}: {r} {stalls.get(r, 0.0):.2f}") for n, r in enumerate(shown)]
        parts.append((rest, len(shown), f"{name}: all other reasons {rest:.2f}"))
        busy = max(record["result"]["shares"].get(pipe, 0.0) for pipe in ("tensor_pipe", "fma_pipe"))
        rows.append(Bar(name, tuple(parts), f"pipe {busy:.0%}"))
    heading = "Our kernels next to the libraries'"
    words = (
        "Warps that cannot issue, per issued instruction, by reason; at the end, how busy the pipe is that multiplies. "
        "Times under the profiler are not for comparing speed."
    )
    cells = tuple(tuple(str(cell(record)) for _, cell in profiles.PAGE) for record in records)
    grid = Grid("", tuple(name for name, _ in profiles.PAGE), cells)
    return [Figure(heading, words, charts.Bars(heading, rows), grid, origin_of(folder, records), (*shown, "others"))]


def accesses(suite: str, ratio: str, heading: str, words: str) -> Callable[[Path], list[Figure]]:
    """One ratio of accesses by rung, as the hardware counts it and as the emulator does."""

    def make(folder: Path) -> list[Figure]:
        records = [r for r in find_records(folder, suite) if r["result"]["ratios"][ratio]["hardware"]]
        if not records:
            return []
        rows, data = [], []
        for record in records:
            sides = record["result"]["ratios"][ratio]
            told = f"{sides['hardware']:.3g}, {sides['emulator']:.3g}"
            rows.append(Bar(who(record), ((sides["hardware"], 0, f"{who(record)}: {told}"),), told))
            data.append((who(record), f"{sides['hardware']:.4g}", f"{sides['emulator']:.4g}"))
        grid = Grid("", ("rung", "hardware", "emulator"), tuple(data))
        told = f"{words} The bar is the hardware's count; the emulator's is the second figure."
        return [Figure(heading, told, charts.Bars(heading, rows), grid, origin_of(folder, records))]

    return make


def banks_of_a_tile(folder: Path) -> list[Figure]:
    """The bank of each element of a tile of 32 x 32 floats, as it lies and swizzled: a calculation, not a record."""
    swizzle, lanes = (5, 0, 5), range(32)
    heading, unit = "Banks of a tile of 32 x 32 floats", "bank"
    rows = [banks(1, offsets=[32 * row + column for column in lanes], swizzle=swizzle) for row in lanes]
    after = [found.after for found in rows if found.after is not None]
    column = banks(1, pitch=32, down=32, swizzle=swizzle)
    assert column.after is not None
    panels = [
        (f"as it lies: a column takes {column.before.wavefronts} wavefronts", [list(r.before.banks) for r in rows]),
        (f"{column.swizzle}: a column takes {column.after.wavefronts}", [list(side.banks) for side in after]),
    ]
    data = tuple((str(n), " ".join(map(str, side.banks))) for n, side in enumerate(after))
    words = (
        "Each colour is a bank. A warp that reads a column meets one bank 32 times; the swizzle moves the elements of "
        "each row so that a column meets every bank once."
    )
    origin = "Calculated: tilewright banks --down 32 --pitch 32 --swizzle 5,0,5."
    return [Figure(heading, words, charts.Tiles(heading, panels, 32, unit), Grid("", ("row", "banks"), data), origin)]


def under_the_roofs(suite: str, dtype: str, heading: str) -> Callable[[Path], list[Figure]]:
    """The board's roofs, with each rung at the traffic that its tiles ask for."""

    def make(folder: Path) -> list[Figure]:
        records = [r for r in find_records(folder, suite) if r["result"].get("tflops") and "rung" in r["case"]]
        if not records or not board_of(records[0]):
            return []
        found: RooflineReport = roofline(board_of(records[0]), dtype, records=records)
        dots = [
            Dot(p.tile_intensity, p.tflops, f"{p.name}: {p.tflops:.4g} TFLOP/s at {p.tile_intensity:.3g} FLOP/B", 0,
                p.name.split("_")[0])
            for p in found.points if p.tile_intensity and p.tflops
        ]  # fmt: skip
        xs = [dot.x for dot in dots] + [found.ridge / 4, found.ridge * 4]
        x = charts.decades("FLOP per byte that blocks ask of L2 and memory together", xs)
        y = charts.decades("TFLOP/s", [dot.y for dot in dots] + [found.peak_tflops])
        low = max(x.low, y.low / (found.dram_gb_s * 1e-3))
        edges = ((low, low * found.dram_gb_s * 1e-3), (found.ridge, found.peak_tflops), (x.high, found.peak_tflops))
        roof = Line("device memory, then the peak of arithmetic", edges, 1)
        words = (
            f"{found.peak_tflops:.1f} TFLOP/s and {found.dram_gb_s:.0f} GB/s meet at {found.ridge:.1f} FLOP/B. A rung "
            "above the slope is served by L2."
        )
        return [
            Figure(
                heading,
                words,
                charts.Plot(heading, x, y, dots, [roof]),
                found.grids()[0],
                origin_of(folder, records),
            )
        ]

    return make


def by_size(
    suite: str, size: str, heading: str, by: Callable[[Record], str], against: str
) -> Callable[[Path], list[Figure]]:
    """The share of a library's speed by size, one line per kind of case; where those are too many, of the kinds with
    the most sizes. The table has all."""
    ratio = f"ratio{_SIDES.get(against, '')}"

    def make(folder: Path) -> list[Figure]:
        records = [r for r in find_records(folder, suite) if r["result"].get(ratio)]
        if not records:
            return []
        groups: dict[str, list[Record]] = {}
        for record in sorted(records, key=lambda record: record["case"][size]):
            groups.setdefault(by(record), []).append(record)
        ordered = sorted(groups, key=lambda name: ([int(number) for number in re.findall(r"\d+", name)], name))
        drawn = sorted(sorted(ordered, key=lambda name: -len(groups[name]))[: charts.SERIES], key=ordered.index)
        lines, dots = [], []
        for series, name in enumerate(drawn):
            points = tuple((float(r["case"][size]), float(r["result"][ratio])) for r in groups[name])
            lines.append(Line(name, points, series))
            dots += [Dot(a, b, f"{name}, {a:g}: {b:.1%} of {against}", series) for a, b in points]
        data = [
            (name, str(r["case"][size]), f"{r['result']['ms']:.4g}", f"{r['result'][ratio]:.1%}")
            for name in ordered
            for r in groups[name]
        ]
        x = charts.doublings(_EXTENTS[size], [dot.x for dot in dots])
        y = charts.linear(f"of {against}'s speed", [dot.y for dot in dots])
        chart = charts.Plot(heading, x, y, dots, lines)
        return [Figure(heading, f"The share of {against}'s speed in pairs; 1 is as fast.", chart,
                       Grid("", ("case", size, "ms", f"of {against}"), tuple(data)), origin_of(folder, records),
                       tuple(line.name for line in lines))]  # fmt: skip

    return make


def climb_by_size(suite: str, heading: str, ladder: str = "") -> Callable[[Path], list[Figure]]:
    """The share of cuBLAS's speed by size: of all rungs as cells, of the fastest and the peers as lines.

    What a suite of sizes has no record of is taken from `ladder`, the suite of one size.
    """

    def make(folder: Path) -> list[Figure]:
        records = [r for r in find_records(folder, suite) if r["result"].get("ratio")]
        if not records:
            return []
        known = {(who(record), record["case"]["m"]) for record in records}
        others = [r for r in find_records(folder, ladder) if r["result"].get("ratio")] if ladder else []
        others = [r for r in others if (who(r), r["case"]["m"]) not in known]
        told = f" {', '.join(map(str, sorted({r['case']['m'] for r in others})))}: suite {ladder}." if others else ""
        records += others
        sizes = sorted({record["case"]["m"] for record in records})
        made: dict[str, dict[int, Record]] = {}
        for record in records:
            made.setdefault(who(record), {})[record["case"]["m"]] = record
        peers = {who(record) for record in records if "peer" in record["case"]}
        rungs = [name for name in made if name not in peers]
        fastest = sorted(rungs, key=lambda name: made[name][max(made[name])]["result"]["ratio"])
        fastest = fastest[len(peers) - charts.SERIES :]
        drawn = [*(name for name in rungs if name in fastest), *sorted(peers)]
        lines, dots = [], []
        for series, name in enumerate(drawn):
            shares = {m: r["result"]["ratio"] for m, r in sorted(made[name].items())}
            lines.append(Line(name, tuple((float(m), share) for m, share in shares.items()), series))
            dots += [Dot(float(m), share, f"{name}, {m}: {share:.1%} of cuBLAS", series) for m, share in shares.items()]
        x = charts.doublings(_EXTENTS["m"], [float(size) for size in sizes])
        y = charts.linear("of cuBLAS's speed", [dot.y for dot in dots])
        cells = [
            (name, tuple(held[m]["result"]["ratio"] if m in held else None for m in sizes))
            for name, held in made.items()
        ]
        times = tuple(
            (name, *(f"{held[m]['result']['tflops']:.3g} ({held[m]['result']['ms']:.3g} ms)" if m in held else "-"
                     for m in sizes))
            for name, held in made.items()
        )  # fmt: skip
        library = {m: r["result"] for held in made.values() for m, r in held.items()}
        cublas = tuple(f"{library[m]['tflops'] / library[m]['ratio']:.3g} ({library[m]['reference_ms']:.3g} ms)"
                       for m in sizes)  # fmt: skip
        if any(None in shares for _, shares in cells):
            told += " Empty: not measured."
        origin = origin_of(folder, records)
        return [
            Figure(heading, "Each rung's share of cuBLAS's speed, m = n = k across. Green: as fast, or faster." + told,
                   charts.Heat(heading, [str(m) for m in sizes], cells),
                   Grid("", ("TFLOP/s", *map(str, sizes)), (("cuBLAS", *cublas), *times)), origin),
            Figure(f"{heading}: the fastest", f"The rungs that are fastest at {sizes[-1]}, next to other libraries.",
                   charts.Plot(f"{heading}: the fastest", x, y, dots, lines),
                   Grid("", ("of cuBLAS", *map(str, sizes)),
                        tuple((name, *("-" if share is None else f"{share:.1%}" for share in shares))
                              for name, shares in cells if name in drawn)), origin, tuple(drawn)),
        ]  # fmt: skip

    return make


def landscape(suite: str, heading: str, part: landscapes.Part | None = None) -> Callable[[Path], list[Figure]]:
    """Every config that was measured, as a share of the best one's speed: see landscapes.rows."""

    def make(folder: Path) -> list[Figure]:
        records = find_records(folder, suite)
        found = landscapes.rows(records, part)
        if not found:
            return []
        ticks = [
            (row.name, [(share, f"{row.name}: {text}, {us:g} us, {share:.1%}") for text, us, share in row.configs])
            for row in found
        ]
        words = "Each tick is a config, placed by its share of the best one's speed: how much the choice matters."
        if part:
            words += f" {', '.join(dict.fromkeys(row.product for row in found))}: a row per tile."
        chart = charts.Strips(heading, ticks, "share of the best config's speed")
        data = Grid("", landscapes.NAMES, tuple(row.cells for row in found))
        return [Figure(heading, words, chart, data, origin_of(folder, records))]

    return make
