"""`--watch`: run again whenever a file changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import typer

from ..errors import TilewrightError
from .console import note


def run_on_changes(once: Callable[[], None], places: Sequence[Path]) -> None:
    """Run now, and again whenever one of the files changes (or one in a folder), until Ctrl-C. Errors are shown."""
    from ..emu.hazards import forget_files

    def stamps() -> list[tuple[str, int, int]]:
        paths = [path for place in places for path in (place.rglob("*") if place.is_dir() else (place,))]
        found = [(str(path), path.stat()) for path in paths if path.is_file()]
        return [(path, stat.st_mtime_ns, stat.st_size) for path, stat in found]

    try:
        while True:
            seen = stamps()
            forget_files()
            try:
                once()
            except typer.Exit:
                pass
            except TilewrightError as error:
                note(f"ERROR: {error}")
            note(f"Waiting for a change of {places[0]}. Ctrl-C ends.")
            while stamps() == seen:
                time.sleep(0.2)
    except KeyboardInterrupt:
        return
