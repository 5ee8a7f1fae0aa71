"""The lab's commands: 80 columns, JSON on standard output, and errors of one line."""

from __future__ import annotations

import json
import shlex
import sys
import warnings

import numpy as np
import pytest
from rich.console import Console

from tilewright.cli import installation, main
from tilewright.lab.starters import new_kernel


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs the command in this process on a terminal of 80 columns: (status, stdout, stderr)."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("tilewright.cli.console.WIDTH", 80)

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["tilewright", *map(str, arguments)])
        with pytest.raises(SystemExit) as left, warnings.catch_warnings():
            main()
        captured = capsys.readouterr()
        return left.value.code, captured.out, captured.err

    return call


COMMANDS = {
    "occupancy": ("--threads", "256", "--registers", "64", "--shared", "49152", "--gpu", "RTX 4090"),
    "occupancy of several": ("--threads", "128,256", "--registers", "32,64"),
    "roofline": ("--gpu", "H200", "--records", "fp32-ladder"),
    "roofline of a product": ("--dtype", "bf16", "--shape", "4096x4096x64", "--tile", "128x256"),
    "banks": ("--down", "32", "--pitch", "32", "--swizzle", "5,0,5"),
    "inspect": ("f02",),
    "inspect of two": ("f01", "--diff", "f02"),
    "inspect of configs": ("f03", "--config", "tile_k=16", "--config", "tile_k=32"),
    "banks by strides": ("--strides", "8"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_tables_fit_eighty_columns_and_json_goes_to_standard_output(run, name):
    command = (name.split()[0], *COMMANDS[name])
    status, out, _ = run(*command)
    assert status == 0
    tables = [line.rstrip() for line in out.splitlines() if "   " in line]
    assert tables
    assert max(map(len, tables)) <= 80
    assert "…" not in out
    status, out, err = run(*command, "--json", "-")
    assert status == 0
    assert json.loads(out)
    assert err


@pytest.mark.parametrize("command", sorted({name.split()[0] for name in COMMANDS}))
def test_help_has_examples(run, command):
    status, out, _ = run(command, "--help")
    assert status == 0
    assert f"tilewright {command} " in out.split("Example")[1]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("occupancy", "--threads", "2000"), "from 1 to 1024"),
        (("occupancy", "--threads", "many"), "128,256"),
        (("occupancy", "--gpu", "Voodoo"), "RTX 4090"),
        (("roofline", "--dtype", "f8"), "fp32x3"),
        (("roofline", "--shape", "64x64"), "4096x4096x64"),
        (("roofline", "--tile", "64x64"), "give shape too"),
        (("roofline", "--intensity", "x"), "0.25,7.94"),
        (("roofline", "--intensity", "-1"), "positive"),
        (("page", "--out", "nowhere/page.html"), "there is no folder nowhere"),
        (("profile", "f99"), "is not a rung"),
        (("profile", "f09", "flash"), "not both"),
        (("new", "mine.txt"), "name it mine.cu"),
        (("check", "nowhere.cu"), "tilewright new nowhere.cu"),
        (("new", "."), "is a folder, or no name"),
        (("new", "/"), "is a folder, or no name"),
        (("new", ""), "is a folder, or no name"),
        (("new", ".."), "is a folder, or no name"),
        (("new", f"{300 * 'x'}.cu"), "File name too long"),
        (("check", f"{300 * 'x'}.cu"), "Choose a shorter one"),
        (("show", 300 * "x"), "Choose a shorter one"),
        (("check", "no where.cu"), "tilewright new 'no where.cu'"),
        (("check", "--", "-x.ptx"), "tilewright new ./-x.cu"),
        (("banks", "--element", f"{3000 * '-'}i"), "too many levels"),
        (("check", "nowhere.cu", "--set", "n"), "n=256"),
        (("check", "empty.cu"), "has no kernel. A whole example"),
        (("new", "mine.cu", "--kind", "tile"), "Did you mean 'tiles'"),
        (("banks", "--access", "laod"), "Did you mean 'load'"),
        (("claims", "--verdict", "hold"), "Did you mean 'holds'"),
        (("inspect", "f09", "--config", "tilek=8"), "Did you mean 'tile_k'"),
        (("explain", "64x64x64", "--rung", "f13"), "Did you mean 'f12'"),
        (("explain", "64x64x64", "--rung", "a01"), "'a01' is not known. Rungs: tilewright rungs"),
        (("roofline", "--records", "fp32-lader"), "Did you mean 'fp32-ladder'"),
        (("report", "fp32-lader"), "Did you mean 'fp32-ladder'"),
        (("explain", "64x64x64", "--precision", "tf-32"), "Did you mean 'tf32'"),
        (("page", "--records", "."), "Omit --records"),
        (("bench", "nowhere.cu", "fp32-ladder"), "by itself"),
        (("bench", "fp32-ladder", "--against", "f09"), "are for a .cu file"),
        (("bench", "nowhere.cu"), "tilewright new nowhere.cu"),
        (("claims", "009"), "000, 001"),
        (("claims", "--verdict", "maybe"), "not-here"),
        (("show", "f9"), "Did you mean 'f09'"),
        (("show", "g03"), "g03_tma is a rung of grouped products, which is not taken here"),
        (("inspect", "b03_wgmma"), "b03_wgmma is a rung of attention's gradients"),
        (("inspect", "g03", "--space"), "g03_tma is a rung of grouped products"),
        (("show", "g99"), "neither a rung nor a file"),
        (("show", "nothing"), "Rungs: tilewright rungs"),
        (("show", "f09", "--line", "99"), "are 1 to 26"),
        (("show", "f09", "--plain", "--sass"), "omit"),
        (("inspect", "f77"), "neither a rung nor a file"),
        (("inspect", "f12_multistag"), "Did you mean 'f12_multistage'"),
        (("inspect", "f02", "--diff-entry", "k"), "give that too"),
        (("inspect", "f02", "--space", "--boards"), "a table of configs takes"),
        (("inspect", "f02", "--space", "--config", "tile_m=16"), "omit --config"),
        (("banks", "--down", "8"), "give pitch"),
        (("banks", "--pitch", "32"), "give down too"),
        (("banks", "--strides", "6"), "power of two"),
        (("banks", "--strides", "8", "--pitch", "4"), "omit"),
        (("banks", "--strides", "8", "--element", "i"), "omit"),
        (("banks", "--element", "i", "--stride", "4"), "omit"),
        (("banks", "--element", "lane"), "not whole numbers and i"),
        (("banks", "--swizzle", "1,2"), "(3, 3, 3)"),
        (("explain", "attention"), "--attention 4x32/8x4096x128"),
        (("roofline", "4096x4096x64"), "--shape 4096x4096x64"),
        (("report", "nothing"), "Suites: attention-"),
        (("check", "."), "is a folder"),
        (("occupancy", "f08", "--threads", "20"), "are of files"),
        (("occupancy", "f08", "--shared", "9999"), "are of files"),
        (("occupancy", "f08", "f09", "--entry", "x"), "are of files"),
        (("occupancy", "--entry", "x"), "give the file, or omit --entry"),
        (("report", "fp32-ladder", "--write"), "omit --write and --root"),
        (("report", "fp32-ladder", "--root", "/"), "omit --write and --root"),
        (("inspect", "f09", "--d-head", "64"), "is of attention, and f09_transposed makes products"),
        (("inspect", "f09", "--space", "--d-head", "64"), "is of attention"),
        (("inspect", "f08", "--diff", "f09", "--d-head", "64"), "is of attention"),
        (("inspect", "f09", "--include", "."), "are of files"),
        (("inspect", "empty.cu", "--dtype", "f32"), "are of rungs; empty.cu is a file"),
        (("inspect", "empty.cu", "--d-head", "64"), "are of rungs; empty.cu is a file"),
        (("inspect", "empty.cu", "--shared", "9999999"), "shared=9999999 is not from 0 to 232448, which sm_90a allows"),
        (("inspect", "f99", "--dtype", "bf16"), "neither a rung nor a file"),
        (("show", "f09", "--entry", "k"), "entry and include are of a file"),
        (("show", "empty.cu", "--entry", "k"), "ask for one of them, or omit entry"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(run, arguments, word, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.cu").write_text("int x;\n")
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert word in err
    assert err.count("\n") == 1
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "command",
    [
        "check mine.cu --json mine.cu",
        "check mine.cu --sarif ./mine.cu",
        "check mine.cu --junit link.cu",
        "check mine.cu --json new --junit new",
        "check mine.cu --sarif new --junit new",
        "emulate mine.cu --sarif new --junit new",
        "emulate mine.cu --grid 4,4 --block 32,8 --arg x=f32[128,128] --arg y=f32[128,128] --arg n=128 --save-args . "
        "--sarif y.npy",
        "tune --export table.json --import table.json",
        "tune --export table.json --merge table.json",
        "emulate mine.cu --json mine.cu",
        "emulate mine.cu --json new --sarif new",
        "emulate mine.cu --arg x.npy --arg f32[1]=ones --sarif x.npy",
        "emulate mine.cu --reference judge.py --junit judge.py",
        "show mine.cu --json mine.cu",
        "show f02 --diff mine.cu --json mine.cu",
        "inspect mine.cu --json mine.cu",
        "banks mine.cu --json mine.cu",
        "occupancy mine.cu --json mine.cu",
        "roofline mine.cu --json mine.cu",
        "profile mine.cu --json mine.cu",
        "bench mine.cu --json mine.cu",
        "page --kernel mine.cu --out mine.cu",
        "page --kernel mine.cu --json mine.cu",
        "page --out new --json new",
        "new new.cu --json new.cu",
        "report --json README.md",
        "cache export new --json new",
        "tune --export new --json new",
    ],
)
def test_a_result_replaces_neither_what_a_command_reads_nor_its_other_result(run, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    new_kernel("mine.cu")
    (tmp_path / "link.cu").symlink_to("mine.cu")
    (tmp_path / "judge.py").write_text("def check(before, after): pass\n")
    (tmp_path / "README.md").write_text("no tables\n")
    np.save(tmp_path / "x.npy", np.ones(1, np.float32))
    (tmp_path / "table.json").write_text("[]")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    status, out, err = run(*command.split())
    assert (status, out) == (2, "")
    assert "cannot be written (the same command reads it, or writes something else there)" in err
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("command", ["check mine.cu --json", "check mine.cu --sarif", "emulate mine.cu --junit"])
@pytest.mark.parametrize("name", ["helper.cuh", "ref.py", "y.npy"])
def test_what_was_found_replaces_no_source_and_no_array(run, command, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    new_kernel("mine.cu")
    (tmp_path / name).write_text("precious")
    status, out, err = run(*command.split(), name)
    assert (status, out) == (2, "")
    assert f"{name} cannot be written (a source or an array is there)" in err
    assert (tmp_path / name).read_text() == "precious"


@pytest.mark.parametrize("command", ["bench --stale --json new.json", "rungs --json new.json", "cache export k.zip"])
def test_a_working_folder_that_is_gone_is_said(run, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    status, out, err = run(*command.split())
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "the working folder is not there any more" in err or "cannot be written" in err


@pytest.mark.parametrize("name", ["we ird.cu", "-x.cu", "it's.cu"])
def test_what_is_advised_can_be_pasted(run, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out, _ = run("new", "--", name)
    assert status == 0
    for said in (
        " ".join(out.split()).split("Next: ")[1],
        (tmp_path / name).read_text().split(":  ")[1].split("\n")[0],
    ):
        assert run(*shlex.split(said)[1:])[0] == 0


def test_several_results_may_go_to_a_device(run, tmp_path):
    new_kernel(tmp_path / "mine.cu")
    assert run("check", tmp_path / "mine.cu", "--sarif", "/dev/null", "--json", "/dev/null")[0] == 0


def test_suites_without_records_are_not_offered(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    (tmp_path / "benchmarks" / "never.json").write_text('{"name": "never", "kind": "times", "cases": []}')
    record = {"suite": "made", "case": {}, "result": {}, "provenance": {"date": "2026-01-01"}}
    (tmp_path / "benchmarks" / "results" / "made.json").write_text(json.dumps([record]))
    _, _, err = run("report", "never")
    assert "Suites: made." in err


@pytest.mark.parametrize("width", [1, 9, 40])
def test_findings_are_told_in_a_narrow_terminal_too(run, monkeypatch, width):
    monkeypatch.setattr(installation, "console", lambda: Console(width=width))
    status, out, _ = run("doctor")
    assert status == 0
    assert "NVRTC" in out
    assert "verdict" in out


def test_the_documents_example_of_occupancy(run):
    status, out, _ = run("occupancy", *COMMANDS["occupancy"])
    assert status == 0
    assert "2 blocks, 16 of 48 warps per SM: 33.3%" in out


def test_occupancy_of_a_file_makes_a_table_of_several_launches(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    new_kernel("mine.cu")
    launches = ("--threads", "256,512", "--shared", "0,40000")
    status, out, _ = run("occupancy", "mine.cu", "f08", *launches, "--json", "-")
    told = [(row["threads"], row["shared_bytes"]) for row in json.loads(out)]
    assert (status, told[:4]) == (0, [(256, 0), (256, 40000), (512, 0), (512, 40000)])
    assert len(told) == 5, "a rung has its own launch"
    assert run("occupancy", "mine.cu", "--threads", "256,512")[1].count("mine.cu") == 2


def test_banks_takes_an_expression_of_the_lane(run):
    status, out, _ = run("banks", "--element", "i % 8 * 32 + i / 8", "--json", "-")
    assert status == 0
    before = json.loads(out)["before"]
    assert (before["wavefronts"], before["banks"][8]) == (8, 1)


def test_show_marks_new_lines_and_shows_what_a_line_became(run):
    status, out, _ = run("show", "f09")
    assert status == 0
    assert "+   CopyATransposed<Cfg, Tiles::a_pitch, true> copy_a;" in out
    assert "lines are new over f08_warptile_sub." in " ".join(out.split())
    status, out, _ = run("show", "f09", "--sass", "--ptx", "--line", "22", "--json", "-")
    assert status == 0
    told = json.loads(out)
    assert told["below"] == "f08_warptile_sub"
    assert any("FFMA" in text for line in told["lines"] for text in line["sass"])


def test_show_says_that_configs_differ_only_where_they_do(run):
    assert run("show", "f01", "--diff", "f01")[1].endswith("\nNo line is new over f01.\n")


def test_the_example_of_roofline_runs(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = " ".join(run("roofline", "--help")[1].split())
    assert "tilewright new product.cu --kind matmul tilewright roofline f05 f12 product.cu" in said
    assert run("new", "product.cu", "--kind", "matmul")[0] == 0
    status, out, _ = run("roofline", "f05", "f12", "product.cu")
    assert (status, "product.cu" in out) == (0, True)


def test_show_names_the_file_that_has_the_code_of_a_rung_without_any(run):
    status, out, _ = run("show", "a24", "--ptx")
    assert status == 0
    file = " ".join(out.split()).split("Try --file ")[1]
    status, out, _ = run("show", "a24", "--ptx", "--file", file)
    assert status == 0
    assert "    | " in out


def test_claims_prints_statements_and_their_verdicts(run):
    status, out, _ = run("claims", "001")
    assert status == 0
    assert '001.01  "pushes register usage' in out
    assert "differs because" in out
    assert "002.01" not in out
    status, out, _ = run("claims", "--verdict", "not-here", "--json", "-")
    assert status == 0
    assert {verdict["verdict"] for verdict in json.loads(out)} == {"not measurable here"}
    assert " hold, " in run("claims", "002")[1].splitlines()[-1]


def test_a_new_kernel_is_checked_and_scored(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("new", "mine.cu")[0] == 0
    status, out, _ = run("check", "mine.cu", "--junit", "j.xml")
    assert status == 0
    assert "transpose: passed" in out
    assert 'failures="0"' in (tmp_path / "j.xml").read_text()
    text = (tmp_path / "mine.cu").read_text()
    assert run("check", "mine.cu", "--sarif", "s.sarif")[0] == 0
    (costs,) = json.loads((tmp_path / "s.sarif").read_text())["runs"]
    line = 1 + next(n for n, row in enumerate(text.splitlines()) if "y[column" in row)
    assert [(note["ruleId"], note["level"]) for note in costs["results"]] == [("sectors", "note")]
    assert costs["results"][0]["locations"][0]["physicalLocation"]["region"]["startLine"] == line
    (tmp_path / "mine.cu").write_text(text.replace("y[column", "y[1 + column"))
    status, out, err = run("check", "mine.cu", "--json", "-", "--junit", "j.xml", "--sarif", "s.sarif")
    assert status == 1
    assert json.loads(out)["score"] == 0
    assert "FAULT" in err
    assert 'failures="1"' in (tmp_path / "j.xml").read_text()
    (sarif,) = json.loads((tmp_path / "s.sarif").read_text())["runs"]
    assert "out_of_bounds" in {result["ruleId"] for result in sarif["results"]}


def test_times_need_a_gpu_and_say_so(run, tmp_path, monkeypatch):
    from tilewright.jit import device

    monkeypatch.setattr(device, "why_no_gpu", lambda: "No CUDA GPU here")
    monkeypatch.chdir(tmp_path)
    assert run("new", "mine.cu", "--kind", "matmul")[0] == 0
    status, out, err = run("bench", "mine.cu", "--against", "f02")
    assert (status, out) == (2, "")
    assert (
        "timed on a GPU, and there is none to use: No CUDA GPU here. On the emulator: tilewright check mine.cu" in err
    )
    status, out, err = run("bench", "fp32-ladder")
    assert (status, out) == (2, "")
    assert "tilewright report fp32-ladder" in err


def test_a_page_is_one_file(run, tmp_path):
    status, out, _ = run("page", "--out", tmp_path / "p.html", "--json", "-")
    assert status == 0
    told = json.loads(out)
    assert told["bytes"] == (tmp_path / "p.html").stat().st_size
    assert told["charts"] >= 12
