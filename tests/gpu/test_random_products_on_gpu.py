"""Products that nobody chose: sizes, types, strides, offsets, batches and scalars at random, judged by float64."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st
import pytest

import tilewright as tw

pytestmark = pytest.mark.gpu

DTYPES = ("float32", "float16", "bfloat16")
STEP = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
sizes = st.one_of(st.integers(0, 40), st.integers(0, 700), st.sampled_from([1, 64, 128, 256, 512]))


@st.composite
def products(draw: st.DrawFn) -> dict:
    dtype = draw(st.sampled_from(DTYPES))
    return {
        "m": draw(sizes), "n": draw(sizes), "k": draw(sizes), "dtype": dtype,
        "out_dtype": draw(st.sampled_from(DTYPES)),
        "layouts": draw(st.tuples(*[st.sampled_from("ntposr")] * 2)), "c": draw(st.sampled_from([None, *"ntpos"])),
        "out": draw(st.sampled_from([None, *"ntpos"])), "batch": draw(st.sampled_from([(), (), (3,), (2, 3), (0,)])),
        "b_has_batch": draw(st.booleans()), "alpha": draw(st.sampled_from([1.0, 1.5, -0.25, 0.0])),
        "beta": draw(st.sampled_from([1.0, 0.5, -2.0, 0.0])), "seed": draw(st.integers(0, 2**31)),
    }  # fmt: skip


def lay(torch, values, layout: str):
    """The same values in other memory, NaN all around: n dense, t transposed, p rows padded, o from one element on,
    s every other element of every other row, r one row repeated."""
    *batch, rows, cols = values.shape
    nan = float("nan")
    if layout == "t":
        return values.mT.contiguous().mT
    if layout == "r":
        return values[..., :1, :].expand(values.shape) if rows else values
    high, wide, first = {"p": (rows, cols + 13, 0), "o": (rows, cols + 1, 1), "s": (2 * rows + 1, 2 * cols + 1, 1)}.get(
        layout, (rows, cols, 0)
    )
    whole = torch.full((*batch, high, wide), nan, device="cuda", dtype=values.dtype)
    step = 2 if layout == "s" else 1
    view = whole[..., first if step == 2 else 0 :: step, first::step][..., :rows, :cols]
    view.copy_(values)
    return view


@hypothesis.settings(max_examples=500, deadline=None, derandomize=True, database=None)
@hypothesis.given(case=products())
def test_random_products_are_right_and_write_nothing_else(torch, case):
    torch.manual_seed(case["seed"])
    dtype, out_dtype = getattr(torch, case["dtype"]), getattr(torch, case["out_dtype"])
    m, n, k, batch = case["m"], case["n"], case["k"], case["batch"]
    a = lay(torch, torch.randn(*batch, m, k, device="cuda").to(dtype), case["layouts"][0])
    b_batch = batch if case["b_has_batch"] else ()
    b = lay(torch, torch.randn(*b_batch, k, n, device="cuda").to(dtype), case["layouts"][1])
    given = {"alpha": case["alpha"], "out_dtype": case["out_dtype"]}
    exact = case["alpha"] * (a.double() @ b.double())
    size = abs(case["alpha"]) * (a.double().abs() @ b.double().abs())
    if case["c"] is not None:
        c = lay(torch, torch.randn(*batch, m, n, device="cuda").to(out_dtype), case["c"])
        given |= {"c": c if case["beta"] else torch.full_like(c, float("nan")), "beta": case["beta"]}
        exact, size = exact + case["beta"] * c.double(), size + abs(case["beta"]) * c.double().abs()
    if case["out"] is not None:
        poison = torch.full((*batch, m, n), float("nan"), device="cuda", dtype=out_dtype)
        out = lay(torch, poison, case["out"])
        base = out._base if out._base is not None else out
        base.fill_(7.0)  # guard bands: what lies between and around the view
        out.fill_(float("nan"))
        given["out"] = out
    result = tw.matmul(a, b, **given)
    assert result.shape == exact.shape
    assert result.dtype == out_dtype
    assert bool(torch.isfinite(result).all())
    allowed = 2.0**-23 * (k + 3) * size + 1.01 * STEP[case["out_dtype"]] * exact.abs() + 1e-6
    assert bool(((result.double() - exact).abs() <= allowed).all())
    if case["out"] is not None:
        assert result is out
        out.fill_(7.0)
        assert bool((base == 7.0).all()), "it wrote beside its output"
