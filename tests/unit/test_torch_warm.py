"""Gradients of layers by remembered launches, on a GPU whose memory is the host's."""

from __future__ import annotations

import ctypes
import dataclasses
import struct
import sys
import warnings

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from stub_gpu import HostBoard, MultiplyingBoard, stub_gpu  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import tilewright as tw  # noqa: E402
import tilewright.torch as tt  # noqa: E402
from tilewright.arrays import eager, view  # noqa: E402
from tilewright.errors import WrongResult  # noqa: E402
from tilewright.run import lately as lately_module  # noqa: E402
from tilewright.run import libraries  # noqa: E402
from tilewright.torch import attention_gradient as gradient_module  # noqa: E402
from tilewright.torch import attention_warm  # noqa: E402
from tilewright.torch import layer as layer_module  # noqa: E402

attention_module = sys.modules["tilewright.torch.attention"]
OPTIONS = (None, False, False, None, None, "ieee")


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Guards are made at a call's second repetition."""
    monkeypatch.setattr(lately_module, "ENOUGH", 2)


class HostTensors(libraries.TorchArrays):
    """torch's tensors of the host, as if they were on GPU 0."""

    def __init__(self) -> None:
        self.types = (torch.Tensor, torch.nn.Parameter)
        self.address = torch.Tensor.data_ptr
        self._byte, self.is_graded = torch.uint8, torch.is_grad_enabled
        self.modes, self.is_recorded = torch._C._len_torch_dispatch_stack, eager.is_recorded
        self._bump = torch.autograd.graph.increment_version

    def stream(self, ordinal):
        return 0

    def device(self):
        return 0

    def new(self, shape, strides, dtype):
        return torch.empty_strided(shape, strides, dtype=dtype)


@pytest.fixture
def board(monkeypatch):
    library, read = HostTensors(), view._from_torch
    monkeypatch.setattr(libraries, "known", dict.fromkeys(library.types, library))
    monkeypatch.setattr(libraries, "_library", lambda kind: library)
    monkeypatch.setattr(view, "_from_torch", lambda *given: dataclasses.replace(read(*given), device=0, stream=0))
    with stub_gpu(MultiplyingBoard()) as found:
        yield found


@pytest.fixture
def runs(monkeypatch):
    """The products that were not remembered."""
    found = []
    whole = layer_module.run
    monkeypatch.setattr(layer_module, "run", lambda *given, **options: found.append(1) or whole(*given, **options))
    return found


def values(*shape, grad=True):
    return torch.randn(shape).requires_grad_(grad)


def step(x, weight, grad, wanted):
    result = layer_module.at_once(x, weight, None, None, OPTIONS)
    return result, torch.autograd.grad(result, wanted, grad)


def check(x, weight, grad, wanted):
    result, found = step(x, weight, grad, wanted)
    right = torch.nn.functional.linear(x, weight)
    torch.testing.assert_close(result, right, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found, torch.autograd.grad(right, wanted, grad), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(32, 48), (2, 16, 48)], ids=str)
def test_the_second_step_of_a_layer_plans_nothing_and_is_right(board, runs, shape):
    x, weight = values(*shape), values(40, 48)
    check(x, weight, torch.randn(*shape[:-1], 40), (x, weight))
    assert len(runs) == 3
    before = board.launches
    for _ in range(2):
        x, weight = values(*shape), values(40, 48)
        check(x, weight, torch.randn(*shape[:-1], 40), (x, weight))
    assert len(runs) == 3
    assert board.launches == before + 6


def test_nothing_is_made_for_a_frozen_weight_or_an_input_without_gradient(board, runs):
    for frozen in (0, 1):
        for _ in range(3):
            given = [values(32, 48, grad=frozen != 0), values(40, 48, grad=frozen != 1)]
            before = board.launches
            check(*given, torch.randn(32, 40), (given[1 - frozen],))
            assert board.launches == before + 2


