"""The common part of the ladders' commands: where the rungs run, what the emulator's tables show, what becomes of
records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import typer

from .console import Progress, console, note, say, show

if TYPE_CHECKING:
    from ..gpus import Gpu
    from ..lab.ladder import AnyStep


LONG_S = 60.0
"""A climb that takes longer is announced."""


def in_minutes(seconds: float) -> str:
    """A time in words: a minute, so many minutes, or so many hours."""
    minutes = round(seconds / 60)
    if minutes > 90:
        return f"{round(minutes / 60)} hours"
    return "a minute" if minutes <= 1 else f"{minutes} minutes"


def why_no_gpu() -> str:
    """See jit.device.why_no_gpu; the driver's bindings are loaded only when it is asked."""
    from ..jit import device

    return device.why_no_gpu()


def begin(no_gpu: str, asked_for: bool) -> None:
    """Say why the emulator runs the rungs, unless it was asked for."""
    if no_gpu and not asked_for:
        say(f"{no_gpu}: every rung runs on the emulator, which knows what a kernel does but no times.")


def show_emulated(
    title: str, steps: Sequence[AnyStep], gpu: Gpu, columns: Sequence[Any], suite: str
) -> list[dict[str, Any]]:
    """Climb on the emulator and print two tables: what the compiler says, and `columns` of what was executed."""
    from ..lab.ladder import climb_on_emulator
    from ..report.tables import COMPILER, terminal_tables
    from ..report.terminal import legend

    estimate = sum(step.emulation_seconds for step in steps)
    if estimate > LONG_S:
        note(f"This takes about {in_minutes(estimate)} on the emulator. Ctrl-C stops it; smaller sizes take less.")
    with Progress(len(steps)) as progress:
        records = climb_on_emulator(steps, gpu, suite, say=progress.show)
    width = console().width
    heading = f"{title}, compiled for {gpu.name} ({gpu.arch})"
    show(heading, terminal_tables(COMPILER, records, width), legend([name for name, _ in COMPILER]))
    print()
    show("Executed on the emulator:", terminal_tables(columns, records, width), legend([name for name, _ in columns]))
    return records


def keep(records: Sequence[dict[str, Any]], write: Callable[[Any], None]) -> None:
    """Hand the records to `write`, and name what is wrong. Raises typer.Exit(1) when anything is."""
    from ..lab.record import went_wrong, who

    write(records)
    wrong = [record for record in records if went_wrong(record)]
    for record in wrong:
        note(f"WRONG: {who(record)}: {record['result']['reason']}")
    if wrong:
        raise typer.Exit(1)
