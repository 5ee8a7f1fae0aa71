"""Operands whose elements lie further apart than 32 bits can count."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
from test_rungs import SMALL as SMALL32
from test_tensor_rungs import SMALL as SMALL16

from tilewright.arrays.dtypes import ITEM_BYTES
from tilewright.emu.memory import ARENA_BASE, Buffer
from tilewright.emu.session import Emulator
from tilewright.gemm.problem import GemmProblem, Matrix
from tilewright.gemm.rung import Addresses
from tilewright.gemm.rungs import find_rung
from tilewright.jit import use_executor

M, N, K = 33, 35, 34
STEP = 2**27 + 8
"""In elements: the last line starts beyond 2^32 of them."""
_NORESERVE = 0x4000


def untouched(nbytes: int) -> np.ndarray:
    """Address space that takes memory only where it is written."""
    space = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE)
    return np.frombuffer(space, np.uint8)


@pytest.mark.parametrize("rung", ["f02", "f12", "h02", "h11"])
@pytest.mark.parametrize("along", ["rows", "columns"])
def test_lines_beyond_32_bits_of_one_another_are_read_and_written_where_they_are(rung, along):
    rung = find_rung(rung)
    config = (SMALL32 | SMALL16).get(rung.id, rung.default)
    lies = Matrix(STEP, 1) if along == "rows" else Matrix(1, STEP)
    dtype = "f16" if "f16" in rung.dtypes else "f32"
    problem = GemmProblem(M, N, K, lies, lies, lies, dtype=dtype, out_dtype=dtype)
    item, kind = ITEM_BYTES[dtype], {"f16": np.float16, "f32": np.float32}[dtype]
    room = -(-36 * STEP * item // 256) * 256
    emulator = Emulator()
    memory = emulator.memory
    memory._hold(untouched(3 * room + (1 << 20)))
    starts = [ARENA_BASE + 512 + number * room for number in range(3)]
    for name, start in zip(("a", "b", "out"), starts, strict=True):
        memory._buffers.append(Buffer(name, start, 36 * STEP * item, name != "out"))
        memory._starts.append(start)

    def view(start: int, rows: int, cols: int) -> np.ndarray:
        steps = (lies.row_stride * item, lies.col_stride * item)
        first = memory.views[1][start - ARENA_BASE :][:item].view(kind)
        return np.lib.stride_tricks.as_strided(first, (rows, cols), steps)

    a, b, out = view(starts[0], M, K), view(starts[1], K, N), view(starts[2], M, N)
    rng = np.random.default_rng(0)
    a[...], b[...], out[...] = rng.standard_normal((M, K)), rng.standard_normal((K, N)), np.nan
    with use_executor(emulator):
        kernel = rung.compile(problem, config, emulator.arch)
    emulator.launch(kernel, rung.launch(problem, config, Addresses(starts[0], starts[1], starts[2])))
    tolerance = {"f16": 2e-2, "f32": 1e-4}[dtype]
    np.testing.assert_allclose(out, a.astype(np.float64) @ b.astype(np.float64), rtol=tolerance, atol=tolerance)
