"""Arrays as remembered calls see them: DLPack's, whose capsule says where they are."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.arrays import dlpack
from tilewright.arrays.dlpack import Raw
from tilewright.errors import InvalidOperand
from tilewright.run import glance as module
from tilewright.run.glance import glance


class Mixed:
    """An array that lies on the host or, as it says, on a GPU; exports are counted."""

    def __init__(self, on_gpu: bool, versioned: bool = True) -> None:
        self.array = np.arange(16, dtype=np.float32)
        self.device, self.versioned, self.exports, self.fails = (2, 0) if on_gpu else (1, 0), versioned, 0, False

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, *, stream=None, **options):
        self.exports += 1
        if self.fails:
            raise BufferError("not now")
        if options and not self.versioned:
            raise TypeError("a producer from before max_version")
        where = self.device
        return dlpack.give(self.array.ctypes.data, (4, 4), "f32", where, self.array, versioned=self.versioned)


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(module, "_last_on_gpu", (None, ""))


@pytest.mark.parametrize("versioned", [True, False])
def test_arrays_of_one_type_are_seen_where_they_are(versioned):
    for on_gpu in (True, False, True, True, False):
        array = Mixed(on_gpu, versioned)
        seen = glance(array)
        assert (seen.kind, seen.address) == ("dlpack", array.array.ctypes.data)
        assert seen.device == (0 if on_gpu else None)
    signatures = {glance(Mixed(True, versioned)).signature for _ in range(3)}
    assert {signature[3] for signature in signatures} == {(4, 4)}


def test_an_array_on_the_gpu_is_exported_once_and_not_asked_where_it_is_again():
    glance(Mixed(True))
    array = Mixed(True)
    array.__class__.__dlpack_device__, ask = None, array.__class__.__dlpack_device__
    try:
        assert glance(array).device == 0
    finally:
        Mixed.__dlpack_device__ = ask
    assert array.exports == 1
    host = Mixed(False)
    assert glance(host).device is None
    assert host.exports == 2, "as what its like was, and as what it is"


def test_what_a_producer_raises_is_raised_and_the_next_is_asked_where_it_is():
    glance(Mixed(True))
    array = Mixed(True)
    array.fails = True
    with pytest.raises(BufferError, match="not now"):
        glance(array)
    assert glance(Mixed(False)).device is None


def test_kinds_are_told_apart(monkeypatch):
    class OfJax(Mixed):
        pass

    class Jax:
        Array = OfJax

    monkeypatch.setattr(module, "loaded", lambda name: Jax if name == "jax" else None)
    assert [glance(x).kind for x in (Mixed(True), OfJax(True), OfJax(True), Mixed(True))] == [
        "dlpack", "jax", "jax", "dlpack",
    ]  # fmt: skip


def test_another_version_and_no_capsule_are_refused():
    array = Mixed(True)
    capsule = array.__dlpack__(max_version=(1, 0))
    next(reversed(dlpack._exports.values())).managed.major = 2
    with pytest.raises(InvalidOperand, match=r"a offers DLPack 2\.0; only 1\.x is read here"):
        Raw.of(capsule, "a")
    with pytest.raises(InvalidOperand, match="did not return an unused DLPack capsule"):
        Raw.of(object(), "a")
