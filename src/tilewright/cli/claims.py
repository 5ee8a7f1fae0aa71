"""`tilewright claims` holds what the five documents say against the records that are here."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from ..errors import InvalidOperand, did_you_mean
from .console import Progress, console, say
from .options import Json

EXAMPLE = (
    "Examples:\n\n  tilewright claims\n\n  tilewright claims 002 --verdict differs\n\n"
    "  tilewright claims --json claims.json"
)
_VERDICTS = {"holds": "holds", "differs": "differs", "not-here": "not measurable here"}


def claims(
    document: Annotated[str | None, typer.Argument(help="000 to 004: one of them. Default: all.")] = None,
    verdict: Annotated[str | None, typer.Option(help="Only those: holds, differs or not-here.")] = None,
    json_file: Json = None,
) -> None:
    """Hold the documents' statements against our records: holds, differs because, or not measurable here because."""
    from ..lab.record import json_result
    from ..lab.statements import TITLES, ClaimTable
    from ..lab.statements import claims as judge
    from ..lab.statements.statement import figure

    if verdict is not None and verdict not in _VERDICTS:
        raise InvalidOperand(
            f"--verdict {verdict!r} is not one of {', '.join(_VERDICTS)}.{did_you_mean(verdict, _VERDICTS)}"
        )
    with json_result(json_file) as write:
        with Progress(1.0) as progress:
            table = judge(document, progress=progress.show)
        if verdict is not None:
            table = ClaimTable(tuple(each for each in table.verdicts if each.verdict == _VERDICTS[verdict]))
        last = ""
        for each in table.verdicts:
            if each.document != last:
                last = each.document
                console().print(f"{last}: {TITLES[last]}", style="bold", markup=False)
            say(f"{each.id}  {each.said}", indent=8)
            theirs, ours = figure(each.theirs, each.unit), figure(each.ours, each.unit)
            origin = "" if each.ours is None else f" ({each.origin}{', stale' if each.stale else ''})"
            say(f"        theirs {theirs}, here {ours}{origin}")
            say(f"        {each.words}")
        say(f"\n{len(table.verdicts)} statements: {table.summary}.")
        write([asdict(each) for each in table.verdicts])
