"""Every form of mma, wmma and wgmma on the GPU, a million results each, bit by bit beside the emulator's sums:

    PYTHONPATH=src python tests/gpu/tensor_bits.py tests/emu/data/tensor_bits_h200.json [--results 1000000]
        [--only wgmma] [--emulator]

Writes one record a form: how many results differ, the first of them in full, how other rules would have done where any
does, and samples with the GPU's bits, which tests hold the emulator to where there is no GPU. Exits with 1 if a bit
differs or a form fails. --emulator runs the kernels there, to try this file.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "emu"))

from tensor_forms import FORMS, Form, compared_operands, compiled, hexadecimal, run

from tilewright.emu import Emulator
from tilewright.emu.isa.tensor_sum import Rule, rule_for
from tilewright.jit import use_executor
from tilewright.jit.launch import Executor
from tilewright.lab.record import provenance, write_json

SHOWN = 3
"""Differing results of a mode that are recorded in full."""


def described(
    place: tuple[int, ...], mode: str, a: np.ndarray, b: np.ndarray, c: np.ndarray, gpu: np.ndarray,
    emulator: np.ndarray | None = None,
) -> dict[str, str]:  # fmt: skip
    """One result with all that it comes from."""
    case, i, j = place
    found = {"mode": mode, "a": hexadecimal(a[case, i]), "b": hexadecimal(b[case, :, j]),
             "c": hexadecimal(c[case, i, j]), "gpu": hexadecimal(gpu[case, i, j])}  # fmt: skip
    return found if emulator is None else {**found, "emulator": hexadecimal(emulator[case, i, j])}


def kinds_of_difference(gpu: np.ndarray, emulator: np.ndarray) -> dict[str, int]:
    """How differing results differ."""
    sign = 1 << (8 * gpu.itemsize - 1)
    magnitudes = [(x & x.dtype.type(sign - 1)).astype(np.int64) for x in (gpu, emulator)]
    infinity = {2: 0x7C00, 4: 0x7F800000, 8: 0x7FF << 52}[gpu.itemsize]
    zero = (magnitudes[0] == 0) & (magnitudes[1] == 0)
    special = (magnitudes[0] >= infinity) | (magnitudes[1] >= infinity)
    near = ~zero & ~special & (np.abs(magnitudes[0] - magnitudes[1]) == 1)
    rest = ~(zero | special | near)
    named = {"sign of zero": zero, "not finite": special, "one unit": near, "more": rest}
    return {name: int(which.sum()) for name, which in named.items() if which.any()}


def other_rules(form: Form) -> list[Rule]:
    """Rules near the one in force."""
    own = rule_for(form.unit, form.kinds[1], (9, 0))
    if own is None or form.kinds[0] in ("s32", "f64") or form.quads:
        return []
    rules = [replace(own, fraction=own.fraction + by) for by in (-2, -1, 1, 2)]
    rules += [replace(own, step=step) for step in (4, 8, 16, 32) if step != own.step and step <= form.k]
    rules += [replace(own, kept=kept) for kept in (10, 12, 13, 14, 23) if kept != own.kept]
    rules += [replace(own, as_halves=not own.as_halves)]
    rules += [Rule(24, 8), Rule(25, 16), Rule(25, 32), Rule(13, 16, kept=13)]
    return [rule for rule in dict.fromkeys(rules) if rule != own]


def compared(form: Form, executor: Executor, kernel: Any, results: int) -> dict[str, Any]:
    """One form's record."""
    done, differing, modes, shown, samples, kinds = 0, 0, {}, [], [], {}
    bad: list[tuple[np.ndarray, ...]] = []
    for mode, (a, b, c), sampled in compared_operands(form, results):
        gpu, emulator = run(form, executor, kernel, a, b, c), form.sums(a, b, c)
        wrong = gpu != emulator
        done += gpu.size
        for place in sampled:
            samples.append(described(place, mode, a, b, c, gpu))
        if count := int(wrong.sum()):
            differing += count
            modes[mode] = count
            if form.kinds[0] != "s32":
                kinds[mode] = kinds_of_difference(gpu[wrong], emulator[wrong])
            places = np.argwhere(wrong)
            spread = places[np.linspace(0, len(places) - 1, min(SHOWN, len(places))).astype(int)]
            shown += [described(tuple(place), mode, a, b, c, gpu, emulator) for place in spread]
        few = slice(0, max(1, 20_000 // (form.m * form.n)))
        bad.append((a[few], b[few], c[few], gpu[few]))
    record = {"results": done, "differing": differing, "samples": samples}
    if differing:
        tried = {
            str(rule): sum(int((form.sums(a, b, c, rule) != gpu).sum()) for a, b, c, gpu in bad)
            for rule in (None, *other_rules(form))
        }
        record |= {"by_mode": modes, "kinds": kinds, "cases": shown,
                   "rules": dict(sorted(tried.items(), key=lambda item: item[1])[:8])}  # fmt: skip
    return record


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare tensor cores' results with the emulator's sums.")
    parser.add_argument("record", type=Path)
    parser.add_argument("--results", type=int, default=1_000_000, help="at least this many of each form")
    parser.add_argument("--only", default="", help="forms whose name holds this")
    parser.add_argument("--emulator", action="store_true", help="run the kernels on the emulator")
    given = parser.parse_args()
    forms = [form for form in FORMS if given.only in str(form)]
    started = time.perf_counter()
    executor: Executor
    if given.emulator:
        executor, where = Emulator(), {"gpu": "emulator", "machine_kind": "emulator"}
    else:
        from tilewright.jit.device import device
        from tilewright.jit.gpu_executor import executor_for

        executor, where = executor_for(), {"gpu": device(0).name, "machine_kind": "gpu"}
    arch = executor.arch.name

    def kernel_of(form: Form) -> Any:
        with use_executor(executor):
            return compiled(form, arch)

    records, bad = [], 0
    with ThreadPoolExecutor(max(1, min(8, (os.cpu_count() or 2) - 1))) as pool:
        kernels: list[Future[Any]] = [pool.submit(kernel_of, form) for form in forms]
        for form, kernel in zip(forms, kernels, strict=True):
            began = time.perf_counter()
            try:
                result = compared(form, executor, kernel.result(), given.results)
            except Exception as error:
                traceback.print_exc()
                result = {"error": f"{type(error).__name__}: {error}"[:500]}
            records.append({"suite": "tensor-bits", "case": {"form": str(form)}, "result": result})
            wrong = "error" in result or result["differing"] > 0
            bad += wrong
            said = result.get("error") or f"{result['differing']} of {result['results']} differ"
            print(f"{form!s:50s} {said}  ({time.perf_counter() - began:.1f} s)", flush=True)
            if wrong and "error" not in result:
                print("   by mode", result["by_mode"], "\n   kinds  ", result["kinds"], "\n   rules  ", result["rules"])
                for case in result["cases"]:
                    print("     ", case)
    taken = provenance(**where, seconds=round(time.perf_counter() - started, 1))
    write_json(given.record, [{**record, "provenance": taken} for record in records])
    print(f"{len(records)} forms, {bad} not right, {time.perf_counter() - started:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
