"""Remembered calls of arrays that have no library of their own here, on a GPU whose memory is the host's."""

from __future__ import annotations

import numpy as np
import pytest
from stub_gpu import HostBoard, Interface, Library, MultiplyingBoard, OnGpu, aligned, empty_on_gpu, stub_gpu

import tilewright as tw
from tilewright.errors import DeviceError, InvalidOperand, WrongResult
from tilewright.gemm import call as call_module
from tilewright.gemm import warm
from tilewright.gemm.call import Options
from tilewright.gemm.freivalds import seed
from tilewright.jit import device_calls, staging
from tilewright.plan import choose, tables
from tilewright.run import foreign, libraries
from tilewright.run.warm import MISS

RNG = np.random.default_rng(0)


@pytest.fixture
def board():
    with stub_gpu(MultiplyingBoard()) as found:
        yield found


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, dtype=np.float32)


class Dlpack:
    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, **_):
        from tilewright.arrays import dlpack

        array = self.array
        return dlpack.give(array.ctypes.data, array.shape, "f32", (2, 0), array, versioned=False)


def no_planning(monkeypatch):
    def fail(*_, **__):
        raise AssertionError("a warm call was read or planned")

    monkeypatch.setattr(call_module, "plan_rows", fail)
    monkeypatch.setattr(call_module, "plan_for", fail)
    monkeypatch.setattr(choose, "_plan", fail)
    monkeypatch.setattr("tilewright.gemm.matmul.read_call", fail)


def in_place(kind, shape):
    array = aligned(*shape)
    array[...] = normal(*shape)
    return array, kind(array)


@pytest.mark.parametrize("kind", [Interface, Dlpack])
def test_a_warm_call_of_arrays_on_a_gpu_plans_nothing_and_is_right(board, kind, monkeypatch):
    (_, a), (_, b), (_, out) = (in_place(kind, (64, 64)) for _ in range(3))
    tw.matmul(a, b, out=out)
    assert np.allclose(out.array, a.array @ b.array, atol=1e-4)
    no_planning(monkeypatch)
    for _ in range(2):
        (_, a), (_, b), (_, out) = (in_place(kind, (64, 64)) for _ in range(3))
        tw.matmul(a, b, out=out, alpha=2.0)
        assert np.allclose(out.array, 2 * a.array @ b.array, atol=1e-4)


class Movable(Dlpack):
    place = 2, 0

    def __dlpack_device__(self):
        return self.place

    def __dlpack__(self, stream=None, **options):
        from tilewright.arrays import dlpack

        if self.place == (1, 0):
            assert stream is None, "as torch has it"
            return dlpack.give(self.array.ctypes.data, self.array.shape, "f32", (1, 0), self.array, versioned=False)
        return super().__dlpack__(**options)


@pytest.mark.parametrize("moved", [0, 1, 2], ids=["a", "b", "out"])
def test_arrays_are_not_asked_where_they_are_until_one_of_their_type_is_elsewhere(board, moved, monkeypatch):
    arrays = [in_place(Movable, (64, 64))[1] for _ in range(3)]
    a, b, out = arrays
    for _ in range(2):
        tw.matmul(a, b, out=out)
    with monkeypatch.context() as during:
        during.setattr(Movable, "__dlpack_device__", lambda self: pytest.fail("it was asked"))
        tw.matmul(a, b, out=out, alpha=2.0)
    assert np.allclose(out.array, 2 * a.array @ b.array, atol=1e-4)
    arrays[moved].place = 1, 0
    with pytest.raises(InvalidOperand, match=r"on the (CPU|host)"):
        tw.matmul(a, b, out=out)
    arrays[moved].place = 2, 0
    tw.matmul(a, b, out=out, alpha=3.0)
    assert np.allclose(out.array, 3 * a.array @ b.array, atol=1e-4)


def test_a_warm_call_of_an_interface_gives_a_new_result(board, monkeypatch):
    (_, a), (_, b) = (in_place(Interface, (64, 64)) for _ in range(2))
    tw.matmul(a, b)
    no_planning(monkeypatch)
    result = tw.matmul(a, b)
    view = warm.as_operand(result, "result")
    import ctypes

    got = np.frombuffer(ctypes.string_at(view.address, 4 * 64 * 64), np.float32).reshape(64, 64)
    assert np.allclose(got, a.array @ b.array, atol=1e-4)


