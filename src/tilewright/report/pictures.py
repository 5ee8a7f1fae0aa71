"""The page's charts as files for README and docs: SVG that brings its own colours, light and dark."""

from __future__ import annotations

import re
from pathlib import Path

from .markup import style
from .page import charts_of

PICTURES = {
    "fp32-ladder.svg": "fp32, from a naive loop",
    "bf16-ladder.svg": "bf16 on tensor cores",
    "attention-ladder.svg": "Attention",
    "fp32-sizes.svg": "fp32 rungs by size",
    "bf16-sizes.svg": "bf16 rungs by size",
    "fp32-roofline.svg": "fp32 rungs under the roofs",
}
"""File in docs/pictures -> the heading of its chart."""


def pictures(folder: Path) -> dict[str, str]:
    """File name -> SVG, from the records of a folder; what has no record is left out."""
    known = charts_of(folder)
    return {name: standalone(known[heading]) for name, heading in PICTURES.items() if heading in known}


def standalone(drawing: str) -> str:
    """A chart with the page's style inside it, on its own background."""
    css = re.sub(r"/\*.*?\*/|\s+", " ", style(), flags=re.DOTALL).replace("<", "")
    width, height = re.search(r'viewBox="0 0 (\S+) (\S+)"', drawing).groups()  # type: ignore[union-attr]
    head = f'<style>{css}</style><rect width="{width}" height="{height}" fill="var(--paper)"/>'
    return drawing.replace("<title>", f"{head}<title>", 1) + "\n"
