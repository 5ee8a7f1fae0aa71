"""`tilewright rungs` lists what each rung teaches; `tilewright show` prints one with its source."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .console import console, say
from .options import Json

if TYPE_CHECKING:
    from ..attn.rung import AttentionRung
    from ..gemm.rung import Rung


def rungs(json_file: Json = None) -> None:
    """List every rung of the ladders, in climbing order, with what it teaches."""
    from rich.table import Table
    from rich.text import Text

    from ..attn.rungs import EVERY_RUNG
    from ..gemm.rungs import GEMM_RUNGS
    from ..lab.record import json_result

    with json_result(json_file) as write:
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
        for name in ("rung", "types", "what is new over the rung below"):
            table.add_column(name, overflow="fold")
        every: list[Rung | AttentionRung] = [*GEMM_RUNGS, *EVERY_RUNG]
        for rung in every:
            table.add_row(rung.id, _types(rung), Text(rung.teaches))
        console().print(table)
        write([_as_data(rung) for rung in every])


def show(
    name: Annotated[str, typer.Argument(metavar="RUNG", help="A rung: f09, h13_persistent, a17.")],
    json_file: Json = None,
) -> None:
    """Print what a rung teaches, its default config and its source."""
    from ..attn.rung import AttentionRung
    from ..attn.rungs import EVERY_RUNG, find_attention_rung
    from ..gemm.rungs import find_rung
    from ..jit.source import CUDA_ROOT
    from ..lab.record import json_result
    from ..report.terminal import config_legend

    attention = any(name in (rung.id, rung.id.split("_")[0]) for rung in EVERY_RUNG)
    rung: Rung | AttentionRung = find_attention_rung(name) if attention else find_rung(name)
    config = next(c for c in rung.defaults if c.d_head == 128) if isinstance(rung, AttentionRung) else rung.default
    path = CUDA_ROOT / rung.include
    with json_result(json_file) as write:
        say(f"{rung.id} ({_types(rung)}): {rung.teaches}")
        say(f"config  {config}", indent=8)
        say(f"        {config_legend(config)}")
        print(f"source  {path}\n")
        source = _own_source(path.read_text(encoding="utf-8"), rung.id)
        print(source, end="")
        write(_as_data(rung) | {"config": str(config), "file": str(path), "source": source})


def _own_source(text: str, rung: str) -> str:
    """The part of a file under the rung's own heading; all of a file without one."""
    parts = re.split(r"^(?=// ---- )", text, flags=re.MULTILINE)
    return next((part for part in parts if part.startswith(f"// ---- {rung} ")), text)


def _types(rung: Any) -> str:
    """The types of its operands, and how it multiplies float32 where that is not as it is."""
    types = ", ".join(getattr(rung, "dtypes", ("bf16", "f16")))
    return types if getattr(rung, "precision", "ieee") == "ieee" else f"{types} as {rung.precision}"


def _as_data(rung: Any) -> dict[str, Any]:
    return {"rung": rung.id, "types": _types(rung), "teaches": rung.teaches}
