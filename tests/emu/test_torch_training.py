"""Training through tilewright.torch by the kernels themselves, on the emulator: what a GPU is given."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.nn import functional as F  # noqa: E402

import tilewright as tw  # noqa: E402
import tilewright.torch as tt  # noqa: E402
from tilewright import epilogue as ep  # noqa: E402
from tilewright.torch import fused, layer, product  # noqa: E402
from tilewright.torch.layer import TilewrightLinear, new_layer  # noqa: E402


@pytest.fixture(autouse=True)
def by_kernels(monkeypatch):
    """CPU tensors go where a GPU's go, and the emulator takes them there."""

    def bare(a, b, c, alpha, beta, out_dtype, how):
        return product.run(a, b, c=c, alpha=alpha, beta=beta, out_dtype=out_dtype, **how._asdict())

    def behind(a, b, c, call, operands):
        return fused._on_gpu(a, b, c, call.alpha, call.beta, call.out_dtype, call.expression, operands, call.how)

    monkeypatch.setattr(product, "run_product", bare)
    monkeypatch.setattr(fused, "_run", behind)
    with tw.emulator():
        yield


def values(*shape: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype).requires_grad_()


def gated(acc, bias, r):
    return ep.silu(acc + bias) * r


def many(acc, x, y, z):
    return ep.gelu(acc * x) * y - z / (1 + acc * acc)


CASES = {
    "bare": ({}, [], lambda acc: acc),
    "bias": ({}, ["bias"], lambda acc, bias: acc + bias),
    "scaled": ({}, ["col_scale"], lambda acc, scale: acc * scale),
    "gelu": ({"activation": "gelu"}, ["bias", "residual"], lambda acc, bias, r: F.gelu(acc + bias) + r),
    "gated": ({"epilogue": gated}, ["bias", "r"], lambda acc, bias, r: F.silu(acc + bias) * r),
    "many": (
        {"epilogue": many}, ["x", "y", "z"], lambda acc, x, y, z: F.gelu(acc * x) * y - z / (1 + acc * acc),
    ),
}  # fmt: skip
LAST = {"bias": 1, "col_scale": 1, "x": 1, "y": 1}
"""How many of the result's last axes an operand has; by default all."""


PLAIN, LAYER, ROW, BATCH = ((9, 6), (6, 11)), ((2, 5, 8), (8, 3)), ((7,), (7, 4)), ((2, 5, 8), (2, 8, 3))
HALF, SINGLE = torch.bfloat16, torch.float32
STEPS = [
    ("bare", HALF, LAYER), ("bias", HALF, PLAIN), ("scaled", SINGLE, BATCH), ("gelu", HALF, LAYER),
    ("gelu", SINGLE, ROW), ("gated", HALF, BATCH), ("gated", SINGLE, PLAIN), ("many", HALF, PLAIN),
]  # fmt: skip


@pytest.mark.parametrize(("case", "dtype", "shapes"), STEPS, ids=str)
def test_a_training_step_by_kernels_has_float64s_result_and_gradients(case, dtype, shapes):
    options, names, by_torch = CASES[case]
    a, b = (values(*shape, dtype=dtype, seed=seed) for seed, shape in enumerate(shapes))
    shape = torch.matmul(a, b).shape
    c = values(*shape[-1:], dtype=dtype, seed=2)
    others = [values(*shape[-LAST.get(name, 9) :], dtype=dtype, seed=3 + n) for n, name in enumerate(names)]
    given = [a, b, c, *others]
    wide = [x.detach().double().requires_grad_() for x in given]
    weight = b.mT.contiguous().mT if len(shapes[1]) > 1 else b  # as a layer's weight lies
    result = tt.matmul(a, weight, c=c, alpha=0.5, beta=-2.0, **dict(zip(names, others, strict=True)), **options)
    expected = by_torch(0.5 * wide[0] @ wide[1] - 2 * wide[2], *wide[3:])
    step = 1e-5 if dtype == torch.float32 else 2.0**-7
    assert result.dtype == dtype
    torch.testing.assert_close(result.double(), expected, rtol=step, atol=step)
    mine = torch.autograd.grad(result.sum(), given)  # a gradient of one element, spread over the result
    for one, x, right in zip(mine, given, torch.autograd.grad(expected.sum(), wide), strict=True):
        assert one.dtype == x.dtype
        assert torch.isfinite(one).all()
        size = max(1.0, float(right.abs().max()))
        assert float((one.double() - right).abs().max()) <= 2 * step * size


