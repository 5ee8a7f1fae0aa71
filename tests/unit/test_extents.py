"""Overlap of views: exact against a set of addresses for small views, and never False wrongly."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.arrays import extents
from tilewright.arrays.view import Operand

views = st.builds(
    lambda address, axes: Operand(
        "a", "numpy", 4096 + 4 * address, tuple(e for e, _ in axes), tuple(s if e > 1 else 0 for e, s in axes), "f32", 0
    ),
    st.integers(0, 30),
    st.lists(st.tuples(st.integers(0, 4), st.integers(-12, 12)), max_size=3),
)


def addresses(view: Operand) -> np.ndarray:
    offsets = np.zeros((), np.int64)
    for extent, step in zip(view.shape, view.strides, strict=True):
        offsets = offsets[..., None] + np.arange(extent) * step
    return view.address + 4 * offsets.ravel()


@settings(max_examples=300, deadline=None)
@given(views, views)
def test_overlap_is_exact_for_small_views(one, other):
    shared = np.intersect1d(addresses(one), addresses(other)).size > 0
    assert extents.may_overlap(one, other) == shared
    assert extents.may_overlap(other, one) == shared


@settings(max_examples=300, deadline=None)
@given(views)
def test_self_overlap_is_never_missed_and_dense_views_have_none(view):
    places = addresses(view)
    if len(np.unique(places)) < len(places):
        assert extents.may_overlap_itself(view)


@settings(max_examples=100, deadline=None)
@given(views)
def test_the_extent_is_the_least_interval_of_bytes(view):
    places = addresses(view)
    assert extents.byte_extent(view) == ((places.min(), places.max() + 4) if len(places) else (0, 0))


def test_transposed_and_padded_views_do_not_overlap_themselves():
    for shape, strides in (
        ((4, 5), (5, 1)),
        ((4, 5), (1, 4)),
        ((4, 5), (9, 1)),
        ((2, 3, 4), (1, 8, 2)),
        ((4, 5), (-5, 1)),
        ((4, 5), (5, -1)),
        ((), ()),
    ):
        assert not extents.may_overlap_itself(Operand("out", "numpy", 4096, shape, strides, "f32", None))


def test_views_on_two_devices_never_overlap():
    here = Operand("a", "torch", 4096, (4,), (1,), "f32", 0)
    there = Operand("b", "torch", 4096, (4,), (1,), "f32", 1)
    assert not extents.may_overlap(here, there)


def test_a_search_that_takes_too_long_counts_as_overlap(monkeypatch):
    monkeypatch.setattr(extents, "_MAX_WORK", 1)
    strides = (3 * 7 * 11, 3 * 7 * 13, 3 * 11 * 13)
    one = Operand("a", "numpy", 4096, (9, 9, 9), strides, "f32", None)
    other = Operand("out", "numpy", 4096 + 4, (9, 9, 9), tuple(s + 2 for s in strides), "f32", None)
    assert extents.may_overlap(one, other)
