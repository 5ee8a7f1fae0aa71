"""Products that nobody chose: sizes, types, strides, offsets, batches, scalars and epilogues at random, judged by
float64."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st
import pytest

import tilewright as tw

pytestmark = pytest.mark.gpu

DTYPES = ("float32", "float16", "bfloat16")
STEP = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
sizes = st.one_of(st.integers(0, 40), st.integers(0, 700), st.sampled_from([1, 64, 128, 256, 512]))


ACTIVATIONS = {
    None: lambda torch, x: x,
    "relu": lambda torch, x: torch.relu(x),
    "gelu": lambda torch, x: torch.nn.functional.gelu(x),
    "gelu_tanh": lambda torch, x: torch.nn.functional.gelu(x, approximate="tanh"),
    "silu": lambda torch, x: torch.nn.functional.silu(x),
}
STEEPEST = 1.14
"""Of these functions."""


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
        "precision": draw(st.sampled_from(["ieee", "tf32", "fp32x3"])),
        "fused": draw(st.sets(st.sampled_from(["bias", "column", "row_scale", "col_scale", "residual"]))),
        "fused_dtype": draw(st.sampled_from(DTYPES)), "residual": draw(st.sampled_from("ntposr")),
        "activation": draw(st.sampled_from(list(ACTIVATIONS))),
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


def epilogue(torch, case: dict, given: dict, exact, off):
    """Adds the case's epilogue to the arguments; the result with it, and how far off it may be before it is rounded."""
    *batch, m, n = exact.shape
    fused, rounding = case["fused"], 2.0**-15 if case["out_dtype"] != "float32" else 2.0**-20

    def operand(name: str, *shape: int):
        given[name] = torch.randn(*shape, device="cuda").to(getattr(torch, case["fused_dtype"]))
        return given[name].double()

    for name, shape in (("row_scale", (m, 1)), ("col_scale", (n,))):
        if name in fused:
            scale = operand(name, *shape)
            exact, off = exact * scale, off * scale.abs()
    if "bias" in fused:
        exact = exact + operand("bias", *((m, 1) if "column" in fused else (n,)))
    off = off + rounding * exact.abs()
    if case["activation"]:
        given["activation"] = case["activation"]
        off = STEEPEST * off + rounding * exact.abs()
        exact = ACTIVATIONS[case["activation"]](torch, exact)
    if "residual" in fused:
        operand("residual", *batch, m, n)
        given["residual"] = lay(torch, given["residual"], case["residual"])
        exact = exact + given["residual"].double()
        off = off + rounding * exact.abs()
    return exact, off


@pytest.mark.parametrize("part", range(25))
def test_random_products_are_right_and_write_nothing_else(torch, part):
    """In parts, so that many processes share the compilation of 500 products' kernels."""

    @hypothesis.seed(part)
    @hypothesis.settings(max_examples=20, deadline=None, database=None)
    @hypothesis.given(case=products())
    def check(case):
        one_product(torch, case)

    check()


def one_product(torch, case: dict):
    torch.manual_seed(case["seed"])
    dtype, out_dtype = getattr(torch, case["dtype"]), getattr(torch, case["out_dtype"])
    precision = case["precision"] if case["dtype"] == "float32" else "ieee"
    m, n, k, batch = case["m"], case["n"], case["k"], case["batch"]
    a = lay(torch, torch.randn(*batch, m, k, device="cuda").to(dtype), case["layouts"][0])
    b_batch = batch if case["b_has_batch"] else ()
    b = lay(torch, torch.randn(*b_batch, k, n, device="cuda").to(dtype), case["layouts"][1])
    given = {"alpha": case["alpha"], "out_dtype": case["out_dtype"], "precision": precision}
    exact = case["alpha"] * (a.double() @ b.double())
    size = abs(case["alpha"]) * (a.double().abs() @ b.double().abs())
    if case["c"] is not None:
        c = lay(torch, torch.randn(*batch, m, n, device="cuda").to(out_dtype), case["c"])
        given |= {"c": c if case["beta"] else torch.full_like(c, float("nan")), "beta": case["beta"]}
        exact, size = exact + case["beta"] * c.double(), size + abs(case["beta"]) * c.double().abs()
    off = (2.0**-23 * (k + 3) + (2.0**-9 if precision == "tf32" else 0.0)) * size
    exact, off = epilogue(torch, case, given, exact, off)
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
    allowed = off + 1.01 * STEP[case["out_dtype"]] * exact.abs() + 1e-6
    assert bool(((result.double() - exact).abs() <= allowed).all())
    if case["out"] is not None:
        assert result is out
        out.fill_(7.0)
        assert bool((base == 7.0).all()), "it wrote beside its output"
