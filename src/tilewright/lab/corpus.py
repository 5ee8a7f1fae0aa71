"""Kernels of other projects on the emulator: data says which, with what arguments, and what is expected.

Their code is not here. A folder, named by $TILEWRIGHT_CORPUS, holds the projects, each in a folder of its name, at the
commit that the data names. A row's `expect` is the kinds of hazard that a GPU punishes and that it has; a row without
is right. Every row is run to its end. A row with `kernels` stands for kernels of one file that share its data: each
is a name, or an object of what is its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..arrays.dtypes import FP8
from ..emu import Struct, emulate
from ..emu.arguments import as_numbers, parse_argument
from ..emu.reference import Reference
from ..errors import TilewrightError
from ..jit.tensor_map import TensorMap
from .ladder import Progress, silent
from .record import provenance

Row = Mapping[str, Any]
VARIABLE = "TILEWRIGHT_CORPUS"
CUBE = 64
"""Columns of a tensor that lie side by side in a map of three dimensions, as CUTLASS and others describe matrices."""


TOLERANCE = {"bf16": 2e-2, "f16": 2e-3}
"""Of results that are compared as fp32."""


def corpus_records(name: str, cases: list[dict[str, Any]], say: Progress = silent) -> list[dict[str, Any]]:
    """One record per kernel: the kinds of hazard found, and whether all is as expected.

    Raises TilewrightError where the folder or a project is not there.
    """
    records, origin = [], provenance(machine_kind="emulator")
    for number, case in enumerate(cases):
        root = project_folder(case, case["path"])
        say(number, f"{case['project']} {row_of(case)}")
        told = {key: case[key] for key in ("project", "commit", "path", "entry")} | {"row": row_of(case)}
        records.append({"suite": name, "case": told, "result": _run(root, case), "provenance": origin})
    return records


def strangers_records(name: str, cases: list[dict[str, Any]], say: Progress = silent) -> list[dict[str, Any]]:
    """One record per row of `kernels`: what each of them found and whether all is as expected.

    "checked" is whether its result was compared with a reference; "why" is why it was refused. Raises TilewrightError
    where the folder or a project is not there.
    """
    records, origin = [], provenance(machine_kind="emulator")
    for number, case in enumerate(cases):
        root = project_folder(case, case["path"])
        say(number, f"{case['project']} {case['path']}")
        told = {key: case[key] for key in ("project", "commit", "path")} | {"row": row_of(case)}
        kernels = [_judged(root, row) for row in rows_of(case)]
        result = {"right": all(kernel["right"] for kernel in kernels), "kernels": kernels}
        records.append({"suite": name, "case": told, "result": result, "provenance": origin})
    return records


def rows_of(case: Row) -> Iterator[Row]:
    """The kernels of a row that share its data, each as a row of its own."""
    shared = {key: value for key, value in case.items() if key != "kernels"}
    for kernel in case["kernels"]:
        own = {"entry": kernel} if isinstance(kernel, str) else kernel
        yield shared | own | {"args": shared["args"] | own.get("args", {})}


def _judged(root: Path, row: Row) -> dict[str, Any]:
    """Return what became of a kernel: run, or refused with the reason."""
    told = {"name": row["entry"], "checked": "reference" in row, "why": ""}
    try:
        return told | _run(root, row)
    except TilewrightError as error:
        why = next((line for line in str(error).splitlines() if ": error" in line), str(error))
        return told | {"right": False, "found": [], "wrong": "", "why": why.replace(f"{root.parent}/", "")[:300]}


def project_folder(case: Mapping[str, Any], path: str = "") -> Path:
    """Return where a case's project lies. Raises TilewrightError where it, or its file `path`, is not there."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        raise TilewrightError(f"{VARIABLE} is not set. Name the folder that holds the projects of the corpus.")
    root = Path(folder) / case["project"].split("/")[-1]
    if not (root / path).exists():
        raise TilewrightError(
            f"{root / path} is not there. Clone https://github.com/{case['project']} into {folder} and check out "
            f"{case['commit']}."
        )
    return root


def row_of(case: Mapping[str, Any]) -> str:
    """Return what a kernel is called: its entry, or a shorter name where that is long; its file where it is many."""
    return case.get("row") or case.get("entry") or Path(case["path"]).name


