"""The configs that the plan considers, as data, each with the share of the peak it reaches on a grid that fills a GPU.

The cost model's only measured input (plan.py, cost.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from ..gemm.rung import GemmConfig


@dataclass(frozen=True)
class Choice:
    """A config that the plan considers. `efficiency`: share of the dtype's peak reached on a grid that fills the GPU
    (Gpu.peak_tflops)."""

    config: GemmConfig
    efficiency: float
    source: str
    rung: str
    """Whose."""


def _f12(
    tile: tuple[int, int], warp: tuple[int, int], subtiles: tuple[int, int], tile_k: int, stages: int, blocks: int
) -> GemmConfig:
    return GemmConfig(*tile, tile_k, 4, 4, *warp, *subtiles, stages, "ca", group_m=8, min_blocks=blocks)


_SWEEP = "measured on an H200: benchmarks/results/fp32-f12-sweep-H200.json, mean over 4096 to 8192 cubed"
FP32_CHOICES: tuple[Choice, ...] = (
    Choice(_f12((128, 256), (64, 64), (4, 2), 16, 4, 1), 0.790, _SWEEP, "f12"),
    Choice(_f12((128, 128), (64, 32), (2, 2), 32, 3, 2), 0.773, _SWEEP, "f12"),
    Choice(_f12((64, 128), (32, 64), (2, 2), 16, 3, 4), 0.747, _SWEEP, "f12"),
    Choice(_f12((128, 64), (64, 32), (2, 2), 16, 3, 4), 0.743, _SWEEP, "f12"),
    Choice(_f12((64, 64), (32, 32), (1, 2), 32, 4, 4), 0.645, _SWEEP, "f12"),
    Choice(_f12((32, 64), (16, 32), (1, 1), 32, 3, 8), 0.497, _SWEEP, "f12"),
    Choice(_f12((64, 32), (16, 32), (1, 1), 32, 3, 8), 0.477, _SWEEP, "f12"),
    Choice(_f12((32, 32), (16, 32), (1, 1), 32, 3, 8), 0.441, _SWEEP, "f12"),
    Choice(_f12((16, 64), (16, 32), (1, 1), 32, 3, 8), 0.38, "a guess below its neighbours, not measured", "f12"),
)
"""f12's candidates. Over the 27 products of the sweep the model's choice among those measured there takes 1.002 times
the best one's time (geometric mean; at most 1.025). The last is for products of few rows."""


def _h11(tile: tuple[int, int], warp: tuple[int, int], tile_k: int, stages: int, blocks: int) -> GemmConfig:
    return GemmConfig(*tile, tile_k, warp_m=warp[0], warp_n=warp[1], stages=stages, group_m=8, min_blocks=blocks)


_FULL = "measured on an H200 at 4096 cubed, where it fills the GPU"
_THIN = "from an H200: benchmarks/results/bf16-program-sweep-H200.json, scaled to a grid that fills the GPU"
_GUESS = "a guess from its neighbours, not measured on a full GPU"
H11_CHOICES: tuple[Choice, ...] = (
    Choice(_h11((128, 256), (64, 64), 32, 4, 1), 0.504, _FULL, "h11"),
    Choice(_h11((256, 128), (64, 64), 32, 4, 1), 0.505, _FULL, "h11"),
    Choice(_h11((128, 128), (64, 64), 32, 4, 2), 0.483, _FULL, "h11"),
    Choice(_h11((128, 64), (64, 32), 128, 4, 2), 0.39, _THIN, "h11"),
    Choice(_h11((64, 128), (32, 64), 128, 4, 2), 0.39, _GUESS, "h11"),
    Choice(_h11((128, 64), (32, 32), 64, 4, 2), 0.33, _THIN, "h11"),
    Choice(_h11((64, 128), (32, 32), 64, 4, 2), 0.335, _THIN, "h11"),
    Choice(_h11((64, 64), (32, 32), 64, 4, 4), 0.30, _THIN, "h11"),
    Choice(_h11((64, 64), (32, 32), 128, 4, 4), 0.30, _THIN, "h11"),
    Choice(_h11((64, 32), (32, 16), 64, 4, 4), 0.24, _GUESS, "h11"),
    Choice(_h11((32, 64), (16, 32), 128, 4, 4), 0.24, _GUESS, "h11"),
    Choice(_h11((32, 32), (16, 16), 64, 4, 4), 0.18, _GUESS, "h11"),
    Choice(_h11((16, 64), (16, 16), 128, 4, 4), 0.12, _GUESS, "h11"),
    Choice(_h11((64, 16), (16, 16), 128, 4, 4), 0.12, _GUESS, "h11"),
    Choice(_h11((16, 32), (16, 16), 32, 3, 8), 0.07, _GUESS, "h11"),
    Choice(_h11((32, 16), (16, 16), 32, 3, 8), 0.07, _GUESS, "h11"),
)
"""h11's candidates, for 16-bit operands. Over the 21 products of that sweep the model's choice (cost.py) among what
was measured there takes 1.023 times the best one's time (geometric mean; at most 1.33, at 511 x 511 x 511)."""


