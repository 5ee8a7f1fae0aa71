"""docs/epilogues.md: its examples run as they stand, in order, on the emulator."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np

from tilewright.gemm import call as call_module
from tilewright.gemm.rungs import find_rung
from tilewright.plan.plan import Plan

PAGE = Path(__file__).parents[2] / "docs" / "epilogues.md"


def test_the_pages_examples_run_and_are_right(monkeypatch, capsys):
    plan = Plan(find_rung("f02"), find_rung("f02").default, "a test", "compiles in a moment")
    monkeypatch.setattr(call_module, "plan_rows", lambda *given, **options: plan)
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 4
    scope: dict = {}
    for number, block in enumerate(blocks):
        exec(compile(block, f"{PAGE.name}, example {number + 1}", "exec"), scope)  # as a reader would paste it
        if number == 0:
            acc, r = scope["a"].astype(np.float64) @ scope["b"] + scope["bias"], scope["r"].copy()
            np.testing.assert_allclose(scope["y"], acc / (1 + np.exp(-acc)) * r, rtol=1e-5, atol=1e-5)
        if number == 1:
            assert scope["y"].shape == (3, 48, 40)
            replaced = acc / 2 * (1 + np.vectorize(math.erf)(acc / math.sqrt(2))) + r
            np.testing.assert_allclose(scope["r"], replaced, rtol=1e-5, atol=1e-5)
        if number == 2:
            assert np.abs(scope["y"]).max() <= 15
            assert (np.triu(scope["masked"], 1) == 0).all()
            assert (np.diag(scope["masked"]) > 0).all()
    told = capsys.readouterr().out
    for words in re.findall(r"^    dict\(.*\),  # (.*)$", blocks[3], re.MULTILINE):
        assert words in told
    assert "silu(acc + bias)" in told
    assert told.count("\n") > len(scope["mistakes"]) == 6
