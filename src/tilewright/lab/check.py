"""Is a product right? Reference in float64; finite first; then the error of a same-precision product as the measure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..arrays.dtypes import FP8
from .numbers import POISON, STORED, half_spacing, rounded

UNIT_ROUNDOFF = 2.0**-24
"""Of fp32, round to nearest."""


IN_FP8 = 2.0**-10
"""What sums of 128 products of fp8, of which Hopper's tensor cores keep 14 bits, may be off from the largest result."""


@dataclass(frozen=True)
class CheckResult:
    """`max_error`: the largest absolute difference from float64 (inf where not finite). `reason` is "" when ok."""

    ok: bool
    max_error: float
    bound: float
    reason: str = ""


def reference(
    a: np.ndarray, b: np.ndarray, c: np.ndarray | None = None, alpha: float = 1.0, beta: float = 0.0
) -> np.ndarray:
    """alpha * a @ b + beta * c in float64. a [..., m, k], b [..., k, n]; c is not read when beta is 0."""
    with np.errstate(invalid="ignore"):
        product = alpha * np.matmul(a.astype(np.float64), b.astype(np.float64))
        return product if c is None or beta == 0 else product + beta * c.astype(np.float64)


def numpy_product(
    a: np.ndarray, b: np.ndarray, c: np.ndarray | None = None, alpha: float = 1.0, beta: float = 0.0
) -> np.ndarray:
    """The same in fp32 by NumPy's BLAS: the library whose error is the measure when no other is given."""
    with np.errstate(over="ignore", invalid="ignore"):
        product = np.float32(alpha) * np.matmul(a, b)
        return product if c is None or beta == 0 else product + np.float32(beta) * c


def check(
    out: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    *,
    c: np.ndarray | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    library: np.ndarray | None = None,
    expected: np.ndarray | None = None,
    dtype: str = "f32",
    out_dtype: str = "f32",
) -> CheckResult:
    """Judge whether `out` is alpha * a @ b + beta * c of `dtype` operands, summed in fp32, rounded to `out_dtype`.

    All arrays hold float32 values; of 16-bit operands and results, the values that their bits mean. Passes when every
    element that `out_dtype` can hold is finite, every other equals the reference (nan as nan, inf as inf, and inf where
    the reference is beyond its range), and everywhere
        |out - ref| <= 2 max|library - ref| + s u max|ref| + h
    `library` is another product of the same operands in fp32, by default NumPy's. s = sqrt(k), u the unit roundoff of
    fp32: what k roundings of partial sums add up to at random; a kernel sums in one chain, NumPy's BLAS in blocks. For
    operands of 16 bits or "tf32" (float32 values that tf32 holds) s has k/8 more: tensor cores cut where fp32 rounds,
    once in 16 products or 8, and the cuts add up. Of fp8 s u is IN_FP8 more. h is half the distance of numbers of
    `out_dtype` at the result, 0 for fp32. `expected`: the float64 reference if it is at hand. The result's `bound` is
    the largest of the elements' bounds, or that of the element farthest beyond its own.
    """
    ref = reference(a, b, c, alpha, beta) if expected is None else expected
    if out.shape != ref.shape:
        return CheckResult(False, np.inf, 0.0, f"shape {out.shape} instead of {ref.shape}")
    if ref.size == 0:
        return CheckResult(True, 0.0, 0.0)
    with np.errstate(over="ignore"):
        target = rounded(ref.astype(np.float32), out_dtype)
    finite = np.isfinite(target)
    wrong = np.isfinite(out) != finite
    wrong |= ~finite & ~((out == target) | (np.isnan(out) & np.isnan(target)))
    if wrong.any():
        where = tuple(int(i) for i in np.argwhere(wrong)[0])
        count = int(wrong.sum())
        return CheckResult(
            False,
            np.inf,
            0.0,
            f"{count} elements are {out[where]} or the like, first at {where}: {ref[where]:.6g} is right",
        )
    if library is None:
        library = numpy_product(a, b, c, alpha, beta)
    k = a.shape[-1]
    steps = np.sqrt(k) + (0 if dtype == "f32" else k / 8)
    if dtype in FP8:
        steps += IN_FP8 / UNIT_ROUNDOFF
    with np.errstate(invalid="ignore"):
        error = np.where(finite, np.abs(out - ref), 0.0)
        library_error = np.where(finite & np.isfinite(library), np.abs(library - ref), 0.0)
        size = np.where(finite, np.abs(ref), 0.0)
    in_fp32 = 2 * float(library_error.max()) + float(steps) * UNIT_ROUNDOFF * float(size.max()) + 1e-37
    allowed = in_fp32 + half_spacing(size + in_fp32, out_dtype)
    where = tuple(int(i) for i in np.unravel_index(int((error - allowed).argmax()), error.shape))
    worst, bound = float(error.max()), float(allowed[where])
    if (error <= allowed).all():
        return CheckResult(True, worst, float(allowed.max()))
    return CheckResult(
        False, worst, bound, f"at {where} it is {out[where]:.9g} and should be {ref[where]:.9g}: off by "
        f"{error[where]:.3g}, allowed {bound:.3g}",
    )  # fmt: skip


class Guarded:
    """An output buffer filled with NaN, with a guard band of `band` elements before and after `view`."""

    def __init__(self, shape: tuple[int, ...], dtype: str = "f32", band: int = 256) -> None:
        self.size, self.band, self.dtype = int(np.prod(shape)), band, dtype
        self._poison = POISON[dtype]
        self.whole = np.full(self.size + 2 * band, self._poison)
        self.shape = shape

    @property
    def view(self) -> np.ndarray:
        """The part to write: contiguous, of the shape asked for; `dtype` as numbers.STORED holds it."""
        return self.whole.view(STORED[self.dtype])[self.band : self.band + self.size].reshape(self.shape)

    def intact(self) -> bool:
        """Return whether both bands still hold what they were filled with."""
        bands = np.concatenate((self.whole[: self.band], self.whole[self.band + self.size :]))
        return bool((bands == self._poison).all())

    def untouched(self) -> int:
        """Elements of the view that nobody wrote."""
        return int((self.whole[self.band : self.band + self.size] == self._poison).sum())
