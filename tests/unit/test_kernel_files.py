"""How much of the device code a reader of one kernel has to open."""

from __future__ import annotations

import pytest

from tilewright.grouped.rungs import GROUPED_RUNGS
from tilewright.jit.source import CUDA_ROOT, gather
from tilewright.ladder import ATTENTION_RUNGS, GEMM_RUNGS, HOPPER_RUNGS, SPLIT_RUNGS

# Files that a rung's unit holds without an epilogue, its own among them. Those of ptx/ are counted apart: each of their
# functions is one instruction, and a kernel reads without them.
FILES = {
    "f01": 3, "f02": 4, "f03": 5, "f04": 5, "f05": 6, "f06": 6, "f07": 7, "f08": 7, "f09": 6, "f10": 6, "f11": 6,
    "f12": 8,
    "h01": 7, "h02": 7, "h03": 7, "h04": 7, "h05": 7, "h06": 8, "h07": 7, "h08": 8, "h09": 8, "h10": 7, "h11": 9,
    "h12": 11, "h13": 11, "h14": 10, "h15": 12, "h16": 12, "h17": 12, "h18": 13, "h19": 11,
    "v01": 5, "v02": 4, "t01": 11, "t02": 12, "t03": 12, "t04": 19, "t05": 19, "a": 12, "d": 11,
    "g01": 10, "g02": 12, "g03": 14, "g04": 9, "g05": 14, "g06": 11, "g07": 19, "g08": 15,
    "q01": 10, "q02": 14, "q03": 17, "q04": 17, "q05": 13, "q06": 13, "q07": 17,
}  # fmt: skip
MOST_OF_PTX = 13
GENERATED = ('#include "tile/fused.cuh"', '#include "tile/fused_math.cuh"', '#include "tile/range.cuh"')
"""What the texts made from an epilogue include (gemm/fused.py, gemm/ranges.py)."""


def files_of(include: str) -> tuple[int, int]:
    """(files beside ptx/, files of ptx/) of a unit that includes `include`."""
    names = [name for name, _ in gather(f'#include "{include}"\n', [CUDA_ROOT])]
    ptx = sum(name.startswith("ptx/") for name in names)
    return len(names) - ptx, ptx


@pytest.mark.parametrize("rung", [*GEMM_RUNGS, *GROUPED_RUNGS], ids=str)
def test_a_reader_of_a_gemm_rung_opens_few_files(rung):
    files, ptx = files_of(rung.include)
    assert files <= FILES[rung.id.split("_")[0]]
    assert ptx <= MOST_OF_PTX


@pytest.mark.parametrize("rungs", [ATTENTION_RUNGS, HOPPER_RUNGS], ids=["mma", "hopper"])
def test_a_reader_of_an_attention_rung_opens_one_file_for_all_of_them(rungs):
    (include,) = {rung.include for rung in rungs}
    files, ptx = files_of(include)
    assert files <= FILES["a"]
    assert files + ptx <= 20
    text = (CUDA_ROOT / include).read_text()
    headings = [line.split()[2] for line in text.splitlines() if line.startswith("// ---- a")]
    assert headings == [rung.id for rung in rungs], "one heading a rung, in climbing order"


@pytest.mark.parametrize("include", [*dict.fromkeys(rung.include for rung in SPLIT_RUNGS), "attention/merge.cuh"])
def test_a_reader_of_split_attention_opens_few_files(include):
    files, ptx = files_of(include)
    assert files <= FILES["d"]
    assert ptx <= MOST_OF_PTX


def test_every_shared_file_of_device_code_is_included():
    texts = [path.read_text() for path in CUDA_ROOT.rglob("*.cuh")]
    included = {name for name, _ in gather("\n".join([*texts, *GENERATED]), [CUDA_ROOT])}
    there = {f"{path.parent.name}/{path.name}" for folder in ("ptx", "tile") for path in (CUDA_ROOT / folder).iterdir()}
    assert there <= included
