"""Every form of mma, wmma and wgmma, from its kernel's registers to its sum's bits; and what an H200 said of them.

The H200 was compared with an emulator that let zeros count as 2^-126 and had two more mistakes (DIFFERED). The record
is as it was measured then; here today's sums are held to the GPU's bits that it has, and to the number of results that
had to change.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensor_forms import FORMS, MODES, SIZE, compared_operands, compiled, hexadecimal, operands, run

from tilewright.emu import Emulator
from tilewright.emu.isa import tensor_sum
from tilewright.jit import use_executor
from tilewright.lab.record import read_records

DATA = Path(__file__).parent / "data"
FILES = {name: DATA / f"tensor_bits_{name.replace('-', '_').lower()}.json" for name in ("H200", "H100", "mended-H200")}
BY_GPU = {
    name: {record["case"]["form"]: record["result"] for record in read_records(path)} for name, path in FILES.items()
}
RECORDS = BY_GPU["mended-H200"]
"""Of an emulator whose mistakes it showed."""
DIFFERED = {str(form) for form in FORMS if RECORDS[str(form)]["differing"]}
"""Forms whose record has results in which the GPU differed from the emulator of that day."""


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_kernel_gives_the_sums_of_its_operands(form):
    rng = np.random.default_rng(1)
    executor = Emulator()
    with use_executor(executor):
        kernel = compiled(form, executor.arch.name)
    parts = [operands(form, mode, 4, rng) for mode in MODES]
    a, b, c = (np.concatenate(part) for part in zip(*parts, strict=True))
    np.testing.assert_array_equal(run(form, executor, kernel, a, b, c), form.sums(a, b, c))


def words(given: list[dict[str, Any]], key: str, kind: str) -> np.ndarray:
    return np.array([[int(x, 16) for x in one[key].split()] for one in given], f"u{SIZE[kind]}")


@pytest.mark.parametrize("gpu", ["H200", "H100"])
def test_no_result_of_any_form_differed_on_a_gpu(gpu):
    assert set(BY_GPU[gpu]) == set(map(str, FORMS))
    assert [result["differing"] for result in BY_GPU[gpu].values()] == [0] * len(FORMS)


@pytest.mark.parametrize("gpu", FILES)
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_recorded_results_of_the_gpu_are_the_sums(form, gpu):
    d_kind, a_kind, b_kind, c_kind = form.kinds
    result = BY_GPU[gpu][str(form)]
    assert result["results"] >= 10**6
    assert {sample["mode"] for sample in result["samples"]} == set(MODES)
    given = result["samples"] + result.get("cases", [])
    a, b, c = words(given, "a", a_kind)[:, None], words(given, "b", b_kind)[:, :, None], words(given, "c", c_kind)
    np.testing.assert_array_equal(form.sums(a, b, c[:, None])[:, 0], words(given, "gpu", d_kind))


# --- the results in which the GPU differed ----------------------------------------------------------------------------


ZEROS_COUNTED = [
    form
    for form in FORMS
    if str(form) in DIFFERED and form.kinds[0] != "f64" and not (form.unit == "mma" and form.kinds[1] == "e4m3")
]
"""Forms whose only mistake was that zeros counted: the two constants say it all."""


def test_38_forms_had_no_result_that_differed():
    assert len(FORMS) - len(DIFFERED) == 38


@pytest.mark.parametrize("form", ZEROS_COUNTED, ids=str)
def test_as_many_results_change_with_what_zeros_count_as_the_gpu_had_otherwise(form, monkeypatch):
    """The GPU's other bits were not kept, but their number was, of each mode. A smallest exponent of -132 or -134
    changes other numbers of results.
    """
    result = RECORDS[str(form)]
    sampled = iter(result["samples"])
    found = {}
    for mode, (a, b, c), places in compared_operands(form, 10**6):
        for case, i, _ in places:
            if hexadecimal(a[case, i]) != next(sampled)["a"]:
                pytest.skip("this NumPy draws other operands from the same seed")
        if mode not in ("zeros", "vanishing"):
            continue
        today = form.sums(a, b, c)
        with monkeypatch.context() as then:
            then.setattr(tensor_sum, "SMALLEST_EXPONENT", -126)
            then.setattr(tensor_sum, "ZERO_FACTOR", -126)
            then.setattr(tensor_sum, "fp8_exponents", tensor_sum.fp8_exponents.__wrapped__)
            if count := int((form.sums(a, b, c) != today).sum()):
                found[mode] = count
    assert found == result["by_mode"]
