"""The examples run as their pages say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")
EXAMPLES = Path(__file__).parents[2] / "examples"


def test_a_gpt_trained_by_tilewright_has_the_losses_of_torchs(tmp_path):
    record = tmp_path / "record.json"
    command = [sys.executable, str(EXAMPLES / "train_gpt.py"), "--toy", "--steps", "3", "--rate", "0.01"]
    done = subprocess.run([*command, "--json", str(record)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(record.read_text(encoding="utf-8"))
    ours, torchs = found["tilewright"]["losses"], found["torch"]["losses"]
    assert ours == pytest.approx(torchs, abs=0.01)
    assert ours != torchs, "the same kernels ran"
    assert torchs[-1] < torchs[0] - 0.05, "nothing was learnt"
