"""One small launch of every rung, aligned and ragged, for compute-sanitizer:

    compute-sanitizer --tool memcheck python -m tilewright.lab.every_rung
    compute-sanitizer --tool racecheck python -m tilewright.lab.every_rung h05 h11

Exits with 1 if a result is wrong; what the sanitizer finds is its own report.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ..gemm.matmul import matmul
from ..gemm.rung import Rung
from ..gemm.rungs import rungs_of
from .check import check
from .numbers import to_tf32

if TYPE_CHECKING:
    from ..words import Precision


def launch(rung: Rung, dtype: Any, out_dtype: Any, m: int, n: int, k: int) -> bool:
    """Return whether the rung's product is right. NumPy arrays: nothing but the kernel runs on the GPU."""
    rng = np.random.default_rng(m)
    a, b = (rng.standard_normal(shape).astype(dtype) for shape in ((m, k), (k, n)))
    c = rng.standard_normal((m, n)).astype(out_dtype)
    if rung.precision == "tf32":
        a, b = to_tf32(a), to_tf32(b)  # its products are exact then
    out = matmul(
        a, b, c=c, alpha=1.5, beta=-0.5, out_dtype=out_dtype, rung=rung.id, precision=cast("Precision", rung.precision)
    )
    name = "f16" if dtype is np.float16 else "tf32" if rung.precision == "tf32" else "f32"
    wide = [array.astype(np.float32) for array in (out, a, b, c)]
    out_name = "f16" if out_dtype is np.float16 else "f32"
    verdict = check(*wide[:3], c=wide[3], alpha=1.5, beta=-0.5, dtype=name, out_dtype=out_name)
    print(f"{rung.id} {m}x{n}x{k}: {'right' if verdict.ok else verdict.reason}", flush=True)
    return verdict.ok


def main(chosen: list[str]) -> int:
    """`chosen`: numbers of rungs; all of them if empty."""
    right = True
    for dtype, kind in ((np.float32, "f32"), (np.float32, "tf32"), (np.float32, "fp32x3"), (np.float16, "f16")):
        for rung in rungs_of(kind):
            if chosen and rung.id.split("_")[0] not in chosen:
                continue
            config = rung.default
            whole = (config.tile_m, config.tile_n, 5 * (config.tile_k or 16))
            right &= launch(rung, dtype, dtype, *whole)
            right &= launch(rung, dtype, np.float16, whole[0] + 1, whole[1] - 3, whole[2] - 5)
            if rung.stays:  # more tiles than an H200 has SMs: blocks go on to a second one
                right &= launch(rung, dtype, dtype, 11 * whole[0] + 1, 13 * whole[1], whole[2])
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
