"""The configs that plans of grouped products choose from, by the model of time.

Those of wgmma were measured on an H200 over groups of 0 to 4096 rows; how fast each was over what the model says is
with it. Of mma.sync and fp32 those of products serve, the 16 rows for groups of a few among them.
"""

from __future__ import annotations

from dataclasses import replace

from ..arrays.dtypes import FP8
from ..gemm.config import MmaConfig, WgmmaConfig
from ..gemm.options import options_of as products_options
from ..plan.family import Option
from .problem import GroupedProblem
from .rungs import OVER, find_grouped_rung

_OF_PRODUCTS = 0.88
"""How fast configs of mma.sync are over groups, over what they are for products."""


def _wgmma(tile: tuple[int, int], stages: int, blocks: int) -> WgmmaConfig:
    return WgmmaConfig(*tile, 64, warp_m=16, warp_n=tile[1], stages=stages, group_m=8, min_blocks=blocks)


_G01, _G02, _G03, _G05, _G07 = (find_grouped_rung(name) for name in ("g01", "g02", "g03", "g05", "g07"))
_SHORT = 1024
"""Products of so little k are mostly stores, which g05 has under other products: it took 0.93 of g03's time."""
_OF_SHORT_K = Option(
    _G05, WgmmaConfig(128, 192, 64, warp_m=32, warp_n=192, stages=4, group_m=8, turns=2, staged=1), 1.3
)
_MEASURED = (
    Option(_G03, _wgmma((128, 256), 4, 1), 1.12),
    Option(_G02, _wgmma((128, 256), 4, 1), 1.08),
    Option(_G02, _wgmma((64, 128), 8, 1), 1.12),
    Option(_G02, _wgmma((64, 64), 6, 2), 1.11),
    Option(_G01, MmaConfig(16, 64, 128, warp_m=16, warp_n=16, stages=5, group_m=8, min_blocks=2), 1.14),
)


def options_of(problem: GroupedProblem) -> tuple[Option, ...]:
    """The options for a grouped product, those that were measured first."""
    if problem.product.dtype == "f32":
        return tuple(Option(OVER[rung.id], *rest) for rung, *rest in products_options(problem.product))
    if problem.product.dtype in FP8:
        over = OVER | {"q03_tma": _G07}
        return tuple(
            Option(over[rung.id], replace(config, staged=0) if rung.loaders else config, _OF_PRODUCTS * speed)
            for rung, config, speed in products_options(problem.product)
            if rung.id in over
        )
    short = (_OF_SHORT_K,) if problem.axis == "k" and problem.product.k <= _SHORT else ()
    others = ((OVER.get(rung.id), config, speed) for rung, config, speed in products_options(problem.product))
    return (
        *short,
        *_MEASURED,
        *(Option(rung, config, _OF_PRODUCTS * speed) for rung, config, speed in others if rung is _G01),
    )
