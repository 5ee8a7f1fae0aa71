"""Climbing with no GPU: what is printed and recorded, and what a wrong rung does to it."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest
from wrong_launches import launch_wrongly, scaled_by

from tilewright.cli import main
from tilewright.gemm.problem import GemmProblem
from tilewright.gemm.rungs import find_rung, rungs_for
from tilewright.gpus import GPUS
from tilewright.lab.ladder import Step, climb_on_emulator, prepare, random_operands, run_checked
from tilewright.lab.record import validate

FP32 = [rung.id for rung in rungs_for("f32")]
SMALL = ("--m", "128", "--n", "256", "--k", "64")


@pytest.fixture
def climb(monkeypatch, capsys, tmp_path):
    """Runs `tilewright ladder gemm --emulator`: (status, stdout, stderr, records or None)."""

    def call(*arguments: str):
        path = tmp_path / "climb.json"
        monkeypatch.setattr(
            sys, "argv", ["tilewright", "ladder", "gemm", "--emulator", "--json", str(path), *arguments]
        )
        with pytest.raises(SystemExit) as left:
            main()
        captured = capsys.readouterr()
        records = json.loads(path.read_text()) if path.exists() else None
        return left.value.code, captured.out, captured.err, records

    return call


def test_all_rungs_climb_right_and_no_time_is_ever_printed(climb):
    status, out, err, records = climb(*SMALL)
    assert status == 0, err
    validate(records, "climb")
    assert [record["case"]["rung"] for record in records] == FP32
    assert all(record["result"]["right"] for record in records)
    assert all(record["result"]["counters"]["flops"]["ffma"] >= 2 * 128 * 256 * 64 for record in records)
    for rung in FP32:
        assert out.count(rung) == 2, "once in either table"
    assert max(map(len, out.splitlines())) <= 100
    assert "…" not in out
    for word in ("TFLOP/s", " ms", "seconds"):
        assert word not in out
    for record in records:
        assert not {"ms", "tflops", "seconds"} & record["result"].keys()
        assert record["provenance"]["machine_kind"] == "emulator"


def test_the_tables_hold_what_the_rungs_teach(climb):
    _, _, _, records = climb(*SMALL, "--rungs", "f01..f03,f09")
    naive, coalesced, shared, transposed = (record["result"] for record in records)
    assert naive["sectors_per_request"] == 16.5
    assert coalesced["sectors_per_request"] == 2.5
    assert naive["wavefronts_per_request"] is None
    assert shared["wavefronts_per_request"] == shared["ideal_wavefronts_per_request"] == 1.0
    assert naive["flop_per_byte"] < coalesced["flop_per_byte"] < shared["flop_per_byte"] < transposed["flop_per_byte"]
    assert naive["bound_by"] == "memory"
    assert 0 < naive["bound_share_of_peak"] < coalesced["bound_share_of_peak"] < shared["bound_share_of_peak"] <= 1
    for result in (naive, coalesced, shared, transposed):
        parts = result["instructions_per_thread"]
        assert sum(parts.values()) * result["counters"]["threads"] == result["counters"]["thread_instructions"]
    assert naive["instructions_per_thread"]["fp32"] >= 64  # one product a step of k


def test_what_bulk_copies_move_is_traffic(climb):
    """h13 copies 16 bytes per thread, h15 loads and stores by TMA: the same tiles, so the same bytes."""
    _, _, _, records = climb("--dtype", "bf16", "--size", "256", "--rungs", "h13,h15")
    by_threads, by_boxes = (record["result"] for record in records)
    moved = 2 * (128 + 256) * 256 * 2 + 256 * 256 * 2  # two tiles' operands, and the result
    assert by_threads["flop_per_byte"] == by_boxes["flop_per_byte"] == 2 * 256**3 / moved


def test_occupancy_is_that_of_the_gpu_named(climb):
    """48 warps an SM and 1024 threads per block: GEMM-B's two thirds; 64 warps: all."""
    ada = climb(*SMALL, "--rungs", "f03", "--gpu", "rtx 4090")[3][0]
    hopper = climb(*SMALL, "--rungs", "f03", "--gpu", "H200")[3][0]
    assert ada["result"]["occupancy"] == pytest.approx(2 / 3)
    assert hopper["result"]["occupancy"] == 1.0
    assert (ada["provenance"]["gpu"], ada["provenance"]["arch"]) == ("RTX 4090", "sm_89")