CHANGES = {
    "mask": {"mask": object()}, "version": {"version": 1}, "dtype": {"typestr": "<f8"}, "order": {"typestr": ">f4"},
    "stream": {"stream": 0}, "shape": {"shape": (64, 32)}, "strides": {"strides": (3, 4)},
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_is_refused_stays_refused_after_a_remembered_call(board, change):
    (_, a), (_, b), (_, out) = (in_place(Interface, (64, 64)) for _ in range(3))
    for _ in range(2):
        tw.matmul(a, b, out=out)
    b.__cuda_array_interface__ = b.__cuda_array_interface__ | change
    with pytest.raises(InvalidOperand):
        tw.matmul(a, b, out=out)


def test_a_result_that_may_not_be_written_to_stays_refused_after_a_remembered_call(board):
    (_, a), (_, b), (_, out) = (in_place(Interface, (64, 64)) for _ in range(3))
    for _ in range(2):
        tw.matmul(a, b, out=out)
    out.__cuda_array_interface__["data"] = out.array.ctypes.data, True
    with pytest.raises(InvalidOperand, match="read-only"):
        tw.matmul(a, b, out=out)


def test_interfaces_that_lie_otherwise_are_right_after_a_remembered_call(board):
    (_, a), (_, b), (_, out) = (in_place(Interface, (64, 64)) for _ in range(3))
    for _ in range(2):
        tw.matmul(a, b, out=out)
    turned = Interface(b.array)
    turned.__cuda_array_interface__ |= {"strides": (4, 256)}
    for _ in range(2):
        tw.matmul(a, turned, out=out)
        assert np.allclose(out.array, a.array @ b.array.T, atol=1e-4)


def laid_out(how: str, rows: int, cols: int) -> np.ndarray:
    """An array that lies in memory as said."""
    if how == "odd address":
        return np.frombuffer(bytearray(4 * rows * cols + 4), np.float32)[1:].reshape(rows, cols)
    if how == "gaps":
        return np.zeros((rows, cols + 12), np.float32)[:, :cols]
    if how == "transposed":
        return np.zeros((cols, rows), np.float32).T
    return np.zeros((rows, cols), np.float32)


@pytest.mark.parametrize("of_out", ["", "dense", "gaps", "odd address"])
@pytest.mark.parametrize("of_a", ["dense", "gaps", "transposed", "odd address"])
@pytest.mark.parametrize("pinned", [True, False])
def test_a_warm_call_of_host_arrays_copies_what_it_reads_and_nothing_else(board, pinned, of_a, of_out, monkeypatch):
    if not pinned:
        monkeypatch.setattr(staging, "SIZE", 0)

    def call():
        a, b = laid_out(of_a, 48, 32), normal(32, 40)
        a[...] = normal(48, 32)
        out = laid_out(of_out, 48, 40) if of_out else None
        around = out.base if of_out == "gaps" else None
        if around is not None:
            around[...] = 7.0
        result = tw.matmul(a, b, out=out)
        assert out is None or result is out
        assert np.allclose(result, a @ b, atol=1e-4)
        assert around is None or (around[:, 40:] == 7.0).all()

    call()
    no_planning(monkeypatch)
    before = board.launches
    call()
    call()
    assert board.launches == before + 2


def test_a_warm_call_of_host_arrays_reads_c_and_gives_its_memory_back(board, monkeypatch):
    a, b, c = normal(48, 32), normal(32, 40), normal(48, 40)
    tw.matmul(a, b, c=c, beta=0.5)
    no_planning(monkeypatch)
    held = len(board._memory)
    for beta in (0.5, 2.0):
        assert np.allclose(tw.matmul(a, b, c=c, beta=beta), a @ b + beta * c, atol=1e-4)
    assert len(board._memory) == held + 2, "a block there and a pinned one here, which stay for the next call"


def test_a_remembered_call_of_host_arrays_that_fails_gives_its_block_back_after_a_wait(board, monkeypatch):
    a, b = normal(48, 32), normal(32, 40)
    for _ in range(2):
        tw.matmul(a, b)
    (kept,) = staging._idle[0]
    waited = []
    monkeypatch.setattr(device_calls, "synchronize", waited.append)
    monkeypatch.setattr(HostBoard, "cuMemcpyDtoHAsync", lambda self, *_: (Failed(),))
    with pytest.raises(DeviceError, match="copying from the GPU failed: GONE"):
        tw.matmul(a, b)
    assert waited == [0]
    assert staging._idle[0] == [kept]


class Failed(int):
    """A status of the driver's."""

    name = "GONE"

    def __new__(cls):
        return int.__new__(cls, 7)


def test_products_of_numpy_whose_alpha_or_shapes_differ_are_right_when_remembered(board, monkeypatch):
    a, b = normal(48, 32), normal(32, 40)
    for alpha in (1.0, 2.0, 3, np.float32(0.5)):
        for x, y in ((a, b), (a[:1], b), (a[::-1], b), (a, b.T.copy().T), (a[:, ::2], b[::2]), (a[0], b), (a, b[:, 0])):
            assert np.allclose(tw.matmul(x, y, alpha=alpha), alpha * (x @ y), atol=1e-4)
            assert np.allclose(tw.matmul(x, y, alpha=alpha), alpha * (x @ y), atol=1e-4)


@pytest.mark.parametrize("alpha", [np.ones(3), "1", None], ids=["three numbers", "text", "none"])
def test_an_alpha_that_is_no_number_is_refused_before_a_call_and_after_it(board, alpha):
    a, b = normal(32, 24), normal(24, 16)
    for _ in range(2):
        with pytest.raises(InvalidOperand, match="alpha"):
            tw.matmul(a, b, alpha=alpha)
        tw.matmul(a, b)


def test_a_library_without_a_way_to_repeat_a_product_is_none_the_worse(monkeypatch):
    def old(name):
        raise AttributeError("module 'jax' has no attribute 'ffi'")

    monkeypatch.setattr(foreign.frameworks, "load", old)
    foreign.note("jax", normal(4, 4), normal(4, 4), Options(), None)
    assert foreign.repeat(normal(4, 4), normal(4, 4), Options(), None) is MISS


def test_another_folder_of_tuned_results_drops_plans_and_remembered_calls(board, monkeypatch, tmp_path):
    monkeypatch.setattr(tables, "LOOK_EVERY", 0.0)
    monkeypatch.setattr(tables, "_next_look", 0.0)
    a, b = normal(64, 64), normal(64, 64)
    tw.matmul(a, b)
    assert len(warm.view_calls) == 1
    planned = []
    whole = call_module.plan_rows
    monkeypatch.setattr(call_module, "plan_rows", lambda *given: planned.append(1) or whole(*given))
    tw.matmul(a, b)
    assert not planned
    monkeypatch.setenv("TILEWRIGHT_TUNED", str(tmp_path / "other"))
    tw.matmul(a, b)
    assert planned == [1]


def test_a_call_made_right_after_the_folder_of_tuned_results_changed_is_remembered(board, monkeypatch, tmp_path):
    a, b, out = (Interface(aligned(64, 64)) for _ in range(3))
    tables.look()
    monkeypatch.setattr(tables, "_next_look", float("inf"))  # as if the look had been just now
    monkeypatch.setenv("TILEWRIGHT_TUNED", str(tmp_path))
    tw.matmul(a, b, out=out)
    no_planning(monkeypatch)
    tw.matmul(a, b, out=out)


def test_remembered_calls_and_what_weights_know_are_bounded(board, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_WARM_CALLS", "8")
    b = normal(32, 32)
    for m in range(1, 40):
        tw.matmul(normal(m, 32), b)
        assert len(warm.view_calls) <= 8


@pytest.fixture
def library(monkeypatch):
    found = Library()
    monkeypatch.setattr(libraries, "known", {OnGpu: found})
    monkeypatch.setattr(libraries, "learn", lambda kind: found)


def on_gpu(*shape: int) -> np.ndarray:
    array = empty_on_gpu(*shape)
    array[...] = normal(*shape)
    return array


@pytest.mark.parametrize("adds", [False, True])
def test_a_warm_call_is_verified_by_launches_that_are_remembered_too(board, library, adds, monkeypatch):
    a, b, c = on_gpu(48, 32), on_gpu(32, 40), on_gpu(48, 40)
    given = {"c": c, "beta": 0.5} if adds else {}
    tw.matmul(a, b, **given, verify=True)
    no_planning(monkeypatch)
    drawn = []
    monkeypatch.setattr(warm, "seed", lambda: drawn.append(seed()) or drawn[-1])
    before = board.launches
    for alpha in (1.0, 3.0):
        result = tw.matmul(a, b, **given, alpha=alpha, verify=True)
        assert np.allclose(result, alpha * (a @ b) + (0.5 * c if adds else 0), atol=1e-4)
    assert board.launches == before + 6, "a product, the signed rows of b, the check of rows"
    assert len(set(drawn)) == 2, "each call has signs of its own"
    board.wrong = 1.0
    with pytest.raises(WrongResult, match=r"row 0 of product 0 is off .* It was made by f12"):
        tw.matmul(a, b, **given, verify=True)
    tw.matmul(a, b, **given)  # asks for no check
    assert board.launches == before + 10


def test_a_call_that_was_remembered_unverified_is_verified_when_that_is_asked_for(board, library):
    a, b = on_gpu(48, 32), on_gpu(32, 40)
    for _ in range(2):
        tw.matmul(a, b)
    board.wrong = 1.0
    for _ in range(2):
        with pytest.raises(WrongResult):
            tw.matmul(a, b, verify=True)


def test_a_verified_call_inside_a_capture_takes_the_full_path_which_refuses_it(board, library, monkeypatch):
    a, b = on_gpu(48, 32), on_gpu(32, 40)
    tw.matmul(a, b, verify=True)
    before = board.launches
    monkeypatch.setattr(device_calls, "is_capturing", lambda stream, ordinal: True)
    result = warm.warm_matmul(a, b, None, 1.0, None, None, tuple(Options()), verify=True)
    assert result is warm.MISS
    assert board.launches == before


def test_seeds_are_normal_float32_numbers_of_many_bits():
    drawn = np.array([seed() for _ in range(2000)])
    assert np.isfinite(drawn).all()
    assert (drawn.astype(np.float32) == drawn).all()
    assert len(set(drawn)) > 1990
