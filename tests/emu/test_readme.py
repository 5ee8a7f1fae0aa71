"""The README's Python runs as it stands, on the emulator, and is right."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw

README = Path(__file__).parents[2] / "README.md"


@pytest.fixture
def operands():
    rng = np.random.default_rng(0)

    def normal(*shape: int, dtype: type = np.float32) -> np.ndarray:
        return rng.standard_normal(shape).astype(dtype)

    q, k, v = (normal(1, 2, 40, 32, dtype=np.float16) for _ in range(3))
    return {
        "a": normal(24, 20), "b": normal(20, 32), "c0": normal(24, 32), "out": np.full((24, 32), np.nan, np.float32),
        "bias": normal(32), "r": normal(24, 32), "q": q, "k": k, "v": v,
    }  # fmt: skip


def test_its_python_runs(operands, capsys):
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    names = dict(operands)
    with tw.emulator():
        exec(example, names)
    product = operands["a"].astype(np.float64) @ operands["b"]
    fused = product + operands["bias"]
    np.testing.assert_allclose(names["c"], product, atol=1e-4)
    np.testing.assert_allclose(names["y"], fused / (1 + np.exp(-fused)) * operands["r"], atol=1e-4)
    np.testing.assert_allclose(operands["out"], 1.5 * product + 0.5 * operands["c0"], atol=1e-4)
    assert names["o"].shape == operands["q"].shape
    shown = capsys.readouterr().out
    assert "runs     f12_multistage" in shown
    assert "thread instructions" in shown


def test_the_python_of_the_page_on_attention_runs(capsys):
    page = README.parent / "docs" / "attention.md"
    (example,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    names: dict = {}
    exec(example, names)
    assert names["lse"].shape == (1, 4, 40)
    assert np.isfinite(names["out"]).all()
    assert "runs     a17_lazy_rescale" in capsys.readouterr().out


def test_pages_it_names_exist():
    for page in re.findall(r"\]\(([^)#]+)\)", README.read_text(encoding="utf-8")):
        assert (README.parent / page).is_file(), page
