"""Products like an earlier one but for their number of rows, on a GPU whose memory is the host's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from stub_gpu import Interface, Library, MultiplyingBoard, OnGpu, empty_on_gpu, stub_gpu

import tilewright as tw
from tilewright.arrays import view
from tilewright.errors import InvalidOperand
from tilewright.gemm import warm_rows
from tilewright.jit import device_calls
from tilewright.run import libraries

RNG = np.random.default_rng(0)


@pytest.fixture
def board(monkeypatch):
    found = Library()
    monkeypatch.setattr(libraries, "known", {OnGpu: found})
    monkeypatch.setattr(libraries, "learn", lambda kind: found)
    with stub_gpu(MultiplyingBoard()) as driver:
        yield driver


@pytest.fixture
def read(monkeypatch):
    """The products that were read whole."""
    import tilewright.gemm.matmul  # noqa: F401

    seen = []
    module = __import__("sys").modules["tilewright.gemm.matmul"]
    whole = module.read_call
    monkeypatch.setattr(module, "read_call", lambda a, *rest: seen.append(a.shape) or whole(a, *rest))
    return seen


def normal(*shape):
    array = empty_on_gpu(*shape)
    array[...] = RNG.standard_normal(shape, dtype=np.float32)
    return array


def check(a, b, **options):
    got = tw.matmul(a, b, **options)
    assert got.shape == (*a.shape[:-1], b.shape[1])
    np.testing.assert_allclose(got, options.get("alpha", 1.0) * (a @ b), rtol=1e-4, atol=1e-4)


def test_a_new_number_of_rows_is_neither_read_nor_wrong(board, read):
    b = normal(32, 40)
    check(normal(48, 32), b)
    for m in (2, 7, 48, 64, 300, 7):
        check(normal(m, 32), b, alpha=0.5)
    assert read == [(48, 32)]


def test_rows_of_several_axes_are_found_by_those_of_as_many(board, read):
    b = normal(32, 40)
    check(normal(3, 16, 32), b)
    for lead in ((2, 5), (1, 9), (9, 1), (4, 4)):
        check(normal(*lead, 32), b)
    assert read == [(3, 16, 32)]
    check(normal(10, 32), b)
    check(normal(2, 2, 3, 32), b)
    assert read == [(3, 16, 32), (10, 32), (2, 2, 3, 32)]


def test_what_lies_otherwise_or_is_one_row_is_read(board, read):
    b, wide = normal(32, 40), normal(60, 64)
    check(normal(48, 32), b)
    for a in (normal(1, 32), wide[:50, :32], normal(32, 20).T, normal(50, 33)[:, 1:], normal(6, 8, 32)[:, ::2]):
        check(a, b)
    check(normal(50, 32), normal(40, 32).T)
    check(normal(50, 24), normal(24, 40))
    assert len(read) == 8
    check(wide[:40, :32], b)
    assert len(read) == 8, "rows at that distance have been seen"


def test_a_batch_of_matrices_is_no_pattern_for_another_number_of_rows(board, read):
    for m in (16, 20):
        a, b = normal(3, m, 32), normal(3, 32, 40)
        assert tw.matmul(a, b).shape == (3, m, 40)
    assert len(read) == 2


def test_what_is_fused_along_the_rows_stays_checked(board):
    b = normal(32, 40)
    along = {"bias": normal(48, 1), "residual": normal(48, 40), "row_scale": normal(48)}
    for name, operand in along.items():
        tw.matmul(normal(48, 32), b, **{name: operand})
        with pytest.raises(InvalidOperand):
            tw.matmul(normal(50, 32), b, **{name: operand})
    repeated = np.broadcast_to(normal(40), (48, 40)).view(OnGpu)
    for _ in range(2):
        tw.matmul(normal(48, 32), b, epilogue=lambda acc, r: acc + r, r=repeated)
    with pytest.raises(InvalidOperand):
        tw.matmul(normal(50, 32), b, epilogue=lambda acc, r: acc + r, r=repeated)


def test_a_bias_and_an_activation_are_found_for_any_number_of_rows(board, read):
    b, bias = normal(32, 40), normal(40)
    for m in (48, 50, 52):
        assert tw.matmul(normal(m, 32), b, bias=bias, activation="silu").shape == (m, 40)
    assert len(read) == 1
    tw.matmul(normal(50, 32), b, bias=bias, activation="relu")
    tw.matmul(normal(50, 32), b)
    assert len(read) == 3


def test_arrays_of_several_libraries_are_read(board, read, monkeypatch):
    whole = view._from_numpy
    monkeypatch.setattr(view, "_from_numpy", lambda *given: replace(whole(*given), device=0))
    warm_rows._patterns.forget()
    b = normal(32, 40)
    for m in (48, 50):
        assert tw.matmul(normal(m, 32), Interface(b)).shape == (m, 40)
    assert len(read) == 2
    assert not len(warm_rows._patterns)


def test_an_out_c_or_an_order_of_its_own_is_read(board, read):
    b = normal(32, 40)
    check(normal(48, 32), b)
    check(normal(50, 32), b, out=normal(50, 40))
    tw.matmul(normal(51, 32), b, c=normal(51, 40))
    check(normal(52, 32), b, deterministic=True)
    check(normal(53, 32), b, rung="f05")
    assert len(read) == 5


def test_inside_a_capture_a_new_number_of_rows_is_refused(board, monkeypatch):
    b = normal(32, 40)
    check(normal(48, 32), b)
    monkeypatch.setattr(device_calls, "is_capturing", lambda stream, ordinal: True)
    assert not warm_rows.find(normal(50, 32), b, (None, False, False, None, None, "ieee"), None)
