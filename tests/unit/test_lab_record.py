"""Records and suites: written whole or not at all, read with a clear word when something is wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from tilewright.attn.family import plan_attention
from tilewright.attn.problem import AttentionProblem
from tilewright.errors import ConfigRejected, MissingDependency, TilewrightError
from tilewright.gemm.rungs import find_rung, rungs_for
from tilewright.gpus import GPUS, find_gpu
from tilewright.lab import counters
from tilewright.lab.kinds import KINDS, Run, attention_steps, steps_of
from tilewright.lab.ladder import Step
from tilewright.lab.record import (
    check_writable,
    find_records,
    provenance,
    read_records,
    save_array,
    who,
    write_json,
    write_text,
)
from tilewright.lab.select import select_rungs
from tilewright.lab.suite import find_suite, main, read_suite, run_suite

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def record(suite: str = "s", date: str = "2026-01-01T00:00:00+00:00", **result) -> dict:
    return {"suite": suite, "case": {}, "result": result, "provenance": {"date": date}}


# --- records ----------------------------------------------------------------------------------------------------------


def test_records_come_back_as_written(tmp_path):
    records = [record(right=True, ms=1.5), record(right=False)]
    write_json(tmp_path / "new" / "r.json", records)
    assert read_records(tmp_path / "new" / "r.json") == records
    assert os.listdir(tmp_path / "new") == ["r.json"]


def test_nan_is_refused_and_the_old_file_stays(tmp_path):
    path = tmp_path / "r.json"
    write_json(path, [record(ms=1.0)])
    with pytest.raises(ValueError, match="JSON"):
        write_json(path, [record(ms=float("nan"))])
    assert read_records(path)[0]["result"]["ms"] == 1.0
    assert os.listdir(tmp_path) == ["r.json"]


def test_a_write_that_fails_midway_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = tmp_path / "page.md"
    write_text(path, "old")

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full_disk)
    with pytest.raises(TilewrightError, match="No space left"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["page.md"]


def test_a_page_keeps_its_permissions(tmp_path):
    path = tmp_path / "page.md"
    path.write_text("old")
    path.chmod(0o600)
    write_text(path, "new")
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_place_that_cannot_be_written_is_said_before_the_work(tmp_path):
    check_writable(tmp_path / "r.json")
    (tmp_path / "file").write_text("")
    for bad in (tmp_path / "file" / "r.json", tmp_path, tmp_path / "nowhere" / "r.json"):
        with pytest.raises(TilewrightError, match="cannot be written"):
            check_writable(bad)


def test_arrays_are_saved_as_npy(tmp_path):
    save_array(tmp_path / "a.npy", np.arange(6, dtype=np.float32).reshape(2, 3).T)
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), np.arange(6).reshape(2, 3).T)


@pytest.mark.parametrize(
    ("text", "word"),
    [("{", "cannot be read"), ("{}", "list of records"), ('[{"suite": "s"}]', "lacks case"), ("[3]", "lacks suite")],
)
def test_a_file_that_holds_no_records_is_named_with_what_is_wrong(tmp_path, text, word):
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(TilewrightError, match=word) as caught:
        read_records(tmp_path / "r.json")
    assert "r.json" in str(caught.value)


def test_the_newest_run_of_a_suite_is_found(tmp_path):
    write_json(tmp_path / "a.json", [record("x", "2026-02-01T00:00:00+00:00", n=2)])
    write_json(tmp_path / "b.json", [record("x", "2026-01-01T00:00:00+00:00", n=1)])
    write_json(tmp_path / "c.json", [record("y", "2026-03-01T00:00:00+00:00", n=3)])
    assert [r["result"]["n"] for r in find_records(tmp_path, "x")] == [2]
    assert find_records(tmp_path, "z") == []


def test_a_newer_run_on_another_gpu_leaves_the_tables_on_the_gpu_they_are_of(tmp_path):
    def on(gpu, date, n):
        made = record("x", date, n=n)
        return [{**made, "provenance": {**made["provenance"], "gpu": gpu}}]

    write_json(tmp_path / "a.json", on("NVIDIA H200", "2026-01-01T00:00:00+00:00", 1))
    write_json(tmp_path / "b.json", on("NVIDIA H100 80GB HBM3", "2026-02-01T00:00:00+00:00", 2))
    write_json(tmp_path / "c.json", on("NVIDIA A100", "2026-03-01T00:00:00+00:00", 3))
    assert [r["result"]["n"] for r in find_records(tmp_path, "x")] == [1]
    assert [r["result"]["n"] for r in find_records(tmp_path, "x", "H100")] == [2]
    (tmp_path / "a.json").unlink()
    assert [r["result"]["n"] for r in find_records(tmp_path, "x")] == [3]  # a user's own folder: the newest


def test_provenance_says_versions_and_a_date_with_its_zone():
    origin = provenance(gpu="H200")
    assert origin["gpu"] == "H200"
    assert {"tilewright", "nvrtc", "python", "date"} <= origin.keys()
    assert origin["date"].endswith("+00:00")


def test_every_record_of_the_repository_is_sound():
    files = sorted((BENCHMARKS / "results").glob("*.json"))
    for path in files:
        for found in read_records(path):
            compiled = path.name.startswith("compiled-")  # nothing was run
            assert found["result"].get("right", True) or compiled, f"{path}: {found['case']}"
            assert "date" in found["provenance"]


# --- suites -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fp32-ladder", "fp32-f12", "counters"])
def test_the_suites_of_the_repository_can_be_read_and_planned(name, monkeypatch):
    monkeypatch.chdir(BENCHMARKS.parent)
    suite = read_suite(find_suite(name))
    assert suite["name"] == name
    steps = steps_of(suite, GPUS["H200"])
    assert steps
    for step in steps:
        assert step.rung.why_not(step.problem, step.config, GPUS["H200"].arch) is None


def test_a_planned_case_of_attention_is_timed_as_it_is_planned():
    case = {"batch": 2, "heads": 8, "heads_kv": 2, "seq": 700, "d_head": 64, "causal": True, "planned": True}
    (step,) = attention_steps({"cases": [case]}, GPUS["H200"])
    problem = AttentionProblem.dense(2, 8, 700, 700, 64, heads_kv=2, is_causal=True)
    assert step.problem == problem
    plan = plan_attention(problem, GPUS["H200"])
    assert (step.rung, step.config) == (plan.rung, plan.config)


def test_rungs_of_another_precision_are_chosen_with_it_and_refused_without():
    assert [rung.id for rung in select_rungs(None, "f32", "fp32x3")] == [
        "t02_fp32x3", "t03_fp32x3_split", "t05_fp32x3_pairs",
    ]  # fmt: skip
    with pytest.raises(ConfigRejected, match="with precision 'ieee'; it multiplies f32 with precision 'tf32'"):
        select_rungs("t01", "f32")
    with pytest.raises(ConfigRejected, match="no ladder for dtype 'bf16' and precision 'tf32'"):
        select_rungs(None, "bf16", "tf32")


def test_rungs_are_chosen_by_number_name_and_range():
    ids = [rung.id for rung in rungs_for("f32")]
    assert [r.id for r in select_rungs(None, "f32")] == ids
    assert [r.id for r in select_rungs("f05..f07", "f32")] == ids[4:7]
    assert [r.id for r in select_rungs("f11..", "f32")] == ids[10:]
    assert [r.id for r in select_rungs("..f02,f12", "f32")] == [*ids[:2], ids[11]]
    assert [r.id for r in select_rungs("f12, f01_naive,f01..f02", "f32")] == [ids[11], ids[0], ids[1]]


@pytest.mark.parametrize(("text", "dtype", "word"), [("f99", "f32", "f99"), ("f07..f05", "f32", "above"),
                                                     ("", "f32", "Known"), ("f01", "f77", "f77")])  # fmt: skip
def test_a_choice_of_no_rung_is_refused_in_words(text, dtype, word):
    with pytest.raises(ConfigRejected, match=word):
        select_rungs(text, dtype)


@pytest.mark.parametrize("text", ["{", "[]", '{"name": "x", "cases": []}', '{"name": "x", "cases": [], "kind": "odd"}',
                                  '{"name": "../x", "cases": [], "kind": "times"}'])  # fmt: skip
def test_a_file_that_is_no_suite_is_refused(tmp_path, text):
    (tmp_path / "s.json").write_text(text)
    with pytest.raises(TilewrightError, match=r"s\.json"):
        read_suite(tmp_path / "s.json")


def test_suites_are_known_anywhere_and_those_of_the_working_folder_come_first(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    # an installed package has its own copy
    assert find_suite("fp32-ladder").read_bytes() == (BENCHMARKS / "fp32-ladder.json").read_bytes()
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "mine.json").write_text("{}")
    assert find_suite("mine").samefile(tmp_path / "benchmarks" / "mine.json")
    with pytest.raises(TilewrightError, match=r"no suite 'fp32-ladder'. Known by name: mine"):
        find_suite("fp32-ladder")


def test_an_unknown_suite_is_answered_with_the_known_ones_and_the_nearest(monkeypatch):
    monkeypatch.chdir(BENCHMARKS.parent)
    with pytest.raises(TilewrightError, match="Did you mean 'fp32-ladder'"):
        find_suite("fp32-lader")


def test_a_suite_without_a_gpu_ends_with_one_line(tmp_path, capsys, monkeypatch):
    from tilewright.errors import DeviceError
    from tilewright.jit import device

    def none(ordinal):
        raise DeviceError("no CUDA driver")

    monkeypatch.setattr(device, "device", none)
    monkeypatch.chdir(BENCHMARKS.parent)
    assert main(["fp32-ladder", "--out", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert told.startswith("fp32-ladder: DeviceError: ")
    assert told.count("\n") == 1
    with pytest.raises(DeviceError):
        run_suite(read_suite(find_suite("counters")), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_suite_that_is_stopped_keeps_the_cases_before_and_the_older_records(tmp_path):
    good = {"rung": "f02", "configs": [""]}
    suite = {"name": "stopped", "kind": "compiled", "gpu": "A100", "cases": [good, {"rung": "f99", "configs": [""]}]}
    older = tmp_path / "stopped-A100.json"
    older.write_text("older")
    with pytest.raises(TilewrightError, match="f99"):
        run_suite(suite, tmp_path)
    assert older.read_text() == "older"
    (kept,) = json.loads((tmp_path / "stopped-A100.json.part").read_text())
    assert kept["case"]["rung"].startswith("f02")
    path, records = run_suite(suite | {"cases": [good, good]}, tmp_path)
    assert (path, len(records), json.loads(path.read_text())) == (older, 2, records)
    assert not (tmp_path / "stopped-A100.json.part").exists()


def test_a_suite_times_a_rung_with_each_config_it_names():
    case = {"rungs": "f08,f09", "configs": ["", "tile_k=8"], "m": 512, "n": 512, "k": 512}
    steps = steps_of({"name": "configs", "kind": "times", "cases": [case]}, find_gpu("A100"))
    assert [(step.rung.id[:3], step.config.tile_k) for step in steps] == [
        (name, k) for name in ("f08", "f09") for k in (select_rungs(name, "f32")[0].default.tile_k, 8)
    ]
    with pytest.raises(ConfigRejected, match="configs: f08_warptile_sub with tile_m=48: "):
        steps_of({"name": "configs", "cases": [case | {"configs": ["tile_m=48"]}]}, find_gpu("A100"))


# --- counters of the hardware -----------------------------------------------------------------------------------------


def ncu_csv(rows: int = 1) -> str:
    names = list(counters.METRICS.values())
    lines = ["==PROF== Connected", '"ID","Kernel Name",' + ",".join(f'"{name}"' for name in names)]
    lines.append('"","",' + ",".join('"sector"' for _ in names))
    for row in range(rows):
        lines.append(f'"{row}","gemm",' + ",".join(f'"{1000 * (i + 1):,}"' for i in range(len(names))))
    return "\n".join(lines)


def test_the_metrics_of_the_profiler_are_read_with_their_thousands():
    first, second = counters.parse_csv(ncu_csv(2), 2)
    assert list(first) == list(counters.METRICS)
    assert first == second
    assert list(first.values()) == [1000 * (i + 1) for i in range(len(first))]


@pytest.mark.parametrize("rows", [0, 2])
def test_a_profile_of_any_other_number_of_kernels_is_refused(rows):
    with pytest.raises(TilewrightError, match=f"{rows} kernels"):
        counters.parse_csv(ncu_csv(rows), 1, "permission denied")


def test_a_missing_profiler_is_named(monkeypatch):
    from tilewright.gemm.problem import GemmProblem

    step = Step(find_rung("f01"), find_rung("f01").default, GemmProblem.dense(64, 64, 64))
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(MissingDependency, match="ncu"):
        counters.read_hardware([step])


def test_one_process_under_the_profiler_makes_every_launch(tmp_path, monkeypatch):
    from tilewright.gemm.problem import GemmProblem

    tool = tmp_path / "ncu"
    tool.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/words\ncat {tmp_path}/page\n')
    tool.chmod(0o755)
    (tmp_path / "page").write_text(ncu_csv(2))
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    steps = [Step(find_rung(name), find_rung(name).default, GemmProblem.dense(64, 32, 16)) for name in ("f01", "f12")]
    assert len(counters.read_hardware(steps)) == 2
    (words,) = (tmp_path / "words").read_text().splitlines()
    assert words.endswith("f01_naive:64:32:16:nn:f32 f12_multistage:64:32:16:nn:f32")


def test_a_suite_that_needs_no_gpu_names_one(tmp_path):
    path = tmp_path / "d.json"
    path.write_text(json.dumps({"name": "d", "kind": "compiled", "cases": []}))
    with pytest.raises(TilewrightError, match='"gpu"'):
        read_suite(path)


def test_suites_hold_plain_data():
    for path in BENCHMARKS.glob("*.json"):
        keys = json.loads(path.read_text()).keys()
        assert {"name", "kind", "cases"} <= keys <= {"name", "kind", "cases", "peers", "each", "gpu"}


def test_devices_and_pipes_are_written_to_and_links_stay_links(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    check_writable(tmp_path / "pipe")
    write_json(tmp_path / "pipe", [1])
    assert os.read(reader, 100) == b"[\n 1\n]\n"
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "link.json").symlink_to(tmp_path / "target.json")
    write_json(tmp_path / "link.json", {})
    assert (tmp_path / "link.json").is_symlink()
    assert (tmp_path / "target.json").read_text() == "{}\n"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link.json", "pipe", "target.json"]


@pytest.mark.parametrize(
    ("case", "subject"),
    [({"rung": "h17", "what": "x"}, "h17"), ({"what": "errors"}, "errors"), ({"m": 4, "n": 4}, "precision-sizes")],
)
def test_every_record_has_a_subject(case, subject):
    assert who({"suite": "precision-sizes", "case": case}) == subject


def test_a_case_may_name_its_own_peers(monkeypatch):
    met = []

    def climb(steps, *, peers, **options):
        met.append([peer.id for peer in peers])
        return []

    monkeypatch.setattr("tilewright.lab.climb_gpu.climb_on_gpu", climb)
    run = Run(find_gpu("H200"), 0.1, lambda done, text: None)
    case = {"rungs": "f12", "m": 64, "n": 64, "k": 64}
    for peers in ({}, {"peers": "none"}):
        KINDS["peers"].make({"name": "s", "kind": "peers", "peers": "triton", "cases": [case | peers]}, run)
    assert met == [["triton"], []]
