"""Any array becomes a view with the right address, shape and strides, or is refused in the caller's terms."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import weakref

import numpy as np
import pytest

from tilewright.arrays import dlpack
from tilewright.arrays.view import as_operand
from tilewright.errors import InvalidOperand
from tilewright.jit import device_calls


def test_a_numpy_view_keeps_its_address_shape_and_element_strides():
    base = np.zeros((6, 8), np.float32)
    view = as_operand(base[1::2, 2:7].T, "a")
    assert view.address == base.ctypes.data + 4 * (8 + 2)
    assert view.shape == (5, 3)
    assert view.strides == (1, 16)
    assert (view.kind, view.dtype, view.device, view.read_only) == ("numpy", "f32", None, False)


def test_axes_of_one_element_and_empty_arrays_have_stride_zero():
    assert as_operand(np.zeros((1, 5, 1), np.float32), "a").strides == (0, 1, 0)
    assert as_operand(np.zeros((4, 0), np.float32)[::-1], "a").strides == (0, 0)


def test_a_read_only_array_is_marked():
    array = np.zeros(4, np.float32)
    array.flags.writeable = False
    assert as_operand(array, "out").read_only


def test_stride_zero_is_kept():
    assert as_operand(np.broadcast_to(np.float32(1), (3, 4)), "a").strides == (0, 0)


def test_a_view_that_runs_backwards_starts_at_its_first_element():
    array = np.zeros((3, 4), np.float32)
    view = as_operand(array[::-1, ::-2], "a")
    assert (view.address, view.strides) == (array.ctypes.data + 4 * (2 * 4 + 3), (-4, -2))


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros((3, 4)), ["a", "(3, 4)", "float64", "a.astype(np.float32)"]),
        (np.zeros(3, np.int32), ["int32", "a.astype(np.float32)", "2**24"]),
        (np.zeros(3, np.complex64), ["complex64", "real and imaginary"]),
        (np.zeros(3, ">f4"), [">f4", "a.astype(np.float32)"]),
        (np.zeros(3, bool), ["bool", "a.astype(np.float32)"]),
        (np.zeros(17, np.uint8)[1:17].view(np.float32), ["starts at address", "not a multiple", "a.copy()"]),
        (np.zeros(4, [("x", "f4"), ("y", "i2")])["x"], ["strides of (6,) bytes", "a.copy()"]),
        (np.ma.masked_array(np.zeros(3, np.float32)), ["masked", "a.filled(0)"]),
        ([1.0, 2.0], ["a is of type list", "np.asarray(a, np.float32)"]),
        (np.float32(2), ["a is a scalar", "alpha"]),
        (None, ["a is of type NoneType"]),
    ],
)
def test_what_cannot_be_viewed_is_refused_with_a_way_out(array, words):
    with pytest.raises(InvalidOperand) as caught:
        as_operand(array, "a")
    for word in words:
        assert word in str(caught.value)


class Exporter:
    """Offers a NumPy array through DLPack alone."""

    def __init__(self, array: np.ndarray, versioned: bool) -> None:
        self.array, self.versioned = array, versioned

    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self, *, stream=None, **options):
        if options and not self.versioned:
            raise TypeError("a producer from before max_version")
        return self.array.__dlpack__(**options)


VERSIONED = tuple(int(part) for part in np.__version__.split(".")[:2]) >= (2, 1)


@pytest.mark.parametrize("versioned", [False, pytest.param(True, marks=pytest.mark.skipif(
    not VERSIONED, reason="NumPy below 2.1 makes no versioned DLPack capsule"))])  # fmt: skip
def test_a_dlpack_view_has_the_producers_memory_and_gives_it_back_once(versioned):
    array = np.arange(24, dtype=np.float32).reshape(4, 6)[1:, ::2]
    gone = weakref.ref(array.base)
    exporter = Exporter(array, versioned)
    view = as_operand(exporter, "a")
    assert (view.kind, view.address, view.shape, view.strides) == ("dlpack", array.ctypes.data, (3, 3), (6, 2))
    assert view.device is None
    del exporter, array
    gc.collect()
    assert gone() is not None, "the view keeps the producer's memory"
    del view
    gc.collect()
    assert gone() is None, "the deleter was not called"


def test_a_dlpack_view_may_run_backwards():
    array = np.arange(24, dtype=np.float32).reshape(4, 6)[::-1, ::-2]
    view = as_operand(Exporter(array, False), "a")
    assert (view.address, view.shape, view.strides) == (array.ctypes.data, (4, 3), (-6, -2))


def test_a_dlpack_float64_is_refused_and_given_back():
    array = np.zeros((2, 2))
    gone = weakref.ref(array)
    with pytest.raises(InvalidOperand, match="float64"):
        as_operand(Exporter(array, False), "b")
    del array
    gc.collect()
    assert gone() is None


@pytest.mark.skipif(not VERSIONED, reason="NumPy below 2.1 exports no read-only array")
def test_a_read_only_dlpack_tensor_is_marked():
    array = np.zeros(3, np.float32)
    array.flags.writeable = False
    assert as_operand(Exporter(array, True), "out").read_only


def test_a_used_capsule_is_refused():
    capsule = np.zeros(3, np.float32).__dlpack__()
    np.from_dlpack(
        type("Once", (), {"__dlpack__": lambda self, **_: capsule, "__dlpack_device__": lambda self: (1, 0)})()
    )
    with pytest.raises(InvalidOperand, match="unused DLPack capsule"):
        dlpack.Imported(capsule, "a")


def test_a_device_that_is_no_cuda_gpu_is_refused():
    rocm = type("Rocm", (), {"__dlpack__": None, "__dlpack_device__": lambda self: (10, 0)})()
    with pytest.raises(InvalidOperand, match=r"DLPack device \(10, 0\)"):
        as_operand(rocm, "a")


class Given:
    """Memory of a NumPy array behind a capsule of ours."""

    def __init__(self, array: np.ndarray, versioned: bool) -> None:
        self.array, self.versioned = array, versioned

    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self, **_):
        array = self.array
        return dlpack.give(array.ctypes.data, array.shape, "f32", (1, 0), array, versioned=self.versioned)


@pytest.mark.parametrize("versioned", [False, pytest.param(True, marks=pytest.mark.skipif(
    not VERSIONED, reason="NumPy below 2.1 reads no versioned DLPack capsule"))])  # fmt: skip
def test_a_capsule_of_ours_is_read_by_numpy_and_given_back(versioned):
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    before = len(dlpack._exports)
    taken = np.from_dlpack(Given(array, versioned))
    assert np.array_equal(taken, array)
    assert taken.ctypes.data == array.ctypes.data
    assert len(dlpack._exports) == before + 1
    del taken
    gc.collect()
    assert len(dlpack._exports) == before


_HELD_AT_THE_END = """
import numpy as np
from tilewright.arrays import dlpack

