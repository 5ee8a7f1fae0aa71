"""The errors of products by precision, and cuBLAS's for the same operands: over k, and in hard ranges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from typing import Any

import numpy as np

from ..errors import TilewrightError
from ..gemm.family import plan_for
from ..gemm.problem import GemmProblem
from ..jit.device import Device, device
from ..jit.gpu_executor import executor_for
from ..jit.timing import Start
from .check import UNIT_ROUNDOFF, Guarded, reference
from .climb_gpu import origin_of
from .ground import Buffers, buffers_of, rung_launcher
from .ladder import Progress, Step, silent
from .reference import Reference, needed_reference

OF_FP32 = ("ieee", "tf32", "fp32x3")
"""The precisions of float32 operands."""
LARGEST = float(np.finfo(np.float32).max)
LEAST = 2.0**-149
"""The distance of the smallest numbers."""
Change = Callable[[np.random.Generator, np.ndarray, np.ndarray], None]


def _scaled(a_power: int, b_power: int) -> Change:
    def change(rng: np.random.Generator, a: np.ndarray, b: np.ndarray) -> None:
        a *= 2.0**a_power
        b *= 2.0**b_power

    return change


def _spread_elements(rng: np.random.Generator, a: np.ndarray, b: np.ndarray) -> None:
    for side in (a, b):
        side *= np.exp2(rng.integers(-60, 60, side.shape))


def _spread_rows(rng: np.random.Generator, a: np.ndarray, b: np.ndarray) -> None:
    a *= np.exp2(rng.integers(-60, 60, (len(a), 1)))
    b *= np.exp2(rng.integers(-60, 60, (len(b), 1)))


def _one_and_tiny(rng: np.random.Generator, a: np.ndarray, b: np.ndarray) -> None:
    a[:, 1:] *= 2.0**-120
    b[1:] *= 2.0**122


def _not_finite(rng: np.random.Generator, a: np.ndarray, b: np.ndarray) -> None:
    """Infinities of both signs, together in a row, times 0; NaN; a sum of finite products beyond the range."""
    a[0, 3], a[1, 5], a[2, 7], a[3, 2], a[3, 4] = np.inf, -np.inf, np.nan, np.inf, -np.inf
    a[4, 0], b[0, 1] = np.inf, 0
    b[1, -1] = np.inf
    a[5], b[:, -2] = 3.4e38, 0.5


VALUES: dict[str, Change | None] = {
    "normal": None,
    "elements spread over 2^120": _spread_elements,
    "rows spread over 2^120": _spread_rows,
    "subnormal a": _scaled(-135, 0),
    "subnormal a, huge b": _scaled(-140, 120),
    "subnormal products": _scaled(-70, -70),
    "one product of 1, all others tiny times huge": _one_and_tiny,
    "huge, none too large": _scaled(60, 58),
    "sums at the end of the range": _scaled(64, 60),
    "infinities and NaN": _not_finite,
}
"""Operands by name: random normal, and what is made of them in float64 before they are rounded to float32."""


def make_operands(name: str, m: int, n: int, k: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """float32 A [m, k] and B [k, n] of the values named. "infinities and NaN" wants 6 x 3 x 8 at least.

    Raises TilewrightError for a name that is not in VALUES.
    """
    if name not in VALUES:
        raise TilewrightError(f"no values named {name!r}. There are: {', '.join(VALUES)}.")
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)
    change = VALUES[name]
    if change is None:
        return a, b
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    change(rng, wide_a, wide_b)
    return wide_a.astype(np.float32), wide_b.astype(np.float32)


@dataclass(frozen=True)
class Errors:
    """The errors of a product's elements that float32 can hold, none left out.

    `max` and `rms`: of the absolute error. `share`: the largest error as a part of the sum of the products' magnitudes,
    in units of fp32's roundoff 2^-24; one distance of the smallest numbers a product is forgiven. `kinds`: whether
    elements are finite, infinite or NaN as they must be.
    """

    max: float
    rms: float
    share: float
    kinds: bool


@dataclass(frozen=True)
class Exact:
    """The product in float64, and the sum of the products' magnitudes."""

    product: np.ndarray
    size: np.ndarray
    k: int

    @staticmethod
    def of(a: np.ndarray, b: np.ndarray) -> Exact:
        with np.errstate(all="ignore"):
            return Exact(reference(a, b), reference(np.abs(a), np.abs(b)), a.shape[1])

    def decided(self) -> np.ndarray:
        """Return which elements are finite, infinite or NaN whatever the order of the sum.

        Not those where a finite part of the sum may overflow on its way, unless all of it has one sign.
        """
        return (self.size < LARGEST) | ~np.isfinite(self.size) | (np.abs(self.product) >= (1 - 1e-9) * self.size)

    def errors(self, out: np.ndarray) -> Errors:
        """The errors of `out`, a product in float32 [m, n]."""
        with np.errstate(all="ignore"):
            target = self.product.astype(np.float32)
            decided = self.decided()
            same = (out == target) | (np.isnan(out) & np.isnan(target)) | (np.isfinite(out) & np.isfinite(target))
            finite = decided & np.isfinite(target)
            error = np.abs(out - self.product)[finite]
            size = self.size[finite]
        kinds = bool((same | ~decided).all())
        if not error.size:
            return Errors(0.0, 0.0, 0.0, kinds)
        if not np.isfinite(error).all():
            return Errors(LARGEST, LARGEST, LARGEST, False)
        beyond = np.maximum(error - self.k * LEAST, 0)
        share = np.divide(beyond, size, out=np.where(beyond > 0, LARGEST, 0.0), where=size > 0)
        largest = float(error.max())
        rms = largest * float(np.sqrt(np.square(error / (largest or 1.0)).mean()))
        return Errors(largest, rms, float(share.max()) / UNIT_ROUNDOFF, kinds)


