"""What compute-sanitizer said of every rung: the page says what was recorded, and for which kernels it may not hold.

A change of a kernel needs no GPU: `tilewright report --write` marks what it makes stale, and the tests below fail until
then. A record that found an error, or that lacks a rung, cannot be told as sound.
"""

from __future__ import annotations

import copy
from itertools import product
from pathlib import Path

import pytest

from tilewright.errors import TilewrightError
from tilewright.gemm.rungs import GEMM_RUNGS
from tilewright.lab import sanitizer
from tilewright.lab.fingerprint import CHANGED, stamp, why_stale
from tilewright.lab.record import find_records
from tilewright.lab.suite import read_suite
from tilewright.report.regions import fill
from tilewright.report.tables import PAGES as TABLES
from tilewright.report.tables import markdown

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
SUITE = read_suite(ROOT / "benchmarks" / "sanitizer.json")
PAGE = ROOT / "docs" / "ladder.md"


def test_the_page_says_what_was_recorded_and_what_is_stale():
    text = PAGE.read_text(encoding="utf-8")
    region = text[text.index("<!-- records: sanitizer -->") :].split("<!-- end -->")[0] + "<!-- end -->"
    assert fill(region, RESULTS) == region, "run: tilewright report --write"


def test_a_record_of_todays_kernels_is_not_stale_and_a_changed_kernel_makes_it_so(monkeypatch, tmp_path):
    from tilewright.lab import fingerprint

    records = stamp(find_records(RESULTS, "sanitizer"), SUITE, 1.0)
    assert [why_stale(record, SUITE) for record in records] == [""] * len(records)

    def changed(includes, real=fingerprint._files):
        for text in real(includes):
            yield text + " int more;" if text.startswith("gemm/f05_tile2d.cuh") else text

    monkeypatch.setattr(fingerprint, "_files", changed)
    fingerprint._digest.cache_clear()
    stale = {record["case"]["rung"]: why_stale(record, SUITE) for record in records}
    fingerprint._digest.cache_clear()
    assert stale.pop("f05") == CHANGED
    assert set(stale.values()) == {""}


def test_an_error_and_a_rung_that_was_left_out_are_told():
    records = copy.deepcopy(find_records(RESULTS, "sanitizer"))
    records[0]["result"] |= {"right": False, "errors": 3}
    lost = records.pop(-1)["case"]["rung"]
    told = markdown(TABLES["sanitizer"], records, [""] * len(records))
    assert "f01: 3" in told
    left_out = next(line for line in reversed(told.splitlines()) if "did not run over" in line)
    assert next(rung.id for rung in GEMM_RUNGS if rung.id.startswith(lost)) in left_out


def test_every_rung_ran_under_both_tools_or_the_page_says_that_it_did_not():
    ran = {(record["case"]["rung"], record["case"]["tool"]) for record in find_records(RESULTS, "sanitizer")}
    rungs = {rung.id.split("_")[0]: rung.id for rung in GEMM_RUNGS}
    assert {rung for rung, _ in ran} <= set(rungs)
    assert ran == set(product({rung for rung, _ in ran}, ("memcheck", "racecheck")))
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if "It did not run over" in line]
    for rung, name in rungs.items():
        assert [name in line for line in lines] == [(rung, "memcheck") not in ran] * len(lines), name
    assert bool(lines) == (len(ran) < 2 * len(rungs))


@pytest.mark.parametrize(
    ("tool", "text", "errors"),
    [
        ("memcheck", "========= ERROR SUMMARY: 0 errors", 0),
        ("memcheck", "========= ERROR SUMMARY: 12 errors", 12),
        ("racecheck", "========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)", 1),
        ("racecheck", "========= Target application returned an error", None),
    ],
)
def test_a_summary_is_read_from_the_tools_words(tool, text, errors):
    assert sanitizer.summary(tool, text) == errors


def test_without_the_tool_the_suite_says_so(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(TilewrightError, match="compute-sanitizer"):
        sanitizer.sanitizer_records("sanitizer", SUITE["cases"])
