"""The parts of the page that answer clicks: their places in the HTML, their data, and the script built from page/."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..gpus import GPUS
from ..lab.record import find_records
from ..lab.rooflines import board_of, roofline
from . import traces
from .charts import json_element

SCRIPT = Path(__file__).with_name("built") / "page.js"
PARTS = {
    "Step through a kernel": (
        "stepper",
        "What one block does, instruction by instruction, as the emulator ran it. Choose a kernel, a warp and a lane; "
        "arrow keys step. The address of this page keeps the choice.",
    ),
    "Threads and elements": (
        "play-threads",
        "Which element a thread computes follows from its number. Two ways to count, and the sectors of 32 bytes that "
        "a warp asks for under each.",
    ),
    "Tiles": (
        "play-tiles",
        "A block's tile of C, what a thread holds of it, and the loads, registers and bytes that follow: from one "
        "element per thread over columns and outer products to warp tiles.",
    ),
    "Banks and swizzles": (
        "play-banks",
        "A tile in shared memory. Each colour is one of 32 banks; a bank serves one word per wavefront. Change the "
        "access, the padding and the swizzle.",
    ),
    "A swizzle as strides": (
        "play-strides",
        "Eight threads read eight units of a swizzled row, one per step. The xor that finds a unit can be written as "
        "signed strides that the compiler knows.",
    ),
    "Roofline": (
        "play-roof",
        "How fast a board can be at an intensity, where a tile of yours lies, and where the rungs were measured.",
    ),
}
"""Title -> (the id of what the script fills, words above it)."""
_WITHOUT = "<noscript><p>This part needs JavaScript.</p></noscript>"


def part(title: str) -> str:
    """Return what stands under a title until the script fills it."""
    name, words = PARTS[title]
    return f'<p>{words}</p>{_WITHOUT}<div id="{name}"></div>'


def roofs(folder: Path) -> dict[str, Any]:
    """The roofs of every known board, and the rungs that the records of a folder have on them."""
    boards = []
    for name in GPUS:
        found = {kind: roofline(name, kind) for kind in ("f32", "bf16")}
        peaks = {kind: report.peak_tflops for kind, report in found.items()}
        boards.append({"name": name, "gb_s": found["f32"].dram_gb_s, "peaks": peaks})
    rungs = []
    for suite, kind in (("fp32-ladder", "f32"), ("bf16-ladder", "bf16")):
        records = [r for r in find_records(folder, suite) if r["result"].get("tflops") and "rung" in r["case"]]
        if not records or not board_of(records[0]):
            continue
        report = roofline(board_of(records[0]), kind, records=records)
        rungs += [
            {"name": p.name, "kind": kind, "board": report.gpu, "intensity": p.tile_intensity, "tflops": p.tflops}
            for p in report.points if p.tile_intensity and p.tflops
        ]  # fmt: skip
    return {"boards": boards, "rungs": rungs}


def scripts(folder: Path, kernels: Sequence[Path] = ()) -> str:
    """The data and the script, at the end of the page. `kernels`: files whose traces come first."""
    data = {"traces": traces.with_files(kernels), "roofs": json.dumps(roofs(folder))}
    told = "".join(json_element(text, f' id="{name}"') for name, text in data.items())
    licenses = SCRIPT.with_name("licenses.md").read_text(encoding="utf-8")  # ask to be in all copies
    return f"<!--\n{licenses}-->{told}<script>{SCRIPT.read_text(encoding='utf-8')}</script>"
