"""Every fp32 rung on the emulator: right at every kind of shape and layout, and counted as its idea says."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.gemm.rung import GemmConfig
from tilewright.gemm.rungs import rungs_beside, rungs_for

RUNGS = [rung.id for rung in (*rungs_for("f32"), *rungs_beside("f32"))]

# f05 to f12 at a tile that small problems do not drown in; the defaults' own are run by test_ladder_climb.py.
SMALL = {
    "f05_tile2d": GemmConfig(64, 64, 8, 8, 8),
    "f06_vectorized": GemmConfig(64, 64, 8, 8, 8),
    "f07_warptile": GemmConfig(64, 64, 8, 8, 8, 32, 64),
    "f08_warptile_sub": GemmConfig(64, 64, 8, 4, 4, 32, 64, 2, 2),
    "f09_transposed": GemmConfig(64, 64, 8, 4, 4, 32, 64, 2, 2),
    "f10_double_buffer": GemmConfig(64, 64, 8, 4, 4, 32, 64, 2, 2, stages=2),
    "f11_cp_async": GemmConfig(64, 64, 8, 4, 4, 32, 64, 2, 2, stages=2, cache="ca"),
    "f12_multistage": GemmConfig(32, 32, 8, 4, 4, 16, 32, stages=3, cache="cg", group_m=2),
}


def operand(rng: np.random.Generator, rows: int, cols: int, layout: str) -> np.ndarray:
    """n: row-major; t: transposed in memory; s: every other element of every other row, from an odd offset."""
    if layout == "n":
        return rng.standard_normal((rows, cols), dtype=np.float32)
    if layout == "t":
        return rng.standard_normal((cols, rows), dtype=np.float32).T
    whole = rng.standard_normal((2 * rows + 1, 2 * cols + 3), dtype=np.float32)
    return whole[1 : 2 * rows + 1 : 2, 3 : 2 * cols + 3 : 2]


def assert_product(out: np.ndarray, a: np.ndarray, b: np.ndarray, c: np.ndarray | None, alpha: float, beta: float):
    reference = alpha * (a.astype(np.float64) @ b.astype(np.float64))
    scale = abs(alpha) * (np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64)))
    if c is not None:
        reference = reference + beta * c.astype(np.float64)
        scale = scale + abs(beta) * np.abs(c)
    assert np.isfinite(out).all()
    # A sum of k products, each step rounded once: at most (k + 2) halves of an ulp of the sum of absolute products.
    bound = (a.shape[1] + 3) * 2.0**-24 * scale + 1e-37
    assert (np.abs(out - reference) <= bound).all(), np.abs(out - reference).max()


# With their default configs all rungs climb in test_ladder_climb.py.
SHAPES = [
    (67, 131, 45, "nn", True),
    (1, 70, 33, "nt", False),
    (65, 1, 29, "tn", True),
    (64, 64, 16, "tt", False),
    (40, 50, 30, "ss", True),
    (33, 34, 1, "nn", True),
]
WHOLE = ("f01_naive", "f03_shared", "f06_vectorized", "f12_multistage")
"""Of the others each takes every second shape, and the next rung the rest."""


@pytest.mark.parametrize(
    ("rung", "m", "n", "k", "layout", "scaled"),
    [
        (rung, *shape)
        for number, rung in enumerate(RUNGS)
        for place, shape in enumerate(SHAPES)
        if rung in WHOLE or (number + place) % 2 == 0
    ],
)
def test_a_ragged_thin_transposed_or_strided_product_is_right(rung, m, n, k, layout, scaled):
    rng = np.random.default_rng(m * n + k)
    a, b = operand(rng, m, k, layout[0]), operand(rng, k, n, layout[1])
    c = rng.standard_normal((m, n), dtype=np.float32) if scaled else None
    alpha, beta = (1.5, -0.5) if scaled else (1.0, 0.0)
    with tw.emulator():
        out = tw.matmul(a, b, c=c, alpha=alpha, beta=beta, rung=rung, config=SMALL.get(rung))
    assert_product(out, a, b, c, alpha, beta)


@pytest.mark.parametrize("rung", RUNGS)
def test_k_of_zero_gives_beta_times_c(rung):
    c = np.arange(12, dtype=np.float32).reshape(3, 4)
    with tw.emulator():
        out = tw.matmul(np.empty((3, 0), np.float32), np.empty((0, 4), np.float32), c=c, beta=2.0, rung=rung,
                        config=SMALL.get(rung))  # fmt: skip
    np.testing.assert_array_equal(out, 2 * c)


@pytest.mark.parametrize("rung", ["f03_shared", "f12_multistage"])
def test_beta_of_zero_never_reads_c(rung):
    rng = np.random.default_rng(2)
    a, b = operand(rng, 20, 8, "n"), operand(rng, 8, 24, "n")
    with tw.emulator():
        out = tw.matmul(a, b, c=np.full((20, 24), np.nan, np.float32), beta=0.0, rung=rung, config=SMALL.get(rung))
    assert_product(out, a, b, None, 1.0, 0.0)


def counters(rung: str):
    rng = np.random.default_rng(3)
    with tw.emulator() as emulator:
        tw.matmul(operand(rng, 128, 64, "n"), operand(rng, 64, 256, "n"), rung=rung)
    return emulator.last.counters


def test_what_each_rung_teaches_shows_in_its_counters():
    """The claims of the rungs' heads, as numbers (Nsight Compute reads the same ones: docs/emulator.md)."""
    naive, coalesced, shared = counters("f01_naive"), counters("f02_coalesced"), counters("f03_shared")
    # f01: a load of A touches 32 rows, one of B one element: (32 + 1) / 2 sectors per request. f02: 1 and 4.
    assert naive.global_load_sectors / naive.global_load_requests == 16.5
    assert coalesced.global_load_sectors / coalesced.global_load_requests == 2.5
    assert naive.global_store_sectors / naive.global_store_requests == 32
    assert coalesced.global_store_sectors / coalesced.global_store_requests == 4
    # f03: every element comes once a block of 32 x 32 instead of once a thread.
    assert coalesced.global_load_requests == 32 * shared.global_load_requests
    # f04: one load of B feeds thread_m = 8 products, f05: 16 shared loads feed 64.
    tile1d, tile2d, vectors = counters("f04_tile1d"), counters("f05_tile2d"), counters("f06_vectorized")
    assert shared.shared_load_requests / tile1d.shared_load_requests == pytest.approx(2 / (9 / 8))
    assert tile1d.shared_load_requests > 4 * tile2d.shared_load_requests
    # f06: a quarter of the global and of the shared loads.
    assert tile2d.global_load_requests == 4 * vectors.global_load_requests
    assert tile2d.shared_load_requests == 4 * vectors.shared_load_requests
    # f06 to f09 load alike; what changes is who asks for what together: 5, 4, 3, 2 wavefronts a load.
    ratios = [
        seen.shared_load_wavefronts / seen.shared_load_requests
        for seen in (vectors, *(counters(rung) for rung in ("f07_warptile", "f08_warptile_sub", "f09_transposed")))
    ]
    assert ratios == [5, 4, 3, 2]


@pytest.mark.parametrize("rung", ["f09_transposed", "f11_cp_async", "f12_multistage"])
def test_zigzag_lanes_give_two_wavefronts_a_fragment_load(rung):
    """Two is the least a 128-bit load takes on hardware, whatever it asks for."""
    seen = counters(rung)
    assert seen.shared_load_wavefronts == 2 * seen.shared_load_requests
