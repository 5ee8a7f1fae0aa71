"""tilewright.torch without a GPU: schemas and fakes, gradients of the operator, layers put into models."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.autograd import forward_ad  # noqa: E402

import tilewright.torch as tt  # noqa: E402
from tilewright.errors import InvalidOperand  # noqa: E402
from tilewright.torch import layer as layer_module  # noqa: E402

SHAPES = [
    ((5, 7), (7, 3)), ((2, 5, 7), (7, 3)), ((2, 5, 7), (2, 7, 3)), ((4, 1, 5, 7), (3, 7, 2)), ((7,), (7, 3)),
    ((5, 7), (7,)), ((7,), (7,)), ((2, 5, 7), (7,)), ((7,), (2, 7, 3)), ((0, 7), (7, 3)), ((5, 0), (0, 3)),
]  # fmt: skip


def values(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator)


@pytest.mark.parametrize(("a", "b"), SHAPES)
def test_the_fake_has_the_shape_and_strides_of_the_product(a, b):
    meta = torch.ops.tilewright.matmul(
        torch.empty(a, device="meta"), torch.empty(b, device="meta"), None, 1.0, 0.0, None, "ieee", False, False
    )
    real = torch.matmul(values(*a), values(*b))
    assert meta.shape == real.shape
    assert meta.stride() == real.contiguous().stride()


def test_the_fake_has_the_dtype_asked_for():
    a = torch.empty(4, 5, device="meta", dtype=torch.bfloat16)
    assert (
        torch.ops.tilewright.matmul(a, a.t(), None, 1.0, 0.0, torch.float32, "ieee", False, False).dtype
        == torch.float32
    )
    assert torch.ops.tilewright.matmul(a, a.t(), None, 1.0, 0.0, None, "ieee", False, False).dtype == torch.bfloat16


def test_shapes_that_do_not_fit_are_refused_when_tracing():
    with pytest.raises(Exception, match="do not fit"):
        torch.ops.tilewright.matmul(
            torch.empty(4, 5, device="meta"),
            torch.empty(4, 5, device="meta"),
            None,
            1.0,
            0.0,
            None,
            "ieee",
            False,
            False,
        )


@pytest.mark.parametrize(("a", "b"), SHAPES)
def test_gradients_are_those_of_torchs_own_product(a, b):
    mine = [values(*a, seed=1).requires_grad_(), values(*b, seed=2).requires_grad_()]
    theirs = [tensor.detach().clone().requires_grad_() for tensor in mine]
    result, expected = tt.matmul(*mine, alpha=1.5), 1.5 * torch.matmul(*theirs)
    torch.testing.assert_close(result, expected)
    weight = values(*expected.shape, seed=3) if expected.dim() else torch.tensor(2.0)
    (result * weight).sum().backward()
    (expected * weight).sum().backward()
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_the_gradient_of_a_broadcast_c_is_summed_over_its_axes():
    a, b, c = values(2, 5, 7), values(7, 3), values(3).requires_grad_()
    tt.matmul(a, b, c=c, beta=0.5).sum().backward()
    torch.testing.assert_close(c.grad, torch.full((3,), 0.5 * 10))


def test_gradients_of_gradients_exist():
    a, b = values(4, 5).double().float().requires_grad_(), values(5, 3).requires_grad_()
    (grad,) = torch.autograd.grad(tt.matmul(a, b).pow(2).sum(), a, create_graph=True)
    grad.sum().backward()
    assert torch.isfinite(b.grad).all()


def test_the_operator_passes_torchs_own_checks():
    a, b, c = values(3, 4, 5).requires_grad_(), values(5, 6).requires_grad_(), values(6).requires_grad_()
    torch.library.opcheck(torch.ops.tilewright.matmul.default, (a, b, c, 1.5, 0.5, None, "ieee", False, False))
    torch.library.opcheck(torch.ops.tilewright.matmul.default, (a, b, c, 1.5, 0.5, None, "fp32x3", True, True))
    torch.library.opcheck(
        torch.ops.tilewright.matmul.default,
        (a.detach(), b.detach(), None, 1.0, 0.0, torch.float16, "ieee", False, False),
    )


@pytest.fixture
def told(monkeypatch):
    """What the CPU's product is told of precision, deterministic and batch_invariant, in order."""
    from tilewright.torch import product

    found, plain = [], product._on_cpu

    def kernel(*arguments):
        found.append(arguments[6:])
        return plain(*arguments)

    monkeypatch.setattr(product, "_on_cpu", kernel)  # eager calls
    product.matmul_op.register_kernel("cpu")(kernel)  # the operator's
    yield found
    product.matmul_op.register_kernel("cpu")(plain)


