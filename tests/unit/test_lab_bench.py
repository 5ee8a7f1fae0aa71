"""How times become figures: the order of pairs, their ratios, and what the conditions' reader takes."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from tilewright.gemm.problem import GemmProblem
from tilewright.lab import bench
from tilewright.lab.bench import Timing, paired_samples, parse_conditions, percentile, summary, time_pairs
from tilewright.lab.ground import MOST_SETS, sets_for


def launches(name: str, count: int) -> list:
    """Launches that a fake stopwatch can tell apart by what they return."""
    return [lambda stream, index=index: (name, index) for index in range(count)]


class Stopwatch:
    """Notes what was launched; a candidate takes 2 ms, a reference 3, plus 10 for whatever comes first in a batch."""

    def __init__(self) -> None:
        self.batches: list[list[tuple[str, int]]] = []

    def measure(self, wanted) -> list[float]:
        seen = [launch(0) for launch in wanted]
        self.batches.append(seen)
        return [2.0 if name == "candidate" else 3.0 for name, _ in seen]


def test_pairs_alternate_who_comes_first_and_rotate_the_buffer_sets():
    watch = Stopwatch()
    sides = [launches("candidate", 3), launches("reference", 3)]
    samples = paired_samples(watch.measure, sides, 0.0, 6, at_once=2)
    flat = [launch for batch in watch.batches for launch in batch]
    assert [name for name, _ in flat] == ["candidate", "reference", "reference", "candidate"] * 3
    assert [index for _, index in flat] == [0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2, 2]
    assert samples == [[2.0, 3.0]] * 6  # whatever came first, the candidate's time stands first


def test_a_batch_of_an_odd_number_of_pairs_keeps_the_order_straight():
    watch = Stopwatch()
    samples = paired_samples(watch.measure, [launches("candidate", 2), launches("reference", 2)], 0.0, 9, at_once=3)
    assert samples == [[2.0, 3.0]] * 9


def test_measuring_goes_on_until_enough_pairs_are_there_and_the_conditions_are_read():
    answers = iter([True, True, False])
    samples = paired_samples(Stopwatch().measure, [launches("candidate", 1)], 0.0, 1, pending=lambda: next(answers))
    assert len(samples) == 3


def test_a_ratio_is_the_median_of_paired_ratios_not_the_ratio_of_medians():
    # the chip slows down by half in the middle of the run: pairs still tell 1.5
    samples = [[2.0, 3.0], [4.0, 6.0], [4.0, 6.0], [2.0, 3.1], [4.0, 5.9]]
    timing = summary(samples, 2, by_graph=True)
    assert timing.ratio == 1.5
    assert timing.ms == 2.0
    assert timing.reference_ms == 2.95
    assert timing.ratio_p10 == pytest.approx(1.475 + 0.4 * 0.025)
    assert timing.ratio_p90 == pytest.approx(1.5 + 0.6 * 0.05)
    assert timing.pairs == 5


def test_without_a_reference_there_is_no_ratio():
    assert summary([[2.0], [4.0], [3.0]], 1, by_graph=False) == Timing(3.0, 3, False)


def test_percentiles_interpolate_between_ranks():
    assert percentile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
    assert percentile([1.0, 2.0], 0.0) == 1.0
    assert percentile([1.0, 2.0], 1.0) == 2.0
    assert percentile([7.0], 0.9) == 7.0


@pytest.mark.parametrize(("ms", "wanted"), [(2200.0, 2), (90.0, 10)])
def test_few_pairs_are_made_where_one_takes_seconds(monkeypatch, ms, wanted):
    watch, launched = Stopwatch(), []

    def measure(launches) -> list[float]:
        launched.extend(launches)
        return [ms if launch(0)[0] == "candidate" else 20.0 for launch in launches]

    watch.measure, watch.close = measure, lambda: None
    monkeypatch.setattr(bench, "Stopwatch", lambda ordinal: watch)
    monkeypatch.setattr(bench, "bound_to", lambda ordinal: nullcontext())
    sides = launches("candidate", 2), launches("reference", 2)
    timing, _ = time_pairs(0, *sides, seconds=0.0, watched=False)
    assert (timing.ms, timing.reference_ms, timing.pairs) == (ms, 20.0, wanted)
    assert len(launched) == 8 or wanted > 2, "two to load both sides on each set, and two pairs"


def test_what_the_gpu_cannot_tell_is_left_out_of_the_conditions():
    assert parse_conditions("1980, 412.31, 44\n") == {"sm_mhz": 1980.0, "power_w": 412.31, "temperature_c": 44.0}
    assert parse_conditions("1980, [N/A], 44\n") == {"sm_mhz": 1980.0, "temperature_c": 44.0}
    assert parse_conditions("") == {}


@pytest.mark.parametrize("size", [256, 512, 1024, 2048, 4096, 8192])
def test_rotated_buffers_hold_more_than_three_times_the_l2(size):
    problem, l2 = GemmProblem.dense(size, size, size), 60 * 2**20
    count = sets_for(problem, l2)
    assert count >= 2
    assert count * problem.bytes > 3 * l2
    assert count == 2 or (count - 1) * problem.bytes <= 3 * l2


def test_the_number_of_buffer_sets_is_bounded_for_tiny_products():
    assert sets_for(GemmProblem.dense(1, 1, 1), 60 * 2**20) == MOST_SETS
