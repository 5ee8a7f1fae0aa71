"""Successive halving against measurers whose truth is known: noise, heat, ties, deadlines, Ctrl-C."""

from __future__ import annotations

import random
import time
from collections import Counter

import pytest

from tilewright.tuning.search import ROUNDS, Round, successive_halving


class Fake:
    """Candidates are their true times in ms. Noise multiplies each run; `heat` is a factor for a whole pass."""

    def __init__(self, noise: float = 0.0, heat=lambda number: 1.0, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.noise, self.heat = noise, heat
        self.runs: Counter = Counter()
        self.passes = 0

    def one_pass(self, candidates, number):
        assert number == self.passes
        self.passes += 1
        self.runs.update(candidates)
        return [c * self.random.lognormvariate(0, self.noise) * self.heat(number) for c in candidates]


def test_the_fastest_is_found_and_slow_ones_run_little():
    times = [1.0 + 0.1 * i for i in range(24)]
    random.Random(1).shuffle(times)
    fake = Fake()
    ranking = successive_halving(times, fake)
    assert [entry.candidate for entry in ranking] == sorted(times)
    assert fake.runs[1.0] > 5 * fake.runs[3.3]
    assert sum(fake.runs.values()) < 24 * sum(r.passes for r in ROUNDS) / 3


def test_noise_of_three_per_cent_costs_less_than_two():
    worst = 0.0
    for seed in range(30):
        rng = random.Random(seed)
        times = [1.0 + abs(rng.gauss(0, 0.2)) for _ in range(24)]
        chosen = successive_halving(times, Fake(noise=0.03, seed=seed))[0].candidate
        worst = max(worst, chosen / min(times))
    assert worst < 1.02


def test_a_chip_that_slows_down_half_way_does_not_change_the_order():
    times = [1.0, 1.02, 1.05, 1.1, 1.3, 2.0]
    ranking = successive_halving(times, Fake(heat=lambda number: 1.0 if number < 5 else 1.8))
    assert [entry.candidate for entry in ranking] == times
    figures = [entry.ms for entry in ranking]
    assert figures == sorted(figures)
    assert figures[-1] / figures[0] == pytest.approx(2.0, rel=1e-6), "early losers stand on the last round's scale"


def test_equals_keep_the_order_in_which_they_came():
    class Named(float):
        pass

    twins = [Named(1.0), Named(1.0), Named(1.0)]
    ranking = successive_halving(twins, Fake())
    assert [id(entry.candidate) for entry in ranking] == [id(twin) for twin in twins]


def test_who_is_close_stays_until_the_rounds_tell_them_apart():
    fake = Fake(noise=0.01)
    successive_halving([1.0, 1.005, 1.4], fake)
    assert fake.runs[1.005] == fake.runs[1.0]
    assert fake.runs[1.4] == ROUNDS[0].passes


def test_one_candidate_is_measured_but_not_raced():
    fake = Fake()
    (only,) = successive_halving([2.0], fake)
    assert only.ms == pytest.approx(2.0)
    assert fake.runs[2.0] == ROUNDS[0].passes
    assert successive_halving([], fake) == []


def test_a_deadline_ends_the_search_with_what_is_known():
    fake = Fake()
    ranking = successive_halving([3.0, 1.0, 2.0], fake, deadline=time.monotonic() - 1)
    assert fake.passes == 1
    assert [entry.candidate for entry in ranking] == [1.0, 2.0, 3.0]


def test_what_is_known_is_told_after_every_pass_so_that_ctrl_c_loses_one_at_most():
    heard = []

    class Impatient(Fake):
        def one_pass(self, candidates, number):
            if number == 4:
                raise KeyboardInterrupt
            return super().one_pass(candidates, number)

    with pytest.raises(KeyboardInterrupt):
        successive_halving([3.0, 1.0, 1.1], Impatient(), told=heard.append)
    assert len(heard) == 4
    assert [entry.candidate for entry in heard[-1]] == [1.0, 1.1, 3.0]


@pytest.mark.parametrize("wrong", [float("nan"), 0.0, -1.0, float("inf")])
def test_a_time_that_is_none_is_refused(wrong):
    class Broken(Fake):
        def one_pass(self, candidates, number):
            return [wrong, *super().one_pass(candidates, number)[1:]]

    with pytest.raises(ValueError, match="all positive"):
        successive_halving([1.0, 2.0], Broken())


def test_rounds_keep_at_most_their_number_and_only_who_is_within_the_margin():
    fake = Fake()
    successive_halving([1.0, 1.01, 1.02, 1.03, 1.5], fake, rounds=(Round(1, 1.2, 3), Round(1, 1.0, 1)))
    assert [fake.runs[t] for t in (1.0, 1.01, 1.02, 1.03, 1.5)] == [2, 2, 2, 1, 1]
