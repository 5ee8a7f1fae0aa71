"""Bank conflicts of the mma rungs, as the emulator counts them: without a swizzle, with h09's, and with h11's."""

from __future__ import annotations

import dataclasses

import pytest
from rung_products import Bench, Case

from tilewright.gemm.rung import GemmConfig
from tilewright.gemm.rungs import find_rung
from tilewright.swizzle import Swizzle

# 64 x 64 in one block of four warps, one tile of 32 along k: lines of 32 elements of A, of 64 of B (64 and 128 bytes).
SMALL = GemmConfig(64, 64, 32, warp_m=32, warp_n=32, stages=2)


def ways(rung: str, config: GemmConfig, layouts: str = "nn") -> dict[str, float]:
    """Of each operand's ldmatrix.x4: wavefronts a matrix, that is how many of its 8 rows lie in one bank.

    A is read plain where its k is contiguous, B where its is; `layouts` must not read both alike.
    """
    product = Bench(Case(config.tile_m, config.tile_n, 2 * config.tile_k, layouts)).run(find_rung(rung), config)
    product.assert_right()
    seen: dict[str, set[float]] = {"A": set(), "B": set()}
    for row in product.result.counters.per_instruction:
        if row.ptx.startswith("ldmatrix") and row.requests:
            operand = "B" if (".trans" in row.ptx) == (layouts[1] == "n") else "A"
            seen[operand].add(row.wavefronts / row.requests / 4)
    assert all(len(found) == 1 for found in seen.values()), seen
    return {operand: found.pop() for operand, found in seen.items()}


def wide(config: GemmConfig, **changes) -> GemmConfig:
    return dataclasses.replace(config, **changes)


@pytest.mark.parametrize(
    ("layouts", "tile_n", "tile_k", "plain", "swizzled"),
    [
        # B's lines of 64 elements are a row of banks: 8 rows of a matrix in one bank, and none with Swizzle<3, 3, 3>
        ("nn", 64, 32, {"A": 4, "B": 8}, {"A": 4, "B": 1}),
        # lines of 128 elements: two rows of banks each, so two of the three bits help
        ("nn", 128, 32, {"A": 4, "B": 8}, {"A": 4, "B": 2}),
        # B transposed: its lines are tile_k long, 64 or 128 bytes
        ("tt", 64, 32, {"A": 8, "B": 4}, {"A": 8, "B": 1}),
        ("tt", 64, 64, {"A": 8, "B": 8}, {"A": 8, "B": 1}),
    ],
)
def test_h09_takes_bs_conflicts_away_from_h08(layouts, tile_n, tile_k, plain, swizzled):
    config = wide(SMALL, tile_n=tile_n, tile_k=tile_k)
    assert ways("h08", config, layouts) == plain
    assert ways("h09", config, layouts) == swizzled


def test_the_defaults_lesson_is_eight_rows_in_a_bank_that_become_two():
    for rung, b in (("h08", 8), ("h09", 2), ("h10", 2)):
        assert ways(rung, find_rung(rung).default)["B"] == b


@pytest.mark.parametrize("layouts", ["nn", "tt"])
@pytest.mark.parametrize(
    ("tile_m", "tile_n", "tile_k"), [(64, 64, 32), (128, 256, 32), (32, 16, 64), (16, 32, 128), (16, 128, 32)]
)
def test_h11_has_no_conflict_in_any_tile(tile_m, tile_n, tile_k, layouts):
    config = GemmConfig(tile_m, tile_n, tile_k, warp_m=tile_m // (2 if tile_m > 16 else 1), warp_n=16, stages=3)
    product = Bench(Case(tile_m, tile_n, 2 * tile_k, layouts)).run(find_rung("h11"), config)
    product.assert_right()
    counters = product.result.counters
    assert counters.shared_load_wavefronts == counters.shared_load_ideal > 0
    assert counters.async_copy_wavefronts == counters.async_copy_ideal > 0


def test_the_numbers_are_those_of_the_swizzles_alone():
    """Eight lines of `inner` elements at one column of 16-byte chunks: how many share a bank, by arithmetic."""

    def share(swizzle: Swizzle, inner: int) -> int:
        columns = [swizzle(line * inner) % 64 // 8 for line in range(8)]
        return max(columns.count(column) for column in columns)

    plain, h09 = Swizzle(0, 3, 3), Swizzle(3, 3, 3)
    assert [share(plain, inner) for inner in (16, 32, 64, 128, 256)] == [2, 4, 8, 8, 8]
    assert [share(h09, inner) for inner in (16, 32, 64, 128, 256)] == [1, 1, 1, 2, 4]
    free = {2**bits: Swizzle(min(3, bits - 3), 3, max(3, bits - 3)) for bits in range(4, 9)}  # h11's
    assert {share(swizzle, inner) for inner, swizzle in free.items()} == {1}
