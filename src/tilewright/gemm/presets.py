"""Presets: the configs that the model of time chooses from, for products for which no table knows anything near.

Each did best, or close to it, on some of the products that were swept on an H200 (benchmarks/results). How fast each is
over what the model says was fitted with the model (plan/fits.json).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..plan.estimate import speed_of
from ..plan.family import Preset
from .config import MmaConfig, SimtConfig, WgmmaConfig
from .problem import GemmProblem
from .rungs import find_rung
from .rungs.rows import dots_pay, row_dots
from .rungs.tma_tensors import addressable, may_be_walked
from .work import tiles_of


def _f12(
    tile: tuple[int, int], warp: tuple[int, int], subtiles: tuple[int, int], tile_k: int, stages: int, blocks: int
) -> SimtConfig:
    return SimtConfig(*tile, tile_k, 4, 4, *subtiles, "ca", warp_m=warp[0], warp_n=warp[1], stages=stages, group_m=8,
                      min_blocks=blocks)  # fmt: skip


def _h11(tile: tuple[int, int], warp: tuple[int, int], tile_k: int, stages: int, blocks: int) -> MmaConfig:
    return MmaConfig(*tile, tile_k, warp_m=warp[0], warp_n=warp[1], stages=stages, group_m=8, min_blocks=blocks)


def _wgmma(tile: tuple[int, int], warp_n: int, stages: int, blocks: int) -> WgmmaConfig:
    return WgmmaConfig(*tile, 64, warp_m=16, warp_n=warp_n, stages=stages, group_m=8, min_blocks=blocks)


def _tma(
    tile: tuple[int, int], stages: int, staged: int, warpgroups: int = 2, turns: int = 1, group_m: int = 8
) -> WgmmaConfig:
    return WgmmaConfig(*tile, 64, warp_m=tile[0] // (4 * warpgroups), warp_n=tile[1], stages=stages, group_m=group_m,
                      staged=staged, turns=turns)  # fmt: skip


def _tensor32(tile: tuple[int, int], warp: tuple[int, int], blocks: int, stages: int = 2) -> MmaConfig:
    return MmaConfig(*tile, 32, warp_m=warp[0], warp_n=warp[1], stages=stages, group_m=8, min_blocks=blocks)


def _q01(tile: tuple[int, int], warp: tuple[int, int], tile_k: int, stages: int, blocks: int) -> MmaConfig:
    return MmaConfig(*tile, tile_k, warp_m=warp[0], warp_n=warp[1], stages=stages, group_m=8, min_blocks=blocks)


def _promoted(
    tile: tuple[int, int], warp_n: int, part_n: int, stages: int, blocks: int = 1, staged: int = 0
) -> WgmmaConfig:
    return WgmmaConfig(*tile, 128, warp_m=16, warp_n=warp_n, stages=stages, group_m=8, min_blocks=blocks, staged=staged,
                      part_n=part_n)  # fmt: skip


_F32 = (
    ("f12", _f12((128, 256), (64, 64), (4, 2), 16, 4, 1)),
    ("f12", _f12((128, 128), (64, 32), (2, 2), 32, 3, 2)),
    ("f12", _f12((64, 128), (32, 64), (2, 2), 16, 3, 4)),
    ("f12", _f12((128, 64), (64, 32), (2, 2), 16, 3, 4)),
    ("f12", _f12((64, 64), (32, 32), (1, 2), 32, 4, 4)),
    ("f12", _f12((32, 64), (16, 32), (1, 1), 32, 3, 8)),
    ("f12", _f12((64, 32), (16, 32), (1, 1), 32, 3, 8)),
    ("f12", _f12((32, 32), (16, 32), (1, 1), 32, 3, 8)),
    ("f12", _f12((16, 64), (16, 32), (1, 1), 32, 3, 8)),
)
_HALVES = (
    ("h13", _wgmma((128, 256), 256, 4, 1)),
    ("h13", _wgmma((128, 192), 192, 4, 1)),
    ("h13", _wgmma((256, 128), 128, 4, 1)),
    ("h12", _wgmma((128, 128), 128, 3, 2)),
    ("h12", _wgmma((64, 128), 128, 4, 2)),
    ("h12", _wgmma((64, 128), 128, 8, 1)),
    ("h12", _wgmma((128, 64), 64, 4, 2)),
    ("h12", _wgmma((64, 64), 64, 6, 2)),
    ("h11", _h11((128, 256), (64, 64), 32, 4, 1)),
    ("h11", _h11((256, 128), (64, 64), 32, 4, 1)),
    ("h11", _h11((128, 128), (64, 64), 32, 4, 2)),
    ("h11", _h11((128, 64), (64, 32), 128, 4, 2)),
    ("h11", _h11((64, 128), (32, 64), 128, 4, 2)),
    ("h11", _h11((128, 64), (32, 32), 64, 4, 2)),
    ("h11", _h11((64, 128), (32, 32), 64, 4, 2)),
    ("h11", _h11((64, 64), (32, 32), 64, 4, 4)),
    ("h11", _h11((64, 64), (32, 32), 128, 4, 4)),
    ("h11", _h11((64, 32), (32, 16), 64, 4, 4)),
    ("h11", _h11((32, 64), (16, 32), 128, 4, 4)),
    ("h11", _h11((32, 32), (16, 16), 64, 4, 4)),
    ("h11", _h11((16, 64), (16, 16), 128, 4, 4)),
    ("h11", _h11((64, 16), (16, 16), 128, 4, 4)),
    ("h11", _h11((16, 32), (16, 16), 32, 3, 8)),
    ("h11", _h11((32, 16), (16, 16), 32, 3, 8)),
)
_TF32 = (
    ("t01", _tensor32((128, 256), (64, 64), 1)),
    ("t01", _tensor32((128, 128), (64, 64), 2)),
    ("t01", _tensor32((64, 64), (32, 32), 3)),
    ("t01", _tensor32((32, 32), (16, 16), 4)),
)
_FP32X3 = (
    ("t03", _tensor32((128, 128), (64, 32), 1, 3)),
    ("t03", _tensor32((64, 64), (32, 32), 2, 3)),
    ("t03", _tensor32((64, 64), (32, 32), 3)),
    ("t03", _tensor32((32, 64), (16, 32), 4, 3)),
    ("t02", _tensor32((64, 64), (32, 32), 3)),
    ("t02", _tensor32((32, 32), (16, 16), 4)),
)
_SMALL_FP8 = (
    ("q03", _promoted((64, 128), 128, 128, 8)),
    ("q03", _promoted((128, 64), 64, 64, 8)),
    ("q03", _promoted((64, 64), 64, 64, 8)),
    ("q03", _promoted((64, 128), 128, 128, 4, 2)),
    ("q02", _promoted((64, 64), 64, 64, 6, 2)),
    ("q01", _q01((128, 128), (64, 32), 64, 4, 1)),
    ("q01", _q01((64, 64), (32, 32), 64, 4, 3)),
    ("q01", _q01((32, 64), (16, 32), 128, 4, 4)),
    ("q01", _q01((32, 32), (16, 16), 64, 4, 4)),
    ("q01", _q01((16, 64), (16, 16), 128, 4, 4)),
)
_FP8 = (("q03", _promoted((128, 128), 128, 128, 5, staged=2)), *_SMALL_FP8)
_FAST = (("q05", WgmmaConfig(128, 256, 128, warp_m=16, warp_n=256, stages=4, group_m=8)), *_FP8)


def _wide(tile_n: int, stages: int, tile_m: int = 128, **levels: Any) -> WgmmaConfig:
    """Two warpgroups under one another, each with the whole width of the tile."""
    return WgmmaConfig(tile_m, tile_n, 64, warp_m=tile_m // 8, warp_n=tile_n, stages=stages, group_m=8, **levels)


_STANDING = _wide(64, 8, staged=1)
_LYING = WgmmaConfig(64, 128, 64, warp_m=16, warp_n=128, stages=8, group_m=8, staged=1)
_TMA = (
    ("h15", _wide(256, 4, staged=2), 1.034),
    ("h16", _wide(256, 4, staged=2, cluster_m=2), 1.038),
    ("h15", _wide(224, 4, staged=2), 1.046),
    ("h14", _wide(192, 5), 1.0),
    ("h14", _wide(160, 5), 1.0),
    ("h14", _wide(128, 6), 1.053),
    ("h14", _wide(96, 8), 0.957),
    ("h15", _STANDING, 0.942),
    ("h15", _wide(128, 4, 256, staged=2), 1.033),
    ("h15", WgmmaConfig(192, 192, 64, warp_m=16, warp_n=192, stages=4, group_m=8, staged=1), 1.04),
    ("h15", WgmmaConfig(192, 160, 64, warp_m=16, warp_n=160, stages=4, group_m=8, staged=1), 1.022),
    ("h15", WgmmaConfig(192, 128, 64, warp_m=16, warp_n=128, stages=5, group_m=8, staged=1), 1.035),
    ("h14", WgmmaConfig(192, 96, 64, warp_m=16, warp_n=96, stages=6, group_m=8), 0.97),
    ("h14", WgmmaConfig(64, 64, 64, warp_m=16, warp_n=64, stages=8, group_m=8), 0.95),
    ("h17", _tma((128, 192), 4, 2, 1, 2), 1.04),
    ("h17", replace(_tma((128, 192), 4, 2, 1, 2), cluster_m=2), 1.06),
    ("h17", replace(_tma((128, 160), 5, 2, 1, 2), cluster_m=2), 1.03),
    ("h17", replace(_tma((128, 128), 5, 4, 1, 2), cluster_m=2), 1.028),
    ("h17", replace(_tma((128, 128), 6, 1, 1, 2), cluster_n=2), 0.995),
    ("h16", replace(_wide(160, 4, 256, staged=1), cluster_n=2), 1.0),
    ("h19", _wide(192, 5, cluster_k=2), 0.95),
    ("h19", _wide(160, 5, cluster_k=2), 0.97),
    ("h19", _wide(128, 6, cluster_k=2), 0.89),
)
"""With the speed over the model's on an H200, fitted to 257 products, of each of which several of these were measured
in pairs with cuBLAS. Pairs share power out, and flatter what draws more. From 8e10 operations and k = 4096 on, clusters
that share copies count as 1% faster than in pairs, other tiles as 1%, sets that take turns as 2% slower: half of what
they are alone."""
_HALVED = {
    "tf32": (
        ("t04", WgmmaConfig(128, 256, 64, warp_m=16, warp_n=256, stages=4, group_m=8, staged=2)),
        ("t04", WgmmaConfig(128, 128, 64, warp_m=16, warp_n=128, stages=5, group_m=8, staged=2, cluster_n=2)),
        ("t04", WgmmaConfig(128, 64, 64, warp_m=16, warp_n=64, stages=6, group_m=8, staged=2)),
    ),
    "fp32x3": (
        ("t05", WgmmaConfig(128, 128, 64, warp_m=16, warp_n=128, stages=3, group_m=8, staged=2, cluster_n=2)),
        ("t05", WgmmaConfig(128, 64, 64, warp_m=16, warp_n=64, stages=4, group_m=8, staged=2)),
    ),
}
CONFIGS = {
    "f32": _F32, "f16": _HALVES, "bf16": _HALVES, "tf32": _TF32, "fp32x3": _FP32X3, "fp8": _FP8, "fast": _FAST,
}  # fmt: skip
"""(rung, config) by kind of product (GemmProblem.kind)."""

PRESETS = {
    kind: tuple(Preset(rung := find_rung(name), config, speed_of(rung.id, config)) for name, config in configs)
    for kind, configs in CONFIGS.items()
}
_DOTS = {
    "f32": (row_dots(1, 1, 1024), row_dots(2, 1, 1024)),
    "f16": (row_dots(1, 2, 1024),),
    "bf16": (row_dots(1, 2, 1024),),
}
ROW_PRESETS = {
    kind: tuple(Preset(find_rung("v01"), config, 1.2) for config in configs) for kind, configs in _DOTS.items()
}
"""With the speed over the model's on an H200, from one row of 4096 x 4096 to 28672 x 4096."""
TMA_PRESETS = tuple(Preset(find_rung(name), config, speed) for name, config, speed in _TMA)


