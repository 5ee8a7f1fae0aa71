"""Commands of the pages: each is one that the command line takes, options and all, and runs as it stands."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from tilewright.cli import main
from tilewright.cli.app import app
from tilewright.lab.starters import new_kernel

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


UNTRIED = re.compile(
    r"tilewright (?:bench|profile|tune --(?:shapes|attention)(?!.*--dry-run)"  # a GPU
    r"|report --write|tune --export|tune --merge"  # changes the pages; results of a GPU
    r"|ladder(?! gemm --rungs f01\.\.f03)|inspect a09 --space"  # minutes; other tests climb
    r"|emulate (?:mean|softmax_forward|axpy)\.cu|inspect mine\.cu --entry 'scale)"  # the reader's own files
)
"""Commands that are only parsed here."""


@pytest.mark.parametrize("page", [page for page in PAGES if next(commands((ROOT / page).read_text()), None)])
def test_every_command_of_a_page_runs_as_it_stands(page, tmp_path, monkeypatch, capsys):
    """In the page's order, in one folder; a kernel that does not pass its check yet is an answer too."""
    monkeypatch.chdir(tmp_path)
    new_kernel(tmp_path / "mine.cu")
    for beside in (ROOT / page).parent.glob("*.cu"):
        shutil.copy(beside, tmp_path)
    done = set()
    for text in commands((ROOT / page).read_text()):
        if text in done or UNTRIED.match(text):
            continue
        done.add(text)
        words = shlex.split(text, comments=True)[1:]
        if words[:2] == ["new", "mine.cu"]:
            (tmp_path / "mine.cu").unlink()
        monkeypatch.setattr(sys, "argv", ["tilewright", *words])
        with pytest.raises(SystemExit) as left:
            main()
        assert left.value.code in ((0, None, 1) if words[0] == "check" else (0, None)), (text, capsys.readouterr().err)


def sessions() -> Iterator[tuple[str, list[str]]]:
    """(command, the lines shown of its output) after each `$ tilewright` of docs/lab.md."""
    shown: list[str] | None = None
    for line in [*(ROOT / "docs" / "lab.md").read_text().splitlines(), ""]:
        if line.startswith("    $ tilewright "):
            shown = []
            yield line.removeprefix("    $ tilewright "), shown
        elif shown is not None and (not line or line.startswith("    ")):
            shown.append(" ".join(line.split()))
        else:
            shown = None


@pytest.mark.parametrize(("command", "shown"), list(sessions()), ids=[command for command, _ in sessions()])
def test_a_command_prints_what_its_page_shows(command, shown, tmp_path, monkeypatch, capsys):
    """Each shown line in order; `...` stands for others."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    new_kernel(tmp_path / "mine.cu", "transpose")
    monkeypatch.setattr(sys, "argv", ["tilewright", *shlex.split(command)])
    with pytest.raises(SystemExit):
        main()
    printed = iter([" ".join(line.split()) for line in capsys.readouterr().out.splitlines()])
    for line in filter(None, shown):
        assert line == "..." or line in printed, f"{line!r} is not printed, or not after what stands above it"


def test_a_command_that_does_not_exist_is_found():
    with pytest.raises(KeyError):
        take(typer.main.get_command(app), ["clim", "gemm"])
    with pytest.raises(Exception, match="--sizes"):
        take(typer.main.get_command(app), ["explain", "--sizes", "4096"])
