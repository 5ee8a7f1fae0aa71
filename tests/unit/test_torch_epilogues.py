"""tilewright.torch with epilogues, without a GPU: values, gradients in float64, torch.compile, fused layers."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import tilewright as tw  # noqa: E402
import tilewright.torch as tt  # noqa: E402
from tilewright import epilogue as ep  # noqa: E402
from tilewright.errors import InvalidEpilogue, InvalidOperand  # noqa: E402
from tilewright.torch.backward import KEPT_FROM  # noqa: E402
from tilewright.torch.matmul import _standard_text  # noqa: E402


def values(*shape: int, seed: int = 0, dtype=torch.float64, grad: bool = True) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_(grad)


def every_function(acc, x, y):
    one = ep.exp(acc / 4) - ep.log(acc * acc + 1) + ep.sqrt(y * y + 1) * ep.rsqrt(x * x + 2)
    two = ep.tanh(acc) * ep.erf(x) + ep.sigmoid(y) * ep.silu(acc) - ep.gelu(acc) / (1 + ep.gelu_tanh(y) ** 2)
    return one + two - abs(acc) * ep.relu(x) + ep.maximum(acc, y) * ep.minimum(x, 0.25) + ep.where(acc < x, -y, 3 * x)


def every_function_by_torch(acc, x, y):
    one = torch.exp(acc / 4) - torch.log(acc * acc + 1) + torch.sqrt(y * y + 1) * torch.rsqrt(x * x + 2)
    two = torch.tanh(acc) * torch.erf(x) + torch.sigmoid(y) * F.silu(acc)
    two = two - F.gelu(acc) / (1 + F.gelu(y, approximate="tanh") ** 2)
    clamped = torch.minimum(x, torch.tensor(0.25, dtype=x.dtype))
    return one + two - abs(acc) * F.relu(x) + torch.maximum(acc, y) * clamped + torch.where(acc < x, -y, 3 * x)


def test_every_function_has_torchs_value_and_gradient_and_its_gradients_gradient():
    a, b, x, y = values(4, 3, seed=1), values(3, 5, seed=2), values(5, seed=3), values(4, 1, seed=4)
    fused = lambda a, b, x, y: tt.matmul(a, b, epilogue=every_function, x=x, y=y)  # noqa: E731
    torch.testing.assert_close(fused(a, b, x, y), every_function_by_torch(a @ b, x, y))
    assert torch.autograd.gradcheck(fused, (a, b, x, y))
    assert torch.autograd.gradgradcheck(fused, (a, b, x, y))


SHAPES = [
    ((5, 7), (7, 3), (3,), (5, 1)), ((2, 5, 7), (7, 3), (5, 3), (2, 1, 1)), ((2, 1, 5, 7), (3, 7, 2), (3, 5, 2), ()),
    ((7,), (7, 3), (3,), (1,)), ((2, 5, 7), (7,), (5,), (2, 1)), ((7,), (7,), (), ()), ((0, 7), (7, 3), (3,), (0, 3)),
]  # fmt: skip


@pytest.mark.parametrize(("a", "b", "x", "y"), SHAPES)
def test_gradients_reach_operands_of_every_shape(a, b, x, y):
    mine = [values(*shape, seed=seed) for seed, shape in enumerate((a, b, x, y))]
    theirs = [tensor.detach().clone().requires_grad_() for tensor in mine]

    def by_torch(a, b, x, y):
        return F.silu(1.5 * torch.matmul(a, b) + x) * y

    result = tt.matmul(*mine[:2], alpha=1.5, epilogue=lambda acc, x, y: ep.silu(acc + x) * y, x=mine[2], y=mine[3])
    expected = by_torch(*theirs)
    torch.testing.assert_close(result, expected)
    weight = torch.cos(torch.arange(expected.numel(), dtype=torch.float64)).view(expected.shape)
    (result * weight).sum().backward()
    (expected * weight).sum().backward()
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.parametrize("activation", [None, "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh"])
def test_the_named_operands_are_as_told_with_their_gradients(activation):
    a, b, c = values(4, 3, seed=1), values(3, 5, seed=2), values(4, 5, seed=3)
    bias, residual, rows, cols = values(5, seed=4), values(4, 5, seed=5), values(4, seed=6), values(5, seed=7)

    def fused(a, b, c, bias, residual, rows, cols):
        return tt.matmul(a, b, c=c, alpha=0.5, beta=-2.0, bias=bias, activation=activation, residual=residual,
                         row_scale=rows, col_scale=cols)  # fmt: skip

    given = (a, b, c, bias, residual, rows, cols)
    inner = (0.5 * (a @ b) - 2 * c) * rows[:, None] * cols + bias
    function = tt.linear.__globals__["ACTIVATIONS"].get(activation, lambda x: x)
    torch.testing.assert_close(fused(*given), function(inner) + residual)
    assert torch.autograd.gradcheck(fused, given)


@pytest.mark.parametrize("function", [ep.maximum, ep.minimum])
def test_a_tie_gives_each_side_half(function):
    a, b, x = values(2, 3), values(3, 4), values(4)
    with torch.no_grad():
        a.zero_()
        x.zero_()
    mine = torch.autograd.grad(tt.matmul(a, b, epilogue=lambda acc, x: function(acc, x), x=x).sum(), (a, x))
    torch.testing.assert_close(mine, ((b.sum(1) / 2).expand(2, 3), torch.ones_like(x)))


def test_relu_of_zero_gives_nothing():
    a, b = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True), torch.ones(3, 2, dtype=torch.float64)
    for function in (ep.relu, lambda x: ep.relu(x) * 2):  # by its result, and by the sum
        (mine,) = torch.autograd.grad(tt.matmul(a, b, epilogue=lambda acc, f=function: f(acc)).sum(), a)
        assert torch.equal(mine, torch.zeros_like(a))


def test_values_and_indices_are_those_of_the_kernel():
    a, b, x = (values(*shape, dtype=torch.float32, grad=False) for shape in ((2, 6, 5), (5, 8), (2, 1, 8)))

    def function(acc, x, row, col, batch):
        return ep.where((row + 2 * col) % 3 == batch // 1, every_function(acc, x, acc - x), acc * row - col)

    mine = tt.matmul(a, b, epilogue=function, x=x)
    with tw.emulator():
        kernels = tw.matmul(a, b, epilogue=function, x=x, rung="f02")
    torch.testing.assert_close(mine, kernels, rtol=2e-5, atol=2e-5)


class Products(TorchDispatchMode):
    """Counts products by tilewright."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += "tilewright" in str(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("activation", "more"), [(None, 0), ("silu", 1)])
