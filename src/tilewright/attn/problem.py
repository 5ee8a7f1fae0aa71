"""The problem of attention: what is computed, apart from how; frozen, validated, hashable."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ..arrays.dtypes import ITEM_BYTES, LARGEST_EXTENT
from ..errors import InvalidOperand

DTYPES = ("bf16", "f16")
MOST_TRACED_ROWS = 2**30
"""Queries and keys of a head where the caller's function counts them: sums of two indices then fit 32 bits."""
LAYOUTS = ("bhsd", "bshd")
_LARGEST_FACTOR = 2.0**127
"""Of what scores are multiplied by, so that fp32 holds its product with log2(e)."""


@dataclass(frozen=True)
class HeadRows:
    """The layout of [batch, heads, rows, d_head] in memory: strides in elements; elements of a row are neighbours.

    `alignment`: what divides the base address, in bytes, at most 16.
    """

    batch_stride: int
    head_stride: int
    row_stride: int
    alignment: int = 16

    @property
    def vector_bytes(self) -> int:
        """The widest power of two up to 16 that divides the address of every row of 16-bit elements."""
        strides = math.gcd(self.batch_stride, self.head_stride, self.row_stride)
        return math.gcd(16, self.alignment, 2 * strides)


def check_layout(layout: Any) -> None:
    """Raise InvalidOperand for what is not one of LAYOUTS; an array has no truth value."""
    if not isinstance(layout, str) or layout not in LAYOUTS:
        raise InvalidOperand(f"layout={layout!r} is not one of {', '.join(map(repr, LAYOUTS))}.")


def head_rows(heads: int, rows: int, d_head: int, layout: str = "bhsd") -> HeadRows:
    """A dense operand, [batch, heads, rows, d_head] in memory ("bhsd") or [batch, rows, heads, d_head] ("bshd")."""
    check_layout(layout)
    whole = heads * rows * d_head
    return HeadRows(whole, rows * d_head, d_head) if layout == "bhsd" else HeadRows(whole, d_head, heads * d_head)


@dataclass(frozen=True)
class BiasRows:
    """The layout of what is added to the scores [batch, heads_q, seq_q, seq_k]: strides in elements, 0 where it
    repeats."""

    batch_stride: int
    head_stride: int
    row_stride: int
    col_stride: int
    dtype: str
    """ "f32", or the operands' own."""
    alignment: int = 16

    @property
    def in_pairs(self) -> bool:
        """Return whether the elements of an even key and the next are neighbours at a multiple of their size."""
        item = ITEM_BYTES[self.dtype]
        even = all(stride % 2 == 0 for stride in (self.batch_stride, self.head_stride, self.row_stride))
        return self.col_stride == 1 and even and self.alignment % (2 * item) == 0


