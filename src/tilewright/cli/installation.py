"""Commands about the installation: doctor, cache."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from .console import console
from .options import Json

cache_app = typer.Typer(no_args_is_help=True, help="The cache of compiled kernels.")


_NARROW = 20
"""Rows of a finding are no shorter, however narrow the terminal."""


def doctor(json_file: Json = None) -> None:
    """Say what was found here, what is missing, and how to get it."""
    from rich.text import Text

    from ..lab.doctor import examine
    from ..lab.record import json_result

    with json_result(json_file) as write:
        findings, out = examine(), console()
        indent = 7 + max(len(finding.name) for finding in findings)
        for finding in findings:
            mark = ("yes", "green") if finding.found else ("no ", "red" if finding.required else "yellow")
            told = f"  {finding.name}".ljust(indent - 3)
            rows = _rows([finding.detail, finding.advice], out.width, indent)
            if rows and rows[0].startswith(" " * indent):
                told += rows.pop(0).strip()
            out.print(Text.assemble(mark, "\n".join([told.rstrip(), *rows])), soft_wrap=True)
        write([asdict(finding) for finding in findings])
    if any(not finding.found and finding.required for finding in findings):
        raise typer.Exit(1)


def _rows(paragraphs: Sequence[str], width: int, indent: int) -> list[str]:
    """The words of paragraphs in rows that start at `indent`, or further left where a path needs it: none is broken."""
    room = max(width - indent, _NARROW)
    rows = [
        row
        for paragraph in filter(None, paragraphs)
        for row in textwrap.wrap(paragraph, room, break_long_words=False, break_on_hyphens=False)
    ]
    return [" " * max(min(indent, width - len(row)), 0) + row for row in rows]


@cache_app.command("info", epilog="Example:  tilewright cache info")
def cache_info(json_file: Json = None) -> None:
    """Say where the cache is, how many kernels it holds, how large it is and may become."""
    from ..jit import limits
    from ..jit.compile import kernel_cache
    from ..lab.record import json_result

    with json_result(json_file) as write:
        cache = kernel_cache()
        kernels, size, most = len(cache.keys()), cache.size(), limits.cache_bytes()
        print(f"{cache.folder}: {kernels} kernels, {size / 1e6:.1f} MB of at most {most / 1e6:.0f} MB")
        write({"folder": str(cache.folder), "kernels": kernels, "bytes": size, "most_bytes": most})


@cache_app.command("clear", epilog="Example:  tilewright cache clear")
def cache_clear(json_file: Json = None) -> None:
    """Remove every compiled kernel."""
    from ..jit.compile import kernel_cache
    from ..lab.record import json_result

    with json_result(json_file) as write:
        count = kernel_cache().clear()
        print(f"{count} kernels removed")
        write({"removed": count})


@cache_app.command("export", epilog="Example:  tilewright cache export kernels.zip")
def cache_export(
    archive: Annotated[Path, typer.Argument(help="The zip file to write.")], json_file: Json = None
) -> None:
    """Write all compiled kernels to an archive."""
    from ..jit.compile import kernel_cache
    from ..lab.record import json_result

    with json_result(json_file, [archive]) as write:
        count = kernel_cache().export(archive)
        print(f"{count} kernels in {archive}")
        write({"file": str(archive), "kernels": count})


@cache_app.command("import", epilog="Example:  tilewright cache import kernels.zip")
def cache_import(
    archive: Annotated[Path, typer.Argument(help="A file that `cache export` wrote.")], json_file: Json = None
) -> None:
    """Take over the kernels of an archive. They are machine code: import only what you trust."""
    from ..jit.compile import kernel_cache
    from ..lab.record import json_result

    with json_result(json_file, [archive]) as write:
        count = kernel_cache().load_archive(archive)
        print(f"{count} kernels taken over from {archive}")
        write({"file": str(archive), "kernels": count})