def verdict(errors: dict[str, Errors], k: int) -> str:
    """ "" when fp32x3 is as good as fp32 on these operands, else what is wrong. `errors` by precision and library.

    Infinities and NaN where float64 has them; and an error, as a share, of at most twice cuBLAS's in fp32, and sqrt(k)
    roundings more.
    """
    ours, theirs = errors["fp32x3"], errors["cuBLAS fp32"]
    if not ours.kinds:
        return "fp32x3 is finite, infinite or NaN where float64 is not"
    allowed = 2 * theirs.share + sqrt(k)
    if not ours.share <= allowed:
        return f"fp32x3 is off by {ours.share:.3g} roundings of the sum of magnitudes, {allowed:.3g} are allowed"
    return ""


def accuracy_records(
    suite: str, cases: Sequence[dict[str, Any]], ordinal: int = 0, say: Progress = silent
) -> list[dict[str, Any]]:
    """One record a case {"m", "n", "k", "values" (default "normal")}. Raises TilewrightError without a cuBLAS."""
    where = device(ordinal)
    library = needed_reference(ordinal)
    origin = origin_of(where, library.name, library.version)
    return [_record(suite, case, number, where, library, origin, say) for number, case in enumerate(cases)]


def _record(
    suite: str, case: dict[str, Any], number: int, where: Device, library: Reference, origin: dict[str, Any],
    say: Progress,
) -> dict[str, Any]:  # fmt: skip
    m, n, k, name = case["m"], case["n"], case["k"], case.get("values", "normal")
    say(number, f"{name}: {m} x {n} x {k}")
    a, b = make_operands(name, m, n, k)
    exact = Exact.of(a, b)
    problems = {precision: GemmProblem.dense(m, n, k, precision=precision) for precision in OF_FP32}
    buffers = buffers_of(problems["ieee"], executor_for(where.ordinal), a, b)
    steps, found = {}, {}
    for precision, problem in problems.items():
        plan = plan_for(problem, where.gpu)
        steps[precision] = step = Step(plan.rung, plan.config, problem)
        launch = rung_launcher(step, where)(buffers)
        found[precision] = exact.errors(_product(launch, buffers, where))
    for words, kind in (("cuBLAS fp32", "f32"), ("cuBLAS tf32", "tf32")):
        if (prepared := library.for_values(kind)) is not None:
            launch = prepared(buffers.a, buffers.b, buffers.out, "nn")
            found[words] = exact.errors(_product(launch, buffers, where))
    reason = verdict(found, k)
    return {
        "suite": suite,
        "case": {
            "values": name, "m": m, "n": n, "k": k, "dtype": "f32", "layout": "nn",
            "rungs": {precision: step.rung.id for precision, step in steps.items()},
            "configs": {precision: str(step.config) for precision, step in steps.items()},
        },
        "result": {
            "right": not reason, "reason": reason,
            "errors": {words: asdict(errors) for words, errors in found.items()},
        },
        "provenance": origin,
    }  # fmt: skip


def _product(launch: Start, buffers: Buffers, where: Device) -> np.ndarray:
    """Return what a launch writes into a poisoned buffer; NaN where it writes nothing."""
    executor = executor_for(where.ordinal)
    kept = Guarded(buffers.out.shape, band=0)
    executor.write(buffers.out.address, kept.whole.view(np.uint8))
    launch(executor.stream)
    kept.whole[:] = executor.download(buffers.out.address, kept.whole.nbytes).view(kept.whole.dtype)
    return kept.view
