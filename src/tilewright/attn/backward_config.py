"""The tiles of attention's gradients and their text, and the walks that a config means."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigRejected
from .backward_problem import BackwardProblem
from .config import D_HEADS, copies_reason, slice_of

ROW_RUN = 128
"""row_run in cuda/attention/backward_args.cuh: statistics of an entry's queries fill whole runs."""
_TILE = r"(\d+)x(\d+)/(\d+)(?:x(\d+))?(\+buffer)?(?:\+(\d+)_blocks)?(?:\+(\d+)_stages)?"
_GRAMMAR = re.compile(rf"d(\d+)(?: in (\d+))?: (apart )?keys {_TILE}(?:, queries {_TILE}|, sums (\d+)( in order)?)")


@dataclass(frozen=True)
class Tile:
    """A block of `warps` warps keeps `rows` rows of two operands; tiles of `cols` rows of two others pass."""

    rows: int
    cols: int
    warps: int
    along: int = 1
    """Warps that share rows: each makes a part of their scores, and then sums for a part of their d_head columns."""
    buffer: bool = False
    """Whether two sets of fragments take turns: one is loaded while the other is multiplied."""
    min_blocks: int = 1
    """Blocks per SM that the compiler must leave registers for."""
    stages: int = 2
    """Tiles of what passes that shared memory holds."""

    def __str__(self) -> str:
        shared = f"x{self.along}" if self.along > 1 else ""
        text = f"{self.rows}x{self.cols}/{self.warps // self.along}{shared}" + "+buffer" * self.buffer
        text += f"+{self.min_blocks}_blocks" if self.min_blocks > 1 else ""
        return text + (f"+{self.stages}_stages" if self.stages != 2 else "")

    @staticmethod
    def read(
        rows: str, cols: str, warps: str, along: str | None, buffer: str | None, blocks: str | None, stages: str | None
    ) -> Tile:
        """The tile of _TILE's groups."""
        shared = int(along or 1)
        return Tile(int(rows), int(cols), int(warps) * shared, shared, bool(buffer), int(blocks or 1), int(stages or 2))

    def why_not(self) -> str | None:
        """Return None when a kernel can be made with it, or the reason."""
        if self.warps not in (1, 2, 4, 8, 16):
            return f"{self.warps} warps must be a power of two up to 16"
        if self.along not in (1, 2, 4) or self.warps % self.along:
            return f"{self.warps} warps cannot share rows by {self.along}"
        apart = self.warps // self.along
        if self.rows < 1 or self.rows % (16 * apart):
            return f"{self.rows} rows must be a multiple of {16 * apart}: 16 for each of {apart} warps"
        if self.cols not in (32, 64, 128):
            return f"{self.cols} columns must be 32, 64 or 128"
        if self.cols % (16 * self.along):
            return f"{self.cols} columns are not whole pieces of 16 for {self.along} warps"
        if self.stages < 2:
            return f"the next tile is copied while one is multiplied, which takes 2 stages; it has {self.stages}"
        return None


def _shares_columns(d_head: int, by: int, columns: int | None = None) -> bool:
    """Return whether `by` warps take d_head columns in pieces that lie whole in slices, or in parts of one."""
    columns = columns or slice_of(d_head, by)
    part = d_head // by
    return d_head % (16 * by) == 0 and (by == 1 or part % columns == 0 or columns % part == 0)


