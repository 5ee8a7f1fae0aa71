"""Tests neither see nor touch what the user of this machine has tuned."""

from __future__ import annotations

import os
import tempfile

import pytest

_FOLDER = tempfile.TemporaryDirectory(prefix="tilewright-tuned-")
os.environ["TILEWRIGHT_TUNED"] = _FOLDER.name


@pytest.fixture
def tuned_folder(tmp_path, monkeypatch):
    """An empty folder that tuning results go to."""
    monkeypatch.setenv("TILEWRIGHT_TUNED", str(tmp_path / "tuned"))
    return tmp_path / "tuned"
