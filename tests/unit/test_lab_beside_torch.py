"""Suites in pairs with torch, apart from a GPU: their cases, what the check finds, joules, and the tables."""

from __future__ import annotations

import ctypes
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from tilewright.errors import DeviceError
from tilewright.lab import energy
from tilewright.lab.beside_torch import make_sets, problem_of, verdict
from tilewright.lab.suite import read_suite
from tilewright.report.beside_torch import summary

SUITES = (
    "hopper-products", "hopper-products-heldout", "hopper-products-others", "hopper-products-training",
    "hopper-power", "hopper-cublaslt", "hopper-one-row",
)  # fmt: skip


@pytest.mark.parametrize("name", SUITES)
def test_every_case_is_a_product_and_stands_once(name):
    cases = read_suite(Path(__file__).parents[2] / "benchmarks" / f"{name}.json")["cases"]
    assert len({problem_of(case) for case in cases}) == len(cases)


def test_no_held_out_case_is_in_the_suite():
    folder = Path(__file__).parents[2] / "benchmarks"
    of_suite, held = (
        {problem_of(case) for case in read_suite(folder / f"{name}.json")["cases"]} for name in SUITES[:2]
    )
    assert not of_suite & held


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("batch", [1, 3])
def test_one_wrong_element_is_found(layout, batch):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    case = {"m": 40, "n": 24, "k": 16, "layout": layout, "dtype": "bf16", "batch": batch}
    sets = make_sets(torch, case, "cpu", 1)
    a, b, out = sets.a[0], sets.b[0], sets.out[0]
    assert verdict(torch, a, b, out) != "", "poisoned with NaN"
    out.copy_(a @ b)
    assert verdict(torch, a, b, out) == ""
    out[..., 3, 5] += 8
    assert verdict(torch, a, b, out) != ""


class _Nvml:
    """A counter that goes up by 500 mJ at each reading."""

    def __init__(self, status: int = 0) -> None:
        self.status, self.millijoules = status, 0

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlDeviceGetHandleByPciBusId_v2(self, bus: bytes, handle: object) -> int:
        return 0

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu: object, read: object) -> int:
        self.millijoules += 500
        ctypes.cast(read, ctypes.POINTER(ctypes.c_ulonglong))[0] = self.millijoules
        return self.status

    def nvmlDeviceGetClockInfo(self, gpu: object, kind: int, read: object) -> int:
        ctypes.cast(read, ctypes.POINTER(ctypes.c_uint))[0] = 1500
        return 0


class _Watch:
    """A stream on which each launch takes 10 ms."""

    def __init__(self, ordinal: int) -> None:
        self.launches = 0

    def measure(self, launches):
        return [10.0] * len(launches)

    def graph_of(self, launches):
        from contextlib import nullcontext

        return nullcontext(lambda stream: None)

    def synchronize(self) -> None:
        pass

    def close(self) -> None:
        pass


def test_joules_and_clocks_are_read_around_each_turn(monkeypatch):
    monkeypatch.setattr(energy.ctypes, "CDLL", lambda name: _Nvml())
    monkeypatch.setattr(energy, "Stopwatch", _Watch)
    monkeypatch.setattr(energy, "SETTLING", 0.0)
    monkeypatch.setattr(energy, "time", SimpleNamespace(perf_counter=count(0, 0.0005).__next__))
    sides = [[lambda stream: None], [lambda stream: None]]
    ours, theirs = energy.run_in_turns(energy.EnergyMeter("0"), sides, 10**12, 0.001)
    assert ours.sm_mhz == theirs.sm_mhz == 1500
    assert ours.watts == pytest.approx(ours.joules_per_tflop * ours.tflops)


def test_a_meter_that_cannot_be_read_says_so(monkeypatch):
    monkeypatch.setattr(energy.ctypes, "CDLL", lambda name: _Nvml(status=3))
    with pytest.raises(DeviceError, match="status 3"):
        energy.EnergyMeter("0").joules()


def _record(ratio: float, **case: object) -> dict:
    return {"case": {"m": 512, "n": 64, "k": 64, "layout": "nn", "dtype": "bf16"} | case,
            "result": {"right": True, "ratio": ratio}}  # fmt: skip


def test_a_summary_counts_each_product_once_and_names_the_lowest():
    records = [_record(1.0), _record(4.0), _record(0.5, layout="tn"), _record(2.0, n=63)]
    records.append({"case": records[0]["case"], "result": {"right": False, "reason": "off"}})
    lines = summary(records, [""] * 5)
    assert "| m = 512 | 2 | 2.000 | 1.000 | 1 |" in lines
    assert "| transposed A (TN, TT) | 1 | 0.500 | 0.500 | 0 |" in lines
    assert "| **all** | 4 | 1.414 | 0.500 | 2 |" in lines
    assert any(line.startswith("Lowest: 512 x 64 x 64 TN 0.500") for line in lines)
    assert any("Wrong, and not timed" in line for line in lines)