def test_a_gradient_that_lies_otherwise_takes_no_launches_that_were_remembered_for_another(board, runs):
    x, weight = values(32, 48), values(40, 48)
    for grad in (
        torch.randn(32, 40), torch.randn(40, 32).t(), torch.randn(32, 80)[:, :40], torch.randn(1, 1).expand(32, 40),
        torch.randn(32, 41).flatten()[1:1281].view(32, 40),
    ):  # fmt: skip
        made = len(runs)
        check(x, weight, grad, (x, weight))
        assert len(runs) > made
        made = len(runs)
        check(x, weight, grad, (x, weight))
        assert len(runs) == made


def test_the_gradient_of_a_square_layers_input_is_not_taken_for_that_of_its_weight(board, runs):
    for _ in range(3):
        for frozen in (0, 1):
            given = [values(32, 32, grad=frozen != 0), values(32, 32, grad=frozen != 1)]
            check(*given, torch.randn(32, 32), (given[1 - frozen],))


def test_a_layer_of_late_is_not_taken_for_one_with_another_activation(recorded):
    x, weight, bias = (torch.randn(shape) for shape in ((32, 48), (40, 48), (40,)))
    kinds = [(b, activation) for b in (None, bias) for activation in (None, "relu", "silu")]
    first = {}
    for _ in range(4):
        for number, (b, activation) in enumerate(kinds):
            for _ in range(2):
                layer_module.at_once(x, weight, b, activation, OPTIONS)
                assert recorded.functions[-1] == first.setdefault(number, recorded.functions[-1])
    assert len(set(first.values())) == len(kinds)


def test_a_layer_of_late_is_seen_by_torch_funcs_transforms(board, monkeypatch):
    layer, x = tt.Linear(48, 40), values(32, 48, grad=False)
    linear = sys.modules[tt.linear.__module__]
    monkeypatch.setattr(linear, "runs_here", lambda x: True)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    for _ in range(3):
        layer(x)
    layer(x := values(16, 48, grad=False))  # known by its key alone
    before = board.launches
    monkeypatch.setattr(linear, "at_once", lambda *_: None)
    with pytest.warns(UserWarning, match="torch.func"):
        torch.func.grad(lambda z: (layer(x).detach() * z).sum())(torch.ones(40))
    assert board.launches == before


