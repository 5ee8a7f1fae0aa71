"""The attention rungs of Hopper, which copy by TMA and multiply by wgmma, and their configs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

from ..arrays.dtypes import ceil_div
from ..errors import ConfigRejected
from ..gpus import Arch
from ..jit import Launch
from ..jit.params import Address, Template, pack, pack_maps
from ..jit.source import Constant
from ..jit.tensor_map import TensorMap
from .config import D_HEADS, Tiles
from .problem import AttentionProblem, HeadRows
from .rung import AttentionAddresses, AttentionRung, pack_args, problem_constants

KERNELS = "attention/hopper.cuh"
"""The file of every rung of Hopper; Cfg names one."""
ONLY_ON = "sm_90a"
TURNS = ("", "products", "exponentials")
"""What warpgroups do in turns."""
_GRAMMAR = re.compile(
    r"\((\d+)(?:/(\d+))?, ?(\d+), ?(\d+)\): (\d+)_stages(?:\+(\d+)_q)?(?:\+(products|exponentials)_in_turns)?"
)
_ARGS = "<3i4xQ"
"""What HopperArgs in cuda/attention/hopper.cuh adds to AttentionArgs; a test holds them equal."""
_OTHERS = 24
"""Registers per thread besides out, scores and weights."""
LEAST_STRIDE, STRIDES_END = 0, 1 << 40
"""In bytes, what a tensor map takes."""
_MOST_TILES = 2**31 - 1
_FEWEST_SMS = 64
"""That a GPU of this architecture has: so many tiles are made at once."""


@dataclass(frozen=True)
class HopperConfig(Tiles):
    """The tiles of an attention kernel of Hopper: `(d_head[/d_v], b_r, b_c): N_stages[+2_q][+products_in_turns]`.

    Each warpgroup of a block makes 64 of its b_r rows from tiles of b_c keys and values. `stages`: tiles of K, and of
    V, that shared memory holds. `turns`: what warpgroups do one after the other: "products" are started, "exponentials"
    are computed, or "" for nothing. `q_buffers`: tiles of Q that a warpgroup has room for; with two, the next comes
    while one is multiplied. `d_v`: columns of values where they are not d_head.
    """

    d_head: int
    b_r: int
    b_c: int
    stages: int = 2
    turns: str = ""
    q_buffers: int = 1
    d_v: int = 0

    @property
    def columns(self) -> int:
        """The columns of values, and of out."""
        return self.d_v or self.d_head

    @property
    def groups(self) -> int:
        """Warpgroups that multiply."""
        return self.b_r // 64

    @property
    def threads(self) -> int:
        """Threads of a block in which one warpgroup more copies."""
        return 128 * (self.groups + 1)

    @property
    def registers(self) -> int:
        """Registers per thread, estimated: out and scores in fp32, weights in 16 bits, and the rest."""
        return self.columns // 2 + self.b_c // 2 + self.b_c // 4 + _OTHERS

    @property
    def shared_bytes(self) -> int:
        """The bytes of a block: Q, the tiles of K and V, 8 bytes a barrier, and the drawn tiles of out with each Q."""
        barriers = (2 * self.q_buffers + 4) * self.groups + 4 * self.stages
        drawn = 32 * self.q_buffers * self.groups + 8
        tiles = self.q_buffers * self.b_r * self.d_head + self.stages * self.b_c * (self.d_head + self.columns)
        return 2 * tiles + 8 * barriers + drawn

    @property
    def legend(self) -> str:
        """One line that says what the parts of the text mean."""
        told = ["(d_head, queries per block, keys per tile)", "stages: tiles of K, and of V, in shared memory"]
        told += [f"in turns: warpgroups' {self.turns} do not meet"] if self.turns else []
        return "; ".join(told)

    def __str__(self) -> str:
        d = f"{self.d_head}/{self.d_v}" if self.d_v else str(self.d_head)
        text = f"({d}, {self.b_r}, {self.b_c}): {self.stages}_stages"
        text += f"+{self.q_buffers}_q" if self.q_buffers > 1 else ""
        return text + (f"+{self.turns}_in_turns" if self.turns else "")

    @staticmethod
    def parse(text: str) -> HopperConfig:
        """The config that str() wrote. Raises ConfigRejected for another text."""
        match = _GRAMMAR.fullmatch(text.strip())
        if match is None:
            raise ConfigRejected(
                f"{text!r} is not a config of Hopper's rungs. One reads (d_head, b_r, b_c): N_stages, or "
                "(d_head/d_v, b_r, b_c), with +2_q and +products_in_turns or +exponentials_in_turns where wanted: "
                "(128, 128, 128): 2_stages"
            )
        d_head, d_v, b_r, b_c, stages, q_buffers = (int(number or 0) for number in match.groups()[:6])
        return HopperConfig(d_head, b_r, b_c, stages, match[7] or "", q_buffers or 1, d_v)

    def why_not(self) -> str | None:
        """Return None when kernels can be made with it, or the reason."""
        if self.d_head not in D_HEADS:
            return f"d_head={self.d_head} is not one of {', '.join(map(str, D_HEADS))}"
        if self.d_v and (self.d_v not in D_HEADS or self.d_v == self.d_head):
            return f"d_v={self.d_v} is not one of {', '.join(map(str, D_HEADS))}, or is d_head: then it is 0"
        if self.b_r not in (64, 128, 192):
            return f"b_r={self.b_r} is not one of 64, 128, 192: 64 rows for each of up to three warpgroups"
        if not 16 <= self.b_c <= 256 or self.b_c % 16:
            return f"b_c={self.b_c} is not a multiple of 16 from 16 to 256, the widths of a product"
        if self.stages < 1:
            return f"stages={self.stages} must be at least 1"
        if self.q_buffers not in (1, 2):
            return f"q_buffers={self.q_buffers} must be 1 or 2"
        if self.turns not in TURNS:
            return f"turns={self.turns!r} is not one of {', '.join(map(repr, TURNS))}"
        if self.turns and self.groups == 1:
            return f"{self.turns} in turns need two warpgroups; b_r={self.b_r} is one"
        return self.too_many(self.registers)

    def too_many(self, registers: int) -> str | None:
        """Return None where a thread may have so many registers, or why not."""
        limit = 160 if self.groups == 3 else 240
        if registers <= limit:
            return None
        return f"it needs about {registers} registers per thread; {self.groups} warpgroups have {limit} each"


@dataclass(frozen=True)
class HopperRung(AttentionRung):
    """A rung of Hopper."""

    has_producer: bool = True
    """A warpgroup only copies (a19)."""
    stays: bool = False
    """As many blocks as SMs make all tiles (a22)."""

    @property
    def include(self) -> str:
        return KERNELS

    def defaults_for(self, problem: AttentionProblem) -> tuple[HopperConfig, ...]:
        """Return a default: of values of another width than keys none was measured, so as many keys a tile as registers
        hold."""
        if not problem.d_v:
            return super().defaults_for(problem)
        turns = self.defaults[0].turns
        tiles = (HopperConfig(problem.d_head, 128, b_c, 2, turns, d_v=problem.d_v) for b_c in (128, 96, 64, 48, 32))
        return tuple(config for config in tiles if (config.why_not() or self.check(config)) is None)

    def draws(self, problem: AttentionProblem, config: HopperConfig) -> bool:
        """Return whether blocks draw their tiles from a counter: only the device knows what those of packed lengths
        take."""
        return self.stays and problem.totals is not None and _tiles(problem, config) > _FEWEST_SMS

    def threads(self, config: HopperConfig) -> int:
        """Threads of a block."""
        return config.threads if self.has_producer else 128 * config.groups

    def not_on(self, arch: Arch) -> str | None:
        if arch.name != ONLY_ON:
            return f"{self.id} needs instructions that only {ONLY_ON} has; the target is {arch}"
        return None

    def why_not(self, problem: AttentionProblem, config: Any, arch: Arch) -> str | None:
        if not isinstance(config, HopperConfig):
            return f"{self.id} takes configs of Hopper's rungs, (d_head, b_r, b_c): N_stages; {config} is not one"
        if config.q_buffers > 1 and not self.stays:
            return f"{self.id} makes one tile of out; {config} has room for Q of the next"
        if reason := super().why_not(problem, config, arch):
            return reason
        if 0 in (problem.totals or (problem.seq_q, problem.seq_k)):
            return f"{self.id} copies by TMA, which has no operand without rows; here are no keys"
        for name in ("q", "k", "v"):
            rows: HeadRows = getattr(problem, name)
            for stride in (rows.batch_stride, rows.head_stride, rows.row_stride):
                if not LEAST_STRIDE <= 2 * stride < STRIDES_END:
                    return f"a stride of {name} is {2 * stride} bytes; TMA takes {LEAST_STRIDE} to 2^40 - 1"
        if (tiles := _tiles(problem, config)) > _MOST_TILES:
            return f"{tiles} tiles of {config.b_r} rows; a grid holds {_MOST_TILES}"
        return None

    def constants(self, problem: AttentionProblem, config: Any) -> dict[str, Constant]:
        return {
            "rung": f"struct {self.id.split('_')[0].upper()}",
            "b_r": config.b_r,
            "b_c": config.b_c,
            "stages": config.stages,
            "q_buffers": config.q_buffers,
            "d_v": config.columns,
            "turns": TURNS.index(config.turns),
            "threads": self.threads(config),
            "edge_q": problem.totals is not None or problem.seq_q % config.b_r != 0,
            "edge_k": problem.totals is not None or problem.seq_k % config.b_c != 0,
            "packed": 1,
            "draws": self.draws(problem, config),
        } | problem_constants(problem, self.scale_first(problem))

    def shape(self, problem: AttentionProblem, config: Any) -> Launch:
        grid, block = (_tiles(problem, config), 1, 1), (self.threads(config), 1, 1)
        return Launch(grid, block, b"", config.shared_bytes, self.draws(problem, config), resident=int(self.stays))

    def params(self, problem: AttentionProblem, config: Any, at: AttentionAddresses) -> Template:
        """Tensor maps of Q, K and V, then HopperArgs. Raises ValueError for tiles to draw without a counter."""
        if self.draws(problem, config) and at.drawn == 0:
            raise ValueError(f"{self.id}: blocks draw the tiles of packed lengths from a counter, which starts at 0")
        boxes: list[tuple[TensorMap, Address]] = [
            (map_of(problem, "q", 64), at.q), (map_of(problem, "k", config.b_c), at.k),
            (map_of(problem, "v", config.b_c), at.v),
        ]  # fmt: skip
        added = (problem.heads_q, _row_tiles(problem, config), _tiles(problem, config))
        return pack_maps(boxes) + pack_args(problem, self, at) + pack(_ARGS, *added, at.drawn)


def _tiles(problem: AttentionProblem, config: HopperConfig) -> int:
    """Tiles of out in all."""
    return _row_tiles(problem, config) * problem.heads_q * (1 if problem.totals else problem.batch)


def _row_tiles(problem: AttentionProblem, config: HopperConfig) -> int:
    """Tiles of a head; with packed lengths of all entries, each of which ends with a tile of its own."""
    if problem.totals is not None:
        return problem.totals[0] // config.b_r + problem.batch
    return ceil_div(problem.seq_q, config.b_r)


def map_of(problem: AttentionProblem, name: str, box_rows: int) -> TensorMap:
    """Operand "q", "k", "v" or "out" as [batch, heads, panels, rows, columns of a panel]; a box is a tile in panels.

    With packed lengths it is one entry of all rows.
    """
    rows: HeadRows = getattr(problem, name)
    lengths = problem.totals or (problem.seq_q, problem.seq_k)
    heads, length = (problem.heads_q, lengths[0]) if name in ("q", "out") else (problem.heads_kv, lengths[1])
    batch = 1 if problem.totals else problem.batch
    columns = problem.columns(name)
    panel = 32 if columns % 64 else 64
    panels = columns // panel
    strides = (2 * rows.row_stride, 2 * panel, 2 * rows.head_stride, 2 * rows.batch_stride)
    return TensorMap(
        None, problem.dtype, (panel, length, panels, heads, batch), strides, (panel, box_rows, panels, 1, 1),
        swizzle=2 * panel,
    )  # fmt: skip


# --- configs ---------------------------------------------------------------------------------------------------------


_TILES = {32: (192, 128), 64: (192, 128), 96: (128, 128), 128: (128, 128), 192: (128, 96), 256: (128, 80)}
"""For each d_head, as much of out and of scores as registers hold;"""
_SMALLER = _TILES | {32: (192, 96), 64: (192, 96), 192: (128, 64), 256: (128, 64)}
"""and beside two sets of weights."""


def _space(turns: tuple[str, ...], d_head: int) -> tuple[HopperConfig, ...]:
    """b_r x b_c x stages x turns, as far as registers go."""
    return tuple(
        config
        for b_r, b_c, stages, turn in product((64, 128, 192), (64, 80, 96, 128, 160, 176, 192), (2, 3), turns)
        if (config := HopperConfig(d_head, b_r, b_c, stages, turn)).why_not() is None
    )


def _no_turns(config: HopperConfig) -> str | None:
    return "turns come with a21" if config.turns else None


def _any(config: HopperConfig) -> str | None:
    return None


def _two_sets(config: HopperConfig) -> str | None:
    return config.too_many(config.registers + config.b_c // 4)


def _rung(
    id: str, teaches: str, check: Callable[[HopperConfig], str | None] = _any, turns: str = "",
    tiles: dict[int, tuple[int, int]] = _TILES, has_producer: bool = True, stays: bool = False,
) -> HopperRung:  # fmt: skip
    defaults = tuple(HopperConfig(d_head, *tiles[d_head], turns=turns) for d_head in D_HEADS)
    space = partial(_space, ("",) if check is _no_turns else TURNS)
    return HopperRung(id, teaches, defaults, space, check, fused=True, has_producer=has_producer, stays=stays)


HOPPER_RUNGS: tuple[HopperRung, ...] = (
    _rung("a18_wgmma", "TMA copies tiles, wgmma multiplies them from shared memory, P stays in registers", _no_turns,
          has_producer=False),
    _rung("a19_producer", "a warpgroup only copies and gives its registers away: no other starts a copy", _no_turns),
    _rung("a20_overlap", "Q K^T of the next tile runs under the softmax of this one, and P V with it", _no_turns),
    _rung("a21_turns", "warpgroups take turns, so that one's softmax runs under another's products", turns="products"),
    _rung("a22_stays", "as many blocks as SMs: the next tile's copies run under the end of this one",
          turns="products", stays=True),
    _rung("a23_own_keys", "a warpgroup skips the tiles that the mask hides from its own 64 rows",
          turns="products", stays=True),
    _rung("a24_old_maximum", "weights by the maxima of the tiles before: nothing is compared first", _two_sets,
          turns="products", tiles=_SMALLER, stays=True),
)  # fmt: skip
