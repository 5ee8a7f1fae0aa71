"""Gradients in eager mode, without a GPU: past the operators, with everything that torch's own layers keep."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import tilewright as tw  # noqa: E402
import tilewright.torch as tt  # noqa: E402
from tilewright import epilogue as ep  # noqa: E402
from tilewright.errors import InvalidEpilogue, InvalidOperand  # noqa: E402
from tilewright.torch import fused, product  # noqa: E402


def values(*shape: int, seed: int = 0, dtype=torch.float64, grad: bool = True) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_(grad)


def gated(acc, bias, r):
    return ep.silu(acc + bias) * r


KINDS = {
    "bare": ((), {}, lambda acc: acc),
    "bias": (("bias",), {}, lambda acc, bias: acc + bias),
    "activation": (("bias", "residual"), {"activation": "gelu"}, lambda acc, bias, r: F.gelu(acc + bias) + r),
    "relu": (("bias",), {"activation": "relu"}, lambda acc, bias: F.relu(acc + bias)),
    "function": (("bias", "r"), {"epilogue": gated}, lambda acc, bias, r: F.silu(acc + bias) * r),
}
"""By name: operands beside a and b, options, and what torch would do to the product."""


def call(kind, a, b, *others, **more):
    names, options, _ = KINDS[kind]
    return tt.matmul(a, b, **dict(zip(names, others, strict=True)), **options, **more)


def by_torch(kind, a, b, *others):
    return KINDS[kind][2](a @ b, *others)


def operands(kind):
    given = values(4, 3, seed=1), values(3, 5, seed=2), values(5, seed=3), values(4, 5, seed=4)
    return given[: 2 + len(KINDS[kind][0])]


@pytest.fixture
def made(monkeypatch):
    """The dtype of each product that is computed, in order; behind an epilogue the CPU makes the sum by one more."""
    found = []
    plain, with_epilogue = product._on_cpu, fused._on_cpu

    def bare(*arguments):
        found.append(arguments[5] or arguments[0].dtype)
        return plain(*arguments)

    def behind(*arguments):
        found.append(arguments[5] or arguments[0].dtype)
        before = len(found)
        result = with_epilogue(*arguments)
        del found[before:]
        return result

    monkeypatch.setattr(product, "_on_cpu", bare)
    monkeypatch.setattr(fused, "_on_cpu", behind)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_eager_calls_take_no_operator_and_what_traces_does(kind):
    given = operands(kind)
    name = "TilewrightMatmulBackward" if kind == "bare" else "TilewrightFusedMatmulBackward"
    assert call(kind, *given).grad_fn.name() == name
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(x) for x in given]
        assert "GeneratedBackwardFor_tilewright" in call(kind, *fakes).grad_fn.name()
    graph = make_fx(lambda *given: torch.autograd.grad(call(kind, *given).sum(), given[0]))(*given)
    assert sum("tilewright" in str(node.target) for node in graph.graph.nodes) >= 2
    wanted = torch.autograd.grad(by_torch(kind, *given).sum(), given[0])
    torch.testing.assert_close(graph(*given), wanted)


class Wrapped(torch.Tensor):
    pass


def test_subclasses_take_the_operator():
    a, b = values(4, 3).as_subclass(Wrapped), values(3, 5)
    result = tt.matmul(a, b, bias=values(5))
    assert isinstance(result, Wrapped)
    made_by = result.grad_fn.next_functions[0][0]  # behind the step that wraps it again
    assert "GeneratedBackwardFor_tilewright" in made_by.name()


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_have_gradients(kind):
    given = operands(kind)
    assert torch.autograd.gradcheck(lambda *given: call(kind, *given, alpha=0.5), given)
    assert torch.autograd.gradgradcheck(lambda *given: call(kind, *given, alpha=0.5), given)


ASKED = [(kind, place) for kind in KINDS for place in range(2 + len(KINDS[kind][0]))]


@pytest.mark.parametrize(("kind", "asked"), ASKED)
def test_only_what_needs_a_gradient_is_computed(kind, asked, made):
    given = [x.detach().requires_grad_(place == asked) for place, x in enumerate(operands(kind))]
    result = call(kind, *given)
    made.clear()
    (mine,) = torch.autograd.grad(result.square().sum(), given[asked])
    needs_sum = {"activation": asked != 3, "function": True}.get(kind, False)
    assert len(made) == (asked < 2) + needs_sum
    torch.testing.assert_close(mine, torch.autograd.grad(by_torch(kind, *given).square().sum(), given[asked])[0])


@pytest.mark.parametrize("kind", KINDS)
def test_an_operand_changed_in_place_is_told(kind):
    a, b, *others = operands(kind)
    changed = b * 1
    result = call(kind, a, changed, *others)
    with torch.no_grad():
        changed.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


@pytest.mark.parametrize("kind", KINDS)
def test_checkpoints_and_hooks_on_saved_tensors_see_them(kind):
    given = operands(kind)
    wanted = torch.autograd.grad(call(kind, *given).square().sum(), given)
    again = torch.autograd.grad(
        checkpoint(lambda *x: call(kind, *x), *given, use_reentrant=False).square().sum(), given
    )
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: packed.append(x.shape) or x.clone(), lambda x: x):
        result = call(kind, *given)
    hooked = torch.autograd.grad(result.square().sum(), given)
    torch.testing.assert_close(again, wanted)
    torch.testing.assert_close(hooked, wanted)
    assert packed[:2] == [(4, 3), (3, 5)]


@pytest.mark.parametrize(
    ("kind", "kept"),
    [
        ("bare", [(4, 3), (3, 5)]),
        ("bias", [(4, 3), (3, 5)]),
        ("activation", [(4, 3), (3, 5), (5,)]),
        ("relu", [(4, 3), (3, 5), (4, 5)]),
    ],
)
def test_only_what_the_gradients_read_is_kept(kind, kept):
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: packed.append(tuple(x.shape)) or x, lambda x: x):
        call(kind, *operands(kind))
    assert packed == kept, "no residual; nothing of the result's size but behind a relu, which torch's keeps, too"


@pytest.mark.parametrize("kind", ["bare", "bias"])
def test_b_is_kept_for_as_gradient_only(kind):
    a, b, *others = operands(kind)
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: packed.append(tuple(x.shape)) or x, lambda x: x):
        result = call(kind, a.detach(), b, *others)
    assert packed == [(4, 3)], "b is read by a's gradient only"
    result.sum().backward()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["expanded", "transposed", "sliced"])
def test_a_gradient_may_lie_as_it_likes(kind, how):
    given = operands(kind)
    grad = {
        "expanded": values(1, 1, grad=False).expand(4, 5), "transposed": values(5, 4, grad=False).t(),
        "sliced": values(8, 10, grad=False)[::2, 1::2],
    }[how]  # fmt: skip
    mine = torch.autograd.grad(call(kind, *given), given, grad)
    expected = torch.autograd.grad(by_torch(kind, *given), given, grad)
    torch.testing.assert_close(mine, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_batches_of_gradients_are_each_computed(kind, monkeypatch):
    """By operators, which torch runs for each: what stands for a batch has no memory that a kernel could read."""
    given = operands(kind)
    result = call(kind, *given)
    plain = product.run_product
    monkeypatch.setattr(product, "run_product", lambda a, b, *more: (a.data_ptr(), b.data_ptr()) and plain(a, b, *more))
    pulls = values(3, 4, 5, grad=False)
    batched = torch.autograd.grad(result, given, pulls, is_grads_batched=True, retain_graph=True)
    for place, pull in enumerate(pulls):
        alone = torch.autograd.grad(result, given, pull, retain_graph=True)
        torch.testing.assert_close(tuple(x[place] for x in batched), alone)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shapes", [((2, 3, 0), (0, 4)), ((2, 3, 5), (5, 0)), ((0, 3, 5), (5, 4))], ids=str)
def test_batches_without_an_element_have_gradients_too(kind, shapes):
    a, b = values(*shapes[0]), values(*shapes[1])
    names = KINDS[kind][0]
    given = (a, b, *(values(shapes[1][-1], seed=2 + n) for n in range(len(names))))
    mine = torch.autograd.grad(call(kind, *given).sum(), given)
    for one, right in zip(mine, torch.autograd.grad(by_torch(kind, *given).sum(), given), strict=True):
        torch.testing.assert_close(one, right)


@pytest.mark.parametrize("kind", ["bare", "activation"])
@pytest.mark.parametrize(
    ("shapes", "what"),
    [(((3, 5), (4, 4)), "do not fit"), (((), (3, 4)), "a has no axis"), (((3, 4), ()), "b has no axis"),
     (((2, 3, 5), (3, 5, 4)), "do not broadcast")], ids=str,
)  # fmt: skip
def test_operands_that_do_not_fit_are_refused_as_without_gradients(kind, shapes, what):
    a, b = (values(*shape) for shape in shapes)
    others = (values(4), values(4)) if kind == "activation" else ()
    with pytest.raises(InvalidOperand, match=what):
        call(kind, a, b, *others)


def test_a_scale_may_be_a_tensor_without_a_gradient():
    a, b, c = values(4, 3), values(3, 5), values(4, 5)
    mine = tt.matmul(a, b, c=c, alpha=torch.tensor(0.5), beta=torch.tensor(2.0))
    torch.testing.assert_close(mine, 0.5 * a @ b + 2 * c)
    mine.sum().backward()
    torch.testing.assert_close(c.grad, torch.full_like(c, 2.0))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [(), (2,)])
def test_a_layers_weight_gets_a_gradient_that_lies_as_it_does(kind, batch):
    """Else torch would copy each of them, turning it round."""
    weight = torch.nn.Parameter(values(5, 3, grad=False))
    others = operands(kind)[2:]
    arrived = []
    weight.register_hook(lambda grad: arrived.append(grad.stride()))
    call(kind, values(*batch, 4, 3), weight.t(), *others).sum().backward()
    assert arrived == [(3, 1)]
    transposed = values(*batch, 3, 4).mT
    wanted = torch.autograd.grad(by_torch(kind, transposed, weight.t(), *others).sum(), weight)
    torch.testing.assert_close(torch.autograd.grad(call(kind, transposed, weight.t(), *others).sum(), weight), wanted)


# --- what the gradients behind an epilogue cost -----------------------------------------------------------------------

H, S = torch.bfloat16, torch.float32
COSTS = {
    "a bias": (lambda acc, x: acc + x, {"x": (5,)}, []),
    "a residual": (lambda acc, x: x - acc, {"x": (4, 5)}, []),
    "a scale of its own": (lambda acc: 0.3 * acc, {}, []),
    "silu": (lambda acc, x: ep.silu(acc + x), {"x": (5,)}, [H]),
    "relu": (lambda acc, x: ep.relu(acc + x), {"x": (5,)}, []),
    "relu of an activation": (lambda acc, x: ep.relu(ep.tanh(acc) + x), {"x": (5,)}, [S, H]),
    "a gate": (lambda acc, x, y: ep.silu(acc + x) * y, {"x": (5,), "y": (4, 5)}, [H, H]),
    "a gate a row": (lambda acc, x, y: ep.silu(acc + x) * y, {"x": (5,), "y": (4, 1)}, [S, H]),
    "three gates": (lambda acc, x, y, z: ep.exp(acc / 4 * x) * y * z, {"x": (5,), "y": (5,), "z": (4, 1)}, [S]),
    "an index": (lambda acc, x, row, col: ep.where(col <= row, acc * x, 0.0), {"x": (5,)}, [S]),
}
"""By name: an expression, its operands' shapes, and the products that its gradients take beside those of a and b."""


