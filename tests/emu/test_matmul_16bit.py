"""tilewright.matmul of 16-bit operands on the emulator: dtypes in and out, layouts, scaling, what is refused."""

from __future__ import annotations

import epilogue_cases
import numpy as np
import pytest
from epilogue_cases import Bits, given

import tilewright as tw
from tilewright.errors import InvalidOperand
from tilewright.lab.check import Guarded, check
from tilewright.lab.numbers import from_stored, rounded


def values(*shape: int, dtype: str = "f16", seed: int = 0) -> np.ndarray:
    return epilogue_cases.values(*shape, dtype=dtype, seed=seed)


def right(out, a, b, dtype="f16", out_dtype="f16", **options) -> None:
    verdict = check(np.asarray(out, np.float32), a, b, dtype=dtype, out_dtype=out_dtype, **options)
    assert verdict.ok, verdict.reason


# --- dtypes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("out_dtype", ["f32", "f16", "bf16"])
def test_every_pair_of_dtypes_is_right_written_whole_and_nowhere_else(dtype, out_dtype):
    a, b = values(70, 50, dtype=dtype), values(50, 66, dtype=dtype)
    target = Guarded((70, 66), out_dtype)
    out = Bits(target.view) if out_dtype == "bf16" else target.view
    if out_dtype == "bf16":
        assert out.bits.base is not None, "a view of the guarded buffer, no copy"
    with tw.emulator():
        assert tw.matmul(given(a, dtype), given(b, dtype), out=out) is out
    assert target.untouched() == 0
    assert target.intact()
    right(from_stored(target.view, out_dtype), a, b, dtype, out_dtype)


@pytest.mark.parametrize(
    ("asked", "wanted"), [(None, np.float16), ("f16", np.float16), ("float32", np.float32), (np.float32, np.float32)]
)
def test_the_results_dtype_is_as_or_the_one_asked_for(asked, wanted):
    a, b = values(20, 30), values(30, 10)
    with tw.emulator():
        out = tw.matmul(given(a, "f16"), given(b, "f16"), out_dtype=asked)
    assert out.dtype == wanted
    right(out, a, b, out_dtype="f32" if wanted == np.float32 else "f16")


def test_numpys_bfloat16_of_ml_dtypes_comes_in_and_goes_out():
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    a, b = values(33, 20, dtype="bf16"), values(20, 41, dtype="bf16")
    kind = ml_dtypes.bfloat16
    c = values(41, dtype="bf16")
    with tw.emulator():
        for left in (a.astype(kind), np.asfortranarray(a.astype(kind))):
            out = tw.matmul(left, b.astype(kind), c=c.astype(kind), beta=-2.0)
            assert out.dtype == kind
            right(out, a, b, "bf16", "bf16", c=np.broadcast_to(c, out.shape), beta=-2.0)
        for asked, dtype in (("bf16", "bf16"), (kind, "bf16"), ("f32", "f32")):
            right(tw.matmul(given(a, "f16"), given(b, "f16"), out_dtype=asked), rounded(a, "f16"), rounded(b, "f16"),
                  out_dtype=dtype)  # fmt: skip


def test_dtypes_that_do_not_go_together_are_refused_in_the_callers_terms():
    a, wide = given(values(8, 8), "f16"), values(8, 8)
    refusals = [
        ((a, wide), {}, "a is float16 and b is float32"),
        ((wide, wide), {"c": wide, "out_dtype": "f16"}, "c is float32 and the result float16. Convert c, or ask"),
        ((wide, wide), {"c": wide, "out": np.zeros((8, 8), np.float16)}, "c is float32 and the result float16"),
        ((a, a), {"out": np.zeros((8, 8), np.float16), "out_dtype": "f32"}, "out is float16 and out_dtype says"),
        ((a, a), {"c": wide}, "c is float32 and the result float16. Convert c, or ask for out_dtype='f32'"),
        ((a, a), {"out_dtype": "int8"}, "out_dtype='int8' is not a dtype of a result"),
        ((a, a), {"out_dtype": np.int32}, "is not a dtype of a result"),
        ((a, a), {"out_dtype": 16}, "is not a dtype of a result"),
    ]  # fmt: skip
    with tw.emulator() as emulator:
        for arrays, options, words in refusals:
            with pytest.raises(InvalidOperand) as caught:
                tw.matmul(*arrays, **options)
            assert words in str(caught.value)
        assert not emulator.results


