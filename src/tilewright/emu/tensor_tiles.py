"""Products of tensor cores by the compiled sums (native/tensor.c, warps.c): what they are told, and in which order.

The bits are those of isa/tensor_sum.py. Integers, fp64, and the fp8 forms that an assembler makes of others are left to
NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from .compiled import address
from .isa import fragments, tensor_sum

if TYPE_CHECKING:
    from .isa.mma import Held
    from .machine import Machine

KINDS = ("f16", "bf16", "tf32", "e4m3", "e5m2")
"""As native/tensor.c numbers them."""
COLUMNS = 16
"""Columns of a product that it sums up at once."""


def described(
    machine: Machine, unit: str, shape: tuple[int, int, int], kinds: tuple[str, str, str, str], negative: bool = False
) -> np.ndarray | None:
    """The product as the compiled sums are told of it; None for one that they do not have. kinds: of D, A, B and C."""
    d, a, b, c = kinds
    rule = tensor_sum.rule_for(unit, a, machine.gpu.arch.compute_capability) if unit in tensor_sum.RULES else None
    if machine.compiled is None or rule is None or rule.as_halves or d != c or d not in ("f32", "f16"):
        return None
    if a not in KINDS or b not in KINDS:
        return None
    tables = [address(table) for table in _fp8_tables()]
    return np.array(
        [KINDS.index(a), KINDS.index(b), negative, *shape, rule.fraction, rule.step, rule.kept, d == "f16", *tables],
        np.int64,
    )


@lru_cache(maxsize=1)
def _fp8_tables() -> list[np.ndarray]:
    return [tensor_sum.fp8_values(kind) for kind in tensor_sum.FP8] + [
        tensor_sum.fp8_exponents(kind) for kind in tensor_sum.FP8
    ]


def _places(layout: Callable[[np.ndarray], np.ndarray], registers: int, size: int) -> np.ndarray:
    """The byte within a warp's registers, one after another, of each element of a matrix: int32.

    layout: what makes a warp's matrix of its registers (isa/fragments.py); it is asked where it takes numbers from.
    """
    together = 4 // size
    number = np.arange(registers * 32 * together)
    found = np.zeros(0, np.int64)
    for shift in (0, 8):  # elements may be of one byte
        words = (number >> shift & 255).astype(f"u{size}").view(np.uint32).reshape(registers, 32)
        part = layout(words)[..., 0].astype(np.int64).reshape(-1)
        found = part if not shift else found + (part << 8)
    return (found * size).astype(np.int32)


@dataclass(frozen=True)
class _Layout:
    """Where the elements of D, A, B and C of a product lie in a warp's registers, as the loops are told of it."""

    turned: bool
    """They are asked for D' = B' A': they go along columns."""
    places: tuple[np.ndarray, ...]
    """Of each matrix: see _places."""
    runs: tuple[int, ...]
    """Of each: elements that lie next to one another."""
    lanes: tuple[np.ndarray, ...] | None
    """See _in_order_of_lanes."""


@lru_cache(maxsize=64)
def _layout(shape: tuple[int, int, int], registers: tuple[int, ...], sizes: tuple[int, int, int]) -> _Layout:
    """registers: of D, A, B and C; sizes: bytes of an element of C, A and B."""
    m, n, k = shape
    c_size, a_size, b_size = sizes
    # What becomes D, A, B and C there: [rows, columns], [rows, k], [k, columns].
    layouts: tuple[Callable[[np.ndarray], np.ndarray], ...] = (
        lambda words: fragments.d_matrix(words, m, n, c_size),
        lambda words: fragments.a_matrix(words, m, a_size)[:, :, 0].swapaxes(0, 1),
        lambda words: fragments.b_matrix(words, n, b_size)[:, 0],
        lambda words: fragments.d_matrix(words, m, n, c_size),
    )
    turned = bool(n % COLUMNS and not m % COLUMNS)
    each = c_size, a_size, b_size, c_size
    places = tuple(_places(*told) for told in zip(layouts, registers, each, strict=True))
    if turned:
        rows = (m, n), (m, k), (k, n), (m, n)
        d, a, b, c = (np.ascontiguousarray(x.reshape(of).T).reshape(-1) for x, of in zip(places, rows, strict=True))
        places, each, m, n = (d, b, a, c), (c_size, b_size, a_size, c_size), n, m
    runs = []
    for place, size in zip(places, each, strict=True):
        run = 16 // size
        in_rows = len(place) % run == 0 and (np.diff(place.reshape(-1, run), axis=1) == size).all()
        runs.append(run if in_rows else 1)
    return _Layout(turned, places, tuple(runs), _in_order_of_lanes((m, n, k), places, each[2]) if c_size == 4 else None)


