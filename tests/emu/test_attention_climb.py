"""The attention ladder climbed on the emulator: its records, what a missing barrier does, what the command prints."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest

from tilewright.attn.config import AttentionConfig
from tilewright.attn.problem import AttentionProblem
from tilewright.attn.rungs import find_attention_rung
from tilewright.cli import main
from tilewright.emu import Emulator
from tilewright.errors import ConfigRejected, EmulatorFault
from tilewright.gpus import find_gpu
from tilewright.jit import use_executor
from tilewright.jit.compile import compile_unit
from tilewright.lab.attention import AttentionStep, prepare_attention, run_attention_checked, select_attention_rungs
from tilewright.lab.attention_check import attention_reference, check_attention
from tilewright.lab.attention_gpu import small_problem
from tilewright.lab.ladder import climb_on_emulator

H200 = find_gpu("H200")


def test_records_say_what_is_known_without_a_gpu():
    problem = AttentionProblem.dense(1, 1, 64, 64, 32)
    rung = find_attention_rung("a16")
    step = AttentionStep(rung, AttentionConfig(32, 64, 32, 4, 2, 2, 2), problem)
    (record,) = climb_on_emulator([step], H200)
    result = record["result"]
    assert result["right"]
    assert result["wavefronts_per_request"] == result["ideal_wavefronts_per_request"]
    # 4 warps, each 2 tiles of 32 keys: 4 products m16n8k16 a step, 2 steps, for Q K^T and as many for P V
    assert result["instructions_per_thread"]["tensor"] == 2 * (4 * 2 + 4 * 2)
    assert not {"ms", "tflops", "ratio"} & set(result)
    assert record["case"]["config_text"] == str(step.config)


@pytest.mark.parametrize("barrier", ["barrier 1", "barrier 2"])
def test_a_missing_barrier_in_a03_is_caught(barrier):
    problem = AttentionProblem.dense(1, 1, 64, 96, 32)
    rung, config = find_attention_rung("a03"), AttentionConfig(32, 64, 32, 4)
    emulator = Emulator()
    with use_executor(emulator):  # to PTX only, here and below
        right = rung.compile(problem, config, H200.arch)
    name, text = next((n, t) for n, t in right.source.headers if n == rung.include)
    wrong_text = text.replace(f"__syncthreads();  // {barrier}\n", "\n")
    assert wrong_text != text
    headers = tuple((n, wrong_text if n == name else t) for n, t in right.source.headers)
    with use_executor(emulator):
        wrong = compile_unit(replace(right.source, headers=headers), H200.arch.name)
    step, given = AttentionStep(rung, config, problem), prepare_attention(problem)
    assert run_attention_checked(step, right, emulator, given).ok
    with pytest.raises(EmulatorFault) as caught:
        run_attention_checked(step, wrong, emulator, given)
    assert caught.value.hazard.kind in ("shared_race", "async_copy_not_waited", "uninitialised_shared_read")


def test_the_check_refuses_nan_zeros_neighbours_and_a_wrong_lse():
    problem = AttentionProblem.dense(1, 2, 20, 30, 32, is_causal=True, with_lse=True)
    given = prepare_attention(problem)
    right, lse = given.expected.out.astype(np.float32), given.expected.lse.astype(np.float32)
    assert check_attention(right, given.expected, "bf16", lse).ok
    for wrong in (np.full_like(right, np.nan), np.zeros_like(right), right[:, ::-1], right * 1.02):
        assert not check_attention(wrong, given.expected, "bf16").ok
    assert not check_attention(right, given.expected, "bf16", lse + 0.01).ok
    shifted = attention_reference(given.q, given.k, given.v, replace(problem, scale=2 * problem.scale))
    assert not check_attention(shifted.out.astype(np.float32), given.expected, "bf16").ok


def test_what_is_judged_small_runs_the_same_kernel_as_the_whole():
    rung, config = find_attention_rung("a16"), AttentionConfig(128, 128, 64, 4, 2, 2, 2)
    for seq, causal in ((4096, False), (16384, True), (1000, True), (77, False)):
        problem = AttentionProblem.dense(16, 16, seq, seq, 128, heads_kv=4, is_causal=causal)
        small = small_problem(problem, config)
        assert rung.constants(small, config) == rung.constants(problem, config)
        assert small.seq_q <= 448
        assert small.batch * small.heads_q <= 16


def test_rungs_are_chosen_by_number_and_range():
    assert [rung.id[:3] for rung in select_attention_rungs("a15..a17,a01")] == ["a15", "a16", "a17", "a01"]
    with pytest.raises(ConfigRejected, match="empty"):
        select_attention_rungs("a05..a03")
    with pytest.raises(ConfigRejected, match="a99"):
        select_attention_rungs("a99")


def test_the_command_climbs_without_a_gpu(monkeypatch, capsys, tmp_path):
    file = tmp_path / "climb.json"
    options = "--emulator --rungs a02,a17 --seqlen 40 --d-head 32 --causal --json"
    monkeypatch.setattr(sys, "argv", ["tilewright", "ladder", "attention", *options.split(), str(file)])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 0
    text = capsys.readouterr().out
    assert "a02_swizzle" in text
    assert "a17_lazy_rescale" in text
    assert file.read_text().count('"right": true') == 2


def test_a_long_climb_is_announced_by_the_rule_of_the_other_ladder(monkeypatch, capsys):
    from tilewright.cli import climb

    rung = find_attention_rung("a16")
    shapes = {rows: AttentionProblem.dense(1, 1, rows, rows, 32) for rows in (64, 8192)}
    small, large = (AttentionStep(rung, rung.default(p, H200.arch), p).emulation_seconds for p in shapes.values())
    assert large > 5 * small
    monkeypatch.setattr(climb, "LONG_S", small / 2)
    arguments = ["--emulator", "--rungs", "a16", "--seqlen", "64", "--d-head", "32"]
    monkeypatch.setattr(sys, "argv", ["tilewright", "ladder", "attention", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 0
    assert "This takes about a minute on the emulator" in capsys.readouterr().err