def test_a_repeated_derivative_reads_the_bias_and_the_gradient_where_they_are(recorded, monkeypatch):
    monkeypatch.setattr(sys.modules["tilewright.torch.fused"], "runs_here", lambda x: True)
    seen = []
    for _ in range(4):
        k = layer_module.KEPT_FROM - 8  # a longer sum is kept, not made again
        x, weight, bias, grad = values(32, k), values(40, k), values(40), torch.randn(32, 40)
        result = layer_module.at_once(x, weight, bias, "silu", OPTIONS)
        recorded.made = []
        torch.autograd.grad(result, (x, weight, bias), grad)
        names = {one.data_ptr(): name for name, one in zip("xwbg", (x, weight, bias, grad), strict=True)}
        words = [struct.unpack(f"<{len(params) // 8}Q", params[: len(params) // 8 * 8]) for _, params in recorded.made]
        seen.append([[(place, names[word]) for place, word in enumerate(each) if word in names] for each in words])
    assert {name for launch in seen[0] for _, name in launch} == {*"xwbg"}
    assert seen[1:] == seen[:1] * 3


def test_rows_that_cannot_be_viewed_as_one_matrix_are_copied_each_time(board, runs):
    for number in range(3):
        x, weight, grad = values(16, 2, 48), values(40, 48), torch.randn(2, 16, 40)
        _, (found,) = step(x.transpose(0, 1), weight, grad, (weight,))
        right = torch.einsum("bro,rbi->oi", grad, x.detach())
        torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-4)
        assert len(runs) == 3 + 2 * number


def test_a_dispatch_mode_sees_the_products_of_a_remembered_gradient(board):
    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    x, weight, grad = values(32, 48), values(40, 48), torch.randn(32, 40)
    step(x, weight, grad, (x, weight))
    result = layer_module.at_once(x, weight, None, None, OPTIONS)
    with Watch():
        found = torch.autograd.grad(result, (x, weight), grad)
    assert sum("tilewright" in name for name in seen) == 2
    torch.testing.assert_close(found, torch.autograd.grad(torch.nn.functional.linear(x, weight), (x, weight), grad))


def test_a_remembered_gradient_that_is_to_be_differentiated_again_has_a_graph(board):
    x, weight, grad = values(32, 48), values(40, 48), torch.randn(32, 40, requires_grad=True)
    for _ in range(3):
        step(x, weight, grad.detach(), (x, weight))
    result = layer_module.at_once(x, weight, None, None, OPTIONS)
    found = torch.autograd.grad(result, (x, weight), grad, create_graph=True)
    assert all(one.requires_grad for one in found)
    of_grad, of_weight = torch.autograd.grad(found[0], (grad, weight), torch.ones_like(x))
    torch.testing.assert_close(of_grad, torch.ones_like(x) @ weight.t(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(of_weight, grad.t() @ torch.ones_like(x), rtol=1e-4, atol=1e-4)


def test_under_autocast_a_layer_takes_the_same_way(board, runs, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    taken = []
    whole = layer_module._differentiable
    linear = sys.modules[tt.linear.__module__]
    monkeypatch.setattr(layer_module, "_differentiable", lambda *given: taken.append(given[0].dtype) or whole(*given))
    assert linear.at_once is layer_module.at_once
    monkeypatch.setattr(layer_module, "_whole", lambda x, weight, *_: x @ weight.t())
    with torch.autocast("cpu", torch.bfloat16):
        result = tt.linear(values(8, 16), values(8, 16))
    assert taken == [torch.bfloat16]
    assert result.dtype == torch.bfloat16


# --- attention: what is launched again, and how results lie -----------------------------------------------------------


class Recording(HostBoard):
    """The entry and the parameters of each launch."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[str, bytes]] = []
        self.functions: list[int] = []

    def cuLaunchKernel(self, function, *arguments):
        _, place, _, size, _ = (ctypes.c_void_p * 5).from_address(arguments[-1])
        nbytes = ctypes.c_size_t.from_address(size).value
        self.functions.append(function)
        self.made.append((self.names[function], ctypes.string_at(place, nbytes)))
        return super().cuLaunchKernel(function)


@pytest.fixture
def recorded(monkeypatch):
    library, read = HostTensors(), view._from_torch
    monkeypatch.setattr(libraries, "known", dict.fromkeys(library.types, library))
    monkeypatch.setattr(libraries, "_library", lambda kind: library)
    monkeypatch.setattr(view, "_from_torch", lambda *given: dataclasses.replace(read(*given), device=0, stream=0))
    monkeypatch.setattr(attention_module, "_why_torch", lambda *_: None)
    with stub_gpu(Recording()) as found:
        yield found


@pytest.mark.parametrize("quick", [True, False], ids=["torch's guards", "without them"])
def test_tensors_that_lie_otherwise_are_told_from_those_that_lie_so(quick, monkeypatch):
    if not quick:
        monkeypatch.delattr(torch._C._dynamo.guards, "TensorGuards")
    x, y = torch.randn(4, 6), torch.randn(6)
    told = libraries.lying_as(x, y)
    assert told(torch.randn(4, 6), torch.randn(6))
    turned, negated = torch.randn(6, 4).t(), torch.randn(4, 6, dtype=torch.complex64).conj().imag
    assert negated.is_neg()
    for other in (torch.randn(4, 5), torch.randn(5, 6), turned, x.double(), x.to("meta"), torch.nn.Parameter(x)):
        assert not told(other, y)
        assert not libraries.lying_as(y, other)(y, x)
    assert not libraries.lying_as(negated)(torch.empty_strided(negated.shape, negated.stride()))
    assert libraries.lying_as(x, x)(x, x)


class Passed(TorchDispatchMode):
    """Sees every operation, and lets it pass."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def test_guards_say_no_where_torch_is_in_another_state():
    x, y = torch.randn(4, 6), torch.randn(6)
    told = libraries.guard(x, y)
    assert told is not None
    assert told(x, y)
    assert libraries.guard(x, x) is None
    for state in (torch.autocast("cpu", torch.bfloat16), torch.inference_mode(), Passed()):
        with state:
            assert not told(x, y)
    seen = []
    torch.func.grad(lambda z: seen.append(told(x, y)) or z.sum())(y)
    torch.func.vmap(lambda z: seen.append(told(x, y)) or z)(x)
    torch.jit.trace(lambda z: seen.append(told(x, y)) or z + 1, (y,), check_trace=False)
    assert seen == [False] * 3
    assert told(x, y)


def test_a_guard_is_made_for_what_comes_again_and_again_and_not_for_what_goes_on_changing(monkeypatch):
    monkeypatch.setattr(lately_module, "ENOUGH", 8)
    made = []
    monkeypatch.setattr(lately_module, "guard", lambda *given: made.append(given) or libraries.guard(*given))
    ways, tensors = lately_module.Lately().of("hint"), [torch.randn(2, n) for n in range(1, 7)]
    calls = [object() for _ in tensors]

    def call(n):
        if ways.find(tensors[n]) is None:
            ways.note(calls[n], tensors[n])

    for number in range(20):
        call(0)
        assert len(made) == (number >= 7)
    for number in range(200):
        call(number % 6)
    assert len(made) == 1, "none came eight times running"
    for number in range(1000):
        call(number // 8 % 6)
    assert 4 < len(made) == lately_module.MOST_GUARDS
    once = lately_module.Lately().of("another")
    del made[:]
    for _ in range(100 * 8):
        once.note(calls[0], tensors[0], tensors[0])
    assert len(made) == lately_module.MOST_GUARDS


def test_what_guards_do_not_see_is_asked_for():
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    assert eager.is_out_of_the_way()
    for state in (torch.autocast("cpu"), forward_ad.dual_level(), Passed(), FakeTensorMode()):
        with state:
            assert not eager.is_out_of_the_way()
    seen = []
    make_fx(lambda z: seen.append(eager.is_out_of_the_way()) or z + 1)(torch.ones(3))
    assert seen == [False]


def no_keys(monkeypatch):
    def fail(*_):
        raise AssertionError("a key was made for a call like those of late")

    for name in ("pair", "signature", "rows"):
        monkeypatch.setattr(HostTensors, name, fail)


@pytest.mark.parametrize("wanted", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_a_layer_is_known_by_how_its_tensors_lay_lately(board, runs, bias, wanted, monkeypatch):
    layer = tt.Linear(48, 40, bias=bias)
    step = torch.enable_grad if wanted else torch.no_grad

    def check(x):
        with step():
            result = layer(x)
        right = torch.nn.functional.linear(x, layer.weight, layer.bias)
        bare = torch.nn.functional.linear(x, layer.weight)  # the stub adds no bias
        torch.testing.assert_close(result, bare, rtol=1e-4, atol=1e-4)
        if wanted:
            grad = torch.randn(result.shape)
            found = torch.autograd.grad(result, (x, *layer.parameters()), grad)
            torch.testing.assert_close(found, torch.autograd.grad(right, (x, *layer.parameters()), grad))

    monkeypatch.setattr(sys.modules[tt.linear.__module__], "runs_here", lambda x: True)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    for _ in range(3):
        check(values(32, 48))
    made = len(runs)
    with monkeypatch.context() as patched:
        no_keys(patched)
        check(values(32, 48))
    with torch.no_grad():
        layer.weight.add_(1)
    check(values(32, 48))
    layer.weight = torch.nn.Parameter(torch.randn(40, 48))  # whose address may be that of the one before
    check(values(32, 48))
    assert len(runs) == made
    check(values(32, 96)[:, :48])
    check(values(16, 48))


@pytest.mark.parametrize("wrong", [{"precision": ["ieee"]}, {"deterministic": [True]}, {"activation": ["relu"]}])
def test_an_option_that_cannot_be_hashed_is_named_after_calls_of_late_too(board, wrong, monkeypatch):
    monkeypatch.setattr(sys.modules[tt.linear.__module__], "runs_here", lambda x: True)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    layer, x = tt.Linear(48, 40), values(32, 48)
    for _ in range(3):
        layer(x), tt.linear(x, layer.weight, layer.bias)
    name = next(iter(wrong))
    with pytest.raises(tw.errors.TilewrightError, match=name):
        tt.linear(x, layer.weight, layer.bias, **wrong)
    setattr(layer, name, wrong[name])
    with pytest.raises(tw.errors.TilewrightError, match=name):
        layer(x)


def test_torch_fx_sees_a_layer_that_was_called_of_late(board):
    layer = tt.Linear(48, 40)
    for _ in range(4):
        with torch.no_grad():
            layer_module.at_once(values(32, 48), layer.weight, layer.bias, None, OPTIONS)
    nodes = torch.fx.symbolic_trace(torch.nn.Sequential(layer)).graph.nodes
    assert [node.name for node in nodes if node.op == "call_function"] == ["linear"]


def product(*given, **options):
    found = tw.matmul(*given, **options)
    a, b = given
    torch.testing.assert_close(found, a @ b, rtol=1e-4, atol=1e-4)  # the stub knows no epilogue
    return found


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("given", [False, True])
def test_a_product_is_known_by_how_its_tensors_lay_lately(board, fused, given, monkeypatch):
    def options():
        more = {"bias": torch.randn(24), "activation": "silu"} if fused else {}
        return more | ({"out": torch.empty(32, 24)} if given else {})

    b = torch.randn(48, 24)
    for _ in range(3):
        product(torch.randn(32, 48), b, **options())
    with monkeypatch.context() as patched:
        no_keys(patched)
        for _ in range(2):
            product(torch.randn(32, 48), b, **options())
        for other in (torch.randn(16, 48), torch.randn(48, 32).t(), torch.randn(32, 49).flatten()[1:1537].view(32, 48)):
            with pytest.raises(AssertionError, match="a key was made"):
                tw.matmul(other, b, **options())
    assert board.launches == 5
    for other in (torch.randn(16, 48), torch.randn(48, 32).t(), torch.randn(32, 49).flatten()[1:1537].view(32, 48)):
        for _ in range(3):
            more = options()
            if given:
                more["out"] = torch.empty(len(other), 24)
            product(other, b, **more)


def test_a_product_of_late_is_not_taken_for_one_with_other_numbers_or_c(board):
    a, b = torch.randn(32, 48), torch.randn(48, 24)
    for _ in range(4):
        tw.matmul(a, b)
    plain = a @ b
    for options, right in (({"alpha": 2.0}, 2 * plain), ({"c": plain, "beta": -2.0}, -plain), ({}, plain)):
        for _ in range(4):
            torch.testing.assert_close(tw.matmul(a, b, **options), right, rtol=1e-4, atol=1e-4)


def test_a_product_of_late_is_not_taken_for_one_with_other_options(recorded):
    a, b, row, column = torch.randn(32, 48), torch.randn(48, 32), torch.randn(32), torch.randn(32, 1)
    seen = {}
    asked = (
        {}, {"bias": row}, {"bias": column}, {"activation": "relu"}, {"activation": "silu"}, {"row_scale": column},
        {"col_scale": row}, {"bias": row, "activation": "relu"}, {"residual": torch.randn(32, 32)},
        {"precision": "tf32"},
    )  # fmt: skip
    modules = []
    for number, options in enumerate(asked):
        for _ in range(4):
            tw.matmul(a, b, **options)
            seen.setdefault(number, set()).add(recorded.functions[-1])
        modules += seen[number]
    assert [len(one) for one in seen.values()] == [1] * len(asked), "a call of late launched another kernel"
    assert len(set(modules)) == len(asked), "two kinds of calls shared a kernel"


def test_a_product_of_late_that_is_to_be_verified_is(board):
    a, b = torch.randn(32, 48), torch.randn(48, 24)
    for _ in range(4):
        tw.matmul(a, b)
    tw.matmul(a, b, verify=True)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys.modules["tilewright.gemm.matmul"], "run", None)  # it is remembered with its check
        tw.matmul(a, b, verify=True)
    board.wrong = 1.0
    for _ in range(3):
        tw.matmul(a, b)
        with pytest.raises(WrongResult):
            tw.matmul(a, b, verify=True)


@pytest.mark.parametrize("times", [4, 2], ids=["told by guards", "known by its key"])
@pytest.mark.parametrize("how", ["jit", "fx", "before dispatch"])
def test_calls_that_are_remembered_are_recorded_as_operators(recorded, how, times):
    from torch.fx.experimental.proxy_tensor import make_fx

    b, bias = torch.randn(48, 24), torch.randn(24)
    k, v, q = (torch.randn(1, 2, 64, 64).bfloat16() for _ in range(3))
    for function, x in (
        (lambda x: tw.matmul(x, b), torch.randn(32, 48)),
        (lambda x: tw.matmul(x, b, bias=bias, activation="silu"), torch.randn(32, 48)),
        (lambda q: tw.attention(q, k, v), q),
    ):
        for _ in range(times):
            function(x)
        if how == "jit":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                graph = str(torch.jit.trace(function, (x,), check_trace=False).inlined_graph)
        else:
            graph = make_fx(function, pre_dispatch=how == "before dispatch")(x).code
        assert "tilewright" in graph


def no_reading(monkeypatch):
    def fail(*_, **__):
        raise AssertionError("a call like an earlier one was read")

    for name in ("tilewright.attn.attention.read_attention", "tilewright.attn.backward.read_backward"):
        monkeypatch.setattr(name, fail)
    monkeypatch.setattr(gradient_module, "run", fail)
    monkeypatch.setattr(gradient_module, "run_backward", fail)


@pytest.mark.parametrize("outside", [False, True], ids=["heads outside rows", "rows outside heads"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_a_repeated_step_of_attention_launches_the_same_with_results_that_lie_the_same(
    recorded, outside, is_causal, monkeypatch
):
    def tensors():
        shape = (2, 130, 4, 64) if outside else (2, 4, 130, 64)
        return [torch.randn(shape).bfloat16().requires_grad_() for _ in range(4)]

    def step(q, k, v, grad):
        given = [x.detach().transpose(1, 2).requires_grad_() if outside else x for x in (q, k, v, grad)]
        with torch.no_grad():
            bare = tt.scaled_dot_product_attention(*given[:3], is_causal=is_causal)
        out = tt.scaled_dot_product_attention(*given[:3], is_causal=is_causal)
        found = torch.autograd.grad(out, given[:3], given[3].detach())
        return [(tuple(x.shape), x.stride(), x.dtype) for x in (bare, out, *found)]

    first = step(*tensors())
    made, recorded.made = recorded.made, []
    assert step(*tensors()) == first  # the first of a call that is known
    no_reading(monkeypatch)
    for _ in range(2):
        recorded.made = []
        assert step(*tensors()) == first
        assert [(name, len(params)) for name, params in recorded.made] == [(n, len(p)) for n, p in made]


def test_operands_and_results_are_named_in_the_parameters_of_a_repeated_step(recorded):
    q, k, v, grad = (torch.randn(1, 4, 128, 64).bfloat16().requires_grad_() for _ in range(4))

    def step():
        recorded.made = []
        out = tt.scaled_dot_product_attention(q, k, v)
        found = torch.autograd.grad(out, (q, k, v), grad.detach())
        named = {"q": q, "k": k, "v": v, "out": out, "grad": grad} | dict(zip(("dq", "dk", "dv"), found, strict=True))
        addresses = {x.data_ptr(): name for name, x in named.items()}
        words = [struct.unpack(f"<{len(params) // 8}Q", params[: len(params) // 8 * 8]) for _, params in recorded.made]
        return [[(place, addresses[word]) for place, word in enumerate(each) if word in addresses] for each in words]

    first = step()
    assert any(first)
    assert step() == first
    assert step() == first


def test_a_scale_or_a_flag_that_differs_is_not_taken_for_another(recorded):
    q, k, v = (torch.randn(1, 4, 128, 64).bfloat16() for _ in range(3))
    for options in ({}, {"is_causal": True}, {"scale": 0.5}, {"scale": 0.25}):
        for _ in range(2):
            tt.scaled_dot_product_attention(q, k, v, **options)
    assert len(recorded.made) == 8
    fresh = [recorded.made[2 * number] for number in range(4)]
    again = [recorded.made[2 * number + 1] for number in range(4)]
    assert [name for name, _ in fresh] == [name for name, _ in again]
    assert recorded.made[4][1] != recorded.made[6][1], "the scale is among the parameters"


@pytest.mark.parametrize("quick", [True, False], ids=["torch's guards", "without them"])
def test_attention_is_known_by_how_its_tensors_lay_lately(recorded, quick, monkeypatch):
    if not quick:
        monkeypatch.delattr(torch._C._dynamo.guards, "TensorGuards")
    asked = False, 0.7 + quick, False

    def fresh(offset=0, grad=True):
        return (
            torch.randn(4 * 128 * 64 + 8).bfloat16()[offset:][: 4 * 128 * 64].view(1, 4, 128, 64).requires_grad_(grad)
        )

    def find(*given):
        return attention_warm.find(*given, asked)

    given = [fresh() for _ in range(3)]
    for _ in range(2):
        tt.scaled_dot_product_attention(*given, scale=asked[1])
    known = find(*given)
    assert known is not None
    assert [find(*given) for _ in range(3)] == [known] * 3
    assert find(*(fresh() for _ in range(3))) is known
    assert attention_warm.find(*given, asked, only_lately=True) is (known if quick else None)
    q, k, v = given
    turned = k.detach().transpose(1, 2).contiguous().transpose(1, 2)
    others = [
        (q, k, fresh(offset=1)), (fresh(offset=4), k, v), (q, turned, v),
        (q[:, :2], k[:, :2], v[:, :2]), tuple(x.detach() for x in given), (q, k, v[:, :, :64]),
    ]  # fmt: skip
    assert all(find(*other) is not known for other in others)
    with torch.no_grad():
        assert find(*given) is not known


def test_attention_of_late_is_not_taken_for_one_with_other_operands(recorded, monkeypatch):
    def drawn(*shape):
        return torch.randn(shape).bfloat16()

    q, k, v = (drawn(2, 4, 64, 64) for _ in range(3))
    asked = (
        {}, {"is_causal": True}, {"bias": drawn(64, 64)}, {"bias": drawn(2, 4, 64, 64)},
        {"return_lse": True}, {"out": drawn(2, 4, 64, 64)}, {"out": drawn(2, 64, 4, 64).transpose(1, 2)},
        {"bias": drawn(64, 64), "is_causal": True}, {"window": (8, 8)}, {"window": [8, 8]}, {"layout": "bshd"},
    )  # fmt: skip

    def launches(options):
        found, recorded.made, at = tw.attention(q, k, v, **options), [], len(recorded.functions)
        found = tw.attention(q, k, v, **options)
        laid = [(tuple(x.shape), x.stride(), x.dtype) for x in (found if isinstance(found, tuple) else (found,))]
        return recorded.functions[at:], [(name, len(params)) for name, params in recorded.made], laid

    first = [launches(options) for options in asked]
    assert len({str(one) for one in first}) >= 8
    for _ in range(3):
        assert [launches(options) for options in asked] == first
    with monkeypatch.context() as patched:
        no_keys(patched)
        for options in (asked[0], asked[2], asked[4], asked[5]):
            tw.attention(drawn(2, 4, 64, 64), k, v, **options)
        for other in (
            drawn(2, 4, 65, 64),
            drawn(2, 64, 4, 64).transpose(1, 2),
            drawn(2 * 4 * 64 * 64 + 1)[1:].view(q.shape),
        ):
            with pytest.raises(AssertionError, match="a key was made"):
                tw.attention(other, k, v)


def attention_step(given, grad, **options):
    out = tt.scaled_dot_product_attention(*given, **options)
    return torch.autograd.grad(out, [x for x in given if x.requires_grad], grad)


def test_saved_operands_that_come_back_lying_otherwise_are_read_anew(recorded, monkeypatch):
    given = [torch.randn(2, 130, 4, 64).bfloat16().transpose(1, 2).requires_grad_() for _ in range(3)]
    grad = torch.randn(2, 130, 4, 64).bfloat16().transpose(1, 2)
    for _ in range(3):
        attention_step(given, grad)
    reads = []
    whole = gradient_module._backward
    monkeypatch.setattr(gradient_module, "_backward", lambda *g: reads.append(g[2].stride()) or whole(*g))
    attention_step(given, grad)
    assert not reads
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x.contiguous()):
        attention_step(given, grad)
    assert reads == [(130 * 4 * 64, 130 * 64, 64, 1)]


def test_a_gradient_of_attention_that_lies_otherwise_takes_no_launches_of_another(recorded, monkeypatch):
    given = [torch.randn(1, 4, 128, 64).bfloat16().requires_grad_() for _ in range(3)]
    seeds = [
        torch.randn(1, 4, 128, 64).bfloat16(), torch.randn(1, 128, 4, 64).bfloat16().transpose(1, 2),
        torch.randn(1, 1, 1, 1).bfloat16().expand(1, 4, 128, 64), torch.randn(1, 4, 128, 65).bfloat16()[..., 1:],
    ]  # fmt: skip
    whole = gradient_module._backward
    for seed in seeds:
        reads = []
        monkeypatch.setattr(gradient_module, "_backward", lambda *g, reads=reads: reads.append(1) or whole(*g))
        attention_step(given, seed)
        attention_step(given, seed)
        assert len(reads) >= 1
        del reads[:]
        attention_step(given, seed)
        assert not reads


def test_batches_of_gradients_of_repeated_attention_are_each_computed(recorded):
    given = [torch.randn(1, 4, 128, 64).bfloat16().requires_grad_() for _ in range(3)]
    for _ in range(3):
        attention_step(given, torch.randn(1, 4, 128, 64).bfloat16())
    out, recorded.made = tt.scaled_dot_product_attention(*given), []
    torch.autograd.grad(out, given, torch.randn(1, 4, 128, 64).bfloat16(), retain_graph=True)
    alone, recorded.made = [name for name, _ in recorded.made], []
    found = torch.autograd.grad(out, given, torch.randn(3, 1, 4, 128, 64).bfloat16(), is_grads_batched=True)
    assert [x.shape for x in found] == [(3, 1, 4, 128, 64)] * 3
    assert [name for name, _ in recorded.made] == 3 * alone


def test_a_remembered_gradient_of_attention_that_is_to_be_differentiated_again_has_a_graph(recorded):
    given = [torch.randn(1, 4, 128, 64).bfloat16().requires_grad_() for _ in range(3)]
    grad = torch.randn(1, 4, 128, 64).bfloat16()
    for _ in range(3):
        attention_step(given, grad)
    out, recorded.made = tt.scaled_dot_product_attention(*given), []
    found = torch.autograd.grad(out, given, grad, create_graph=True)
    assert not recorded.made
    assert all(one.requires_grad for one in found)


def test_a_frozen_operand_of_repeated_attention_gets_no_gradient(recorded):
    for frozen in range(3):
        given = [torch.randn(1, 4, 128, 64).bfloat16().requires_grad_(n != frozen) for n in range(3)]
        for _ in range(3):
            found = attention_step(given, torch.randn(1, 4, 128, 64).bfloat16())
            assert [x.shape for x in found] == [(1, 4, 128, 64)] * 2


def test_tilewrights_own_attention_is_remembered_with_its_gradients(recorded, monkeypatch):
    given = [torch.randn(1, 4, 128, 64).bfloat16().requires_grad_() for _ in range(3)]
    seed = torch.randn(1, 4, 128, 64).bfloat16()
    options = {"is_causal": True, "window": (32, 0), "softcap": 20.0}

    def step():
        with torch.no_grad():
            tt.attention(*given, **options)
        return torch.autograd.grad(tt.attention(*given, **options), given, seed)

    step()
    step()
    no_reading(monkeypatch)
    recorded.made = []
    step()
    assert len(recorded.made) == 3