def _in_order_of_lanes(
    shape: tuple[int, int, int], places: tuple[np.ndarray, ...], size: int
) -> tuple[np.ndarray, ...] | None:
    """Return where the loops find what each lane of D multiplies; None for an order of registers that they lack.

    places: of the elements of D, A and B; size: bytes of one of B.
    """
    m, n, k = shape
    if m * n != 4 * 32:
        return None
    element = np.empty(4 * 32, np.int64)
    element[places[0] // 4] = np.arange(4 * 32)
    row, column = np.divmod(element.reshape(4, 32), n)
    if (row[:2] != row[2:]).any() or (column[::2] != column[1::2]).any():
        return None
    of_a = places[1].reshape(m, k)[row[:2]].swapaxes(1, 2)  # [2, k, 32]
    of_b = places[2].reshape(k, n).T[column[::2]].swapaxes(1, 2)
    lane, plane = of_b % 128 // 4, of_b // 128 * (4 // size) + of_b % 4 // size
    if (of_a != np.tile(of_a[:, :, :4], 8)).any() or (plane != plane[:, :, :1]).any():
        return None
    return (
        np.ascontiguousarray(of_a[:, :, :4].swapaxes(0, 1), np.int32),
        np.ascontiguousarray(plane[:, :, 0], np.int32),
        np.ascontiguousarray(lane, np.int32),
        np.ascontiguousarray(lane, np.int16),
    )


class Warps:
    """The products of some independent instructions by warps, whose operands are in registers."""

    def __init__(
        self, machine: Machine, product: np.ndarray, held: tuple[Held, Held, Held, Held], sizes: tuple[int, int, int]
    ) -> None:
        """held: D, A, B and C; sizes: bytes of an element of C, A and B."""
        self.machine, self.product = machine, product
        m, n, k = (int(v) for v in product[3:6])
        layout = _layout((m, n, k), tuple(len(operand.rows) for operand in held), sizes)
        if layout.turned:
            d, a, b, c = held
            held = d, b, a, c
            self.product = product.copy()
            self.product[[0, 1, 3, 4]] = product[[1, 0, 4, 3]]
        self._kept: list[Any] = [layout]
        told = []
        for operand, place, run in zip(held, layout.places, layout.runs, strict=True):
            rows = np.ascontiguousarray(operand.rows[:, :, 0], np.int64)
            slots: dict[tuple[int, ...], int] = {}
            slot = np.array([slots.setdefault(tuple(column), len(slots)) for column in rows.T.tolist()], np.int32)
            self._kept += [rows, slot]
            told += [
                address(operand.bank),
                operand.bank.strides[0],
                len(rows),
                address(rows),
                address(place),
                run,
                len(slots),
                address(slot),
                len(slot),
            ]
        self.fragments = np.array(told, np.int64)
        self.instructions = held[0].rows.shape[1]
        lanes = layout.lanes
        self.places = None if lanes is None else np.array([address(table) for table in lanes], np.int64)
        tables = (self.product, self.fragments, self.places)
        self.told = np.array([*(0 if t is None else address(t) for t in tables), self.instructions], np.int64)
        if machine.engine:
            machine.engine.products = self.told

    def run(self, warps: np.ndarray | None) -> None:
        """Multiply, for these warps of the batch or for all."""
        library = self.machine.compiled
        assert library is not None
        count = self.machine.lanes // 32 if warps is None else len(warps)
        place = 0 if warps is None else address(warps)
        done = library.mma(*self.told.tolist(), place, count)
        _expect_room(done)


@dataclass(frozen=True)
class Matrices:
    """Matrices in memory, one per tile or warpgroup, as the loops are told of them (native/warps.c).

    held: what has to stay where it is.
    """

    told: np.ndarray
    held: Any

    @classmethod
    def of(cls, words: np.ndarray, count: int) -> Matrices:
        """Take those of [k, outer, inner or 1, size], for so many tiles: outer times inner."""
        words = np.ascontiguousarray(words)
        outer, size = words.shape[1], words.shape[3]
        inner = count // outer
        assert outer * inner == count
        assert words.shape[2] in (inner, 1)
        tiles = np.arange(count)
        places = (tiles if words.shape[2] > 1 else tiles // inner) * size
        return cls(np.array([address(words), address(places), words[0].size, 0], np.int64), (words, places))


def run_tiles(machine: Machine, product: np.ndarray, a: np.ndarray, b: np.ndarray, d: np.ndarray) -> None:
    """Add products to D [outer, inner, m, n] in place: A [k, outer, inner or 1, m] and B likewise, all bits."""
    assert machine.compiled is not None
    count = d.shape[0] * d.shape[1]
    left, right = Matrices.of(a, count), Matrices.of(b, count)
    done = machine.compiled.tiles(address(product), count, address(left.told), address(right.told), address(d))
    _expect_room(done)


def run_warpgroups(
    machine: Machine, product: np.ndarray, a: Matrices, b: Matrices, rows: np.ndarray, first_warps: np.ndarray,
    kept: np.ndarray,
) -> None:  # fmt: skip
    """The same for warpgroups, which hold D in the rows of registers `rows`, as fp32.

    first_warps: of each warpgroup; kept: whether it adds to what is there.
    """
    assert machine.compiled is not None
    bank = machine.banks[4]
    own: list[np.ndarray] = [rows.astype(np.int64), first_warps.astype(np.int64), kept.astype(np.uint8)]
    held = np.array([address(bank), bank.strides[0], *(address(table) for table in own)], np.int64)
    told = address(a.told), address(b.told), address(held)
    _expect_room(machine.compiled.warpgroups(address(product), len(first_warps), *told))


def _expect_room(done: int) -> None:
    if not done:
        raise MemoryError("no room for the operands of tensor cores")
