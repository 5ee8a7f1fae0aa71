"""One small launch of every rung, aligned and ragged, for compute-sanitizer:

    compute-sanitizer --tool memcheck python -m tilewright.lab.every_rung
    compute-sanitizer --tool racecheck python -m tilewright.lab.every_rung h05 h11

Exits with 1 if a result is wrong; what the sanitizer finds is its own report.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ..arrays.dtypes import FP8
from ..gemm.matmul import matmul
from ..gemm.rung import Rung
from ..gemm.rungs import GEMM_RUNGS
from .check import check
from .numbers import to_tf32

if TYPE_CHECKING:
    from ..words import Precision


def operands_of(rung: Rung) -> tuple[str, Any]:
    """The type that a rung is tried with, as a dtype is named here and as NumPy has it."""
    if FP8[0] in rung.dtypes:
        import ml_dtypes  # an extra's

        return FP8[0], ml_dtypes.float8_e4m3fn
    if "f32" in rung.dtypes:
        return "tf32" if rung.precision == "tf32" else "f32", np.float32
    return "f16", np.float16


def launch(rung: Rung, out_dtype: Any, m: int, n: int, k: int) -> bool:
    """Return whether the rung's product is right. NumPy arrays: nothing but the kernel runs on the GPU."""
    name, dtype = operands_of(rung)
    rng = np.random.default_rng(m)
    if name in FP8:  # so that 14 bits hold the sums, to which Hopper's tensor cores cut them
        a, b = (rng.integers(-1, 2, shape).astype(dtype) for shape in ((m, k), (k, n)))
    else:
        a, b = (rng.standard_normal(shape).astype(dtype) for shape in ((m, k), (k, n)))
    c = rng.standard_normal((m, n)).astype(out_dtype)
    if rung.precision == "tf32":
        a, b = to_tf32(a), to_tf32(b)  # its products are exact then
    out = matmul(
        a, b, c=c, alpha=1.5, beta=-0.5, out_dtype=out_dtype, rung=rung.id, precision=cast("Precision", rung.precision)
    )
    wide = [array.astype(np.float32) for array in (out, a, b, c)]
    out_name = "f16" if out_dtype is np.float16 else "f32"
    verdict = check(*wide[:3], c=wide[3], alpha=1.5, beta=-0.5, dtype=name, out_dtype=out_name)
    print(f"{rung.id} {m}x{n}x{k}: {'right' if verdict.ok else verdict.reason}", flush=True)
    return verdict.ok


def main(chosen: list[str]) -> int:
    """`chosen`: numbers of rungs; all of them if empty."""
    right = True
    for rung in GEMM_RUNGS:
        if chosen and rung.id.split("_")[0] not in chosen:
            continue
        out_dtype = np.float16 if operands_of(rung)[0] == "f16" else np.float32
        config = rung.default
        whole = (config.tile_m, config.tile_n, 5 * (config.tile_k or 16))
        right &= launch(rung, out_dtype, *whole)
        right &= launch(rung, np.float16, whole[0] + 1, max(whole[1] - 3, 1), whole[2] - 5)
        if rung.stays:  # more tiles than an H200 has SMs: blocks go on to a second one
            right &= launch(rung, out_dtype, 11 * whole[0] + 1, 13 * whole[1], whole[2])
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