def _turned(preset: Preset) -> Preset:
    """The same with clusters side by side where they lay under one another, and the other way round; and the tile that
    lies for the one that stands."""
    config = preset.config
    if config == _STANDING:
        return preset._replace(config=_LYING)
    if config.cluster_m == config.cluster_n:
        return preset
    return preset._replace(config=replace(config, cluster_m=config.cluster_n, cluster_n=config.cluster_m))


_TURNED = tuple((preset, _turned(preset)) for preset in TMA_PRESETS)
"""Each preset, and its turned one: the same where nothing turns."""


def _tma_presets(problem: GemmProblem) -> tuple[Preset, ...]:
    """TMA_PRESETS, turned where fewer tiles then lie outside the result. Of as many, tiles stand where the result lies:
    fewer of them read each column of the larger operand. That was 2 to 14% faster on six products of eight."""
    lies = problem.m < problem.n

    def outside(way: Preset) -> tuple[int, bool]:
        return tiles_of(problem, way.config), lies == (way.config.tile_m < way.config.tile_n)

    return tuple(preset if preset is turned else min(preset, turned, key=outside) for preset, turned in _TURNED)


HALVED_PRESETS = {
    kind: tuple(Preset(rung := find_rung(name), config, speed_of(rung.id, config)) for name, config in configs)
    for kind, configs in _HALVED.items()
}