@pytest.mark.parametrize("fused", [{}, {"bias": 3, "activation": "silu"}], ids=["bare", "fused"])
def test_the_gradients_products_keep_the_promises_of_the_product(fused, told):
    a, b = values(3, 5, seed=1).requires_grad_(), values(5, 3, seed=2).requires_grad_()
    given = {name: values(size) if isinstance(size, int) else size for name, size in fused.items()}
    result = tt.matmul(a, b, precision="fp32x3", deterministic=True, batch_invariant=True, **given)
    torch.testing.assert_close(result, tt.matmul(a, b, **given))
    assert told == [("fp32x3", True, True), ("ieee", False, False)]
    told.clear()
    result.sum().backward()
    by_rows, over_rows = ("fp32x3", True, True), ("fp32x3", True, False)
    again = [by_rows] if fused else []  # behind an epilogue the sum is made again first
    assert told == [*again, by_rows, over_rows]


@pytest.mark.parametrize("transform", ["grad", "jvp", "vmap"])
@pytest.mark.parametrize("op", ["matmul", "attention"])
def test_torch_funcs_transforms_are_refused(transform, op):
    x = values(1, 2, 8, 16)
    call = {"matmul": lambda x: tt.matmul(x, x.mT), "attention": lambda x: tt.attention(x, x, x)}[op]
    run = {
        "grad": lambda: torch.func.grad(lambda x: call(x).sum())(x),
        "jvp": lambda: torch.func.jvp(call, (x,), (x,)),
        "vmap": lambda: torch.vmap(call)(x[None]),
    }[transform]
    with pytest.raises(InvalidOperand, match=f"{op} is called inside one of torch.func's transforms"):
        run()


def test_a_tangent_is_not_lost():
    x, y = values(3, 4), values(4, 2)
    with forward_ad.dual_level():
        assert torch.equal(tt.matmul(x, y), x @ y)
        with pytest.raises(InvalidOperand, match=r"shape \(4, 2\) has a tangent"):
            tt.matmul(x, forward_ad.make_dual(y, y))
    tangent = torch.autograd.functional.jvp(lambda y: tt.matmul(x, y), y, y)[1]
    torch.testing.assert_close(tangent, x @ y)


@pytest.mark.parametrize("name", ["alpha", "beta"])
def test_a_scale_whose_gradient_would_be_lost_is_refused(name):
    a, b, c = values(2, 3), values(3, 2), values(2, 2)
    learned = torch.tensor(2.0, requires_grad=True)
    with pytest.raises(InvalidOperand, match=rf"{name} requires a gradient, and none would reach it"):
        tt.matmul(a, b, c=c, **{name: learned})
    with torch.no_grad():
        given = tt.matmul(a, b, c=c, **{name: learned})
    torch.testing.assert_close(given, tt.matmul(a, b, c=c, **{name: 2.0}).detach())


@pytest.mark.parametrize("option", ["verify", "out", "rung", "config"])
def test_an_option_that_the_operator_lacks_is_refused_with_gradients_or_not(option):
    for grad in (True, False):
        with (
            torch.set_grad_enabled(grad),
            pytest.raises(InvalidOperand, match=f"no option {option}. tilewright.matmul"),
        ):
            tt.matmul(values(2, 3), values(3, 2), **{option: True})


def test_a_beta_with_nothing_to_scale_is_refused():
    with pytest.raises(InvalidOperand, match=r"beta=0\.5 without c"):
        tt.matmul(values(2, 3), values(3, 2), beta=0.5)


def test_only_a_module_has_layers_to_replace():
    with pytest.raises(InvalidOperand, match="model is a int; replace_linears takes"):
        tt.replace_linears(3)


def test_a_precision_that_operands_cannot_have_is_refused():
    with pytest.raises(InvalidOperand, match="'fp64' is not known"):
        tt.matmul(values(2, 3), values(3, 2), precision="fp64")
    for dtype in (torch.float16, torch.float64):
        with pytest.raises(InvalidOperand, match=f"float32 operands; these are {dtype}"):
            tt.matmul(values(2, 3).to(dtype), values(3, 2).to(dtype), precision="tf32")


@pytest.mark.parametrize("activation", [None, "relu", "gelu", "gelu_tanh", "silu"])
@pytest.mark.filterwarnings("ignore:tilewright has no kernel")
def test_linear_is_torchs_linear_with_its_activation(activation):
    x, weight, bias = values(2, 3, 8), values(4, 8), values(4)
    expected = torch.nn.functional.linear(x, weight, bias)
    if activation:
        name, _, form = activation.partition("_")
        expected = getattr(torch.nn.functional, name)(expected, **({"approximate": form} if form else {}))
    torch.testing.assert_close(tt.linear(x, weight, bias, activation), expected)


