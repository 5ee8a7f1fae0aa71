"""`tilewright tune` where there is no GPU: what it prints, refuses, exports and takes over."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tilewright
from tilewright.gemm.classes import class_of
from tilewright.gemm.problem import GemmProblem
from tilewright.gemm.rungs import find_rung
from tilewright.plan.entries import Entry, Timed, decode, encode, table_of
from tilewright.plan.store import Store
from tilewright.tuning.families import entries_of

H11 = find_rung("h11")


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    environment = {
        **os.environ, "TILEWRIGHT_TUNED": str(folder), "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": str(Path(tilewright.__file__).parents[1]),
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, "-m", "tilewright", "tune", *arguments], env=environment, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip


def entry(k: int = 512, ms: float = 0.01, when: str = "2026-01-01") -> Entry:
    problem = GemmProblem.dense(512, 512, k, dtype="bf16")
    return Entry(class_of(problem), (512, 512, k, 1), (Timed(H11.id, H11.default, ms),), when=when)


def file_of(path: Path, *entries: Entry) -> Path:
    path.write_bytes(encode(table_of({e.key: e for e in entries}.values(), "H200", "cuda13")))
    return path


def test_without_a_gpu_it_says_so_in_one_line_and_leaves_with_2(tmp_path):
    done = run(tmp_path, "--shapes", "64x64x64")
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert "GPU" in done.stderr
    assert "--dry-run" in done.stderr
    assert done.stdout == ""


def test_a_dry_run_of_a_precision_tries_its_rungs(tmp_path):
    done = run(tmp_path, "--shapes", "256x256x256", "--precision", "fp32x3", "--keep", "16", "--dry-run")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("fp32x3 nn 256 x 256 x 256 on ")
    assert {line.split()[1] for line in lines if line[:1].isdigit()} >= {"t02", "t03"}


def test_a_dry_run_with_an_epilogue_names_it(tmp_path):
    done = run(tmp_path, "--shapes", "4096x4096x1024", "--epilogue", "residual, silu,bias", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("f32 nn 4096 x 4096 x 1024, silu(acc + bias) + residual on ")


def test_a_dry_run_prints_the_order_and_what_was_pruned_and_no_time(tmp_path):
    done = run(
        tmp_path, "--shapes", "256x256x256", "--dtype", "bf16", "--rungs", "h10..h11", "--keep", "5", "--dry-run"
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "nothing measured" in lines[0]
    assert [line.split()[0] for line in lines if line[:1].isdigit()][:5] == list("12345")
    assert "5 of " in done.stdout
    assert "not among the best 5 by the model" in " ".join(done.stdout.split())
    assert max(map(len, lines)) <= 100
    for unit in (" ms", " us", "TFLOP"):
        assert unit not in done.stdout


def test_a_batch_and_the_results_type_are_tuned_as_they_are_named(tmp_path):
    done = run(
        tmp_path, "--shapes", "512x512x64x48", "--dtype", "bf16", "--out-dtype", "f32", "--keep", "2", "--dry-run"
    )
    assert done.returncode == 0
    assert "bf16 to f32 nn 512 x 512 x 64 x48 on H200" in done.stdout
    assert " 768 " in done.stdout, "48 batches of 16 tiles"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "nothing to tune: give --shapes"),
        (("--shapes", "64x64"), "'64x64' is not m x n x k"),
        (("--shapes", "64xax64"), "'64xax64' is not m x n x k"),
        (("--shapes", "64x64x64x2x2"), "is not m x n x k, or m x n x k x batch"),
        (("--shapes", "64x64x64x0", "--dry-run"), "batch=0: sizes must be at least 1"),
        (("--shapes", "64x64x64", "--out-dtype", "f8", "--dry-run"), "dtype 'f8' is not supported"),
        (("--attention", "1x4x64x64", "--out-dtype", "f32", "--dry-run"), "--out-dtype apply to products"),
        (("--shapes", "0x64x64"), "m=0: sizes must be at least 1"),
        (("--shapes", "64x64x64", "--layout", "nq"), "layout 'nq' is not one of"),
        (("--shapes", "64x64x64", "--gpu", "Voodoo"), "Known: "),
        (("--export", "/proc/at/all.json"), "cannot be written"),
        (("--export", "x.json"), "nothing to export"),
        (("--merge", "/no/such/file"), "cannot be read"),
        (("--merge", "/tmp"), "cannot be read"),
        (("--shapes", ",", "--dry-run"), "nothing to tune"),
        (("--shapes", "99999999999x64x64", "--dry-run"), "outside 0..2147418112"),
        (("--shapes", "64x64x64", "--dtype", "f8", "--dry-run"), "dtype 'f8' is not supported"),
        (("--shapes", "64x64x64", "--rungs", "h11", "--dry-run"), "h11_mma_multistage does not multiply f32"),
        (("--shapes", "64x64x64", "--epilogue", "bias,swish", "--dry-run"), "'swish' is not known. Known: bias, "),
        (("--shapes", "64x64x64", "--epilogue", "silu,relu", "--dry-run"), "silu and relu are two activations"),
        (("--shapes", "64x64x64", "--epilogue", "bias,bias", "--dry-run"), "bias is named twice"),
        (("--shapes", "64x64x64", "--epilogue", ",", "--dry-run"), "',' names nothing"),
        (("--attention", "1x4x64x64", "--epilogue", "bias", "--dry-run"), "--epilogue applies to products"),
        (("--epilogue", "bias"), "--epilogue applies to products"),
    ],
)
def test_what_cannot_be_done_is_said_and_leaves_with_2(tmp_path, monkeypatch, arguments, words):
    from typer.testing import CliRunner

    from tilewright.cli.app import app

    monkeypatch.setenv("TILEWRIGHT_TUNED", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["tune", *arguments])
    assert isinstance(result.exception, tilewright.errors.TilewrightError)
    assert words in str(result.exception)


def test_results_go_out_in_and_together(tmp_path, monkeypatch, capsys):
    from tilewright.cli.tune import tune

    monkeypatch.setenv("TILEWRIGHT_TUNED", str(tmp_path / "store"))
    theirs = file_of(tmp_path / "theirs.json", entry(ms=0.5, when="2026-01-01"), entry(k=1024))
    Store("H200", "cuda13").add([entry(when="2026-06-01")])
    tune(merge_file=theirs)
    assert "1 of 2 results taken over" in capsys.readouterr().out
    held = entries_of(Store("H200", "cuda13").table)
    assert held[entry().key].best.ms == 0.01, "ours is newer"
    assert entry(k=1024).key in held
    tune(import_file=theirs)
    assert entries_of(Store("H200", "cuda13").table)[entry().key].best.ms == 0.5, "an import takes what it is given"
    fused = dataclasses.replace(
        entry(k=2048), klass=dataclasses.replace(entry(k=2048).klass, fused=True), epilogue="acc + bias"
    )
    Store("H200", "cuda13").add([fused])
    tune(listed=True)
    listed = capsys.readouterr().out
    assert "3 problems tuned on H200, cuda13" in listed
    assert ", of 1, with acc + bias" in listed
    assert "h11_mma_multistage" in listed
    from tilewright.plan import tables

    tables._stores.clear()
    tune(export=tmp_path / "mine.json")
    tables._stores.clear()
    assert entries_of(decode((tmp_path / "mine.json").read_bytes())) == entries_of(Store("H200", "cuda13").table)


def test_a_file_of_another_gpu_goes_to_that_gpus_store_and_an_empty_store_says_so(tmp_path, monkeypatch, capsys):
    from tilewright.cli.tune import tune

    monkeypatch.setenv("TILEWRIGHT_TUNED", str(tmp_path / "store"))
    tune(listed=True)
    told = capsys.readouterr().out
    assert "nothing has been tuned here" in told
    assert "shipped with the package: " in told
    theirs = tmp_path / "theirs.json"
    theirs.write_bytes(encode(table_of({entry().key: entry()}.values(), "../RTX 4090", "cuda12")))
    tune(import_file=theirs)
    assert [path.name for path in (tmp_path / "store" / "v1").glob("*.json")] == ["RTX-4090-cuda12.json"]
    assert entries_of(Store("H200", "cuda13").table) == {}


def test_a_file_that_is_no_table_is_refused_and_changes_nothing(tmp_path, monkeypatch):
    from tilewright.cli.tune import tune
    from tilewright.errors import CacheError

    monkeypatch.setenv("TILEWRIGHT_TUNED", str(tmp_path / "store"))
    Store("H200", "cuda13").add([entry()])
    broken = tmp_path / "broken.json"
    broken.write_bytes(file_of(tmp_path / "sound.json", entry(k=64)).read_bytes()[:-9])
    with pytest.raises(CacheError, match=r"broken.json: it is not a table of tuning results.*--export"):
        tune(merge_file=broken)
    assert set(entries_of(Store("H200", "cuda13").table)) == {entry().key}
