"""The pytest plugin: a fault and a wrong result fail a test with their report, and a right kernel passes."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

try:
    import tomllib
except ImportError:  # Python 3.10
    tomllib = None

INSTALLED = any(point.name == "tilewright" for point in entry_points(group="pytest11"))
ASKED = () if INSTALLED else ("-p", "tilewright.lab.pytest_plugin")
"""pytest finds the plugin of an installed package by itself, and refuses to have it named too."""
KERNEL = """__global__ void axpy(const float *x, float *y, float a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] += a * x[i];
}
"""
TESTS = """
import numpy as np

X, Y = np.arange(256, dtype=np.float32), np.ones(256, np.float32)


def given(n=256):
    return {"x": X, "y": Y, "a": 2.5, "n": n}


def test_right(emulate):
    result = emulate("axpy.cu", "axpy", 2, 128, given(), expect={"y": 2.5 * X + Y, 0: X})
    assert result.counters.threads == 256


def test_fault(emulate):
    emulate("axpy.cu", "axpy", 3, 128, given(n=300))


def test_wrong(emulate):
    emulate("axpy.cu", "axpy", 2, 128, given(), expect={"y": 2 * X})


def test_name(emulate):
    emulate("axpy.cu", "axpy", 2, 128, given(), expect={"z": 2 * X})


def test_source(emulate):
    emulate("__global__ void k(int *x) { *x = 5; }", "k", 1, 1, [np.zeros(1, np.int32)], expect={0: 5})
"""


SCORED = """
import pytest


def test_passes(check_kernel):
    assert check_kernel("scale.cu").score == 100


def test_wrong(check_kernel):
    check_kernel("wrong.cu")


def test_score(check_kernel):
    check_kernel("slow.cu", least_score=99)


def test_asked(check_kernel):
    for asked in (float("nan"), "90", -1):
        with pytest.raises(ValueError, match="least_score is"):
            check_kernel("scale.cu", least_score=asked)
"""


def test_a_kernel_below_its_score_fails_with_its_report(tmp_path):
    from tilewright.lab.starters import new_kernel

    head = "// check: grid 1\n// check: block 32\n// check: arg x = f32[32]=ones\n// check: reference x = 2 * x\n"
    scale = "__global__ void scale(float* x) { x[threadIdx.x] *= 2; }\n"
    (tmp_path / "scale.cu").write_text(head + scale)
    (tmp_path / "wrong.cu").write_text(head + scale.replace("2", "3"))
    new_kernel(tmp_path / "slow.cu")
    (tmp_path / "test_scores.py").write_text(SCORED)
    out = run_pytest(tmp_path)
    assert "2 failed, 2 passed" in out
    assert "x = 2 * x: 32 of 32 elements differ" in out
    assert "The test asks for 99 of 100." in out
    assert "st.global.f32: 32 sectors per request, 4 would do" in out


def test_faults_and_wrong_results_fail_with_their_report(tmp_path):
    (tmp_path / "axpy.cu").write_text(KERNEL)
    (tmp_path / "test_axpy.py").write_text(TESTS)
    out = run_pytest(tmp_path)
    assert "3 failed, 2 passed" in out
    assert "out_of_bounds: load" in out or "out_of_bounds" in out
    assert "axpy.cu:3: if (i < n) y[i] += a * x[i];" in out
    assert "axpy is wrong:\ny: 256 of 256 elements differ by more than 1e-05" in out
    assert "expect names 'z'; the buffers are x, y" in out
    assert "pytest_plugin.py" not in out


def run_pytest(folder: Path) -> str:
    """What pytest prints of the tests in a folder."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        *ASKED,
        "-p",
        "no:cacheprovider",
        str(folder),
    ]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src"), "COLUMNS": "200"}
    done = subprocess.run([*command, "-q", "--no-header", "-n", "0"], capture_output=True, text=True, cwd=folder,
                          env=environment, timeout=300)  # fmt: skip
    assert not done.stderr
    return done.stdout


@pytest.mark.skipif(tomllib is None, reason="needs tomllib")
def test_pytest_finds_the_plugin_by_its_entry_point():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"tilewright": "tilewright.lab.pytest_plugin"}
