"""The commands' voice: results to stdout, 100 columns wide at most, everything else to stderr."""

from __future__ import annotations

import contextlib
import os
import sys
import textwrap
import time
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 100
PATIENCE_S = 2.0
"""Work shorter than this shows no progress bar."""


def console(stderr: bool = False) -> Console:
    """A console that never writes wider than WIDTH: the terminal's width if that is less."""
    from rich.console import Console

    found = Console(stderr=stderr, highlight=False, soft_wrap=False)
    return Console(stderr=stderr, highlight=False, width=min(WIDTH, found.width) if found.is_terminal else WIDTH)


def show(title: str, tables: Sequence[Any], legend: str = "") -> None:
    """Print tables that belong together, and what their columns mean."""
    out = console()
    longest = max(map(len, title.split()), default=0)  # a path is not broken
    out.print(title, style="bold", markup=False, soft_wrap=longest > out.width // 2)
    for number, table in enumerate(tables):
        if number:
            out.print()
        out.print(table)
    if legend:
        out.print(legend, style="dim", markup=False)


def say(text: str, indent: int = 0) -> None:
    """Print lines of results: broken between words on a terminal, each with `indent` more blanks from its second row;
    as they are elsewhere."""
    if sys.stdout is not None and sys.stdout.isatty():
        width = console().width
        text = "\n".join(
            textwrap.fill(
                line, width, subsequent_indent=" " * (len(line) - len(line.lstrip()) + indent),
                break_long_words=False, break_on_hyphens=False,
            ) for line in text.splitlines()
        )  # fmt: skip
    print(text)


def note(text: str) -> None:
    """Print a line to stderr; nothing where it is closed or full."""
    if sys.stderr is not None:
        try:
            print(text, file=sys.stderr, flush=True)
        except OSError:
            discard(sys.stderr)


def discard(stream: Any) -> None:
    """Send what is left for an output stream nowhere, so that it does not raise once more at exit."""
    with contextlib.suppress(OSError, AttributeError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class Progress:
    """A bar on stderr once the work has lasted PATIENCE_S; none where stderr is not a terminal.

    Use as a context manager; `show(done, text)` says how many of `total` units are done and what runs now.
    """

    def __init__(self, total: float | None) -> None:
        self.total = total
        self.started = time.monotonic()
        self.bar: Any = None
        self.task: Any = None
        self.wanted = sys.stderr is not None and sys.stderr.isatty()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def show(self, done: float | None, text: str) -> None:
        if not self.wanted:
            return
        if self.bar is None:
            if time.monotonic() - self.started < PATIENCE_S:
                return
            from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bar

            columns = (BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
            self.bar = Bar(*columns, console=console(stderr=True), transient=True)
            self.bar.start()
            self.task = self.bar.add_task(text, total=self.total)
        self.bar.update(self.task, description=text, completed=done)

    def blocks(self, done: int, total: int) -> None:
        """Show that so many of a launch's blocks have run; `total` of the bar is 1."""
        self.show(done / total, f"{done} of {total} blocks")

    def print(self, text: str) -> None:
        """A line of results to stdout, above the bar where there is one."""
        if self.bar is not None:
            self.bar.stop()
        print(text, flush=True)
        if self.bar is not None:
            self.bar.start()


def plain_warnings() -> None:
    """Warnings as one line, without the place in our code that gave them."""

    def show(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, file: Any = None, line: Any = None
    ) -> None:
        note(f"warning: {message}")

    warnings.showwarning = show
