"""Tests neither see nor touch what the user of this machine has tuned; those that need the GPU do not share it."""

from __future__ import annotations

import gc
import os
import tempfile

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "everywhere", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("everywhere")  # a busy machine fails nothing, and one that passes passes again
gc.set_threshold(200_000, 20, 50)  # the emulator's programs are many small objects that live on: a sixth of its time
_FOLDER = tempfile.TemporaryDirectory(prefix="tilewright-tuned-")
os.environ["TILEWRIGHT_TUNED"] = _FOLDER.name


@pytest.fixture
def tuned_folder(tmp_path, monkeypatch):
    """An empty folder that tuning results go to."""
    monkeypatch.setenv("TILEWRIGHT_TUNED", str(tmp_path / "tuned"))
    return tmp_path / "tuned"


def pytest_ignore_collect(collection_path, config):
    """Tests that need the GPU are not read where they are left out; by name they still are."""
    return True if collection_path.name == "gpu" and config.option.markexpr == "not gpu" else None


def pytest_xdist_auto_num_workers(config):
    """Of `-n auto`: a process a core (None leaves it to xdist); for the tests that need the GPU one alone."""
    return None if "not gpu" in config.option.markexpr else 0
