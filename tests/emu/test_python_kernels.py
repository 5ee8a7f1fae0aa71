"""Kernels of numba.cuda's and of CuPy's on the emulator, with faults at their lines."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import EmulatorFault, InvalidOperand

SCALE = """
#ifndef FACTOR
#error "no factor"
#endif
extern "C" __global__ void scale(float *x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i <= n) x[i] *= FACTOR;
}
"""


def raw(code: str, *options: str, name: str = "scale") -> SimpleNamespace:
    """What a cupy.RawKernel tells of itself."""
    return SimpleNamespace(code=code, name=name, options=options)


def test_a_raw_kernel_runs_from_its_source_with_its_macros():
    x = np.arange(64, dtype=np.float32)
    right = raw(SCALE.replace("<=", "<"), "-DFACTOR=3", "--std=c++17")
    result = tw.emulate_cupy(right, (2,), (32,), (x, 64))
    np.testing.assert_array_equal(result.arrays[0], 3 * x)


def test_a_fault_in_a_raw_kernel_names_its_own_line():
    with pytest.raises(EmulatorFault) as caught:
        tw.emulate_cupy(raw(SCALE, "-D", "FACTOR=2"), 3, 32, {"x": np.ones(64, np.float32), "n": 64})
    assert (caught.value.hazard.kind, caught.value.hazard.line) == ("out_of_bounds", 7)


def test_what_is_no_raw_kernel_and_options_that_are_not_known_are_refused():
    with pytest.raises(InvalidOperand, match=r"not a cupy\.RawKernel with a source"):
        tw.emulate_cupy(test_what_is_no_raw_kernel_and_options_that_are_not_known_are_refused, 1, 1, [])
    with pytest.raises(InvalidOperand, match="--use_fast_math"):
        tw.emulate_cupy(raw(SCALE, "--use_fast_math"), 1, 32, [np.ones(1, np.float32), 1])


def test_without_numba_an_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "numba", None)
    with pytest.raises(InvalidOperand, match="pip install"):
        tw.emulate_numba(None, 1, 1, [])


def test_a_kernel_of_cupys_runs():
    cupy = pytest.importorskip("cupy")
    kernel = cupy.RawKernel(SCALE.replace("<=", "<"), "scale", options=("-DFACTOR=5",))
    result = tw.emulate_cupy(kernel, (1,), (32,), (np.ones(20, np.float32), 20))
    assert result.arrays[0].tolist() == [5.0] * 20


@pytest.fixture
def cuda():
    return pytest.importorskip("numba.cuda", reason="needs numba-cuda", exc_type=ImportError)


def test_a_kernel_of_numbas_runs_on_arrays_of_one_and_two_dimensions(cuda):
    @cuda.jit
    def columns(x, out, scale):
        i, j = cuda.grid(2)
        if i < x.shape[0] and j < x.shape[1]:
            cuda.atomic.add(out, j, scale * x[i, j])

    x = np.asfortranarray(np.arange(60, dtype=np.float64).reshape(6, 10))
    result = tw.emulate_numba(columns, (2, 2), (4, 8), {"x": x, "out": np.zeros(10), "scale": 0.5})
    np.testing.assert_array_equal(result.named["out"], 0.5 * x.sum(axis=0))


def test_a_race_in_a_kernel_of_numbas_names_the_python_line(cuda):
    from numba import float32

    @cuda.jit
    def backwards(x, out):
        s = cuda.shared.array(64, float32)
        t = cuda.threadIdx.x
        s[t] = x[t]
        out[t] = s[63 - t]  # no syncthreads

    with pytest.raises(EmulatorFault) as caught:
        tw.emulate_numba(backwards, 1, 64, [np.ones(64, np.float32), "f32[64]=nan"])
    hazard = caught.value.hazard
    assert hazard.file == __file__
    assert (hazard.kind, hazard.source_text) == ("shared_race", "out[t] = s[63 - t]  # no syncthreads")


def test_arguments_that_are_not_the_kernels_are_refused(cuda):
    @cuda.jit
    def nothing(x, n):
        pass

    with pytest.raises(InvalidOperand, match="1 arguments, but nothing takes 2"):
        tw.emulate_numba(nothing, 1, 1, [1])
    with pytest.raises(InvalidOperand, match="n is missing, m is not one of them"):
        tw.emulate_numba(nothing, 1, 1, {"x": 1, "m": 2})
    with pytest.raises(InvalidOperand, match="n is None"):
        tw.emulate_numba(nothing, 1, 1, [1, None])
    with pytest.raises(InvalidOperand, match=r"not what @numba\.cuda\.jit makes"):
        tw.emulate_numba(print, 1, 1, [])