@dataclass(frozen=True)
class BackwardConfig:
    """The tiles of a backward pass: `dD: [apart ]keys ROWSxCOLS/WARPS, queries ROWSxCOLS/WARPS` or `..., sums N`.

    dD in W: rows of D elements lie in tiles W columns wide, whose others are zeros.
    keys: a block keeps ROWS keys, and tiles of COLS queries pass. queries: the walk that makes dQ; `sums N` stands for
    dQ made in the walk by keys, by warps of which N share its rows, `sums N in order` for that with additions in a
    fixed order. apart: dV and dK are made by a walk each, since their accumulators do not fit registers together.
    """

    d_head: int
    keys: Tile
    queries: Tile | None = None
    sums: int = 0
    apart: bool = False
    ordered: bool = False
    """Whether blocks of keys add to dQ in their order, each waiting for the one before."""
    wider: int = 0
    """The columns of a tile where they are more than d_head."""

    @property
    def columns(self) -> int:
        """The columns of a tile in shared memory."""
        return self.wider or self.d_head

    def __str__(self) -> str:
        text = f"d{self.d_head}{f' in {self.wider}' * bool(self.wider)}: {'apart ' * self.apart}keys {self.keys}"
        return text + (
            f", queries {self.queries}"
            if self.queries is not None
            else f", sums {self.sums}{' in order' * self.ordered}"
        )

    @staticmethod
    def parse(text: str) -> BackwardConfig:
        """The config that str() wrote. Raises ConfigRejected for another text."""
        match = _GRAMMAR.fullmatch(text.strip())
        if match is None:
            raise ConfigRejected(
                f"{text!r} is not a backward config. One reads d128: keys 128x64/8, queries 128x64/8 or "
                "d128: keys 128x64/8, sums 4"
            )
        d, wider, apart, *rest = match.groups()
        queries = Tile.read(*rest[7:14]) if rest[7] else None
        order = bool(apart), bool(rest[15]), int(wider or 0)
        return BackwardConfig(int(d), Tile.read(*rest[:7]), queries, int(rest[14] or 0), *order)

    @property
    def deterministic(self) -> bool:
        """Return whether gradients are the same bits at every run: blocks share no sum, or add to it in a fixed
        order."""
        return not self.sums or self.ordered

    def to_dict(self) -> dict[str, Any]:
        return {"attention_backward": str(self)}

    def why_not(self) -> str | None:
        """Return None when kernels can be made with it, or the reason."""
        if self.d_head not in D_HEADS:
            return f"d_head={self.d_head} is not one of {', '.join(map(str, D_HEADS))}"
        if self.wider and self.wider <= self.d_head:
            return f"tiles {self.wider} columns wide are for rows of fewer; d_head={self.d_head}"
        for tile in (self.keys, *([self.queries] if self.queries is not None else [])):
            if reason := tile.why_not():
                return reason
            if not _shares_columns(self.columns, tile.along):
                return f"{self.columns} columns are not shared evenly by {tile.along} warps"
            if reason := copies_reason(tile.warps, slice_of(self.columns, tile.along)):
                return reason
        if self.queries is not None:
            if ROW_RUN % self.queries.rows:
                return f"{self.queries.rows} queries must divide {ROW_RUN}"
            return "sums are for dQ made in the walk by keys: omit queries" if self.sums or self.ordered else None
        tile, along = self.keys, self.sums
        if along not in (1, 2, 4, 8) or tile.warps % along or tile.cols % (16 * along):
            return f"sums {along}: {tile.cols} queries are not whole pieces of 16 for {along} of {tile.warps} warps"
        if not _shares_columns(self.columns, tile.warps // along, slice_of(self.columns, tile.along)):
            return f"sums {along}: {self.columns} columns are not shared evenly by {tile.warps // along} warps"
        return None


@dataclass(frozen=True)
class Walk:
    """One launch of a config: which rows are kept, and which gradients it makes."""

    by_keys: bool
    tile: Tile
    columns: int
    """Of a tile in shared memory."""
    makes_1: bool = True
    """dK by keys, dQ by queries."""
    makes_2: bool = False
    """dV."""
    sums: int = 0
    ordered: bool = False

    @property
    def name(self) -> str:
        made = [*(["dK"] if self.makes_1 else []), *(["dV"] if self.makes_2 else [])] if self.by_keys else ["dQ"]
        return " ".join([*made, *(["dQ sums"] if self.sums else [])])

    @property
    def sums_bytes(self) -> int:
        """A tile of dQ in fp32."""
        return 4 * self.tile.cols * self.columns

    def shared_bytes(self, problem: BackwardProblem) -> int:
        """Dynamic shared memory of a block (Walk::shared_bytes in cuda/attention/backward_walk.cuh)."""
        tile = self.tile
        stats = 4 * problem.stat_floats * tile.cols if self.by_keys else 0
        scores = 4 * tile.rows * tile.cols if self.sums or tile.along > 1 else 0
        return 4 * self.columns * (tile.rows + tile.stages * tile.cols) + tile.stages * stats + scores


def walks_of(config: BackwardConfig) -> tuple[Walk, ...]:
    """The launches of a config that make gradients, in order."""
    keys, columns = config.keys, config.columns
    if config.apart:
        walks = [Walk(True, keys, columns, makes_1=False, makes_2=True)]
        walks += [Walk(True, keys, columns, sums=config.sums, ordered=config.ordered)]
    else:
        walks = [Walk(True, keys, columns, True, True, config.sums, config.ordered)]
    if config.queries is not None:
        walks.append(Walk(False, config.queries, columns))
    return tuple(walks)
