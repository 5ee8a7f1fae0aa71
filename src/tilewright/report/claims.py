"""The documents' statements as Markdown, each with what was found here."""

from __future__ import annotations

from pathlib import Path

from ..lab.statements import TITLES, Verdict, claims
from ..lab.statements.statement import figure


def markdown(folder: Path) -> str:
    """One table per document, from the records in a folder, and how many statements hold.

    Which records are stale is left to `tilewright claims`: a page with so many sources would change with every kernel.
    """
    table = claims(folder=folder)
    lines = [f"{len(table.verdicts)} statements: {table.summary}.", ""]
    for document, title in TITLES.items():
        lines += [
            f"### {document}: {title}",
            "",
            "| id | statement | theirs | here | verdict | from |",
            "|" + "---|" * 6,
        ]
        lines += [_row(verdict) for verdict in table.verdicts if verdict.document == document]
        lines.append("")
    return "\n".join(lines).rstrip()


def _row(verdict: Verdict) -> str:
    theirs, ours = figure(verdict.theirs, verdict.unit), figure(verdict.ours, verdict.unit)
    cells = (verdict.id, verdict.said, theirs, ours, verdict.words, verdict.origin)
    return "| " + " | ".join(cell.replace("|", "\\|").replace("*", "") for cell in cells) + " |"
