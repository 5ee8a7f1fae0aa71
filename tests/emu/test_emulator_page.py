"""The two-minute tour of docs/emulator.md: each of its outputs is what the emulator says of that version."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import EmulatorFault

PAGE = (Path(__file__).parents[2] / "docs" / "emulator.md").read_text(encoding="utf-8")
TOUR = PAGE.split("## Two minutes")[1].split("## Use")[0]
BLOCKS = re.findall(r"```[^\n]*\n(.*?)```", TOUR, re.DOTALL)
SOURCE = BLOCKS[0]
SHOWN = [block for block in BLOCKS if block.startswith("FAULT")]
BARRIER = ("blockIdx.x * 64 + t];\n", "blockIdx.x * 64 + t];\n    __syncthreads();\n")
FENCE = ("= s[0];\n", "= s[0];\n        __threadfence();\n")


def run(tmp_path: Path, *changes: tuple[str, str], **options) -> tw.EmulateResult:
    source = SOURCE
    for old, new in changes:
        assert source.count(old) == 1
        source = source.replace(old, new)
    (tmp_path / "mean.cu").write_text(source)
    args = {"x": np.ones(256, np.float32), "y": "f32[1]=empty", "n": 256}
    return tw.emulate(tmp_path / "mean.cu", "mean", 4, 64, args, **options)


@pytest.mark.parametrize(("changes", "shown"), [((), SHOWN[0]), ((BARRIER,), SHOWN[1])])
def test_the_tour_shows_what_is_said(changes, shown, tmp_path):
    with pytest.raises(EmulatorFault) as caught:
        run(tmp_path, *changes)
    said = str(caught.value).replace(f"{tmp_path}/", "")
    for line in shown.strip().removeprefix("FAULT: ").splitlines():
        assert line.rstrip() in said


def test_the_tour_ends_with_a_right_kernel_in_every_order(tmp_path):
    result = run(tmp_path, BARRIER, FENCE, explore=20)
    assert result.arrays[1].tolist() == [1.0]
    assert (result.hazards, result.explored, result.differing) == ([], 20, {})
