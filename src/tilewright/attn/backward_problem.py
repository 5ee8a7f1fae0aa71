"""The problem of attention's gradients: what is computed, apart from how; frozen, validated, hashable."""

from __future__ import annotations

from dataclasses import dataclass

from ..arrays.dtypes import ITEM_BYTES
from .problem import AttentionProblem, HeadRows

Strides = tuple[int, int, int]
"""Of floats [batch, heads, rows], in elements."""


@dataclass(frozen=True)
class BackwardProblem:
    """dQ, dK and dV of attention, given the gradient of its result: fp32 inside, gradients in the operands' type.

    With S the scores, P = exp(S - LSE), dP = grad V^T and delta = rowsum(grad * out) - grad_lse:

        dV = P^T grad      dS = P (dP - delta) dS/d(Q K^T)      dQ = dS K      dK = dS^T Q

    Heads of keys and values get the sum over the query heads that share them. A query that sees no key has a dQ of 0
    and adds nothing. With `forward.totals` rows that no entry has get gradients of 0.
    """

    forward: AttentionProblem
    """Its `numbers` are those of `modify` and then of `slope`."""
    grad: HeadRows
    dq: HeadRows
    dk: HeadRows
    dv: HeadRows
    lse: Strides
    grad_lse: Strides | None = None
    """None where the LSE has no gradient."""
    slope: str = ""
    """C++ statements that turn float value, a score, into the derivative of `forward.modify` there."""

    @property
    def plain(self) -> bool:
        """Return whether a score is the product times the scale, and nothing else."""
        return not self.forward.modifies

    @property
    def stat_floats(self) -> int:
        """Numbers per query that the walks read: more where a bias or a function may make scores large."""
        return 4 if self.forward.bias is not None or self.forward.modify else 2

    @property
    def flops(self) -> int:
        """Five products for each visible pair: S, dQ and dK along d_head, dP and dV along the columns of V."""
        p = self.forward
        return 2 * (3 * p.d_head + 2 * p.columns("v")) * p.visible_pairs * p.batch * p.heads_q

    @property
    def bytes(self) -> int:
        """The fewest bytes through device memory: eight operands and results, the LSE."""
        p = self.forward
        rows = 2 * p.heads_q * p.seq_q + 2 * p.heads_kv * p.seq_k
        return p.batch * (rows * (p.d_head + p.columns("v")) * ITEM_BYTES[p.dtype] + 4 * p.heads_q * p.seq_q)
