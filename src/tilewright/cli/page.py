"""`tilewright page` writes one HTML file: a stepper through kernels, drawings, and charts of the records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .console import Progress, say
from .options import Json

EXAMPLE = (
    "Examples:\n\n  tilewright page --out page.html\n\n  tilewright page --kernel mine.cu --out mine.html\n\n"
    "  tilewright page --out mine.html --records benchmarks/results"
)


def page(
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("page.html"),
    records: Annotated[
        Path | None, typer.Option(help="Folder of the records. Default: benchmarks/results, or the package's own.")
    ] = None,
    kernel: Annotated[
        list[Path] | None,
        typer.Option(help="Your .cu file with check lines (tilewright new), to step through; repeat."),
    ] = None,
    json_file: Json = None,
) -> None:
    """Write one HTML file that opens from disk: a stepper through kernels, drawings, charts of the records."""
    from ..lab.record import check_writable, json_result, write_text
    from ..lab.suite import benchmarks
    from ..report.page import build

    check_writable(out, kernel or ())
    with json_result(json_file, [out, *(kernel or ())]) as write:
        with Progress(None) as progress:
            text = build(records or benchmarks() / "results", kernel or (), progress.show)
        write_text(out, text)
        size, charts = len(text.encode()), text.count('<div class="chart">')
        say(f"{out}: {size / 1e6:.1f} MB, {charts} charts")
        write({"file": str(out), "bytes": size, "charts": charts})
