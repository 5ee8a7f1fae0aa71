"""The rungs of grouped products: those of products, with blocks that find their tiles by the groups' ends."""

from __future__ import annotations

from dataclasses import replace

from ..errors import ConfigRejected
from ..gemm.config import GemmConfig, of_fields
from ..gemm.problem import GemmProblem
from ..gemm.rung import Rung
from ..gemm.rungs import find_rung


def _over_groups(of: str, id: str, teaches: str, levels: tuple[str, ...] = ()) -> Rung:
    return replace(
        find_rung(of), id=id, teaches=teaches, include=f"grouped/{id}.cuh", entry="grouped", stays=True, levels=levels,
        walks=None,
    )  # fmt: skip


TURNS = 64
"""Bytes of shared memory by which a block's warps learn their tiles, where they are drawn (cuda/tile/turns.cuh), and
whose turn it is (g05)."""


def _drawn(rung: Rung) -> Rung:
    """The rung with room for that, and results that leave by lanes unless a config says otherwise."""
    plain, check = rung.shared_bytes, rung.check

    def own_check(config: GemmConfig, problem: GemmProblem) -> str | None:
        if config.turns > 1 and config.threads != 256:
            return f"two warpgroups take turns, each with a tile of its own; the config has {config.threads // 128}"
        return check(config, problem)

    return replace(
        rung, default=of_fields(rung.default.to_dict() | {"staged": 0}, type(rung.default)), check=own_check,
        shared_bytes=lambda config, problem: plain(config, problem) + TURNS,
    )  # fmt: skip


TURNED = "g08_turned"
"""The rung that makes out^T = B^T A^T, whose columns groups cut where they cut rows of A."""


def _turned(rung: Rung) -> Rung:
    """The rung with its rows and columns changed over."""
    plain, check = rung.shared_bytes, rung.check

    def own_check(config: GemmConfig, problem: GemmProblem) -> str | None:
        if config.warp_m not in (16, 32) or config.warp_n != config.tile_n or config.tile_n % 32:
            return f"a warpgroup makes 64 or 128 rows of all of a tile's columns, 32 at a time; the config has {config}"
        return check(config, problem)

    return replace(rung, check=own_check, shared_bytes=lambda config, problem: plain(config, problem) + TURNS)


GROUPED_RUNGS: tuple[Rung, ...] = (  # of those that fit a config which is named alone, the last is taken
    _over_groups("h11", "g01_mma", "h11 over groups: blocks stay and find their tiles on the device", ("slices_k",)),
    _over_groups("h13", "g02_wgmma", "wgmma: the next tile's first copies, of any group, run during stores"),
    _turned(
        _over_groups("h14", "g08_turned", "the product turned: groups cut columns, which wgmma takes 16 at a time")
    ),
    _drawn(
        _over_groups("h15", "g03_tma", "TMA, roles, and tiles that blocks draw: those at a group's end are shorter",
                     ("staged",))
    ),
    _drawn(
        _over_groups("h17", "g05_ping_pong", "turns: one tile's stores, and its group's first copies, under another's "
                     "products", ("staged",))
    ),
    _over_groups("f12", "g04_ffma", "f12 over groups: float32 operands"),
    _over_groups("q01", "g06_convert", "q01 over groups: fp8 operands, as fp16, on mma.sync"),
    _drawn(
        _over_groups("q03", "g07_promoted", "q03 over groups: fp8 by wgmma, 128 of k at a time; tiles are drawn",
                     ("staged",))
    ),
)  # fmt: skip
OVER = {
    product: next(rung for rung in GROUPED_RUNGS if rung.id == over)
    for product, over in (
        ("h11_mma_multistage", "g01_mma"), ("f12_multistage", "g04_ffma"), ("q01_convert", "g06_convert"),
    )
}  # fmt: skip
"""The rungs that take the configs which products have for theirs."""


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
