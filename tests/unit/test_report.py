"""Tables: every figure comes from a record, a missing one is a dash, and pages say when they are out of date."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from tilewright.errors import TilewrightError
from tilewright.lab.record import find_records, read_records, write_json
from tilewright.report import by_size, regions, tables
from tilewright.report.tables import EXECUTED_TENSOR

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def measured(rung: str = "f05_tile2d", **more) -> dict:
    return {
        "suite": "fp32-ladder",
        "case": {"rung": rung, "config_text": "64x128x32", "m": 4096, "n": 4096, "k": 4096, "layout": "nn"},
        "result": {
            "right": True, "max_error": 1.25e-4, "ms": 2.0, "tflops": 68.72, "ratio": 1.036, "ratio_p10": 1.0331,
            "ratio_p90": 1.0378, "share_of_peak": 0.7936, "registers": 120, "spill_bytes": 0, "shared_bytes": 24576,
            "occupancy": 0.25, "limited_by": "shared memory", **more,
        },
        "provenance": {"gpu": "NVIDIA H200", "driver": "580.1", "nvrtc": "13.0", "date": "2026-01-02T03:04:05+00:00",
                       "reference_version": "torch 2.11"},
    }  # fmt: skip


def counted(rung: str = "f10_double_buffer") -> dict:
    record = measured(rung)
    for name in ("ms", "tflops", "ratio", "ratio_p10", "ratio_p90", "share_of_peak"):
        del record["result"][name]
    record["result"] |= {
        "instructions_per_thread": {"fp32": 257.0, "int": 741.4, "memory": 513.0, "other": 157.0},
        "sectors_per_request": 16.5, "wavefronts_per_request": None, "ideal_wavefronts_per_request": None,
        "flop_per_byte": 0.0623, "bound_share_of_peak": 0.0046, "bound_by": "memory",
    }  # fmt: skip
    return record


def rendered(columns, records, width=100) -> list[str]:
    from rich.console import Console

    out = io.StringIO()
    for table in tables.terminal_tables(columns, records, width):
        Console(file=out, width=width).print(table)
    return out.getvalue().splitlines()


def test_a_markdown_table_holds_the_records_figures_and_where_they_come_from():
    text = tables.markdown(tables.LADDER_PAGE, [measured(), measured("f06_vectorized", ratio=None)])
    lines = text.splitlines()
    assert lines[0].startswith("| rung | config | ms |")
    assert "| f05_tile2d | 64x128x32 | 2.000 | 68.72 | 103.6% | 1.033..1.038 | 79.4% | 120 |" in lines
    assert "| f06_vectorized | 64x128x32 | 2.000 | 68.72 | - | - | 79.4% | 120 |" in lines
    assert lines[-1] == "*Measured on one NVIDIA H200, driver 580.1, NVRTC 13.0, torch 2.11, 2026-01-02.*"


@pytest.mark.parametrize("columns", [tables.MEASURED, tables.COMPILER, tables.EXECUTED, tables.EXECUTED_TENSOR])
@pytest.mark.parametrize("width", [60, 80, 100])
def test_terminal_tables_fit_and_lose_nothing(columns, width):
    rung = "h05_wmma_double_buffer"  # the longest there is
    record = measured(rung, ms=275.6789) if columns is tables.MEASURED else counted(rung)
    lines = rendered(columns, [record], width)
    assert max(len(line.rstrip()) for line in lines) <= width
    assert not any("…" in line for line in lines)
    for name, cell in columns:
        assert any(name in line for line in lines)
        assert any(cell(record) in line for line in lines)


@pytest.mark.parametrize("suite", [name for name, page in tables.PAGES.items() if callable(page)])
def test_a_summary_is_a_table_of_a_terminal_too(suite):
    records = find_records(RESULTS, suite) or pytest.skip(f"no record of {suite} yet")
    lines = rendered(tables.PAGES[suite], records, 80)
    assert max(len(line.rstrip()) for line in lines) <= 80
    assert not any("|" in line or "**" in line or "…" in line for line in lines)
    told = [line for line in tables.markdown(tables.PAGES[suite], records).splitlines() if line.startswith("|")]
    cells = {cell.strip(" *") for line in told for cell in line.split("|")}
    assert {cell for cell in cells if re.fullmatch(r"[\d.%]+", cell)} <= set(" ".join(lines).split())


@pytest.mark.parametrize("width", [80, 100])
def test_rows_of_a_table_that_is_split_can_be_told_apart_in_each_part(width):
    from rich.console import Console

    columns, records = tables.PAGES["profile"], read_records(RESULTS / "profile-H200.json")
    assert not callable(columns)
    made = tables.terminal_tables(columns, records, width)
    assert len(made) > 1
    for table in made:
        console = Console(file=io.StringIO(), width=width)
        console.print(table)
        lines = console.file.getvalue().splitlines()[1:]
        assert len({line.split()[0] for line in lines}) == len(records)


def test_a_rung_that_does_not_touch_shared_memory_has_dashes_there():
    row = dict(
        zip([name for name, _ in tables.EXECUTED], [cell(counted()) for _, cell in tables.EXECUTED], strict=True)
    )
    assert (row["wavefronts"], row["ideal"], row["sectors"], row["int"]) == ("-", "-", "16.50", "741")
    assert row["bound"] == "0.5%"


def test_a_peer_stands_in_the_rungs_table_by_its_name():
    record = measured()
    record["case"] = {"peer": "cublaslt_best", "config_text": "heuristic 2 of 8"}
    for name in ("registers", "spill_bytes", "shared_bytes", "occupancy"):
        del record["result"][name]  # nobody knows them of a library
    row = dict(zip([name for name, _ in tables.MEASURED], [cell(record) for _, cell in tables.MEASURED], strict=True))
    assert (row["rung"], row["check"], row["of cuBLAS"], row["regs"]) == ("cublaslt_best", "right", "103.6%", "-")


def test_a_wrong_rung_is_shown_as_wrong_with_dashes_for_what_was_not_measured():
    record = counted()
    record["result"] |= {"right": False, "max_error": None}
    row = dict(zip([name for name, _ in tables.MEASURED], [cell(record) for _, cell in tables.MEASURED], strict=True))
    assert row["check"] == "WRONG"
    assert (row["ms"], row["TFLOP/s"], row["of cuBLAS"]) == ("-", "-", "-")


PAGE = (
    "before\n<!-- records: fp32-ladder -->\nold\n<!-- end -->\nbetween\n"
    "<!-- records: counters -->\n<!-- end -->\nafter\n"
)


def test_regions_are_filled_from_the_records_and_the_rest_is_left(tmp_path):
    write_json(tmp_path / "a.json", [measured()])
    text = regions.fill(PAGE, tmp_path)
    assert text.startswith("before\n<!-- records: fp32-ladder -->\n| rung |")
    assert "old" not in text
    assert "<!-- end -->\nbetween\n" in text
    assert "No record of suite counters yet" in text
    assert text.endswith("<!-- end -->\nafter\n")
    assert regions.fill(text, tmp_path) == text


def test_a_region_of_an_unknown_suite_is_refused(tmp_path):
    with pytest.raises(TilewrightError, match="fp32-lader"):
        regions.fill("<!-- records: fp32-lader -->\n<!-- end -->\n", tmp_path)


@pytest.mark.parametrize("text", ["<!-- records: counters -->\nno end\n", "<!-- records: counters --><!-- end -->\n",
                                  "<!-- records: counters -->\nno end\n" + PAGE])  # fmt: skip
def test_a_region_that_is_not_whole_is_refused_and_takes_nothing_with_it(tmp_path, text):
    with pytest.raises(TilewrightError, match="end"):
        regions.fill(text, tmp_path)


@pytest.mark.parametrize(("ms", "text"), [(0.002942, "0.00294"), (0.33456, "0.33456"), (2.58848, "2.588"),
                                          (275.65, "275.650"), (12345.6, "12345.6"), (None, "-")])  # fmt: skip
def test_milliseconds_keep_digits_that_can_be_told_apart(ms, text):
    assert dict(tables.MEASURED)["ms"](measured(ms=ms)) == text


def test_every_column_of_a_measured_table_finds_its_figure_in_a_full_record():
    """The committed records hold every figure: a dash would be a column that asks for a name no record has."""
    records = find_records(Path(__file__).parents[2] / "benchmarks" / "results", "fp32-ladder")
    assert len(records) == 12
    for record in records:
        assert tables.DASH not in [cell(record) for _, cell in tables.MEASURED]


# --- figures in sentences ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("fp32-ladder f05 ratio", "1.04†"),
        ("fp32-ladder f05 m 4096 layout nn ratio", "1.04†"),
        ("mean fp32-ladder ratio", "0.72†"),  # the geometric mean of 1.036 and 0.5
        ("least fp32-ladder ratio", "0.50†"),
        ("most fp32-ladder ratio", "1.04†"),
        ("count fp32-ladder ratio", "2"),
        ("count fp32-ladder m * ratio", "2"),
        ("fp32-ladder f05 ratio / fp32-ladder f03 ratio", "2.07†"),
    ],
)
def test_a_figure_in_a_sentence_is_that_of_its_records(tmp_path, words, shown):
    write_json(tmp_path / "a.json", [measured(), measured("f03_shared", ratio=0.5)])
    text = f"It reaches <!-- figure: {words} -->9.99<!-- end --> of cuBLAS."
    told = regions.fill(text, tmp_path)
    assert told == text.replace("9.99", shown)
    assert regions.fill(told, tmp_path) == told


@pytest.mark.parametrize(
    "words",
    [
        "fp32-ladder ratio",
        "fp32-ladder f07 ratio",
        "fp32-ladder f05 m 8 ratio",
        "x f05 ms",
        "count fp32-ladder batch * ratio",
    ],
)
def test_a_figure_that_no_record_or_more_than_one_has_is_refused(tmp_path, words):
    write_json(tmp_path / "a.json", [measured(), measured("f03_shared")])
    with pytest.raises(TilewrightError, match="records in"):
        regions.fill(f"<!-- figure: {words} -->1<!-- end -->", tmp_path)


def test_a_table_names_the_first_and_the_last_day(tmp_path):
    early, late = measured(), measured("f06_vectorized")
    late["provenance"] = late["provenance"] | {"date": "2026-01-05T00:00:00+00:00"}
    assert "2026-01-02 to 2026-01-05.*" in tables.markdown(tables.PAGES["fp32-ladder"], [early, late])


def test_shares_by_size_mark_what_may_no_longer_hold_and_leave_out_who_is_not_there(tmp_path):
    rows = [measured(), measured("f06_vectorized", ratio=0.5), measured("f05_tile2d")]
    rows[2]["case"] = rows[2]["case"] | {"m": 8192}
    absent = measured() | {"result": {"right": None, "reason": "not installed"}}
    absent["case"] = {"peer": "triton", "m": 4096}
    lines = by_size.shares([*rows, absent], ["", "its kernels have changed since", "", ""])
    assert lines[0] == "| rung | 4096 | 8192 |"
    assert lines[2:] == [
        "| cuBLAS, TFLOP/s | 137 | 66.3 |", "| f05_tile2d | 103.6% | 103.6% |", "| f06_vectorized | 50.0%† | - |",
        "| triton | - | - |",
    ]  # fmt: skip


def test_a_few_instructions_of_many_threads_are_not_none():
    shown = dict(EXECUTED_TENSOR)["tensor"]
    counts = [shown({"result": {"instructions_per_thread": {"tensor": each}}}) for each in (0, 0.041, 3.6, 512)]
    assert counts == ["0", "0.041", "4", "512"]
