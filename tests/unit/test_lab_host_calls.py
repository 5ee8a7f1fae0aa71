"""Host times beside the library's: pairs agree, goals are judged, a library that is not here is said."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import tilewright as tw
from tilewright.lab import host_calls, host_pairs
from tilewright.lab.host_calls import (
    CALLS,
    FIRST_PLAN,
    Pair,
    agree,
    host_call_records,
    in_words,
    least_disturbed,
    met,
    samples_of,
)
from tilewright.lab.record import went_wrong
from tilewright.lab.suite import find_suite, read_suite
from tilewright.report.tables import PAGES, markdown


def pair(ours=lambda: 1.0, theirs=lambda: 1.0, once: int = 0) -> Pair:
    return Pair(ours, theirs, lambda: None, lambda value: np.full(3, value), once)


@pytest.mark.parametrize(
    ("goal", "us", "reference", "holds", "words"),
    [
        ({"of_reference": 1.0}, 10.0, 10.0, True, "the library's"),
        ({"of_reference": 1.05}, 10.6, 10.0, False, "1.05 of the library's"),
        ({"of_reference": 1.0, "us": 20}, 19.0, 10.0, True, "the library's or 20 us"),
        ({"more_us": 60}, 71.0, 10.0, False, "the library's and 60 us"),
        ({"us": 5000}, 4000.0, None, True, "5000 us"),
        ({}, 1.0, 1.0, None, ""),
    ],
)
def test_a_goal_is_judged_and_told(goal, us, reference, holds, words):
    assert met(goal, us, reference) is holds
    assert in_words(goal) == words


def test_sides_take_turns_and_are_paired(monkeypatch):
    clock = iter(range(10**6))
    monkeypatch.setattr(host_calls.time, "perf_counter", lambda: next(clock) * 1e-3)
    order: list[str] = []
    taken = list(samples_of(pair(lambda: order.append("o"), lambda: order.append("t")), rounds=4))
    assert len(taken) == 4
    assert all(mine > 0 and its > 0 for mine, its in taken)
    rest = "".join(order).replace("ooo", "", 1).replace("ttt", "", 1)
    assert "ot" in rest
    assert "to" in rest


def test_calls_that_are_new_each_time_are_timed_one_by_one():
    left = iter(range(10))
    taken = list(samples_of(pair(lambda: next(left), lambda: None, once=8)))
    assert len(taken) == 6
    assert next(left) == 6


def test_parts_of_a_call_are_timed_apart_and_told(monkeypatch):
    made = pair()
    whole = Pair(made.ours, made.theirs, made.wait, made.read, parts={"a part": lambda: None})
    monkeypatch.setitem(CALLS, "CuPy: matmul(a, b)", lambda device: whole)
    (record,) = host_call_records("host-calls", [{"call": "CuPy: matmul(a, b)"}], device="cpu", gpu="H200")
    assert record["result"]["parts_us"]["a part"] > 0
    assert "us: a part" in markdown(PAGES["host-calls"], [record])


def test_the_pass_in_which_the_library_was_quicker_stands(monkeypatch):
    passes = iter([[(5.0, 4.0), (5.0, 9.0), (5.0, 9.0)], [(7.0, 8.0), (7.0, 8.0), (7.0, 1.0)]])
    monkeypatch.setattr(host_calls, "samples_of", lambda pair: next(passes))
    assert least_disturbed(pair())[0] == (7.0, 8.0)


@pytest.mark.parametrize("wrong", [2.0, float("nan")])
def test_results_that_differ_are_wrong(wrong):
    assert agree(pair()) == ""
    assert "differs" in agree(pair(lambda: wrong))


def test_a_library_that_is_not_here_makes_a_record_that_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    (record,) = host_call_records("host-calls", [{"call": "CuPy: matmul(a, b)"}], device="cpu", gpu="H200")
    assert record["result"]["right"] is None
    assert "cupy" in record["result"]["reason"]
    assert not went_wrong(record)
    assert "cupy" in markdown(PAGES["host-calls"], [record])


def test_the_suites_calls_are_known():
    suite = read_suite(find_suite("host-calls"))
    assert [case["call"] for case in suite["cases"]] == [*CALLS, FIRST_PLAN]
    assert all(in_words(case["goal"]) for case in suite["cases"])


def test_the_first_plan_of_a_process_is_timed(monkeypatch):
    monkeypatch.setattr(host_calls, "ROUNDS", 1)
    (record,) = host_call_records("host-calls", [{"call": FIRST_PLAN, "goal": {"us": 1e9}}], device="cpu", gpu="H200")
    assert record["result"]["met"] is True
    assert record["result"]["host_us"] > 0


@pytest.mark.parametrize("call", [name for name in CALLS if not name.startswith(("CuPy", "JAX"))])
def test_our_call_and_the_librarys_agree_on_the_emulator(call, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr(host_pairs, "NEW_MS", 3)
    with tw.emulator():
        made = CALLS[call]("cpu")
        assert agree(made) == ""
