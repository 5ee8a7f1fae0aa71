"""The parameters of the kernels around a product: one struct each, in the order in which its .cuh declares it.

The product itself takes GemmArgs (rung.pack_args). A test holds every layout and its struct equal.
"""

from __future__ import annotations

from ..jit.params import Address, Place, Scalar, Template, number_names, pack
from .fused import pack_fused
from .problem import GemmProblem
from .rung import Addresses, pack_args

ALPHA, BETA = Scalar("alpha"), Scalar("beta")
LAYOUTS = {
    "clear": ("ClearArgs", "<Qq"),
    "pack": ("PackArgs", "<2Q5q3i4x"),
    "turn": ("PackArgs", "<2Q5q3i4x"),
    "widen": ("PackArgs", "<2Q5q3i4x"),
    "dequantise": ("DequantiseArgs", "<3Q7q2i"),
    "split": ("SplitArgs", "<2Q4q2i"),
    "halve": ("HalveArgs", "<2Q3q2Q3q3i4x"),
    "sum_parts": ("SumPartsArgs", "<Q2qi4x"),
    "sign_rows": ("SignRowsArgs", "<2Q4q2iI4x"),
    "check_rows": ("CheckRowsArgs", "<5Q10q3iI2f"),
    "expected": ("ExpectedArgs", "<3Q7q2i2f"),
    "compare": ("CompareArgs", "<3Q4q2i"),
    "quantize": ("QuantizeArgs", "<4Q6q8i"),
    "gated": ("GatedArgs", "<5Qq"),
}
"""By a kernel's entry, which is also its file's name in cuda/gemm: its struct, and how that lies.

SumPartsArgs ends in GemmArgs, ExpectedArgs in FusedArgs, which are packed after what is here.
"""


def fused_base(number: int) -> str:
    """The name of an epilogue operand's base."""
    return f"fused {number}"


def _fused(problem: GemmProblem) -> tuple[tuple[Place, ...], tuple[Scalar, ...]]:
    """Return where an epilogue's operands are, and its numbers."""
    operands, numbers = (problem.epilogue.operands, problem.epilogue.numbers) if problem.epilogue else ((), ())
    places = tuple([Place(fused_base(number)) for number in range(len(operands))])
    return places, tuple([Scalar(name) for name in number_names(len(numbers))])


def addresses_of(problem: GemmProblem, a: Address, b: Address, c: Address, out: Address) -> Addresses:
    """Return where the operands are, those of an epilogue and its numbers among them."""
    return Addresses(a, b, out, c, *_fused(problem))


def scales(scaled: bool) -> tuple[float | Scalar, float | Scalar]:
    """Alpha and beta: the call's where `scaled`; else those of the bare product."""
    return (ALPHA, BETA) if scaled else (1.0, 0.0)


def product_params(problem: GemmProblem, a: Address, b: Address, c: Address, out: Address, scaled: bool) -> Template:
    """GemmArgs. `scaled`: as scales."""
    return pack_args(problem, addresses_of(problem, a, b, c, out), *scales(scaled))


def clear_params(words: Address, count: int) -> Template:
    """ClearArgs: `count` words of 4 bytes."""
    return pack(LAYOUTS["clear"][1], words, count)


def pack_params(copy: GemmProblem, source: Address, target: Address) -> Template:
    """PackArgs: the m lines of k elements of `copy.a`, to n lines at `copy.out`."""
    return pack(
        LAYOUTS["pack"][1], source, target, copy.a.batch_stride, copy.out.batch_stride,
        copy.a.row_stride, copy.a.col_stride, copy.out.row_stride, copy.m, copy.n, copy.k,
    )  # fmt: skip


