"""Regions of README and docs that tables are written into: `<!-- records: SUITE -->` to `<!-- end -->`."""

from __future__ import annotations

import re
from pathlib import Path

from ..errors import TilewrightError
from ..lab.fingerprint import why_stale
from ..lab.record import find_records
from ..lab.suite import read_suite
from . import claims, instructions
from .said import fill_figures
from .tables import PAGES, markdown

CLAIMS = "claims"
"""The region of the documents' statements, which are held against records of many suites."""
INSTRUCTIONS = "instructions"
"""The region of what the emulator executes, which needs no record."""
_REGION = re.compile(r"(<!-- records: ([\w.-]+)((?: \w+)*) -->\n)((?:(?!<!-- records:).)*?)(<!-- end -->)", re.DOTALL)


def fill(text: str, folder: Path) -> str:
    """`text` with every `<!-- records: SUITE -->` region made anew from the records in `folder`, and figures (said.py).

    `<!-- records: SUITE f01 f02 -->` takes the rows of these rungs alone, `<!-- records: SUITE on H100 -->` what was
    measured on that GPU. Suites stand in the folder above. A suite
    without records leaves its region saying so. Raises TilewrightError for a suite that has no page, and for a region
    that is not closed.
    """
    opened, closed = text.count("<!-- records:"), len(_REGION.findall(text))
    if opened != closed:
        raise TilewrightError(
            f'{opened} regions are opened, {closed} are whole. Write each as "<!-- records: SUITE -->", a line break, '
            'and later "<!-- end -->".'
        )

    def region(match: re.Match[str]) -> str:
        suite, words = match[2], match[3].split()
        gpu = words[1] if words[:1] == ["on"] else ""
        rungs = () if gpu else tuple(words)
        if suite == CLAIMS:
            return f"{match[1]}{claims.markdown(folder)}\n{match[5]}"
        if suite == INSTRUCTIONS:
            return f"{match[1]}{instructions.markdown()}\n{match[5]}"
        if suite not in PAGES:
            raise TilewrightError(f"no page is defined for suite {suite!r}. There are: {', '.join(PAGES)}.")
        records, made_by = find_records(folder, suite, gpu), folder.parent / f"{suite}.json"
        if rungs:
            records = [record for record in records if str(record["case"].get("rung")).startswith(rungs)]
        definition = read_suite(made_by) if made_by.is_file() else None
        stale = [why_stale(record, definition) for record in records]
        body = markdown(PAGES[suite], records, stale) if records else f"*No record of suite {suite} yet.*"
        return f"{match[1]}{body}\n{match[5]}"

    return fill_figures(_REGION.sub(region, text), folder)


def pages_of(root: Path) -> list[Path]:
    """README.md and the pages of docs below `root`. Raises TilewrightError when there are none."""
    pages = [path for path in (root / "README.md", *sorted((root / "docs").rglob("*.md"))) if path.is_file()]
    if not pages:
        raise TilewrightError(f"{root} holds neither README.md nor docs/*.md. Name the repository with --root.")
    return pages
