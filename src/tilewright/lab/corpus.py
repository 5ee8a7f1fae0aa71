"""Kernels of other projects on the emulator: data says which, with what arguments, and what is expected.

Their code is not here. A folder, named by $TILEWRIGHT_CORPUS, holds the projects, each in a folder of its name, at the
commit that the data names. A row's `expect` is the kinds of hazard that a GPU punishes and that it has; a row without
is right. Every row is run to its end.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..emu import emulate
from ..emu.arguments import parse_argument
from ..emu.parameters import as_numbers
from ..emu.reference import Reference
from ..errors import TilewrightError
from ..jit.tensor_map import TensorMap
from .ladder import Progress, silent
from .record import provenance

VARIABLE = "TILEWRIGHT_CORPUS"
CUBE = 64
"""Columns of a tensor that lie side by side in a map of three dimensions, as CUTLASS and others describe matrices."""


TOLERANCE = {"bf16": 2e-2, "f16": 2e-3}
"""Of results that are compared as fp32."""


def corpus_records(name: str, cases: list[dict[str, Any]], say: Progress = silent) -> list[dict[str, Any]]:
    """One record per kernel: the kinds of hazard found, and whether all is as expected.

    Raises TilewrightError where the folder or a project is not there.
    """
    folder = os.environ.get(VARIABLE)
    if not folder:
        raise TilewrightError(f"{VARIABLE} is not set. Name the folder that holds the projects of the corpus.")
    records, origin = [], provenance(machine_kind="emulator")
    for number, case in enumerate(cases):
        path = Path(folder) / case["project"].split("/")[-1] / case["path"]
        if not path.is_file():
            raise TilewrightError(
                f"{path} is not there. Clone https://github.com/{case['project']} into {folder} and check out "
                f"{case['commit']}."
            )
        say(number, f"{case['project']} {case['entry']}")
        told = {key: case[key] for key in ("project", "commit", "path", "entry")} | {"row": case["entry"]}
        records.append({"suite": name, "case": told, "result": _run(path, case), "provenance": origin})
    return records


def _run(path: Path, case: Mapping[str, Any]) -> dict[str, Any]:
    random = np.random.default_rng(0)
    before: dict[str, Any] = {}
    values: list[Any] = []
    kinds: dict[str, str] = {}
    for key, spec in case["args"].items():
        given = np.array(spec, np.int32) if isinstance(spec, list) else spec
        argument = parse_argument(spec["array"] if isinstance(spec, dict) else given, random)
        array = argument.array
        before[key] = argument.scalar if array is None else as_numbers(array, argument.kind)
        kinds[key] = argument.kind
        if isinstance(spec, dict):
            assert array is not None
            cubes = array.reshape(len(array), -1, CUBE).transpose(1, 0, 2)
            values.append(TensorMap.of(cubes, tuple(spec["box"]), dtype=argument.kind, swizzle=spec.get("swizzle", 0)))
        else:
            values.append(given if array is None or argument.empty else array)
    result = emulate(
        path, case["entry"], case["grid"], case["block"], values, shared_bytes=case.get("shared_bytes", 0),
        hazards="collect",
    )  # fmt: skip
    buffers = [key for key, spec in case["args"].items() if isinstance(before[key], np.ndarray)]
    after = {}
    for key, array in zip(buffers, result.arrays, strict=True):
        whole = array.transpose(1, 0, 2).reshape(before[key].shape) if isinstance(case["args"][key], dict) else array
        after[key] = as_numbers(whole, kinds[key])
    found = sorted({hazard.kind for hazard in result.hazards if hazard.level == "error"})
    wrong = ""
    if "reference" in case:
        reference = Reference.of(case["reference"])
        wrong = reference.wrong(before, after, TOLERANCE.get(kinds.get(reference.buffer, "")))
    places = sorted({f"{Path(h.file).name}:{h.line}" for h in result.hazards if h.level == "error" and h.file})
    return {
        "right": found == sorted(case.get("expect", [])) and bool(wrong) == case.get("differs", False),
        "found": found, "warnings": sorted({h.kind for h in result.hazards if h.level == "warning"}),
        "places": places[:3], "wrong": wrong, "instructions": result.counters.thread_instructions,
        "seconds": result.seconds,
    }  # fmt: skip