def test_the_sum_is_made_again_only_where_the_derivative_needs_it(activation, more):
    result = tt.matmul(values(4, 3), values(3, 5), bias=values(5), activation=activation)
    with Products() as products:
        result.sum().backward()
    assert products.count == 2 + more, "of the gradients of a and b, and of the sum"


LONG = {
    "silu": ({"activation": "silu"}, 0, lambda acc, bias, r: torch.nn.functional.silu(acc + bias)),
    "residual": ({"activation": "gelu"}, 0, lambda acc, bias, r: torch.nn.functional.gelu(acc + bias) + r),
    "gated": ({"epilogue": lambda acc, bias, r: r * ep.tanh(acc + bias)}, 0,
              lambda acc, bias, r: r * torch.tanh(acc + bias)),
    "not cut": ({"epilogue": lambda acc, bias, r: ep.exp(ep.tanh(acc + bias)) * r}, 2,
                lambda acc, bias, r: torch.exp(torch.tanh(acc + bias)) * r),
}  # fmt: skip


@pytest.mark.parametrize("name", LONG)
def test_a_long_sum_behind_an_activation_is_kept_and_not_made_again(name):
    keywords, more, by_torch = LONG[name]
    a, b, bias, r = values(4, KEPT_FROM), values(KEPT_FROM, 5), values(5), values(4, 5)
    operands = {"bias": bias} | ({} if name == "silu" else {"residual" if name == "residual" else "r": r})
    with Products() as products:
        result = tt.matmul(a, b, **keywords, **operands)
    assert products.count == 1
    dy = values(4, 5).detach()
    with Products() as products:
        result.backward(dy)
    assert products.count == 2 + more, "of the gradients of a and b, and of the sum"
    wide = [x.detach().double().requires_grad_() for x in (a, b, bias, r)]
    by_torch(wide[0] @ wide[1], *wide[2:]).backward(dy.double())
    for mine, exact in zip((a, b, *operands.values()), wide, strict=False):
        torch.testing.assert_close(mine.grad.double(), exact.grad, rtol=1e-4, atol=1e-4)


def test_the_fake_has_the_shape_and_dtype_and_refuses_what_does_not_broadcast():
    a, b, bias = (torch.empty(*shape, device="meta", dtype=torch.bfloat16) for shape in ((2, 4, 6), (6, 8), (8,)))
    made = tt.matmul(a, b, bias=bias, activation="gelu", out_dtype=torch.float32)
    assert (made.shape, made.dtype, made.is_contiguous()) == ((2, 4, 8), torch.float32, True)
    with pytest.raises(InvalidOperand, match=r"bias \(2, 4\) does not broadcast to the result's shape \(2, 4, 8\)"):
        tt.matmul(a, b, bias=bias.new_empty(2, 4))


