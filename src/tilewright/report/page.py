"""One HTML file: a stepper through kernels, and charts of the records with the documents' claims.

Everything is in the file: no network. Charts are data here; they are drawn, like all that answers clicks, by a script
built from page/ (TypeScript, Vite) and shipped as it is built. Each chart has its figures in a table below it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

from ..errors import TilewrightError
from ..lab.ladder import Progress, silent
from ..lab.record import who
from ..lab.shown import Grid
from ..lab.statements import TITLES, claims
from ..lab.statements.statement import figure
from . import cards, charts, interactive, landscapes
from .figures import (
    Figure,
    Record,
    accesses,
    banks_of_a_tile,
    by_size,
    climb_by_size,
    ladder,
    landscape,
    origin_of,
    stalls,
    stalls_of_all,
    under_the_roofs,
)
from .markup import table_of, whole_page


def build(folder: Path, kernels: Sequence[Path] = (), say: Progress = silent) -> str:
    """The page from the records of a folder, and of kernel files to step through first.

    What has no record is left out. Raises TilewrightError without any record, and what a kernel file raises.
    """
    say(None, "charts")
    made = _figures(folder)
    if all(figure.origin.startswith("Calculated") for _, figures in made for figure in figures):
        raise TilewrightError(f"{folder} holds no records that the page shows. Omit --records for those that ship.")
    say(None, "statements")
    statements = _claims(folder)
    say(None, "kernels")
    scripts = interactive.scripts(folder, kernels)
    say(None, "rungs")
    return _html(made, statements, scripts, cards.cards(folder, origin_of))


def _figures(folder: Path) -> list[tuple[str, list[Figure]]]:
    """(section, its figures); sections without one are left out."""
    made = ((title, [figure for part in parts for figure in part(folder)]) for title, parts in SECTIONS)
    return [(title, figures) for title, figures in made if figures]


def charts_of(folder: Path) -> dict[str, charts.Chart]:
    """Heading -> every chart that the records of a folder allow."""
    return {figure.heading: figure.chart for _, figures in _figures(folder) for figure in figures}


# --- what is shown ----------------------------------------------------------------------------------------------------


def _thread_shape(record: Record) -> str:
    config = record["case"]["config_text"]
    pieces, thread = config.split("warp ")[1].split(" ")[0].split("/")[1], config.split("thread ")[1].split(" ")[0]
    return f"{thread} in {pieces}"


def _fragments(record: Record) -> str:
    pieces = {"4x4": "16 x 16", "2x8": "32 x 8", "8x2": "8 x 32"}
    return f"{who(record).split('_')[0]}, {pieces[record['case']['config_text'].split('/')[1].split(' ')[0]]}"


def _loads(record: Record) -> str:
    return str(record["case"]["config_text"]).replace(": load_", " ").replace("_fragments", "")


def _swizzled(record: Record) -> str:
    return f"{who(record).split('_')[0]} {_loads(record)}"


def _warp_tile(record: Record) -> str:
    name, config = who(record), str(record["case"]["config_text"])
    return name if "warp" not in config else f"{name.split('_')[0]} {config.split('warp ')[1].removesuffix(' group 8')}"


def _layout(record: Record) -> str:
    return str(record["case"]["layout"]).upper()


def _attention_case(record: Record) -> str:
    case = record["case"]
    shared = "" if case["heads_kv"] == case["heads_q"] else f", {case['heads_kv']} heads of keys"
    return f"d_head {case['d_head']}{', causal' if case['is_causal'] else ''}{shared}"


SECTIONS: tuple[tuple[str, tuple[Callable[[Path], list[Figure]], ...]], ...] = (
    ("Ladders", (
        ladder("fp32-ladder", "fp32, from a naive loop", "C = A B at 4096 cubed: each rung, one idea.", "cuBLAS"),
        ladder("bf16-ladder", "bf16 on tensor cores", "The same in bf16; h12 and above multiply by wgmma.", "cuBLAS"),
        ladder("attention-ladder", "Attention", "4096 queries and keys, d_head 128, batch 16, 16 heads.",
                "FlashAttention-2"),
        ladder("attention-hopper", "Attention on Hopper",
                "wgmma and TMA, by roles. 4096 queries and keys, d_head 128, batch 4, 16 heads.", "cuDNN"),
    )),
    ("Experiments", (
        ladder("fp32-f08-threads", "What a thread computes, and in how many pieces",
                "f08, 128 elements per thread: one article's fourteen shapes.", "cuBLAS", _thread_shape),
        ladder("fp32-cp-async", "cp.async by itself",
                "128 x 128 x 8, 256 threads: one buffer, two by way of registers, two by cp.async.", "cuBLAS"),
        ladder("fp32-wide-loads", "Vectors from shared memory", "Single loads of both operands, vectors of B, of both.",
                "cuBLAS"),
        ladder("bf16-wmma-shapes", "wmma's three shapes", "The same 64 x 64 of a warp, made of other fragments.",
                "cuBLAS", _fragments),
        ladder("attention-buffer", "Fragments loaded a step ahead", "a17 with +buffer and without, for five tiles.",
                "FlashAttention-2", _loads),
        ladder("attention-swizzle", "Attention without a swizzle", "a07 and the same kernel unswizzled, for two tiles.",
                "FlashAttention-2", _swizzled),
        ladder("bf16-simt", "SIMT kernels on bf16", "f02 and f03 on 16-bit operands, and h01 by its warps' tiles.",
                "cuBLAS", _warp_tile),
        ladder("bf16-wmma-buffers", "wmma with two buffers", "One buffer, two by way of registers, two by cp.async.",
                "cuBLAS"),
    )),
    ("What warps wait for", (
        stalls("fp32-stalls", "Stalls of the fp32 rungs"), stalls("fp32-stalls", "Stalls of f05 and above", "f05"),
        stalls("bf16-stalls", "Stalls of the bf16 rungs"), stalls("attention-stalls", "Stalls of the attention rungs"),
        stalls("attention-hopper-stalls", "Stalls of the attention rungs on Hopper"), stalls_of_all,
    )),
    ("Memory accesses", (
        accesses("counters", "sectors_per_load", "Sectors per global load",
                  "A warp's load of 32 floats needs 4 sectors; of 32 vectors of four, 16."),
        accesses("counters", "wavefronts_per_shared_load", "Wavefronts per shared load",
                  "A warp's load of 32 words needs one; of vectors, up to four."),
        accesses("bf16-counters", "wavefronts_per_shared_load", "Wavefronts per shared load, 16 bits",
                  "ldmatrix.x4 needs four; h08's lines conflict, h09 swizzles them."),
    )),
    ("Shared memory", (banks_of_a_tile,)),
    ("Rooflines", (
        under_the_roofs("fp32-ladder", "f32", "fp32 rungs under the roofs"),
        under_the_roofs("bf16-ladder", "bf16", "bf16 rungs under the roofs"),
    )),
    ("Sizes", (
        climb_by_size("fp32-ladder-sizes", "fp32 rungs by size", "fp32-ladder"),
        climb_by_size("bf16-ladder-sizes", "bf16 rungs by size", "bf16-ladder"),
        climb_by_size("fp16-ladder-sizes", "fp16 rungs by size"),
        by_size("fp32-f12", "m", "fp32 products by size", _layout, "cuBLAS"),
        by_size("bf16-cubes", "m", "Small bf16 products by size", _layout, "cuBLAS"),
        by_size("attention-sizes", "seq_q", "Attention on Ampere's instructions by length", _attention_case,
               "FlashAttention-2"),
        by_size("attention-planned", "seq_q", "Attention as planned by length", _attention_case, "cuDNN"),
    )),
    ("Tuning landscapes", (
        landscape("fp32-f12-sweep", "Configs of f12"),
        landscape("bf16-h17-sweep", "Configs of h17", landscapes.tile),
        landscape("attention-a24-sweep", "Configs of a24", landscapes.attention_tile),
    )),
)  # fmt: skip


# --- HTML -------------------------------------------------------------------------------------------------------------


def _figure(figure: Figure) -> str:
    keys = charts.legend(figure.keys) if figure.keys else ""
    table = table_of(figure.data, figure.heading)
    data = f"<details><summary>Figures of: {escape(figure.heading)}</summary>{table}</details>"
    words = f"<p>{escape(figure.words)}</p>"
    origin = f'<figcaption class="origin">{escape(figure.origin)}</figcaption>'
    drawn = f"<figure>{keys}{charts.place(figure.chart)}{origin}</figure>"
    return f"<h3>{escape(figure.heading)}</h3>{words}{drawn}{data}"


def _claims(folder: Path) -> str:
    """The documents' statements, one table each."""
    table = claims(folder=folder)
    parts = [f"<p>{len(table.verdicts)} statements of five documents: {escape(table.summary)}.</p>"]
    for document, title in TITLES.items():
        rows = tuple(
            (v.id, v.said, figure(v.theirs, v.unit), figure(v.ours, v.unit), v.words)
            for v in table.verdicts if v.document == document
        )  # fmt: skip
        grid = Grid("", ("id", "statement", "theirs", "here", "verdict"), rows)
        parts.append(f"<details><summary>{escape(f'{document}: {title}')}</summary>{table_of(grid, title)}</details>")
    return "".join(parts)


def _html(
    sections: Sequence[tuple[str, list[Figure]]],
    statements: str,
    scripts: str,
    rungs: Sequence[cards.Deck],
) -> str:
    parts = [(title, interactive.part(title)) for title in interactive.PARTS]
    if rungs:
        parts.append(("Rungs", cards.as_html(rungs)))
    parts += [(title, "".join(map(_figure, figures))) for title, figures in sections]
    parts.append(("What the documents say", statements))
    return whole_page(parts, scripts)
