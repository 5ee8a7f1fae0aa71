"""The backward rungs, in climbing order, as data: bf16 or fp16, fp32 accumulators, on Ampere's instructions."""

from __future__ import annotations

from dataclasses import replace

from ..errors import ConfigRejected
from .backward_config import BackwardConfig, Tile
from .backward_rung import BackwardRung

_TWO_WALKS = (
    BackwardConfig(32, Tile(128, 64, 8), Tile(128, 64, 8)),
    BackwardConfig(64, Tile(128, 64, 8), Tile(128, 64, 8)),
    BackwardConfig(96, Tile(128, 64, 8), Tile(128, 64, 8)),
    BackwardConfig(96, Tile(64, 32, 4), Tile(64, 32, 4)),
    BackwardConfig(128, Tile(128, 64, 8), Tile(128, 32, 4)),
    BackwardConfig(128, Tile(64, 32, 4), Tile(64, 32, 4)),
    BackwardConfig(192, Tile(64, 32, 4), Tile(64, 32, 4), apart=True),
    BackwardConfig(256, Tile(64, 64, 8, along=2), Tile(64, 64, 8, along=2)),
    BackwardConfig(256, Tile(64, 32, 4), Tile(64, 32, 4), apart=True),
    BackwardConfig(256, Tile(32, 32, 2), Tile(32, 32, 2), apart=True),
)
_SUMS = (
    BackwardConfig(32, Tile(128, 64, 8), sums=4),
    BackwardConfig(64, Tile(128, 32, 4), sums=2),
    BackwardConfig(96, Tile(64, 64, 4), sums=4),
    BackwardConfig(128, Tile(128, 64, 8, along=2), sums=2),
    BackwardConfig(128, Tile(64, 32, 4), sums=2),
    BackwardConfig(192, Tile(64, 64, 4), sums=4, apart=True),
    BackwardConfig(256, Tile(64, 64, 8, along=2), sums=2),
    BackwardConfig(256, Tile(64, 32, 4), sums=2, apart=True),
)
_GROUPS = (
    BackwardConfig(64, Tile(128, 128, 8), sums=8),
    BackwardConfig(128, Tile(128, 64, 8), sums=4),
    BackwardConfig(256, Tile(64, 64, 8, along=2), sums=4),
    BackwardConfig(64, Tile(64, 128, 4), Tile(64, 128, 4, min_blocks=2)),
    BackwardConfig(128, Tile(64, 64, 4, min_blocks=2), Tile(64, 64, 4, min_blocks=2)),
    BackwardConfig(256, Tile(64, 64, 8, along=2), Tile(64, 64, 8, along=2)),
)
_PRODUCED = (
    BackwardConfig(32, Tile(128, 128, 8), sums=8, wider=64),
    BackwardConfig(64, Tile(128, 128, 8), sums=8),
    BackwardConfig(96, Tile(128, 64, 8), sums=4, wider=128),
    BackwardConfig(128, Tile(128, 64, 8), sums=4),
)
_APART = (
    BackwardConfig(192, Tile(128, 64, 8), Tile(128, 64, 8)),
    *(BackwardConfig(d, Tile(128, 64, 8), Tile(128, 64, 8), apart=True) for d in (64, 128, 192, 256)),
    *(BackwardConfig(d, Tile(64, 64, 8, along=2), Tile(128, 64, 8)) for d in (192, 256)),
)
_ORDERED = tuple(replace(config, ordered=True) for config in _PRODUCED)
_WRITTEN = (*(config for config in _ORDERED if config.d_head == 96), *_PRODUCED, *_ORDERED)
_ALONE = tuple(
    BackwardConfig(d, tile, sums=sums, ordered=True)
    for d, tile, sums in (
        (32, Tile(64, 32, 4), 2), (32, Tile(128, 64, 8), 4), (64, Tile(64, 32, 4), 2), (64, Tile(128, 64, 8), 4),
        (96, Tile(64, 64, 4), 4), (128, Tile(64, 32, 4), 2), (128, Tile(128, 64, 8, along=2), 2),
    )
)  # fmt: skip

BACKWARD_RUNGS: tuple[BackwardRung, ...] = (
    BackwardRung(
        "b01_two_walks",
        "blocks of keys walk over queries and make dK and dV, blocks of queries walk over keys and make dQ: seven "
        "products where five would do, no sum shared between blocks",
        False, _TWO_WALKS,
    ),
    BackwardRung(
        "b02_once",
        "the walk by keys makes dQ too, and blocks add their parts to fp32 sums: five products",
        True, _SUMS,
    ),
    BackwardRung(
        "b03_wgmma",
        "products by wgmma, straight from shared memory and under one another: fragments are no longer loaded",
        None, _GROUPS, wgmma=True,
    ),
    BackwardRung(
        "b04_producer",
        "a warpgroup copies by TMA, and those that multiply wait for one another only where dQ needs all of dS",
        True, _PRODUCED, wgmma=True, produced=True, planned=(32, 64, 128),
    ),
    BackwardRung(
        "b05_writer",
        "a warp adds dQ by bulk copies out of shared memory: those that multiply do not wait, in order or not",
        True, _WRITTEN, wgmma=True, produced=True, writes=True, planned=(96,), planned_full=(128,),
        planned_same=(32, 64, 96, 128),
    ),
    BackwardRung(
        "b06_apart",
        "each gradient has a walk like the forward pass, or dK and dV one: seven or eight products, not five, but "
        "nothing leaves the registers before its end: at d_head 192 and 256 that is a quarter faster",
        False, _APART, wgmma=True, produced=True, apart=True, planned=(192, 256),
    ),
    BackwardRung(
        "b07_alone",
        "all keys of a head in one tile of b02: its dQ is whole, so that one launch makes every gradient and borrows "
        "nothing",
        True, _ALONE, alone=True, planned=(32, 64, 96, 128),
    ),
)  # fmt: skip


def find_backward_rung(name: str) -> BackwardRung:
    """The rung with this id or number ("b01"). Raises ConfigRejected."""
    for rung in BACKWARD_RUNGS:
        if name in (rung.id, rung.id.split("_")[0]):
            return rung
    raise ConfigRejected(f"no backward rung is named {name!r}. There are {', '.join(map(str, BACKWARD_RUNGS))}.")
