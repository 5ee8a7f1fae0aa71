"""A terminal of 80 columns: no table cuts a figure, and no line is longer than the terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tilewright.cli import main
from tilewright.ladder import ATTENTION_RUNGS, GEMM_RUNGS, HOPPER_RUNGS, SPLIT_RUNGS, SplitConfig
from tilewright.report.terminal import legend, tables

AXPY = """extern "C" __global__ void axpy(const float* x, float* y, float a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i];
}
"""
MATMUL = ("ladder", "gemm", "--emulator", "--rungs", "f10..f12", "--size", "128")
ATTENTION = ("ladder", "attention", "--emulator", "--rungs", "a05", "--seqlen", "64", "--d-head", "32")
EMULATE = ("emulate", "axpy.cu", "--entry", "axpy", "--grid", "2000", "--block", "256", "--arg", "f32[512000]=ones",
           "--arg", "f32[512000]=nan", "--arg", "f32=2", "--arg", "i32=512000")  # fmt: skip


def test_rows_that_look_the_same_by_their_first_column_get_the_next_one_in_each_table():
    rows = [("64 x 64", layout, "c" * 30, "1") for layout in ("NN", "NT")]
    _, second = tables(("m x n", "layout", "config", "ms"), rows, 40)
    assert [column.header for column in second.columns] == ["m x n", "layout", "ms"]
    wide = tables(("m x n", "config", "ms"), [(size, config, ms) for size, _, config, ms in rows], 40)
    headers = [[column.header for column in table.columns] for table in wide]
    assert headers == [["#", "m x n"], ["#", "config", "ms"]], "a wide column is not repeated, so rows have numbers"


def on_a_terminal(folder: Path, columns: int, *arguments: str) -> list[str]:
    """The lines that a command prints on a terminal so wide."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    environment |= {"TERM": "dumb", "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    command = subprocess.Popen(
        [sys.executable, "-m", "tilewright", *arguments], stdin=theirs, stdout=theirs, stderr=subprocess.PIPE,
        cwd=folder, env=environment,
    )  # fmt: skip
    os.close(theirs)
    written = b""
    while True:
        try:
            chunk = os.read(ours, 1 << 16)
        except OSError:  # nothing has it open any more
            break
        if not chunk:
            break
        written += chunk
    os.close(ours)
    _, told = command.communicate(timeout=120)
    assert command.returncode == 0, told.decode()
    return [line.rstrip() for line in written.decode().replace("\r", "").splitlines()]


def whole(lines: list[str]) -> None:
    too_long = [line for line in lines if len(line) > 80 and " " in line.strip()]  # one long path stays whole
    assert not too_long
    assert "…" not in "".join(lines)


def cells(lines: list[str]) -> set[str]:
    return set(re.split(r"\s+", " ".join(lines)))


@pytest.mark.parametrize("command", [MATMUL, ATTENTION])
def test_a_ladder_shows_every_figure_of_its_records(tmp_path, command):
    lines = on_a_terminal(tmp_path, 80, *command, "--json", "records.json")
    whole(lines)
    shown = cells(lines)
    for record in json.loads((tmp_path / "records.json").read_text()):
        result = record["result"]
        assert {record["case"]["rung"], str(result["registers"]), str(result["shared_bytes"])} <= shown
        assert {f"{result['max_error']:.1e}", f"{result['occupancy']:.0%}"} <= shown
        assert {f"{count:.0f}" for count in result["instructions_per_thread"].values()} <= shown | {"0"}
        assert {f"{result['sectors_per_request']:.2f}", f"{result['flop_per_byte']:.2f}", result["bound_by"]} <= shown
    assert "per thread" in " ".join(lines), "a legend says what the short names mean"


def test_the_counters_of_ones_own_kernel_are_whole(tmp_path):
    (tmp_path / "axpy.cu").write_text(AXPY)
    lines = on_a_terminal(tmp_path, 80, *EMULATE)
    whole(lines)
    assert {"512,000", "16,000", "64,000"} <= cells(lines)


def test_doctors_findings_are_whole(tmp_path):
    lines = on_a_terminal(tmp_path, 80, "doctor", "--json", "d.json")
    whole(lines)
    shown = " ".join(" ".join(lines).split())
    for finding in json.loads((tmp_path / "d.json").read_text()):
        assert all(" ".join(text.split()) in shown for text in (finding["detail"], finding["advice"]))


