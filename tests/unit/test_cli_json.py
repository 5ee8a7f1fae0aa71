"""`--json`: to a file, and to standard output whatever that is; the command runs as a user runs it."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tilewright.cli import main
from tilewright.errors import TilewrightError
from tilewright.lab.record import json_result

AXPY = """extern "C" __global__ void axpy(const float* x, float* y, float a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i];
}
"""
PLACES = ("-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")
TILEWRIGHT = f"{sys.executable} -m tilewright"


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command], cwd=folder, capture_output=True, text=True, timeout=120, check=False,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src")},
    )  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_standard_output_redirected_to_a_file_keeps_what_the_file_held(tmp_path, place):
    (tmp_path / "log.txt").write_text("keep\n")
    done = shell(f"{{ {TILEWRIGHT} cache info --json {place}; echo after; }} >> log.txt", tmp_path)
    assert done.returncode == 0
    text = (tmp_path / "log.txt").read_text()
    assert text.startswith("keep\n")
    assert text.endswith("after\n")
    assert {"folder", "kernels", "bytes", "most_bytes"} == json.loads(text[len("keep\n") : -len("after\n")]).keys()
    assert os.listdir(tmp_path) == ["log.txt"]
    assert "kernels" in done.stderr


@pytest.mark.parametrize("folder", ["--out=results", "--out=."])
def test_the_folder_of_records_takes_no_other_json(tmp_path, monkeypatch, capsys, folder):
    monkeypatch.chdir(tmp_path)
    place = tmp_path / folder.removeprefix("--out=") / "compiled-H200.json"
    place.parent.mkdir(exist_ok=True)
    place.write_text("[]\n")
    monkeypatch.setattr(sys, "argv", ["tilewright", "bench", "compiled", folder, "--json", str(place)])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert "lies in the folder of the records" in capsys.readouterr().err
    assert place.read_text() == "[]\n"


@pytest.mark.parametrize("place", PLACES)
def test_a_pipe_gets_the_json_and_nothing_else(tmp_path, place):
    done = shell(f"{TILEWRIGHT} cache info --json {place} | cat", tmp_path)
    assert json.loads(done.stdout)["kernels"] >= 0
    assert os.listdir(tmp_path) == []


def test_another_open_file_or_pipe_is_written_to(tmp_path):
    done = shell(f"{TILEWRIGHT} cache info --json /dev/fd/3 3>&1 >/dev/null | cat", tmp_path)
    assert json.loads(done.stdout)["kernels"] >= 0
    (tmp_path / "log.txt").write_text("keep\n")
    done = shell(f"{TILEWRIGHT} cache info --json /dev/fd/3 3>>log.txt", tmp_path)
    assert done.returncode == 0
    assert json.loads((tmp_path / "log.txt").read_text().removeprefix("keep\n"))["kernels"] >= 0
    assert os.listdir(tmp_path) == ["log.txt"]


def test_a_terminal_gets_the_json_and_standard_error_the_table(tmp_path):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "tilewright", "explain", "--size", "64", "--json", "-"]
    done = subprocess.run(command, stdout=theirs, stderr=subprocess.PIPE, cwd=tmp_path, timeout=120, check=True,
                          env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src")})  # fmt: skip
    os.close(theirs)
    written = b""
    while chunk := _read(ours):
        written += chunk
    os.close(ours)
    told = json.loads(written)
    assert told["problem"]["m"] == 64
    assert done.stderr.decode().startswith(told["text"])


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # a terminal whose other side is closed
        return b""


def test_every_command_that_prints_results_offers_json(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "axpy.cu").write_text(AXPY)
    arguments = "--arg f32[64]=ones --arg f32[64]=nan --arg f32=2 --arg i32=64"
    (tmp_path / "README.md").write_text("no tables\n")
    for command, key in {
        "explain --size 64": "rung",
        "doctor": 0,
        "cache info": "kernels",
        "cache export k.zip": "kernels",
        "cache import k.zip": "kernels",
        "tune --shapes 64x64x64 --dry-run --keep 2": "candidates",
        "tune --list": "stores",
        "report": "out_of_date",
        f"emulate axpy.cu --entry axpy --grid 2 {arguments}": "counters",
        "ladder gemm --emulator --rungs f02 --size 32": 0,
        "ladder attention --emulator --rungs a02 --seqlen 32 --d-head 32": 0,
    }.items():
        monkeypatch.setattr(sys, "argv", ["tilewright", *command.split(), "--json", "-"])
        with pytest.raises(SystemExit) as left:
            main()
        printed = capfd.readouterr()
        assert left.value.code == 0, printed.err
        assert json.loads(printed.out)[key] is not None, command
        assert printed.err, "the table goes to standard error"


def test_a_fault_is_json_too(tmp_path):
    (tmp_path / "axpy.cu").write_text(AXPY)
    arguments = "--arg f32[64]=ones --arg f32[64]=nan --arg f32=2 --arg i32=128"
    done = shell(f"{TILEWRIGHT} emulate axpy.cu --entry axpy --grid 4 {arguments} --json -", tmp_path)
    assert done.returncode == 1
    assert json.loads(done.stdout)["fault"]["kind"] == "out_of_bounds"
    assert "FAULT" in done.stderr


def test_a_folder_that_is_not_there_is_refused_before_the_work(tmp_path):
    done = shell(f"{TILEWRIGHT} ladder gemm --emulator --rungs f01 --size 64 --json nowhere/x.json", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no folder nowhere" in done.stderr
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("place", "word"), [("/dev/fd/999", "Bad file"), ("/dev/fd/0", "reading only")])
def test_a_file_that_is_not_open_for_writing_is_refused_before_the_work(tmp_path, place, word):
    done = shell(f"{TILEWRIGHT} doctor --json {place} < /dev/null", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert word in done.stderr


def test_a_closed_standard_output_is_refused(tmp_path):
    done = shell(f"{TILEWRIGHT} doctor --json - >&-", tmp_path)
    assert done.returncode == 2
    assert "standard output is closed" in done.stderr


def test_a_reader_that_goes_away_leaves_with_141(tmp_path):
    done = shell(f"{TILEWRIGHT} cache info --json - | true; exit ${{PIPESTATUS[0]}}", tmp_path)
    assert done.returncode == 141
    assert "Traceback" not in done.stderr


def test_a_full_disk_is_told(tmp_path):
    done = shell(f"{TILEWRIGHT} cache info --json - > /dev/full", tmp_path)
    assert done.returncode == 2
    assert "No space left" in done.stderr


def test_a_link_to_standard_output_is_standard_output(tmp_path, capsys):
    (tmp_path / "out.json").symlink_to("/dev/stdout")
    with json_result(str(tmp_path / "out.json")) as write:
        print("table")
        write([1])
    assert capsys.readouterr() == ("[\n 1\n]\n", "table\n")
    assert (tmp_path / "out.json").is_symlink()


def test_no_place_writes_nothing_and_moves_nothing(capsys):
    with json_result(None) as write:
        print("table")
        write([1])
    assert capsys.readouterr() == ("table\n", "")


def test_not_a_number_is_refused(tmp_path):
    with pytest.raises(ValueError, match="JSON"), json_result(str(tmp_path / "x")) as write:
        write([float("nan")])
    with pytest.raises(TilewrightError, match="folder"), json_result(str(tmp_path)):
        pass


def test_a_locale_without_the_letters_of_a_files_name_still_runs_it(tmp_path):
    locale = "export LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0; set -e"
    commands = (
        "new \u00e9.cu",
        "check \u00e9.cu --sarif s.sarif --junit j.xml --json -",
        "inspect \u00e9.cu",
        "show \u00e9.cu --ptx",
    )
    done = shell("; ".join([locale, *(f"{TILEWRIGHT} {command}" for command in commands)]), tmp_path)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    assert "tilewright check '\u00e9.cu'\n" in (tmp_path / "\u00e9.cu").read_text(encoding="utf-8")