@pytest.mark.parametrize("name", COSTS)
def test_gradients_behind_an_epilogue_take_these_products_and_no_more(name, made):
    function, shapes, more = COSTS[name]
    given = {key: values(*shape, seed=3, dtype=H) for key, shape in shapes.items()}
    result = tt.matmul(values(4, 3, dtype=H), values(3, 5, dtype=H), epilogue=function, **given)
    made.clear()
    result.sum().backward()
    assert made == [*more, H, H]


def slopes(function, given, grad):
    """The gradients in float64 of the very numbers given; that those are right gradcheck holds, below."""
    wide = {name: x.detach().double().requires_grad_() for name, x in given.items()}
    a, b = wide.pop("a"), wide.pop("b")
    result = tt.matmul(a, b, epilogue=function, **wide)
    return torch.autograd.grad(result, [a, b, *wide.values()], grad.double())


@pytest.mark.parametrize("dtype", [H, torch.float16], ids=str)
@pytest.mark.parametrize("name", COSTS)
def test_gradients_of_16_bits_are_rounded_once_on_the_way(name, dtype):
    """Of the sum's gradient, to the operands' type, as torch rounds it between two of its kernels."""
    function, shapes, _ = COSTS[name]
    given = {"a": values(4, 3, seed=1, dtype=dtype), "b": values(3, 5, seed=2, dtype=dtype)}
    given |= {key: values(*shape, seed=5, dtype=dtype) for key, shape in shapes.items()}
    grad = values(4, 5, seed=9, dtype=dtype, grad=False)
    others = {name: x for name, x in given.items() if name not in "ab"}
    result = tt.matmul(given["a"], given["b"], epilogue=function, **others)
    mine = torch.autograd.grad(result, list(given.values()), grad)
    step = torch.finfo(dtype).eps / 2
    for x, one, right in zip(given.values(), mine, slopes(function, given, grad), strict=True):
        assert one.dtype == x.dtype
        assert torch.isfinite(one).all()
        assert float((one.double() - right).abs().max()) <= 3 * step * max(1.0, float(right.abs().max()))


