"""The heuristic's loss over shapes held out: how it is reckoned, and that the record and the docs hold it."""

from __future__ import annotations

import json
from math import exp, log
from pathlib import Path
from statistics import fmean

import pytest

from tilewright.errors import TilewrightError
from tilewright.gemm.classes import class_of
from tilewright.gemm.family import PRODUCTS
from tilewright.gpus import GPUS
from tilewright.lab.heldout import TABLE, loss_record, loss_records, problem_of, without
from tilewright.lab.record import find_records
from tilewright.lab.suite import read_suite
from tilewright.plan.choose import choose, decide
from tilewright.plan.entries import Entry, Timed, worded
from tilewright.plan.tables import shipped

ROOT = Path(__file__).parents[2]
H200 = GPUS["H200"]
SUITE = read_suite(ROOT / "benchmarks" / "tune-heldout.json")
CASES = SUITE["cases"]
CASE = {"m": 640, "n": 512, "k": 512, "layout": "nn", "dtype": "bf16"}


def is_modelled(case: dict) -> bool:
    """Whether the model chooses for the case, and not neighbours: its class no longer ships."""
    return PRODUCTS.is_modelled(problem_of(case), H200)


def measured(case: dict, *times: float) -> tuple[Entry, dict[str, Entry]]:
    """An entry for the case whose first time is that of the heuristic's choice, and the table that it chooses from."""
    known = without(shipped("H200").of(PRODUCTS), [case])
    choice = choose(PRODUCTS, problem_of(case), H200, [("known", known)])
    rivals = [timed for timed in next(iter(known.values())).timed if timed.config != choice.config]
    timed = [Timed(choice.rung.id, choice.config, times[0], choice.packs)]
    timed += [Timed(rival.rung, rival.config, ms) for rival, ms in zip(rivals, times[1:], strict=False)]
    klass = class_of(problem_of(case))
    return Entry(klass, (1, 1, 1, 1), tuple(sorted(timed, key=lambda t: t.ms)), seconds=2.0), known


def test_the_loss_is_the_choices_time_over_the_fastests():
    entry, known = measured(CASE, 0.06, 0.05, 0.07)
    result = loss_record("s", CASE, entry, known, H200)["result"]
    assert (result["us"], result["tuned_us"], result["loss"], result["candidates"]) == (60.0, 50.0, 0.2, 3)
    best, known = measured(CASE, 0.04, 0.05)
    assert loss_record("s", CASE, best, known, H200)["result"]["loss"] == 0


def test_a_choice_that_was_not_measured_is_no_loss_of_nothing():
    entry, known = measured(CASE, 0.06, 0.05)
    others = tuple(timed for timed in entry.timed if timed.ms != 0.06)
    with pytest.raises(TilewrightError, match="was not measured"):
        loss_record("s", CASE, Entry(entry.klass, entry.shape, others), known, H200)


def test_what_suits_the_model_is_judged_by_the_plan_that_it_makes():
    case = {"m": 2744, "n": 1248, "k": 3608, "layout": "nt", "dtype": "bf16"}
    problem = problem_of(case)
    assert PRODUCTS.is_modelled(problem, H200)
    known = without(shipped("H200").of(PRODUCTS), [case])
    assert decide(PRODUCTS, problem, H200, [(TABLE, known)]).source == "cost model"
    assert choose(PRODUCTS, problem, H200, [("another table", known)]) is not None


def test_the_means_of_a_type_are_geometric():
    cases = [CASE, CASE | {"m": 320}]
    known = without(shipped("H200").of(PRODUCTS), cases)
    both = {}
    for case, ms in zip(cases, (0.06, 0.05), strict=True):
        entry, _ = measured(case, ms, 0.05)
        both[entry.key] = entry
    total, *_ = loss_records("s", cases, both, known, H200, {})
    assert total["result"]["shapes"] == 2
    assert total["result"]["mean_loss"] == pytest.approx(1.2**0.5 - 1, abs=1e-5)
    assert total["result"]["largest_loss"] == 0.2


def test_no_class_of_the_shapes_held_out_is_in_the_table_that_is_asked():
    table = shipped("H200").of(PRODUCTS)
    known = without(table, CASES)
    held = {str(class_of(problem_of(case))) for case in CASES if not is_modelled(case)}
    assert held <= set(table), "they ship, and are taken out here"
    assert len(known) == len(table) - len(held)
    assert not held & set(known)


def test_the_loss_is_no_more_than_the_record_says():
    """Reckoned anew: a choice that is the record's loses what that says. One that has changed since loses what the
    table knows of it, where it knows it; it counts for nothing here where it does not, so most must be left."""
    table = shipped("H200").of(PRODUCTS)
    known = without(table, CASES)
    results = ROOT / "benchmarks" / "results"
    whole = {r["case"]["dtype"]: r["result"] for r in find_records(results, SUITE["name"])}
    shapes = find_records(results, f"{SUITE['name']}-shapes")
    for dtype, most, least in (("bf16", 60, 40), ("f32", 20, 12)):
        losses = {"now": [], "recorded": []}
        for case, shape in zip(CASES, shapes, strict=True):
            if case["dtype"] != dtype:
                continue
            now = decide(PRODUCTS, problem_of(case), H200, [(TABLE, known)])
            recorded = shape["result"]["loss"]
            if (now.rung.id, worded(now.config, now.packs)) == (shape["case"]["rung"], shape["case"]["config_text"]):
                loss = recorded
            else:
                entry = table.get(str(class_of(problem_of(case))))
                try:
                    loss = entry and loss_record("s", case, entry, known, H200)["result"]["loss"]
                except TilewrightError:
                    loss = None
            if loss is not None:
                losses["now"].append(loss)
                losses["recorded"].append(recorded)
        assert whole[dtype]["shapes"] == most
        assert len(losses["now"]) >= least, "run `tilewright bench tune-heldout` on an H200: the heuristic has changed"
        now, recorded = (exp(fmean(log(1 + loss) for loss in each)) - 1 for each in losses.values())
        assert now < recorded + 0.02  # two runs of one kernel differ by as much
        if len(losses["now"]) == most:
            assert now == pytest.approx(whole[dtype]["mean_loss"], abs=0.02)


def test_the_record_is_whole():
    shapes = find_records(ROOT / "benchmarks" / "results", f"{SUITE['name']}-shapes")
    told = [{name: record["case"][name] for name in CASE} for record in shapes]
    assert json.dumps(told, sort_keys=True) == json.dumps(CASES, sort_keys=True)
    assert all(record["result"]["us"] >= record["result"]["tuned_us"] > 0 for record in shapes)