@pytest.mark.parametrize("options", [{}, {"activation": "silu"}, {"activation": "relu"}], ids=str)
def test_gradients_and_operands_that_are_lazily_negated_views_are_written_out_first(options):
    a, b = (values(*shape, dtype=SINGLE, seed=seed) for seed, shape in enumerate(PLAIN))
    lazy = torch.view_as_complex(torch.stack((a, a), -1)).conj().imag
    assert lazy.is_neg()

    arrived = []

    def gradients(result):
        result.register_hook(lambda grad: arrived.append(grad.is_neg()))
        end = (torch.complex(torch.zeros_like(result), result).conj() * (2 + 3j)).real.sum()
        return torch.autograd.grad(end, (a, b))

    right = gradients(getattr(F, options.get("activation", ""), lambda x: x)(-a @ b))
    for one, other in zip(gradients(tt.matmul(lazy, b, **options)), right, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert arrived == [True, True]


# --- a layer, as it is differentiated at once on a GPU ----------------------------------------------------------------

AS_IT_IS = (None, False, False, None, None, "ieee")


def differentiable(x, weight, bias=None, activation=None):
    return TilewrightLinear.apply(x, weight, bias, new_layer(x, weight, bias, activation, AS_IT_IS))


"""Options of a layer."""


def test_a_layer_keeps_nothing_for_gradients_that_nobody_wants():
    x, weight = values(5, 8, dtype=torch.float32, seed=0), values(3, 8, dtype=torch.float32, seed=1)
    for frozen, kept in ((weight, x), (x, weight)):
        saved: list[torch.Size] = []
        given = [one.detach() if one is frozen else one for one in (x, weight)]
        with torch.autograd.graph.saved_tensors_hooks(
            lambda one, to=saved: (to.append(one.shape), one)[1], lambda x: x
        ):
            result = differentiable(*given)
        assert saved == [frozen.shape], "what the gradient of the other reads"
        (found,) = torch.autograd.grad(result.sum(), [kept])
        (right,) = torch.autograd.grad(F.linear(*given).sum(), [kept])
        torch.testing.assert_close(found, right)


@pytest.mark.parametrize("shape", [(2, 3, 0), (0, 8), (2, 0, 8), (8,)], ids=str)
def test_a_layer_without_rows_or_columns_has_gradients(shape):
    x, weight = values(*shape, dtype=torch.float32, seed=0), values(3, shape[-1], dtype=torch.float32, seed=1)
    found = torch.autograd.grad(differentiable(x, weight).sum(), [x, weight])
    torch.testing.assert_close(found, torch.autograd.grad(F.linear(x, weight).sum(), [x, weight]))


@pytest.mark.parametrize("activation", [None, "relu", "silu"])
def test_gradients_of_a_batched_layer_can_be_asked_for_many_at_once(activation):
    x, weight = values(2, 5, 8, dtype=torch.float32, seed=0), values(3, 8, dtype=torch.float32, seed=1)
    pulls = torch.randn(4, 2, 5, 3, generator=torch.Generator().manual_seed(2))
    after = getattr(F, activation or "", lambda x: x)
    made = [torch.autograd.grad(f(x, weight), [x, weight], pulls, is_grads_batched=True)
            for f in (lambda *given: differentiable(*given, activation=activation),
                      lambda *given: after(F.linear(*given)))]  # fmt: skip
    torch.testing.assert_close(*made, rtol=1e-4, atol=1e-5)


ALL = ("x", "weight", "bias")


@pytest.mark.parametrize(
    ("activation", "asked"),
    [("relu", ("x",)), ("gelu", ("weight",)), ("silu", ("bias",)), ("relu", ALL), ("gelu", ALL), ("silu", ALL)],
    ids=str,
)
def test_a_layer_with_an_activation_has_torchs_gradients_and_theirs(activation, asked):
    sizes = {"x": (2, 5, 8), "weight": (3, 8), "bias": (3,)}
    given = [values(*size, dtype=torch.float32, seed=n) for n, size in enumerate(sizes.values())]
    given = [one.detach().requires_grad_(name in asked) for name, one in zip(sizes, given, strict=True)]
    wanted = [one for one in given if one.requires_grad]
    after = getattr(F, activation)
    found = []
    for made in (lambda: differentiable(*given, activation=activation), lambda: after(F.linear(*given))):
        result = made()
        first = torch.autograd.grad(result.square().sum(), wanted, create_graph=True)
        again = torch.autograd.grad(sum(one.square().sum() for one in first), wanted)
        found.append((result, *first, *again))
    for mine, its in zip(*found, strict=True):
        torch.testing.assert_close(mine, its, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
def test_a_layer_of_long_sums_keeps_them_and_multiplies_no_more_than_torch(activation, monkeypatch):
    sizes = {"x": (2, 5, 24), "weight": (3, 24), "bias": (3,)}
    given = [values(*size, dtype=torch.float32, seed=n) for n, size in enumerate(sizes.values())]
    multiplied = []
    monkeypatch.setattr(layer, "KEPT_FROM", 24)
    monkeypatch.setattr(fused, "fused_product", lambda *call: multiplied.append(call))
    result = layer.at_once(*given, activation, AS_IT_IS)
    found = torch.autograd.grad(result.square().sum(), given)
    its = getattr(F, activation)(F.linear(*given))
    torch.testing.assert_close((result, *found), (its, *torch.autograd.grad(its.square().sum(), given)),
                               rtol=2e-4, atol=2e-4)  # fmt: skip
    assert not multiplied, "no sum is made again"