def test_the_operator_passes_torchs_own_checks():
    a, b, c, bias, r = (values(*s, dtype=torch.float32) for s in ((3, 4, 5), (5, 6), (6,), (4, 1), (3, 4, 6)))
    operator = torch.ops.tilewright.fused_matmul.default
    text = _standard_text(("bias", "residual"), "silu")
    torch.library.opcheck(operator, (a, b, c, 1.5, 0.5, None, text, [bias, r], "ieee", False, False))
    torch.library.opcheck(
        operator,
        (a.detach(), b.detach(), None, 1.0, 0.0, torch.float16, text, [bias.detach(), r], "ieee", False, False),
    )


SCALE = 0.5


def scaled(acc, x, r):
    return ep.gelu(acc * SCALE + x) * r


@pytest.mark.parametrize("kind", ["named", "function", "lambda"])
def test_compiled_functions_keep_the_operator_in_one_graph(kind):
    a, b, x, r = values(4, 3, seed=1), values(3, 5, seed=2), values(5, seed=3), values(4, 5, seed=4)
    factor = 0.25
    calls = {
        "named": lambda: tt.matmul(
            a, b, bias=x, activation="silu", residual=r, deterministic=True, batch_invariant=True
        ),
        "function": lambda: tt.matmul(a, b, epilogue=scaled, x=x, r=r),
        "lambda": lambda: tt.matmul(a, b, epilogue=lambda acc, x, r: ep.tanh(acc * factor + x) * r, x=x, r=r),
    }
    call = calls[kind]
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(), call())
    wanted = torch.autograd.grad(call().square().sum(), (a, b, x, r))
    for one, other in zip(torch.autograd.grad(compiled().square().sum(), (a, b, x, r)), wanted, strict=True):
        torch.testing.assert_close(one, other)


class Scaled(nn.Module):
    """Reads a global, an attribute, a number of the call, and what the function it calls reads."""

    def __init__(self) -> None:
        super().__init__()
        self.shift, self.weight = 2.0, values(3, 5, seed=2)

    def forward(self, a, factor, x):
        return tt.matmul(
            a, self.weight, epilogue=lambda acc, x, row, *, n: scaled(acc + self.shift, x, n) * factor + row, x=x,
            n=factor,
        )  # fmt: skip


def test_what_a_compiled_epilogue_reads_may_change_between_calls(monkeypatch):
    torch.compiler.reset()
    module = Scaled()
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    a, x = values(4, 3, seed=1), values(5, seed=3)

    def check(factor):
        torch.testing.assert_close(compiled(a, factor, x), module(a, factor, x))

    for factor in (0.25, 1.5):  # the second makes a symbol of it
        check(factor)
    monkeypatch.setitem(globals(), "SCALE", 0.75)
    check(1.5)
    module.shift = -1.0
    check(1.5)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda acc, k=2.0, row=1: acc * k, "the parameter row, an index, has no defaults"),
        (lambda acc, *, col: acc * col, "no index after a \\*"),
        (SCALE.__mul__, "functions and lambdas only"),
        (lambda acc: acc * 1e300, "1e\\+300 is beyond float32"),
        (lambda acc, x: acc * x, "names the operand 'x', and the call does not pass it"),
        (lambda acc: acc if acc > 0 else 0, "Python control flow"),
    ],
)  # fmt: skip
def test_what_cannot_be_compiled_is_told_in_our_words(function, words):
    torch.compiler.reset()
    compiled = torch.compile(
        lambda a, b: tt.matmul(a, b, epilogue=function), fullgraph=True, backend="eager", dynamic=False
    )
    with pytest.raises(torch._dynamo.exc.Unsupported, match=f"InvalidEpilogue.*{words}"):
        compiled(torch.ones(4, 2), torch.ones(2, 3))


@pytest.mark.skipif(
    torch.__version__.startswith("2.13."), reason="torch 2.13 cannot read defaults of a function that it compiles"
)
def test_without_fullgraph_what_cannot_be_compiled_runs_as_it_is():
    torch.compiler.reset()
    compiled = torch.compile(
        lambda a, b: tt.matmul(a, b, epilogue=lambda acc, k=2.0, row=0.5: acc * k + row), backend="eager"
    )
    torch.testing.assert_close(compiled(torch.ones(4, 2), torch.ones(2, 3)), torch.full((4, 3), 4.5))


