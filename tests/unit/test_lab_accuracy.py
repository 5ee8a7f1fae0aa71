"""How errors of products are taken: nothing that is not finite passes, and no element is left out of them."""

from __future__ import annotations

import json
import types

import numpy as np
import pytest

from tilewright.errors import TilewrightError
from tilewright.gemm.rung import Rung
from tilewright.gpus import GPUS
from tilewright.lab import accuracy, climb_gpu
from tilewright.lab.accuracy import LARGEST, VALUES, Errors, Exact, accuracy_records, make_operands, verdict
from tilewright.lab.numbers import to_tf32
from tilewright.lab.record import validate
from tilewright.lab.reference import Reference
from tilewright.report import precision as pages


def product(name: str = "normal", k: int = 32) -> tuple[Exact, np.ndarray]:
    a, b = make_operands(name, 8, 6, k)
    with np.errstate(all="ignore"):
        return Exact.of(a, b), (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32)


@pytest.mark.parametrize("name", VALUES)
def test_a_rounded_float64_product_errs_at_most_one_rounding_and_is_of_the_right_kind(name):
    exact, out = product(name)
    errors = exact.errors(out)
    assert errors.kinds
    assert errors.share <= 1
    assert errors.rms <= errors.max


def test_an_error_is_found_and_measured():
    exact, out = product()
    out[3, 4] += 1e-3
    errors = exact.errors(out)
    assert errors.max == pytest.approx(1e-3, rel=1e-2)
    assert errors.rms == pytest.approx(1e-3 / np.sqrt(48), rel=1e-2)
    assert errors.share == pytest.approx(1e-3 / exact.size[3, 4] * 2**24, rel=1e-2)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_and_should_be_is_the_largest_error(bad):
    exact, out = product()
    out[0, 0] = bad
    assert exact.errors(out) == Errors(LARGEST, LARGEST, LARGEST, False)


def test_kinds_are_compared_where_they_are_decided():
    exact, out = product("infinities and NaN")
    where = [np.argwhere(test(out))[0] for test in (np.isnan, np.isposinf, np.isneginf)]
    for (row, col), other in zip(where, (1.0, -np.inf, np.nan), strict=True):
        changed = out.copy()
        changed[row, col] = other
        assert not exact.errors(changed).kinds
    # a sum that may overflow on its way, but ends in range: either is right
    a, b = np.float32([[3e38, 3e38, -3e38]]), np.ones((3, 1), np.float32)
    for either in (3e38, np.inf):
        assert Exact.of(a, b).errors(np.float32([[either]])).kinds


def test_the_verdict_takes_cublas_as_its_measure():
    good, poor, odd = Errors(0, 0, 4.0, True), Errors(0, 0, 30.0, True), Errors(0, 0, 1.0, False)
    assert verdict({"fp32x3": good, "cuBLAS fp32": good}, 4) == ""
    assert verdict({"fp32x3": Errors(0, 0, 12.0, True), "cuBLAS fp32": good}, 4).startswith("fp32x3 is off by 12")
    assert "4 are allowed" not in verdict({"fp32x3": poor, "cuBLAS fp32": poor}, 4)
    assert "finite" in verdict({"fp32x3": odd, "cuBLAS fp32": good}, 4)
    assert verdict({"fp32x3": Errors(0, 0, float("nan"), True), "cuBLAS fp32": good}, 4)


def test_unknown_values_are_refused_with_the_names():
    with pytest.raises(TilewrightError, match="There are: normal, "):
        make_operands("odd", 8, 8, 8)


class Memory:
    """A GPU's executor as far as accuracy_records uses it: one buffer, and launches that compute in NumPy."""

    stream = 0
    out = np.zeros(0, np.uint8)

    def write(self, address: int, data: np.ndarray) -> None:
        self.out = data.copy()

    def download(self, address: int, nbytes: int) -> np.ndarray:
        return self.out[:nbytes]

    def multiplies(self, a: np.ndarray, b: np.ndarray, kind: str):
        def launch(stream: int) -> None:
            left, right = (to_tf32(x) if kind == "tf32" else x for x in (a, b))
            with np.errstate(all="ignore"):
                self.out = (left.astype(np.float64) @ right).astype(np.float32).view(np.uint8).reshape(-1)

        return launch


@pytest.fixture
def memory(monkeypatch) -> Memory:
    memory, gpu = Memory(), GPUS["H200"]
    held: list[np.ndarray] = []

    def buffers(problem, executor, a, b):
        held[:] = [a, b]
        return types.SimpleNamespace(a=a, b=b, out=types.SimpleNamespace(address=0, shape=(problem.m, problem.n)))

    def of_library(kind: str):
        return lambda a, b, out, layout: memory.multiplies(a, b, kind)

    library = Reference("fake", "fake 1", ("f32",), of_library("f32"), of_library("tf32"))
    where = types.SimpleNamespace(gpu=gpu, arch=gpu.arch, name="fake", ordinal=0)
    monkeypatch.setattr(accuracy, "device", lambda ordinal: where)
    monkeypatch.setattr(accuracy, "executor_for", lambda ordinal: memory)
    monkeypatch.setattr(accuracy, "needed_reference", lambda ordinal: library)
    monkeypatch.setattr(climb_gpu, "driver_version", lambda: "1")
    monkeypatch.setattr(accuracy, "buffers_of", buffers)
    monkeypatch.setattr(
        accuracy, "rung_launcher", lambda step, where: lambda buffers: memory.multiplies(*held, step.problem.precision)
    )
    monkeypatch.setattr(Rung, "compile", lambda *arguments: None)
    return memory


def test_a_record_holds_each_precisions_errors_and_can_be_shown(memory):
    records = accuracy_records("test", [{"m": 8, "n": 6, "k": 40, "values": name} for name in VALUES])
    validate(records, "here")
    json.dumps(records, allow_nan=False)
    for record in records:
        assert record["result"]["right"], record["result"]["reason"]
        assert set(record["result"]["errors"]) == {"ieee", "tf32", "fp32x3", "cuBLAS fp32", "cuBLAS tf32"}
        assert record["case"]["rungs"]["fp32x3"] == "t02_fp32x3"  # the plan's for so small a product
        shown = [cell(record) for page in (pages.ACCURACY, pages.RANGES) for _, cell in page]
        assert all(shown)
    normal = records[0]["result"]["errors"]
    assert normal["tf32"]["rms"] == normal["cuBLAS tf32"]["rms"] > 100 * normal["fp32x3"]["rms"]


def test_a_product_that_is_not_written_is_wrong(memory, monkeypatch):
    monkeypatch.setattr(accuracy, "rung_launcher", lambda *rest: lambda buffers: lambda stream: None)
    (record,) = accuracy_records("test", [{"m": 8, "n": 6, "k": 40}])
    assert not record["result"]["right"]
