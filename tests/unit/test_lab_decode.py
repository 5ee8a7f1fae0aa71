"""The suite of few queries on long keys: its problems, and what it holds results to."""

from __future__ import annotations

import json

import pytest

from tilewright.attn.family import plan_attention
from tilewright.attn.split import SPLIT_RUNGS
from tilewright.gpus import GPUS
from tilewright.lab.attention_decode import checked, decode_problem, sets_for
from tilewright.lab.suite import find_suite, read_suite


def test_the_suites_cases_are_what_split_attention_is_for():
    suite = read_suite(find_suite("attention-decode"))
    for case in suite["cases"]:
        problem = decode_problem(case)
        if problem.seq_q <= 64:
            assert plan_attention(problem, GPUS["H200"]).rung in SPLIT_RUNGS, json.dumps(case)
        assert sets_for(problem, GPUS["H200"]) * problem.bytes > 2 * GPUS["H200"].l2


def test_a_wrong_result_is_found_in_the_heads_that_are_judged():
    torch = pytest.importorskip("torch")
    problem = decode_problem({"batch": 2, "heads": 4, "heads_kv": 2, "queries": 1, "keys": 50, "d_head": 32})
    q, k, v = (torch.randn(2, heads, rows, 32, dtype=torch.bfloat16) for heads, rows in ((4, 1), (2, 50), (2, 50)))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    assert checked(out, q, k, v, problem).ok
    out[1, 3] = out[1, 3] * 1.1 + 0.1
    assert not checked(out, q, k, v, problem).ok