def dequantise_params(copy: GemmProblem, source: Address, scales: Address, target: Address) -> Template:
    """DequantiseArgs: the m x k of `copy.a`, with scales that lie as `copy.b`, to rows of k at `copy.out`."""
    return pack(
        LAYOUTS["dequantise"][1], source, scales, target,
        copy.a.batch_stride, copy.b.batch_stride, copy.out.batch_stride, copy.a.row_stride, copy.a.col_stride,
        copy.b.row_stride, copy.b.col_stride, copy.m, copy.k,
    )  # fmt: skip


def split_params(work: GemmProblem, source: Address, records: Address) -> Template:
    """SplitArgs: the m lines of k elements of `work.a`, to records."""
    return pack(
        LAYOUTS["split"][1], source, records, work.a.batch_stride, work.out.batch_stride,
        work.a.row_stride, work.a.col_stride, work.m, work.k,
    )  # fmt: skip


def halve_params(product: GemmProblem, to_a: Address, to_b: Address) -> Template:
    """HalveArgs: the operands of `product`, by rows of A and columns of B, to scaled halves."""
    a, b = product.a, product.b
    return pack(
        LAYOUTS["halve"][1], Place("a"), to_a, a.batch_stride, a.row_stride, a.col_stride,
        Place("b"), to_b, b.batch_stride, b.col_stride, b.row_stride, product.m, product.n, product.k,
    )  # fmt: skip


def sum_parts_params(problem: GemmProblem, parts: Address, count: int, c: Address, out: Address) -> Template:
    """SumPartsArgs: `count` parts that lie as `problem.a`, and what becomes of their sum."""
    lies = problem.a
    head = pack(LAYOUTS["sum_parts"][1], parts, lies.batch_stride, lies.row_stride, count)
    return head + product_params(problem, 0, 0, c, out, scaled=True)


SEED = Scalar("seed")
"""Of the signs: 32 bits of a call's own, which parameters hold as a float32 (freivalds.seed)."""


def sign_rows_params(problem: GemmProblem, step: int, b: Address, sums: Address) -> Template:
    """SignRowsArgs. `step`: float64s from one product's sums to the next's."""
    lies = problem.b
    return pack(
        LAYOUTS["sign_rows"][1], b, sums, lies.batch_stride, step, lies.row_stride, lies.col_stride,
        problem.k, problem.n, SEED,
    )  # fmt: skip


def check_rows_params(
    problem: GemmProblem, step: int, a: Address, c: Address, out: Address, sums: Address, multiples: Address,
) -> Template:  # fmt: skip
    """CheckRowsArgs. `step`: as sign_rows_params."""
    lies, result, added = problem.a, problem.out, problem.c or problem.out
    return pack(
        LAYOUTS["check_rows"][1], a, c, out, sums, multiples,
        lies.batch_stride, added.batch_stride, result.batch_stride, step, lies.row_stride, lies.col_stride,
        added.row_stride, added.col_stride, result.row_stride, result.col_stride,
        problem.m, problem.n, problem.k, SEED, ALPHA, BETA,
    )  # fmt: skip


def expected_params(problem: GemmProblem, sums: Address, c: Address, pairs: Address) -> Template:
    """ExpectedArgs: sums that lie as `problem.a`, pairs that lie as `problem.out`."""
    lies, added = problem.a, problem.c or problem.out
    head = pack(
        LAYOUTS["expected"][1], sums, c, pairs, lies.batch_stride, added.batch_stride, problem.out.batch_stride,
        lies.row_stride, added.row_stride, added.col_stride, problem.out.row_stride, problem.m, problem.n, ALPHA, BETA,
    )  # fmt: skip
    fused = pack_fused(problem, *_fused(problem))
    return head + (fused if fused.data else Template(bytes(8)))  # an empty struct has a size


def compare_params(problem: GemmProblem, out: Address, pairs: Address, reports: Address) -> Template:
    """CompareArgs: pairs in rows of n, one after the other."""
    result = problem.out
    return pack(
        LAYOUTS["compare"][1], out, pairs, reports, result.batch_stride, problem.m * problem.n,
        result.row_stride, result.col_stride, problem.m, problem.n,
    )  # fmt: skip
