"""What a prompt and a notebook show of results: what `str` tells, not every field."""

from __future__ import annotations

import pickle

import numpy as np

import tilewright as tw

SOURCE = 'extern "C" __global__ void f(float *x) { x[threadIdx.x] = 1 < 2; }'


def test_results_show_what_str_tells():
    a, q = np.ones((64, 64), np.float32), np.ones((1, 1, 32, 64), np.float16)
    with tw.emulator() as emu:
        tw.matmul(a, a)
    for result in (
        tw.explain(a, a, gpu="H200"), tw.explain_attention(q, q, q, gpu="H200"), emu.last, emu.last.counters,
        tw.emulate(SOURCE, "f", 1, 32, [np.zeros(32, np.float32)]),
    ):  # fmt: skip
        assert repr(result) == str(result)
        assert " object at " not in str(result)
        assert result._repr_html_().startswith("<pre>")
    assert repr(emu) == "Emulator(H200, 1 launches)"


def test_what_a_notebook_shows_is_escaped():
    result = tw.emulate(
        SOURCE.replace("x[", 'if (!threadIdx.x) printf("<b>"); x[').replace("{ ", "{ "), "f", 1, 32,
        [np.zeros(32, np.float32)],
    )  # fmt: skip
    assert "&lt;b&gt;" in result._repr_html_()
    assert "<b>" not in result._repr_html_()


def test_explanations_can_be_pickled():
    a, q = np.ones((64, 64), np.float32), np.ones((1, 1, 32, 64), np.float16)
    stack = np.ones((2, 64, 64), np.float32)
    for told in (
        tw.explain(a, a, gpu="H200"), tw.explain_attention(q, q, q, gpu="H200"),
        tw.explain_attention_backward(q, q, q, gpu="H200"), tw.explain_grouped_matmul(a, stack, [10, 64], gpu="H200"),
    ):  # fmt: skip
        assert str(pickle.loads(pickle.dumps(told))) == str(told)