def test_a_bfloat16_result_that_no_library_can_hold_is_refused_with_a_way_out(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    bits = given(values(8, 8, dtype="bf16"), "bf16")
    with tw.emulator(), pytest.raises(InvalidOperand, match="Import ml_dtypes, pass an out"):
        tw.matmul(bits, bits)


def test_results_beyond_float16_become_infinite_and_float32_keeps_them():
    a = np.full((4, 16), 256, np.float16)
    with tw.emulator():
        assert np.isposinf(tw.matmul(a, a.T)).all()
        np.testing.assert_array_equal(tw.matmul(a, a.T, out_dtype="f32"), np.full((4, 4), 2.0**20))


# --- shapes and layouts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        *(((65, 33, 20), layout) for layout in ("nt", "tn", "os", "so", "rc", "cr", "pp")),
        ((64, 64, 64), "nn"), ((1, 90, 70), "nn"), ((90, 1, 70), "tt"), ((37, 41, 1), "nn"),
    ],
)  # fmt: skip
def test_layouts_of_the_operands(shape, layout):
    m, n, k = shape

    def place(rows: int, cols: int, kind: str) -> np.ndarray:
        return {
            "n": lambda: values(rows, cols).astype(np.float16),
            "t": lambda: values(cols, rows).astype(np.float16).T,
            "o": lambda: values(rows * cols + 1).astype(np.float16)[1:].reshape(rows, cols),
            "p": lambda: values(rows, cols + 3).astype(np.float16)[:, :cols],
            "s": lambda: values(2 * rows + 1, 3 * cols).astype(np.float16)[1 : 2 * rows + 1 : 2, ::3],
            "r": lambda: np.broadcast_to(values(1, cols).astype(np.float16), (rows, cols)),
            "c": lambda: np.broadcast_to(values(rows, 1).astype(np.float16), (rows, cols)),
        }[kind]()

    a, b = place(m, k, layout[0]), place(k, n, layout[1])
    with tw.emulator():
        right(tw.matmul(a, b), a.astype(np.float32), b.astype(np.float32))


@pytest.mark.parametrize("batch", [((3,), (3,)), ((4, 1), (2,)), ((5,), ())])
def test_batches_broadcast(batch):
    a, b = values(*batch[0], 33, 24), values(*batch[1], 24, 17)
    with tw.emulator():
        out = tw.matmul(given(a, "f16"), given(b, "f16"))
    assert out.shape == (a @ b).shape
    right(out, a, b)


@pytest.mark.parametrize("out_dtype", ["f16", "f32"])
def test_alpha_beta_c_and_out(out_dtype):
    a, b, c = values(33, 12), values(12, 41), values(41)
    target = Guarded((33, 41), out_dtype)
    out, left, right_hand = target.view, given(a, "f16"), given(b, "f16")
    stored = c.astype(out.dtype)
    with tw.emulator():
        assert tw.matmul(left, right_hand, c=stored, alpha=-1.5, beta=0.5, out=out) is out
        right(out, a, b, c=np.broadcast_to(c, out.shape), alpha=-1.5, beta=0.5, out_dtype=out_dtype)
        assert target.intact()
        assert target.untouched() == 0
        nothing = np.full((33, 41), np.nan, out.dtype)
        right(tw.matmul(left, right_hand, c=nothing, beta=0, out_dtype=out_dtype), a, b, out_dtype=out_dtype)
        held = out.astype(np.float32)
        assert tw.matmul(left, right_hand, c=out, beta=2.0, out=out) is out
        right(out, a, b, c=held, beta=2.0, out_dtype=out_dtype)


@pytest.mark.parametrize(("m", "n", "k"), [(0, 5, 4), (5, 0, 4), (5, 4, 0)])
def test_sizes_of_zero(m, n, k):
    a, b, c = values(m, k), values(k, n), values(m, n)
    with tw.emulator():
        out = tw.matmul(given(a, "f16"), given(b, "f16"), c=given(c, "f16"), beta=2.0, alpha=np.inf if k == 0 else 1.0)
    np.testing.assert_array_equal(out, 2 * c)


def test_explain_tells_the_dtypes_and_the_tensor_cores_roof():
    a = given(values(64, 64), "f16")
    text = str(tw.explain(a, a, out_dtype="f32", gpu="H200"))
    assert "in f16 to f32" in text
    assert "989.4 TFLOP/s tensor-core peak" in text.replace("\n         ", " ")
