"""Records know what they measured: kernels and suite by their hashes, and what no longer matches is said."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tilewright.cli import main
from tilewright.gpus import find_gpu
from tilewright.lab import fingerprint
from tilewright.lab.fingerprint import (
    CHANGED,
    NO_SUITE,
    REDEFINED,
    REFITTED,
    REPLANNED,
    UNKNOWN,
    kernel_hash,
    rungs_of,
    stamp,
    why_stale,
)
from tilewright.lab.kinds import KINDS, Kind
from tilewright.lab.record import read_records, write_json
from tilewright.lab.stale import NEVER, find_stale
from tilewright.lab.suite import missing_cases, read_suite, run_suite, suites
from tilewright.ladder import ATTENTION_RUNGS, GEMM_RUNGS, HOPPER_RUNGS, SPLIT_RUNGS, find_rung, rungs_for
from tilewright.report.cells import DAGGER
from tilewright.report.regions import fill, pages_of

ROOT = Path(__file__).parents[2]
SUITE = {"name": "fp32-ladder", "kind": "times", "cases": [{"m": 64, "n": 64, "k": 64}]}


def record(rung: str = "f05_tile2d", suite: str = "fp32-ladder") -> dict:
    return {
        "suite": suite, "case": {"rung": rung, "config_text": "32x32", "dtype": "f32"}, "result": {"right": True},
        "provenance": {"date": "2026-01-01T00:00:00+00:00", "gpu": "NVIDIA H200", "nvrtc": "13.0"},
    }  # fmt: skip


@pytest.fixture
def edit(monkeypatch):
    """edit(name, new): the device code has another text for a file."""

    def change(name: str, alter) -> None:
        real = fingerprint.gather

        def gathered(text, folders):
            return tuple((n, alter(t) if n == name else t) for n, t in real(text, folders))

        monkeypatch.setattr(fingerprint, "gather", gathered)
        fingerprint._digest.cache_clear()

    yield change
    monkeypatch.undo()
    fingerprint._digest.cache_clear()


def test_a_record_holds_until_its_kernel_changes(edit):
    mine, other = stamp([record("f05_tile2d"), record("f03_shared")], SUITE, 12.0)
    assert why_stale(mine, SUITE) == why_stale(other, SUITE) == ""
    assert mine["provenance"]["run_seconds"] == 12.0
    edit("gemm/f05_tile2d.cuh", lambda text: text + "\nstatic int more;")
    assert why_stale(mine, SUITE) == CHANGED
    assert why_stale(other, SUITE) == ""


def test_a_shared_file_counts_and_comments_and_line_breaks_do_not(edit):
    before = kernel_hash([find_rung("f05")])
    edit("tile/copy.cuh", lambda text: "// a word more\n" + text.replace("{", "{\n  /* here */ "))
    assert kernel_hash([find_rung("f05")]) == before
    edit("tile/copy.cuh", lambda text: text + "\nstatic int more;")
    assert kernel_hash([find_rung("f05")]) != before


def test_what_is_generated_counts(monkeypatch):
    before = kernel_hash([find_rung("f05")])
    monkeypatch.setattr(fingerprint, "fused_headers", lambda problem: {"gemm/fused.cuh": "another epilogue"})
    fingerprint._digest.cache_clear()
    try:
        assert kernel_hash([find_rung("f05")]) != before
    finally:
        fingerprint._digest.cache_clear()


def test_a_suite_that_is_defined_anew_makes_its_records_stale():
    (mine,) = stamp([record()], SUITE, 1.0)
    assert why_stale(mine, SUITE | {"cases": []}) == REDEFINED
    assert why_stale(mine, None) == NO_SUITE
    assert why_stale(record(), SUITE) == UNKNOWN


PRODUCT = {"m": 512, "n": 512, "k": 512, "layout": "nt", "dtype": "bf16"}


@pytest.mark.parametrize(
    ("kind", "case"),
    [
        ("beside-torch", PRODUCT),
        ("times", PRODUCT | {"planned": True}),
        ("fp8", {"m": 64, "n": 256, "k": 256, "scales": "tensor"}),
        ("grouped", {"form": "rows", "groups": 2, "sizes": 64, "n": 256, "k": 256, "layout": "nn", "dtype": "bf16"}),
        ("attention", {"batch": 1, "heads": 4, "seq": 512, "d_head": 64, "planned": True}),
        ("attention-decode", {"batch": 1, "heads": 8, "heads_kv": 8, "queries": 1, "keys": 512, "d_head": 64}),
    ],
)
def test_a_record_of_a_planned_case_holds_until_its_plan_changes(kind, case):
    suite = {"name": "planned", "kind": kind, "cases": [case]}
    plan = KINDS[kind].planned(case, find_gpu("H200"))
    ran = record(plan.rung.id, "planned")
    (mine,) = stamp([ran | {"case": case | {"rung": plan.rung.id, "config_text": str(plan.config)}}], suite, 1.0, case)
    assert why_stale(mine, suite) == ""
    moved = mine | {"case": mine["case"] | {"config_text": "another"}}
    assert why_stale(moved, suite) == REPLANNED
    assert missing_cases(suite, [mine]) == []
    assert missing_cases(suite, [moved]) == [case]
    elsewhere = moved | {"provenance": moved["provenance"] | {"gpu": "a board that nobody listed"}}
    assert why_stale(elsewhere, suite) == "", "no plan of such a board is known"


def test_a_record_of_the_model_holds_until_its_constants_change(tmp_path, monkeypatch):
    told = {"case": {"kind": "bf16", "chosen_by": "the model"}, "provenance": {}}
    (mine,) = stamp([told], SUITE, 1.0)
    assert why_stale(mine, SUITE) == ""
    (tmp_path / "fits.json").write_text("{}")
    monkeypatch.setattr(fingerprint, "FITTED", tmp_path / "fits.json")
    assert why_stale(mine, SUITE) == REFITTED


def test_every_record_that_is_kept_has_a_suite_that_makes_it():
    found = find_stale(ROOT / "benchmarks" / "results")
    assert [entry.suite for entry in found if not entry.measurable] == []


def test_all_suites_together_take_an_hour_of_a_gpu_by_their_own_estimates(tmp_path):
    every = find_stale(tmp_path)
    assert {entry.suite for entry in every} == set(suites())
    assert sum(entry.seconds for entry in every if entry.needs_gpu) < 3600


def test_a_record_is_of_the_rungs_that_it_may_have_run():
    assert rungs_of({"rung": "f05_tile2d"}) == rungs_of({"rung": "f05"}) == (find_rung("f05"),)
    assert rungs_of({"peer": "cublas"}) == ()
    assert rungs_of({"call": "tw.matmul(a, b)", "dtype": "bf16"}) == rungs_for("bf16")
    assert rungs_of({"d_head": 128, "dtype": "bf16"}) == ATTENTION_RUNGS
    thin = {"v01_row_dots", "v02_wide_sums"}
    assert thin <= {rung.id for rung in rungs_of({"dtype": "f32", "seed": 12})}, "random shapes may be of few rows"
    assert rungs_of({"dtype": "f32", "precision": "fp32x3"}) == rungs_for("f32", "fp32x3")
    every = (*GEMM_RUNGS, *ATTENTION_RUNGS, *HOPPER_RUNGS, *SPLIT_RUNGS)
    assert len({kernel_hash([rung]) for rung in every}) == len(every)


def test_a_record_of_other_peoples_code_outlives_a_change_of_the_cutlass_peer(edit):
    cases = [{"row": "naive product, 512 cubed"}, {"peer": "triton"}, {"peer": "cutlass"}, {"peer": "cutlass_tuned"}]
    made = stamp([record() | {"case": case} for case in cases], SUITE, 1.0)
    assert [why_stale(each, SUITE) for each in made] == [""] * 4
    edit("peers/cutlass.cuh", lambda text: text + "\nstatic int more;")
    assert [why_stale(each, SUITE) for each in made] == ["", "", CHANGED, CHANGED]


LLAMA = {"block": "llama", "pass": "training", "dtype": "bf16"}
BLOCKS = {"plain": LLAMA, "attends": LLAMA | {"attention": True}, "encoder": LLAMA | {"block": "encoder"}}


@pytest.mark.parametrize(
    ("file", "stale"),
    [
        ("gemm/gated.cuh", ["plain", "attends"]),
        ("attention/rotary.cuh", ["plain", "attends"]),
        ("tile/fused_math.cuh", ["plain", "attends", "encoder"]),
        ("attention/hopper.cuh", ["attends"]),
        ("attention/split.cuh", ["attends"]),
        ("attention/backward_hopper.cuh", ["attends"]),
        ("attention/backward_finish.cuh", ["attends"]),
        ("gemm/h17_ping_pong.cuh", ["plain", "attends", "encoder"]),
    ],
)
def test_a_record_of_a_block_holds_until_any_kernel_of_it_changes(edit, file, stale):
    made = {name: stamp([record() | {"case": case}], SUITE, 1.0)[0] for name, case in BLOCKS.items()}
    assert {why_stale(each, SUITE) for each in made.values()} == {""}
    edit(file, lambda text: text + "\nstatic int more;")
    assert [name for name, each in made.items() if why_stale(each, SUITE) == CHANGED] == stale


def test_a_record_of_a_block_holds_until_what_is_generated_for_it_changes(monkeypatch):
    made = {name: stamp([record() | {"case": case}], SUITE, 1.0)[0] for name, case in BLOCKS.items()}
    real = fingerprint.gate_text
    monkeypatch.setattr(fingerprint, "gate_text", lambda *how: real(*how) + "int more;" * how[2])
    assert [name for name, each in made.items() if why_stale(each, SUITE) == CHANGED] == ["plain", "attends"]


def test_stale_suites_are_listed_with_seconds(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    for name in ("fresh", "old", "never"):
        (tmp_path / "benchmarks" / f"{name}.json").write_text(json.dumps(SUITE | {"name": name}))
    suite = {name: read_suite(path) for name, path in suites().items()}
    results = tmp_path / "benchmarks" / "results"
    write_json(results / "a.json", stamp([record(suite="fresh")], suite["fresh"], 5.0))
    write_json(results / "b.json", [record(suite="old")] * 3)
    write_json(results / "c.json", [record(suite="gone")])
    found = {entry.suite: entry for entry in find_stale(results)}
    assert found.keys() == {"old", "never", "gone"}
    assert (found["old"].stale, found["old"].why, found["old"].known) == (3, UNKNOWN, False)
    assert found["old"].seconds == 3 * KINDS["times"].record_s
    assert (found["never"].records, found["never"].why) == (0, NEVER)
    assert not found["gone"].measurable
    write_json(results / "b.json", stamp([record(suite="old")], suite["old"] | {"cases": [{}]}, 77.0))
    assert {entry.suite: (entry.seconds, entry.known) for entry in find_stale(results)}["old"] == (77.0, True)


def test_records_of_each_gpu_are_judged_by_themselves(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "fp32-ladder.json").write_text(json.dumps(SUITE))
    home, other = record(), record()
    other["provenance"]["gpu"] = "NVIDIA H100 80GB HBM3"
    write_json(tmp_path / "H100.json", [other])
    assert [(entry.name, entry.why) for entry in find_stale(tmp_path)] == [("fp32-ladder on H100 80GB HBM3", UNKNOWN)]
    write_json(tmp_path / "H200.json", stamp([home], SUITE, 5.0))
    assert [entry.name for entry in find_stale(tmp_path)] == ["fp32-ladder on H100 80GB HBM3"]


@pytest.fixture
def made_up(monkeypatch):
    """The cases that runs of suites of the kind "made up" were asked for; each makes a record of its rung."""
    ran = []

    def make(suite, run):
        ran.extend(case["rung"] for case in suite["cases"])
        return [record(case["rung"], suite["name"]) for case in suite["cases"]]

    monkeypatch.setitem(KINDS, "made up", Kind(make, 1, needs_gpu=False))
    return ran


def test_only_cases_that_are_missing_or_stale_are_run_again(made_up, tmp_path, edit):
    suite = {"name": "x", "kind": "made up", "gpu": "H200", "cases": [{"rung": "f03_shared"}, {"rung": "f05_tile2d"}]}
    path, records = run_suite(suite, tmp_path)
    assert made_up == ["f03_shared", "f05_tile2d"]
    more = suite | {"cases": [{"rung": "f02_coalesced"}, *suite["cases"]]}
    assert [why_stale(each, more) for each in records] == ["", ""], "a case more changes nothing about the others"
    made_up.clear()
    edit("gemm/f05_tile2d.cuh", lambda text: text + "\nstatic int more;")
    again, records = run_suite(more, tmp_path, keep=True)
    assert (again, made_up) == (path, ["f02_coalesced", "f05_tile2d"])
    assert [each["case"]["rung"] for each in read_records(path)] == ["f02_coalesced", "f03_shared", "f05_tile2d"]
    assert not missing_cases(more, records)
    made_up.clear()
    assert run_suite(more, tmp_path, keep=True) == (path, records)
    assert run_suite(more, tmp_path)[0] == path
    assert made_up == ["f02_coalesced", "f03_shared", "f05_tile2d"], "without keep all of them"


def test_figures_of_a_peer_that_is_missing_now_are_kept_as_they_are(monkeypatch, tmp_path, edit):
    there = [True]

    def make(suite, run):
        made = []
        for case in suite["cases"]:
            peer = {"peer": "cutlass", "m": 64, "config": {"tile_m": 128} if there[0] else {}}
            right = {"right": True, "ms": 1.0} if there[0] else {"right": None, "reason": "CUTLASS is not installed"}
            mine = record(case["rung"], suite["name"])
            made += [mine, mine | {"case": peer, "result": right}]
        return made

    monkeypatch.setitem(KINDS, "made up", Kind(make, 1, needs_gpu=False))
    suite = {"name": "x", "kind": "made up", "gpu": "H200", "cases": [{"rung": "f03_shared"}]}
    path, (_, peer) = run_suite(suite, tmp_path)
    there[0] = False
    edit("gemm/f03_shared.cuh", lambda text: text + "\nstatic int more;")
    _, records = run_suite(suite, tmp_path, keep=True)
    assert [(each["case"], each["result"]) for each in records[1:]] == [(peer["case"], peer["result"])]
    assert records[1]["provenance"]["kernels"] == peer["provenance"]["kernels"]
    assert read_records(path) == records
    _, records = run_suite(suite, tmp_path)
    assert records[1]["result"]["right"] is None, "a whole run says what it found"


def test_a_run_that_was_stopped_goes_on_where_it_stopped(made_up, tmp_path):
    suite = {"name": "x", "kind": "made up", "gpu": "H200", "cases": [{"rung": "f03_shared"}, {"rung": "f05_tile2d"}]}
    path, records = run_suite(suite, tmp_path)
    path.unlink()
    write_json(path.with_name(path.name + ".part"), records[:1])
    made_up.clear()
    run_suite(suite, tmp_path, keep=True)
    assert made_up == ["f05_tile2d"]
    assert len(read_records(path)) == 2


def test_cases_that_were_never_measured_are_listed_with_their_share_of_the_time(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    results = tmp_path / "benchmarks" / "results"
    results.mkdir(parents=True)
    cases = [{"m": size, "n": size, "k": size} for size in (64, 128, 256, 512)]
    suite = SUITE | {"cases": cases}
    (tmp_path / "benchmarks" / "fp32-ladder.json").write_text(json.dumps(suite))
    write_json(results / "a.json", [each for case in cases[:3] for each in stamp([record()], suite, 9.0, case)])
    (entry,) = find_stale(results)
    assert (entry.records, entry.stale, entry.why, entry.seconds) == (3, 0, f"1 of 4 cases {NEVER}", 3.0)


def command(monkeypatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["tilewright", *words])
    with pytest.raises(SystemExit) as left:
        main()
    return left.value.code


def test_bench_lists_what_is_stale_and_runs_it(tmp_path, monkeypatch, capsys):
    from tilewright.lab import suite as module

    monkeypatch.chdir(tmp_path)
    results = tmp_path / "benchmarks" / "results"
    results.mkdir(parents=True)
    (tmp_path / "benchmarks" / "old.json").write_text(json.dumps(SUITE | {"name": "old"}))
    write_json(results / "b.json", [record(suite="old")])
    assert command(monkeypatch, "bench", "--stale", "--json", "-") == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert (told["suite"], told["stale"], told["why"]) == ("old", 1, UNKNOWN)

    def run(suite, out, seconds, say, keep):
        assert keep
        records = stamp([record(suite="old")], suite, 3.0)
        write_json(out / "b.json", records)
        return out / "b.json", records

    monkeypatch.setattr(module, "run_suite", run)
    assert command(monkeypatch, "bench", "--stale", "--run") == 0
    assert "provenance" in read_records(results / "b.json")[0]
    capsys.readouterr()
    assert command(monkeypatch, "bench", "--stale") == 0
    assert "all records" in capsys.readouterr().out
    assert command(monkeypatch, "bench", "--run") == 2
    assert command(monkeypatch, "bench") == 2


def test_a_table_marks_stale_rows_and_says_why(tmp_path):
    results = tmp_path / "results"
    (tmp_path / "fp32-ladder.json").write_text(json.dumps(SUITE))
    fresh, changed = stamp([record("f05_tile2d"), record("f03_shared")], SUITE, 1.0)
    changed["provenance"] = changed["provenance"] | {"kernels": "another"}
    region = "<!-- records: fp32-ladder -->\n<!-- end -->\n"
    write_json(results / "a.json", [fresh])
    assert DAGGER not in fill(region, results)
    write_json(results / "a.json", [fresh, changed])
    told = fill(region, results)
    assert f"| f03_shared {DAGGER} |" in told
    assert "| f05_tile2d |" in told
    assert f"*{DAGGER} The rows so marked are stale: {CHANGED}." in told
    write_json(results / "a.json", [changed])
    told = fill(region, results)
    assert "| f03_shared |" in told
    assert f"*{DAGGER} Stale: {CHANGED}. `tilewright bench --stale --run` measures again.*" in told


def test_every_table_of_the_pages_agrees_with_its_records_and_marks_what_is_stale():
    """After a change of a kernel, or of records: tilewright report --write. It needs no GPU."""
    for page in pages_of(ROOT):
        text = page.read_text(encoding="utf-8")
        assert fill(text, ROOT / "benchmarks" / "results") == text, page.name
