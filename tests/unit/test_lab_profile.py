"""Profiles: which kernel is watched, how Nsight Compute's page is read, and what becomes of it."""

from __future__ import annotations

import json

import pytest

from tilewright.errors import InvalidOperand, MissingDependency, TilewrightError
from tilewright.gpus import find_gpu
from tilewright.lab import profiling
from tilewright.lab.counters import STALLS
from tilewright.lab.profiled import Target, read_target
from tilewright.lab.profiling import HOPPER, KNOWN, MORE, Agreement, ProfileReport, longest, profile_of, targets, watch
from tilewright.lab.starters import new_kernel


def page(*kernels: dict[str, float], metrics: dict[str, str] | None = None) -> str:
    """Nsight Compute's raw page of some kernels; metrics that are not given are 1."""
    metrics = metrics or KNOWN | MORE
    header = ["ID", "Kernel Name", *metrics.values()]
    rows = [header, ["", "", *("%" for _ in metrics)]]
    for number, kernel in enumerate(kernels):
        rows.append([str(number), f"kernel{number}", *(f"{kernel.get(name, 1.0):,}" for name in metrics)])
    lines = [",".join(f'"{cell}"' for cell in row) for row in rows]
    return "\n".join(["==PROF== Connected to process 1", *lines, ""])


@pytest.mark.parametrize(
    "names",
    [("f09",), ("h13", "cublas"), ("t02",), ("a17", "flash"), ("cudnn",), ("cublas",), ("f09:tile_k=8", "f09"),
     ("a07:(128, 64, 64, 4): load_0_2_2_fragments",)],
)  # fmt: skip
def test_a_target_survives_being_written_as_one_argument(names):
    for target in targets(names, size=512, causal="a17" in names):
        assert read_target(target.spec) == target


def test_a_file_is_profiled_with_its_sizes_and_next_to_it_a_product_of_them(tmp_path):
    mine = new_kernel(tmp_path / "my own.cu", "matmul")
    own, cublas, rung = targets([str(mine), "cublas", "f09:tile_k=8"], sizes={"n": 512})
    assert read_target(own.spec) == own
    assert own.problem.sizes["n"] == 512
    assert cublas.problem == rung.problem
    assert (rung.problem.m, rung.problem.n, rung.problem.dtype, rung.config) == (512, 512, "f32", "tile_k=8")
    with pytest.raises(InvalidOperand, match="sizes replace those"):
        targets(["f09"], sizes={"n": 512})


def test_a_files_counts_are_compared_with_the_emulators(tmp_path, monkeypatch):
    (own,) = targets([str(new_kernel(tmp_path / "mine.cu"))], sizes={"n": 8192})
    asked = []

    def read_once(target, metrics):
        asked.append(target.problem.sizes["n"])
        return "transpose", dict.fromkeys(metrics, 8.0)

    monkeypatch.setattr(profiling, "read_once", read_once)
    found = profiling._ratios(own, 256, find_gpu("H200"))
    assert asked == [128]  # the sizes that the file says: the emulator's
    assert found["sectors_per_load"] == {"hardware": 1.0, "emulator": 4.0}
    assert found["sectors_per_store"] == {"hardware": 1.0, "emulator": 32.0}


def test_all_kernels_have_the_first_rungs_problem():
    found = targets(["cublas", "h13"], size=1024)
    assert [target.what for target in found] == ["cublas", "h13_persistent"]
    assert {target.problem.dtype for target in found} == {"bf16"}
    assert targets(["t01"])[0].problem.precision == "tf32"
    assert targets(["f09"], dtype="f32")[0].problem.m == 4096


@pytest.mark.parametrize(("names", "word"), [(["f99"], "is not a rung"), (["f09", "a17"], "not both")])
def test_what_cannot_be_profiled_together_is_refused(names, word):
    with pytest.raises(InvalidOperand, match=word):
        targets(names)


def test_the_longest_kernel_of_a_launch_is_told():
    name, read = longest(page({"time": 2_000.0}, {"time": 5_000.0, "fma_pipe": 80.5}), KNOWN | MORE)
    assert name == "kernel1"
    assert (read["time"], read["fma_pipe"]) == (5000.0, 80.5)


