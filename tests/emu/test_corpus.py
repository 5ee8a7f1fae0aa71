"""Kernels of other projects, from a folder that holds them: what a record says of each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.errors import TilewrightError
from tilewright.lab.corpus import VARIABLE, corpus_records, rows_of, strangers_records
from tilewright.lab.suite import read_suite
from tilewright.report.census import judged

SOURCE = """
extern "C" __global__ void scale(float *x, int n) { if (threadIdx.x <= n) x[threadIdx.x] *= 2; }
"""
CASE = {
    "project": "somebody/kernels", "commit": "0" * 40, "path": "src/scale.cu", "entry": "scale", "grid": [1, 1, 1],
    "block": 32, "args": {"x": "f32[8]=random", "n": "i32=7"}, "reference": "x = 2 * x",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "kernels" / "src").mkdir(parents=True)
    (tmp_path / "kernels" / "src" / "scale.cu").write_text(SOURCE)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return tmp_path


def run(**changes) -> dict:
    (record,) = corpus_records("corpus", [CASE | changes])
    return record["result"]


def test_a_kernel_is_right_where_it_does_what_is_expected(folder):
    assert run()["right"]
    broken = {"x": "f32[8]=random", "n": "i32=8"}
    assert run(args=broken, expect=["out_of_bounds"]) | {"seconds": 0} == {
        "right": True, "found": ["out_of_bounds"], "warnings": [], "places": ["scale.cu:2"], "wrong": "", "seconds": 0,
        "instructions": run(args=broken)["instructions"],
    }  # fmt: skip


OTHERWISE = {
    "expected": {"expect": ["shared_race"]}, "faulty": {"args": {"x": "f32[8]=random", "n": "i32=8"}},
    "wrong": {"reference": "x = 3 * x"}, "differing": {"differs": True},
}  # fmt: skip


@pytest.mark.parametrize("changes", OTHERWISE.values(), ids=OTHERWISE)
def test_anything_else_is_not(folder, changes):
    assert not run(**changes)["right"]


def test_what_is_missing_is_named(folder, monkeypatch):
    with pytest.raises(TilewrightError, match=r"Clone https://github\.com/somebody/kernels"):
        run(path="src/other.cu")
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(TilewrightError, match=VARIABLE):
        run()


SHARED = {
    key: CASE[key] for key in ("project", "commit", "path", "grid", "block", "args", "reference")
} | {"kernels": [
    "scale", {"entry": "scale", "args": {"n": "i32=8"}, "expect": ["out_of_bounds"]}, {"entry": "gone"},
    {"entry": "scale", "reference": "x = 0"},
    {"entry": "scale", "args": {"x": {"values": "np.arange(8, dtype=np.float32)"}}},
]}  # fmt: skip


def test_kernels_that_share_their_data_are_told_apart_by_what_became_of_them(folder):
    first, fault, *_ = rows_of(SHARED)
    assert first["args"] == CASE["args"]
    assert fault["args"] == CASE["args"] | {"n": "i32=8"}
    records = strangers_records("strangers", [SHARED])
    kernels = records[0]["result"]["kernels"]
    assert [kernel["right"] for kernel in kernels] == [True, True, False, False, True]
    assert "gone" in kernels[2]["why"]
    assert kernels[3]["wrong"]
    assert judged(records)[-1] == "| all | 5 | 2 | 1 | 0 | 1 | 1 |"


def test_the_data_name_projects_commits_and_what_is_expected():
    folder = Path(__file__).parents[2] / "benchmarks"
    for case in read_suite(folder / "corpus.json")["cases"]:
        assert "reference" in case or case["expect"]
    of_strangers = [row for shared in read_suite(folder / "strangers.json")["cases"] for row in rows_of(shared)]
    for case in [*read_suite(folder / "corpus.json")["cases"], *of_strangers]:
        assert len(case["commit"]) == 40
        assert {"project", "path", "entry", "grid", "block", "args"} <= case.keys()
