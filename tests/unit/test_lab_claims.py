"""The documents' statements: each is held against a record or a calculation, and says why where it does not agree."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import tilewright as tw
from tilewright.errors import InvalidOperand, TilewrightError
from tilewright.lab.record import read_records, write_json
from tilewright.lab.statements import STATEMENTS, TITLES
from tilewright.lab.statements.figures import (
    ALIKE,
    AT_LEAST,
    AT_MOST,
    EQUAL,
    SAME_WAY,
    Figure,
    Results,
    about,
    change,
    of,
    within,
)
from tilewright.lab.statements.statement import DIFFERS, HOLDS, NOT_HERE, Statement, figure, judge

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


@pytest.fixture(scope="module")
def table():
    return tw.lab.claims(folder=RESULTS)


def test_there_are_a_hundred_statements_and_more_of_all_five_documents(table):
    assert len(table.verdicts) >= 100
    for document in TITLES:
        assert sum(verdict.document == document for verdict in table.verdicts) >= 15
    assert len({verdict.id for verdict in table.verdicts}) == len(table.verdicts)
    assert len({(s.document, s.quote) for s in STATEMENTS}) == len(STATEMENTS), "no statement stands twice"
    counts = table.counts()
    assert min(counts["holds"], counts["differs"]) >= 5
    assert counts["not measurable here"] >= 1
    assert sum(statement.ours is None for statement in STATEMENTS) < 5, "what can be measured is measured"


def test_every_figure_is_found_and_every_disagreement_has_a_reason(table):
    for verdict in table.verdicts:
        assert "its record is not there" not in verdict.because, verdict.id
        assert verdict.because or verdict.verdict == HOLDS, verdict.id
        assert (verdict.ours is None) == (verdict.verdict == NOT_HERE), verdict.id


def test_a_figure_is_that_of_its_record(table):
    (record,) = (r for r in read_records(RESULTS / "fp32-ladder-H200.json") if r["case"]["rung"] == "f09_transposed")
    (verdict,) = (v for v in table.verdicts if v.quote.startswith("kernel 07: transposing As"))
    assert verdict.ours == pytest.approx(100 * record["result"]["ratio"])
    assert verdict.machine == "NVIDIA H200"
    assert "fp32-ladder f09" in verdict.record


def test_a_verdict_follows_its_record(tmp_path):
    folder = tmp_path / "results"
    shutil.copytree(RESULTS, folder)
    path = folder / "fp32-ladder-H200.json"
    records = read_records(path)
    for record in records:
        if record["case"]["rung"] == "f09_transposed":
            record["result"]["ratio"] = 0.5
    write_json(path, records)
    (verdict,) = (v for v in tw.lab.claims("003", folder=folder).verdicts if "transposing As" in v.quote)
    assert (verdict.verdict, verdict.ours) == (DIFFERS, 50.0)
    path.unlink()
    (verdict,) = (v for v in tw.lab.claims("003", folder=folder).verdicts if "transposing As" in v.quote)
    assert (verdict.verdict, verdict.ours) == (NOT_HERE, None)
    assert "its record is not there" in verdict.because


def test_a_stale_record_makes_its_statement_stale(table):
    assert all(not verdict.stale for verdict in table.verdicts if verdict.machine == "calculated")
    record = {
        "suite": "nowhere", "case": {"rung": "f01"}, "result": {"ms": 1.0}, "provenance": {"date": "", "gpu": "H200"},
    }  # fmt: skip
    assert Results(RESULTS).stale([record])


@pytest.mark.parametrize(
    ("rule", "agrees", "does_not"),
    [(about(0.1), (91, 100), (89, 100)), (within(1), (0.9, 0), (1.1, 0)), (ALIKE, (-6, -10), (-4, -10)),
     (ALIKE, (10, 6), (10, -6)), (SAME_WAY, (-1, -50), (1, -50)), (AT_LEAST, (5, 2), (1, 2)), (AT_MOST, (1, 2), (3, 2)),
     (EQUAL, (24, 24), (24, 32))],
)  # fmt: skip
def test_rules_compare_ours_with_theirs(rule, agrees, does_not):
    assert rule.holds(*agrees)
    assert not rule.holds(*does_not)
    assert rule.words


def test_figures_are_worked_out_together():
    two, three = Figure(lambda r: 2.0, "two"), Figure(lambda r: 3.0, "three")
    results = Results(RESULTS)
    assert (three - two).work_out(results) == 1
    assert (three / two).work_out(results) == 1.5
    assert (10 * three).work_out(results) == 30
    assert change(two, three).work_out(results) == pytest.approx(50)
    with pytest.raises(TilewrightError, match="0 records of suite fp32-ladder for f99"):
        of("fp32-ladder", "f99", "ms").work_out(results)


def test_a_statement_that_nothing_measures_says_why():
    (verdict,) = judge([Statement("000", "q", 1.0, "x", because="no such GPU")], RESULTS).verdicts
    assert verdict.words == "not measurable here because no such GPU"


def test_figures_show_three_digits_and_their_unit():
    assert figure(65536, "") == "65536"
    assert figure(12.34, "% more") == "+12.3%"
    assert figure(-12.34, "% more") == "-12.3%"
    assert figure(1.0389, "x") == "1.04x"
    assert figure(24, "KiB") == "24 KiB"
    assert figure(None, "x") == "-"


def test_claims_are_data_and_html(table):
    assert json.loads(json.dumps(table.to_dict()))["verdicts"]
    assert table._repr_html_().count("<table>") == len(TITLES)
    with pytest.raises(InvalidOperand, match="000, 001"):
        tw.lab.claims("005")