def test_operands_of_another_type_get_gradients_of_theirs():
    a, b = values(4, 3, dtype=H), values(3, 5, dtype=H)
    bias, residual = values(5, dtype=S), values(4, 5, dtype=torch.float16)
    grad = torch.ones(4, 5, dtype=H)
    grad[0] = 256  # bfloat16 has no 257
    tt.matmul(a, b, bias=bias, residual=residual).backward(grad)
    assert (bias.grad.dtype, residual.grad.dtype) == (S, torch.float16)
    assert torch.equal(bias.grad, torch.full((5,), 259.0))
    assert torch.equal(residual.grad, grad.half())


@pytest.mark.parametrize(
    "shapes", [((3,), (3, 5)), ((4, 3), (3,)), ((3,), (3,)), ((2, 4, 3), (3, 5)), ((0, 3), (3, 5))]
)
@pytest.mark.parametrize("name", ["silu", "three gates", "an index"])
def test_gradients_of_gradients_behind_an_epilogue_whichever_way_it_goes(name, shapes):
    function, operands_shapes, _ = COSTS[name]
    given = [values(*shape, seed=1) for shape in shapes]
    shape = torch.matmul(*given).shape
    for number, _ in enumerate(operands_shapes):
        given.append(values(*(1 if number == 2 else extent for extent in shape[len(shape) - 1 :]), seed=number))
    call = lambda a, b, *x: tt.matmul(a, b, epilogue=function, **dict(zip(operands_shapes, x, strict=True)))  # noqa: E731
    assert torch.autograd.gradcheck(call, given)
    assert torch.autograd.gradgradcheck(call, given)


