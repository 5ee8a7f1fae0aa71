"""What attention computes, apart from how: frozen, validated, hashable."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from .errors import InvalidOperand
from .problems import ITEM_BYTES, LARGEST_EXTENT

DTYPES = ("bf16", "f16")
LAYOUTS = ("bhsd", "bshd")


@dataclass(frozen=True)
class HeadRows:
    """How [batch, heads, rows, d_head] lies in memory: strides in elements; elements of a row are neighbours.

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


def head_rows(heads: int, rows: int, d_head: int, layout: str = "bhsd") -> HeadRows:
    """A dense operand, [batch, heads, rows, d_head] in memory ("bhsd") or [batch, rows, heads, d_head] ("bshd")."""
    if layout not in LAYOUTS:
        raise InvalidOperand(f"layout {layout!r} is not one of {', '.join(LAYOUTS)}.")
    whole = heads * rows * d_head
    return HeadRows(whole, rows * d_head, d_head) if layout == "bhsd" else HeadRows(whole, d_head, heads * d_head)


@dataclass(frozen=True)
class AttentionProblem:
    """out = softmax(scale Q K^T) V, for each batch entry and head; fp32 inside, out in the operands' type.

    Q and out are [batch, heads_q, seq_q, d_head], K and V [batch, heads_kv, seq_k, d_head]; query head h reads head
    h // (heads_q // heads_kv). If causal, query i sees key j when j <= i + seq_k - seq_q. A query that sees no key gets
    0, and -inf in the LSE (fp32 [batch, heads_q, seq_q], natural logarithm). Raises InvalidOperand for values out of
    range.
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

    def __post_init__(self) -> None:
        for name in ("batch", "heads_q", "heads_kv", "seq_q", "seq_k", "d_head"):
            value = getattr(self, name)
            if not 1 <= value <= LARGEST_EXTENT:
                raise InvalidOperand(f"{name}={value} is outside 1..{LARGEST_EXTENT}, the range of a kernel's sizes.")
        if self.heads_q % self.heads_kv:
            raise InvalidOperand(
                f"heads_q={self.heads_q} is no multiple of heads_kv={self.heads_kv}: key heads are shared evenly."
            )
        if self.dtype not in DTYPES:
            raise InvalidOperand(f"dtype {self.dtype!r} is not supported by attention. Supported: {', '.join(DTYPES)}.")
        if not math.isfinite(self.scale):
            raise InvalidOperand(f"scale={self.scale} must be a finite number. The usual one is 1/sqrt(d_head).")

    @staticmethod
    def dense(
        batch: int, heads: int, seq_q: int, seq_k: int, d_head: int, *, heads_kv: int | None = None,
        layout: str = "bhsd", dtype: str = "bf16", is_causal: bool = False, scale: float | None = None,
        with_lse: bool = False,
    ) -> AttentionProblem:  # fmt: skip
        """Dense, aligned operands; `scale` 1/sqrt(d_head) unless given."""
        heads_kv = heads if heads_kv is None else heads_kv
        q, kv = head_rows(heads, seq_q, d_head, layout), head_rows(heads_kv, seq_k, d_head, layout)
        return AttentionProblem(
            batch, heads, heads_kv, seq_q, seq_k, d_head, q, kv, kv, q, dtype, is_causal,
            1 / math.sqrt(max(d_head, 1)) if scale is None else scale, with_lse,
        )  # fmt: skip

    @property
    def group(self) -> int:
        """Query heads that share one head of keys and values."""
        return self.heads_q // self.heads_kv

    @cached_property
    def visible_pairs(self) -> int:
        """Pairs (query, key) of one head that the mask leaves."""
        if not self.is_causal:
            return self.seq_q * self.seq_k
        # Query i sees min(max(i + 1 + shift, 0), seq_k) keys; i + shift < seq_k always.
        shift = self.seq_k - self.seq_q
        first = max(1 + shift, 1)
        return (first + self.seq_k) * (self.seq_k - first + 1) // 2

    @property
    def flops(self) -> int:
        """4 d_head for each visible pair: a multiplication and an addition each in Q K^T and in P V."""
        return 4 * self.d_head * self.visible_pairs * self.batch * self.heads_q

    @property
    def bytes(self) -> int:
        """The fewest bytes through device memory: Q, K and V once, out once, the LSE where asked for."""
        item = ITEM_BYTES[self.dtype]
        rows = 2 * self.heads_q * self.seq_q + 2 * self.heads_kv * self.seq_k
        lse = 4 * self.heads_q * self.seq_q if self.with_lse else 0
        return self.batch * (rows * self.d_head * item + lse)

    @property
    def intensity(self) -> float:
        """FLOP per byte of compulsory traffic."""
        return self.flops / self.bytes