class _Arguments:
    """The arguments of a row, from its data."""

    def __init__(self, specs: Mapping[str, Any]) -> None:
        self.random = np.random.default_rng(0)
        self.before: dict[str, Any] = {}
        """Name -> what it is before the launch, as numbers. Parts of a struct: its name, "_" and their offset."""
        self.kinds: dict[str, str] = {}
        self.buffers: list[str] = []
        self.values = [self._value(key, spec) for key, spec in specs.items()]

    def _value(self, key: str, spec: Any) -> Any:
        if isinstance(spec, dict) and "struct" in spec:
            return Struct({int(at): self._value(f"{key}_{at}", part) for at, part in spec["struct"].items()})
        given = np.array(spec, np.int32) if isinstance(spec, list) else spec
        if isinstance(spec, dict) and "values" in spec:
            given = np.asarray(eval(spec["values"], {"np": np, "random": self.random, **self.before}))
        boxed = isinstance(spec, dict) and "box" in spec
        argument = parse_argument(spec["array"] if boxed else given, self.random)
        array = argument.array
        self.kinds[key] = argument.kind
        self.before[key] = argument.scalar if array is None else _wide(as_numbers(array, argument.kind))
        if array is None:
            return argument.scalar if argument.kind else given
        self.buffers.append(key)
        if boxed:
            rank = len(spec["box"])
            if rank > array.ndim:
                array = array.reshape(len(array), -1, CUBE).transpose(1, 0, 2)
                array = array.reshape((1,) * (rank - 3) + array.shape)
            dtype = "u8" if argument.kind in FP8 else argument.kind
            return TensorMap.of(array, tuple(spec["box"]), dtype=dtype, swizzle=spec.get("swizzle", 0))
        return given if argument.empty else array

    def after(self, arrays: list[np.ndarray]) -> dict[str, np.ndarray]:
        """The arrays of a result by their names, of the shapes that the data give."""
        after = {}
        for key, array in zip(self.buffers, arrays, strict=True):
            shape = self.before[key].shape
            if array.ndim > len(shape):
                array = array.reshape(array.shape[-3:]).transpose(1, 0, 2).reshape(shape)
            after[key] = as_numbers(array, self.kinds[key])
        return after


def _wide(values: np.ndarray) -> np.ndarray:
    """Numbers of half precision as fp32, in which references are computed."""
    return values.astype(np.float32) if values.dtype == np.float16 else values


def _source(path: Path, case: Mapping[str, Any]) -> Path | str:
    """The file, or lines that include it and name its types, or the text that it holds as a string."""
    if "text_between" in case:
        first, last = case["text_between"]
        return "".join(part.partition(last)[0] for part in path.read_text().split(first)[1:])
    lines = case.get("lines")
    return "\n".join([f'#include "{case["path"]}"', *lines]) + "\n" if lines else path


def _run(root: Path, case: Mapping[str, Any]) -> dict[str, Any]:
    arguments = _Arguments(case["args"])
    result = emulate(
        _source(root / case["path"], case), case["entry"], case["grid"], case["block"], arguments.values,
        shared_bytes=case.get("shared_bytes", 0), cluster=case.get("cluster"), hazards="collect",
        include=[root, *(root / folder for folder in case.get("include", ()))], options=case.get("options", []),
    )  # fmt: skip
    after = arguments.after(result.arrays)
    found = sorted({hazard.kind for hazard in result.hazards if hazard.level == "error"})
    wrong = ""
    references = case.get("reference", [])
    for reference in map(Reference.of, [references] if isinstance(references, str) else references):
        tolerance = case.get("tolerance", TOLERANCE.get(arguments.kinds.get(reference.buffer, "")))
        wrong = wrong or reference.wrong(arguments.before, after, tolerance)
    places = sorted({f"{Path(h.file).name}:{h.line}" for h in result.hazards if h.level == "error" and h.file})
    return {
        "right": found == sorted(case.get("expect", [])) and bool(wrong) == case.get("differs", False),
        "found": found, "warnings": sorted({h.kind for h in result.hazards if h.level == "warning"}),
        "places": places[:3], "wrong": wrong, "instructions": result.counters.thread_instructions,
        "seconds": result.seconds,
    }  # fmt: skip
