"""The rungs of grouped products: those of products, with blocks that find their tiles by the groups' ends."""

from __future__ import annotations

from dataclasses import replace

from ..errors import ConfigRejected
from ..gemm.rung import Rung
from ..gemm.rungs import find_rung


def _over_groups(of: str, id: str, teaches: str, levels: tuple[str, ...] = ()) -> Rung:
    return replace(
        find_rung(of), id=id, teaches=teaches, include=f"grouped/{id}.cuh", entry="grouped", stays=True, levels=levels
    )


GROUPED_RUNGS: tuple[Rung, ...] = (
    _over_groups("h11", "g01_mma", "h11 over groups: blocks stay and find their tiles on the device", ("slices_k",)),
    _over_groups("h13", "g02_wgmma", "wgmma: the next tile's first copies, of any group, run during stores"),
    _over_groups("h14", "g03_tma", "TMA and roles: copies run over a group's end, where no test is needed"),
    _over_groups("f12", "g04_ffma", "f12 over groups: float32 operands"),
)
_G01, _G02, _G03, _G04 = GROUPED_RUNGS
OVER = {
    "h11_mma_multistage": _G01, "h12_wgmma": _G02, "h13_persistent": _G02, "h14_tma": _G03, "f12_multistage": _G04,
}  # fmt: skip
"""By the rung of products whose configs it takes."""


def rungs_for(dtype: str) -> tuple[Rung, ...]:
    """The rungs that multiply `dtype`, in climbing order."""
    return tuple(rung for rung in GROUPED_RUNGS if dtype in rung.dtypes)


def find_grouped_rung(name: str) -> Rung:
    """The rung by its id or the id's number. Raises ConfigRejected with the known ids."""
    for rung in GROUPED_RUNGS:
        if name in (rung.id, rung.id.split("_")[0]):
            return rung
    known = ", ".join(rung.id for rung in GROUPED_RUNGS)
    raise ConfigRejected(f"rung {name!r} is not known to grouped products. Known: {known}.")