@pytest.mark.filterwarnings("ignore:tilewright has no kernel")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_autocast_casts_what_it_casts_for_torchs_linear(dtype):
    """float64 it leaves alone."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    before = torch.is_autocast_enabled("cuda")
    torch.set_autocast_enabled("cuda", True)
    try:
        with FakeTensorMode():
            x, weight, bias = (torch.empty(shape, device="cuda", dtype=dtype) for shape in ((4, 8), (6, 8), (6,)))
            wanted = torch.nn.functional.linear(x, weight, bias).dtype
            assert tt.linear(x, weight, bias).dtype == wanted
    finally:
        torch.set_autocast_enabled("cuda", before)


def test_an_unknown_activation_is_refused_with_the_known_ones():
    with pytest.raises(InvalidOperand, match="relu, gelu"):
        tt.linear(values(2, 3), values(4, 3), activation="swish")


def test_a_cpu_tensor_takes_torchs_own_linear_and_says_so():
    with pytest.warns(UserWarning, match="torch's own linear"):
        tt.linear(values(2, 3), values(4, 3))


class Block(torch.nn.Module):
    """Attention and a gated feed-forward, as transformers have them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(32)
        self.qkv, self.project = torch.nn.Linear(32, 96, bias=False), torch.nn.Linear(32, 32)
        self.gate, self.up, self.down = (torch.nn.Linear(i, o) for i, o in ((32, 64), (32, 64), (64, 32)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).view(*x.shape[:2], 3, 4, 8).permute(2, 0, 3, 1, 4)
        seen = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(seen.transpose(1, 2).flatten(2))
        return x + self.down(torch.nn.functional.silu(self.gate(x)) * self.up(x))


@pytest.mark.filterwarnings("ignore:tilewright has no kernel")
def test_replaced_linears_keep_parameters_hooks_and_mode_and_give_the_same_result():
    torch.manual_seed(0)
    model = Block().eval()
    seen = []
    model.gate.register_forward_hook(lambda *_: seen.append("gate"))
    other, x = copy.deepcopy(model), values(2, 6, 32)
    before = {name: parameter.data_ptr() for name, parameter in model.named_parameters()}
    state = list(model.state_dict())
    assert tt.replace_linears(model) == 5
    assert all(isinstance(getattr(model, n), tt.Linear) for n in ("qkv", "project", "gate", "up", "down"))
    assert {name: parameter.data_ptr() for name, parameter in model.named_parameters()} == before
    assert list(model.state_dict()) == state
    assert not model.training
    torch.testing.assert_close(model(x), other(x))
    assert seen
    assert repr(model.gate) == repr(other.gate)
    assert tt.replace_linears(model) == 0


def test_tied_weights_stay_tied_and_a_choice_is_respected():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 4))
    model[1].weight = model[0].weight
    assert tt.replace_linears(model, where=lambda name, module: module.out_features == 8) == 2
    assert model[0].weight is model[1].weight
    assert type(model[2]) is torch.nn.Linear


PROMISES = {"precision": "fp32x3", "deterministic": True, "batch_invariant": True}


@pytest.mark.parametrize("made", ["linear", "Linear", "replace_linears"])
def test_layers_pass_on_what_they_promise(made, monkeypatch):
    asked = []
    for module, name in ((sys.modules[tt.linear.__module__], "matmul"), (layer_module, "run")):
        monkeypatch.setattr(module, name, lambda *_, **options: asked.append(options) or torch.empty(0))
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    layer = tt.Linear(8, 4, **PROMISES) if made == "Linear" else torch.nn.Linear(8, 4)
    if made == "linear":
        tt.linear(values(2, 8), layer.weight, layer.bias, out_dtype=torch.float16, **PROMISES)
        assert asked[0]["out_dtype"] == torch.float16
    else:
        assert made == "Linear" or tt.replace_linears(layer, **PROMISES) == 1
        layer(values(2, 8))
        assert repr(layer).endswith("bias=True, precision=fp32x3, deterministic=True, batch_invariant=True)")
    assert PROMISES.items() <= asked[0].items()


def test_a_layer_on_the_cpu_says_what_it_does_not_promise():
    layer = tt.Linear(3, 4, batch_invariant=True)
    with pytest.warns(UserWarning, match="torch's own linear runs instead, without batch_invariant"):
        layer(values(2, 3))
    with pytest.raises(InvalidOperand, match="'fp64' is not known"):
        tt.Linear(3, 4, precision="fp64")
    with pytest.raises(InvalidOperand, match="'fp64' is not known"):
        tt.replace_linears(layer, precision="fp64")


def test_subclasses_of_linear_are_left_alone():
    class Scaled(torch.nn.Linear):
        pass

    assert tt.replace_linears(torch.nn.Sequential(Scaled(4, 4))) == 0


def test_importing_tilewright_alone_imports_no_torch():
    code = "import sys, tilewright; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"
