"""Commands in fenced blocks of the pages: each is one that the command line takes, options and all."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from tilewright.cli.app import app

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "CONTRIBUTING.md", *(str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("docs/**/*.md"))))


def commands(text: str) -> Iterator[str]:
    """The commands in fenced blocks of shells, and in indented ones."""
    fence = ""
    for line in text.splitlines():
        if line.startswith("```"):
            fence = "" if fence else line
        elif fence in ("```", "```bash", "```sh") if fence else line.startswith("    tilewright "):
            for part in re.split(r"&&|\||;", line):
                if part.strip().startswith("tilewright "):
                    yield part.strip()


def take(command: Any, words: list[str]) -> None:
    """Parse the words as the command line would, and run nothing. Raises what it would raise."""
    while hasattr(command, "commands"):
        command, words = command.commands[words[0]], words[1:]
    if "--help" not in words:
        command.make_context(command.name, words)


@pytest.mark.parametrize("page", [page for page in PAGES if next(commands((ROOT / page).read_text()), None)])
def test_every_command_of_a_page_is_taken(page):
    for text in commands((ROOT / page).read_text()):
        words = [word for word in shlex.split(text, comments=True)[1:] if not word.startswith((">", "2>"))]
        try:
            take(typer.main.get_command(app), words)
        except Exception as error:
            if re.search(r"file '\w+\.cu' does not exist", str(error)):  # the reader's own
                continue
            pytest.fail(f"{page}: {text}: {type(error).__name__}: {error}")


def test_a_command_that_does_not_exist_is_found():
    with pytest.raises(KeyError):
        take(typer.main.get_command(app), ["clim", "gemm"])
    with pytest.raises(Exception, match="--sizes"):
        take(typer.main.get_command(app), ["explain", "--sizes", "4096"])
