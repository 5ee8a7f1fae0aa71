"""TMA on a GPU: the boxes of tests/emu/test_tensor_copies.py, with maps that the driver encodes."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tilewright.jit import compile_source
from tilewright.jit.gpu_executor import GpuExecutor
from tilewright.jit.launch import Launch
from tilewright.jit.loaded import encode_for_driver
from tilewright.jit.tensor_map import TensorMap

sys.path.insert(0, str(Path(__file__).parents[1] / "emu"))
from tensor_copies import CASES, arrays_of, expected, source, stored, stored_at

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", CASES)
def test_a_gpu_leaves_what_the_emulator_leaves(name):
    executor = GpuExecutor(0)
    if executor.arch.name != "sm_90a":
        pytest.skip("TMA as wgmma takes it is Hopper's")
    array, what, at = arrays_of(CASES[name])
    skew = CASES[name].get("skew", 0)
    image_bytes = 1024 + what.shared_bytes + 512
    image, box = expected(array, what, at, image_bytes, skew)
    target, store_at = np.zeros_like(array), stored_at(what, at)
    to = TensorMap.of(
        target, tuple(reversed(what.box)), dtype=what.dtype, swizzle=what.swizzle,
        element_strides=tuple(reversed(what.element_strides)),
    )  # fmt: skip
    given = (array, target, np.zeros(image_bytes // 4, np.uint32), np.array(at, np.int32), np.array(store_at, np.int32))
    places = [executor.upload(part.reshape(-1).view(np.uint8)) for part in given]
    try:
        params = encode_for_driver(what, places[0]) + encode_for_driver(to, places[1])
        params += np.array(places[2:], np.uint64).tobytes()
        params += np.array([what.box_bytes, image_bytes, skew, 1], np.int32).tobytes()
        kernel = compile_source(source(what.rank), entry="k", arch="sm_90a")
        executor.launch(kernel, Launch((1, 1, 1), (32, 1, 1), params, image_bytes))
        got = executor.download(places[2], image_bytes)
        out = executor.download(places[1], target.nbytes).view(array.dtype).reshape(array.shape)
    finally:
        for place in places:
            executor.release(place)
    assert np.array_equal(got, image)
    assert np.array_equal(out, stored(array, what, box, store_at))
