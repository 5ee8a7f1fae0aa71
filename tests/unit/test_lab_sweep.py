"""Sweeps: which configs a suite times, and what becomes of them; the GPU's part is replaced."""

from __future__ import annotations

import types

import pytest

from tilewright.errors import WrongResult
from tilewright.gemm.rung import Rung
from tilewright.gpus import GPUS
from tilewright.lab import sweep
from tilewright.lab.kinds import KINDS, attention_steps
from tilewright.lab.suite import find_suite, read_suite
from tilewright.report.tables import PAGES, markdown

SWEEPS = ("fp32-f12-sweep", "precision-sizes", "bf16-wgmma-tiles", "bf16-h17-sweep")


@pytest.mark.parametrize("name", SWEEPS)
def test_a_case_names_configs_of_its_rungs(name):
    case = read_suite(find_suite(name))["cases"][0]
    found = sweep.candidates(case, GPUS["H200"])
    assert found
    for candidate in found:
        problem = sweep.problem_of(case)
        assert candidate.rung.precision == problem.precision
        assert problem.dtype in candidate.rung.dtypes
    by_rung = [candidate.rung.id for candidate in found]
    most = case["tiles"] * case.get("of_a_tile", 1) if "tiles" in case else case["keep"]
    assert max(by_rung.count(rung) for rung in by_rung) <= most


def test_a_sweep_of_tiles_times_each_tile_once():
    case = read_suite(find_suite("bf16-wgmma-tiles"))["cases"][1]
    found = sweep.candidates(case, GPUS["H200"])
    tiles = [(candidate.rung.id, candidate.config.tile_m, candidate.config.tile_n) for candidate in found]
    assert len(set(tiles)) == len(tiles) == 2 * case["tiles"]
    assert ("h12_wgmma", 128, 192) in tiles


def test_a_sweep_of_a_rungs_space_has_as_many_configs_of_each_tile_none_twice():
    suite = read_suite(find_suite("bf16-h17-sweep"))
    (case,) = suite["cases"]
    found = sweep.candidates(case, GPUS["H200"])
    tiles = [(candidate.config.tile_m, candidate.config.tile_n) for candidate in found]
    assert {tiles.count(tile) for tile in tiles} == {case["of_a_tile"]}
    assert len({candidate.text for candidate in found}) == len(found) == KINDS["sweep"].parts(suite)
    assert {(candidate.config.cluster_m, candidate.config.cluster_n) for candidate in found} == {(1, 1), (1, 2), (2, 1)}
    assert found == sweep.candidates(case, GPUS["H200"]), "the same each time"


def test_the_kernels_of_a_sweep_are_known_before_its_first_case(monkeypatch):
    seen = []
    monkeypatch.setattr(Rung, "compile", lambda rung, problem, config, arch: seen.append((rung.id, config)))
    (case,) = read_suite(find_suite("bf16-h17-sweep"))["cases"]
    for compile_one in sweep.kernels([case], GPUS["H200"]):
        compile_one()
    assert seen == [(candidate.rung.id, candidate.config) for candidate in sweep.candidates(case, GPUS["H200"])]


def test_a_suite_may_want_every_config_of_an_attention_rung():
    suite = read_suite(find_suite("attention-a24-sweep"))
    steps = attention_steps(suite, GPUS["H200"])
    texts = [str(step.config) for step in steps]
    assert len(set(texts)) == len(texts) > 30
    assert str(steps[0].rung.default(steps[0].problem, GPUS["H200"].arch)) in texts
    assert all(step.rung.why_not(step.problem, step.config, GPUS["H200"].arch) is None for step in steps)


@pytest.fixture
def gpu(monkeypatch):
    """A GPU whose third config gives a wrong product."""
    where = types.SimpleNamespace(gpu=GPUS["H200"], ordinal=0, name="NVIDIA H200", arch=GPUS["H200"].arch)
    library = types.SimpleNamespace(name="torch", version="torch 2")
    monkeypatch.setattr(sweep, "device", lambda ordinal: where)
    monkeypatch.setattr(sweep, "needed_reference", lambda ordinal: library)
    monkeypatch.setattr(sweep, "Ground", lambda *given: None)
    monkeypatch.setattr(sweep, "origin_of", lambda *given: {"date": "2026-01-01T00:00:00+00:00", "gpu": "NVIDIA H200"})
    taken: list[int] = []

    def timed(candidate, ground, seconds):
        taken.append(1)
        if len(taken) == 3:
            raise WrongResult(f"{candidate} is wrong")
        us = 100.0 / len(taken)
        return {"rung": candidate.rung.id, "config_text": str(candidate.config), "min_blocks": 1, "packs": [], "us": us,
                "ms": us / 1e3, "reference_ms": 0.1, "ratio": 1.0, "ratio_p10": 0.9, "ratio_p90": 1.1,
                "ratio_to_torch": 1.0, "ratio_to_cublas": 1.0}  # fmt: skip

    monkeypatch.setattr(sweep, "_timed", timed)


def test_a_record_has_its_configs_in_order_and_says_what_was_wrong(gpu):
    cases = read_suite(find_suite("fp32-f12-sweep"))["cases"][:1]
    (record,) = sweep.sweep_records("fp32-f12-sweep", cases, say=lambda *told: None)
    times = [config["us"] for config in record["result"]["configs"]]
    assert times == sorted(times)
    assert len(times) == cases[0]["keep"] - 1
    assert record["result"]["right"] is False
    assert "is wrong" in record["result"]["reason"]


def test_each_config_may_have_a_record_of_its_own(gpu):
    suite = read_suite(find_suite("bf16-wgmma-tiles"))
    records = sweep.sweep_records("bf16-wgmma-tiles", suite["cases"][:1], say=lambda *told: None, each=suite["each"])
    assert len(records) > 3
    told = markdown(PAGES["bf16-wgmma-tiles"], records)
    assert all(record["case"]["config_text"] in told for record in records)


def test_both_rungs_stand_in_the_table_of_sizes(gpu):
    cases = read_suite(find_suite("precision-sizes"))["cases"][:1]
    (record,) = sweep.sweep_records("precision-sizes", cases, say=lambda *told: None)
    assert {config["rung"] for config in record["result"]["configs"]} == {"t02_fp32x3", "t03_fp32x3_split"}
    assert "100.0%" in markdown(PAGES["precision-sizes"], [record])
