"""What `tilewright doctor` concludes from what it finds."""

from __future__ import annotations

import pytest
from fake_driver import board, old_board

from tilewright.errors import MissingDependency
from tilewright.jit import nvrtc
from tilewright.lab import bench, climb_gpu
from tilewright.lab.doctor import Finding, examine

H200 = ("NVIDIA H200", (9, 0), 132, 60 << 20, 3201000, 6144, 1980000)


@pytest.fixture(autouse=True)
def quiet(monkeypatch, tmp_path):
    """No nvidia-smi, no clocks, a cache of its own."""
    monkeypatch.setattr(climb_gpu, "driver_version", lambda: "570.86.10")
    monkeypatch.setattr(bench, "pci_bus_id", lambda ordinal: "")
    monkeypatch.setattr(bench.Conditions, "read", lambda self: {})
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    monkeypatch.setattr(nvrtc, "version", lambda: "13.0")


def found() -> dict[str, Finding]:
    findings = examine()
    assert findings[-1].name == "verdict"
    return {finding.name: finding for finding in findings}


def test_a_gpu_and_a_driver_that_serves_the_compiler_are_ready(monkeypatch):
    board(monkeypatch, *H200)
    assert found()["verdict"].detail == "ready: GPU"


def test_a_driver_older_than_the_compiler_needs_is_no_yes(monkeypatch):
    board(monkeypatch, *H200, cuda=12080)
    findings = found()
    driver = findings["CUDA driver"]
    assert (driver.found, driver.detail) == (False, "570.86.10")
    assert "The driver serves CUDA 12.8; NVRTC 13.0 makes machine code for CUDA 13." in driver.advice
    assert "Install driver 580 or newer, or the compiler of CUDA 12" in driver.advice
    assert findings["verdict"].detail == "ready: emulator only (the driver is too old)"
    monkeypatch.setattr(nvrtc, "version", lambda: "12.9")
    assert found()["verdict"].detail == "ready: GPU", "the driver serves NVRTC 12"


def test_a_gpu_that_is_not_supported_leaves_the_emulator(monkeypatch):
    old_board(monkeypatch)
    findings = found()
    assert "7.5 is not supported" in findings["GPU 0"].detail
    assert findings["verdict"].detail == "ready: emulator only (the GPU is not supported or cannot be used)"


def test_without_the_compiler_nothing_is_ready(monkeypatch):
    def missing() -> str:
        raise MissingDependency("NVRTC could not be loaded")

    board(monkeypatch, *H200)
    monkeypatch.setattr(nvrtc, "version", missing)
    verdict = found()["verdict"]
    assert (verdict.found, verdict.detail) == (False, "not ready: NVRTC missing")
