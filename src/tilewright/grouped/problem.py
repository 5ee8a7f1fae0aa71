"""The problem of a grouped product: what is computed, apart from how; frozen, validated, hashable."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..arrays.dtypes import ITEM_BYTES, LARGEST_EXTENT
from ..errors import InvalidOperand
from ..gemm.problem import GemmProblem, Matrix
from ..gpus import HashedOnce

AXES = ("m", "n", "k")


@dataclass(frozen=True)
class Widened:
    """fp8 operands as they are given. Tensor cores read fp8 along k in lines that start at multiples of 16 bytes, where
    groups do not."""

    dtypes: tuple[str, str]
    a: Matrix
    b: Matrix


@dataclass(frozen=True)
class GroupedProblem(HashedOnce):
    """One product for each group of rows of A and out ("m"), columns of B and out ("n") or of k ("k").

    Each array that the axis does not cut has a matrix per group; batch strides lead from one to the next.
    Raises InvalidOperand for values out of range.
    """

    product: GemmProblem
    """A group's product. Along the axis it has `typical` elements; `batch` is the number of groups."""
    axis: str
    total: int
    """The axis of all groups together, and what belongs to none after them."""
    fills: bool = False
    """True where rows or columns of the result after the last group's are set to 0; False: nothing writes them."""
    widened: Widened | None = None
    """Of fp8 operands that are cut along k: what they are before they are made fp16, which `product` has."""

    __hash__ = HashedOnce.__hash__

    def __post_init__(self) -> None:
        if not 0 <= self.total <= LARGEST_EXTENT:
            raise InvalidOperand(
                f"{self.axis}={self.total} is outside 0..{LARGEST_EXTENT}, the range of a kernel's sizes."
            )

    @property
    def groups(self) -> int:
        return self.product.batch

    @property
    def kind(self) -> str:
        """See GemmProblem.kind."""
        return self.product.kind

    @property
    def whole(self) -> GemmProblem:
        """The product with the axis of all groups, as kernels are given it."""
        sizes: dict[str, Any] = {self.axis: self.total}
        return replace(self.product, **sizes)

    def with_operand(self, name: str, lies: Matrix) -> GroupedProblem:
        """Return the problem with a copy of operand "a" or "b" that ends in zeros: k may be odd there no more."""
        product = replace(self.product, k=self.product.k + self.product.k % 2)
        return replace(self, product=replace(product, a=lies) if name == "a" else replace(product, b=lies))

    @property
    def turned(self) -> GroupedProblem:
        """The product of the transposed operands in the other order, whose result is the transpose."""
        product, axis = self.product, {"m": "n", "n": "m", "k": "k"}[self.axis]

        def across(matrix: Matrix) -> Matrix:
            return replace(matrix, row_stride=matrix.col_stride, col_stride=matrix.row_stride)

        other = replace(
            product, m=product.n, n=product.m, a=across(product.b), b=across(product.a), out=across(product.out)
        )
        return replace(self, product=other, axis=axis)

    @property
    def flops(self) -> int:
        """2 m n k, the axis counted as a whole."""
        return 2 * self.whole.m * self.whole.n * self.whole.k * (1 if self.total else 0)

    @property
    def bytes(self) -> int:
        """The fewest bytes through device memory: each operand and the result once."""
        whole, groups = self.whole, self.groups
        a, b, out = whole.m * whole.k, whole.k * whole.n, whole.m * whole.n
        a, b, out = (
            a * (groups if self.axis == "n" else 1), b * (groups if self.axis == "m" else 1),
            out * (groups if self.axis == "k" else 1),
        )  # fmt: skip
        return (a + b) * ITEM_BYTES[whole.dtype] + out * ITEM_BYTES[whole.out_dtype]


def typical(total: int, groups: int) -> int:
    """The size of a group by which kernels are compiled and planned: the average, or one less where that is even, since
    no tile may divide it."""
    return max(total // max(groups, 1) - 1 | 1, 3)
