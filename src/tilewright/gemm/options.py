"""Products for which no table knows anything near: the configs that the model chooses from.

Each did best, or close to it, on some of the products that were swept on an H200 (benchmarks/results). How fast each is
over what the model says was fitted with the model (plan/fits.json).
"""

from __future__ import annotations

from ..plan.estimate import speed_of
from ..plan.family import Option
from .problem import GemmProblem
from .rung import GemmConfig
from .rungs import find_rung


def _f12(
    tile: tuple[int, int], warp: tuple[int, int], subtiles: tuple[int, int], tile_k: int, stages: int, blocks: int
) -> GemmConfig:
    return GemmConfig(*tile, tile_k, 4, 4, *warp, *subtiles, stages, "ca", group_m=8, min_blocks=blocks)


def _h11(tile: tuple[int, int], warp: tuple[int, int], tile_k: int, stages: int, blocks: int) -> GemmConfig:
    return GemmConfig(*tile, tile_k, warp_m=warp[0], warp_n=warp[1], stages=stages, group_m=8, min_blocks=blocks)


def _wgmma(tile: tuple[int, int], warp_n: int, stages: int, blocks: int) -> GemmConfig:
    return GemmConfig(*tile, 64, warp_m=16, warp_n=warp_n, stages=stages, group_m=8, min_blocks=blocks)


def _tma(
    tile: tuple[int, int], stages: int, staged: int, warpgroups: int = 2, turns: int = 1, group_m: int = 8
) -> GemmConfig:
    return GemmConfig(*tile, 64, warp_m=tile[0] // (4 * warpgroups), warp_n=tile[1], stages=stages, group_m=group_m,
                      staged=staged, turns=turns)  # fmt: skip


def _tensor32(tile: tuple[int, int], warp: tuple[int, int], blocks: int, stages: int = 2) -> GemmConfig:
    return GemmConfig(*tile, 32, warp_m=warp[0], warp_n=warp[1], stages=stages, group_m=8, min_blocks=blocks)


def _q01(tile: tuple[int, int], warp: tuple[int, int], tile_k: int, stages: int, blocks: int) -> GemmConfig:
    return GemmConfig(*tile, tile_k, warp_m=warp[0], warp_n=warp[1], stages=stages, group_m=8, min_blocks=blocks)


def _promoted(
    tile: tuple[int, int], warp_n: int, part_n: int, stages: int, blocks: int = 1, staged: int = 0
) -> GemmConfig:
    return GemmConfig(*tile, 128, warp_m=16, warp_n=warp_n, stages=stages, group_m=8, min_blocks=blocks, staged=staged,
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
_BLOCKS = (("q03", _promoted((128, 256), 256, 128, 4)), *_SMALL_FP8)
"""Of scaled blocks: with their scales in registers too, parts of a larger tile are faster than two that take turns."""
_FAST = (("q05", GemmConfig(128, 256, 128, warp_m=16, warp_n=256, stages=4, group_m=8)), *_FP8)
_TMA = (
    ("h17", _tma((128, 192), 4, 2, 1, 2), 1.18),
    ("h17", _tma((128, 128), 5, 4, 1, 2), 1.18),
    ("h15", _tma((192, 192), 4, 1, 3), 1.09),
    ("h15", _tma((128, 224), 4, 4), 1.1),
    ("h14", _tma((256, 160), 4, 0), 1.08),
)
"""With the speed over the model's that each had on an H200, beside h12 and h13: geometric means of 6 to 60 products
with m >= 512 (the paired run of which the shipped table's newest entries are)."""
CONFIGS = {
    "f32": _F32, "f16": _HALVES, "bf16": _HALVES, "tf32": _TF32, "fp32x3": _FP32X3, "fp8": _FP8, "fast": _FAST,
    "blocks": _BLOCKS,
}  # fmt: skip
"""(rung, config) by kind of product (GemmProblem.kind); "blocks": of fp8 whose blocks have scales."""

OPTIONS = {
    kind: tuple(Option(rung := find_rung(name), config, speed_of(rung.id, config)) for name, config in configs)
    for kind, configs in CONFIGS.items()
}
TMA_OPTIONS = tuple(Option(find_rung(name), config, speed) for name, config, speed in _TMA)


def options_of(problem: GemmProblem) -> tuple[Option, ...]:
    """The options for a product, the larger tiles first."""
    found = OPTIONS.get("blocks" if problem.scaled_blocks else problem.kind, ())
    return found + TMA_OPTIONS if problem.kind in ("f16", "bf16") and _is_large(problem) else found


def _is_large(problem: GemmProblem) -> bool:
    """Return whether the product is of the sizes at which the options that copy by TMA were measured."""
    return min(problem.m, problem.n) >= 512 and problem.m * problem.n >= 1 << 21
