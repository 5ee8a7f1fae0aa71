"""The tiles of an attention kernel: what every kind of config has, and those of the rungs of mma.sync."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import ConfigRejected

if TYPE_CHECKING:
    from typing_extensions import Self

D_HEADS = (32, 64, 96, 128, 192, 256)
"""The columns of a row that kernels are made for; others are copied to the next of them."""
_GRAMMAR = re.compile(
    r"\((\d+), ?(\d+), ?(\d+), ?(\d+)\): load_([02])_([02])_([02])_fragments(\+buffer)?(?:\+(\d+)_blocks)?"
)


class Tiles:
    """The properties that planning and the model of time ask of every kind of attention config."""

    d_head: int
    b_r: int
    """Rows of a block's tile."""
    b_c: int
    """Keys of a step."""
    parts: int = 1
    """In how many launched parts the keys are walked."""
    min_blocks: int = 1
    """Blocks per SM that the compiler must leave registers for."""

    @property
    def whole_k(self) -> Self:
        """The same with the keys in one part."""
        return self

    @property
    def tile(self) -> tuple[int, int, int]:
        """Rows, keys and columns of a block's step."""
        return self.b_r, self.b_c, self.d_head

    def to_dict(self) -> dict[str, Any]:
        return {"attention": str(self)}


def slice_of(d_head: int, along: int = 1) -> int:
    """The columns of a slice of a tile (tile/head_tile.cuh), such that `along` warps share whole ones."""
    part = d_head // along
    return 64 if d_head % 64 == 0 and (part % 64 == 0 or part in (16, 32)) else 32


def copies_reason(warps: int, columns: int) -> str | None:
    """Why so many warps cannot copy tiles of rows in slices of `columns` (copy_rows in cuda/tile/head_copy.cuh); None
    if they can."""
    if (step := 256 * warps // columns) % 8 == 0:
        return None
    return f"its warps copy {step} rows of {columns} columns in a step, which must be a multiple of 8: take more warps"


@dataclass(frozen=True)
class AttentionConfig(Tiles):
    """The tiles of an attention kernel: `(d_head, b_r, b_c, n_warps): load_Q_K_V_fragments[+buffer][+N_blocks]`.

    A block of n_warps warps makes b_r rows of out from tiles of b_c keys and values. load_*: 0 brings an operand into
    registers as a whole, 2 in slices of two fragments, as they are multiplied. `buffer`: two sets of slices take turns.
    `min_blocks`: blocks per SM that the compiler must leave registers for.
    """

    d_head: int
    b_r: int
    b_c: int
    n_warps: int
    load_q: int = 0
    load_k: int = 0
    load_v: int = 0
    buffer: bool = False
    min_blocks: int = 1

    @property
    def threads(self) -> int:
        return 32 * self.n_warps

    @property
    def shared_bytes(self) -> int:
        """The bytes of a block: one tile each of Q (later out), K and V."""
        return 2 * self.d_head * (self.b_r + 2 * self.b_c)

    @property
    def legend(self) -> str:
        """One line that says what the parts of the text mean."""
        loads = "load_Q_K_V: 0 loads an operand's fragments at once, 2 in slices"
        told = ["(d_head, queries per block, keys per step, warps)", loads]
        told += ["buffer: two slices take turns"] if self.buffer else []
        told += ["blocks: at least so many per SM"] if self.min_blocks != 1 else []
        return "; ".join(told)

    def __str__(self) -> str:
        text = f"({self.d_head}, {self.b_r}, {self.b_c}, {self.n_warps}): "
        text += f"load_{self.load_q}_{self.load_k}_{self.load_v}_fragments"
        return text + "+buffer" * self.buffer + (f"+{self.min_blocks}_blocks" if self.min_blocks != 1 else "")

    @staticmethod
    def parse(text: str) -> AttentionConfig:
        """The config that str() wrote. Raises ConfigRejected for another text."""
        match = _GRAMMAR.fullmatch(text.strip())
        if match is None:
            raise ConfigRejected(
                f"{text!r} is not an attention config. One reads (d_head, b_r, b_c, n_warps): load_Q_K_V_fragments, "
                "each load 0 or 2, with +buffer and +N_blocks where wanted: "
                "(128, 128, 64, 4): load_2_2_2_fragments+buffer"
            )
        d_head, b_r, b_c, n_warps, q, k, v = map(int, match.groups()[:7])
        buffer, blocks = match.groups()[7:]
        return AttentionConfig(d_head, b_r, b_c, n_warps, q, k, v, bool(buffer), int(blocks or 1))

    def why_not(self) -> str | None:
        """Return None when kernels can be made with it, or the reason."""
        if self.d_head not in D_HEADS:
            return f"d_head={self.d_head} is not one of {', '.join(map(str, D_HEADS))}"
        if self.n_warps not in (1, 2, 4, 8, 16):
            return f"n_warps={self.n_warps} must be a power of two up to 16"
        if self.b_r % (16 * self.n_warps) or self.b_r == 0:
            return f"b_r={self.b_r} must be a multiple of {16 * self.n_warps}: 16 rows for each of {self.n_warps} warps"
        if self.b_c < 16 or self.b_c & (self.b_c - 1):
            return f"b_c={self.b_c} must be a power of two and at least 16"
        for name in ("load_q", "load_k", "load_v"):
            if getattr(self, name) not in (0, 2):
                return f"{name}={getattr(self, name)} must be 0 (whole) or 2 (slices of two fragments)"
        if self.min_blocks < 1:
            return f"min_blocks={self.min_blocks} must be at least 1"
        return None
