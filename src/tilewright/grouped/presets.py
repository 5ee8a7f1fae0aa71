"""The configs that plans of grouped products choose from, by the model of time.

Those of wgmma were measured on an H200 over groups of 0 to 4096 rows; how fast each was over what the model says is
with it. Of mma.sync and fp32 those of products serve, the 16 rows for groups of a few among them.
"""

from __future__ import annotations

from dataclasses import replace

from ..arrays.dtypes import FP8
from ..gemm.config import MmaConfig, WgmmaConfig
from ..gemm.presets import presets_of as products_presets
from ..plan.family import Preset
from .problem import GroupedProblem
from .rungs import OVER, find_grouped_rung

_OF_PRODUCTS = 0.88
"""How fast configs of mma.sync are over groups, over what they are for products."""


def _wgmma(tile: tuple[int, int], stages: int, blocks: int) -> WgmmaConfig:
    return WgmmaConfig(*tile, 64, warp_m=16, warp_n=tile[1], stages=stages, group_m=8, min_blocks=blocks)


_G01, _G02, _G03, _G05, _G07, _G08 = (find_grouped_rung(name) for name in ("g01", "g02", "g03", "g05", "g07", "g08"))
_SHORT = 1024
"""Products of so little k are mostly stores, which g05 has under other products: it took 0.93 of g03's time."""
_OF_SHORT_K = Preset(
    _G05, WgmmaConfig(128, 192, 64, warp_m=32, warp_n=192, stages=4, group_m=8, turns=2, staged=1), 1.3
)
_TURNED = Preset(_G08, WgmmaConfig(256, 192, 64, warp_m=32, warp_n=192, stages=4, group_m=8), 1.3)
"""The model takes groups to be of one size, which hides what other tiles lose at the end of a group. Wider tiles read
less from L2 for each product: 160 columns took 1.01 of its time."""
_OF_TURNED = range(256, 1025)
"""Rows of an average group for which that counts: of 128 groups of 0 to 1024 rows g08 took 0.96 of g03's time, whether
B's lines run along k or along n. Of 8 groups of 4096 rows 160 columns took as much as g03."""
_MEASURED = (
    Preset(_G03, _wgmma((128, 256), 4, 1), 1.12),
    Preset(_G02, _wgmma((128, 256), 4, 1), 1.08),
    Preset(_G02, _wgmma((64, 128), 8, 1), 1.12),
    Preset(_G02, _wgmma((64, 64), 6, 2), 1.11),
    Preset(_G01, MmaConfig(16, 64, 128, warp_m=16, warp_n=16, stages=5, group_m=8, min_blocks=2), 1.14),
)


def _promoted(tile: tuple[int, int], part_n: int, stages: int, blocks: int = 1) -> WgmmaConfig:
    return WgmmaConfig(*tile, 128, warp_m=16, warp_n=tile[1], stages=stages, group_m=8, min_blocks=blocks,
                       part_n=part_n)  # fmt: skip


_OF_LINES, _OF_BLOCKS = replace(_promoted((128, 128), 128, 6), staged=1), _promoted((128, 256), 128, 4)
"""Of large groups of fp8. Where groups begin, scales of blocks come one by one, which tiles of 128 columns wait for.
Results by way of shared memory took 0.96 to 0.99 of the time of lines', and as much as that of blocks'."""
_FP8_OF_FEW = (Preset(_G07, _promoted((64, 128), 128, 4, 2), 1.1), Preset(_G07, _promoted((64, 64), 64, 6, 2), 1.0))
_OF_MMA_FP8 = 0.5
"""How fast configs of mma.sync are for groups of fp8, over what they are for products."""


def presets_of(problem: GroupedProblem) -> tuple[Preset, ...]:
    """The presets for a grouped product, those that were measured first."""
    if problem.product.dtype == "f32":
        of_f32 = products_presets(problem.product)
        return tuple(Preset(OVER[rung.id], *rest) for rung, *rest in of_f32 if rung.id in OVER)
    if problem.product.dtype in FP8:
        of_mma = products_presets(problem.product)
        large = Preset(_G07, _OF_BLOCKS if problem.product.scaled_blocks else _OF_LINES, 1.1)
        few = min(problem.product.m, problem.product.n) <= 64
        return (
            *(() if few else (large,)), *_FP8_OF_FEW,
            *(Preset(OVER[rung.id], config, _OF_MMA_FP8 * speed) for rung, config, speed in of_mma if rung.id in OVER),
        )  # fmt: skip
    short = (_OF_SHORT_K,) if problem.axis == "k" and problem.product.k <= _SHORT else ()
    others = ((OVER.get(rung.id), config, speed) for rung, config, speed in products_presets(problem.product))
    turned = problem.axis == "m" and problem.product.m in _OF_TURNED
    return (
        *short,
        *((_TURNED,) if turned else ()),
        *_MEASURED,
        *(Preset(rung, config, _OF_PRODUCTS * speed) for rung, config, speed in others if rung is _G01),
    )
