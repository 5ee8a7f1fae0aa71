"""The suite of packed lengths: its entries, and what it holds results to."""

from __future__ import annotations

import pytest

from tilewright.lab.attention_packed import judged, lengths_of, work_of
from tilewright.lab.suite import find_suite, read_suite


def test_the_suites_entries_are_the_same_each_time_and_make_up_their_total():
    for case in read_suite(find_suite("attention-packed"))["cases"]:
        lengths = lengths_of(case)
        assert lengths == lengths_of(case)
        assert min(lengths) > 0
        drawn = lengths[1:] if "first" in case else lengths
        assert sum(drawn) == case.get("total", case.get("rows", 0) * case.get("entries", 0))
        if "most" in case:
            assert max(drawn) <= case["most"]
            assert all(length >= case["least"] for length in drawn[:-1])


def test_only_pairs_that_a_mask_leaves_are_work():
    case = {"heads": 3, "d_head": 32, "causal": True}
    assert work_of([2, 5], case) == 4 * 32 * 3 * (3 + 15)
    assert work_of([2, 5], case | {"causal": False}) == 4 * 32 * 3 * (4 + 25)


def test_a_wrong_result_is_found_in_the_entries_that_are_judged():
    torch = pytest.importorskip("torch")
    starts = [0, 30, 30, 95]
    q, k, v = (torch.randn(95, heads, 32).bfloat16() for heads in (4, 2, 2))
    rows = [slice(0, 30), slice(30, 95)]
    out = torch.cat([
        torch.nn.functional.scaled_dot_product_attention(
            *(x[part].transpose(0, 1)[None] for x in (q, k, v)), is_causal=True, enable_gqa=True
        )[0].transpose(0, 1)
        for part in rows
    ])  # fmt: skip
    assert judged(out, [q, k, v], starts, True, "bf16").ok
    out[40, 3] = out[40, 3] * 1.1 + 0.1
    assert not judged(out, [q, k, v], starts, True, "bf16").ok