@pytest.mark.parametrize(
    ("error", "words", "options"),
    [
        (InvalidEpilogue, "activation='swish' is not known. Known: relu", {"activation": "swish"}),
        (InvalidEpilogue, "Python control flow", {"epilogue": lambda acc: acc if acc > 0 else 0}),
        (InvalidEpilogue, "matmul has no argument 'x'", {"x": torch.ones(3)}),
        (InvalidEpilogue, "not a parameter of the lambda", {"epilogue": lambda acc: acc, "x": torch.ones(3)}),
        (InvalidEpilogue, "next to an epilogue", {"epilogue": lambda acc: acc, "activation": "relu"}),
        (InvalidEpilogue, "torch's relu met a traced value", {"epilogue": lambda acc: torch.relu(acc)}),
        (InvalidOperand, "bias is a float, not a tensor", {"bias": 2.0}),
        (InvalidOperand, "residual is a torch.int32", {"residual": torch.ones(4, 3, dtype=torch.int32)}),
        (
            InvalidOperand,
            "row_scale (5,) does not broadcast to the result's shape (4, 3) (one number per row)",
            {"row_scale": torch.ones(5)},
        ),
    ],
)
def test_what_does_not_fit_is_refused_as_matmul_refuses_it(error, words, options):
    with pytest.raises(error) as caught:
        tt.matmul(torch.ones(4, 2), torch.ones(2, 3), **options)
    assert words in str(caught.value)


# --- layers -----------------------------------------------------------------------------------------------------------


def model() -> nn.Sequential:
    torch.manual_seed(0)
    shared = nn.Linear(8, 8)
    return nn.Sequential(
        nn.Linear(8, 16), nn.GELU(approximate="tanh"), nn.Linear(16, 8), nn.SiLU(), nn.Dropout(0.0), shared, nn.ReLU(),
        shared, nn.Sequential(nn.Linear(8, 8), nn.Softmax(-1)), nn.Linear(8, 4), nn.Tanh(),
    )  # fmt: skip


@pytest.mark.filterwarnings("ignore:tilewright has no kernel")
def test_replaced_linears_take_the_activations_behind_them():
    layers, other, x = model(), model(), torch.randn(3, 8)
    layers[9].register_forward_hook(lambda *_: None)
    names = list(layers.state_dict())
    assert tt.replace_linears(layers, fuse=True) == 5
    assert [layer.activation for layer in layers.modules() if isinstance(layer, tt.Linear)] == [
        "gelu_tanh", "silu", None, None, None,
    ]  # fmt: skip
    assert [type(layers[place]) for place in (1, 3, 6, 10)] == [nn.Identity, nn.Identity, nn.ReLU, nn.Tanh]
    assert list(layers.state_dict()) == names
    assert "activation=silu" in repr(layers[2])
    torch.testing.assert_close(layers(x), other(x))


@pytest.mark.filterwarnings("ignore:tilewright has no kernel")
def test_a_layer_with_an_activation_is_linear_and_that_and_trains():
    layer = tt.Linear(6, 4, activation="gelu")
    x, residual = torch.randn(3, 6), torch.randn(3, 4)
    torch.testing.assert_close(layer(x), F.gelu(F.linear(x, layer.weight, layer.bias)))
    torch.testing.assert_close(
        tt.linear(x, layer.weight, layer.bias, "relu", residual),
        F.relu(F.linear(x, layer.weight, layer.bias)) + residual,
    )
    layer(x).sum().backward()
    assert math.isfinite(float(layer.weight.grad.abs().sum()))
    with pytest.raises(InvalidOperand, match="relu, gelu"):
        tt.Linear(6, 4, activation="swish")


@pytest.mark.parametrize("k", [64, KEPT_FROM])
@pytest.mark.filterwarnings("ignore:tilewright has no kernel")
def test_layers_and_epilogues_compile_without_a_graph_break_short_sums_and_long(k):
    layer = tt.Linear(k, 6, activation="silu", dtype=torch.float64)
    x, w, r = values(3, k), values(k, 6), values(3, 6)

    def both(x, w, r):
        return layer(x) + tt.matmul(x, w, epilogue=lambda acc, r: ep.silu(acc) * r, r=r)

    given = [x, w, r, layer.weight]
    for dynamic in (False, True):
        torch._dynamo.reset()
        results = [both(x, w, r), torch.compile(both, backend="aot_eager", fullgraph=True, dynamic=dynamic)(x, w, r)]
        torch.testing.assert_close(*results)
        torch.testing.assert_close(*(torch.autograd.grad(result.square().sum(), given) for result in results),
                                   rtol=1e-4, atol=1e-3)  # fmt: skip