def test_a_ragged_thin_and_transposed_climb_is_right(climb):
    status, _, err, records = climb("--m", "65", "--n", "3", "--k", "17", "--layout", "tn", "--rungs", "f02,f06,f12")
    assert status == 0, err
    assert [record["case"]["layout"] for record in records] == ["tn"] * 3


def test_a_wrong_rung_is_named_and_the_climb_leaves_with_status_1(climb, monkeypatch):
    launch_wrongly(
        monkeypatch,
        params=lambda template, _, rung: scaled_by(template, 1.001) if rung.id == "f02_coalesced" else template,
    )
    status, out, err, records = climb(*SMALL, "--rungs", "f01..f03")
    assert status == 1
    assert "WRONG: f02_coalesced: at (" in err
    assert out.count("WRONG") == 1
    assert [record["result"]["right"] for record in records] == [True, False, True]


def test_a_rung_that_faults_is_wrong_and_the_next_is_still_climbed(climb, monkeypatch):

    launch_wrongly(
        monkeypatch, lambda problem, rung: replace(problem, m=problem.m + 32) if rung.id == "f01_naive" else problem
    )
    status, _, err, records = climb("--size", "64", "--rungs", "f01,f02")
    assert status == 1
    assert "out_of_bounds" in err
    assert records[0]["result"]["max_error"] is None
    assert [record["result"]["right"] for record in records] == [False, True]


@pytest.mark.parametrize(("writes", "word"), [("band", "outside"), ("less", "unwritten")])
def test_guard_bands_and_unwritten_elements_count_as_wrong(writes, word):
    """An executor that runs the rung rightly, then harms the output buffer as a wrong rung would."""
    from tilewright.emu import Emulator

    class Harmful(Emulator):
        def download(self, address, nbytes):
            raw = super().download(address, nbytes).copy()
            words = raw.view("<u4")
            if writes == "band":
                words[-1] = 0
            else:
                words[words.size // 2] = words[0]
            return raw

    rung, problem = find_rung("f02"), GemmProblem.dense(32, 32, 8)
    kernel = rung.compile(problem, rung.default, GPUS["H200"].arch)
    given, step = prepare(problem), Step(rung, rung.default, problem)
    assert run_checked(step, kernel, Emulator(), given).ok
    verdict = run_checked(step, kernel, Harmful(), given)
    assert not verdict.ok
    assert word in verdict.reason


def test_progress_is_told_before_each_step_and_while_its_blocks_run():
    seen = []
    problem = GemmProblem.dense(32, 32 * 40, 8)  # 40 blocks of 1024 threads: 8 side by side
    steps = [Step(find_rung(name), find_rung(name).default, problem) for name in ("f01", "f02")]
    climb_on_emulator(steps, GPUS["A100"], say=lambda done, text: seen.append((done, text)))
    parts = [0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert [text for _, text in seen] == ["f01_naive"] * 6 + ["f02_coalesced"] * 6
    assert [done for done, _ in seen] == pytest.approx(parts + [1 + part for part in parts])


def test_operands_lie_as_the_layout_says_and_are_not_uniform():
    for layout in ("nn", "nt", "tn", "tt"):
        a, b = random_operands(GemmProblem.dense(8, 16, 24, layout=layout))
        assert (a.shape, b.shape) == ((8, 24), (24, 16))
        assert (a.flags.c_contiguous, b.flags.c_contiguous) == (layout[0] == "n", layout[1] == "n")
        assert min(a.std(), b.std()) > 0.5


def test_a_long_climb_is_announced_with_an_estimate(climb, monkeypatch):
    from tilewright.cli import climb as module

    monkeypatch.setattr(module, "LONG_S", 1e-6)
    _, _, err, _ = climb("--size", "32", "--rungs", "f02")
    assert "This takes about a minute on the emulator" in err
    small, large = (
        Step(find_rung("f12"), find_rung("f12").default, GemmProblem.dense(size, size, size)).emulation_seconds
        for size in (256, 4096)
    )
    assert large > 100 * small
