"""Every form of mma, wmma and wgmma, from its kernel's registers to its sum's bits; and what an H200 said of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tensor_forms import FORMS, MODES, SIZE, compiled, operands, run

from tilewright.emu import Emulator
from tilewright.jit import use_executor
from tilewright.lab.record import find_records

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
RECORDS = find_records(RESULTS, "tensor-bits")


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_kernel_gives_the_sums_of_its_operands(form):
    rng = np.random.default_rng(1)
    executor = Emulator()
    with use_executor(executor):
        kernel = compiled(form, executor.arch.name)
    parts = [operands(form, mode, 4, rng) for mode in MODES]
    a, b, c = (np.concatenate(part) for part in zip(*parts, strict=True))
    np.testing.assert_array_equal(run(form, executor, kernel, a, b, c), form.sums(a, b, c))


def test_the_record_has_a_million_results_of_every_form_and_no_bit_that_differs():
    if not RECORDS:
        pytest.skip("no record yet: python tests/gpu/tensor_bits.py benchmarks/results/tensor-bits-H200.json")
    found = {record["case"]["form"]: record["result"] for record in RECORDS}
    assert set(found) == {str(form) for form in FORMS}
    for form, result in found.items():
        assert result["results"] >= 10**6, form
        assert result["differing"] == 0, form


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["case"]["form"])
def test_recorded_results_of_the_gpu_are_the_sums(record):
    form = next(form for form in FORMS if str(form) == record["case"]["form"])
    d_kind, a_kind, b_kind, c_kind = form.kinds

    def words(key: str, kind: str) -> np.ndarray:
        return np.array([[int(x, 16) for x in sample[key].split()] for sample in samples], f"u{SIZE[kind]}")

    samples = record["result"]["samples"]
    assert {sample["mode"] for sample in samples} == set(MODES)
    a, b, c = words("a", a_kind)[:, None], words("b", b_kind)[:, :, None], words("c", c_kind)[:, None]
    np.testing.assert_array_equal(form.sums(a, b, c)[:, 0], words("gpu", d_kind))