def _wgmma(
    tile: tuple[int, int], warp: tuple[int, int], stages: int, blocks: int, efficiency: float, rung: str,
    source: str = "",
) -> Choice:  # fmt: skip
    config = GemmConfig(*tile, 64, warp_m=warp[0], warp_n=warp[1], stages=stages, group_m=8, min_blocks=blocks)
    return Choice(config, efficiency, source or _WGMMA_SWEEP, rung)


_WGMMA_SWEEP = "measured on an H200 at 4096 cubed: benchmarks/results/bf16-wgmma-sweep-H200.json"
_FEW = "from an H200 where tiles are few: benchmarks/results/bf16-wgmma-tiles-H200.json"
WGMMA_CHOICES: tuple[Choice, ...] = (
    _wgmma((128, 256), (16, 256), 4, 1, 0.75, "h13"),
    _wgmma((128, 192), (16, 192), 4, 1, 0.70, "h13", _FEW),
    _wgmma((256, 128), (16, 128), 4, 1, 0.745, "h13"),
    _wgmma((128, 128), (16, 128), 3, 2, 0.72, "h12"),
    _wgmma((64, 128), (16, 128), 4, 2, 0.53, "h12"),
    _wgmma((64, 128), (16, 128), 8, 1, 0.56, "h12", _FEW),
    _wgmma((128, 64), (16, 64), 4, 2, 0.44, "h12"),
    _wgmma((64, 64), (16, 64), 6, 2, 0.35, "h12"),
)
"""For 16-bit operands where there is wgmma."""


def _tensor32(tile: tuple[int, int], warp: tuple[int, int], blocks: int, stages: int = 2) -> GemmConfig:
    return GemmConfig(*tile, 32, warp_m=warp[0], warp_n=warp[1], stages=stages, group_m=8, min_blocks=blocks)


_STEPS = "measured on an H200 at 4096 cubed: benchmarks/results/precision-steps-H200.json"
_SCALED = "a guess from measured neighbours (benchmarks/results/precision-steps-H200.json)"
_BOTH = "fitted to times on an H200: benchmarks/results/precision-sizes-H200.json"
TF32_CHOICES: tuple[Choice, ...] = (
    Choice(_tensor32((128, 256), (64, 64), 1), 0.348, _STEPS, "t01"),
    Choice(_tensor32((128, 128), (64, 64), 2), 0.344, _STEPS, "t01"),
    Choice(_tensor32((64, 64), (32, 32), 3), 0.22, _SCALED, "t01"),
    Choice(_tensor32((32, 32), (16, 16), 4), 0.10, _SCALED, "t01"),
)
"""t01's candidates; the peak is half that of 16 bits."""
FP32X3_CHOICES: tuple[Choice, ...] = (
    Choice(_tensor32((128, 128), (64, 32), 1, 3), 0.455, _BOTH, "t03"),
    Choice(_tensor32((64, 64), (32, 32), 2, 3), 0.38, _BOTH, "t03"),
    Choice(_tensor32((64, 64), (32, 32), 3), 0.354, _BOTH, "t03"),
    Choice(_tensor32((32, 64), (16, 32), 4, 3), 0.347, _BOTH, "t03"),
    Choice(_tensor32((64, 64), (32, 32), 3), 0.316, _BOTH, "t02"),
    Choice(_tensor32((32, 32), (16, 16), 4), 0.223, _BOTH, "t02"),
)
"""Of both rungs: splitting first pays for large products, one launch for small and thin ones. Over the seven products
of that file the model's choice (cost.py) takes at most 1.006 times the best one's time. The peak is a sixth of that of
16 bits."""

_HALVES = (*WGMMA_CHOICES, *H11_CHOICES)
CHOICES: dict[str, tuple[Choice, ...]] = {
    "f32": FP32_CHOICES, "f16": _HALVES, "bf16": _HALVES, "tf32": TF32_CHOICES, "fp32x3": FP32X3_CHOICES,
}  # fmt: skip
"""For a kind of product: the operands' dtype, or the precision asked for (GemmProblem.kind)."""
