"""Kernels as different people write them, each with one bug that has to be found at its line, or right and silent.

planted/*.cu: a comment `//! KIND[,KIND...] | launch | arguments` stands before each kernel. The first kind has to be
found, and nothing but the kinds; "right" is for kernels that show nothing at all. Lines that end in `// BUG` are those
that a report may name, itself or by a call that it was inlined into. Each file is compiled once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

import tilewright as tw
from tilewright.jit import compile_source

FILES = sorted((Path(__file__).parent / "planted").glob("*.cu"))
_ENTRY = re.compile(r'extern "C" __global__ void\s+(?:__\w+__(?:\([^)]*\))?\s*)*(\w+)\(')


@dataclass(frozen=True)
class Planted:
    """One kernel, with what is expected of it."""

    file: Path
    name: str
    kinds: tuple[str, ...]
    args: tuple[str, ...]
    bugs: frozenset[int]
    """Lines that may be named."""
    options: dict[str, Any] = field(hash=False)


def _read(file: Path) -> list[Planted]:
    lines = file.read_text().splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("//! ")]
    bugs = frozenset(number for number, line in enumerate(lines, 1) if "// BUG" in line)
    kernels = []
    for start in starts:
        kinds, *parts = (part.strip() for part in lines[start][4:].split("|"))
        options: dict[str, Any] = {"grid": 1, "block": 32}
        args: tuple[str, ...] = ()
        for part in parts:
            word, *values = part.split()
            if word in ("grid", "block", "cluster"):
                options[word] = tuple(map(int, values))
            elif word in ("shared_bytes", "explore"):
                options[word] = int(values[0])
            elif word == "red_zones":
                options[word] = True
            else:
                args = (word, *values)
        name = _ENTRY.search("\n".join(lines[start + 1 : start + 4]))
        assert name is not None, f"{file.name}:{start + 1} is not followed by a kernel"
        kernels.append(Planted(file, name[1], tuple(kinds.split(",")), args, bugs, options))
    return kernels


KERNELS = [kernel for file in FILES for kernel in _read(file)]


@lru_cache
def _ptx(file: Path) -> str:
    first = next(kernel.name for kernel in KERNELS if kernel.file == file)
    with tw.emulator():  # to PTX only
        return compile_source(file.read_text(), entry=first, arch="sm_90a", name=str(file)).ptx


def _arguments(kernel: Planted) -> list[Any]:
    return [int(text) if text.lstrip("-").isdigit() else text for text in kernel.args]


def _lines(kernel: Planted, hazard: Any) -> set[int]:
    """The lines of the file that a report names for its own side of the fault."""
    calls = re.findall(re.escape(kernel.file.name) + r":(\d+)", hazard.details.get("inlined_at", ""))
    own = [hazard.line] if hazard.file is not None and hazard.file.endswith(kernel.file.name) else []
    return {*own, *map(int, calls)}


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: f"{kernel.file.stem}-{kernel.name}")
def test_planted_bugs_are_found_at_their_lines_and_right_kernels_are_silent(kernel):
    result = tw.emulate(_ptx(kernel.file), kernel.name, args=_arguments(kernel), hazards="collect", **kernel.options)
    found = {hazard.kind for hazard in result.hazards}
    if kernel.kinds == ("right",):
        assert result.hazards == []
        return
    assert found <= set(kernel.kinds), result
    assert kernel.kinds[0] in found
    for hazard in result.hazards:
        assert hazard.file is not None
        assert hazard.cta is not None
        assert hazard.lanes
        assert _lines(kernel, hazard) & kernel.bugs, hazard
        if "race" in hazard.kind or hazard.kind in ("lost_update", "fence_missing"):
            assert "other_access" in hazard.details


def test_each_class_of_bugs_has_wrong_and_right_kernels():
    wrong: dict[str, int] = {}
    for kernel in KERNELS:
        wrong[kernel.kinds[0]] = wrong.get(kernel.kinds[0], 0) + 1
    assert {kind for kind, count in wrong.items() if count < 5} <= FEW
    assert all(any(k.kinds == ("right",) for k in KERNELS if k.file == file) for file in FILES)


FEW = {
    "flag_race", "bulk_not_waited", "bulk_exit", "endless_loop", "misaligned", "illegal", "uninitialised_shared_read",
    "register_pool", "warp_synchronous", "peer_not_started",
}  # fmt: skip
"""Kinds of which fewer than five are planted here: those of other test files."""