@pytest.mark.parametrize(
    "name", ["matmul", "linear", "grouped_matmul", "attention", "attention_varlen", "gated_mlp", "fp8_linear"]
)
def test_what_is_no_tensor_is_named(name):
    x, offs = torch.ones(4, 4), torch.tensor([4], dtype=torch.int32)
    count = {"attention": 3, "attention_varlen": 3, "gated_mlp": 4}.get(name, 2)
    more = {"grouped_matmul": (offs,), "attention_varlen": (offs, offs)}.get(name, ())
    for place in range(count):
        given = [[1, 2] if n == place else x for n in range(count)]
        with pytest.raises(InvalidOperand, match=rf"torch\.{name} takes torch tensors, and .* is of type list"):
            getattr(tt, name)(*given, *more)


@pytest.mark.parametrize("call", [
    lambda flag, q, x: tt.attention(q, q, q, is_causal=flag),
    lambda flag, q, x: tt.scaled_dot_product_attention(q, q, q, is_causal=flag),
    lambda flag, q, x: tw.attention(q, q, q, is_causal=flag),
    lambda flag, q, x: tw.attention_backward(q, q, q, q, q, q.float()[..., 0], deterministic=flag),
    lambda flag, q, x: tt.matmul(x.requires_grad_(), x, deterministic=flag),
    lambda flag, q, x: tt.Linear(4, 4, batch_invariant=flag),
    lambda flag, q, x: tt.linear(x, x, deterministic=flag),
    lambda flag, q, x: tt.linear(x, x, batch_invariant=flag),
    lambda flag, q, x: tt.replace_linears(torch.nn.Linear(4, 4), fuse=flag),
    lambda flag, q, x: tt.context_rows(8, 2, 0, zigzag=flag),
    lambda flag, q, x: tt.ring_attention(q, q, q, zigzag=flag),
    lambda flag, q, x: tt.ring_attention(q, q, q, return_lse=flag),
    lambda flag, q, x: tt.attention(q, q, q, return_lse=flag),
    lambda flag, q, x: tt.attention(q, q, q, sinks=x[0, :1], return_lse=flag),
    lambda flag, q, x: tt.attention_varlen(q[0], q[0], q[0], [0, 1], [0, 1], return_lse=flag),
])  # fmt: skip
@pytest.mark.parametrize("flag", ["no", [0], None], ids=repr)
def test_a_flag_that_is_not_true_or_false_is_refused(call, flag):
    with pytest.raises(InvalidOperand, match="is not True or False"):
        call(flag, torch.ones(1, 1, 8, 32, dtype=torch.float16), torch.ones(4, 4))


