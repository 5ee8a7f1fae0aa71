"""The warp-specialised product of tests/emu/hopper_gemm.py on a GPU: right, and its bits those of the emulator."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tilewright.jit import compile_source
from tilewright.jit.gpu_executor import GpuExecutor
from tilewright.jit.launch import Launch
from tilewright.jit.loaded import encode_for_driver

sys.path.insert(0, str(Path(__file__).parents[1] / "emu"))
from hopper_gemm import SHARED, SOURCE, maps_of, operands, product, wide

pytestmark = pytest.mark.gpu


def test_a_gpu_gives_the_emulators_product():
    executor = GpuExecutor(0)
    if executor.arch.name != "sm_90a":
        pytest.skip("wgmma is Hopper's")
    rows, columns, k = 256, 256, 384
    arrays = operands(rows, columns, k)
    places = [executor.upload(part.reshape(-1).view(np.uint8)) for part in arrays]
    try:
        params = b"".join(encode_for_driver(m, p) for m, p in zip(maps_of(*arrays), places, strict=True))
        params += np.array([rows, columns, k], np.int32).tobytes()
        kernel = compile_source(SOURCE, entry="k", arch="sm_90a")
        executor.launch(kernel, Launch((2, 1, 1), (384, 1, 1), params, SHARED))
        got = executor.download(places[2], arrays[2].nbytes).view(np.uint16).reshape(rows, columns)
    finally:
        for place in places:
            executor.release(place)
    result, _, expected = product(rows, columns, k)
    np.testing.assert_allclose(wide(got), expected, rtol=2**-8, atol=1e-3)
    assert np.array_equal(got, result.arrays[2])
