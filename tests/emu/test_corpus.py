"""Kernels of other projects, from a folder that holds them: what a record says of each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.errors import TilewrightError
from tilewright.lab.corpus import VARIABLE, corpus_records
from tilewright.lab.suite import read_suite

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


def test_the_data_name_projects_commits_and_what_is_expected():
    suite = read_suite(Path(__file__).parents[2] / "benchmarks" / "corpus.json")
    for case in suite["cases"]:
        assert len(case["commit"]) == 40
        assert {"project", "path", "entry", "grid", "block", "args"} <= case.keys()
        assert "reference" in case or case["expect"]