def test_doctor_breaks_no_path(tmp_path, monkeypatch):
    folder = tmp_path / ("cache-of-kernels-" * 4)
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(folder))
    lines = on_a_terminal(tmp_path, 80, "doctor")
    assert any(str(folder) in line for line in lines)


def test_candidates_keep_their_figures(tmp_path):
    lines = on_a_terminal(
        tmp_path, 80, "tune", "--shapes", "1024x1000x1000", "--dtype", "f32", "--dry-run", "--keep", "3", "--json", "t"
    )
    whole(lines)
    (space,) = json.loads((tmp_path / "t").read_text())["candidates"]
    shown = " ".join(" ".join(lines).split())
    for candidate in space["kept"]:
        prediction = candidate["prediction"]
        assert candidate["config"].split(",")[0] in shown
        assert {f"{prediction['waves']:.2f}", f"~{prediction['registers']}", str(prediction["blocks"])} <= cells(lines)
    assert "tile of a block" in shown


def test_stored_results_break_between_words(tmp_path, monkeypatch):
    from tilewright.gemm.classes import class_of
    from tilewright.gemm.problem import GemmProblem
    from tilewright.gemm.rung import GemmConfig
    from tilewright.ladder import find_rung
    from tilewright.plan.entries import Entry, Timed
    from tilewright.plan.store import Store

    monkeypatch.setenv("TILEWRIGHT_TUNED", str(tmp_path / "tuned"))
    rung = find_rung("f12")
    config = GemmConfig(128, 256, 16, 4, 4, 64, 64, 4, 2, 4, "ca", 8, split_k=4)
    timed = (Timed(rung.id, config, 1.2345, ("a", "b")),)
    entry = Entry(class_of(GemmProblem.dense(4096, 4096, 4096)), (4096, 4096, 4096, 1), timed, finished=False)
    assert Store("H200", "cuda13").add([entry], True)
    lines = on_a_terminal(tmp_path, 80, "tune", "--list")
    whole(lines)
    shown = " ".join(" ".join(lines).split())
    assert f"{timed[0]}, 1234 us" in shown
    assert "stopped early" in shown


def test_claims_break_between_words_on_a_terminal_and_are_one_line_each_in_a_pipe(tmp_path, monkeypatch, capsys):
    whole(on_a_terminal(tmp_path, 80, "claims", "000"))
    monkeypatch.setattr(sys, "argv", ["tilewright", "claims", "000"])
    with pytest.raises(SystemExit):
        main()
    assert max(map(len, capsys.readouterr().out.splitlines())) > 100


def test_explain_breaks_between_words(tmp_path):
    lines = on_a_terminal(tmp_path, 80, "explain", "--size", "1000", "--json", "e.json")
    whole(lines)
    words = json.loads((tmp_path / "e.json").read_text())["text"].split()
    assert set(words) <= set(" ".join(lines).split())


@pytest.mark.parametrize("width", [30, 60, 80, 100])
def test_columns_that_do_not_fit_stand_in_a_table_below(width):
    names = ["rung", *(f"column {number}" for number in range(12))]
    rows = [["f05_tile2d", *(str(10**number) for number in range(12))]] * 3
    made = tables(names, rows, width)
    assert [column.header for table in made for column in table.columns if column.header != "rung"] == names[1:]
    assert all(table.columns[0].header == "rung" for table in made)


def test_every_part_of_every_default_config_is_told():
    for config in {rung.default for rung in GEMM_RUNGS}:
        told, words = config.legend, re.findall(r"[a-z]{2,}", str(config))
        assert words or str(config).replace("x", "").isdigit()
        for word in words:
            assert f"{word}: " in told or f"{word} " in told, (str(config), told)
    for attention in ATTENTION_RUNGS:
        for config in attention.defaults:
            assert "d_head" in config.legend
            assert ("buffer" in config.legend) == config.buffer
    for rung in HOPPER_RUNGS:
        for config in rung.defaults:
            assert "stages" in config.legend
            assert ("in turns" in config.legend) == bool(config.turns)
    for config in (*SPLIT_RUNGS[0].defaults, SplitConfig(128, 16, 32, parts=3)):
        assert "along keys" in config.legend
        assert ("parts" in config.legend) == (config.parts > 1)


def test_a_legend_names_each_short_column_once():
    assert (
        legend(["rung", "regs", "spill B"])
        == "regs: registers per thread; spill B: bytes of registers spilled per thread"
    )
    assert legend(["rung", "ms"]) == ""
