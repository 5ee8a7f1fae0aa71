"""The suite that times tuning from cold: it starts from nothing, reads the result back, and believes no failure."""

from __future__ import annotations

import subprocess
import types
from pathlib import Path

import pytest

from tilewright.errors import TilewrightError
from tilewright.gemm.classes import class_of
from tilewright.gemm.rungs import find_rung
from tilewright.gpus import GPUS
from tilewright.jit import device as device_module
from tilewright.lab import tuning_time
from tilewright.lab.heldout import problem_of
from tilewright.lab.suite import read_suite
from tilewright.plan import tables
from tilewright.plan.entries import Entry, Failure, Timed
from tilewright.plan.store import Store

CASES = read_suite(Path(__file__).parents[2] / "benchmarks" / "tune-cold.json")["cases"]
H11 = find_rung("h11")


@pytest.fixture
def tuner(monkeypatch) -> types.SimpleNamespace:
    """A GPU, and a command that leaves the entry asked for in the store that it is told."""
    state = types.SimpleNamespace(status=0, finished=True, failed=(), folders=[], commands=[])

    def run(command, env, **_) -> subprocess.CompletedProcess:
        state.commands.append(command)
        state.folders.append(env["TILEWRIGHT_TUNED"])
        assert not Path(env["TILEWRIGHT_TUNED"]).exists(), "a result of another run"
        assert not list(Path(env["TILEWRIGHT_CACHE"]).iterdir()), "kernels of another run"
        case = next(case for case in CASES if "{m}x{n}x{k}".format(**case) in command and case["dtype"] in command)
        entry = Entry(
            class_of(problem_of(case)), (1, 1, 1, 1), (Timed(H11.id, H11.default, 0.25),), state.failed,
            finished=state.finished,
        )  # fmt: skip
        Store("H200", "cuda13", Path(env["TILEWRIGHT_TUNED"])).add([entry])
        return subprocess.CompletedProcess(command, state.status, "", "no such GPU")

    gpu = GPUS["H200"]
    monkeypatch.setattr(tuning_time.subprocess, "run", run)
    where = types.SimpleNamespace(gpu=gpu, arch=gpu.arch, name="NVIDIA H200")
    monkeypatch.setattr(device_module, "device", lambda ordinal: where)
    monkeypatch.setattr(tuning_time, "driver_version", lambda: "1.2")
    monkeypatch.setattr(tables, "driver_name", lambda: "cuda13")
    return state


def test_each_case_starts_cold_and_its_record_says_what_was_found(tuner):
    records = tuning_time.tuning_time_records("tune-cold", CASES, lambda *_: None)
    assert len(records) == len(CASES)
    assert len(set(tuner.folders)) == len(CASES)
    assert all("--layout" in command and "tune" in command for command in tuner.commands)
    result = records[0]["result"]
    assert result["right"]
    assert (result["candidates"], result["tuned_us"]) == (1, 250.0)
    assert result["seconds"] > 0


def test_a_wrong_candidate_a_failure_and_half_a_result_are_no_figures(tuner):
    tuner.failed = (Failure(H11.id, "x", "wrong", "5 elements"),)
    assert not tuning_time.tuning_time_records("s", CASES[:1], lambda *_: None)[0]["result"]["right"]
    tuner.finished = False
    with pytest.raises(TilewrightError, match="no finished result"):
        tuning_time.tuning_time_records("s", CASES[:1], lambda *_: None)
    tuner.status = 2
    with pytest.raises(TilewrightError, match="failed: no such GPU"):
        tuning_time.tuning_time_records("s", CASES[:1], lambda *_: None)