def presets_of(problem: GemmProblem) -> tuple[Preset, ...]:
    """The presets for a product, the larger tiles first."""
    found = ROW_PRESETS.get(problem.kind, ()) if dots_pay(problem) else ()
    found += PRESETS.get(problem.kind, ())
    if problem.kind in HALVED_PRESETS and halves_pay(problem):
        return HALVED_PRESETS[problem.kind] + found
    return _tma_presets(problem) + found if suits_tma(problem) else found


def suits_tma(problem: GemmProblem) -> bool:
    """Return whether the product is like those with which the model of the rungs that copy by TMA was fitted.

    16 bits, lines that TMA reads as they lie, and rows and columns for large tiles; or a batch that blocks walk, whose
    tiles are like those of one large product.
    """
    m, n, batch = problem.m, problem.n, problem.batch
    large = min(m, n) >= 128 and m * n >= 1 << 20
    if batch > 1:
        large = min(m, n) >= 512 and batch * m * n >= 1 << 22 and may_be_walked(problem)
    return (
        problem.kind in ("f16", "bf16") and large and problem.k >= 64
        and addressable("a", problem) and addressable("b", problem)
    )  # fmt: skip


def halves_pay(problem: GemmProblem) -> bool:
    """Return whether the product is of the sizes at which scaled halves were measured to be faster than other parts,
    and no less accurate: below k = 512 two parts of fp16 lose more than three of bf16."""
    short = problem.precision == "fp32x3" and problem.k < 512
    return min(problem.m, problem.n) >= 512 and problem.m * problem.n * problem.k >= 1 << 29 and not short