def test_a_page_without_a_kernel_or_a_metric_is_refused():
    with pytest.raises(TilewrightError, match="no kernel was profiled"):
        longest("==ERROR== nothing", KNOWN)
    with pytest.raises(TilewrightError, match=r"it has no dram__bytes\.sum"):
        longest(page({}, metrics={k: v for k, v in (KNOWN | MORE).items() if k != "dram_bytes"}), KNOWN | MORE)
    with pytest.raises(TilewrightError, match="is 'n/a'"):
        longest(page({}).replace('"1.0"', '"n/a"', 1), KNOWN)


def test_shares_times_and_intensity_are_worked_out():
    (target,) = targets(["f09"], size=1024)
    found = profile_of(target, "gemm", dict.fromkeys(KNOWN | MORE, 50.0) | {"time": 2e6, "dram_bytes": 1e9}, {})
    assert found.ms == 2.0
    assert found.shares["fma_pipe"] == found.shares["l2"] == 0.5
    assert found.flop_per_byte == pytest.approx(2 * 1024**3 / 1e9)
    assert set(found.stalls) == set(STALLS)
    assert "gmma" not in found.stalls
    hopper = profile_of(target, "gemm", dict.fromkeys(KNOWN | MORE | HOPPER, 50.0), {})
    assert (hopper.stalls["gmma"], hopper.shares["tensor_pipe"]) == (50.0, 0.5)
    few = profile_of(target, "gemm", dict.fromkeys(KNOWN, 50.0), {})
    assert few.flop_per_byte is None
    assert "l2" not in few.shares


def test_a_report_has_records_tables_and_agreement():
    (target,) = targets(["f09"])
    one = profile_of(target, "gemm", dict.fromkeys(KNOWN | MORE, 50.0), {"sm_mhz": 1980.0, "power_w": 500.0})
    report = ProfileReport(
        "NVIDIA H200", "f32 NN", (one,), (Agreement("f09_transposed", "sectors_per_load", 16.0, 16.0),), {"gpu": "H200"}
    )
    (record,) = report.records()
    assert record["case"]["rung"] == "f09_transposed"
    assert record["result"]["agreements"][0]["hardware"] == 16.0
    assert json.dumps(report.records())
    assert "1.000" in str(report)
    assert "power, W" in str(report)
    assert Agreement("f01", "x", None, None).agrees is None
    assert Agreement("f01", "x", 2.0, 1.0).agrees == 0.5


def test_without_nsight_compute_the_error_says_what_counts_instead(monkeypatch):
    monkeypatch.setattr(profiling.shutil, "which", lambda name: None)
    with pytest.raises(MissingDependency, match="tilewright emulate"):
        watch(targets(["f09"])[0])


def test_metrics_that_nsight_compute_does_not_know_are_left_out(monkeypatch):
    asked = []

    def run(command, **options):
        metrics = command[command.index("--metrics") + 1]
        asked.append(metrics)
        out = "" if MORE["l2"] in metrics else page({"time": 7.0}, metrics=KNOWN)
        return type("Done", (), {"stdout": out, "stderr": "==ERROR== Failed to find metric", "returncode": 0})

    monkeypatch.setattr(profiling.shutil, "which", lambda name: "/usr/bin/ncu")
    monkeypatch.setattr(profiling.subprocess, "run", run)
    kernel, read = watch(Target("f09_transposed", targets(["f09"])[0].problem))
    assert (kernel, read["time"], len(asked)) == ("kernel0", 7.0, 3)
    assert "l2" not in read


def test_a_suite_has_one_record_per_kernel(monkeypatch):
    (target,) = targets(["f09"])
    one = profile_of(target, "gemm", dict.fromkeys(KNOWN, 50.0), {})
    asked = []

    def profile(names, **options):
        asked.append((names, options))
        return ProfileReport("NVIDIA H200", "f32 NN", (one,) * len(names), (), {})

    monkeypatch.setattr(profiling, "profile", profile)
    records = profiling.profile_records("mine", [{"kernels": ["f03", "cublas"], "size": 64}, {"kernels": ["a17"]}])
    assert [record["suite"] for record in records] == ["mine"] * 3
    assert asked[0] == (["f03", "cublas"], {"size": 64, "seconds": 1.0, "say": profiling.silent})
