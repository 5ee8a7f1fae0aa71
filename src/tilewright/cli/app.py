"""The tree of commands."""

from __future__ import annotations

from typing import Annotated

import typer

from .. import __version__
from . import (
    attention,
    banks,
    claims,
    emulate,
    exercise,
    explain,
    inspect,
    installation,
    ladder,
    occupancy,
    page,
    profile,
    records,
    roofline,
    rungs,
    tune,
)

app = typer.Typer(
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="GEMM and attention kernels for NVIDIA GPUs, rung by rung; on a GPU, or on the emulator without one.",
)


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        print(f"tilewright {__version__}")
        raise typer.Exit


@app.command("help", epilog="Example:  tilewright help bench")
def _help(
    context: typer.Context,
    command: Annotated[list[str] | None, typer.Argument(help="Such as bench, or ladder gemm.")] = None,
) -> None:
    """Print a command's help, as --help does."""
    whole = context.find_root()
    whole.command.main([*(command or ()), "--help"], whole.info_name, standalone_mode=False)


ladder.app.command(epilog=attention.EXAMPLE)(attention.attention)
app.add_typer(ladder.app, name="ladder")
app.command(epilog="Example:  tilewright rungs")(rungs.rungs)
app.command(epilog=rungs.SHOW_EXAMPLE)(rungs.show)
app.command(epilog=inspect.EXAMPLE)(inspect.inspect)
app.command(epilog=emulate.EXAMPLE)(emulate.emulate)
app.command(epilog=exercise.NEW_EXAMPLE)(exercise.new)
app.command(epilog=exercise.CHECK_EXAMPLE)(exercise.check)
app.command(epilog=explain.EXAMPLE)(explain.explain)
app.command(epilog=occupancy.EXAMPLE)(occupancy.occupancy)
app.command(epilog=profile.EXAMPLE)(profile.profile)
app.command(epilog=roofline.EXAMPLE)(roofline.roofline)
app.command(epilog=banks.EXAMPLE)(banks.banks)
app.command(epilog=claims.EXAMPLE)(claims.claims)
app.command(epilog=page.EXAMPLE)(page.page)
app.command(epilog=tune.EXAMPLES)(tune.tune)
app.command(epilog="Example:  tilewright doctor --json report.json")(installation.doctor)
app.add_typer(installation.cache_app, name="cache")
app.command(
    epilog="Examples:\n\n  tilewright bench fp32-ladder\n\n  tilewright bench --stale\n\n"
    "  tilewright bench mine.cu --against f09 --set n=4096"
)(records.bench)
app.command(epilog="Examples:\n\n  tilewright report --write\n\n  tilewright report fp32-ladder")(records.report)