@pytest.mark.parametrize("name", ["scale", "softcap"])
@pytest.mark.parametrize("call", [
    lambda q, **number: tt.attention(q, q, q, **number),
    lambda q, **number: tw.attention(q, q, q, **number),
    lambda q, **number: tt.attention_varlen(q[0], q[0], q[0], [0, 1], [0, 1], **number),
    lambda q, **number: tt.ring_attention(q, q, q, **number),
])  # fmt: skip
def test_a_learned_number_of_attention_is_refused_and_so_is_what_is_no_number(call, name):
    q = torch.ones(1, 1, 8, 32, dtype=torch.float16, requires_grad=True)
    with tw.emulator():
        with pytest.raises(InvalidOperand, match=f"{name} requires a gradient, and none would reach it"):
            call(q, **{name: torch.tensor(0.5, requires_grad=True)})
        with pytest.raises(InvalidOperand, match=f"{name}='2' is not a number"):
            call(q, **{name: "2"})
        assert torch.equal(tt.attention(q, q, q, **{name: torch.tensor(0.5)}), tt.attention(q, q, q, **{name: 0.5}))


@pytest.mark.parametrize("starts", [[0, 3.7, 8], np.array([0, 2**32 + 3, 8]), [False, True], [0, 9], [[0]]], ids=repr)
def test_starts_of_the_host_that_are_no_starts_are_refused_before_they_are_rounded(starts):
    x = torch.ones(8, 1, 32, dtype=torch.float16)
    with tw.emulator(), pytest.raises(InvalidOperand, match="cu_seqlens_k must"):
        tt.attention_varlen(x, x, x, [0] * len(starts), starts)


@pytest.mark.parametrize("call", [
    lambda x, none: tt.matmul(x, none),
    lambda x, none: tt.linear(x, none),
    lambda x, none: tt.grouped_matmul(x, none, torch.tensor([2], dtype=torch.int32)),
    lambda x, none: tt.gated_mlp(x, none, x, x),
    lambda x, none: tt.fp8_linear(x, none),
    lambda x, none: tt.rotary(x, none, x, x),
    lambda x, none: tt.attention(x[None, None].half(), none, none),
    lambda x, none: tt.attention_varlen(x[:, None].half(), none, none, [0], [0]),
])  # fmt: skip
def test_none_is_no_operand(call):
    with tw.emulator(), pytest.raises(InvalidOperand, match=r"takes torch tensors, and one .* is of type NoneType"):
        call(torch.ones(8, 8), None)


@pytest.mark.parametrize("call", [
    lambda x, word: tt.matmul(x, x, precision=word),
    lambda x, word: tw.matmul(x.numpy(), x.numpy(), precision=word),
    lambda x, word: tt.linear(x, x, activation=word),
    lambda x, word: tt.matmul(x.clone().requires_grad_(), x, activation=word),
    lambda x, word: tt.gated_mlp(x, x, x, x, word),
    lambda x, word: tt.fp8_linear(x, x, scales=word),
    lambda x, word: tt.fp8_linear(x, x, backward=word),
    lambda x, word: tw.attention(*[x.half().numpy()[None, None]] * 3, layout=word),
    lambda x, word: tw.attention(*[x.half()[None, None].requires_grad_()] * 3, layout=word),
])  # fmt: skip
@pytest.mark.parametrize("word", [np.ones((2, 2)), ["relu"]], ids=["array", "list"])
def test_what_is_no_word_is_refused_as_one(call, word):
    with (
        tw.emulator(),
        pytest.raises((InvalidOperand, InvalidEpilogue), match=r"is not known|is not one of|cannot gate"),
    ):
        call(torch.ones(8, 8), word)


@pytest.mark.parametrize("offs", [
    torch.ones(2, requires_grad=True), torch.ones(2, dtype=torch.bfloat16), torch.ones(2, device="meta"),
], ids=str)  # fmt: skip
def test_offsets_in_a_tensor_that_holds_no_integers_are_refused(offs):
    with tw.emulator(), pytest.raises(InvalidOperand, match="offs must hold integers"):
        tw.grouped_matmul(torch.ones(8, 8), torch.ones(2, 8, 8), offs)


@pytest.mark.parametrize(("ranks", "rank"), [(2, -1), (2, 2), (0, 0)])
def test_only_the_processes_of_a_group_have_rows_of_a_context(ranks, rank):
    for zigzag in (False, True):
        with pytest.raises(InvalidOperand, match=f"rank={rank} is not one of {ranks} processes"):
            tt.context_rows(8, ranks, rank, zigzag=zigzag)