@dataclass(frozen=True)
class AttentionProblem:
    """out = softmax(scale Q K^T) V, for each batch entry and head; fp32 inside, out in the operands' type.

    Q is [batch, heads_q, seq_q, d_head], K [batch, heads_kv, seq_k, d_head]; V has K's rows and out has Q's, with d_v
    columns where that is not 0. Query head h reads head h // (heads_q // heads_kv). If causal, query i sees key j when
    j <= i + seq_k - seq_q. A query that sees no key gets 0, and -inf in the LSE (fp32 [batch, heads_q, seq_q], natural
    logarithm).

    A score goes through these in order, where given:
        s = scale q k           softcap tanh(s / softcap)           s + bias           modify(s, b, h, i, j)
    `window` (left, right): query i sees the keys from i + seq_k - seq_q - left to i + seq_k - seq_q + right; -1 does
    not limit. `modify`: C++ statements that change float value and read int b, h, i, j and args.number[k], `numbers`.

    `totals` (rows of all queries, of all keys): entries of different lengths lie one after the other, seq_q and seq_k
    are of the longest, or of the average where only the GPU knows; batch strides are not used, and the LSE is
    [heads_q, rows of all queries].

    Raises InvalidOperand for values out of range.
    """

    batch: int
    heads_q: int
    heads_kv: int
    seq_q: int
    seq_k: int
    d_head: int
    q: HeadRows
    k: HeadRows
    v: HeadRows
    out: HeadRows
    dtype: str = "bf16"
    is_causal: bool = False
    scale: float = 1.0
    with_lse: bool = False
    window: tuple[int, int] = (-1, -1)
    softcap: float = 0.0
    bias: BiasRows | None = None
    modify: str = ""
    numbers: tuple[float, ...] = field(default=(), compare=False)
    """What `modify` reads as args.number: of the call that the problem was made for. Each launch is given its own."""
    totals: tuple[int, int] | None = None
    seqused: bool = False
    """Whether each entry says on the device how many of its keys are there: its seq_k, at most the problem's."""
    pages: tuple[int, int, int] | None = None
    """(keys of a page, row stride of the table of pages, pages): keys and values lie in pages, found by a table on the
    device. Their batch stride is then a page's."""
    d_v: int = 0
    """Columns of V and out; 0: d_head."""

    def __post_init__(self) -> None:
        for name in ("batch", "heads_q", "heads_kv", "seq_q", "seq_k", "d_head"):
            value = getattr(self, name)
            least = 0 if name == "seq_k" else 1
            if not least <= value <= LARGEST_EXTENT:
                raise InvalidOperand(
                    f"{name}={value} is outside {least}..{LARGEST_EXTENT}, the range of a kernel's sizes."
                )
        if not 0 <= self.d_v <= LARGEST_EXTENT:
            raise InvalidOperand(f"d_v={self.d_v} is outside 0..{LARGEST_EXTENT}; 0 is d_head.")
        if self.heads_q % self.heads_kv:
            raise InvalidOperand(
                f"heads_q={self.heads_q} is not a multiple of heads_kv={self.heads_kv}: key heads are shared evenly."
            )
        if self.dtype not in DTYPES:
            raise InvalidOperand(f"dtype {self.dtype!r} is not supported by attention. Supported: {', '.join(DTYPES)}.")
        if not math.isfinite(self.scale):
            raise InvalidOperand(f"scale={self.scale} must be a finite number. The usual one is 1/sqrt(d_head).")
        if not (math.isfinite(self.softcap) and self.softcap >= 0):
            raise InvalidOperand(f"softcap={self.softcap} must be a finite number above 0, or 0 for none.")
        if max(abs(self.scale), abs(self.scale) / (self.softcap or 1.0)) > _LARGEST_FACTOR:
            capped = f" / softcap={self.softcap:g}" if self.softcap else ""
            raise InvalidOperand(
                f"scale={self.scale:g}{capped} is beyond {_LARGEST_FACTOR:g}, the largest factor that kernels take. "
                "The usual scale is 1/sqrt(d_head), a usual softcap 30."
            )
        queries, keys = self.totals or (self.seq_q, self.seq_k)
        if self.modify and max(queries, keys) > MOST_TRACED_ROWS:
            raise InvalidOperand(
                f"a score function takes at most {MOST_TRACED_ROWS} rows a head; here are {queries} queries and {keys} "
                "keys."
            )
        if min(self.window) < -1 or max(self.window) > LARGEST_EXTENT:
            raise InvalidOperand(
                f"window={self.window}: each side is a number of keys from 0 to {LARGEST_EXTENT}, or -1 for no limit."
            )

    @staticmethod
    def dense(
        batch: int, heads: int, seq_q: int, seq_k: int, d_head: int, *, heads_kv: int | None = None,
        layout: str = "bhsd", dtype: str = "bf16", is_causal: bool = False, scale: float | None = None,
        with_lse: bool = False, d_v: int = 0,
    ) -> AttentionProblem:  # fmt: skip
        """Dense, aligned operands; `scale` 1/sqrt(d_head) unless given."""
        heads_kv = heads if heads_kv is None else heads_kv
        q, k = head_rows(heads, seq_q, d_head, layout), head_rows(heads_kv, seq_k, d_head, layout)
        v, out = head_rows(heads_kv, seq_k, d_v or d_head, layout), head_rows(heads, seq_q, d_v or d_head, layout)
        return AttentionProblem(
            batch, heads, heads_kv, seq_q, seq_k, d_head, q, k, v, out, dtype, is_causal,
            1 / math.sqrt(max(d_head, 1)) if scale is None else scale, with_lse, d_v=d_v if d_v != d_head else 0,
        )  # fmt: skip

    def columns(self, operand: str) -> int:
        """Columns of "q", "k", "v" or "out"."""
        return self.d_v or self.d_head if operand in ("v", "out") else self.d_head

    @property
    def kind(self) -> str:
        """See GemmProblem.kind: what is multiplied how."""
        return self.dtype

    @property
    def group(self) -> int:
        """Query heads that share one head of keys and values."""
        return self.heads_q // self.heads_kv

    @property
    def right(self) -> int:
        """Keys to the right of a query's own that it sees; -1: all of them."""
        return 0 if self.is_causal else self.window[1]

    @property
    def modifies(self) -> bool:
        """Return whether anything but the scale changes a score that is seen."""
        return self.softcap > 0 or self.bias is not None or bool(self.modify)

    @cached_property
    def visible_pairs(self) -> int:
        """Pairs (query, key) of one head that the mask leaves; with entries of different lengths, of the longest."""
        left, right = self.window[0], self.right
        if left < 0 and right < 0:
            return self.seq_q * self.seq_k

        def below(x: int) -> int:
            """Sum of the integers under x, each cut to 0 .. seq_k."""
            return x * (x - 1) // 2 if 0 < x <= self.seq_k else max(self.seq_k * (2 * x - self.seq_k - 1) // 2, 0)

        def keys_up_to(beyond: int) -> int:
            """Sum over the queries i of how many keys lie below i + shift + 1 + beyond."""
            first = self.seq_k - self.seq_q + 1 + beyond
            return below(first + self.seq_q) - below(first)

        seen = self.seq_q * self.seq_k if right < 0 else keys_up_to(right)
        return seen - (0 if left < 0 else keys_up_to(-left - 1))

    @property
    def flops(self) -> int:
        """The operations: of each visible pair, a multiplication and an addition per column in Q K^T and in P V."""
        return 2 * (self.d_head + self.columns("v")) * self.visible_pairs * self.batch * self.heads_q

    @property
    def bytes(self) -> int:
        """The fewest bytes through device memory: Q, K and V once, out once, the LSE where asked for."""
        item = ITEM_BYTES[self.dtype]
        columns = self.d_head + self.columns("v")  # of Q and out, and of K and V
        rows = self.heads_q * self.seq_q + self.heads_kv * self.seq_k
        lse = 4 * self.heads_q * self.seq_q if self.with_lse else 0
        bias = 0
        if self.bias is not None:
            extents = (self.batch, self.heads_q, self.seq_q, self.seq_k)
            strides = (self.bias.batch_stride, self.bias.head_stride, self.bias.row_stride, self.bias.col_stride)
            bias = ITEM_BYTES[self.bias.dtype] * math.prod(e for e, s in zip(extents, strides, strict=True) if s)
        return self.batch * (rows * columns * item + lse) + bias

    @property
    def intensity(self) -> float:
        """FLOP per byte of compulsory traffic."""
        return self.flops / self.bytes