class Given:
    array = np.arange(6, dtype=np.float32)
    def __dlpack__(self, **_):
        return dlpack.give(self.array.ctypes.data, (6,), "f32", (1, 0), self.array, versioned=VERSIONED)
    def __dlpack_device__(self):
        return (1, 0)

np.taken, np.unused = np.from_dlpack(Given()), Given().__dlpack__()  # modules go last
print(np.taken.sum())
"""


@pytest.mark.parametrize("versioned", [False, pytest.param(True, marks=pytest.mark.skipif(
    not VERSIONED, reason="NumPy below 2.1 reads no versioned DLPack capsule"))])  # fmt: skip
def test_what_was_given_may_be_held_beyond_the_interpreters_end(versioned):
    script = _HELD_AT_THE_END.replace("VERSIONED", str(versioned))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "15.0\n", "")


def test_a_capsule_of_ours_that_nobody_takes_frees_itself():
    array = np.zeros(3, np.float32)
    before = len(dlpack._exports)
    capsule = Given(array, False).__dlpack__()
    assert len(dlpack._exports) == before + 1
    del capsule
    gc.collect()
    assert len(dlpack._exports) == before


def test_a_capsules_byte_offset_counts():
    array = np.arange(6, dtype=np.float32)
    capsule = Given(array, False).__dlpack__()
    managed = dlpack._Managed.from_address(dlpack._pointer(capsule, b"dltensor"))
    managed.tensor.byte_offset = 8
    assert dlpack.Imported(capsule, "a").address == array.ctypes.data + 8


class Interface:
    def __init__(self, **changes) -> None:
        self.__cuda_array_interface__ = {
            "shape": (3, 4), "typestr": "<f4", "data": (4096, False), "version": 3, **changes,
        }  # fmt: skip


@pytest.fixture
def gpu_two(monkeypatch):
    monkeypatch.setattr(device_calls, "ordinal_of", lambda address: 2)


def test_cuda_array_interface_gives_device_strides_and_stream(gpu_two):
    view = as_operand(Interface(strides=(32, 4), stream=7), "a")
    assert (view.kind, view.address, view.device, view.strides) == ("cuda_array_interface", 4096, 2, (8, 1))
    assert view.stream == 7
    assert as_operand(Interface(strides=None), "a").strides == (4, 1)
    backwards = as_operand(Interface(strides=(-16, 4)), "a")
    assert (backwards.address, backwards.strides) == (4096, (-4, 1)), "the address is that of the first element"
    assert as_operand(Interface(stream=None), "a").stream is None
    assert as_operand(Interface(stream=1), "a").stream == 0, "1 is the legacy default stream"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mask": object()}, "mask"),
        ({"version": 1}, "version 1"),
        ({"stream": 0}, "stream 0"),
        ({"typestr": "<f8"}, "float64"),
        ({"typestr": ">f4"}, ">f4"),
        ({"strides": (10, 4)}, "not multiples"),
        ({"data": (0, False)}, "its address is 0"),
    ],
)
def test_cuda_array_interface_is_refused_with_the_reason(gpu_two, changes, words):
    with pytest.raises(InvalidOperand, match=words):
        as_operand(Interface(**changes), "a")


def test_a_cpu_torch_tensor_is_a_host_view():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    tensor = torch.zeros(4, 6)[:, 1:5].T
    view = as_operand(tensor, "a")
    assert (view.kind, view.device, view.shape, view.strides) == ("torch", None, (4, 4), (1, 6))
    assert view.address == tensor.data_ptr()


def test_torch_tensors_that_cannot_be_read_are_refused_with_a_way_out():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    cases = [
        (torch.zeros(2, 2, requires_grad=True), "a.detach()"),
        (torch.zeros(2, 2, dtype=torch.float64), "a.float()"),
        (torch.zeros(2, 2).to_sparse(), "sparse"),
        (torch.zeros(2, 2, dtype=torch.complex64).conj().imag, "a.resolve_neg()"),
        (torch.zeros(2, 2, device="meta"), "meta"),
    ]
    for tensor, word in cases:
        with pytest.raises(InvalidOperand) as caught:
            as_operand(tensor, "a")
        assert word in str(caught.value)
    with torch.no_grad():
        assert as_operand(cases[0][0], "a").shape == (2, 2)


def test_a_torch_tensor_with_a_tangent_is_refused_and_its_primal_is_read():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    duals = torch.autograd.forward_ad
    with duals.dual_level():
        dual = duals.make_dual(torch.zeros(2, 2), torch.ones(2, 2))
        with pytest.raises(InvalidOperand, match=re.escape("unpack_dual(a).primal")):
            as_operand(dual, "a")
        assert as_operand(duals.unpack_dual(dual).primal, "a").shape == (2, 2)
        assert as_operand(torch.zeros(3, 2), "a").shape == (3, 2)
